#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# wheel.sh: the Python wheel is built, auditwheel finds it fit for its glibc, and Mooncake runs with
# it installed in a fresh environment (plain/programs/wheel.sh), in the machine of vm/. The wheel for
# arm64 is built beside it, and runs in the machine that emulates that processor (wheel_arm64.sh).
. "$(dirname "$0")/../lib/script.sh"
cd "$(dirname "$0")/../.." || exit 1

unset MAKEFLAGS MAKELEVEL
said=$(packaging/wheel tools "$(uname -m)" 2>&1) || skip_all "zig and auditwheel could not be downloaded: $(tail -n 1 <<<"$said")"
check "make wheel" make -s --no-print-directory wheel
if [ -n "${DEVICE:-}" ]; then
	skip "installed" "that is for the machine of vm/, not for one with DEVICE"
elif ! ctests/plain/programs/mooncake_wheel >/dev/null 2>&1; then
	skip "installed" "Mooncake's wheel could not be downloaded (ctests/plain/programs/mooncake_wheel)"
else
	results "installed" vm/run -k 6.12 -t 1200 -- ctests/plain/programs/wheel.sh target/wheel/*.whl rxe0 10.77.0.1 1
fi

target=aarch64-unknown-linux-gnu
if [ "$(uname -m)" != x86_64 ]; then
	skip "the wheel for arm64" "the machine of that processor is emulated on x86-64"
elif ! { ls "$(rustc --print target-libdir --target $target)" || rustup -q target add $target; } >/dev/null 2>&1; then
	skip "the wheel for arm64" "Rust's library for it is not installed (rustup target add $target)"
elif ! said=$(vm/packages vm tree arm64 2>&1 && vm/tree arm64 2>&1); then
	skip "the wheel for arm64" "the machine could not be made: $(tail -n 1 <<<"$said")"
else
	check "make wheel ARCH=aarch64" make -s --no-print-directory wheel ARCH=aarch64
	wheels=(target/wheel/aarch64/rdmamr-*-manylinux_2_28_aarch64.whl)
	check "one wheel, which auditwheel finds fit: ${wheels[*]##*/}" [ -s "${wheels[0]}" ]
	results "on arm64" vm/run -k arm64 -t 1500 -- ctests/packages/wheel_arm64.sh "${wheels[0]}" rxe0 10.77.0.1 1
fi
tap_done
