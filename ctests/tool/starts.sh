#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# starts.sh TOOL LIBRARY BUILT [more]: programs of the distribution start under "rdmamr run" as they
# start without, by their output and exit status: with the cache off and with --cache=all. "more":
# those whose packages are large. vm/packages has their packages.
. "$(dirname "$0")/../lib/script.sh"
tool=$(realpath "$1") library=$(realpath "$2") built=$(realpath "$3") more=${4:-}
source=$here/starts
chmod 755 "$work"
cd "$work" || exit 1
unset LD_PRELOAD LD_AUDIT GLIBC_TUNABLES ASAN_OPTIONS "${!RDMAMR_@}"
# Another user must be able to read them.
mkdir own
cp "$library" own/librdmamr.so.1
cp "${library%/*}/librdmamr-audit.so" own/
cp "$tool" own/rdmamr
tool=$work/own/rdmamr library=$work/own/librdmamr.so.1
export RDMAMR_LIBRARY=$library

# Prints the output without the launcher's and the library's own lines, and the status. "lines" has
# those lines.
result() { # COMMAND...
	local status
	timeout 300 "$@" >said 2>errors </dev/null
	status=$?
	grep -h '^rdmamr: ' errors >lines
	cat said
	grep -v '^rdmamr: ' errors
	echo "status $status"
}
steady() { # COMMAND...: as result, without numbers of processes and addresses
	result "$@" | sed -E 's/==[0-9]+==//g; s/0x[0-9a-f]+/ADDRESS/g; s/(LWP|process|Process|pid) +[0-9]+/\1 N/g'
}
starts() { # NAME COMMAND...: the same without the tool, with it, and with the cache
	same "$1" "$(steady "${@:2}")" "${@:2}"
}
registers() { # NAME COMMAND...: which registers with the stand-in of a device. It serves the library alone.
	same "$1" $'registered\nstatus 0' "${@:2}" "$built/starts_registers"
}
same() { # NAME WANTED COMMAND...: the output and the status, and at most one line of the library or the tool
	local name=$1 bare=$2 found way
	shift 2
	for way in off all; do
		found=$(steady env -- "$tool" run --cache=$way -- "$@")
		if [ "$found" = "$bare" ] && [ "$(wc -l <lines)" -le 1 ]; then
			pass "$name, cache $way$(sed 's/^rdmamr: /: /;s/ (.*//' lines | head -c 60)"
		else
			fail "$name, cache $way" "wanted:" "$bare" "with the tool:" "$found" "$(cat lines)"
		fi
	done
}
has() { # PROGRAM...: each is installed; otherwise a failure names it
	local program status=0
	for program; do
		command -v "$program" >/dev/null || { fail "$program is installed (vm/packages starts)"; status=1; }
	done
	return $status
}
at() { # LIBRARY: its path. "*" stands for a part of the name.
	local path
	# shellcheck disable=SC2086
	for path in /usr/lib/*-linux-gnu*/$1 /usr/lib64/$1 /usr/lib/$1 /usr/lib/gcc/*/*/$1; do
		[ ! -e "$path" ] || { realpath "$path"; return; }
	done
	return 1
}
compiled() { # OUTPUT COMPILER [OPTION...]: of threads.c
	check "$1 is compiled by ${*:2}" "${@:2}" -w -O1 -g -x "$([[ $2 == *++ ]] && echo c++ || echo c)" "$source/threads.c" -x none -o "$1" -lpthread
}

# Sanitizers, as shared libraries and in the program.
sanitized() { # COMPILER_FOR_C COMPILER_FOR_C++
	local sanitizer compiler
	for sanitizer in address thread leak undefined; do
		for compiler; do
			has "$compiler" || continue
			compiled "${compiler}_$sanitizer" "$compiler" -fsanitize=$sanitizer && starts "$compiler -fsanitize=$sanitizer" "./${compiler}_$sanitizer"
		done
		starts "a shell that starts $1 -fsanitize=$sanitizer" sh -c "./${1}_$sanitizer; exit 4"
		starts "$1 -fsanitize=$sanitizer with children" "./${1}_$sanitizer" 'perl -e "exit 6"'
	done
}

if [ -n "$more" ]; then
	sanitized clang clang++
	has node && starts "node" node -e 'console.log(process.argv.length); process.exit(4)'
	has node && starts "node with a worker" node -e 'new (require("worker_threads").Worker)("process.exit(5)", { eval: true }).on("exit", code => process.exit(code))'
	has java && starts "java" java -XshowSettings:none -version
	has java && starts "java with small stacks" java -Xss200k -version
	has go && starts "go, by a shell" sh -c 'go version; exit 3'
	if has systemd-run && [ -d /run/systemd/system ]; then
		starts "a program that starts a service with a filter" systemd-run --quiet --wait --pipe -p SystemCallFilter=@system-service true
		# The service does not get the environment of systemd-run.
		check "a service with a filter, whose program registers" [ "$(systemd-run --quiet --wait --pipe -p SystemCallFilter=@system-service "$tool" run --cache=all "$built/starts_registers" 2>/dev/null)" = registered ]
	else
		skip "a service of systemd with a filter" "systemd does not run here"
	fi
	tap_done
	exit
fi

# Allocators, preloaded and linked, and in a child.
compiled threads gcc -DSMALL_STACK=PTHREAD_STACK_MIN
compiled threads_c++ g++
starts "a program in C" ./threads
starts "a program in C++" ./threads_c++
for allocator in libjemalloc.so.2 libtcmalloc_minimal.so.4 "libmimalloc.so.*" libtbbmalloc_proxy.so.2 libc_malloc_debug.so.0; do
	path=$(at "$allocator") || { fail "$allocator is installed (vm/packages starts)"; continue; }
	starts "$allocator preloaded" env LD_PRELOAD="$path" ./threads
	LD_PRELOAD=$path starts "$allocator preloaded by the user" ./threads_c++
	[ $allocator = libc_malloc_debug.so.0 ] || { compiled "of_$allocator" gcc "-Wl,--no-as-needed,$path" && starts "$allocator linked" "./of_$allocator"; }
	# Blocks of mappings of their own, before which nothing is mapped.
	TCMALLOC_SKIP_SBRK=true LD_PRELOAD=$path registers "$allocator beside registrations" env
done
gcc "-DFIRST=memory + 4" "$source/allocator.c" -o allocator && starts "an allocator whose blocks are aligned to 4 bytes" ./allocator
gcc -DFIRST=NULL "$source/allocator.c" -o late
check "one that a constructor makes ready, without the module" [ "$(LD_PRELOAD=$library ./late; echo $?)" = "$(./late; echo $?)" ]
if has redis-check-rdb; then
	# The same program, which another package calls by this name, and starts as a service.
	ln -s "$(command -v redis-check-rdb)" own/redis-server
	PATH=$work/own:$PATH
	starts "redis-server, which is linked to jemalloc" redis-server --version
	starts "a shell that starts it" sh -c 'redis-server --version; exit 5'
	printf '#!/bin/sh\nexec redis-server "$@"\n' >wrapper
	chmod 755 wrapper
	starts "a script that starts it" ./wrapper --version
	starts "without an environment of its own" env -i PATH="$PATH" redis-server --version
fi

sanitized gcc g++
starts "a script that sets the sanitizer's options" sh -c 'ASAN_OPTIONS=detect_leaks=0 ./gcc_address; exit 4'
starts "one that takes them away" env -u ASAN_OPTIONS ./gcc_address
for sanitizer in asan tsan lsan ubsan; do
	path=$(at lib$sanitizer.so) || { fail "lib$sanitizer.so is installed (vm/packages starts)"; continue; }
	LD_PRELOAD=$path starts "lib$sanitizer.so preloaded by the user" ./threads_c++
done
compiled static_address gcc -fsanitize=address -static-libasan && starts "AddressSanitizer in the program" ./static_address
compiled static_thread gcc -fsanitize=thread -static-libtsan && starts "ThreadSanitizer in the program" ./static_thread
gcc -g -fsanitize=address -o fault -x c - <<<'#include <stdlib.h>
	int main(void) { char *volatile block = malloc(10); free(block); return block[5]; }'
check "AddressSanitizer reports a fault" bash -c 'ASAN_OPTIONS=exitcode=9 "$1" run ./fault >report 2>&1; [ $? = 9 ] && grep -q heap-use-after-free report' - "$tool"

# A pipe that is full, and that nobody reads.
mkfifo full
exec 7<>full
dd if=/dev/zero bs=4096 oflag=nonblock of=full 2>/dev/null
check "no line waits for the reader of standard error: the module's" [ "$(timeout -s KILL 60 "$tool" run ./gcc_thread 2>&7; echo $?)" = "$(./gcc_thread; echo $?)" ]
check "the tool's, when the program has ended" [ "$(timeout -s KILL 60 "$tool" run --trace trace "$built/starts_registers" 2>&7; echo $?)" = $'registered\n0' ]
exec 7<&-

# Thread-local variables in the threads' static storage. A child has the environment as it was.
cat >large_tls.c <<'END'
__thread char storage[SIZE] __attribute__((tls_model("initial-exec")));
int large_tls(void) { return ++storage[SIZE - 1]; }
END
for size in 1000 6000 20000 60000; do
	gcc -shared -fPIC -DSIZE=$size large_tls.c -o liblarge_$size.so
	gcc "$source/uses_tls.c" -o uses_$size "$PWD/liblarge_$size.so"
	starts "a library with $size bytes of them" ./uses_$size
	starts "in a child" sh -c "./uses_$size; exit 3"
done
gcc -shared -fPIC -DSIZE=8200 large_tls.c -o liblarge_8200.so
compiled small_8200 gcc -DSMALL_STACK=24576 "-Wl,--no-as-needed,$PWD/liblarge_8200.so" && starts "8200 bytes of them, and a small stack" ./small_8200
module() { "$tool" run ./uses_"$1" show 2>&1 | tail -1; }
check "the module serves a program that needs 20000 bytes, and its children do not get its tunable" [ "$(module 20000)" = "module=1 tunable=" ]
check "not one that needs 60000" [ "$(module 60000)" = "module=0 tunable=" ]
check "which one line says" [ "$("$tool" run ./uses_60000 2>&1 | grep -c '^rdmamr: .*starts without: .* bypass the library$')" = 1 ]
check "nothing is said without the library" [ -z "$(LD_AUDIT=$work/own/librdmamr-audit.so ./uses_60000 2>&1 >/dev/null)" ]
check "what a user says stays" [ "$(GLIBC_TUNABLES=glibc.rtld.optional_static_tls=700 module 6000)" = "module=0 tunable=glibc.rtld.optional_static_tls=700" ]
check "also of other tunables" [ "$(GLIBC_TUNABLES=glibc.malloc.check=0 module 6000)" = "module=1 tunable=glibc.malloc.check=0" ]
check "a process keeps its name" [ "$("$tool" run ./uses_20000 show >/dev/null; cp "$(command -v sleep)" own/; LD_PRELOAD=$PWD/liblarge_20000.so "$tool" run sh -c 'exec sed -n 1p /proc/self/comm')" = sed ]

# A small root file system may lack /proc.
without_proc() { unshare --mount sh -c 'mount -t tmpfs none /proc && exec "$@"' - "$@"; }
if without_proc true 2>/dev/null; then
	for program in ./threads ./uses_20000 ./gcc_thread ./wrapper; do
		bare=$(steady without_proc "$program" --version)
		check "without /proc: $program" [ "$(steady without_proc "$tool" run -- "$program" --version)" = "$bare" ]
	done
	: >trace
	check "a refusal says that it is not mounted" grep -q "^rdmamr: --trace .*: /proc is not mounted$" <<<"$(without_proc "$tool" run --trace trace true 2>&1)"
	unset RDMAMR_LIBRARY
	check "the library is found by the program's path" without_proc "$tool" run true
	export RDMAMR_LIBRARY=$library
else
	skip "without /proc" "this user may not mount over it"
fi

# Interpreters, shells with children, tools.
has python3 && starts "python3 with a child" python3 -c 'import subprocess, sys, threading; t = threading.Thread(target=print, args=("thread",)); t.start(); t.join(); sys.exit(subprocess.call(["sh", "-c", "exit 4"]))'
has perl && starts "perl" perl -e 'print "$$\n" x 0, "perl\n"; exit 3'
starts "bash with a pipeline" bash -c 'set -o pipefail; seq 9 | sort -r | head -3; exit 5'
starts "sh that a signal ends" sh -c 'kill -TERM $$'
starts "env, find, grep, sed, awk" bash -c 'find / -maxdepth 1 -name etc | grep e | sed s/e/E/ | awk "{ print NF }"'
starts "a missing command" sh -c 'no_such_command_here 2>/dev/null'
starts "the linker by its own name" "$(readelf -lW ./threads | sed -n 's/.*interpreter: \(.*\)]/\1/p')" ./threads
if [ "$EUID" = 0 ]; then
	cp "$(command -v id)" set_uid && chmod 4755 set_uid
	cp "$(command -v cat)" set_cap
	user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
	starts "a shell that starts a set-uid program" "${user[@]}" sh -c './set_uid -u'
	if setcap cap_net_raw+ep set_cap 2>/dev/null; then
		starts "a shell that starts a program with capabilities" "${user[@]}" sh -c './set_cap /etc/hostname'
		starts "that program, by root" ./set_cap /etc/hostname
	else
		skip "a program with capabilities" "setcap is refused here"
	fi
else
	skip "set-uid programs and those with capabilities" "only root can make them"
fi

# Programs that look at others.
if has valgrind; then
	starts "valgrind" valgrind -q ./threads_c++
	starts "a shell that starts valgrind, whose errors would set the status" sh -c 'valgrind -q --error-exitcode=9 ./threads_c++; exit $?'
	registers "valgrind on a program that registers" valgrind -q
	check "under valgrind every registration is plain, which one line says" bash -c 'out=$("$1" run --cache=all valgrind -q "$2" show 2>errors) && [ "$(tail -1 <<<"$out")" = plain ] && [ "$(grep -c "valgrind does not support" errors)" = 1 ]' - "$tool" "$built/starts_registers"
fi
has gdb && starts "gdb" gdb -q -batch -nx -ex 'set print thread-events off' -ex run -ex 'print $_exitcode' ./threads_c++
has strace && starts "strace" strace -f -e trace=none ./threads_c++
if command -v perf >/dev/null && perf stat -x, -e task-clock true >/dev/null 2>&1; then
	starts "perf" perf stat -o /dev/null -e task-clock ./threads_c++
else
	skip "perf" "perf is not installed, or counts nothing here"
fi

# Filters that the program inherits.
for action in kill refuse allow; do
	registers "a filter that would $action" "$built/starts_filtered" $action
done
check "the tool makes no call of prctl, at which a filter may kill" [ "$(result "$built/starts_filtered" prctl "$tool" run echo it ran)" = $'it ran\nstatus 0' ]
under() { # ACTION WAY...: what registers says of its regions under the filter, and how many lines the library prints
	local said
	said=$(RDMAMR_CACHE=all "$built/starts_filtered" "$1" "${@:2}" "$built/starts_registers" show 2>errors | tail -1)
	echo "$said, $(grep -c '^rdmamr: ' errors)"
}
for way in run preload; do
	[ $way = run ] && by=("$tool" run --cache=all --) || by=(env -u RDMAMR_LIBRARY LD_PRELOAD="$library")
	check "$way: a filter that kills: plain, one line" [ "$(under kill "${by[@]}")" = "plain, 1" ]
	check "$way: which says why" grep -q 'filter .* kills' errors
	if [ "$(RDMAMR_CACHE=all LD_PRELOAD=$library "$built/starts_registers" show 2>/dev/null | tail -1)" = reused ]; then
		check "$way: a filter that allows the calls: reused" [ "$(under allow "${by[@]}")" = "reused, 0" ]
	else
		skip "$way: a filter that allows the calls" "userfaultfd is not to be had here"
	fi
done
tap_done
