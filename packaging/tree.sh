# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# tree.sh: what each package says of the tree. Source it in the tree's root; git is used where it is there.

# The tree's files: those that git lists, or, in an unpacked tarball, all outside target/.
tree_files() {
	{ git ls-files 2>/dev/null | grep . || find . -path ./target -prune -o ! -type d -printf '%P\n'; } | LC_ALL=C sort
}

# shellcheck disable=SC2034 # whoever sources this uses it
tree_version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# The project's name, or who else is to be named as the maintainer.
# shellcheck disable=SC2034
tree_maintainer=${MAINTAINER:-$(sed -n 's/^Maintainer: //p' debian/control)}

# The same tree gives the same packages. "make dist" gives each file this time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- . 2>/dev/null | grep . || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
