# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# A suite that is a script: source this first. $here is its folder; $work is a folder of its own,
# which is removed at the end, and lies under $TMPDIR.
set -u
here=$(realpath "$(dirname "$0")")
. "${BASH_SOURCE[0]%/*}/tap.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The words before a command that has no rights.
# shellcheck disable=SC2034
nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all)
expects() { # NUMBER ARGUMENT...: fewer arguments than that end it, with the words at its head
	[ $# -gt "$1" ] || { sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
}
skip_all() { # REASON: ends it
	echo "1..0 # SKIP $1"
	exit
}
