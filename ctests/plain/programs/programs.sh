#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# programs.sh LIBRARY DEVICE ADDRESS GID_INDEX [TABLE]
#
# Other projects' programs behave the same with the library in front of server and client, and it makes all their
# registrations. ADDRESS is the IP address of DEVICE, GID_INDEX its RoCE GID. With TABLE, docs/results/programs.md, each
# runs with the cache too, and its registrations are compared with the table. If $CHECK_WALL is set ("ctests/run
# wall"), rows and traces for that table go to $VM_OUT instead. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
. "$here/stats.sh"
expects 4 "$@"
device=$2 address=$3 gid=$4 table=${5-} wall=${CHECK_WALL:+${VM_OUT:-}}
limit=300 # seconds, against a hang: a busy machine is ten times as slow

[ -e "/sys/class/infiniband/$device" ] || skip_all "there is no device $device"
# A copy: a build meanwhile would change the file under the programs that have mapped it.
library=$work/library.so
cp "$1" "$library" || exit 2
. "$here/sides.sh"

# Tests a program. SAYS is a pattern of lines that must be the same as well. A program without a
# server has an empty SERVER. Settings in front: REGISTERS=no for one that registers no memory,
# RELIABLE=no over unreliable queue pairs, VARIES=yes for one that registers more if messages come
# late. PRELOAD names a library that each run has behind ours, PROCESSES the number of processes
# that register (2).
program() { # NAME READY SAYS SERVER CLIENT
	local name=$1 run runs=(with) limit=$limit settings began=$SECONDS
	[ -z "$table" ] || runs+=(cache)
	shift
	if ! command -v "${4%% *}" >/dev/null; then
		lacks "$name: the same with the library" "${4%% *}"
		return
	fi
	# An unreliable queue pair may lose a message, and the program then waits for it for ever.
	[ "${RELIABLE-yes}" = yes ] || limit=60
	attempts without "$@" env ${PRELOAD:+LD_PRELOAD="$PRELOAD"}
	if late without; then
		fail "$name: the same with the library" "Not done after $limit s even without the library." "$(output without)"
		return
	fi
	for run in "${runs[@]}"; do
		settings=(LD_PRELOAD="$library${PRELOAD:+ $PRELOAD}" RDMAMR_STATS="$work/$run.stats")
		# No region ends by age: an emulated processor may take seconds from one buffer to the next.
		[ "$run" = with ] || settings+=(RDMAMR_CACHE=all RDMAMR_CACHE_LINGER=1000000)
		[ -z "$wall" ] || settings+=(RDMAMR_TRACE="$work/$run.trace")
		attempts "$run" "$@" env "${settings[@]}"
		judge "$name" "$run" || return
	done
	[ -z "$table" ] || row "$name"
	echo "# $name: $((SECONDS - began)) s"
}

# Sets registrations[RUN] and hits[RUN]. Fails if the program does not work here at all.
declare -A registrations hits
judge() { # NAME RUN
	local words=library
	[ "$2" = with ] || words=cache
	if late "$2"; then
		fail "$1: the same with the $words" "Not done after $limit s." "$(output "$2")"
	elif [ "${verdict[without]}" != "${verdict[$2]}" ]; then
		fail "$1: the same with the $words" "$(difference "$2")" "$(output "$2")"
	elif ! worked without; then
		skip "$1: the same with the $words" "fails without the library as well: $(reason without)"
		return 1
	else
		pass "$1: the same with the $words"
	fi

	registrations[$2]=0 hits[$2]=0
	[ "${REGISTERS-yes}" = yes ] || return 0
	sum_stats "$work/$2.stats"
	registrations[$2]=$((stats[reg_kernel] + stats[hits])) hits[$2]=${stats[hits]}
	# Each side is a process, and each must have written its statistics.
	if ((stats[processes] >= ${PROCESSES-2} && stats[reg_kernel] > 0 && stats[reg_next] == 0 && stats[reg_failed] == 0 &&
		stats[dereg_next] == 0 && stats[dereg_failed] == 0 && stats[ended_elsewhere] == 0)); then
		pass "$1: with the $words, every registration is the library's"
	else
		fail "$1: with the $words, every registration is the library's" "$(show_stats)"
	fi
}

# The tree of Debian sid has no comparison: Open MPI's registrations differ from run to run. The
# number of hits depends on where the C library finds memory: at least a third of the table's
# number, and none if the table has none.
row() { # NAME
	local run there wanted least
	if [ -n "$wall" ]; then
		echo "$1|${registrations[with]}|${hits[cache]}" >>"$wall/rows${SID:+.sid}"
		for run in with cache; do
			[ ! -e "$work/$run.trace" ] || cp "$work/$run.trace" "$wall/$1.$run.trace"
		done
		return
	fi
	[ -z "${SID-}" ] || return 0
	read -r wanted least <<<"$(awk -F' *[|] *' -v name="$1" '$2 == name { print $3, $4 }' "$table")"
	there="${registrations[with]} and ${registrations[cache]} registrations, ${hits[cache]} hits"
	if as_many with && as_many cache &&
		((hits[cache] * 3 >= least && (hits[cache] > 0) == (least > 0))); then
		pass "$1: ${registrations[cache]} registrations, ${hits[cache]} of them hits, as ${table##*/} says"
	else
		fail "$1: as ${table##*/} says (\"ctests/run wall\" writes it)" "with the library and with the cache: $there" \
			"the table: $wanted registrations, $least hits"
	fi
}

as_many() { # RUN: as the table says, or up to half of that more or fewer
	local number=${registrations[$1]}
	[ "$number" = "$wanted" ] || { [ -n "${VARIES-}" ] && ((2 * number >= wanted && 2 * number <= 3 * wanted)); }
}

both() { # NAME READY COMMAND: the client's command is the server's, followed by the address
	program "$1" "$2" '' "$3" "$3 $address"
}

if [ -n "${SID-}" ]; then
	limit=900
	# Its buffer is of ibv_alloc_buf, and it registers by ibv_reg_buf_mr (rdma-core 64).
	check "ibv_rc_pingpong calls ibv_reg_buf_mr" grep -q ibv_reg_buf_mr "$(command -v ibv_rc_pingpong)"
	both 'ibv_rc_pingpong -c, ibv_reg_buf_mr' tcp "ibv_rc_pingpong -d $device -g $gid -p PORT -n 20 -c"
	program 'Open MPI, mpirun -x' '' '^ring: ' '' "$here/ring x"
	program 'Open MPI, rdmamr run' '' '^ring: ' '' "$here/ring run"
	program 'Open MPI, rdmamr run, no other cache' '' '^ring: ' '' "$here/ring run FI_MR_CACHE_MAX_COUNT=0"
	[ -z "$wall" ] || { uname -r; dpkg-query -W -f '${Version}\n' rdma-core libfabric1 openmpi-bin; } >"$wall/versions"
	tap_done
	exit
fi

# Few and small messages: the test is about memory, not speed.
REGISTERS=no program ibv_devinfo '' '.*' '' "ibv_devinfo -v -d $device"
program 'rping -V' cm 'ping data: ' "rping -s -a $address -p PORT -C 10 -v -V" "rping -c -a $address -p PORT -C 10 -v -V"

# iWARP connects queue pairs by the connection manager only, and has no atomic operations.
if grep -q RNIC "/sys/class/infiniband/$device/node_type"; then
	tap_done
	exit
fi

both 'ibv_rc_pingpong -c' tcp "ibv_rc_pingpong -d $device -g $gid -p PORT -n 20 -c"
RELIABLE=no both 'ibv_uc_pingpong -c' tcp "ibv_uc_pingpong -d $device -g $gid -p PORT -n 20 -c"
RELIABLE=no both 'ibv_ud_pingpong -c' tcp "ibv_ud_pingpong -d $device -g $gid -p PORT -n 20 -c"
both ibv_srq_pingpong tcp "ibv_srq_pingpong -d $device -g $gid -p PORT -n 20 -q 2"
program ucmatose cm 'complete$|return status' "ucmatose -b $address -p PORT -C 10" "ucmatose -s $address -p PORT -C 10"
program 'rstream -T v' cm '' "rstream -b $address -p PORT -S 65536 -C 2 -I 2 -T v" "rstream -s $address -p PORT -S 65536 -C 2 -I 2 -T v"
program 'riostream -T v' cm '' "riostream -b $address -p PORT -S 65536 -C 2 -I 2 -T v" "riostream -s $address -p PORT -S 65536 -C 2 -I 2 -T v"
both ib_write_bw tcp "ib_write_bw -d $device -x $gid -p PORT -n 5 -s 4096 -F"
both ib_read_bw tcp "ib_read_bw -d $device -x $gid -p PORT -n 5 -s 4096 -F"
both ib_send_bw tcp "ib_send_bw -d $device -x $gid -p PORT -n 5 -s 4096 -F"
both ib_atomic_bw tcp "ib_atomic_bw -d $device -x $gid -p PORT -n 5 -F"
# On a busy machine it may hang once it has printed its results, without the library too.
RELIABLE=no program 'fi_pingpong -c' tcp '' "fi_pingpong -p verbs -e msg -d $device -B PORT -I 5 -S 4096 -c" \
	"fi_pingpong -p verbs -e msg -d $device -P PORT -I 5 -S 4096 -c $address"

# From here on with the cache only: programs that register while they run.
if [ -z "$table" ]; then
	tap_done
	exit
fi
fio="fio --ioengine=rdma --port=PORT --bs=64k --size=2m --thread"
for verb in write read; do
	program "fio, $verb" cm '' "$fio --name=server --rw=read" "$fio --name=client --hostname=$address --verb=$verb --iodepth=4 --rw=write"
done
# fio's server posts one receive for each of its iodepth only: a message that comes too early is
# refused.
program 'fio, send' cm '' "$fio --name=server --rw=read --iodepth=16" \
	"$fio --name=client --hostname=$address --verb=send --iodepth=1 --rw=write"

# Programs of moves.py, which allocate and free buffers. Both sides are this machine's own Python.
moves() { # NAME BY
	local command="/usr/bin/python3 $here/moves.py $2 $device $address $work/PORT"
	program "$1" offered 'buffers came back' "$command target" "$command initiator"
}
offered() { [ -e "$work/$1/offer" ]; } # PORT

# Mooncake's transfer engine moves caches of language models. It calls ibv_fork_init at its start.
wheel=$(realpath "$here/../../../target/mooncake")
if [ -e "$wheel/.ready" ]; then
	. "$here/mooncake.sh"
	moves Mooncake engine
else
	skip "Mooncake: the same with the library" "its wheel could not be downloaded (ctests/plain/programs/mooncake_wheel)"
fi

moves librpma librpma

# librspreload turns a program's sockets into RDMA sockets.
rsockets=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so
seq 100000 >"$work/sent"
PRELOAD=$rsockets program 'netcat by librspreload' cm 'arrived$' "$here/netcat listen $address PORT $work/sent" \
	"$here/netcat send $address PORT $work/sent"

# By default UCX checks the destination of a datagram, and drops all that soft-RoCE delivers.
VARIES=yes UCX_NET_DEVICES=$device:1 UCX_IB_GID_INDEX=$gid UCX_TLS=rc_verbs,ud_verbs UCX_UD_VERBS_ETH_DGID_CHECK=n \
	both 'ucx_perftest -t tag_bw' tcp 'ucx_perftest -t tag_bw -n 20 -w 2 -s 65536 -p PORT'

# The rest takes longer: "ctests/run wall" only.
if [ -z "$wall" ]; then
	tap_done
	exit
fi
# A program in Rust, by a published binding: the binding's own example, which sends to itself.
PROCESSES=1 program 'ibverbs for Rust, loopback' '' 'sent|received' '' "$here/../../../target/rust/bin/loopback"

limit=1200 program 'HPC Challenge' '' '^Success=' '' "env -C $work $here/hpcc"
tap_done
