#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# sanitizer.sh LIBRARY: a program under AddressSanitizer, which interposes memory calls as the
# library does, in each order of loading. Without a device, on this machine's own kernel.
. "$(dirname "$0")/../../lib/script.sh"
library=$(realpath "$1")
cc=${CC:-cc}
ln -s "$library" "$work/librdmamr.so"
ln -s "$library" "$work/librdmamr.so.1"
asan=$("$cc" -print-file-name=libasan.so)
[ -e "$asan" ] || skip_all "the compiler has no libasan.so"

build() { # OUTPUT [ARGUMENT...]
	"$cc" -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g -fno-omit-frame-pointer -fsanitize=address -I"$here/../../../include" \
		"$here/asan.c" "$here/../../lib/stub_device.c" "$here"/../../lib/{device,memory,program,rows,stub_rows,tap}.c -o "$@" -libverbs -lpthread
}
check "a program is compiled for AddressSanitizer" build "$work/alone"
check "and linked with the library" build "$work/linked" -L"$work" -lrdmamr
check "which it needs, behind AddressSanitizer's own" bash -c \
	'[ "$(readelf -dW "$1" | sed -n "s/.*NEEDED.*\[\(libasan\|librdmamr\)\..*/\1/p" | xargs)" = "libasan librdmamr" ]' - "$work/linked"

with() { timeout 600 env LD_LIBRARY_PATH="$work" ASAN_OPTIONS="$asan_options:$1" "${@:2}"; } # OPTIONS COMMAND...
silent() { # OPTIONS COMMAND...: it succeeds, and AddressSanitizer has nothing to report
	local said status=0
	said=$(with "$@" 2>&1) || status=$?
	echo "$said"
	[ $status = 0 ] && ! grep -q Sanitizer <<<"$said"
}
in_order() { # NAME, environment and program: the libraries in one order of loading
	local name=$1
	shift
	# quarantine_size_mb: freed memory is allocated again, and goes back to the kernel, while the
	# program runs.
	results "$name" silent quarantine_size_mb=1:exitcode=99 "$@"
	check "$name: its own mmap is called: it warns of memory that is writable and executable" \
		ends_with 0 "writable-executable page" with detect_write_exec=1:detect_leaks=0 "$@" write-exec
	check "$name: and reports a use after free" \
		ends_with 99 heap-use-after-free with exitcode=99 "$@" use-after-free
}
asan_options=abort_on_error=0
in_order "linked" "$work/linked"
in_order "preloaded behind libasan" LD_PRELOAD="$asan $library" "$work/alone"
# AddressSanitizer warns if it is second, but works.
asan_options=abort_on_error=0:verify_asan_link_order=0
in_order "preloaded in front of libasan" LD_PRELOAD="$library" "$work/alone"
tap_done
