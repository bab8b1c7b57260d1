#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# providers.sh LIBRARY BUILT [DEVICE...]: in the machine of vm/, for each device of vm/hca, which stands in the
# place of a hardware driver's: the lines of the programs of differential/ and the kernel's log of their calls must
# be equal without and with the library, with the cache but for cache_changes. $VM_OUT/providers.tsv gets a line for
# each device: its name, the versions of kernel and rdma-core, the cases, the differences, and those with the cache.
. "$(dirname "$0")/../lib/script.sh"
library=$1 built=$2
shift 2
programs=(access_flags bad_inputs lifetime objects)
console=/dev/rdmamr-hca
rows=${VM_OUT:-$work}/providers.tsv
# Debian's version of the kernel, as 6.12.38-1.
kernel=$(uname -v | sed 's/.*Debian //; s/[- ].*//')
rdma_core=$(dpkg-query -W -f '${Version}' ibverbs-providers 2>/dev/null || ls /usr/lib/*/libibverbs.so.1.* | sed 's/.*so\.1\.[0-9]*\.//')
rdma_core=${rdma_core%-*}

# A cache changes these lines: a hit and the end of a cached region do not reach the device, which
# therefore cannot refuse them.
cache_changes='^[<>] \(refused with\|its end refused with\|once more\|deregistering when\)'

# Without the numbers that the kernel chose: of a cached region they are those of an earlier registration.
unnumbered() { # FILE
	sed 's/handle [0-9]*, lkey 0x[0-9a-f]*, rkey 0x[0-9a-f]*/handle N, lkey K, rkey K/; s/handle [0-9]*, lkey 0x[0-9a-f]*, rkey 0/handle N, lkey K, rkey 0/' "$1"
}

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

modprobe -q rdmamr_hca 2>/dev/null || skip_all "this kernel has no module of vm/hca"
devices=("$@")
[ $# -gt 0 ] || read -ra devices < <(grep -v "^#" "$here/../../vm/hca/devices")
: >"$rows"
for device in "${devices[@]}"; do
	mask=
	printf 'add %s' "$device" >$console 2>/dev/null
	if ! ibv_devices | grep -qw "$device"; then
		skip "$device" "rdma-core $rdma_core has no provider for it"
		continue
	fi
	[[ $device != irdma* ]] || mask='s/\(in=8:..\)[0-9a-f]*/\1/'
	cases=0 wrong=0 wrong_cache=0
	for program in "${programs[@]}"; do
		[ -x "$built/$program" ] || continue
		runs without "$device" "$mask" "$built/$program"
		runs with "$device" "$mask" env RDMAMR_STATS="$work/stats" LD_PRELOAD="$library" "$built/$program"
		runs cached "$device" "$mask" env RDMAMR_CACHE=all RDMAMR_STATS="$work/stats_cached" LD_PRELOAD="$library" "$built/$program"
		diff "$work/without" "$work/with" >"$work/wrong"
		diff "$work/without.log" "$work/with.log" >>"$work/wrong"
		diff <(unnumbered "$work/without") <(unnumbered "$work/cached") | grep '^[<>]' |
			grep -v "$cache_changes" >"$work/beyond"
		count=$(grep -c $'\t' "$work/without") calls=$(wc -l <"$work/without.log")
		cases=$((cases + count)) wrong=$((wrong + $(grep -c '^[<>]' "$work/wrong")))
		wrong_cache=$((wrong_cache + $(wc -l <"$work/beyond")))
		same() { head -20 "$work/beyond"; [ -s "$work/cached" ] && [ ! -s "$work/beyond" ]; }
		check "$device, $program: with the cache, too" same
		equal() {
			head -40 "$work/wrong"
			[ ! -s "$work/wrong" ] && [ "$(tail -n 1 "$work/without")" = "exit status 0" ] &&
				[ "$count" -gt 20 ] && [ "$calls" -gt 20 ]
		}
		check "$device, $program: $count cases and $calls calls of the kernel are equal" equal
	done
	ours() { grep -q '"reg_kernel":[1-9]' "$work/stats" && grep -q '"hits":[1-9]' "$work/stats_cached"; }
	check "$device: the library registered by itself, and the cache has hits: $(grep -o '"reg_kernel":[0-9]*' "$work/stats" | tail -1)" ours
	printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$device" "$kernel" "$rdma_core" "$cases" "$wrong" "$wrong_cache" >>"$rows"
	printf 'remove %s' "$device" >$console 2>/dev/null
done
tap_done
