#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# stale.sh LIBRARY [BUILT]: the regions that libfabric's cache hands out after a change of memory, on the verbs provider,
# with each libfabric. Prints a Markdown table that compares libfabric's own monitors with ours, and TAP: with ours no
# change of changes.h leaves a stale region, unchanged memory is served, and the test can see a stale region.
. "$(dirname "$0")/libfabrics.sh"
. "$here/../../lib/stale.sh"

monitors=(memhooks userfaultfd ours)
table() { # MONITOR [RUN...]
	local monitor=$1 settings arguments=()
	shift
	case $monitor in
	ours) settings=(RDMAMR_MONITOR=libfabric LD_PRELOAD="$library" RDMAMR_LOG=warn) ;;
	*) settings=(FI_MR_CACHE_MONITOR="$monitor") arguments=(--shown) ;;
	esac
	answers "$work/$monitor" "${settings[@]}" "$@" "$built/monitor_stale" "${arguments[@]}"
}
names_of() { # MONITOR: of the changes that were made
	sed -n '/|/{/^done/d;s/|.*//p}' "$work/$1"
}
answer() { # MONITOR CHANGE [COLUMN]
	awk -F '|' -v change="$2" -v column="${3:-2}" '$1 == change { print $column }' "$work/$1"
}

# shellcheck disable=SC2016 # Markdown, as the program prints it
unchanged=('`munmap`, `mmap`' '`munmap`, `mmap` by raw system calls' '`mremap` with `MREMAP_FIXED` onto it')
served_less() { # no region is stale, but the cache did not serve unchanged memory: the monitor was late
	! grep -q STALE "$work/ours" || return
	! grep -q 'not served' "$work/ours" || return 0
	for change in "${unchanged[@]}"; do [ "$(answer ours "$change" 3)" = hit ] || return 0; done
	return 1
}

for run in "${libfabrics[@]}"; do
	read -ra run <<<"$run"
	version=$("${run[@]}" "$built/monitor_nodes" --version)
	echo "# libfabric $version:"
	for monitor in "${monitors[@]}"; do table "$monitor" "${run[@]}"; done
	# On a busy machine the monitor may see a change after the next registration: the best of three
	# runs counts.
	for _ in 1 2; do ! served_less || table ours "${run[@]}"; done
	echo "| change | memhooks | userfaultfd | ours |"
	echo "| --- | --- | --- | --- |"
	# A change has a row if another monitor was tried too.
	awk -F '|' -v OFS=' | ' '
		FILENAME ~ /memhooks$/ { first[$1] = $2; next }
		FILENAME ~ /userfaultfd$/ { second[$1] = $2; next }
		$1 in first && $1 != "done" { print "| " $1, first[$1], second[$1], $2 " |" }' \
		"$work/memhooks" "$work/userfaultfd" "$work/ours"

	while IFS='|' read -r change result again expected; do
		case $change/$result/$again/$expected in
		done/*) ;;
		*/-/*) skip "$version, $change" "$again" ;;
		*/fresh/fresh/fresh | */fresh/hit/fresh) pass "$version, $change: fresh" ;;
		*/hit/hit/hit) pass "$version, $change: served" ;;
		*/fresh/fresh/any | */fresh/hit/any | */hit/hit/any | */hit/fresh/any) pass "$version, $change: not stale" ;;
		*) fail "$version, $change: $expected" "got $result, then $again" "$(cat "$work/ours.stderr")" ;;
		esac
	done <"$work/ours"
	check "$version: the program ran to its end" [ "$(answer ours "done")" = "done" ]
	names_of memhooks >"$work/shown"
	check "$version: each change of the table was made with our monitor" [ "$(names_of ours | grep -cxFf "$work/shown")" = 18 ]
	for change in "${unchanged[@]}"; do
		check "$version, after $change: served again" [ "$(answer ours "$change" 3)" = hit ]
	done
	check "$version: memhooks is seen to be stale" grep -q '|STALE|' "$work/memhooks"
done
skip_newer
tap_done
