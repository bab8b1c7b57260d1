#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# compare.sh LIBRARY PROGRAM [KERNEL.so]: runs a program of this folder without and with the library, and
# compares what came of each thing that it tried, line by line; with KERNEL.so preloaded, for a kernel that
# is not at hand.
set -u
. "$(dirname "$0")/../tap.sh"
library=$1 program=$2 kernel=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

LD_PRELOAD=$kernel timeout 120 "$program" >"$work/without" 2>&1
without=$?
RDMAMR_STATS=$work/stats LD_PRELOAD="$library $kernel" timeout 120 "$program" >"$work/with" 2>&1
with=$?

while IFS=$'\t' read -r name expected <&3; do
	if ! IFS=$'\t' read -r other got <&4; then
		fail "$name" "without the library: $expected" "with it: nothing"
	elif [ "$name" = "$other" ] && [ "$expected" = "$got" ]; then
		pass "$name: $got"
	else
		fail "$name" "without the library: $name: $expected" "with it: $other: $got"
	fi
done 3<"$work/without" 4<"$work/with"
check "as many lines without and with" [ "$(wc -l <"$work/without")" = "$(wc -l <"$work/with")" ]
check "exit status 0 without ($without) and with ($with)" [ "$without$with" = 00 ]
ours() { grep -q '"reg_kernel":[1-9]' "$work/stats" && ! grep '"reg_next":[1-9]' "$work/stats"; }
check "every registration was ours: $(grep '"reg_kernel":[1-9]' "$work/stats")" ours
tap_done
