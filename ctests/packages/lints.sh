#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# lints.sh: clippy reads all targets of all crates; the crates that they need take a minute to
# compile. The suite "source" has it read the library alone.
. "$(dirname "$0")/../lib/script.sh"
cd "$(dirname "$0")/../.." || exit 1

members=(--workspace --exclude rdmamr-tool)
check "clippy has no complaint about the library and its tests" cargo clippy -q "${members[@]}" --all-targets -- -D warnings
check "nor about the program rdmamr" cargo clippy -q -p rdmamr-tool --all-targets -- -D warnings
tap_done
