#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# library.sh LIBRARY: the shared library as a linker sees it: its symbols, its name, its
# dependencies, its size.
. "$(dirname "$0")/../../lib/script.sh"
library=$1

grep -v '^#' "$here/librdmamr.symbols" | LC_ALL=C sort >"$work/listed"
readelf -W --dyn-syms "$library" | awk '$1 ~ /^[0-9]+:$/ && $5 != "LOCAL" && $7 != "UND" && $7 != "ABS" && $8 { print $8 }' |
	LC_ALL=C sort >"$work/exported"
check "the exported symbols are those of the list" diff -u "$work/listed" "$work/exported"

dynamic=$(readelf -dW "$library")
check "its name is librdmamr.so.1" grep -q 'SONAME.*\[librdmamr\.so\.1\]' <<<"$dynamic"
check "it stays loaded (nodelete)" grep -q 'NODELETE' <<<"$dynamic"
check "it does not need libibverbs" bash -c '! grep -q "NEEDED.*ibverbs" <<<"$1"' - "$dynamic"

# NAME VERSION of each function that the library needs from others; the versions are those of the
# build machine.
needed() { readelf -W --dyn-syms "$library" | awk '$7 == "UND" && $8 ~ /@/ { sub("@", " ", $8); print $8 }' | LC_ALL=C sort; }
listed() { # PAGE
	sed -n 's/^| `\(G[A-Z]*_[0-9.]*\)` | \(.*\) |$/\1 \2/p' "$1" | tr -d '`,' |
		awk '{ for (i = 2; i <= NF; i++) print $i, $1 }' | LC_ALL=C sort
}
unlisted() { # PAGE: functions that are needed and not listed, or listed in an earlier version only
	LC_ALL=C join -a 1 <(needed) <(listed "$1") | awk '
		function number(version, part) { sub(".*_", "", version); split(version, part, "."); return (part[1] * 1000 + part[2]) * 1000 + part[3] }
		$3 == "" || number($2) > number($3) { print $1 "@" $2 }'
}
page=$here/../../../docs/use.md
check "it needs no function that docs/use.md does not list, and none in a later version: $(unlisted "$page" | xargs)" [ -z "$(unlisted "$page")" ]
unneeded() { LC_ALL=C join -v 1 <(listed "$page") <(needed); }
[ "$(uname -m)" != x86_64 ] || check "it needs each of the $(listed "$page" | wc -l): $(unneeded | xargs)" [ -z "$(unneeded)" ]
strip -o "$work/stripped" "$library"
size=$(stat -c %s "$work/stripped")
check "stripped, it has at most 790 KiB ($size bytes)" [ "$size" -le $((790 * 1024)) ]
tap_done
