#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# lints.sh: clippy reads all targets of all crates, and it takes their crates a minute to be compiled
# for it. The suite "source" has it read the library alone.
set -u
. "$(dirname "$0")/../lib/tap.sh"
cd "$(dirname "$0")/../.." || exit 1

members=(--workspace --exclude rdmamr-tool)
check "clippy has nothing to say of the library and its tests" cargo clippy -q "${members[@]}" --all-targets -- -D warnings
check "nor of the program rdmamr" cargo clippy -q -p rdmamr-tool --all-targets -- -D warnings
tap_done
