#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# source.sh: checks of the source files: format, lints, licences, and the table of tests. The suite
# "lints" has clippy read the unit tests and the program rdmamr too, whose crates take a minute.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
. packaging/tree.sh

check "the code is formatted (if not: cargo fmt --all)" cargo fmt --all --check
members=(--workspace --exclude rdmamr-tool)
check "clippy has no complaint" cargo clippy -q "${members[@]}" -- -D warnings
check "the comparison of pyverbs' results passes its doctests" python3 -B -m doctest ctests/plain/programs/pyverbs_compare.py
check "the verdict on a long run passes its doctests" python3 -B -m doctest ctests/special/soak/verdict.py

# Unit tests may do both. What reads /proc and /sys by constant names cannot be led astray.
elsewhere() { # PATTERN FILE...: lines of the tool beyond these files that match
	find tool/src -name '*.rs' ! -name '*tests.rs' "${@:2}" -exec awk -v pattern="$1" 'FNR == 1 { test = 0 } /^#\[cfg\(test\)\]/ { test = 1 }
		!test && $0 ~ pattern { print FILENAME ": " $0 }' {} +
}
opens() { elsewhere 'File::(open|create|options)|OpenOptions::|fs::(write|copy|rename|create_dir)|libc::open' ! -path 'tool/src/files*' ! -path tool/src/bench/memory.rs; }
check "no other part of the tool opens files: $(opens)" [ -z "$(opens)" ]
prints() { elsewhere '\.display\(\)|print(ln)?!|write.*std(out|err)\(\)|std(out|err)\(\)\.lock' ! -path tool/src/style.rs ! -path tool/src/report/output.rs; }
check "text from outside is printed by one function: $(prints)" [ -z "$(prints)" ]

# vm/hca is a kernel module.
missing=()
while read -r file; do
	[ -e "$file" ] || continue
	case $file in Cargo.lock | LICENSE-* | THIRDPARTY | *.md | *.json | *.symbols | *.in | *.png | *.svg | man/*.[1-9] | man/*.3rdmamr | debian/source/format | .gitignore | ctests/fuzz/corpus/* | vm/hca/COPYING) continue ;; esac
	licence="MIT OR Apache-2.0"
	[[ $file != vm/hca/* ]] || licence=GPL-2.0-only
	head -5 "$file" | grep -q "SPDX-License-Identifier: $licence" || missing+=("$file")
done < <(tree_files)
check "each source file has its licence line: ${missing[*]:-all}" [ ${#missing[@]} = 0 ]

check "THIRDPARTY has the linked crates of Cargo.lock (if not: packaging/thirdparty >THIRDPARTY)" diff <(packaging/thirdparty) THIRDPARTY

# A wheel from an index is one of packaging/wheels, by its hash.
unpinned() { tree_files | grep -vE '\.md$|^ctests/packages/source.sh$' | xargs -d '\n' grep -HnE 'pip\b.*\b(download|install)\b.*(-d|--target)' 2>/dev/null | grep -vE -- '--require-hashes|--no-index'; }
check "each wheel that a script downloads has a hash: $(unpinned | head -2 | paste -sd,)" [ -z "$(unpinned)" ]

# Others can move a tag of an action or of an image.
tags() {
	grep -hoE 'uses: *[^ ]+' .github/workflows/* | grep -vE '@[0-9a-f]{40}$'
	grep -hoE '(^FROM|image:) +[^$ ]+|^ *- [^ ]*[a-z]:[^ ]+' .github/workflows/* packaging/Containerfile | grep -vE '@sha256:[0-9a-f]{64}$'
}
check "each action has a commit, and each image a digest: $(tags | xargs)" [ -z "$(tags)" ]
check "no workflow runs what the network sends" fails grep -nE '(curl|wget).*\|.*\b(ba|da)?sh\b' .github/workflows/*
check "nor has more rights than to read the repository" [ "$(grep -hA1 '^ *permissions:' .github/workflows/* | xargs)" = "permissions: contents: read" ]

rows() { grep -v '^#' ctests/manifest | grep .; }
sources() { rows | awk '$2 != "-" { print $2 }'; }
unlisted() { comm -13 <(sources | sort -u) <(find ctests \( -name '*.c' -o -name '*.rs' \) ! -path 'ctests/lib/*' | sort); }
twice() { rows | awk '$1 != "-" { print $1 }' | sort | uniq -d; }
# Shell words that name a file of the tests must name an existing one.
scripts() { rows | grep -o 'ctests/[a-z_/]*\.\(sh\|py\)' | sort -u | while read -r file; do [ -e "$file" ] || echo "$file"; done; }
idle() { rows | awk '($4 == "-") != ($6 == "-") || $4 != "-" && $5 < 600 { print $1 }'; }
check "each C file of the tests is in a row of ctests/manifest: $(unlisted | xargs)" [ -z "$(unlisted)" ]
check "and each script that a row runs: $(scripts | xargs)" [ -z "$(scripts)" ]
check "no two rows have a name: $(twice | xargs)" [ -z "$(twice)" ]
# WHERE is places with commas between them, and a plus before one that only "make check-all" runs.
odd() { rows | awk '$4 != "-" && $4 !~ /^\+?(host|rxe|siw)(-[a-z0-9.]+)?(,\+?(host|rxe|siw)(-[a-z0-9.]+)?)*$/ { print $1 }'; }
check "each place exists: $(odd | xargs)" [ -z "$(odd)" ]
check "a row with a place has a command and a limit of 600 s or more, and no other has: $(idle | xargs)" [ -z "$(idle)" ]
check "the code that lemmas.py breaks is there" python3 -B ctests/special/mutants/lemmas.py --gone
tap_done
