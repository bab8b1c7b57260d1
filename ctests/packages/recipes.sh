#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# recipes.sh: the recipes of Spack, conda-forge and EasyBuild name the tarball of "make dist" with its
# checksum, and their commands install the files that they promise. The commands run on the tree that
# make has built, without those programs and without cargo.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
unset MAKEFLAGS MAKELEVEL
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

check "packaging/recipes" packaging/recipes
spack=target/recipes/spack/rdmamr/package.py
conda=target/recipes/conda/recipe.yaml
easybuild=$(echo target/recipes/easybuild/*.eb)
check "no place for a fact is left" [ -z "$(grep -n '@[a-z0-9]*@' "$spack" "$conda" "$easybuild")" ]
for kind in spack conda easybuild; do
	recipe() { /usr/bin/python3 -B ctests/packages/recipes.py "$1" "$kind" "${!kind}" "$work/$kind"; } # WHAT
	if [ $kind = conda ] && ! /usr/bin/python3 -c 'import yaml' 2>/dev/null; then
		lacks conda python3-yaml
		continue
	fi
	if ! recipe facts >"$work/facts" 2>&1; then
		fail "$kind: it can be read" "$(cat "$work/facts")"
		continue
	fi
	mapfile -t facts <"$work/facts"
	check "$kind: its source is the tarball: ${facts[0]}" [ -s "${facts[0]#file://}" ]
	check "$kind: its checksum is the tarball's" [ "${facts[1]}" = "$(sha256sum <"${facts[0]#file://}" | cut -d ' ' -f 1)" ]
	case ${facts[2]} in -) ;; *) check "$kind: its Rust, ${facts[2]}, is that of Cargo.toml or later" sort -VC <<<"$rust"$'\n'"${facts[2]}" ;; esac
	recipe commands >"$work/commands"
	check "$kind: its commands: $(paste -sd';' "$work/commands")" env CARGO=: SRC_DIR="$work" PREFIX="$work/$kind" bash -e "$work/commands"
	missing() { recipe files | while read -r file; do [ -e "$work/$kind/$file" ] || echo "$file"; done; }
	check "$kind: they install what it promises: $(missing | paste -sd,)" [ -z "$(missing)" ]
	recipe checks >"$work/checks"
	check "$kind: its tests pass: $(paste -sd';' "$work/checks")" env PATH="$work/$kind/bin:$PATH" bash -e "$work/checks"
done
tap_done
