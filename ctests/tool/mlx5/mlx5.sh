#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# mlx5.sh LIBRARY PROGRAM AUDIT: libmlx5's own registrations, which a stand-in for libmlx5 serves (libmlx5.c): they do
# the same without LIBRARY and with it, and "rdmamr", PROGRAM, shows them as registered past the library. AUDIT is
# the module for LD_AUDIT. Prints TAP.
TMPDIR=/dev/shm . "$(dirname "$0")/../../lib/script.sh"
expects 3 "$@"
library=$(realpath "$1") rdmamr=$(realpath "$2") audit=$(realpath "$3") cc=${CC:-cc}
holder=
trap '[ -z "$holder" ] || kill "$holder" 2>/dev/null; rm -rf "$work"' EXIT
mkdir -m 700 "$work/run"
export XDG_RUNTIME_DIR=$work/run LD_LIBRARY_PATH=$work
cd "$work" || exit 2

compile() { "$cc" -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -O1 "$@"; }
stand_in() { # NAME LIBIBVERBS: a libmlx5 of that file name, of that libibverbs
	compile -shared -fPIC "$here/libmlx5.c" -DLIBIBVERBS="\"$2\"" -Wl,-soname,"$1" -Wl,--version-script="$here/libmlx5.map" \
		-Wl,--no-as-needed -L. -l:"$2" -ldl -o "$1"
}
plugin() { compile -shared -fPIC -DPLUGIN "$here/calls.c" -L. -l:"$2" -o "$1"; } # NAME LIBMLX5
# A second libibverbs: a copy that has another name, as a wheel has it.
original=$("$cc" -print-file-name=libibverbs.so.1)
build() {
	LC_ALL=C sed 's/libibverbs\.so\.1/libibverbz.so.1/g' "$(realpath "$original")" >libibverbz.so.1 &&
		stand_in libmlx5.so.1 libibverbs.so.1 && stand_in libmlx5-2.so.1 libibverbz.so.1 &&
		plugin one.so libmlx5.so.1 && plugin two.so libmlx5-2.so.1 &&
		compile "$here/calls.c" -L. -l:libmlx5.so.1 -o calls
}
check "the stand-in and the programs are built" build
# Runs the calls of plug-ins, each in a scope of its own with the libmlx5 that it is linked to; looks a call up in a
# file's handle, as DPDK and NCCL do, and makes it; makes it where there is no libmlx5.
cat >host.py <<-'END'
	import ctypes, os, sys
	way, *files = sys.argv[1:]
	libraries = [ctypes.CDLL(file, use_errno=True) for file in files or [None]]
	for library in libraries:
	    if way == "plugins":
	        library.calls()
	        continue
	    if way == "handle":
	        library.stand_in_device.restype = ctypes.c_void_p
	    library.mlx5dv_devx_umem_reg.restype = ctypes.c_void_p
	    device = ctypes.c_void_p(library.stand_in_device(0)) if way == "handle" else None
	    done = library.mlx5dv_devx_umem_reg(device, ctypes.c_void_p(0x10000000), ctypes.c_size_t(4096), 0)
	    print("done" if done else os.strerror(ctypes.get_errno()))
END
host=(/usr/bin/python3 -B host.py)
readelf -W --dyn-syms calls >symbols
check "the program asks for libmlx5's nodes" grep -q 'mlx5dv_reg_dmabuf_mr@MLX5_1.25' symbols

same() { # NAME COMMAND...: prints the same without the library and with it, and the settings of $with
	"${@:2}" >plain 2>&1 || echo "exit status $?" >>plain
	# shellcheck disable=SC2086 # words
	env ${with:-} LD_PRELOAD="$library" "${@:2}" >with 2>&1 || echo "exit status $?" >>with
	check "$1: as without the library ($(wc -l <plain) lines)" alike
}
alike() { ! grep '^exit status' plain && diff plain with; }
same "a program" ./calls
check "its registrations are those that are wanted" [ "$(grep -c '^reg.*: done, errno 7' plain)" = 9 ]
with="RDMAMR_TRACE=$work/trace" same "traced" ./calls
with="RDMAMR_TRACE=$work/audited LD_AUDIT=$audit" same "traced, by the module for LD_AUDIT" ./calls
with="RDMAMR_DISABLE=1" same "disabled" ./calls
with="RDMAMR_CACHE=all RDMAMR_STATS=$work/stats" same "with the cache" ./calls
with="RDMAMR_TRACE=$work/plugin" same "a plug-in, whose libmlx5 is in no other scope" "${host[@]}" plugins "$work/one.so"
with="RDMAMR_TRACE=$work/two" same "two libmlx5, each of a libibverbs of its own" "${host[@]}" plugins "$work/one.so" "$work/two.so"
same "in the other order" "${host[@]}" plugins "$work/two.so" "$work/one.so"
with="RDMAMR_TRACE=$work/handle LD_AUDIT=$audit" same "by a handle" "${host[@]}" handle libmlx5.so.1
with="LD_AUDIT=$audit" same "by the handle of a second libmlx5" "${host[@]}" handle libmlx5-2.so.1

. "$here/../values.sh"
for trace in trace audited plugin two handle; do "$rdmamr" report --json $trace >$trace.json; done
for trace in trace audited plugin; do
	reports "$trace: each function, with its caller, its number and its bytes" \
		"register_gpu mlx5dv_reg_dmabuf_mr 1 131072, register_queue mlx5dv_devx_umem_reg_ex 2 3145728, register_rings mlx5dv_devx_umem_reg 6 589824" \
		$trace 'of(report["past"], "caller call", "registrations", "bytes")'
done
reports "two libmlx5: the registrations of both" 18 two 'report["totals"]["past_registrations"]'
reports "a handle: its registration" 1 handle 'report["totals"]["past_registrations"]'
reports "the lengths, for a deregistration those of the umem" \
	"deregister 131072 3, deregister 2097152 1, deregister 65536 3, past 1048576 1, past 131072 4, past 2097152 1, past 65536 3" \
	trace 'of(report["sizes"], "what from_bytes", "calls")'
reports "the umem and the region that stay, and no other" "register_gpu 1 131072, register_queue 1 1048576" \
	trace 'of(report["leaks"], "caller", "regions", "bytes")'
reports "no umem is another's, and none is unknown" "[]" trace 'report["notes"]'
is "a dma-buf is not pinned" $((MIB = 1 << 20)) "$(value trace 'report["pinned"]["end_bytes"]')"
is "the cache has no part in them" "0 []" "$(value trace 'report["advice"]["all"]["registrations"], report["advice"]["unserved"]' | tr -d '(),')"
reports "failures" "mlx5dv_devx_umem_dereg EBUSY 1, mlx5dv_devx_umem_reg EINVAL 1, mlx5dv_devx_umem_reg ENOMEM 1, mlx5dv_devx_umem_reg EOPNOTSUPP 1" \
	trace 'of(report["failures"], "call name", "count")'
check "their reasons name libmlx5" grep -q "ENOMEM from libmlx5: .*RLIMIT_MEMLOCK" <(value trace '[one["example"] for one in report["failures"]]')
"$rdmamr" report --text trace >text
check "the text has them" grep -qE 'Registrations 9: 0 plain, 0 hits, 0 misses, 9 past the library' <(tr -s '\n ' ' ' <text)
check "with function and caller" grep -qE '^ +1 +1 MiB +1 MiB .* mlx5dv_devx_umem_reg_ex +register_queue' text

is "the statistics count them, and nothing else" '"reg_past":9,"reg_past_bytes":3866624' \
	"$(grep -oE '"[a-z_]+":[1-9][0-9]*' stats | grep -v '"pid"' | paste -sd,)"
mkfifo in
LD_PRELOAD=$library ./calls hold <>in >held &
holder=$!
shows() { grep -q "^$holder: registered past the library so far: 9 registrations of 3.69 MiB, by libmlx5" <("$rdmamr" top --once --interval 0.1); }
check "top shows them" awaits shows
"$rdmamr" top --openmetrics >metrics
check "so do its metrics" grep -q "^rdmamr_past_registrations_total{.*} 9$" metrics
echo >in
wait "$holder"
holder=

RDMAMR_LOG=warn LD_PRELOAD=$library "${host[@]}" none >none 2>said
is "without a libmlx5 a call fails" "Operation not supported" "$(cat none)"
check "and says why" grep -q "mlx5dv_devx_umem_reg.*: EOPNOTSUPP: no loaded libmlx5 has mlx5dv_devx_umem_reg" said
tap_done
