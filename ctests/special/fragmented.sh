#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# fragmented.sh LIBRARY BUILT: runs fragmented.c as root, in a machine that it has to itself (vm/run),
# with each setting by which the kernel moves pages for a program that asks for huge pages, and with one
# by which it does not. Prints TAP.
. "$(dirname "$0")/../lib/script.sh"
library=$1 built=$2 thp=/sys/kernel/mm/transparent_hugepage
[ -w $thp/enabled ] || skip_all "no huge pages, or not root"
echo madvise >$thp/enabled
for defrag in madvise always never; do
	echo $defrag >$thp/defrag
	output=$(CHECK_DEVICE=${CHECK_DEVICE:-rxe0} RDMAMR_PREFAULT=2 LD_PRELOAD=$library "$built/fragmented" 2>&1)
	take_over "defrag $defrag" $? "$output"
	grep '^# ' <<<"$output" | sed "s/^# /# defrag $defrag: /"
done
tap_done
