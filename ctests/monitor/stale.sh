#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# stale.sh LIBRARY [BUILT]: what libfabric's registration cache gives out after a change of memory, with libfabric's own
# monitors memhooks and userfaultfd and with ours, on the verbs provider, as a Markdown table for each libfabric; and
# TAP: with ours nothing is stale, what has not changed is served, and the test can see what is stale.
# The device is reached by CHECK_ADDRESS.
set -u
[ $# -ge 1 ] || { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
. "$(dirname "$0")/libfabrics.sh"

monitors=(memhooks userfaultfd ours)
# Runs the program to its end, with what stops it left out. Its standard error is that of the last run.
table() { # MONITOR [RUN...]
	local monitor=$1 out=$work/$1 settings=() from=0 status=124
	shift
	case $monitor in
	ours) settings=(RDMAMR_MONITOR=libfabric LD_PRELOAD="$library" RDMAMR_LOG=warn) ;;
	*) settings=(FI_MR_CACHE_MONITOR="$monitor") ;;
	esac
	: >"$out"
	while [ $status = 124 ]; do
		env "${settings[@]}" timeout 15 "$@" "$built/monitor_stale" "$from" >>"$out" 2>"$out.stderr"
		status=$?
		[ $status != 124 ] || echo "stops|" >>"$out"
		from=$(grep -c '|' "$out")
	done
	[ $status = 0 ] || echo "# $monitor: exit status $status: $(tail -n 1 "$out") $(tail -n 3 "$out.stderr")"
}
answer() { # MONITOR CHANGE [COLUMN]
	awk -F '|' -v change="$2" -v column="${3:-2}" '$1 == change { print $column }' "$work/$1"
}

for run in "${libfabrics[@]}"; do
	read -ra run <<<"$run"
	version=$(version_of "${run[*]}")
	echo "# libfabric $version:"
	for monitor in "${monitors[@]}"; do table "$monitor" "${run[@]}"; done
	changes=$(sed -n '/|/{/^done/d;s/|.*//p}' "$work/ours")
	echo "| change | memhooks | userfaultfd | ours |"
	echo "| --- | --- | --- | --- |"
	while read -r change; do
		printf '| %s |' "$change"
		for monitor in "${monitors[@]}"; do printf ' %s |' "$(answer "$monitor" "$change")"; done
		echo
	done <<<"$changes"

	while read -r change; do
		case $(answer ours "$change") in
		-) skip "$version, ours, $change: not stale" "$(answer ours "$change" 3)" ;;
		fresh | hit) check "$version, ours, $change: not stale, nor after that" [ "$(answer ours "$change" 3)" != STALE ] ;;
		*) fail "$version, ours, $change: not stale" "$(answer ours "$change")" "$(cat "$work/ours.stderr")" ;;
		esac
	done <<<"$changes"
	check "$version, ours: the program ran to its end" [ "$(answer ours "done")" = "done" ]
	check "$version, ours: what has not changed is served" [ "$(answer ours nothing)" = hit ]
	# shellcheck disable=SC2016 # Markdown, as the program prints it
	for change in '`munmap`, `mmap`' '`munmap`, `mmap` by bare system calls' '`mremap` with `MREMAP_FIXED` onto it'; do
		check "$version, ours: served again after $change" [ "$(answer ours "$change" 3)" = hit ]
	done
	check "$version: memhooks is seen to be stale" grep -q '|STALE|' "$work/memhooks"
done
skip_newer
tap_done
