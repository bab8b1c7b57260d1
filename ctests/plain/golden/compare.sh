#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# compare.sh LIBRARY PROGRAMS: records the commands that the same calls send to the kernel without
# and with the library. PROGRAMS is the folder of record.so, old_kernel.so and regions.
. "$(dirname "$0")/../../lib/script.sh"
library=$1 programs=$2

record() { # OUTPUT PRELOAD...
	local output=$1
	shift
	# The recorder comes first in the list, so that it sees the commands of all.
	RDMAMR_STATS=$work/stats LD_PRELOAD="$programs/record.so $*" timeout 600 "$programs/regions" calls 3>"$output" >"$work/said"
}

record "$work/without"
record "$work/with" "$library"
check "registrations are recorded" [ "$(grep -c '^ attr 02 00 08 00 01 00 00 00 09 00' "$work/without")" = 25 ]
check "deregistrations are recorded" grep -q '^ioctl 28 00 07 00 01 00 01 00' "$work/without"
check "the bytes of the ioctls are libibverbs' own" diff "$work/without" "$work/with"
check "and the library sent them: $(cat "$work/stats")" grep -q '"reg_kernel":[1-9][0-9]*,"reg_next":0,' "$work/stats"

rm "$work/stats"
record "$work/without" "$programs/old_kernel.so"
record "$work/with" "$library" "$programs/old_kernel.so"
# libibverbs tries MR_DESTROY once and the library once, before each knows better.
for run in without with; do sed -i '/^ioctl 28 00 07/,/^ attr/d' "$work/$run"; done
check "on a kernel before 5.0, write() is recorded" grep -q '^write 09 00 00 00' "$work/without"
check "on a kernel before 5.0, deregistration by write() too" grep -q '^write 0d 00 00 00' "$work/without"
check "the bytes of write() are libibverbs' own" diff "$work/without" "$work/with"
# Three of the calls carry optional access flags, which such a kernel does not know: libibverbs
# drops them.
check "and the library sent them: $(cat "$work/stats")" grep -q '"reg_kernel":[1-9][0-9]*,"reg_next":3,' "$work/stats"
tap_done
