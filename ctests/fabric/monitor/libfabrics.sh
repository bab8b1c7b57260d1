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
read -ra newer <<<"$newer"
libfabrics=("")
[ ${#newer[@]} = 0 ] || libfabrics+=("${newer[*]}")

version_of() { # RUN: the version of the libfabric that programs get by these words
	local run
	read -ra run <<<"$1"
	"${run[@]}" "$built/monitor_nodes" --version
}
skip_newer() { # unless it is unpacked
	[ ${#newer[@]} -gt 0 ] || skip "the same with a libfabric 2.x" "it is not unpacked here: run ctests/fabric/monitor/libfabric_run trixie"
}
