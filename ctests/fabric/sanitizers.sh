#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# sanitizers.sh LIBRARY BUILT: programs of this folder under AddressSanitizer and ThreadSanitizer.
# These check the programs, and the memory that the library hands over; its own code is not
# instrumented.
set -u
. "$(dirname "$0")/../lib/tap.sh"
library=$(realpath "$1") built=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$library" "$work/librdmamr.so.1"

under() { # NAME COMMAND...: the results of a program, as one, with the sanitizer's report
	local name=$1 output status
	shift
	output=$(LD_LIBRARY_PATH=$work ASAN_OPTIONS=exitcode=99 TSAN_OPTIONS=exitcode=99 timeout 600 "$@" 2>&1)
	status=$?
	if [ $status = 0 ] && ! grep -q '^not ok\|Sanitizer' <<<"$output" && grep -q '^1\.\.[1-9]' <<<"$output"; then
		pass "$name: $(grep -c '^ok' <<<"$output") checks"
	else
		fail "$name" "exit status $status" "$(grep -A12 '^not ok\|Sanitizer\|^Bail' <<<"$output" | head -40)"
	fi
}
for sanitizer in address thread; do
	under "asynchronous registration from 4 threads, -fsanitize=$sanitizer" "$built/fabric_async_$sanitizer" stress 1000
done
under "raw keys, -fsanitize=address" "$built/fabric_raw_keys_address"
tap_done
