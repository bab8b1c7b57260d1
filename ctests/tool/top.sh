#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# top.sh TOOL LIBRARY HOLDS [DEVICE GID_INDEX]: "rdmamr top" on processes that HOLDS
# (ctests/tool/holds.c) makes: its figures, which users see which processes, the terminal,
# OpenMetrics. With a device, instead, the kernel's list of processes with the library and without.
TMPDIR=/dev/shm . "$(dirname "$0")/../lib/script.sh"
tool=$1 library=$2 holds=$3 device=${4:-} gid=${5:-0}
chmod 755 "$work"
mkdir -m 700 "$work/run"
# No idle region ends meanwhile.
export XDG_RUNTIME_DIR=$work/run RDMAMR_CACHE_LINGER=1000000
terminal=$work/terminal
trap 'tmux -S "$terminal" kill-server 2>/dev/null; for pid in ${held[*]:-}; do kill -9 "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT
# A user ID that no other test uses.
stranger=$((60000 + $$ % 5000))

. "$here/holds.sh"
top() { "$tool" top --interval 0.2 "$@"; }
json() { # PID EXPRESSION...: of the process p
	top --json | python3 -c 'import json, sys
found = [p for p in json.load(sys.stdin)["processes"] if p["pid"] == int(sys.argv[1])]
print(*[eval(it, {"p": found[0]}) for it in sys.argv[2:]] if found else ["absent"])' "$@"
}
prints() { [ "$("${@:2}")" = "$1" ]; } # WANTED COMMAND...
screen() { tmux -S "$terminal" capture-pane -p "$@"; }
shows() { # NAME WORDS: waits until the terminal shows them
	shown() { grep -qE -- "$1" <<<"$(screen)"; }
	if awaits shown "$2"; then pass "$1"; else fail "$1" "wanted: $2" "found: $(screen)"; fi
}

if [ -n "$device" ]; then
	# Each waits for a client.
	(ulimit -l 16384; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock ibv_rc_pingpong -d "$device" -g "$gid" -p 18601 -s 1048576) >/dev/null &
	without=$!
	LD_PRELOAD=$library ibv_rc_pingpong -d "$device" -g "$gid" -p 18602 -s 65536 >/dev/null &
	with=$!
	held+=("$without" "$with")
	check "a process without the library has the kernel's list" awaits prints 1 json "$without" 'p["regions"]'
	is "with its length and its device, and is shown as without" "1048576 $device False" \
		"$(json "$without" 'p["bytes"]' 'p["devices"][0]["device"]' 'p["library"]')"
	check "one under the library has its own count" awaits prints 1 json "$with" 'p["regions"]'
	is "which is the kernel's, and the device's name" "1 65536 $device" \
		"$(json "$with" 'p["devices"][0]["kernel_regions"]' 'p["devices"][0]["kernel_bytes"]' 'p["devices"][0]["device"]')"
	check "rdma(8) lists the same" grep -q "mrlen 1048576 .*pid $without " <(rdma resource show mr dev "$device")
	regions() { # COMMAND...: the device's regions, of all processes
		"$@" | python3 -c 'import json, sys
print(*(d["regions"] for d in json.load(sys.stdin)["devices"] if d["name"] == sys.argv[1]))' "$device"
	}
	of_kernel=$(rdma resource show "$device" | grep -oP ' mr \K[0-9]+')
	is "the device has the regions that rdma(8) counts" "$of_kernel" "$(regions top --json)"
	check "which are the two or more" [ "$of_kernel" -ge 2 ]
	is "also from another PID namespace" "$of_kernel" \
		"$(regions unshare --pid --fork --mount-proc "$tool" top --interval 0.2 --json)"
	is "the device's limit is shown" "max_mr True" "$(json "$without" 'p["limits"][-1]["name"]' 'p["limits"][-1]["most"] > 1000')"
	is "its limit on pinned memory too" "RLIMIT_MEMLOCK 16777216" \
		"$(json "$without" 'p["limits"][0]["name"]' 'p["limits"][0]["most"]')"
	group=$work/groups/top
	if mkdir "$work/groups" && mount -t cgroup2 none "$work/groups" && echo "+rdma +memory" >"$work/groups/cgroup.subtree_control"; then
		mkdir "$group"
		echo "$device hca_object=100" >"$group/rdma.max"
		echo 300M >"$group/memory.max"
		(echo 0 >"$group/cgroup.procs"; LD_PRELOAD=$library exec ibv_rc_pingpong -d "$device" -g "$gid" -p 18603 -s 65536) >/dev/null &
		held+=($!)
		check "one in a cgroup has its one region" awaits prints 1 json $! 'p["regions"]'
		objects=$(grep -oP "^$device .*hca_object=\K[0-9]+" "$group/rdma.current")
		limits='{it["name"]: it for it in p["limits"]}'
		is "the limit of its objects, with the used number, and that of its memory" "$objects 100 314572800" \
			"$(json $! "$limits['hca_object']['used']" "$limits['hca_object']['most']" "$limits['memory.max']['most']")"
		check "which is not 0" [ "${objects:-0}" -ge 2 ]
		kill $!
		wait $! 2>/dev/null
		rmdir "$group"
		umount "$work/groups"
	else
		skip "a cgroup's limits" "no cgroup2 with rdma and memory"
	fi
	# tool/src/top/table.rs has the other words.
	check "the table marks processes without the library" grep -q "ibv_rc_pingpong (no library)" <<<"$(top --once)"
	tap_done
	exit
fi

start first holder OMPI_COMM_WORLD_RANK=3
first=$pid
start second holder OMPI_COMM_WORLD_RANK=12 SLURM_JOB_ID=4242
second=$pid

is "a process that has registered nothing is not listed" absent "$(json "$first")"
ask first "register 100" >/dev/null
ask first "again 1000" >/dev/null
ask second "register 2" >/dev/null
check "hits arrive" awaits prints 999 json "$first" 'p["hits"]'
is "regions, bytes, those in use and those idle" "101 6619136 6553600 1 65536" \
	"$(json "$first" 'p["regions"]' 'p["bytes"]' 'p["in_use_bytes"]' 'p["idle_regions"]' 'p["idle_bytes"]')"
is "the device, by its name" "stub0 101" "$(json "$first" 'p["devices"][0]["device"]' 'p["devices"][0]["registrations"]')"
is "rank, job of Slurm, and the time in registration" "3 None True" "$(json "$first" 'p["rank"]' 'p["job"]' 'p["registration_seconds"] > 0')"
check "rank and job are labels" grep -q "^rdmamr_registrations_total{pid=\"$second\",.*rank=\"12\",job=\"4242\"" <<<"$("$tool" top --openmetrics)"
# tool/src/top/table.rs has the order and the names.
[ -e /sys/module/ib_core ] || check "without RDMA it says so" grep -qx "The kernel does not list regions: there is no RDMA device (no module ib_core)" <<<"$(top --once)"
is "a filter by rank" "$second" "$(top --once --filter "rank 12" | awk '$NF == "holds" { print $1 }')"
# Without CAP_IPC_LOCK, under which the limit does not apply.
bound=()
[ "$(id -u)" != 0 ] || bound=(setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock)
if "${bound[@]}" true 2>/dev/null; then
	limited() { ulimit -l 64; exec "${bound[@]}" env LD_PRELOAD="$library" "$holds"; }
	start limited limited
	ask limited "register 1" >/dev/null
	check "a limit is shown" awaits prints 65536 json "$pid" 'p["limits"][0]["most"]'
	kill "$pid"
else
	skip "a limit is shown" "this root may not drop CAP_IPC_LOCK"
fi

# The end of a process.
ask second release >/dev/null
is "regions that end are gone" "0 0" "$(json "$second" 'p["counters"]["live"]' 'p["regions"]')"
files=$(ls "$work/run/rdmamr" | wc -l)
kill -9 "$second"
wait "$second" 2>/dev/null
is "a killed process is not listed" absent "$(json "$second")"
check "and its file is removed" [ "$(ls "$work/run/rdmamr" | wc -l)" -lt "$files" ]

# Names as long as an argument can be.
long=$(printf '%65536s' '' | tr ' ' x)
named() { LD_PRELOAD=$library exec -a python3 "$holds" -m "$long"; }
start long named
ask long "register 1" >/dev/null
check "a process with a long name is listed" awaits prints 1 json "$pid" 'p["regions"]'
is "of which 64 characters are shown, and 4096 of its command line" "64 4096" "$(json "$pid" 'len(p["command"])' 'len(p["command_line"])')"
check "also as a label" [ "$("$tool" top --openmetrics | wc -L)" -lt 1000 ]
check "and in the table" [ "$(top --once | wc -L)" -lt 1000 ]
ends long "$pid"

# Which users see which processes.
page=$(ls "$work/run/rdmamr"/*)
mv "$page" "$work/run/rdmamr/1-2-3"
is "a file whose name is not its content's is not shown" absent "$(json "$first")"
mv "$work/run/rdmamr/1-2-3" "$page"
chmod 644 "$page"
is "nor one that others may read" absent "$(json "$first")"
chmod 600 "$page"
chmod 755 "$work/run/rdmamr"
is "nor one in such a folder" absent "$(json "$first")"
chmod 700 "$work/run/rdmamr"
if [ "$(id -u)" = 0 ] && setpriv --reuid $stranger --clear-groups true 2>/dev/null; then
	install -m 755 "$tool" "$work/rdmamr"
	is "another user sees nothing of it" 0 "$(setpriv --reuid $stranger --clear-groups "$work/rdmamr" top --once | grep -c ' holds$')"
	mkdir -m 755 "$work/other"
	install -m 755 "$holds" "$work/other/holds"
	install -m 755 "$library" "$work/other/librdmamr.so"
	start other env -u XDG_RUNTIME_DIR LD_PRELOAD="$work/other/librdmamr.so" setpriv --reuid $stranger --clear-groups "$work/other/holds"
	ask other "register 7" >/dev/null
	check "root sees another user's" awaits prints 7 json "$pid" 'p["regions"]'
	kill "$pid"
	wait "$pid" 2>/dev/null
	rm -rf /dev/shm/rdmamr-$stranger
else
	skip "another user's processes" "needs root, and setpriv"
fi

# A container: its own mounts and process numbers. The page lies in the container's /dev/shm.
if unshare --mount --pid --fork true 2>/dev/null; then
	start inside unshare --mount --pid --fork --mount-proc --kill-child env -u XDG_RUNTIME_DIR bash -c \
		'mount -t tmpfs none /dev/shm; LD_PRELOAD=$1 exec "$0" 3>&-' "$holds" "$library"
	ask inside "register 9" >/dev/null
	inside=$(pgrep -P "$pid")
	check "a container's process is seen, by its number outside" awaits prints 9 json "$inside" 'p["regions"]'
	check "it has another number inside" grep -qE "^NSpid:.*[[:space:]]$inside[[:space:]]1$" "/proc/$inside/status"
	check "and its page lies in the container" [ -d "/proc/$inside/root/dev/shm/rdmamr-$(id -u)" -a ! -e "/proc/$inside/root$work" ]
	kill -9 "$inside"
else
	skip "a container's process" "unshare is refused"
fi

# For Prometheus.
if /usr/bin/python3 -c 'import prometheus_client' 2>/dev/null; then
	check "OpenMetrics, as a parser reads it" bash -c '"$1" top --openmetrics | /usr/bin/python3 -B "$2/openmetrics.py" "$3"' - "$tool" "$here" "$first"
	check "the file for node_exporter, as a parser reads it" bash -c \
		'"$1" top --textfile "$4/file.prom" && /usr/bin/python3 -B "$2/openmetrics.py" --text "$3" <"$4/file.prom"' - "$tool" "$here" "$first" "$work"
else
	lacks "OpenMetrics, as a parser reads it" python3-prometheus-client
fi
# tool/src/files/named.rs has links in its place.
check "a missing folder is an error" fails "$tool" top --textfile "$work/none/file.prom"
check "without a terminal it names --once" grep -q -- --once <("$tool" top </dev/null 2>&1)

# The terminal.
if command -v tmux >/dev/null; then
	tmux -S "$terminal" -f /dev/null new-session -d -x 100 -y 24 "$tool top --interval 0.2"
	# KEYS | NAME | WORDS
	while IFS='|' read -r keys name words; do
		# shellcheck disable=SC2086 # words
		[ -z "$keys" ] || tmux -S "$terminal" send-keys $keys
		shows "$name" "$words"
	done <<-ROWS
		|the terminal shows the process|$first +stub0 +101\b
		|and its details|stub0: 101 regions, 6.31 MiB; 1 idle
		|the busiest come first|sorted by calls
		s|s sorts by the next column|sorted by bytes
		/ x y z|/ filters|filter: xyz_
		|processes that do not match are gone|No process passes the filter
		Escape|Esc drops the filter|$first +stub0\b
		|the last line has the keys|q end  arrows select
	ROWS
	ask first "register 5" >/dev/null
	shows "the next registrations" "$first +stub0 +106 "
	tmux -S "$terminal" send-keys p
	shows "p pauses" paused
	tmux -S "$terminal" resize-window -x 40 -y 10
	shows "a small terminal shows the process too" "$first"
	tmux -S "$terminal" send-keys q
	check "q ends it" awaits fails tmux -S "$terminal" has-session
else
	lacks "the terminal" tmux
fi
# Attaching.
attached() { traced first "$first" "$@"; } # OPTION...
calls() { # FILE: prints the number of registrations in it
	"$tool" report --json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["totals"]["registrations"])'
}
check "a running process starts to record on request" attached --on -o "$work/attach.trace"
is "the file is for its user alone" 600 "$(stat -c %a "$work/attach.trace")"
ask first "again 500" >/dev/null
check "and stops on request" attached --off
recorded=$(calls "$work/attach.trace")
check "its calls are in the file: $recorded" [ "$recorded" -ge 500 ]
ask first "again 500" >/dev/null
is "later calls are not" "$recorded" "$(calls "$work/attach.trace")"
check "it records again on request, for a second" attached --for 1 -o "$work/again.trace"
limit="--preserve-status 2" attached -o "$work/term.trace"
check "SIGTERM ends it as Ctrl-C does" [ $? = 0 ]
for trace in attach again term; do
	check "$trace.trace is not of a process that was killed" bash -c \
		'"$1" report --text "$2" | tr -s "\n " "  " | tee "$2.text" | grep -q "recorded until it was stopped, and ran on" && ! grep -q "NOT ended" "$2.text"' - \
		"$tool" "$work/$trace.trace"
done
check "the second is recorded" [ "$(calls "$work/again.trace")" -ge 2 ]
attached --on -o "$work/term.trace" && ask first "again 500" >/dev/null
check "it records into the same file again" attached --off
"$tool" report --text "$work/term.trace" | tr -s "\n " "  " >"$work/term.text"
check "of which no block is missing" bash -c 'grep -q "recorded until it was stopped, and ran on" "$1" && ! grep -q lacks "$1"' - "$work/term.text"
echo other >"$work/other.trace"
check "a file that is no trace is unchanged" bash -c '! "$1" trace --pid "$2" -o "$3" 2>/dev/null && grep -qx other "$3"' - \
	"$tool" "$first" "$work/other.trace"
ln -s "$work/attach.trace" "$work/link.trace"
check "a link is not followed" fails "$tool" trace --pid "$first" -o "$work/link.trace"
# The process makes no call now.
quiet() { # NAME SECONDS OPTION...: the tool's status, and whether there is a file; SIGINT ends it then
	local name=$1 status=0
	timeout --preserve-status -s INT "$2" "$tool" trace --pid "$first" -o "$work/$name.trace" "${@:3}" >"$work/$name.said" 2>&1 || status=$?
	echo "$status, $(ls "$work" | grep -c "^$name.trace$") file, $(grep -c "^rdmamr: no call is recorded: process $first has registered nothing" "$work/$name.said") line"
}
is "--for ends a wait for a process that registers nothing" "1, 0 file, 1 line" "$(quiet idle 60 --for 1)"
is "so does Ctrl-C" "1, 0 file, 1 line" "$(quiet interrupted 1)"
check "the process records on request after that" attached --on -o "$work/late.trace"
"$tool" trace --pid "$first" --off 2>"$work/stop.said"
check "it says when the last calls come" grep -q "^rdmamr: the process writes its last calls and stops recording at its next registration" "$work/stop.said"
ask first "again 1" >/dev/null
check "a report does not call a leak what it cannot know" grep -qx "No recorded call failed. Which regions were left registered is not known." \
	<("$tool" report --text "$work/late.trace")
check "for a process without the library it prints the command for bpftrace" \
	grep -q "^  bpftrace .*pid == $$ " <("$tool" trace --pid $$ 2>&1)
check "and for a missing process that there is none" grep -q "there is no process" <("$tool" trace --pid 4194304 2>&1)

tap_done
