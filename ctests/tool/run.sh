#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# run.sh TOOL LIBRARY [DEVICE GID_INDEX]: the programs that "rdmamr run" starts, their environment,
# and the programs that it refuses. With a device, instead, another project's program on that
# device.
# shellcheck disable=SC2016,SC2086 # variables of inner shells, and words
. "$(dirname "$0")/../lib/script.sh"
tool=$1 library=$2
chmod 755 "$work"
cd "$work" || exit 1
export RDMAMR_LIBRARY=$library
unset LD_PRELOAD LD_AUDIT

run() { "$tool" run "$@"; }
# Prints the output of a command, and the status of its last process.
status_of() {
	local output status
	output=$("$@" 2>&1)
	status=$?
	echo "${output:+$output
}status $status"
}
gives() { is "$1" "$2" "$(status_of "${@:3}")"; } # NAME WANTED COMMAND...: its whole output and status
refused() { check "$1" ends_with "$2" "^rdmamr: .*$3" run "${@:4}"; } # NAME STATUS WORDS COMMAND...

if [ -n "${3:-}" ]; then
	pingpong() { timeout 600 "$tool" run "$@" ibv_rc_pingpong -d "$device" -g "$gid" -n 100 localhost; }
	device=$3 gid=$4
	timeout 600 "$tool" run --stats=server --trace server.trace -- ibv_rc_pingpong -d "$device" -g "$gid" -n 100 >server.out 2>&1 &
	server=$!
	until grep -qsi ":$(printf %X 18515) " /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
	pingpong --stats=client -- >client.out 2>&1
	status=$?
	wait $server
	check "ibv_rc_pingpong runs between two launchers" bash -c '[ "$1" = 0 ] && [ "$2" = 0 ] && grep -q "100 iters" client.out' - $status $?
	for side in server client; do
		check "the library made the registrations of the $side" grep -q '"reg_kernel":[1-9].*"live":0,' <<<"$(tail -1 $side)"
	done
	# The server's region is its trace's first one. tool/src/explain/key.rs has all answers.
	"$tool" report --perfetto -o calls server.trace
	read -r key addr length < <(python3 -c 'import json
call = next(it["args"] for it in json.load(open("calls"))["traceEvents"] if it.get("args", {}).get("lkey"))
print(call["lkey"], call["addr"], call["length"])')
	check "explain --trace knows the server's region" grep -q ": $length bytes at $addr, local_write.*ends 1 byte beyond the region\\." \
		<("$tool" explain --trace server.trace --key "$key" --addr "$addr" --length $((length + 1)) | tr -s ' \n' ' ')
	tap_done
	exit
fi

# The program's own end.
gives "the exit status is the program's" "status 7" run sh -c 'exit 7'
gives "the output too, and arguments are left alone" $'-x --stats a  b\nstatus 0' run -- echo -x --stats 'a  b'
gives "without -- options behind the program are the program's" $'-x --stats\nstatus 0' run echo -x --stats
gives "standard input is the program's" $'words\nstatus 0' bash -c 'echo words | "$1" run cat' - "$tool"
# The launcher gets a signal while the program runs, which dies of it or catches it.
signalled() { # SIGNAL dies|catches OPTION...
	local name="SIG$1 to the launcher${3:+, with $3}: the program $2" wanted="5 caught" pid status
	[ "$2" = catches ] || wanted="$((128 + $(kill -l "$1"))) "
	rm -f started
	"$tool" run "${@:3}" -- perl -e '$SIG{$ARGV[0]} = $ARGV[1] eq "dies" ? "DEFAULT" : sub { print "caught\n"; exit 5 } if $ARGV[0] ne "KILL";
		open F, ">started"; close F; sleep 600' "$1" "$2" >caught 2>/dev/null &
	pid=$!
	awaits [ -e started ]
	kill "-$1" $pid
	wait $pid 2>/dev/null
	status=$?
	check "$name" [ "$status $(cat caught)" = "$wanted" ]
}
for signal in TERM INT KILL; do signalled $signal dies; done
signalled TERM catches
for signal in TERM INT QUIT; do signalled $signal catches --report; done
for option in "" --report; do
	died=$(python3 -c '
import subprocess, sys
print(subprocess.run([*filter(None, sys.argv[1:]), "sh", "-c", "kill -SEGV $$"], stderr=subprocess.DEVNULL).returncode)' "$tool" run $option)
	check "a program that dies of a signal of its own does so for the caller: $died $option" [ "$died" = -11 ]
done
ignored() { grep SigIgn /proc/self/status; }
check "ignored signals stay ignored, and others do not" [ "$(run grep SigIgn /proc/self/status)" = "$(ignored)" ]
check "SIGPIPE too" [ "$(trap '' PIPE; run grep SigIgn /proc/self/status)" = "$(trap '' PIPE; ignored)" ]
check "the process is the same" [ "$(bash -c 'echo $$; exec "$1" run sh -c "echo \$\$"' - "$tool" | uniq | wc -l)" = 1 ]

# The environment.
has() { check "$1" grep -xF -- "$2" <<<"$("${@:3}" 2>/dev/null)"; } # NAME LINE COMMAND...: its output has the line
module=${library%/*}/librdmamr-audit.so
# OPTIONS | A LINE OF THE ENVIRONMENT
while IFS='|' read -r options line; do
	has "rdmamr run $options: $line" "$line" run $options env
done <<-ROWS
	--cache=local|RDMAMR_CACHE=local
	--cache all|RDMAMR_CACHE=all
	--prefault 2|RDMAMR_PREFAULT=2
	--progress|RDMAMR_PROGRESS=1
	--monitor libfabric|RDMAMR_MONITOR=libfabric
	--log info|RDMAMR_LOG=info
	--stats|RDMAMR_STATS=table
	--stats=json|RDMAMR_STATS=stderr
	--stats=stats|RDMAMR_STATS=$work/stats
	--trace trace|RDMAMR_TRACE=$work/trace
	--trace trace --trace-limit 1M|RDMAMR_TRACE_LIMIT=1048576
ROWS
has "the user's settings stay" RDMAMR_LOG=debug env RDMAMR_LOG=debug "$tool" run env
has "--no-audit leaves it out" 0 run --no-audit bash -c 'env | grep -c ^LD_AUDIT'
for file in "$module" "$library"; do has "loaded: ${file##*/}" "$file" run bash -c 'awk "/librdmamr/ { print \$6 }" /proc/$$/maps'; done
check "nothing else is set" [ "$(run env | grep -c ^RDMAMR_)" = 0 ]
"${CC:-cc}" -I"$here/../../include" "$here/../packages/consumer.c" "$here/../lib/tap.c" -o failing "$library" -libverbs
check "--stats prints a table of at most 80 columns, and no JSON" bash -c '[ "$(wc -l <<<"$1")" -ge 4 ] && [ "$(wc -L <<<"$1")" -le 80 ] && grep -q "^  registered  *0  *0  *1$" <<<"$1" && ! grep -q "{" <<<"$1"' - "$(run --stats ./failing 2>&1 >/dev/null)"
check "--stats=json prints a line of JSON" grep -q '^{"reg_kernel":0,.*}$' <<<"$(run --stats=json ./failing 2>&1 >/dev/null)"
run --stats=stats ./failing >/dev/null
check "--stats=FILE: the library has written it" grep -q reg_kernel stats

# Programs that register nothing, and those that end early: one line says so.
none='rdmamr: no call is recorded: the program has registered no memory, or its trace could not be written'
die='kill $$'
gives "a trace of nothing" "$none"$'\nstatus 0' run --trace none true
gives "of a program that a signal ends" $'rdmamr: SIGTERM ended the program\n'"$none"$'\nstatus 143' run --trace none sh -c "$die"
gives "statistics of nothing, and none of its children" $'rdmamr: process N has no statistics: it registered nothing\nstatus 0' \
	bash -c 'set -o pipefail; "$1" run --stats bash -c "/bin/true; exit 0" 2>&1 | sed "s/process [0-9]*/process N/"' - "$tool"
check "of a program that a signal ends" grep -q '^rdmamr: SIGINT ended the program, without its statistics$' \
	<<<"$(run --stats perl -e '$SIG{INT} = "DEFAULT"; kill INT => $$' 2>&1)"
gives "of one that leaves by _exit" $'rdmamr: the program has no statistics: it left by _exit, or ended as another program without the library\nstatus 3' \
	run --stats perl -e 'use POSIX; POSIX::_exit(3)'
mkdir temporary
TMPDIR=$work/temporary run --stats sh -c "$die" 2>/dev/null
check "nothing stays in TMPDIR" rmdir temporary
cp /bin/true busy
gives "a program that cannot run has its reason without a number" $'rdmamr: ./busy: Text file busy\nstatus 126' run ./busy 9>>busy
gives "and no line about statistics" "$(status_of run ./busy 9>>busy)" run --stats ./busy 9>>busy

# Traces.
block() { printf 'RDMAMRTR and %s' "$1"; }
rm -f started
"$tool" run --trace trace -- sh -c 'printf "RDMAMRTR and a new block" >>"$RDMAMR_TRACE"; : >started; until [ -e over ]; do sleep 0.1; done' 2>/dev/null &
awaits [ -e started ]
run --trace trace true 2>/dev/null
check "a trace that another program is writing is shared" grep -qs "new block" trace
: >over
wait $!
run --trace trace true 2>/dev/null
check "and replaced when that has ended" bash -c '! grep -qs "new block" trace'
check "of a program that cannot write its trace, after the library's reason" bash -c '[[ "$1" == *"RDMAMR_TRACE: cannot be written, tracing stops: "*$'"'\n'"'"$2" ]]' - \
	"$(trap '' XFSZ; ulimit -f 0; run --trace full -- ./failing 2>&1 >/dev/null)" "$none"
gives "a trace that is gone is an error of its own" "rdmamr: the trace cannot be read: $work/lost: it cannot be opened: No such file or directory
status 0" run --trace lost rm lost
counted() { run --trace each/%p -- ./failing 2>&1 >/dev/null | tail -1; }
found=$(counted)
check "the traces of other runs are not counted: $found" [ "$found" = "$(counted)" ]
check "the printed command can be copied" grep -qF "rdmamr report '$work/it'\\''s a trace'" <<<"$(run --trace "it's a trace" ./failing 2>&1)"
check "--trace with %h and %r: the next command names the folder" \
	grep -q "next: rdmamr report $work/of$" <<<"$(RANK=3 "$tool" run --trace of/%h-%r -- ./failing 2>&1)"
check "in which the rank has a file" test -s "of/$(uname -n)-3"
mkdir gone
(cd gone && rmdir ../gone && RDMAMR_TRACE=x RDMAMR_STATS=y LD_PRELOAD=$library "$work/failing") >said 2>&1
check "in a deleted working directory a relative path is refused" [ "$(grep -c 'RDMAMR_.*no such value' said)" = 2 ]
exec {held}>locked
flock -x $held
refused "a trace that another program has locked" 125 "locked" --trace locked echo it ran
exec {held}>&-
echo "a year's work" >thesis
refused "a file that is no trace is not overwritten" 125 "not a trace" --trace thesis echo it ran
check "it is unchanged" [ "$(cat thesis)" = "a year's work" ]
block "an old block" >trace
refused "a program that does not exist" 127 "no program of that name" --trace trace nosuch
check "leaves the old trace unchanged" grep -q "old block" trace

# A report at the end.
check "--report ends as the program does" [ "$(status_of run --report -- sh -c './failing >/dev/null 2>&1; exit 7' | tail -1)" = "status 7" ]
check "and has written the page by the program's name, with the call that failed" bash -c 'grep -q "<html" sh.html && grep -q ibv_reg_mr sh.html'
run --report=page.html --trace kept -- ./failing >/dev/null 2>said
check "--report=PAGE, whose path is reported, and the trace stays" bash -c '[ -s page.html ] && [ -s kept ] && grep -q "^rdmamr: Not worth it: .* More: page.html$" said'
check "the trace is its user's alone" [ "$(stat -c %a kept)" = 600 ]
gives "a program that registers nothing has no report" "$none"$'\nstatus 0' run --report true
check "nor a page" [ ! -e true.html ]

# Refused options, and programs that cannot preload a library. NAME | STATUS | WORDS | ARGUMENTS
refused_all() {
	local name status words arguments
	while IFS='|' read -r name status words arguments; do
		refused "$name" "$status" "$words" $arguments
	done
}
echo text >text
printf '\0\1\2' >noise
chmod +x noise
refused_all <<-'ROWS'
	a page in a folder that is missing|125|--report=nowhere/page.html: No such file or directory|--report=nowhere/page.html echo it ran
	statistics in a folder that is missing|125|--stats=nowhere/stats: No such file or directory|--stats=nowhere/stats echo it ran
	a limit of no trace|125|needs --trace|--trace-limit 1M echo it ran
	neither a program nor a script|125|neither an ELF program nor a script|./noise
	a file that may not be executed|126|may not be executed|./text
	a directory|126|directory|./.
	a path that does not exist|127|No such file|./nosuch
ROWS
PATH=$PATH:$work refused "a name in PATH that may not be executed" 126 "may not be executed" text
for usage in --cache=some "--prefault 65" --nosuch "--trace none --trace-limit 10X"; do
	gives "wrong usage: $usage" "status 125" bash -c '"$0" run "$@" echo it ran 2>/dev/null' "$tool" $usage
done

echo 'int main(void) { return 0; }' >main.c
built() { "${CC:-cc}" main.c -o "$@" || fail "$1 is built"; }
built dynamic
built static -static
built static-pie -static-pie
built musl -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1
built elsewhere -Wl,--dynamic-linker=/nowhere/ld-linux-x86-64.so.2
built fixed -no-pie
# The header of 32 bits has another layout: only the machine is read from this one.
printf '\177ELF\1\1\1\0\0\0\0\0\0\0\0\0\2\0\3\0\1\0\0\0\0\0\0\0\64\0\0\0\0\0\0\0\0\0\0\0\64\0\40\0\0\0\50\0\0\0\0\0' >x86
printf '#!%s/static\n' "$work" >script
printf '#!/usr/bin/env static\n' >by-env
printf '#!%s/script\n' "$work" >nested
printf '#!/nowhere/sh\n' >orphan
printf '#!/bin/sh\necho it ran\n' >fine
echo 'echo it ran' >plain
chmod +x x86 script by-env nested orphan fine plain
PATH=$work:$PATH refused_all <<-ROWS
	static|125|statically linked|./static
	static and position-independent|125|statically linked|./static-pie
	musl|125|C library musl|./musl
	a loader that does not exist|125|does not exist|./elsewhere
	of another machine|125|built for x86, 32 bit|./x86
	a script with a static interpreter|125|script, run by $work/static: it is statically|./script
	one by env|125|it starts $work/static, and it is statically|./by-env
	a script run by a script|125|statically linked|./nested
	a script whose interpreter does not exist|125|/nowhere/sh does not exist|./orphan
ROWS
gives "a program at fixed addresses runs" "status 0" run ./fixed
gives "the loader itself, with a program" "status 0" run "$(ldd ./dynamic | sed -n 's/.*\(\/lib[0-9]*\/ld-linux[^ ]*\).*/\1/p')" ./dynamic
gives "a script" $'it ran\nstatus 0' run ./fine
gives "one without a first line for the kernel" $'it ran\nstatus 0' run ./plain

if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -r "$library" -a -x "$tool" 2>/dev/null; then
	privileged() { # NAME WORDS PROGRAM
		local found
		found=$(status_of "${nobody[@]}" "$tool" run "$3")
		check "$1: $(head -1 <<<"$found" | sed "s|$work/||g")" grep -Pzq "$2(.|\n)*status 125" <<<"$found"
	}
	cp dynamic suid && chmod 4755 suid
	cp dynamic sgid && chmod 2755 sgid
	privileged "set-uid" "set-uid \(to user 0\)" ./suid
	privileged "set-gid" "set-gid \(to group 0\)" ./sgid
	gives "by its owner it gains nothing" "status 0" run ./suid
	if cp dynamic capable && setcap cap_net_raw+ep capable 2>/dev/null; then
		privileged "file capabilities" "file capabilities" ./capable
		gives "root gains nothing by them" "status 0" run ./capable
	else
		skip "file capabilities" "this file system has none"
	fi
	chmod 711 dynamic
	gives "a program that may be executed and not read" "status 0" "${nobody[@]}" "$tool" run ./dynamic
else
	skip "programs with rights" "only root can make them, where others can reach the program"
fi

# Finding the library.
mkdir -p prefix/bin prefix/lib prefix/opt 'with space'
cp "$tool" prefix/bin/
gives "nowhere: it prints the places that it searched" "status 125" bash -c 'env -u RDMAMR_LIBRARY "$1/prefix/bin/rdmamr" run true >said 2>&1' - "$work"
check "beside itself, and in the linker's cache" grep -Pzq '(?s)prefix/lib/librdmamr.so.1\n.*ldconfig -p' said
cp "$library" prefix/lib/librdmamr.so.1
has "in its own prefix" "LD_PRELOAD=$work/prefix/lib/librdmamr.so.1" env -u RDMAMR_LIBRARY prefix/bin/rdmamr run env
gives "without the module it says so" "rdmamr: librdmamr-audit.so is not in $work/prefix/lib: functions that the program looks up in libibverbs by dlsym bypass the library (--no-audit: accept that)
status 0" env -u RDMAMR_LIBRARY prefix/bin/rdmamr run true
gives "nothing with --no-audit" "status 0" env -u RDMAMR_LIBRARY prefix/bin/rdmamr run --no-audit true
mkdir prefix/lib/rdmamr
cp "$module" prefix/lib/rdmamr/
has "the module is in a folder beside the library" "LD_AUDIT=$work/prefix/lib/rdmamr/librdmamr-audit.so" env -u RDMAMR_LIBRARY prefix/bin/rdmamr run env
echo none >prefix/lib/rdmamr/librdmamr-audit.so
has "a file that is no module is ignored" 0 env -u RDMAMR_LIBRARY prefix/bin/rdmamr run bash -c 'env | grep -c ^LD_AUDIT'
mv prefix/lib/librdmamr.so.1 prefix/opt/
has "in LD_LIBRARY_PATH" "LD_PRELOAD=$work/prefix/opt/librdmamr.so.1" env -u RDMAMR_LIBRARY LD_LIBRARY_PATH=prefix/opt prefix/bin/rdmamr run env
has "RDMAMR_LIBRARY, relative" "LD_PRELOAD=$work/prefix/opt/librdmamr.so.1" env RDMAMR_LIBRARY=prefix/opt/librdmamr.so.1 "$tool" run env
RDMAMR_LIBRARY=nosuch refused "RDMAMR_LIBRARY of nothing" 125 "RDMAMR_LIBRARY=.*No such file" true
RDMAMR_LIBRARY=/etc/passwd refused "RDMAMR_LIBRARY of no library" 125 "not a shared library" true
RDMAMR_LIBRARY=$(ldconfig -p | sed -n "s|.*libm.so.6 (libc6,.* => ||p" | head -1) \
	refused "RDMAMR_LIBRARY of another library" 125 "another library than librdmamr.so.1: its DT_SONAME is" true
strip -o prefix/opt/stripped.so "$library"
has "RDMAMR_LIBRARY of any name, stripped" "LD_PRELOAD=$work/prefix/opt/stripped.so" env RDMAMR_LIBRARY=prefix/opt/stripped.so "$tool" run env
cp "$library" 'with space/librdmamr.so.1'
RDMAMR_LIBRARY='with space/librdmamr.so.1' refused "a path that LD_PRELOAD cannot hold" 125 "a space or a colon" true

# Help, colours, completions.
for command in '' run report doctor explain bench completions; do
	check "rdmamr $command --help has examples" grep -q "^Examples:" <("$tool" $command --help </dev/null)
done
check "a pipe gets no escape codes" bash -c '! { "$1" --help; "$1" run --nosuch; "$1" doctor; } 2>&1 | grep -q "$2"' - "$tool" $'\e'
on_terminal() { script -qec "'$tool' doctor; '$tool' run --nosuch" /dev/null </dev/null | grep -q $'\e\[[0-9;]*m'; }
if command -v script >/dev/null; then
	check "a terminal gets some" on_terminal
	NO_COLOR=1 check "not with NO_COLOR" fails on_terminal
else
	lacks "colours on a terminal" script
fi
for shell in bash zsh fish; do
	"$tool" completions $shell >completions.$shell
	check "completions for $shell name the subcommands and the errnos" \
		[ "$(grep -oE 'doctor|ENOMEM EFAULT' completions.$shell | sort -u | wc -l)" = 2 ]
	if command -v $shell >/dev/null; then
		check "$shell accepts them" $shell -n completions.$shell
	else
		lacks "$shell accepts them" "$shell"
	fi
done
# An error, neither a panic nor success.
gives "rdmamr doctor --json on a full disk" $'rdmamr: No space left on device\nstatus 2' bash -c '"$0" doctor --json >/dev/full' "$tool"
completed=$(bash -c '. ./completions.bash; COMP_WORDS=(rdmamr d) COMP_CWORD=1; _rdmamr rdmamr d rdmamr; echo "${COMPREPLY[*]}"')
check "bash completes d to $completed" [ "$completed" = doctor ]
tap_done
