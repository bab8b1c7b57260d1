#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# compare.sh LIBRARY PROGRAMS: records the commands that the same calls send to the kernel without
# and with the library. PROGRAMS is the folder of record.so and regions.
. "$(dirname "$0")/../../lib/script.sh"
library=$1 programs=$2

record() { # OUTPUT PRELOAD...
	local output=$1
	shift
	# The recorder comes first in the list, so that it sees the commands of all.
	RDMAMR_STATS=$work/stats LD_PRELOAD="$programs/record.so $*" timeout 600 "$programs/regions" calls: 3>"$output" >"$work/said"
}

record "$work/without"
record "$work/with" "$library"
check "registrations are recorded" [ "$(grep -c '^ attr 02 00 08 00 01 00 00 00 09 00' "$work/without")" = 25 ]
check "deregistrations are recorded" grep -q '^ioctl 28 00 07 00 01 00 01 00' "$work/without"
check "the bytes of the ioctls are libibverbs' own" diff "$work/without" "$work/with"
check "and the library sent them: $(cat "$work/stats")" grep -q '"reg_kernel":[1-9][0-9]*,"reg_next":0,' "$work/stats"
tap_done
