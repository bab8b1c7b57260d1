#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# mooncake.sh LIBRARY DEVICE ADDRESS GID_INDEX
#
# Mooncake's transfer engine moves the same data without the library, with it, and with the pool, which
# serves most of the registrations. The engine calls ibv_fork_init at its start. Prints TAP.
set -u
here=$(realpath "$(dirname "$0")")
. "$here/../tap.sh"
. "$here/stats.sh"
[ $# -eq 4 ] || { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
library=$1 device=$2 address=$3
limit=300 # seconds, against a side that hangs: a busy machine is ten times as slow
wheel=$here/../../target/mooncake
if [ ! -e "$wheel/.ready" ]; then
	echo "1..0 # SKIP Mooncake's wheel could not be downloaded (ctests/programs/mooncake_wheel)"
	exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Few threads, and few words.
export PYTHONPATH=$wheel MC_GID_INDEX=$4 MC_WORKERS_PER_CTX=1 MC_LOG_LEVEL=ERROR GLOG_minloglevel=2 HOME=$scratch

side() { # NAME ROLE [NAME=VALUE...]
	local name=$1 role=$2
	shift 2
	env "$@" timeout -k 5 "$limit" /usr/bin/python3 "$here/moves.py" "$device" "$address" "$scratch/$name" "$role" \
		>"$scratch/$name/$role.out" 2>"$scratch/$name/$role.err" </dev/null
}
moves() { # NAME [NAME=VALUE...]: both sides
	local name=$1 target
	shift
	mkdir "$scratch/$name"
	side "$name" target "$@" &
	target=$!
	side "$name" initiator "$@" || { kill $target; tail -n 20 "$scratch/$name"/*.err; return 1; }
	wait $target || { tail -n 20 "$scratch/$name"/*.err; return 1; }
	cat "$scratch/$name/initiator.out"
	[ "$(cat "$scratch/$name/initiator.out")" = "20 of 20 buffers came back as they went" ]
}
ours() { [ $((stats[reg_kernel] + stats[hits])) = 41 ] && [ "${stats[reg_next]}" = 0 ] && [ "${stats[vanished]}" = 0 ]; }

check "without the library 20 buffers come back as they went" moves without
check "with the library too" moves with LD_PRELOAD="$library" RDMAMR_STATS="$scratch/with.stats"
sum_stats "$scratch/with.stats"
check "the 41 registrations are ours: $(show_stats)" ours
# Age ends no region: an emulated processor may take more than a second from one buffer to the next.
check "with the pool too" moves pool LD_PRELOAD="$library" RDMAMR_STATS="$scratch/pool.stats" RDMAMR_CACHE=all \
	RDMAMR_RELAXED_LINGER=1000000
sum_stats "$scratch/pool.stats"
check "the 41 registrations are ours: $(show_stats)" ours
# The C library takes many buffers from places where it had one before.
check "the pool serves many of them (${stats[hits]})" [ "${stats[hits]}" -ge 10 ]
tap_done
