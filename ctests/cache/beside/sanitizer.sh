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

in_order() { # NAME, environment and program: the libraries in one order of loading
	local name=$1 output status
	shift
	# quarantine_size_mb: freed memory is allocated again, and goes back to the kernel, while the
	# program runs.
	output=$(timeout 600 env LD_LIBRARY_PATH="$work" ASAN_OPTIONS="$asan_options:quarantine_size_mb=1:exitcode=99" "$@" 2>&1)
	status=$?
	take_over "$name" $status "$output"
	if grep -q 'Sanitizer' <<<"$output"; then
		fail "$name: AddressSanitizer has nothing to report" "$(sed -n '/Sanitizer/,$p' <<<"$output")"
	else
		pass "$name: AddressSanitizer has nothing to report"
	fi
	output=$(timeout 600 env LD_LIBRARY_PATH="$work" ASAN_OPTIONS="$asan_options:detect_write_exec=1:detect_leaks=0" "$@" write-exec 2>&1)
	status=$?
	check "$name: its own mmap is called: it warns of memory that is writable and executable" \
		bash -c '[ "$2" = 0 ] && grep -q "writable-executable page" <<<"$1" || { echo "$1"; exit 1; }' - "$output" $status
	output=$(timeout 600 env LD_LIBRARY_PATH="$work" ASAN_OPTIONS="$asan_options:exitcode=99" "$@" use-after-free 2>&1)
	status=$?
	check "$name: and reports a use after free" \
		bash -c '[ "$2" = 99 ] && grep -q "heap-use-after-free" <<<"$1" || { echo "$1"; exit 1; }' - "$output" $status
}
asan_options=abort_on_error=0
in_order "linked" "$work/linked"
in_order "preloaded behind libasan" LD_PRELOAD="$asan $library" "$work/alone"
# AddressSanitizer warns if it is second, but works.
asan_options=abort_on_error=0:verify_asan_link_order=0
in_order "preloaded in front of libasan" LD_PRELOAD="$library" "$work/alone"
tap_done
