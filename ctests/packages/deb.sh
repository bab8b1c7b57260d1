#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# deb.sh: the Debian packages are built, state their dependencies, and have the files of deb.files;
# lintian has no complaint. deb_installed.sh installs and removes them in the machine of vm/, which
# forgets all of it.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1

. packaging/tree.sh
needs dpkg-buildpackage dh lintian
check "make deb" env -u MAINTAINER make -s --no-print-directory deb
packages=(target/deb/librdmamr1_*.deb target/deb/librdmamr-dev_*.deb target/deb/librdmamr-libfabric_*.deb target/deb/rdmamr-tools_*.deb)

# The packages name the project without an address, because it has none that takes mail.
said=$(lintian --fail-on error,warning --suppress-tags malformed-contact,bogus-mail-host-in-debian-changelog target/deb/*.changes 2>&1)
check "lintian has no error and no warning" [ $? = 0 ]
grep '^[EW]:' <<<"$said" | sed 's/^/# /'

triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
contents() {
	local package
	for package in "${packages[@]}"; do
		dpkg-deb -c "$package" | sed -n "/^d/d; s|^.* \./\(.*\)|$(dpkg-deb -f "$package" Package) /\1|p"
	done | sed "s|$triplet|TRIPLET|; s|so\.$tree_version|so.VERSION|" | LC_ALL=C sort
}
# The documents are those that "make install" installs.
documents() { sed -n 's|^rdmamr-tools /usr/share/doc/rdmamr-tools/||p' <(contents) | grep -v '^changelog\|^copyright'; }
pages() { sed -n 's|^librdmamr-dev /usr/share/man/\([^ ]*\)\.gz.*|\1|p' <(contents); }
others() { grep -v "^librdmamr-dev /usr/share/man/man3/\|^rdmamr-tools /usr/share/doc/rdmamr-tools/\(docs/\|examples/\|[A-Z]*\.md$\|THIRDPARTY$\)" <(contents); }
check "their files are those of deb.files" diff -u <(grep -v '^#' "$here/deb.files") <(others)
check "and the manual pages of functions" diff <(man/names | sed -n 's|^\(man3/[^ ]*\) .*|\1|p' | LC_ALL=C sort) <(pages | LC_ALL=C sort)
check "and the documents" diff <(packaging/docs list | LC_ALL=C sort) <(documents)
telltales() { for package in target/deb/*.deb; do dpkg-deb --fsys-tarfile "$package" | grep -caF -e "$PWD" -e "$HOME/"; done | grep -vx 0; }
check "no file names a folder of the builder" [ -z "$(telltales)" ]

has() { # PACKAGE FIELD PATTERN
	dpkg-deb -f target/deb/"$1"_*.deb "$2" | grep -E -- "$3"
}
own='librdmamr1 \(= [^)]*\)'
check "the library needs the C library, and no libibverbs" has librdmamr1 Depends '^libc6 \([^)]*\), libgcc-s1 \([^)]*\)$'
check "but recommends it" has librdmamr1 Recommends '^libibverbs1$'
check "librdmamr-dev needs the library and libibverbs' headers" has librdmamr-dev Depends "^$own, libibverbs-dev$"
check "rdmamr-tools needs the library" has rdmamr-tools Depends "(^|, )$own"
check "librdmamr-libfabric needs the library and libfabric" has librdmamr-libfabric Depends "^$own, libfabric1$"
check "each names the project as its maintainer" has librdmamr1 Maintainer '^librdmamr authors$'
refused() { [[ $(env -u MAINTAINER -u HOMEPAGE UPLOAD=1 debian/build 2>&1) == *'UPLOAD=1 needs MAINTAINER'* ]]; }
check "for an archive no package is built without a maintainer and a home" refused
check "libraries of several architectures can be installed" has librdmamr1 Multi-Arch '^same$'
check "so can the headers for them" has librdmamr-dev Multi-Arch '^same$'
check "the debug symbols are packages" [ "$(find target/deb -name '*-dbgsym_*.deb' | wc -l)" = 2 ]
symbols() { dpkg-deb --ctrl-tarfile target/deb/librdmamr1_*.deb | tar -xO ./symbols; }
check "programs that use a call need librdmamr1 (>= 0.1.0~)" grep -q '^ rdmamr_get_stats@RDMAMR_1.0 0.1.0~$' <(symbols)

if [ -n "${DEVICE:-}" ]; then
	skip "installed and removed" "that is for the machine of vm/, not for one with DEVICE"
else
	results "installed" vm/run -t 600 -- ctests/packages/deb_installed.sh rxe0 1 "$tree_version" "${packages[@]}"
fi
tap_done
