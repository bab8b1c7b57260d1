# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Runs the two sides of a program and judges how they ended. Source this. `work` is a folder for
# their output; a side that runs longer than `limit` seconds is ended.

port=20000

# Complaints of programs about wrong data. Some exit with 0 all the same.
complaint='invalid data|data mismatch|verification failed'

# How to see that a server is ready: it listens on TCP, or through the RDMA connection manager.
tcp() { # PORT
	grep -qsE ":$(printf %04X "$1") [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6
}
cm() { # PORT
	[[ $(rdma resource show cm_id) =~ state\ LISTEN\ [^$'\n']*:$1([[:space:]]|$) ]]
}

# Starts a side of a program, and sets `started` to its process.
side() { # FILE COMMAND...: its output goes to FILE.out and FILE.err
	local file=$1
	shift
	timeout -k 2 "$limit" "$@" >"$file.out" 2>"$file.err" </dev/null &
	started=$!
}
running() { kill -0 "$1" 2>/dev/null; }

# Waits for the processes of both sides, or of the one, and sets ended[PROCESS] to their statuses. A
# side whose other side has failed may wait for it for ever: it has ten more seconds.
declare -A ended
await() { # PROCESS [PROCESS]
	local first second='' late
	wait -n -p first "$@"
	ended[$first]=$?
	[ $# = 2 ] || return
	second=$1
	[ "$first" != "$1" ] || second=$2
	if [ "${ended[$first]}" != 0 ]; then
		sleep 10 &
		late=$!
		wait -n -p first "$second" $late
		ended[$first]=$?
		kill "$second" $late 2>/dev/null
		[ "$first" != "$second" ] || return
	fi
	wait "$second"
	ended[$second]=$?
}

# Runs both sides, each after the words of PREFIX, with a port in place of PORT. Sets verdict[RUN]:
# how they ended, and their lines about the data.
declare -A verdict
run() { # RUN READY SAYS SERVER CLIENT PREFIX...
	local run=$1 out=$work/$1 ready=$2 says=$3 server client server_pid='' client_pid='' file
	# Each run has a port of its own, and does not wait for the last one to be free again.
	while "${ready:-false}" $((++port)); do :; done
	read -ra server <<<"${4//PORT/$port}"
	read -ra client <<<"${5//PORT/$port}"
	shift 5
	for file in "$out".{server,client}.{out,err}; do : >"$file"; done
	ended=()
	if [ ${#server[@]} -gt 0 ]; then
		side "$out.server" "$@" "${server[@]}"
		server_pid=$started
		until "$ready" "$port" || ! running "$server_pid"; do sleep 0.05; done
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
output() { # the end of both sides' output
	local file
	for file in "$work/$1".{server,client}.{out,err}; do
		tail -n 10 "$file" | tr -d '\0' | sed "s/^/${file##*/}: /"
	done
}
reason() { # why it failed, in the words of the side that failed by itself
	local side=client
	[[ ${verdict[$1]} =~ ^server\ (none|0|143), ]] || side=server
	cat "$work/$1.$side".{out,err} | grep -av '^[[:space:]]*$' | tail -n 1 | tr -d '#\0'
}
difference() { # RUN: from the one without the library
	echo "${verdict[without]}" >"$work/verdict.without"
	echo "${verdict[$1]}" >"$work/verdict.$1"
	diff -a "$work/verdict.without" "$work/verdict.$1" | sed -n "s/^</without:/p; s/^>/$1:/p"
}

# rping before rdma-core 59 destroys its event channel while its thread may be about to ask it for
# an event. If the thread comes late, the process says this, and ends with 255 after all has gone
# well (rdma-core's commit f3ae6534a, "rping: terminate CM event thread before exiting").
ended_badly() { # RUN
	grep -qx 'rdma_get_cm_event: Bad file descriptor' "$work/$1".{server,client}.err
}

attempts() { # RUN...: runs again, up to five times, if only its end went wrong or a message was lost
	local attempt
	for attempt in 1 2 3 4 5; do
		rm -f "$work/$1".{stats,trace}
		run "$@"
		if ended_badly "$1"; then
			echo "# $1, attempt $attempt: ${verdict[$1]%%$'\n'*}: the event channel was gone"
		elif late "$1" && [ "${RELIABLE-yes}" = no ]; then
			echo "# $1, attempt $attempt: not done after $limit s"
		else
			return
		fi
	done
}
