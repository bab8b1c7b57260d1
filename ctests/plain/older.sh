#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# older.sh LIBRARY: the library over a libibverbs before rdma-core 28, and before 25.
. "$(dirname "$0")/../lib/script.sh"
library=$1
cd "$work" || exit 1

printf 'IBVERBS_1.1 { global: ibv_reg_mr; ibv_dereg_mr; local: *; };\n' >24.map
printf 'IBVERBS_1.1 { global: ibv_reg_mr; ibv_dereg_mr; local: *; };\nIBVERBS_1.7 { global: ibv_reg_mr_iova; } IBVERBS_1.1;\n' >27.map
for version in 24 27; do
	mkdir "$version"
	"${CC:-cc}" -shared -fPIC -Wl,-soname,libibverbs.so.1 -Wl,--version-script="$version.map" \
		"$here/older_libibverbs.c" -o "$version/libibverbs.so.1" || fail "building a libibverbs of rdma-core $version"
	"${CC:-cc}" -D_GNU_SOURCE -I"$here/../../include" "$here/older.c" "$here/../lib/tap.c" -o older "$library" -Wl,--unresolved-symbols=ignore-all ||
		fail "building a program for it"
	whole "rdma-core $version" env LD_LIBRARY_PATH="$work/$version:$work" LD_PRELOAD="$library $work/$version/libibverbs.so.1" ./older $((version >= 25))
done
tap_done
