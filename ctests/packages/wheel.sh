#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# wheel.sh: the Python wheel is built, auditwheel finds it fit for its glibc, and Mooncake runs with
# it installed in a fresh environment (plain/programs/wheel.sh), in the machine of vm/.
set -u
. "$(dirname "$0")/../lib/tap.sh"
cd "$(dirname "$0")/../.." || exit 1

unset MAKEFLAGS MAKELEVEL
said=$(packaging/wheel tools 2>&1) || { echo "1..0 # SKIP zig and auditwheel could not be downloaded: $(tail -n 1 <<<"$said")"; exit; }
check "make wheel" make -s --no-print-directory wheel
if [ -n "${DEVICE:-}" ]; then
	skip "installed" "that is for the machine of vm/, not for one with DEVICE"
elif ! ctests/plain/programs/mooncake_wheel >/dev/null 2>&1; then
	skip "installed" "Mooncake's wheel could not be downloaded (ctests/plain/programs/mooncake_wheel)"
else
	output=$(vm/run -k 6.12 -t 1200 -- ctests/plain/programs/wheel.sh target/wheel/*.whl rxe0 10.77.0.1 1 2>&1)
	take_over "installed" $? "$output"
fi
tap_done
