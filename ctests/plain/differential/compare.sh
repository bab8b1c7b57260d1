#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# compare.sh LIBRARY PROGRAM [KERNEL.so]: runs a program of this folder without and with the
# library, and compares the outcome of each attempt, line by line; with KERNEL.so preloaded, for a
# kernel that is not at hand. Lines whose names differ in a number (of access flags) only make one
# result.
. "$(dirname "$0")/../../lib/script.sh"
library=$1 program=$2 kernel=${3:-}

LD_PRELOAD=$kernel "$program" >"$work/without" 2>&1
without=$?
RDMAMR_STATS=$work/stats LD_PRELOAD="$library $kernel" "$program" >"$work/with" 2>&1
with=$?

awk -F '\t' '
	function group(name) { gsub(/ 0x[0-9a-f]+| 0$/, "", name); return name }
	NR == FNR { other[FNR] = $0; next }
	{
		g = group($1)
		if (!(g in lines))
			order[++groups] = g
		lines[g]++
		only[g] = $1 ": " $2
		answers[g] += !seen[g, $2]++
		if (other[FNR] != $0 && ++wrong[g] <= 10)
			details[g] = details[g] "# without the library: " other[FNR] "\n# with it: " $0 "\n"
	}
	END {
		for (n = 1; n <= groups; n++) {
			g = order[n]
			said = lines[g] == 1 ? only[g] : g ": " lines[g] " lines, " answers[g] " different answers"
			printf "%sok %d - %s\n%s", g in wrong ? "not " : "", n, said, details[g]
		}
	}' "$work/without" "$work/with" | tee "$work/results"
tap_count=$(grep -c '^\(not \)\?ok ' "$work/results")
check "as many lines without and with" [ "$(wc -l <"$work/without")" = "$(wc -l <"$work/with")" ]
check "exit status 0 without ($without) and with ($with)" [ "$without$with" = 00 ]
ours() { grep -q '"reg_kernel":[1-9]' "$work/stats" && ! grep '"reg_next":[1-9]' "$work/stats"; }
check "the library made every registration: $(grep -o '"reg_kernel":[1-9][0-9]*' "$work/stats" | xargs)" ours
tap_done
