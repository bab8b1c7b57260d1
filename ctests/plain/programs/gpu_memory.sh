#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# gpu_memory.sh LIBRARY BUILT ADDRESS: stock programs register memory of a GPU (gpu_memory.py) on the
# device of vm/hca that CHECK_DEVICE names. Each fails without the library, and with RDMAMR_GPU=off,
# and works with it. BUILT has the stand-ins of the GPU's libraries. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
library=$1 built=$2 address=$3
[ -c /dev/rdmamr-hca -a -c /dev/udmabuf ] || skip_all "no device of vm/hca, or no /dev/udmabuf"
gid=0
. "$here/mooncake.sh"
wheel=$PYTHONPATH"_cuda"
export PYTHONPATH=$wheel LD_LIBRARY_PATH=$work UCX_NET_DEVICES=$CHECK_DEVICE:1
ln -s "$built/libcuda.so.full" "$work/libcuda.so.1"
ln -s "$built/libcudart.so.full" "$work/libcudart.so.12"

run() { # SETTING...: sets says
	says=$(env "$@" timeout 300 /usr/bin/python3 -B "$here/gpu_memory.py" "$by" "$CHECK_DEVICE" "$address" 2>&1)
	sed 's/^/# /' <<<"$says"
}
lines() { # LINE...: whether the program printed these lines
	local line
	for line; do grep -qxE "$line" <<<"$says" || { echo "no line: $line"; return 1; }; done
}
registers() { # NAME BY
	local name=$1 by=$2 says
	run LD_PRELOAD=
	check "$name: without the library the registration is refused" lines 'refused: .*' 'calls: reg_mr -14' '.*Bad address.*'
	run LD_PRELOAD="$library" RDMAMR_LOG=info
	check "$name: with the library it is registered, as a dma-buf, and deregistered" lines registered \
		'calls: reg_mr -14, reg_dmabuf_mr 0' 'data: right' ended \
		'rdmamr: 8388608 bytes of a GPU at .* are registered as a dma-buf, by libcuda.so.1'
	run LD_PRELOAD="$library" RDMAMR_GPU=off
	check "$name: switched off it is refused" lines 'refused: .*' 'calls: reg_mr -14'
}

if [ -e "$wheel/.ready" ]; then
	registers Mooncake engine
else
	skip Mooncake "its wheel for CUDA could not be downloaded (ctests/plain/programs/mooncake_wheel cuda)"
fi
if /usr/bin/python3 -c 'import pyverbs.mr' 2>/dev/null; then
	registers pyverbs pyverbs
else
	lacks pyverbs python3-pyverbs
fi
if ldconfig -p | grep -q libucp.so.0; then
	registers UCX ucx
else
	lacks UCX libucx0
fi
tap_done
