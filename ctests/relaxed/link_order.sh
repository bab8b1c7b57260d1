#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# link_order.sh LIBRARY BUILT: programs that are linked with libibverbs before and behind the library,
# by their own calls and preloaded: what the library says at their start, and what it does.
. "$(dirname "$0")/../lib/script.sh"
library=$(realpath "$1") built=$(realpath "$2")
unset LD_PRELOAD LD_AUDIT
ln -s "$library" "$work/librdmamr.so.1"
export LD_LIBRARY_PATH=$work
needed() { readelf -dW "$1" | sed -n 's/.*NEEDED.*\[lib\(ibverbs\|rdmamr\)\..*/\1/p' | paste -sd' '; }
check "one program is linked with librdmamr first" [ "$(needed "$built/link_order_first")" = "rdmamr ibverbs" ]
check "the other with libibverbs" [ "$(needed "$built/link_order")" = "ibverbs rdmamr" ]

# The line at the start.
says() { # LINES WORDS COMMAND...
	local lines=$1 words=$2 said
	shift 2
	said=$("$@" 2>&1 >/dev/null)
	if [ "$(grep -c '^rdmamr: ' <<<"$said")" = "$lines" ] && { [ "$lines" = 0 ] || grep -q "$words" <<<"$said"; }; then
		pass "$lines lines: $*"
	else
		fail "$lines lines: $*" "$said"
	fi
}
behind="linked to libibverbs before librdmamr.*Link -lrdmamr before -libverbs"
says 0 "" "$built/link_order_first"
says 1 "$behind" "$built/link_order"
says 0 "" env LD_PRELOAD="$library" "$built/link_order"
says 0 "" env RDMAMR_DISABLE=1 "$built/link_order"
says 0 "" env LD_PRELOAD="$library" ls
cat >"$work/between.c" <<-C
	#define _GNU_SOURCE
	#include <dlfcn.h>
	void *ibv_reg_mr(void *pd, void *addr, unsigned long length, int access)
	{
		return ((void *(*)(void *, void *, unsigned long, int))dlsym(RTLD_NEXT, "ibv_reg_mr"))(pd, addr, length, access);
	}
C
"${CC:-cc}" -shared -fPIC "$work/between.c" -o "$work/between.so"
says 0 "" env LD_PRELOAD="$work/between.so" "$built/link_order_first"

runs() { # NAME COMMAND...
	local name=$1 output
	shift
	# As the program sets it, which would start once more, and say the line again.
	output=$(RDMAMR_CACHE_LINGER=1000000 "$@" 2>"$work/said")
	take_over "$name" $? "$output"
}
runs "librdmamr first" "$built/link_order_first" reused
check "without a word" [ ! -s "$work/said" ]
runs "libibverbs first" "$built/link_order" plain
check "with one line" [ "$(grep -c '^rdmamr: ' "$work/said")" = 1 ]
runs "libibverbs first, RDMAMR_CACHE=all" env RDMAMR_CACHE=all "$built/link_order" plain
runs "libibverbs first, preloaded" env LD_PRELOAD="$library" "$built/link_order" reused
check "without a word" [ ! -s "$work/said" ]
runs "libibverbs' ibv_dereg_mr by handle" "$built/link_order_first" handle
check "with one line: $(cat "$work/said")" [ "$(grep -c "^rdmamr: libibverbs' own ibv_dereg_mr.* EINVAL" "$work/said")" = 1 ]
tap_done
