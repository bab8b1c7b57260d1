#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# fence.sh TOOL BUILT [UNMAPS]: "rdmamr fence" on this kernel, as root: what it counts, for whom, and
# what others can do to it. In the machine of vm/ the service must run; elsewhere it may refuse.
. "$(dirname "$0")/../lib/script.sh"
tool=$1 client=$2/fence_service unmaps=${3:-20000} clients=(python3 -B "$here/clients.py")
service=
trap 'kill $service 2>/dev/null; rm -rf "$work"' EXIT
socket=/run/rdmamr/fence lock=/run/rdmamr-fence/lock

if ! "$tool" fence --check 2>"$work/check"; then
	[ -n "${VM:-}" ] || skip_all "$(tr '\n' ' ' <"$work/check")"
fi
start() { # NAME
	"$tool" fence 2>>"$work/log" &
	service=$!
	check "$1" awaits "$client" ask
}
counted() { [ "$(echo now | "$@" "$client" outlive 2>&1 | tail -n 1)" = "counted now" ]; }
check "--check: $(tail -n 1 "$work/check")" grep -q 'counts changes of memory' "$work/check"
check "--check leaves no socket" [ ! -e $socket ]
sysctl=/proc/sys/kernel/unprivileged_bpf_disabled was=$(cat /proc/sys/kernel/unprivileged_bpf_disabled)
if [ "$was" = 1 ] || ! echo 0 >$sysctl; then
	skip "where any user may load programs it refuses" "this machine's setting cannot be changed"
else
	check "where any user may load programs it refuses" ends_with 2 unprivileged_bpf_disabled "$tool" fence --check
	echo "$was" >$sysctl
fi

check "the doctor sees no service" grep -q '^ok *fence: .*does not run' <("$tool" doctor)
# A container that shares the directory has root's number, and none of its rights.
mkdir -p ${socket%/*}
touch ${socket%/*}/lock
"${clients[@]}" locks >"$work/locks" &
locks=$!
check "a container of root's can lock all of the directory" awaits grep -q locked "$work/locks"
start "the service starts, although a container has locked its directory"
kill $locks
check "a user cannot lock the service's lock" fails "${nobody[@]}" flock --nonblock $lock true
check "the lock's directory is root's alone" [ "$(stat -c '%u %a' ${lock%/*})" = "0 700" ]
check "and says so: $(tail -n 1 "$work/log")" grep -q 'counts changes' "$work/log"
check "the doctor sees it" grep -q '^ok *fence: .*fence runs' <("$tool" doctor)
results "changes" "$client" changes
results "rude clients" "${clients[@]}" rude
results "unread answers" "${clients[@]}" unread
results "a crowd" "$client" crowd 1000
results "sockets that linger" "${clients[@]}" lingers
results "a flood" "${clients[@]}" flood
check "it serves a user" counted "${nobody[@]}"
for kind in --pid --mount --user --net; do
	check "a process in a namespace of its own: $kind" counted unshare --fork $kind
done
check "a user in all of them, without rights" counted "${nobody[@]}" unshare --fork --user --map-root-user --pid --mount --net
kill -STOP $service
check "the doctor sees that a stopped service does not answer" grep -q '^warning *fence: .*does not answer' <("$tool" doctor)
kill -CONT $service
check "the doctor sees that the library asks no service in a user namespace without root" \
	grep -q '^warning *fence: .*not root' <("${nobody[@]}" unshare --user "$tool" doctor)
check "a second service is refused" ends_with 2 'another "rdmamr fence"' "$tool" fence
check "which leaves the first alone" "$client" ask
results "interrupted" "$client" load "$unmaps"
"${clients[@]}" stays >"$work/lingers" &
peer=$!
check "sockets linger while their peer lives" awaits grep -q '^1\.\.' "$work/lingers"
kill -TERM $service
gone() { [ ! -e /proc/$service ] || grep -q '^State:.Z' /proc/$service/status; }
check "the service ends by SIGTERM all the same" awaits gone
kill -KILL $service 2>/dev/null
wait $service
check "with status 0" [ $? = 0 ]
kill $peer
start "it starts again"

# A process outlives services.
coproc old { "$client" outlive; }
# A subshell has not the files of a coprocess, but copies of them.
exec {answers}<&"${old[0]}" {asks}>&"${old[1]}"
read -r _ <&"$answers"
still() { local line; echo "$1" >&"$asks" && read -r line <&"$answers" && [ "$line" = "counted $1" ]; }
check "a process counts" still before
kill -KILL $service
wait $service 2>/dev/null
check "after the service was killed too" still killed
check "a new process does without" fails "$client" ask
start "the service starts over its old socket"
check "the old process counts" still again
check "a new one as well" counted env
kill -TERM $service
wait $service
check "the service takes its socket away" [ ! -e $socket ]
check "the old process counts" still ended
kill "$old_PID"
service=

stands_in() { # NAME WORDS USER ANSWER: what the doctor says of a process of a user's in the service's place
	"${clients[@]}" serves "$3" "$4" &
	local process=$!
	says() { grep "^warning *fence: .*$1" <("$tool" doctor); }
	check "$1" awaits says "$2"
	kill $process
	rm $socket
}
stands_in "the doctor sees that another user's process has the service's place" 'not run as root' 65534 ''
stands_in "the doctor sees a service that refuses it" 'refuses this process' 0 ''
stands_in "the doctor sees a service of another version" 'of another version' 0 RDMAMRF3

"${clients[@]}" false &
false=$!
check "a false service of root's without rights serves" awaits [ -S $socket ]
race=$2/race
disbelieved() { # A busy machine may not answer in time, which is another reason.
	for _ in $(seq 10); do
		CHECK_ROUNDS=100 RDMAMR_LOG=info RDMAMR_CACHE=all "$tool" run "$race" random >"$work/false" 2>&1
		grep 'counts no changes for this process' "$work/false" || return 1
		! grep -q "not the kernel's" "$work/false" || return 0
	done
	return 1
}
check "the library does not believe it" disbelieved
kill $false
rm $socket

check "without rights it says what it needs" ends_with 2 CAP_BPF "${nobody[@]}" "$tool" fence --check
check "two capabilities are enough" setpriv --inh-caps=-all --bounding-set=-all,+bpf,+perfmon "$tool" fence --check
check "in a PID namespace of its own it refuses" \
	ends_with 2 'PID namespace' unshare --fork --pid --mount-proc "$tool" fence --check
# shellcheck disable=SC2016
check "without BTF it refuses" ends_with 2 CONFIG_DEBUG_INFO_BTF \
	unshare --mount sh -c 'mount -t tmpfs none /sys/kernel/btf && exec "$1" fence --check' - "$tool"
# In a machine in which nothing else runs afterwards.
if [ -n "${CHECK_LOCKDOWN:-}" ]; then
	mount -t securityfs none /sys/kernel/security 2>/dev/null
	check "the kernel is locked down" eval 'echo confidentiality >/sys/kernel/security/lockdown'
	"$tool" fence --check 2>"$work/locked"
	check "locked down it works or says why, status $?: $(tail -n 1 "$work/locked")" grep -q 'counts changes\|locked down' "$work/locked"
fi
tap_done
