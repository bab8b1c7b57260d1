#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# kept.sh LIBRARY [RELEASED]: the ABI of the release in ctests/packages/abi/0.1 (its symbols, its
# headers' types and prototypes) is stable: no symbol and no structure has changed, and a program of that
# release runs on LIBRARY. With RELEASED, the library of that release ("ctests/run abi" builds it),
# abidiff compares the two, and the program is linked to it. Also: the oldest Rust, and the targets
# that are refused.
. "$(dirname "$0")/../../lib/script.sh"
cd "$here/../../.." || exit 1
library=$(realpath "$1") released=${2:+$(realpath "$2")} old=ctests/packages/abi/0.1 cc=${CC:-cc}

exported() { # LIBRARY
	readelf -W --dyn-syms "$1" | awk '$1 ~ /^[0-9]+:$/ && $5 != "LOCAL" && $7 != "UND" && $7 != "ABS" && $8 { print $8 }' | LC_ALL=C sort
}
awk '!/^#/ { for (n = 2; n <= NF; n++) print $n ($1 == "-" ? "" : $1) }' $old/librdmamr.symbols >"$work/symbols"
lost() { LC_ALL=C comm -23 <(LC_ALL=C sort "$1") <(exported "$library"); } # LIST
check "no symbol of 0.1 is lost, of $(wc -l <"$work/symbols"): $(lost "$work/symbols" | xargs)" [ -z "$(lost "$work/symbols")" ]

# The declarations of the headers, as a library whose variables have the types of all their
# functions.
carrier() { # FOLDER OUTPUT
	{
		echo '#include <rdmamr.h>'
		echo '#include <rdmamr/verbs.h>'
		echo '#include <rdmamr/fi_mr.h>'
		grep -E '^((rdmamr|fi)_|ibv_.*_relaxed)' "$work/symbols" | grep -vE '^fi_(getinfo|prov_ini)' |
			sed 's/@.*//; s/.*/__typeof__(\&&) type_of_&;/'
		echo 'struct rdmamr_segment *a_segment;'
	} >"$work/carrier.c"
	"$cc" -DRDMAMR_NO_LIBFABRIC -g -fno-eliminate-unused-debug-types -shared -fPIC -I"$1" "$work/carrier.c" -o "$2"
}
# Structures with a size grow at their end.
printf '[suppress_type]\nname_regexp = ^rdmamr_(stats|domain_attr)$\nhas_data_member_inserted_at = end\n' >"$work/grow"
same() { abidiff --no-show-locs --suppressions "$work/grow" "$@"; }
if command -v abidiff >/dev/null; then
	check "the headers of 0.1 compile" carrier $old "$work/old.so"
	check "so do the current ones" carrier include "$work/new.so"
	check "the current types are those of 0.1" same "$work/old.so" "$work/new.so"
	[ -z "$released" ] || check "the library's symbols are those of 0.1, or more" abidiff --no-added-syms "$released" "$library"
else
	lacks "the current types are those of 0.1" abidiff
fi

# The current library has the nodes of 0.1, if that of 0.1 is missing.
mkdir "$work/then" "$work/now"
ln -s "$library" "$work/now/librdmamr.so.1"
ln -s "${released:-$library}" "$work/then/librdmamr.so.1"
compile() { # FOLDER PROGRAM: with the headers of FOLDER
	"$cc" -std=gnu11 -D_GNU_SOURCE -I"$1" $here/kept.c ctests/lib/tap.c ctests/lib/stub_device.c -o "$2" \
		"$work/then/librdmamr.so.1" -libverbs -lpthread -ldl
}
check "a program of 0.1 compiles and links" compile $old "$work/program"
check "it needs the nodes of 0.1" bash -c 'readelf -V "$1" | grep -q "Name: RDMAMR_1.0"' - "$work/program"
results "a program of 0.1 runs on the current library" env LD_LIBRARY_PATH="$work/now" "$work/program"

# compile_error! is the compiler's own, so the file needs no Rust library for its target.
refused() { # TARGET WORDS
	{
		printf '#![feature(no_core, rustc_attrs)]\n#![no_core]\n#![crate_type = "lib"]\n#![allow(unused_macros)]\n'
		printf '#[rustc_builtin_macro]\nmacro_rules! compile_error { ($words:expr $(,)?) => {{}}; }\n'
		grep -v '^//!' src/abi/target.rs
	} >"$work/target.rs"
	RUSTC_BOOTSTRAP=1 rustc --edition 2024 --emit=metadata -o "$work/target.rmeta" --target "$1" "$work/target.rs" 2>&1 | grep -q "^error: librdmamr is for $2"
}
check "32 bits are refused in words: i686" refused i686-unknown-linux-gnu '64-bit programs only'
check "even if the processor has 64: x32" refused x86_64-unknown-linux-gnux32 '64-bit programs only'
check "big-endian is refused: s390x" refused s390x-unknown-linux-gnu 'little-endian processors only'
check "musl is refused" refused x86_64-unknown-linux-musl 'glibc only'
check "x86-64 is not" fails refused x86_64-unknown-linux-gnu ''
check "nor is arm64" fails refused aarch64-unknown-linux-gnu ''

# The oldest Rust is one number. clippy (incompatible_msrv) finds newer functions, and the suite
# "rust_version" builds with it.
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
packages=(Cargo.toml tool/Cargo.toml src/*/Cargo.toml src/*/*/Cargo.toml)
check "each package has the workspace's Rust, $rust" [ "$(cat "${packages[@]}" | grep -c '^rust-version.workspace = true')" = "$(cat "${packages[@]}" | grep -c '^\[package\]')" ]
check "so do README and docs/use.md" bash -c 'grep -q "Rust $1 or later" README.md && grep -q "Rust $1 or later" docs/use.md' - "$rust"
tap_done
