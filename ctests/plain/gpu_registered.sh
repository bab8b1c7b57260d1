#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gpu_registered.sh LIBRARY BUILT: gpu_registered on stand-ins of CUDA and of ROCm's runtime, without
# the library, with it, with the cache, and switched off. The device is CHECK_DEVICE, one of vm/hca.
set -u
. "$(dirname "$0")/../lib/tap.sh"
library=$1 built=$2
modprobe -q udmabuf
runs() { # NAME FILE [VARIABLE=VALUE...]
	local output
	output=$(env CHECK_GPU="$built/$2" "${@:3}" "$built/gpu_registered")
	take_over "$1" $? "$output"
}
runs "without the library" libcuda.so.full
runs CUDA libcuda.so.full LD_PRELOAD="$library"
runs "CUDA, with the cache" libcuda.so.full LD_PRELOAD="$library" RDMAMR_CACHE=all
runs ROCm libhsa-runtime64.so.full LD_PRELOAD="$library"
runs "switched off" libcuda.so.full LD_PRELOAD="$library" RDMAMR_GPU=off
tap_done
