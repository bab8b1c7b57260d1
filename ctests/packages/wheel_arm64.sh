#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# wheel_arm64.sh WHEEL DEVICE ADDRESS GID_INDEX: the wheel for arm64, unpacked as pip does, in the machine
# that emulates that processor (vm/run -k arm64). For wheel.sh. Prints TAP.
set -u
here=$(realpath "$(dirname "$0")")
. "$here/../lib/tap.sh"
. "$here/../plain/programs/stats.sh"
wheel=$1 device=$2 address=$3 gid=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check "the machine is arm64" [ "$(uname -m)" = aarch64 ]
python3 -m zipfile -e "$wheel" "$scratch/wheel"
mkdir "$scratch/env"
cp -r "$scratch"/wheel/*.data/data/. "$scratch/env/"
cp -r "$scratch"/wheel/*.data/scripts "$scratch/env/bin"
chmod -R +x "$scratch/env/bin" "$scratch/env/lib"
export PATH=$scratch/env/bin:$PATH
version=$(rdmamr --version 2>&1)
check "rdmamr --version names the library of the wheel: $(sed -n 2p <<<"$version")" grep -qF " ($scratch/env/lib/librdmamr.so.1)" <<<"$version"
doctor=$(rdmamr doctor 2>&1)
check "rdmamr doctor finds the device" grep -q "$device" <<<"$doctor"
sed 's/^/# /' <<<"$doctor"
maps=$(rdmamr run -- cat /proc/self/maps)
check "rdmamr run preloads that library, and the module for LD_AUDIT" \
	[ "$(grep -oE 'librdmamr(\.so\.1|-audit\.so)' <<<"$maps" | sort -u | wc -l)" = 2 ]

export RDMAMR_STATS=$scratch/stats
pingpong() { LD_PRELOAD=$scratch/env/lib/librdmamr.so.1 timeout 300 ibv_rc_pingpong -d "$device" -g "$gid" -n 10 "$@"; }
pingpong >"$scratch/server" 2>&1 &
server=$!
for _ in {1..100}; do
	says=$(pingpong "$address" 2>&1) && break
	sleep 0.5
done
check "ibv_rc_pingpong under it: $(tail -n 1 <<<"$says")" wait "$server"
sum_stats "$scratch/stats"
# shellcheck disable=SC2154 # sum_stats sets them
check "its registrations are the library's: $(show_stats)" [ "$((stats[reg_kernel] >= 2)) ${stats[reg_next]}" = "1 0" ]
tap_done
