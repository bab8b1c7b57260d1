#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# prototypes.sh CBINDGEN OUTPUT.c: writes a C file that declares the interposed calls twice: as
# <infiniband/verbs.h> has them, and as cbindgen reads them from the library's own functions. A
# compiler accepts both only if they are equal. The header's macros of the same names are removed in
# between.
set -eu
cbindgen=$1 output=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
	# Opaque twins of rdma-core's structures, so that they come out as "struct ibv_pd *",
	# undeclared.
	for type in ibv_context ibv_pd ibv_mr ibv_mr_init_attr ibv_cq ibv_comp_channel ibv_qp ibv_qp_init_attr ibv_srq ibv_srq_init_attr; do
		printf '/// cbindgen:no-export\n#[repr(C)]\npub struct %s { x: u8 }\n' $type
	done
	# The library's functions are private, and published by stubs: make them public for cbindgen,
	# without the argument that a stub adds. (<infiniband/verbs.h> has none for providers.)
	sed -e '/^\/\/!/d' -e '/^    caller: Caller,$/d' -e 's/, caller: Caller)/)/' -e '/fn ibv_cmd_/!s/^unsafe extern "C" fn ibv_/#[unsafe(no_mangle)]\npub &/' src/capi/verbs.rs
} >"$work/verbs.rs"
printf 'language = "C"\nno_includes = true\nusize_is_size_t = true\nstyle = "tag"\n' >"$work/cbindgen.toml"
"$cbindgen" -q -c "$work/cbindgen.toml" -o "$work/ours.h" "$work/verbs.rs" >/dev/null
{
	echo '/* Made by ctests/packages/abi/prototypes.sh: our prototypes against those of the installed header. */'
	echo '#include <infiniband/verbs.h>'
	grep -o '\bibv_[a-z0-9_]*(' "$work/ours.h" | tr -d '(' | sed 's/^/#undef /'
	echo 'struct ibv_mr_init_attr; /* not in headers before rdma-core 59 */'
	cat "$work/ours.h"
} >"$output"
