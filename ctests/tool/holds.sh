# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Processes that obey lines (holds.c, $holds), under $library. Source this. `held` has their numbers,
# which the script's trap ends.
held=()
start() { # NAME COMMAND...: its number is in $pid
	[ -p "$work/$1.in" ] || mkfifo "$work/$1.in" "$work/$1.out"
	"${@:2}" <>"$work/$1.in" >"$work/$1.out" 3<>"$work/$1.out" &
	pid=$!
	held+=("$pid")
}
ask() { # NAME LINE: prints the answer
	echo "$2" >"$work/$1.in"
	head -1 "$work/$1.out"
}
ends() { # NAME PID: in order
	echo end >"$work/$1.in"
	wait "$2"
}
holder() { exec env "$@" LD_PRELOAD="$library" "$holds"; } # [VARIABLE=VALUE...]
traced() { # NAME PID OPTION...: "rdmamr trace" of the process, which makes calls until the tool has its answer
	# shellcheck disable=SC2086 # words
	timeout ${limit:--s KILL 100} "$tool" trace --pid "$2" "${@:3}" >"$work/traced.said" 2>&1 &
	local tracer=$!
	while kill -0 "$tracer" 2>/dev/null; do
		ask "$1" "again 1" >/dev/null
		sleep 0.05
	done
	wait "$tracer" || { cat "$work/traced.said"; return 1; }
}
