#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# rust_version.sh: a tree of Debian 13 with Debian's own Rust, the oldest that Cargo.toml allows, builds
# the tarball with the crates, installs it, and makes the Debian packages: without a network, and with
# no package but Build-Depends.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
. packaging/tree.sh
unset MAKEFLAGS MAKELEVEL SOURCE_DATE_EPOCH

[ "$EUID" = 0 ] || skip_all "a tree of Debian 13 needs root"
unshare --mount true 2>/dev/null || skip_all "unshare is refused, as in a chroot"
said=$(vm/tree build 2>&1) || skip_all "the tree of Debian 13 could not be made: $(tail -n 1 <<<"$said")"
work=$PWD/target/rust_version
rm -rf "$work"
mkdir -p "$work"
said=$(packaging/vendored "$work" 2>&1) || skip_all "the crates could not be downloaded: $(tail -n 1 <<<"$said")"
tarball=librdmamr-$tree_version-vendored.tar.gz
check "the tarball with the crates" [ -s "$work/$tarball" ]
check "is made again" packaging/vendored "$work/again"
check "the same, byte for byte: $(stat -c %s "$work/$tarball") bytes" cmp "$work/$tarball" "$work/again/$tarball"
tar -xzf "$work/$tarball" -C "$work"
tree=$work/librdmamr-$tree_version

inside() { # COMMAND: in the tree of Debian 13, by a machine without a network and a user without crates
	unshare --net vm/in-tree build env -i PATH=/usr/bin:/bin HOME="$work/home" LC_ALL=C.UTF-8 bash -euc "cd '$tree'; $1"
}
mkdir -p "$work/home"
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
check "Debian 13 has Rust $rust: $(inside 'rustc --version; cargo --version' | paste -sd,)" grep -q "^rustc $rust\." <<<"$(inside 'rustc --version')"
check "of a package" inside 'dpkg -S "$(command -v rustc)" "$(command -v cargo)"'
refused() { ! inside 'bash -c "echo >/dev/tcp/1.1.1.1/80"' 2>/dev/null; }
check "there is no network" refused
check "make" inside 'make -s all'
check "make install" inside "make -s install DESTDIR='$work/installed' PREFIX=/usr"
check "the program runs: $(inside "'$work/installed/usr/bin/rdmamr' --version" 2>&1 | head -2 | paste -sd,)" \
	grep -qx "rdmamr $tree_version" <<<"$(inside "'$work/installed/usr/bin/rdmamr' --version" 2>&1)"
symbols() { readelf -W --dyn-syms "$1" | awk '$5 != "LOCAL" && $7 != "UND" && $7 != "ABS" && $8 { print $8 }' | sort -u; }
check "the library has the symbols of the one that was built here" \
	diff <(symbols target/release/librdmamr.so) <(symbols "$work/installed/usr/lib/librdmamr.so.1")

check "Build-Depends are there, and suffice for the packages" inside 'dpkg-checkbuilddeps debian/control && debian/build'
packages() { find "$tree/target/deb" -name '*.deb' ! -name '*-dbgsym_*' -printf '%f\n' | sort; }
check "the packages: $(packages | paste -sd' ')" [ "$(packages | wc -l)" = 4 ]
contents() {
	local package
	for package in "$tree"/target/deb/*.deb; do
		[[ $package != *-dbgsym_* ]] || continue
		dpkg-deb -c "$package" | sed -n "/^d/d; s|^.* \./\(.*\)|$(dpkg-deb -f "$package" Package) /\1|p"
	done | sed "s|$(uname -m)-linux-gnu|TRIPLET|; s|so\.$tree_version|so.VERSION|" | grep -v "^librdmamr-dev /usr/share/man/man3/\|^rdmamr-tools /usr/share/doc/rdmamr-tools/\(docs/\|examples/\|[A-Z]*\.md$\|THIRDPARTY$\)" | LC_ALL=C sort
}
# Debian 13's debhelper installs units below /usr.
check "their files are those of deb.files" diff -u <(grep -v '^#' "$here/deb.files" | sed 's| /lib/systemd| /usr/lib/systemd|') <(contents | sed 's| /lib/systemd| /usr/lib/systemd|')
check "rdmamr-tools has the licences of the crates" grep -q '/THIRDPARTY$' <<<"$(dpkg-deb -c "$tree"/target/deb/rdmamr-tools_*.deb)"
tap_done
