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

# The log of the device so far, without what differs from run to run: addresses that the kernel chose,
# and the bytes behind the first of irdma's request, which its provider leaves as they were.
log() { # DEVICE
	exec 9<>$console
	printf 'log %s' "$1" >&9
	cat <&9 | sed -e 's/0x7[0-9a-f]\{8\}\([0-9a-f]\{3\}\)/0x7...\1/g' -e "$2"
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
[ $# -gt 0 ] || mapfile -t devices < <(cat /sys/module/rdmamr_hca/parameters/all 2>/dev/null | tr ',' '\n')
: >"$rows"
for device in "${devices[@]}"; do
	mask=
	[ "${device%_*}" != irdma ] || mask='s/\(in=8:..\)[0-9a-f]*/\1/'
	cases=0 wrong=0 wrong_cache=0
	for program in "${programs[@]}"; do
		[ -x "$built/$program" ] || continue
		runs without "$device" "$mask" "$built/$program"
		runs with "$device" "$mask" env RDMAMR_STATS="$work/stats" LD_PRELOAD="$library" "$built/$program"
		count=$(grep -c "$(printf '\t')" "$work/without")
		bad=$(($(differences "$work/without" "$work/with") + $(differences "$work/without.log" "$work/with.log")))
		cases=$((cases + count)) wrong=$((wrong + bad))
		check "$device, $program: $count cases and $(wc -l <"$work/without.log") calls of the kernel are equal" \
			[ "$bad" = 0 ] && [ "$count" -gt 5 ]
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
