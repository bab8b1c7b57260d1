#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# library.sh LIBRARY: the shared library as a linker sees it: its symbols, its name, what it needs, its size.
set -u
here=$(dirname "$0")
. "$here/../tap.sh"
library=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

grep -v '^#' "$here/librdmamr.symbols" | LC_ALL=C sort >"$work/listed"
readelf -W --dyn-syms "$library" | awk '$1 ~ /^[0-9]+:$/ && $5 != "LOCAL" && $7 != "UND" && $7 != "ABS" && $8 { print $8 }' |
	LC_ALL=C sort >"$work/exported"
check "the exported symbols are those of the list" diff -u "$work/listed" "$work/exported"

# The list's own calls are those of the header.
# fi_prov_ini is libfabric's to call, and declared by its <rdma/providers/fi_prov.h>.
(cd "$here/../../include" && grep -ho '^[a-z].*\b\(rdmamr\|fi\)_[a-z_]*(' rdmamr.h rdmamr/fi_mr.h) | grep -o '[a-z_]*($' | tr -d '(' | LC_ALL=C sort -u >"$work/header"
sed -n 's/@@RDMAMR_1.0$//p' "$work/listed" | grep -v fi_prov_ini >"$work/own"
check "the headers declare each call of RDMAMR_1.0" diff -u "$work/own" "$work/header"

dynamic=$(readelf -dW "$library")
check "its name is librdmamr.so.1" grep -q 'SONAME.*\[librdmamr\.so\.1\]' <<<"$dynamic"
check "it stays loaded (nodelete)" grep -q 'NODELETE' <<<"$dynamic"
check "it does not need libibverbs" bash -c '! grep -q "NEEDED.*ibverbs" <<<"$1"' - "$dynamic"
strip -o "$work/stripped" "$library"
size=$(stat -c %s "$work/stripped")
check "stripped, it has at most 816 KiB ($size bytes)" [ "$size" -le $((816 * 1024)) ]
tap_done
