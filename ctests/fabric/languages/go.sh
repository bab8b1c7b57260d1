#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# go.sh [--build] LIBRARY BUILT: compiles ffi.go to BUILT/ffi_go, unless it is there, and runs the
# program with LIBRARY. --build only compiles: "make ctests" compiles here, because a compiler in the
# emulated machine is slow.
set -u
. "$(dirname "$0")/../../lib/tap.sh"
build=
[ "${1:-}" != --build ] || { build=yes; shift; }
library=$(realpath "$1") built=$(realpath "$2")
cd "$(dirname "$0")" || exit 1
program=$built/ffi_go

compile() {
	mkdir -p "$built/go" &&
		GO111MODULE=off GOFLAGS='' GOPROXY=off GOTOOLCHAIN=local GOCACHE=$built/go/cache GOPATH=$built/go/path CGO_ENABLED=1 \
			CGO_LDFLAGS="-L$(dirname "$library")" go build -o "$program" ffi.go
}
stale() { [ ! -e "$program" ] || [ -n "$(find ffi.go go.sh ../../../include -name '*.*' -newer "$program")" ]; }

if [ -n "$build" ]; then
	stale || exit 0
	# Without Go the test is skipped. With Go a failure to compile fails.
	command -v go >/dev/null || exit 0
	compile
	exit
fi
! stale || needs go
if stale && ! said=$(compile 2>&1); then
	printf '%s\n' "$said" | sed 's/^/# /'
	echo "not ok 1 - ffi.go compiles"
	echo "1..1"
	exit 1
fi
LD_PRELOAD=$library exec "$program"
