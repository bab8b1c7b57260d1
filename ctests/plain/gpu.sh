#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gpu.sh LIBRARY PROGRAM: a test of a GPU's memory on a device of vm/hca, with the stand-in of each
# runtime: without the library, with it, with the cache, and with RDMAMR_GPU=off. Prints TAP.
. "$(dirname "$0")/../lib/script.sh"
library=$1 program=$2
[ -c /dev/rdmamr-hca -a -c /dev/udmabuf ] || skip_all "no device of vm/hca, or no /dev/udmabuf"
for runtime in libcuda libhsa-runtime64; do
	run() { # NAME SETTING...
		local output
		output=$(env "${@:2}" CHECK_GPU="$(dirname "$program")/$runtime.so.full" "$program" 2>&1)
		take_over "$runtime, $1" $? "$output"
	}
	run "without the library" LD_PRELOAD=
	run "with it" LD_PRELOAD="$library"
	run "with the cache" LD_PRELOAD="$library" RDMAMR_CACHE=all
	run "switched off" LD_PRELOAD="$library" RDMAMR_GPU=off
done
tap_done
