#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# hostile.sh TOOL LIBRARY AUDIT HOLDS: what another user of the machine, or a malicious environment,
# can do to a program (SECURITY.md). HOLDS is ctests/tool/holds.c, a program that registers on
# request.
. "$(dirname "$0")/../lib/script.sh"
tool=$(realpath "$1") library=$(realpath "$2") audit=$(realpath "$3") holds=$(realpath "$4")
trap 'kill -9 ${held[*]:-} 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
chmod 755 .

# A program under the library: "begin" starts it, "registers" has it register, "over" ends it in order.
. "$here/holds.sh"
begin() { start program holder "$@" 2>said; } # [NAME=VALUE...]
registers() { ask program "register 1" >/dev/null; }
over() { ends program $pid; }
once() { # [NAME=VALUE...]: it registers once, and ends in order
	begin "$@"
	registers
	over
}

# A user who can write in the directory replaces a file that the library writes, by a link here;
# src/sys/append.rs has the other ways: dangling links, files that are no trace, another user's. The
# library writes a block at the program's end, whatever else the time allows.
mkdir shared
kept() { [ "$(tr -d "\0" <"$1")" = precious ]; } # FILE
echo precious >victim
begin RDMAMR_TRACE="$work/shared/trace"
registers
mv shared/trace shared/aside
ln -s ../victim shared/trace
registers
# The child shares its parent's file.
ask program fork >/dev/null
registers
ask program end >/dev/null
over
check "a trace goes on into no other file, nor does that of a forked child" kept victim
check "each of the two processes reports that once" [ "$(grep -c 'RDMAMR_TRACE: cannot be written' said)" = 2 ]
check "the file of the start is a trace" "$tool" report --text shared/aside
for setting in RDMAMR_TRACE RDMAMR_STATS; do
	ln -sf "$work/victim" shared/file
	once $setting="$work/shared/file"
	check "$setting: a link is not written through" kept victim
	check "$setting: which is reported" grep -q "$setting: cannot be written.*link" said
done
rm victim
ln -s "$work/victim" link
printf RDMAMRTR >victim
check "rdmamr run --trace empties no file through a link" bash -c '! "$1" run --trace link true && [ -s victim ]' - "$tool"
output=$(RDMAMR_STATS=/dev/stdout LD_PRELOAD=$library "$holds" <<<"register 1")
check "the system's own links are followed: /dev/stdout" grep -q '"reg_kernel":1' <<<"$output"

# Another process of the user asks by the live page, as "rdmamr trace" does.
cat >request.py <<'END'
import glob, struct, sys

SWITCH = 1744  # the offset of TraceSwitch: number, answered, wanted, state, path
user, pid, *request = sys.argv[1:]
[name] = glob.glob(f"/dev/shm/rdmamr-{user}/*-{pid}-*")
with open(name, "r+b", buffering=0) as page:
    page.seek(SWITCH)
    number, answered, _, state = struct.unpack("4I", page.read(16))
    if request:
        page.seek(SWITCH + 8)
        page.write(struct.pack("2I1024s", 1, state, request[0].encode()))
        page.seek(SWITCH)
        page.write(struct.pack("I", number + 1))
    else:
        print(state if answered == number else "none")
END
asked() { # USER FILE: the program's answer is in $state
	python3 request.py "$1" "$pid" "$2"
	registers
	registers
	state=$(python3 request.py "$1" "$pid")
}
user=$(id -u)
rm -f shared/*
begin -u XDG_RUNTIME_DIR
registers
# src/sys/append.rs has links and files of two names.
echo precious >shared/profile
asked "$user" "$work/shared/profile"
check "a request appends to no file that is no trace" kept shared/profile
asked "$user" "$work/shared/new"
check "a request makes no file" [ ! -e shared/new ]
check "it answers that it could not follow: $state" [ "$state" = 2 ]
: >shared/trace
asked "$user" "$work/shared/trace"
check "it follows a request for an empty file of its user's" [ "$state" = 1 ]
over
check "which is a trace" "$tool" report --text shared/trace
begin -u XDG_RUNTIME_DIR
registers
asked "$user" "$work/shared/trace"
check "and one for a file that is a trace" [ "$state" = 1 ]
: >shared/fresh
ask program undumpable >/dev/null
asked "$user" "$work/shared/fresh"
check "a process that is not dumpable follows no request: $state" [ "$state $(stat -c %s shared/fresh)" = "3 0" ]
over

# A process with a capability that its user's other processes lack.
if [ "$user" = 0 ] && command -v setpriv >/dev/null; then
	mkdir -m 755 closed
	cp "$library" closed/librdmamr.so.1 && cp "$holds" closed/holds
	of_root=("$library" "$holds") library=$work/closed/librdmamr.so.1 holds=$work/closed/holds
	for rights in +dac_override -all; do
		: >closed/trace && chown 60001 closed/trace
		begin -u XDG_RUNTIME_DIR setpriv --reuid 60001 --clear-groups --inh-caps $rights --ambient-caps $rights env
		registers
		asked 60001 "$work/closed/made"
		check "ambient capabilities $rights: no request makes a file" [ ! -e closed/made ]
		asked 60001 "$work/closed/trace"
		over
		case $rights in
		-all) check "without a capability a process follows a request" [ "$state" = 1 ] ;;
		*) check "a process with an ambient capability follows no request: $state" [ "$state $(stat -c %s closed/trace)" = "3 0" ] ;;
		esac
	done
	library=${of_root[0]} holds=${of_root[1]}
	rm -rf /dev/shm/rdmamr-60001
else
	skip "a process with an ambient capability" "needs root and setpriv"
fi

# Programs that have more rights than their caller: by the set-uid bit and by capabilities of the
# file. "cat" shows the objects that are loaded into it.
if [ "$(id -u)" = 0 ] && command -v setcap >/dev/null; then
	cp "$library" librdmamr.so.1
	"${CC:-cc}" -I"$here/../../include" "$here/../packages/consumer.c" "$here/../lib/tap.c" -o plain ./librdmamr.so.1 -libverbs "-Wl,-rpath,$work"
	cp "$(realpath "$(command -v cat)")" cat_plain
	for right in suid capable; do
		cp plain $right
		cp cat_plain cat_$right
	done
	chown 60002 suid cat_suid && chmod 4755 suid cat_suid
	setcap cap_net_raw+ep capable && setcap cap_net_raw+ep cat_capable
	mkdir -m 1777 open
	stranger() { setpriv --reuid 60001 --clear-groups env "$@" 2>&1; } # [NAME=VALUE...] COMMAND...
	settings() { stranger RDMAMR_STATS=stderr RDMAMR_STAT=1 RDMAMR_TRACE="$work/open/trace" XDG_RUNTIME_DIR="$work/open" "$1"; }
	check "a program without rights of its own obeys" grep -q "no such setting" <<<"$(settings ./plain)"
	check "and has a trace" [ -e open/trace ]
	rm -rf open/*
	# "rdmamr run" names the program by its number, and a file that the program removes.
	keeps() { # PROGRAM FILE
		# shellcheck disable=SC2016 # the stranger's shell expands them; the program keeps its number
		stranger FILE="$work/$2" sh -c '_RDMAMR_PROGRAM="$$ $FILE" exec "$0"' "$1" >/dev/null
		ls "$2"
	}
	keeps_a_file() { # PROGRAM USER: that user's file
		install -o "$2" /dev/null open/.rdmamr-run-x
		keeps "$1" open/.rdmamr-run-x && rm open/.rdmamr-run-x
	}
	check "and removes a file" fails keeps_a_file ./plain 60001
	mkdir open/.rdmamr-run-folder
	touch open/file open/.rdmamr-run-folder/file
	echo precious >open/.rdmamr-run-full
	ln -s file open/.rdmamr-run-link
	chown -hR 60001 open/file open/.rdmamr-run-*
	for file in file .rdmamr-run-folder/file .rdmamr-run-full .rdmamr-run-link; do
		check "but none that is not the launcher's: $file" keeps ./plain "open/$file"
	done
	rm -r open/file open/.rdmamr-run-*
	loaded() { stranger LD_AUDIT="$audit" LD_PRELOAD="$library" "$1" /proc/self/maps | grep -c "rdmamr"; }
	check "and loads the module for LD_AUDIT" [ "$(loaded ./cat_plain)" -gt 0 ]
	for right in suid capable; do
		output=$(settings ./$right)
		check "$right: it obeys no setting" bash -c 'grep -q "^1\.\." <<<"$1" && ! grep -q "reg_kernel\|no such setting" <<<"$1"' - "$output"
		check "$right: it makes no file for its caller" [ -z "$(ls -A open)" ]
		user=60001
		[ $right = capable ] || user=60002
		check "$right: it removes no file for its caller" keeps_a_file ./$right $user
		check "$right: it loads neither the library nor the module for LD_AUDIT" [ "$(loaded ./cat_$right)" = 0 ]
	done
else
	skip "set-uid programs and programs with capabilities" "needs root and setcap"
fi
tap_done
