#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# providers.sh LIBRARY BUILT [DEVICE...]: in the machine of vm/ with the kernel module of vm/hca, whose
# devices stand in the place of each hardware driver's (all of them without DEVICE). For each device
# the programs of differential/ run without and with the library. Their lines (results, errno, the
# object's fields) and the kernel's log (start, length, iova, access, private bytes of each call) must be
# equal. With the cache the lines must be equal but for CACHE below. $VM_OUT/providers.tsv gets a line
# for each device: its name, the cases, the differences, and those with the cache.
set -u
here=$(dirname "$0")
. "$here/../lib/tap.sh"
library=$1 built=$2
shift 2
programs=(access_flags bad_inputs lifetime objects)
console=/dev/rdmamr-hca
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=${VM_OUT:-$work}/providers.tsv
rdma_core=$(dpkg-query -W -f '${Version}' ibverbs-providers 2>/dev/null || ls /usr/lib/*/libibverbs.so.1.* | sed 's/.*so\.1\.[0-9]*\.//')

# What a cache changes, as a pattern of lines: a region of the cache covers whole pages, has the key of
# an earlier registration, and its end costs no call.
CACHE=${CACHE:-'$^'}

# The log of the device so far, without what differs from run to run: addresses that the kernel chose (those of
# objects.c are the same in each run), and the bytes behind the first of irdma's request, which its provider leaves as they were.
log() { # DEVICE
	exec 9<>$console
	printf 'log %s' "$1" >&9
	cat <&9 | sed -e 's/0x[57][0-9a-f]\{11\}/0x.../g' -e "$2"
	exec 9>&-
}

runs() { # NAME DEVICE MASK COMMAND...
	local name=$1 device=$2 mask=$3
	shift 3
	printf 'remove %s' "$device" >$console 2>/dev/null
	printf 'add %s' "$device" >$console || return
	log "$device" "$mask" >/dev/null
	CHECK_DEVICE=$device "$@" >"$work/$name" 2>&1
	echo "exit status $?" >>"$work/$name"
	log "$device" "$mask" >"$work/$name.log"
}

differences() { # A B: how many lines differ
	diff "$1" "$2" | grep -c '^[<>]'
}

devices=("$@")
[ $# -gt 0 ] || devices=(mlx5_0 efa_0 irdma0 bnxt_re0 mlx4_0 hns_0 erdma_0 mana_0 qedr0 cxgb4_0 hfi1_0 qib0 vmw_pvrdma0 ocrdma0
	mthca0 ionic_0)
: >"$rows"
for device in "${devices[@]}"; do
	mask=
	[[ $device != irdma* ]] || mask='s/\(in=8:..\)[0-9a-f]*/\1/'
	cases=0 wrong=0 wrong_cache=0
	for program in "${programs[@]}"; do
		[ -x "$built/$program" ] || continue
		runs without "$device" "$mask" "$built/$program"
		runs with "$device" "$mask" env RDMAMR_STATS="$work/stats" LD_PRELOAD="$library" "$built/$program"
		count=$(grep -c "$(printf '\t')" "$work/without")
		bad=$(($(differences "$work/without" "$work/with") + $(differences "$work/without.log" "$work/with.log")))
		cases=$((cases + count)) wrong=$((wrong + bad))
		calls=$(wc -l <"$work/without.log")
		equal() { [ "$bad" = 0 ] && [ "$count" -gt 20 ] && [ "$calls" -gt 20 ]; }
		check "$device, $program: $count cases and $calls calls of the kernel are equal" equal
		if [ "$bad" != 0 ]; then
			diff "$work/without" "$work/with" | head -20 | sed 's/^/# /'
			diff "$work/without.log" "$work/with.log" | head -20 | sed 's/^/# log: /'
		fi
	done
	ours() { grep -q '"reg_kernel":[1-9]' "$work/stats"; }
	check "$device: the library registered by itself: $(grep -o '"reg_kernel":[0-9]*' "$work/stats" | tail -1)" ours
	printf '%s\t%s\t%s\t%s\t%s\n' "$device" "$rdma_core" "$cases" "$wrong" "$wrong_cache" >>"$rows"
	printf 'remove %s' "$device" >$console 2>/dev/null
done
tap_done
