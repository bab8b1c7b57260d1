#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# man.sh: the manual pages agree with their sources and cause no warning of a formatter, each public
# function has one, and their examples compile.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
export LC_ALL=C.UTF-8

# The common formatter, and a stricter one. scdoc begins a needless paragraph; mandoc leaves it out,
# and reports that.
formats() { [ -z "$(man --warnings -l "$1" 2>&1 >/dev/null | tee /dev/stderr)" ]; }
lints() { [ -z "$(mandoc -T lint -W warning "$1" | grep -v 'skipping paragraph macro' | tee /dev/stderr)" ]; }
fits() { ! MANWIDTH=80 man -l "$1" 2>/dev/null | col -bx | grep -E '.{81,}' >&2; }
# As a reader copies it from the screen.
example() { MANWIDTH=200 man -l "$1" 2>/dev/null | col -bx | awk '/^[^ ]/ { inside = /^EXAMPLES?$/; next } inside'; }

for source in man/*.scd; do
	page=${source%.scd} made=$work/${source##*/}
	made=${made%.scd}
	scdoc <"$source" >"$made"
	# The page has the date of its generation.
	check "$page agrees with its source (if not: make man)" diff -u -I '^\.TH' "$page" "$made"
	check "$page: no warning of man" formats "$page"
	check "$page: no warning of mandoc" lints "$page"
	check "$page: no line has more than 80 columns" fits "$page"
	case $page in *.3*) ;; *) continue ;; esac
	example "$page" >"$work/example.c"
	check "$page: it has an example" [ -s "$work/example.c" ]
	check "$page: its example compiles" cc -std=gnu11 -Wall -Wextra -Werror -Iinclude -c "$work/example.c" -o "$work/example.o"
done
check "each page has a source" [ "$(find man -name '*.[1-9]*' ! -name '*.scd' | wc -l)" = "$(find man -name '*.scd' | wc -l)" ]

# Declarations begin at the margin, and end at the first semicolon.
declared() { sed -n 's/^[a-z].*[ *]\([a-z_0-9]*\)(.*/\1/p' include/rdmamr.h include/rdmamr/*.h; }
mkdir -p "$work/share/man"
while read -r file page; do
	mkdir -p "$work/share/man/${file%%/*}"
	if [ "${file##*/}" = "$page" ]; then cp "man/$page" "$work/share/man/$file"; else echo ".so ${file%%/*}/$page" >"$work/share/man/$file"; fi
done < <(man/names)
documented() { # FUNCTION: by its name, with and without the section, and in the synopsis
	[ -n "$(man -M "$work/share/man" -w "$1")" ] && [ -n "$(man -M "$work/share/man" -w 3 "$1")" ] &&
		man -M "$work/share/man" "$1" | col -bx | awk '/^[^ ]/ { inside = $1 == "SYNOPSIS"; next } inside' | grep -q "[ *]$1("
}
# The symbols that the library exports as its own, except those that libfabric calls, and the
# relaxed calls.
exported() { sed -n 's/@@RDMAMR_1\.[0-9]*$//p; /_relaxed/s/@@.*//p' ctests/packages/abi/librdmamr.symbols | grep -v '^fi_prov_ini$'; }
check "the headers declare the library's exports" diff <(exported | sort) <(declared | sort)
while read -r name; do check "man $name" documented "$name"; done < <(declared)

# Each command of the program has a section and a synopsis.
commands() { sed -n '/^enum Command/,/^}/s/^    \([A-Z][a-z]*\)(.*/\1/p' tool/src/main.rs; }
check "the program has commands: $(commands | tr '\n' ' ')" [ "$(commands | wc -l)" -ge 4 ]
while read -r name; do
	check "rdmamr(1) has $name" grep -q "^\.SH RDMAMR ${name^^}$" man/rdmamr.1
	check "and its synopsis" grep -qF "\\fBrdmamr ${name,,}\\fR" man/rdmamr.1
done < <(commands)

# Each name of the table is in docs/use.md, and in the page if people may set it.
settings() { grep -oP 'name: c"\K_?RDMAMR_[A-Z_]+' src/config/lib.rs; }
check "the table has settings" settings
while read -r name; do
	[[ $name = _* ]] || check "rdmamr(7) has $name" grep -q "$name" man/rdmamr.7
	check "docs/use.md has $name" grep -qF "| \`$name\` |" docs/use.md
done < <(settings)
tap_done
