#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# headers.sh CBINDGEN LAYOUT.c LIBFABRIC_LAYOUT.c: the headers agree with the source, and compile in
# every C; their prototypes and the library's structures are those of the installed headers.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
cbindgen=$1 layout=$2 fabric_layout=$3
cc=${CC:-cc} cxx=${CXX:-c++}
strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude)

check "the headers can be made" make -s --no-print-directory headers cbindgen="$cbindgen" headers_in="$work"
for header in rdmamr.h rdmamr/verbs.h rdmamr/fi_mr.h; do
	check "include/$header agrees with the source (if not: make headers)" diff -u "include/$header" "$work/$header"
done

echo '#include <rdmamr.h>' >"$work/one.c"
echo '#include <rdmamr/verbs.h>
struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int) = ibv_reg_mr_relaxed;
int (*dereg)(struct ibv_mr *) = ibv_dereg_mr_relaxed;
int (*flush)(struct ibv_pd *) = ibv_flush_relaxed_mr;' >"$work/relaxed.c"
sed 's|rdmamr/verbs.h|infiniband/verbs.h|' "$work/relaxed.c" >"$work/solaris.c"
echo '#include <rdmamr/fi_mr.h>
int (*reg)(struct fid_domain *, const void *, size_t, uint64_t, uint64_t, uint64_t, uint64_t, struct fid_mr **, void *) = fi_mr_reg;
int (*resolve)(struct fid_domain *, uint64_t, uint64_t, size_t, struct rdmamr_segment *, size_t *) = rdmamr_resolve;
uint64_t access = FI_READ | FI_REMOTE_WRITE | RDMAMR_MR_KEY | RDMAMR_MR_OFFSET;' >"$work/fabric.c"
{ echo '#define RDMAMR_OLD_NAMES'; cat "$work/fabric.c"; echo 'uint64_t old = FI_MR_KEY | FI_MR_OFFSET | FI_PROV_MR_ATTR | FI_DYNAMIC_MR | FI_LOCAL_MR;'; } >"$work/old.c"
# Programs that read headers get typed constants: no expression may have one in C, so C++ compares.
{
	printf '#define RDMAMR_TYPED_CONSTANTS\n#include <rdmamr.h>\n#include <rdmamr/fi_mr.h>\n#include <type_traits>\n'
	sed -n -e 's/^#define \([A-Z_0-9]*\) \(.*ull.*\)/same(\1, (\2), uint64_t)/p' -e 's/^#define \([A-Z_0-9]*\) \([0-9(][^u]*\)$/same(\1, \2, int)/p' \
		include/rdmamr.h include/rdmamr/fi_mr.h |
		sed 's/^same(\(.*\), \(.*\), \(.*\))$/static_assert(\1 == \2 \&\& std::is_same<decltype(\1), const \3>::value, "\1");/'
} >"$work/typed.c"
printf '#include <rdmamr/fi_mr.h>\n#include <rdma/fi_domain.h>\n#include <rdma/fi_errno.h>\n' >"$work/before.c"
# NAME | FILE | STANDARDS | OPTIONS. <infiniband/verbs.h> itself is not pedantic.
while IFS='|' read -r name file standards options; do
	for standard in $standards; do
		compiler=("$cc") language=c
		[[ $standard != *++* ]] || compiler=("$cxx") language=c++
		# shellcheck disable=SC2086 # words
		check "$name as $standard" "${compiler[@]}" -std="$standard" -Wall -Wextra -Werror -fsyntax-only -Iinclude $options -x $language "$work/$file.c"
	done
done <<-ROWS
	include/rdmamr.h|one|c99 c11 c2x c++11|-Wpedantic
	include/rdmamr/verbs.h|relaxed|gnu99 gnu11 gnu2x gnu++11|
	a source that includes <infiniband/verbs.h> alone|solaris|gnu99 gnu11 gnu2x gnu++11|-Iinclude/rdmamr/compat
	the same, pedantic|solaris|gnu99 gnu11|-Iinclude/rdmamr/compat -Wpedantic
	include/rdmamr/fi_mr.h with libfabric|fabric|c99 gnu11 gnu2x gnu++11|
	include/rdmamr/fi_mr.h without it|fabric|c99 gnu11 gnu2x gnu++11|-DRDMAMR_NO_LIBFABRIC -Wpedantic
	its typed constants|typed|gnu++11|-DRDMAMR_NO_LIBFABRIC
	the old names with libfabric|old|gnu11 gnu++11|
	the old names without it|old|gnu11 gnu++11|-DRDMAMR_NO_LIBFABRIC
	without libfabric, in front of libfabric's headers|before|gnu11|-DRDMAMR_NO_LIBFABRIC
ROWS
check "$(grep -c '^static_assert' "$work/typed.c") constants are compared with the macros" [ "$(grep -c '^static_assert' "$work/typed.c")" -gt 80 ]
if python3 -c 'import cffi' 2>/dev/null; then
	check "Python's cffi reads the calls and the constants (docs/fabric.md)" python3 -B ctests/packages/headers_cffi.py
else
	lacks "Python's cffi reads the calls and the constants" python3-cffi
fi
if command -v bindgen >/dev/null; then
	check "bindgen reads include/rdmamr/fi_mr.h (docs/fabric.md)" \
		bindgen -o "$work/fi_mr.rs" include/rdmamr/fi_mr.h -- -DRDMAMR_NO_LIBFABRIC -DRDMAMR_TYPED_CONSTANTS
	check "with each of libfabric's calls" [ "$(grep -c 'pub fn fi_' "$work/fi_mr.rs")" = 19 ]
	check "and constants of 64 bits" grep -q '^pub const FI_KEY_NOTAVAIL: u64 = 18446744073709551615;' "$work/fi_mr.rs"
else
	lacks "bindgen reads include/rdmamr/fi_mr.h" bindgen
fi
# The header's replacements for libfabric's: the same calls and structures. Each of our prototypes,
# under another name, must have the type of libfabric's inline function.
{
	printf '#include <rdma/fi_domain.h>\n#include <rdma/fi_eq.h>\n'
	perl -0777 -ne '
		while (/^((?:const )?\w+ \*?)(fi_\w+)(\([^;]*\));/mg) {
			print "$1ours_$2$3;\n";
			print "_Static_assert(__builtin_types_compatible_p(__typeof__($2), __typeof__(ours_$2)), \"$2\");\n";
		}' include/rdmamr/fi_mr.h
} >"$work/fabric_prototypes.c"
check "each of libfabric's calls is compared" [ "$(grep -c '^_Static_assert(__builtin' "$work/fabric_prototypes.c")" = 19 ]
check "their prototypes are those of libfabric's inlines" "$cc" -std=gnu11 -Iinclude -fsyntax-only "$work/fabric_prototypes.c"

# The interposed calls as cbindgen reads them from the library's own functions: a compiler accepts them
# behind <infiniband/verbs.h> only if they are equal.
{
	# Opaque twins of rdma-core's structures come out as "struct ibv_pd *", undeclared.
	for type in ibv_context ibv_pd ibv_mr ibv_mr_init_attr ibv_cq ibv_comp_channel ibv_qp ibv_qp_init_attr ibv_srq ibv_srq_init_attr; do
		printf '/// cbindgen:no-export\n#[repr(C)]\npub struct %s { x: u8 }\n' $type
	done
	# The library's functions are private, and published by stubs: make them public for cbindgen,
	# without the argument that a stub adds. (<infiniband/verbs.h> has none for providers.)
	sed -e '/^\/\/!/d' -e '/^    caller: Caller,$/d' -e 's/, caller: Caller)/)/' -e '/fn ibv_cmd_/!s/^unsafe extern "C" fn ibv_/#[unsafe(no_mangle)]\npub &/' src/capi/verbs.rs
} >"$work/verbs.rs"
printf 'language = "C"\nno_includes = true\nusize_is_size_t = true\nstyle = "tag"\n' >"$work/cbindgen.toml"
check "the library's functions for cbindgen" "$cbindgen" -q -c "$work/cbindgen.toml" -o "$work/ours.h" "$work/verbs.rs"
calls() { grep -o '\bibv_[a-z0-9_]*' | grep -ve relaxed -e '^ibv_cmd_' | LC_ALL=C sort -u; }
functions() { grep -o '\bibv_[a-z0-9_]*(' "$work/ours.h" | tr -d '('; }
check "all of them" diff <(calls <src/capi/librdmamr.map) <(functions | calls)
{
	echo '#include <infiniband/verbs.h>'
	# The header's macros of the same names.
	functions | sed 's/^/#undef /'
	echo 'struct ibv_mr_init_attr; /* not in headers before rdma-core 59 */'
	cat "$work/ours.h"
} >"$work/prototypes.c"
check "their prototypes are those of <infiniband/verbs.h>" "$cc" -std=c11 "${strict[@]}" "$work/prototypes.c"

newer=()
echo '#include <infiniband/verbs.h>
int main(void) { return IBV_REG_MR_MASK_ADDR; }' >"$work/newer.c"
if "$cc" -fsyntax-only "$work/newer.c" 2>/dev/null; then
	newer=(-DHAVE_IBV_REG_MR_EX)
	pass "struct ibv_mr_init_attr is compared too"
else
	skip "struct ibv_mr_init_attr" "the installed rdma-core is older than 59 and has none"
fi
check "the library's structures and constants are those of the installed headers ($(grep -c _Static_assert "$layout") assertions)" \
	"$cc" -std=c11 -fsyntax-only "${newer[@]}" "$layout"
# libfabric's, of the installed release and of newer ones.
check "the library's structures are those of libfabric $(pkg-config --modversion libfabric) ($(grep -c _Static_assert "$fabric_layout") assertions)" \
	"$cc" -std=gnu11 -fsyntax-only "$fabric_layout"
trixie=target/libfabric/trixie-run
if ctests/fabric/monitor/libfabric_run trixie >/dev/null; then
	headers=$trixie/usr/include
	newer=$(sed -n 's/#define FI_M[AJINO]*R_VERSION //p' "$headers/rdma/fabric.h" | paste -sd .)
	# Some names are deprecated there, and unchanged.
	lasting=("$cc" -std=gnu11 -w -isystem "$headers")
	check "the old names with libfabric $newer, without a warning" "$cc" -std=gnu11 -Wall -Wextra -Werror -isystem "$headers" -Iinclude -fsyntax-only "$work/old.c"
	check "the library's structures are those of libfabric $newer" "${lasting[@]}" -fsyntax-only "$fabric_layout"
	check "include/rdmamr/fi_mr.h with libfabric $newer" "${lasting[@]}" -Iinclude -fsyntax-only "$work/old.c"
	check "the library's prototypes are those of libfabric $newer" "${lasting[@]}" -Iinclude -fsyntax-only "$work/fabric_prototypes.c"
else
	skip "the library's structures with Debian trixie's libfabric" "its headers could not be downloaded (see $trixie/log)"
fi
tap_done
