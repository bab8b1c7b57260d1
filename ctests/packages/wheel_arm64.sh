#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# wheel_arm64.sh WHEEL DEVICE ADDRESS GID_INDEX: the wheel for arm64, unpacked as pip does, in the machine
# that emulates that processor (vm/run -k arm64). For wheel.sh. Prints TAP.
. "$(dirname "$0")/../lib/script.sh"
. "$here/../plain/programs/stats.sh"
wheel=$1 device=$2 address=$3 gid=$4

check "the machine is arm64" [ "$(uname -m)" = aarch64 ]
python3 -m zipfile -e "$wheel" "$work/wheel"
mkdir "$work/env"
cp -r "$work"/wheel/*.data/data/. "$work/env/"
cp -r "$work"/wheel/*.data/scripts "$work/env/bin"
chmod -R +x "$work/env/bin" "$work/env/lib"
export PATH=$work/env/bin:$PATH
version=$(rdmamr --version 2>&1)
check "rdmamr --version names the library of the wheel: $(sed -n 2p <<<"$version")" grep -qF " ($work/env/lib/librdmamr.so.1)" <<<"$version"
doctor=$(rdmamr doctor 2>&1)
check "rdmamr doctor finds the device" grep -q "$device" <<<"$doctor"
sed 's/^/# /' <<<"$doctor"
maps=$(rdmamr run -- cat /proc/self/maps)
check "rdmamr run preloads that library, and the module for LD_AUDIT" \
	[ "$(grep -oE 'librdmamr(\.so\.1|-audit\.so)' <<<"$maps" | sort -u | wc -l)" = 2 ]

export RDMAMR_STATS=$work/stats
pingpong() { LD_PRELOAD=$work/env/lib/librdmamr.so.1 timeout 300 ibv_rc_pingpong -d "$device" -g "$gid" -n 10 "$@"; }
pingpong >"$work/server" 2>&1 &
server=$!
for _ in {1..100}; do
	says=$(pingpong "$address" 2>&1) && break
	sleep 0.5
done
check "ibv_rc_pingpong under it: $(tail -n 1 <<<"$says")" wait "$server"
sum_stats "$work/stats"
# shellcheck disable=SC2154 # sum_stats sets them
check "its registrations are the library's: $(show_stats)" [ "$((stats[reg_kernel] >= 2)) ${stats[reg_next]}" = "1 0" ]
tap_done
