#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# stacks.sh LIBRARY BUILT PROGRAM: the call stacks of a trace, in programs whose functions are known
# (stacks.c, stacks.py, stacks.go), as PROGRAM, "rdmamr", reports them. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
expects 3 "$@"
library=$(realpath "$1") stacks=$(realpath "$2")/trace_stacks rdmamr=$(realpath "$3")
cd "$work" || exit 2

. "$here/../values.sh"
same_program() { check "$1: the program runs as without the trace" [ "$status" = 0 ]; }
run() { # WAY: runs the program, and makes its report
	recorded "$1" "$stacks" "$1"
	same_program "$1"
}

run chain
reports "the chain is named, from the wrapper to main" \
	"['register_wrapper send_message aligned_phase chain main', 'register_wrapper send_message first_phase chain main', 'register_wrapper send_message second_phase chain main']" \
	chain 'sorted(names(stack[:5]) for stack in stacks)'
reports "calls are counted by their stack" "[100, 100, 100]" chain '[caller["calls"] for caller in callers]'
reports "every call has a stack" "600 600" chain '"{calls} {calls_with_stack}".format(**report["totals"])'
"$rdmamr" report --text chain >text
check "the text shows it" grep -qE '< send_message.* < first_phase.* < main' <(tr -s '\n ' ' ' <text)
check "and that each call has one" grep -qE '^Call stacks +600: 100 % of the calls' text
# tool/src/report/flame.rs has the flame graph.

RDMAMR_TRACE_STACKS=0 run chain
reports "RDMAMR_TRACE_STACKS=0: no call has a stack" "600 0 []" chain '"{calls} {calls_with_stack} []".format(**report["totals"]) if not any(caller["stack"] for caller in callers) else stacks'

run pointers
reports "a function without a description: its frame pointer leads to its caller" \
	"without_description around_the_undescribed" pointers 'names(stacks[0][3:5])'

run coroutine
reports "a coroutine on a stack of its own: its stack ends where it begins" \
	"register_wrapper send_message first_phase coroutine" coroutine 'names(stacks[0][:4])'
reports "without main's frame" False coroutine '"main" in names(stacks[0]).split()'

run thread
reports "a thread with the smallest stack: its stack is its own" \
	"['register_wrapper send_message', 'register_wrapper thread_body']" thread 'sorted(names(stack[:2]) for stack in stacks)'

run handler
reports "a signal handler: its stack ends at the handler" "handler" \
	handler '" ".join(name for name in names(stacks[0]).split() if name in ("handler", "interrupted", "in_handler"))'

run deep
reports "a stack of 1000 frames: is cut after 64" "64 deep" deep '"{} {}".format(len(stacks[0]), name(stacks[0][-1]))'

# 16384 stacks, each once. src/sys/budget.rs has the time that they may take without this setting.
RDMAMR_TRACE_STACKS=all run many
reports "each call is in the trace" 16384 many 'report["totals"]["calls"]'
reports "the table of stacks is the limit" True many '12000 < report["totals"]["calls_with_stack"] < 16384'
reports "calls without a stack have their caller alone" True many 'any(not caller["stack"] for caller in callers)'

# shellcheck disable=SC2086
${CC:-cc} -std=gnu11 -D_GNU_SOURCE -I"$here/../../../include" ${CFLAGS:--O2 -g} -DLIBRARY -shared -fPIC "$here/stacks.c" \
	"$here/../../lib/stub_device.c" "${stacks%/*}/libctest.a" -o libstacks.so -Wl,--no-as-needed -libverbs -lpthread -ldl
if ! command -v go >/dev/null; then
	lacks "the functions of a program in Go" go
else
	go=$(dirname "$stacks")/go
	GO111MODULE=off GOFLAGS='' GOPROXY=off GOTOOLCHAIN=local GOCACHE=$go/cache GOPATH=$go/path CGO_ENABLED=1 \
		CGO_LDFLAGS=$work/libstacks.so go build -o in_go "$here/stacks.go"
	recorded go ./in_go
	same_program "a program in Go"
	reports "its functions are named, beyond those of cgo" "main.send main.phase main.main" go \
		'" ".join(name for name in names(stacks[0]).split() if name in ("main.send", "main.phase", "main.main"))'
fi
# Each CPython from 3.7 on that this machine has: VERSION, whether it exports its dump of a stack, EXECUTABLE.
pythons() {
	local python
	for python in python3 /usr/bin/python3 python3.{7..20} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3; do
		"$python" -c 'import ctypes, os, sys
dumps = any(hasattr(ctypes.pythonapi, name) for name in ("PyUnstable_DumpTraceback", "_Py_DumpTraceback"))
if sys.implementation.name == "cpython" and sys.version_info >= (3, 7):
    print("%d.%d" % sys.version_info[:2], "dumps" if dumps else "silent", os.path.realpath(sys.executable))' 2>/dev/null
	done | sort -u -V
}
line() { grep -n "# $1\$" "$here/stacks.py" | cut -d: -f1; }
lines() { # NAME FUNCTION EXPECTED...
	local name=$1 function=$2 expected
	shift 2
	expected=$(printf 'stacks.py:%s ' "$@")
	reports "$name" "${expected% }" "python$version" '" ".join(frame["source"].split("/")[-1] for stack in stacks for frame in stack if "stacks.py:" in (frame["source"] or "") and "'"$function"'" in names(stack))'
}
mapfile -t found < <(pythons)
[[ " ${found[*]} " == *" dumps "* ]] || skip "the lines of a program in Python" "no CPython of this machine exports its dump of a stack"
for one in "${found[@]}"; do
	read -r version dumps executable <<<"$one"
	RDMAMR_LOG=warn behind=$work/libstacks.so recorded "python$version" "$executable" "$here/stacks.py" "$work/libstacks.so"
	same_program "a program in Python $version"
	if [ "$dumps" = silent ]; then
		reports "Python $version does not export its dump: no frame is of Python" False "python$version" \
			'any("stacks.py" in (frame["source"] or "") for stack in stacks for frame in stack)'
		check "and the library says so, once" [ "$(grep -c "^rdmamr: .*call stacks have no frames of Python" "python$version.said")" = 1 ]
		continue
	fi
	lines "Python $version: the lines of a thread that holds the interpreter's lock" holds_the_lock "$(line send)" "$(line holds)" "$(line main)"
	lines "and of one that has released it" has_released_it "$(line send)" "$(line released)" "$(line main)"
	lines "and of functions with other letters" größe "$(line größe)" "$(line größe)" "$(line main)"
	check "the text shows Python's lines" grep -q "send stacks.py:$(line send)  *register_wrapper [^|]*< holds_the_lock stacks.py:$(line holds) < <module> stacks.py:$(line main)" \
		<("$rdmamr" report --text "python$version" | tr -s '\n ' ' ')
	reports "Python's frames stand where the interpreter's would" "library_call send holds_the_lock <module>" "python$version" \
		'" ".join(name for stack in stacks if "holds_the_lock" in names(stack) for name in names(stack).split() if not name.startswith(("register_wrapper", "ffi_", "?", "_c", "Py")))'
done
tap_done
