#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# go.sh [--build] LIBRARY BUILT: compiles ffi.go to BUILT/ffi_go, unless it is there, and runs the
# program with LIBRARY. --build only compiles, and installs Go if root may: "make ctests" compiles
# here, because a compiler in the emulated machine is slow.
set -u
build=
[ "${1:-}" != --build ] || { build=yes; shift; }
library=$(realpath "$1") built=$(realpath "$2")
cd "$(dirname "$0")" || exit 1
program=$built/ffi_go

compile() {
	command -v go >/dev/null || { echo "Go is not installed (vm/packages go)"; return 1; }
	mkdir -p "$built/go" &&
		GO111MODULE=off GOFLAGS='' GOPROXY=off GOTOOLCHAIN=local GOCACHE=$built/go/cache GOPATH=$built/go/path CGO_ENABLED=1 \
			CGO_LDFLAGS="-L$(dirname "$library")" go build -o "$program" ffi.go
}
stale() { [ ! -e "$program" ] || [ -n "$(find ffi.go go.sh ../../../include -name '*.*' -newer "$program")" ]; }

if [ -n "$build" ]; then
	stale || exit 0
	command -v go >/dev/null || ../../../vm/packages go || true
	# Without Go the test is skipped. With Go a failure to compile fails.
	command -v go >/dev/null || exit 0
	compile
	exit
fi
if stale && ! command -v go >/dev/null; then
	echo "1..0 # SKIP Go is not installed (vm/packages go)"
	exit
fi
if stale && ! said=$(compile 2>&1); then
	printf '%s\n' "$said" | sed 's/^/# /'
	echo "not ok 1 - ffi.go compiles"
	echo "1..1"
	exit 1
fi
LD_PRELOAD=$library exec "$program"
