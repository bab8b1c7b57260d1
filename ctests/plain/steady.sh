#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# steady.sh LIBRARY PROGRAM: in steady state a registration is one system call, and so is a
# deregistration. PROGRAM is that of regions.c.
. "$(dirname "$0")/../lib/script.sh"
library=$1 program=$2
needs strace
strace -ff -o "$work/trace" -E LD_PRELOAD="$library" "$program" steady: >/dev/null
between=$(sed -n '/^write(-1, "start"/,/^write(-1, "end"/p' "$work"/trace.* | sed '1d;$d')
check "100 registrations and deregistrations are 200 ioctls" [ "$(grep -c '^ioctl(.*RDMA_VERBS_IOCTL' <<<"$between")" = 200 ]
check "and no other system call" [ "$(wc -l <<<"$between")" = 200 ]
tap_done
