#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# programs.sh LIBRARY DEVICE ADDRESS GID_INDEX
#
# Programs that others wrote behave the same with the library in front, and it makes all their
# registrations. Each runs server and client on this machine, first without the library, then with
# it on both sides. ADDRESS is the IP address of DEVICE, GID_INDEX the RoCE GID that goes with it.
# Prints TAP.
set -u
here=$(dirname "$0")
. "$here/../tap.sh"
. "$here/stats.sh"
[ $# -eq 4 ] || { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
device=$2 address=$3 gid=$4
limit=300 # seconds, against a side that hangs: a busy machine is ten times as slow
port=20000

if [ ! -e "/sys/class/infiniband/$device" ]; then
	echo "1..0 # SKIP there is no device $device"
	exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A copy: whoever builds meanwhile would change the file under the programs that have mapped it.
library=$scratch/library.so
cp "$1" "$library" || exit 2

# What programs say of data that came wrong. Some say it and exit with 0.
complaint='invalid data|data mismatch|verification failed'

# How to tell that a server is ready: it listens on TCP, or through the RDMA connection manager.
# Here and below, what bash can do is not left to another program: in an emulated machine, to start
# one is slow.
tcp() { # PORT
	local hex file lines=()
	printf -v hex %04X "$1"
	for file in /proc/net/tcp{,6}; do
		[ ! -e "$file" ] || mapfile -t lines <"$file"
		[[ ! "${lines[*]}" =~ :$hex\ [0-9A-F]+:0000\ 0A\  ]] || return 0
	done
	return 1
}
cm() { # PORT
	[[ $(rdma resource show cm_id) =~ state\ LISTEN\ [^$'\n']*:$1([[:space:]]|$) ]]
}

# The same goes for a pause.
mkfifo "$scratch/never"
exec {never}<>"$scratch/never"
pause() { read -rt 0.05 -u "$never"; }

# Starts a side of a program, and sets `started` to its process.
side() { # FILE COMMAND...: what it prints goes to FILE.out and FILE.err
	local file=$1
	shift
	timeout -k 2 "$limit" "$@" >"$file.out" 2>"$file.err" </dev/null &
	started=$!
}
running() { kill -0 "$1" 2>/dev/null; }

# Waits for the processes of both sides, or of the one, and sets ended[PROCESS] to their statuses.
# One whose other side has failed may wait for it for ever: it has ten more seconds.
declare -A ended
unkillable() { # PROCESS...: sides that run on though timeout(1) has killed them: says where
	local process
	for process; do
		for process in "$process" $(cat "/proc/$process/task/$process/children"); do
			echo "# $process $(tr '\0' ' ' <"/proc/$process/cmdline"): $(grep State "/proc/$process/status"), $(cat "/proc/$process/wchan")"
			sed 's/^/# /' "/proc/$process/stack"
		done
	done 2>/dev/null
	for process; do ended[$process]=137; done
}
await() { # PROCESS [PROCESS]
	local first=$1 other=${2-} n start=$SECONDS
	while running "$1" && running "${2-$1}"; do
		pause
		if ((SECONDS - start > limit + 60)); then
			unkillable "$@"
			return
		fi
	done
	if running "$1"; then first=$2 other=$1; fi
	wait "$first"
	ended[$first]=$?
	[ -n "$other" ] || return
	if [ "${ended[$first]}" != 0 ]; then
		for ((n = 0; n < 200; n++)); do
			running "$other" || break
			pause
		done
		kill "$other" 2>/dev/null
	fi
	wait "$other"
	ended[$other]=$?
}

# Runs both sides, each after the words of PREFIX, with a port in place of PORT. Sets verdict[RUN]:
# how they ended, and what they said of the data.
declare -A verdict
run() { # RUN READY SAYS SERVER CLIENT PREFIX...
	local run=$1 out=$scratch/$1 ready=$2 says=$3 server client server_pid='' client_pid='' file
	# A port of its own for every run: no waiting for the last one to be free again.
	while "${ready:-false}" $((++port)); do :; done
	read -ra server <<<"${4//PORT/$port}"
	read -ra client <<<"${5//PORT/$port}"
	shift 5
	for file in "$out".{server,client}.{out,err}; do : >"$file"; done
	ended=()
	if [ ${#server[@]} -gt 0 ]; then
		side "$out.server" "$@" "${server[@]}"
		server_pid=$started
		until "$ready" "$port" || ! running "$server_pid"; do pause; done
	fi
	# Without its server the client would only add its own complaint.
	if [ -z "$server_pid" ] || running "$server_pid"; then
		side "$out.client" "$@" "${client[@]}"
		client_pid=$started
	fi
	# shellcheck disable=SC2086 # either may be none
	await $server_pid $client_pid
	verdict[$run]="server ${ended[${server_pid:-none}]-none}, client ${ended[${client_pid:-none}]-none}
$(grep -ahE "$complaint${says:+|$says}" "$out".{server,client}.{out,err} | tr -d '\0')"
}

# Questions about a run.
worked() { [[ ${verdict[$1]} =~ ^server\ (0|none),\ client\ 0$'\n' && ! ${verdict[$1]} =~ $complaint ]]; }
late() { [[ ${verdict[$1]} =~ ^server\ ((124|137),|[a-z0-9]+,\ client\ (124|137)$'\n') ]]; }
output() { # the end of what both sides printed
	local file
	for file in "$scratch/$1".{server,client}.{out,err}; do
		tail -n 10 "$file" | tr -d '\0' | sed "s/^/${file##*/}: /"
	done
}
reason() { # why it failed, in the program's own words: of the side that failed by itself
	local side=client
	[[ ${verdict[$1]} =~ ^server\ (none|0|143), ]] || side=server
	cat "$scratch/$1.$side".{out,err} | grep -av '^[[:space:]]*$' | tail -n 1 | tr -d '#\0'
}
difference() {
	echo "${verdict[without]}" >"$scratch/verdict.without"
	echo "${verdict[with]}" >"$scratch/verdict.with"
	diff -a "$scratch/verdict.without" "$scratch/verdict.with" | sed -n 's/^</without:/p; s/^>/with:/p'
}

# rping before rdma-core 59 destroys its event channel while its thread may be about to ask it for an
# event. If the thread comes late, the process says this, and ends with 255 after all has gone well
# (rdma-core's commit f3ae6534a, "rping: terminate CM event thread before exiting").
ended_badly() { # RUN
	grep -qx 'rdma_get_cm_event: Bad file descriptor' "$scratch/$1".{server,client}.err
}

attempts() { # RUN...: runs again, up to five times, if only its end went wrong or a message was lost
	local attempt
	for attempt in 1 2 3 4 5; do
		: >"$scratch/stats"
		run "$@"
		if ended_badly "$1"; then
			echo "# ${1} the library, attempt $attempt: ${verdict[$1]%%$'\n'*}: the event channel was gone"
		elif late "$1" && [ "${RELIABLE-yes}" = no ]; then
			echo "# ${1} the library, attempt $attempt: not done after $limit s"
		else
			return
		fi
	done
}

# The two tests of a program. SAYS is a pattern of lines that are to be the same as well. A program
# without a server has an empty SERVER. One that registers no memory has REGISTERS=no in front, one
# over unreliable queue pairs RELIABLE=no.
program() { # NAME READY SAYS SERVER CLIENT
	local same="$1: the same with the library" ours="$1: every registration is the library's"
	[ "${REGISTERS-yes}" = yes ] || ours=
	shift
	if ! command -v "${4%% *}" >/dev/null; then
		skip "$same" "${4%% *} is not installed"
		[ -z "$ours" ] || skip "$ours" "${4%% *} is not installed"
		return
	fi
	# An unreliable queue pair may lose a message, and the program then waits for it for ever.
	local limit=$limit
	[ "${RELIABLE-yes}" = yes ] || limit=60
	attempts without "$@" env
	attempts with "$@" env LD_PRELOAD="$library" RDMAMR_STATS="$scratch/stats"

	if late without; then
		fail "$same" "Not done after $limit s even without the library." "$(output without)"
	elif late with; then
		fail "$same" "Not done after $limit s." "$(output with)"
	elif [ "${verdict[without]}" != "${verdict[with]}" ]; then
		fail "$same" "$(difference)" "$(output with)"
	elif ! worked without; then
		skip "$same" "fails without the library as well: $(reason without)"
		[ -z "$ours" ] || skip "$ours" "fails without the library as well: $(reason without)"
		return
	else
		pass "$same"
	fi

	[ -n "$ours" ] || return
	sum_stats "$scratch/stats"
	# Each side is a process, and each must have said what it did.
	if ((stats[processes] >= 2 && stats[reg_kernel] > 0 && stats[reg_next] == 0 && stats[reg_failed] == 0 &&
		stats[dereg_next] == 0 && stats[dereg_failed] == 0)); then
		pass "$ours"
	else
		fail "$ours" "$(show_stats)"
	fi
}

both() { # NAME READY COMMAND: the client's command is the server's and the address
	program "$1" "$2" '' "$3" "$3 $address"
}

# Few and small messages: what is tested is the memory, not the speed.
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
tap_done
