#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gpu.sh LIBRARY BUILT PROGRAM: the trace of a program that registers a GPU's memory again and again with
# the cache (plain/gpu_registered.c), as PROGRAM, "rdmamr", reads it: misses and hits are of the GPU's
# memory too, and pin none. On $CHECK_DEVICE. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
expects 3 "$@"
[ -c /dev/rdmamr-hca -a -c /dev/udmabuf ] || skip_all "no device of vm/hca, or no /dev/udmabuf"
env CHECK_GPU="$2/libcuda.so.full" RDMAMR_CACHE=all RDMAMR_TRACE="$work/trace" LD_PRELOAD="$1" "$2/gpu_registered" >"$work/said" 2>&1
take_over "the program" $? "$(<"$work/said")"
"$3" report --json "$work/trace" >"$work/trace.json"
cd "$work" || exit 2
. "$here/../values.sh"
reports "the cache has served some" True trace 'report["totals"]["hits"] > 0 and report["totals"]["misses"] > 0'
reports "their memory is a GPU's" True trace 'report["totals"]["gpu_peak_bytes"] >= 8 << 20'
reports "and not pinned" True trace 'report["pinned"]["peak_bytes"] < 1 << 20'
tap_done
