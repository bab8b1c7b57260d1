#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gpu.sh LIBRARY BUILT PROGRAM: the trace of a program that registers a GPU's memory again and again with
# the cache (plain/gpu_registered.c), as PROGRAM, "rdmamr", reads it: misses and hits are of the GPU's
# memory too, and pin none. On $CHECK_DEVICE. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
expects 3 "$@"
[ -c /dev/rdmamr-hca -a -c /dev/udmabuf ] || skip_all "no device of vm/hca, or no /dev/udmabuf"
library=$(realpath "$1") built=$(realpath "$2") rdmamr=$(realpath "$3")
cd "$work" || exit 2
. "$here/../values.sh"
CHECK_GPU=$built/libcuda.so.full RDMAMR_CACHE=all recorded trace "$built/gpu_registered"
take_over "the program" $status "$(<trace.said)"
reports "the cache has served some" True trace 'report["totals"]["hits"] > 0 and report["totals"]["misses"] > 0'
reports "their memory is a GPU's" True trace 'report["totals"]["gpu_peak_bytes"] >= 8 << 20'
reports "and not pinned" True trace 'report["pinned"]["peak_bytes"] < 1 << 20'
tap_done
