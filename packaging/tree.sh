# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# tree.sh: facts about the tree that every package needs. Source it in the tree's root. It uses git
# if the tree has it.

# The tree's files: those that git lists, or, in an unpacked tarball, all outside target/ and what
# packaging/vendored adds.
tree_files() {
	{ git ls-files 2>/dev/null | grep . || find . \( -path ./target -o -path ./vendor -o -path ./.cargo \) -prune -o ! -type d -printf '%P\n'; } | LC_ALL=C sort
}

# shellcheck disable=SC2034 # the sourcing script uses it
tree_version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# The maintainer's name: the project's, unless $MAINTAINER names another.
# shellcheck disable=SC2034
tree_maintainer=${MAINTAINER:-$(sed -n 's/^Maintainer: //p' debian/control)}

# Gives every file this time, so that the same tree gives the same packages. "make dist" uses it
# too.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- . 2>/dev/null | grep . || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
