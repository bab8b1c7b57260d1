#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# stale.sh LIBRARY [BUILT]: the regions that libfabric's cache hands out after a change of memory, on
# the verbs provider, with each libfabric. With our monitor no change of changes.h leaves a stale
# region, and unchanged memory is served; with memhooks the test sees a stale region. "make peers"
# compares libfabric's own monitors.
. "$(dirname "$0")/libfabrics.sh"
. "$here/../../lib/stale.sh"

names_of() { # FILE: of the changes that were made
	sed -n '/|/{/^done/d;s/|.*//p}' "$1"
}
try_ours() {
	answers "$work/ours" RDMAMR_MONITOR=libfabric LD_PRELOAD="$library" RDMAMR_LOG=warn "${run[@]}" "$built/monitor_stale"
}
again() { # CHANGE: the answer to one more registration
	awk -F '|' -v change="$1" '$1 == change { print $3 }' "$work/ours"
}

# shellcheck disable=SC2016 # Markdown, as the program prints it
unchanged=('`munmap`, `mmap`' '`munmap`, `mmap` by raw system calls' '`mremap` with `MREMAP_FIXED` onto it')
served_less() { # no region is stale, but the cache did not serve unchanged memory: the monitor was late
	! grep -q STALE "$work/ours" || return
	! grep -q 'not served' "$work/ours" || return 0
	for change in "${unchanged[@]}"; do [ "$(again "$change")" = hit ] || return 0; done
	return 1
}

for run in "${libfabrics[@]}"; do
	read -ra run <<<"$run"
	version=$("${run[@]}" "$built/monitor_nodes" --version)
	answers "$work/memhooks" FI_MR_CACHE_MONITOR=memhooks "${run[@]}" "$built/monitor_stale" --shown
	try_ours
	# On a busy machine the monitor may see a change after the next registration: the best of three
	# runs counts.
	for _ in 1 2; do ! served_less || try_ours; done

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
	check "$version: the program ran to its end" grep -q '^done|done' "$work/ours"
	check "$version: each change of docs/cache.md was made with our monitor" \
		[ "$(names_of "$work/ours" | grep -cxFf <(names_of "$work/memhooks"))" = 18 ]
	for change in "${unchanged[@]}"; do
		check "$version, after $change: served again" [ "$(again "$change")" = hit ]
	done
	check "$version: memhooks is seen to be stale" grep -q '|STALE|' "$work/memhooks"
done
skip_newer
tap_done
