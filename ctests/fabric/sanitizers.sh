#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# sanitizers.sh LIBRARY BUILT: programs of this folder under AddressSanitizer and ThreadSanitizer.
# These check the programs, and the memory that the library hands over; its own code is not
# instrumented.
. "$(dirname "$0")/../lib/script.sh"
library=$(realpath "$1") built=$2
ln -s "$library" "$work/librdmamr.so.1"

# With the sanitizer's report.
under() { # NAME COMMAND...
	whole "$1" env LD_LIBRARY_PATH="$work" ASAN_OPTIONS=exitcode=99 TSAN_OPTIONS=exitcode=99 timeout 600 "${@:2}"
}
for sanitizer in address thread; do
	under "asynchronous registration from 4 threads, -fsanitize=$sanitizer" "$built/fabric_async_$sanitizer" stress
done
under "raw keys, -fsanitize=address" "$built/fabric_raw_keys_address"
tap_done
