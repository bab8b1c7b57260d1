#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# root.sh TOOL LIBRARY HOLDS: what a user of the machine can do to root who runs the tool
# (SECURITY.md). HOLDS is ctests/tool/holds.c, a program that registers on request.
. "$(dirname "$0")/../lib/script.sh"
tool=$(realpath "$1") library=$(realpath "$2") holds=$(realpath "$3")
{ [ "$(id -u)" = 0 ] && setpriv --reuid 60001 --clear-groups true 2>/dev/null; } || skip_all "needs root, and setpriv"
user=$((61000 + $$ % 1000)) other=$((62000 + $$ % 1000))
trap 'kill -9 ${held[*]:-} 2>/dev/null; rm -rf "$work" /dev/shm/rdmamr-$user /dev/shm/rdmamr-$other ${third:+/dev/shm/rdmamr-$third}' EXIT
cd "$work" || exit 1
chmod 755 .
as() { setpriv --reuid "$1" --regid "$1" --clear-groups env -u XDG_RUNTIME_DIR "${@:2}"; } # USER COMMAND...
not_opened() { python3 "$here/opened.py" "$@"; [ $? = 1 ]; } # FILE COMMAND...
quietly() { timeout --signal=KILL 20 "$@" >said 2>&1; }

# Where users meet: shared is as /tmp is, theirs is a user's own, roots is root's alone.
mkdir -m 1777 shared
mkdir -m 755 theirs roots
chown $user theirs
${CC:-cc} -O1 -g "$here/callers.c" -o callers
${CC:-cc} -O1 -shared -fPIC -DLIBRARY "$here/callers.c" -o libcallers.so
python3 "$here/trace.py" known trace "$work/callers" "$work/libcallers.so"
chmod 600 trace

# A user makes a file in the place of the page first. tool/src/files/named.rs has each mode.
as $user touch shared/page.html
quietly "$tool" report -o shared/page.html trace
check "a page in the place of a user's file is root's alone" [ "$(stat -c '%a %u' shared/page.html)" = "600 0" ]
rm -f shared/*
as $user mkfifo -m 666 shared/page.html
exec {reader}<>shared/page.html
check "no page goes into another user's pipe" fails quietly "$tool" report -o shared/page.html trace
check "nothing of it" fails read -r -t 0 -u "$reader"
exec {reader}>&-
rm -f shared/*

# The guard, whose child works, changes nothing for the caller.
mkfifo unread
exec {unread}<>unread
dd if=/dev/zero of=unread bs=64k count=1 2>said
"$tool" report --json trace >unread &
sleep 1
kill $!
check "a signal ends a report that nobody reads" awaits fails kill -0 $!
timeout --signal=KILL 20 "$tool" report --text none 2>unread
is "a line that nobody reads is lost" 2 $?
exec {unread}>&-
ignoring() { python3 -c 'import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])' "$@"; }
ignoring "$tool" report --text trace >said
is "SIGCHLD is ignored: the status is that of the report" 0 $?

# A user's links lead root elsewhere.
as $user ln -s "$work/roots" theirs/link
for option in "report -o theirs/link/page trace" "report --flamegraph theirs/link/page trace" "top --textfile theirs/link/page" \
	"run --trace theirs/link/page -- true" "run --trace theirs/link/new/%p -- true"; do
	quietly "$tool" $option
	check "a user's link is not followed: $option" [ -z "$(ls -A roots)" ]
	check "which is said" grep -q "a link of user $user, which root does not follow" said
done
mv trace roots/trace
check "a trace behind it is not read" fails quietly "$tool" report --text theirs/link/trace
mv roots/trace trace
as $user mkfifo -m 666 theirs/pipe
quietly "$tool" report --text theirs/pipe
check "a user's pipe is not waited for" grep -q "a pipe of user $user" said

# An output has the addresses and keys of a trace.
install -m 755 "$tool" shared/tool
for modes in "600 600" "640 600" "644 644"; do
	read -r had has <<<"$modes"
	install -o $user -m "$had" trace theirs/trace
	for option in "" --perfetto "--flamegraph theirs/trace.svg" "--diff theirs/trace"; do
		as $user shared/tool report $option theirs/trace >/dev/null
	done
	(cd theirs && as $user "$work/shared/tool" report -o page - <trace >/dev/null)
	check "each output of a trace of mode $had has $has" \
		[ "$(cd theirs && stat -c %a trace.html trace.json trace.svg trace.diff.html | xargs)" = "$has $has $has $has" ]
	check "that of a pipe has 600" [ "$(stat -c %a theirs/page)" = 600 ]
	rm -f theirs/trace* theirs/page
done
rm shared/tool

# Files that a trace names: modules, and their debug information, which a compiler can put apart.
${CC:-cc} -O1 -g -gsplit-dwarf "$here/callers.c" -o callers
apart=$(echo *.dwo)
python3 "$here/trace.py" known split "$work/callers" "$work/libcallers.so"
check "debug information that lies apart is found" grep -q 'send_message callers.c:' <("$tool" report --text split | tr -s ' ')
for name in callers.dwp "$apart" callers; do
	[ ! -e "$name" ] || mv "$name" kept
	mkfifo "$name"
	check "a pipe as $name is not waited for" quietly "$tool" report --text split
	rm "$name"
	[ ! -e kept ] || mv kept "$name"
done
# Modules that take much memory or time to read. All together may use 3 GiB here.
mkdir -m 755 hostile
python3 "$here/hostile_modules.py" hostile
[ -e kept.trace ] || mv trace kept.trace
within() { (ulimit -v $((3 << 20)) && quietly "$@"); }
named() { check "$1: the program has its names" grep -q 'send_message *callers.c:' said; }
for name in name deep frames lines; do
	python3 "$here/trace.py" of trace "$work/callers" "$work/hostile/$name.so"
	check "$name.so is reported on" within "$tool" report --text trace
	named "$name.so"
	case $name in
	name) check "a name ends at 4 KiB" grep -q ' f(P<int, int>' said ;;
	frames)
		within "$tool" report --folded trace
		check "of 4000 inlined functions are 64 left" [ "$(tr ';' '\n' <said | grep -c 'f(P<')" = 63 ]
		;;
	*) check "a line says that it has no names" grep -q "No functions and lines from .*$name.so: reading took" <(xargs <said) ;;
	esac
done
python3 "$here/trace.py" of trace "$work/callers" "$work"/hostile/*.so
check "all of them at once" within "$tool" report --text trace
named "all of them"
check "in one line" [ "$(grep -c 'No functions and lines' said)" = 1 ]
within "$tool" report -o hostile/page trace
check "the page has it" grep -q 'No functions and lines from .*deep.so and 1 other file: reading took' <(sed 's/<wbr>//g' hostile/page)

# A trace of many processes, each of which takes a report more memory than it has bytes.
python3 - >crowd <<-'END'
	import struct, sys
	for pid in range(1 << 16):
	    sys.stdout.buffer.write(struct.pack("<8sHHIIIQQQQQQ", b"RDMAMRTR", 1, 1, 48, 24, pid, 1, 0, 0, 1, 1, 4096))
END
check "a report on a crowd of processes" within "$tool" report --json crowd
# shellcheck disable=SC2016
little_memory() { bash -c 'ulimit -v 60000; exec "$@"' - "$@" >said 2>&1; }
little_memory "$tool" report --json crowd
is "without the memory for it: its status" 2 $?
check "and a line" grep -q "was killed. It may use .*iB of memory" said

# Modules that lie elsewhere.
elsewhere() { check "$1: which a line says" grep -q 'No functions and lines from .*: not on a file system of this machine' <(xargs <said); }
mkdir -m 755 -p there/mounted
cp hostile/name.* there
cp hostile/name.* there/mounted
python3 "$here/trace.py" of trace "$work/callers" "$work/there/name.so"
own_mounts() { quietly unshare --mount --propagation private python3 "$@"; }
if ! unshare --mount true 2>/dev/null || [ ! -c /dev/fuse ]; then
	skip "modules on a file system that does not answer" "unshare is refused, or there is no /dev/fuse"
else
	for path in there there/name.so; do
		check "a module is not waited for: FUSE on $path" own_mounts "$here/silent_fuse.py" "$path" "$tool" report --text trace
		named "FUSE on $path"
		elsewhere "FUSE on $path"
	done
	slowly() { timeout -s KILL 300 "$@" >said 2>&1; }
	check "on request it is, and not for ever" slowly unshare --mount --propagation private \
		python3 "$here/silent_fuse.py" there "$tool" report --text --modules=any trace
	named "FUSE on request"
	check "a line says that it took too long" grep -q 'No functions and lines from .*name.so: reading took' <(xargs <said)
fi
if ! unshare --mount true 2>/dev/null || ! grep -qw autofs /proc/filesystems && ! modprobe autofs4 2>/dev/null; then
	skip "modules in the folder of an automounter" "unshare is refused, or the kernel has no autofs"
else
	install -m 755 "$tool" there.tool
	chmod 644 trace
	for who in 0 $user; do
		check "nothing is mounted for a report of user $who" own_mounts "$here/silent_autofs.py" "$work/there" \
			setpriv --reuid $who --clear-groups "$work/there.tool" report --text trace
		named "automounter, user $who"
		elsewhere "automounter, user $who"
	done
	python3 "$here/trace.py" of trace "$work/callers" "$work/there/mounted/name.so"
	check "what is mounted there is read for a user" own_mounts "$here/silent_autofs.py" "$work/there" \
		setpriv --reuid $user --clear-groups "$work/there.tool" report --text trace
	check "its names are known" grep -q ' f(P<int, int>' said
fi
rm -rf hostile there* trace
mv kept.trace trace

# A trace may lack the blocks that name its programs.
python3 "$here/trace.py" job folder "$work/callers" "$work/libcallers.so"
python3 - folder/* <<-'END'
	import struct, sys
	for name in sys.argv[1:]:
	    content, at, kept = open(name, "rb").read(), 0, b""
	    while at < len(content):
	        kind, header, length = struct.unpack_from("<HII", content, at + 10)
	        kept += content[at:at + header + length] if kind != 1 else b""
	        at += header + length
	    open(name, "wb").write(kept)
END
check "a job whose programs are not known" quietly "$tool" report --text folder
rm -f callers* libcallers.so split

# Names that control a terminal.
name=$'x\e]0;title\a\e[31m\e[2J\xe2\x80\xae\xe2\x81\xa6\xc2\x9b2J\nforged'
touch "$name"
clean() { # words in UTF-8, without characters that control or turn text, but colours and white space; no line of a name's own
	[ -s said ] && iconv -f UTF-8 said >/dev/null && ! grep -q '^forged' said &&
		[ -z "$(sed -E 's/\x1b\[([0124]|3[1236])m|[\r\t]//g' said | LC_ALL=C.UTF-8 grep -P '[\p{Cc}\p{Cf}]' 2>&1)" ]
}
on_terminal() { # COMMAND...: its output, as a terminal gets it
	SHELL=$BASH timeout -s KILL 20 script -qec "$(printf '%q ' "$@")" /dev/null >said </dev/null
}
for option in report "report --text" "report --json" "report --diff x" "report -o" "report --" run "run --" "run --trace" "run --cache" "run --report -- true" \
	"run --trace x -- true" "run --stats x" top "top --textfile" "top --once --sort" explain "explain --" "explain --key 1 --trace" "explain --key" \
	doctor "doctor --json" "doctor --" bench "bench x --sizes" "bench x --kinds" "trace --pid" "trace --pid $$ -o" "trace --pid $$ --on" completions fence \
	"--help" "" "--"; do
	on_terminal "$tool" $option "none/$name"
	check "a name controls no terminal: $option" clean
	on_terminal "$tool" $option "--none/$name"
	check "nor as an option: $option" clean
done
printf '%s\n' "$name: Cannot allocate memory" "$name" >pasted
for input in pasted "$name"; do
	cp pasted "$input" 2>/dev/null
	on_terminal bash -c '"$1" explain - <"$2"' - "$tool" "$input"
	check "nor on standard input: $input" clean
done
for variable in RDMAMR_LIBRARY XDG_RUNTIME_DIR TMPDIR PATH container; do
	for option in doctor "doctor --json" --version "run --trace new.trace -- true" "run --stats -- true" "explain ENOMEM"; do
		on_terminal env "$variable=$name" "$tool" $option
		check "nor in a variable: $variable, $option" clean
	done
done
cp trace "$name"
on_terminal "$tool" report "$name"
check "nor as a trace that is reported on" clean
on_terminal "$tool" report -o "$name.html" trace
check "nor as a page" clean
on_terminal "$tool" explain --trace "$name" --key 1
check "nor as one in which a key is looked up" clean

# Running processes of users.
. "$here/holds.sh"
mkdir bin
cp "$holds" bin/holds
cp "$library" bin/librdmamr.so.1
chmod -R a+rX bin
holder() { exec setpriv --reuid "$1" --regid "$1" --clear-groups env -u XDG_RUNTIME_DIR LD_PRELOAD="$work/bin/librdmamr.so.1" "$work/bin/${2:-holds}"; } # USER [FILE]
records() { traced victim "$victim" "$@"; } # OPTION...
start victim holder $user
victim=$pid
ask victim "register 1" >/dev/null
size=$(stat -c %s /dev/shm/rdmamr-$user/*-*-*)
check "root has a user's process record into the user's folder" records --on -o "$work/theirs/good.trace"
check "the trace is the user's alone" [ "$(stat -c '%a %u' theirs/good.trace)" = "600 $user" ]
check "and stops" records --off
check "again into the same file" records --for 1 -o "$work/theirs/good.trace"
check "root makes no file of a user's in root's folder" fails records --on -o "$work/roots/new.trace"
check "none" [ -z "$(ls -A roots)" ]
as $other sh -c 'umask 0; : >shared/first.trace'
exec {reader}<shared/first.trace
check "the file that another user made first gets no trace" fails records --on -o "$work/shared/first.trace"
ask victim "again 100" >/dev/null
check "that user reads nothing" [ "$(stat -Lc %s /dev/fd/$reader)" = 0 ]
check "and keeps it" [ "$(stat -c %u shared/first.trace)" = $other ]
: >roots/empty
ln roots/empty shared/second.trace
check "a hard link to root's file is refused" fails records --on -o "$work/shared/second.trace"
check "root's file stays root's" [ "$(stat -c %u roots/empty)" = 0 ]
rm -rf shared/* roots/*
check "a user's link to a folder is not followed with root's rights" fails records --on -o "$work/theirs/link/new.trace"
check "there is no file" [ -z "$(ls -A roots)" ]

# The process executes another program, which may be set-gid, when the tool has found it.
${CC:-cc} -shared -fPIC -o meanwhile.so -x c - <<-'END'
	#define _GNU_SOURCE
	#include <dlfcn.h>
	#include <signal.h>
	#include <stdlib.h>

	sighandler_t signal(int number, sighandler_t handler)
	{
		sighandler_t (*next)(int, sighandler_t) = dlsym(RTLD_NEXT, "signal");

		unsetenv("LD_PRELOAD");
		if (number == SIGINT && system(getenv("MEANWHILE")))
			abort();
		return next(number, handler);
	}
END
for right in g+s g-s; do
	install -m 755 bin/holds bin/changes
	start changes holder $user changes
	ask changes "register 1" >/dev/null
	mkdir -m 770 of_group
	case $right in g+s) chgrp $other of_group ;; *) chown $user of_group ;; esac
	meanwhile="chgrp $other bin/changes; chmod $right bin/changes; echo exec >changes.in; while grep -q rdmamr- /proc/$pid/maps; do sleep 0.1; done"
	quietly env LD_PRELOAD="$work/meanwhile.so" MEANWHILE="$meanwhile" "$tool" trace --pid $pid --on -o of_group/x.trace
	check "root takes on no identity of a program that the process executes meanwhile: $right, $(tail -1 said)" [ -z "$(ls -A of_group)" ]
	check "which is said" grep -qE "has executed another program|more than one user or group" said
	kill -9 $pid
	rm -r of_group
done

# The folder of a trace becomes a link to root's folder, again and again, while root stops the trace.
as $user mkdir theirs/real theirs/folder
check "a trace begins" records --on -o "$work/theirs/folder/x.conf"
as $user sh -c 'mv theirs/folder/x.conf theirs/real/; rmdir theirs/folder; ln -s real theirs/folder'
(exec setpriv --reuid $user --clear-groups /usr/bin/python3 - "$work/roots") <<-'END' &
	import itertools, os, sys, time
	os.chdir("theirs")
	ends = time.monotonic() + 300
	for target in itertools.cycle(["real", sys.argv[1]]):
	    os.symlink(target, "next")
	    os.rename("next", "folder")
	    if time.monotonic() > ends:
	        break
END
flipping=$!
held+=($flipping)
for _ in $(seq 10); do records --off; done
kill -9 $flipping
check "stopping a trace writes nothing into root's folder" [ -z "$(ls -A roots)" ]
kill -9 "$victim"

# A process in a mount namespace of the user's own is seen without a path in it, and by the user.
install -m 755 "$tool" bin/rdmamr
# shellcheck disable=SC2016
start own setpriv --reuid $other --regid $other --clear-groups env -u XDG_RUNTIME_DIR unshare --user --map-current-user --keep-caps --mount \
	bash -c 'mount -t tmpfs none /dev/shm && LD_PRELOAD=$1 exec "$0"' "$work/bin/holds" "$work/bin/librdmamr.so.1"
own=$pid
sees() { grep -A4 "\"pid\": $own," | grep -q '"user": '$other; }
if unshare --user --mount true 2>/dev/null; then
	ask own "register 3" >/dev/null
	check "root sees a process that has mounts of its own" sees < <("$tool" top --json)
	check "and so does its user" sees < <(as $other bin/rdmamr top --json)
	check "and no other" fails sees < <(as $user bin/rdmamr top --json)
else
	skip "a process that has mounts of its own" "unshare is refused"
fi
kill -9 $own

# The kernel cuts a name inside a character.
cp bin/holds bin/éééééééé
start named holder $other éééééééé
ask named "register 3" >/dev/null
check "a process whose name is no UTF-8 is seen" grep -q "\"pid\": $pid," <("$tool" top --json)
kill -9 $pid

# Mounts of a user. A file in the place of a page is opened only if it is a page.
mounted() { # NAME COMMAND...: a process with mounts of its own, in whose /dev/shm the command has made something
	unshare --mount --propagation private bash -c 'mount -t tmpfs none /dev/shm && "$@" && echo ready && exec sleep 1000' - "${@:2}" >ready.$$ 2>&1 &
	pid=$!
	held+=($pid)
	! awaits grep -q ready ready.$$ || return 0
	fail "$1" "$(cat ready.$$)"
	return 1
}
if ! unshare --mount true 2>/dev/null; then
	skip "mounts of a user" "unshare is refused"
	tap_done
	exit
fi
mkfifo pipe
# shellcheck disable=SC2016
if mounted "a pipe in the place of a page" sh -c 'mkdir -m 700 /dev/shm/rdmamr-0 && touch /dev/shm/rdmamr-0/1-2-3 && mount --bind pipe /dev/shm/rdmamr-0/1-2-3'; then
	check "top opens no pipe in the place of a page" not_opened pipe timeout -s KILL 20 "$tool" top --json
	kill -9 $pid
fi
if [ ! -c /dev/fuse ]; then
	skip "a file system that does not answer" "no /dev/fuse"
elif mounted "a file system that does not answer" python3 "$here/silent_fuse.py" /dev/shm setpriv --pdeathsig KILL sh -c 'echo ready; exec sleep 1000'; then
	"$tool" top --json >said &
	top=$!
	check "top waits for no file system of a user" awaits fails kill -0 $top
	kill -9 $pid $top 2>/dev/null
	wait $top
fi

# The machine's own mounts can be a user's, over a folder or a file of his (fusermount3). Here they are those
# of a namespace, in which root runs the tool.
start victim holder $user
victim=$pid
ask victim "register 1" >/dev/null
page=$(echo /dev/shm/rdmamr-$user/*-$victim-*)
as $user mkdir theirs/runtime
silent() { # PLACE COMMAND...: runs a command where a file system that does not answer is at a place
	unshare --mount --propagation private sh -c 'mount -t tmpfs none /run && mkdir -p "$0" && exec "$@"' /run/user/$user \
		python3 "$here/silent_fuse.py" "$1" setpriv --pdeathsig KILL "${@:2}" >ready.$$ 2>&1 &
	pid=$!
	held+=($pid)
}
ends_in_them() { # NAME COMMAND...: in the mounts of the process $pid
	nsenter --mount --target $pid --wdns="$work" "${@:2}" >said 2>&1 &
	local command=$!
	check "$1" awaits fails kill -0 $command
	kill -9 $command 2>/dev/null
}
if [ ! -c /dev/fuse ]; then
	skip "mounts of a user where root runs the tool" "no /dev/fuse"
	skip "a process that does not answer" "no /dev/fuse"
else
	for place in /run/user/$user "$page" "$work/theirs/runtime"; do
		silent "$place" sh -c 'echo ready; exec sleep 1000'
		check "a user's file system is mounted: $place" awaits grep -q ready ready.$$
		ends_in_them "top waits for none of a user's that is mounted here" env XDG_RUNTIME_DIR="$work/theirs/runtime/deep" "$tool" top --json
		# Where the file of the page is covered, its mapping leads to it.
		check "and shows the user's process" grep -q "\"pid\": $victim," said
		ends_in_them "nor does trace --pid" "$tool" trace --pid $victim --off
		kill -9 $pid
		wait $pid 2>/dev/null
	done

	# Processes whose memory maps stay locked, and a folder that does.
	cp "$page" page
	chmod 644 page
	truncate -s 4096 silent
	silent_user() { # USER ARGUMENT...
		silent "$work/silent" setpriv --reuid "$1" --regid "$1" --clear-groups python3 "$here/silent_process.py" "$work/silent" "/dev/shm/rdmamr-$1" "${@:2}"
		holder=$pid pid=$$
		awaits grep -qx ready ready.$$
	}
	end_silence() { kill -9 $(</proc/$holder/task/$holder/children) $holder; } # pgrep(1) would wait too
	asking() { grep -lxE '[0-9a-f]+:[0-9a-f]+' /proc/[0-9]*/comm 2>/dev/null | wc -l; }
	none() { [ "$(asking)" = 0 ]; }
	silent_user $other "$work/page" 6
	six() { [ "$(grep -cx '[0-9]*' ready.$$)" = 6 ]; }
	check "six processes lock their memory maps" awaits six
	silent_ones=$(grep -x '[0-9]*' ready.$$)
	ends_in_them "top waits for none of them" "$tool" top --json
	check "it shows that they do not answer" python3 - said $victim $silent_ones <<-'END'
		import json, sys
		processes = {p["pid"]: p for p in json.load(open(sys.argv[1]))["processes"]}
		victim, *silent = map(int, sys.argv[2:])
		assert processes[victim]["library"] and not processes[victim]["no_answer"]
		assert all(processes[pid]["no_answer"] and processes[pid]["command"] == "python3" for pid in silent), silent
	END
	ends_in_them "nor does the table" "$tool" top --once
	check "which shows it too" [ "$(grep -c '(does not answer)' said)" = 6 ]
	ends_in_them "trace --pid waits for none either" "$tool" trace --pid ${silent_ones%%[^0-9]*} --off
	check "and says so" grep -q "does not answer" said
	end_silence
	# A folder of all users, whose lock any of them can keep.
	# shellcheck disable=SC2016
	unshare --mount --propagation private sh -c 'mount -t tmpfs -o mode=1777 none /dev/shm && install -d -m 700 -o "$0" /dev/shm/rdmamr-"$0" && exec "$@"' \
		$user python3 "$here/silent_fuse.py" "$work/silent" setpriv --reuid $other --regid $other --clear-groups --pdeathsig KILL \
		python3 "$here/silent_process.py" "$work/silent" /dev/shm >ready.$$ 2>&1 &
	shared=$!
	held+=($shared)
	check "a user keeps /dev/shm locked" awaits grep -qx ready ready.$$
	sleep 1
	start inside nsenter --mount --target $shared setpriv --reuid $user --regid $user --clear-groups env -u XDG_RUNTIME_DIR LD_PRELOAD="$work/bin/librdmamr.so.1" "$work/bin/holds"
	inside=$pid
	is "a program whose user has a folder there registers" "done" "$(ask inside "register 1")"
	pid=$shared
	ends_in_them "top ends" "$tool" top --once
	check "it says what does not answer" grep -qx "/dev/shm does not answer: a user keeps the kernel's lock of it" said
	check "and shows processes by the mapping of their page" grep -q "^ *$inside " said
	check "blaming no user" fails grep -q "folders of user" said
	check "one child is left behind" [ "$(asking)" = 1 ]
	ends_in_them "that of the user does too" setpriv --reuid $user --regid $user --clear-groups env -u XDG_RUNTIME_DIR bin/rdmamr top --once
	check "and shows the user's process" grep -q "^ *$inside " said
	ends_in_them "so does doctor" "$tool" doctor
	check "which says so too" grep -q "live page *: /dev/shm does not answer" said
	ends_in_them "and trace --pid" "$tool" trace --pid $inside --off
	check "which asks the process" grep -q "stops recording" said
	kill -9 $inside
	holder=$shared pid=$$
	end_silence
	check "which ends with the lock" awaits none
	third=$((63000 + $$ % 1000))
	silent_user $third
	for run in first second third; do
		ends_in_them "top waits for no folder of a user: the $run run" "$tool" top --once
		check "and says so, run by run" grep -qx "the folders of user $third do not answer" said
		check "and leaves one child behind, whatever the number of runs" [ "$(asking)" = 1 ]
	done
	# What root names there may wait where no signal ends it: the tool's child does, and the tool itself ends.
	locked=/dev/shm/rdmamr-$third/page
	"$tool" report --text $locked >said 2>&1 &
	limited() { [ "$(awk '/Max address space/ { print $4 }' "/proc/$(pgrep -P $!)/limits")" -ge $((1 << 30)) ]; }
	check "root's report has a limit of memory" awaits limited
	kill $!
	wait $!
	for command in "report --text $locked" "explain --key 5 --trace $locked" "report -o $locked trace"; do
		ends_in_them "a signal ends ${command% /*} in a folder that stays locked" timeout 2 "$tool" $command
		check "which says that the child is left behind" grep -q "a folder of another user is locked" said
	done
	check "the child that is left behind has no lock of the caller's" fails flock -n trace timeout 2 "$tool" report --text $locked
	check "nor has it later" flock -n trace true
	end_silence
	check "which ends with what it waits for" awaits none
	rm -rf /dev/shm/rdmamr-$other /dev/shm/rdmamr-$third
fi
kill -9 $victim

# A folder for pages that another user has made first.
rm -rf /dev/shm/rdmamr-$user
as $other mkdir -m 700 /dev/shm/rdmamr-$user
(exec setpriv --reuid $user --regid $user --clear-groups sleep 1000) &
pid=$!
held+=($pid)
why="/dev/shm/rdmamr-$user belongs to user $other"
in_tmp() { # OPTION COMMAND...: where /tmp is a tmpfs, with these options
	unshare --mount --propagation private sh -c 'mount -t "$0" none /tmp && exec "$@"' "$@"
}
says_who() { in_tmp ramfs bin/rdmamr top --once | grep -qx "$why: processes of user $user have no live page; root can remove it"; }
check "top says who has made the folder of a user's pages" awaits says_who
check "unless there is another folder for them" fails grep -q "$why" <(in_tmp tmpfs bin/rdmamr top --once)
check "doctor says so too" grep -q "live page *: $why" <(in_tmp ramfs setpriv --reuid $user --clear-groups env -u XDG_RUNTIME_DIR bin/rdmamr doctor)
kill -9 $pid

mkdir -m 700 /dev/shm/rdmamr-$other
chown $other /dev/shm/rdmamr-$other
check "top looks into no folder of a user without a process" not_opened /dev/shm/rdmamr-$other "$tool" top --json

# A mapping in the place of a page, in a mount namespace: of a file that is on a disk, and of one on a tmpfs.
for folder in "$work" /dev/shm; do
	file=$folder/mapped.$$
	truncate -s "$size" "$file"
	chmod 600 "$file"
	unshare --mount python3 "$here/maps_file.py" "$file" >ready.$$ 2>&1 &
	pid=$!
	held+=($pid)
	check "a file is mapped: $file" awaits grep -qx ready ready.$$
	case $folder in
	/dev/shm) check "top opens a file on a tmpfs" python3 "$here/opened.py" "$file" "$tool" top --json ;;
	*) check "top opens no file that is on no tmpfs" not_opened "$file" "$tool" top --json ;;
	esac
	kill -9 $pid
	rm "$file"
done
tap_done
