#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# dist.sh: the tarball of "make dist" has the tree's files, and its targets start without git.
# "packaging/dist_check" builds it.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
. packaging/tree.sh

check "make dist" packaging/dist "$work/first"
tarball=librdmamr-$tree_version.tar.gz
tar -xzf "$work/first/$tarball" -C "$work"
tree=$work/librdmamr-$tree_version
there() { (cd "$tree" && find . ! -type d -printf '%P\n' | LC_ALL=C sort); }
check "it has the tree's files, all $(there | wc -l)" diff <(tree_files) <(there)
differ() { tree_files | while read -r file; do cmp "$file" "$tree/$file" || echo "$file differs"; done 2>&1; }
check "unchanged: $(differ | head -3 | xargs)" [ -z "$(differ)" ]
owners() { tar -tvf "$work/first/$tarball" | awk '{ print $2 }' | sort -u; }
check "they belong to root: $(owners | xargs)" [ "$(owners)" = 0/0 ]

# From here on git is missing.
mkdir "$work/bin"
printf '#!/bin/sh\necho "git was called: $*" >>%s/git\nexit 127\n' "$work" >"$work/bin/git"
chmod +x "$work/bin/git"
export PATH=$work/bin:$PATH
unset MAKEFLAGS MAKELEVEL SOURCE_DATE_EPOCH
cd "$tree" || exit 1
packages() { cargo metadata --offline --locked --no-deps --format-version 1 | grep -o '"id":"[^"]*librdmamr[^"]*"' | wc -l; }
check "cargo finds the $(packages) packages of the workspace" [ "$(packages)" = $(($(grep -c . <(sed -n 's/^members = //p' Cargo.toml | grep -o '"[^"]*"')) + 1)) ]
# make runs a line with "+" for -n too, and those call cargo.
check "make starts: all, check, install, deb, dist" make -s -n --no-print-directory CARGO=: all check install deb dist
check "the tarball of the unpacked tree" packaging/dist "$work/second"
check "is the same, byte for byte" cmp "$work/first/$tarball" "$work/second/$tarball"
check "git is tried, and not needed" [ -s "$work/git" ]
tap_done
