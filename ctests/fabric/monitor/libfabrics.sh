# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The libfabrics for tests of the monitor: the installed one, and that of Debian trixie if
# "libfabric_run trixie" has unpacked it. Source this.
# shellcheck disable=SC2034 # the sourcing script uses it
. "$(dirname "$0")/../../lib/script.sh"
expects 1 "$@"
library=$(realpath "$1") built=${2:-$here/../../../target/ctests}
newer=
[ ! -e "$here/../../../target/libfabric/trixie-run/.ready" ] || newer=$("$here/libfabric_run" trixie)
libfabrics=("")
[ -z "$newer" ] || libfabrics+=("$newer")

skip_newer() { # unless it is unpacked
	[ -n "$newer" ] || skip "the same with a libfabric 2.x" "it is not unpacked here: run ctests/fabric/monitor/libfabric_run trixie"
}
