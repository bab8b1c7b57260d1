#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# docs.sh: checks of the documents: lengths, links, spelling, and figures, which must be those of
# the benchmarks. The checks of docs.py are first shown a document with the mistakes.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
export LC_ALL=C.UTF-8

. packaging/tree.sh
mapfile -t documents < <(tree_files | grep '\.md$')

# What docs.py looks for, first in a document with so many mistakes, on standard input, and then in
# the files.
looks() { # MODE NUMBER WHAT FILE...
	local mode=$1 number=$2 what=$3
	shift 3
	cat >"$work/$mode.md"
	check "$mode: mistakes are found" [ "$(ctests/packages/docs.py "$mode" "$work/$mode.md" | wc -l)" = "$number" ]
	check "$what: ${#@} documents" ctests/packages/docs.py "$mode" "$@"
}
looks links 3 "each link leads to a file, and to a heading of it" "${documents[@]}" <<-END
	# A heading, and \`code\`

	[a file](nowhere.md) and [a heading](#nothing), over a line's [end
	too](nowhere/else.md). [This one](#a-heading-and-code) is right, and so is
	[this](https://example.org).

	    [code](is/no/link)
END
looks columns 1 "prose has at most 100 columns" "${documents[@]}" <<-END
	This line has far more than one hundred columns, because nobody has broken it where a reader's eye would have needed it.

	| a table | may be as wide as it wants to be, since Markdown has no way to break the line of a table, as everybody knows |
END
looks messages 1 "the explained messages are the library's" docs/troubleshooting.md docs/gpu.md <<-END
	| the line says | what to do |
	| --- | --- |
	| \`the length is 0\` | this is a message of the library |
	| \`the length ... is green\` | this is none |
END
looks refusals 2 "docs/gpu.md quotes each refusal of a GPU's memory" docs/gpu.md < <(grep -v 'two handles' docs/gpu.md)
# CHANGELOG.md names those of its time.
looks targets 3 "the targets, tests and benchmarks that documents name exist" "${documents[@]/#CHANGELOG.md/README.md}" <<-END
	\`make check\`, \`ctests/run soak 2\` and \`bench/run relaxed\` are there; \`make nothing\` and
	\`ctests/run relaxed\` are not.

	    make clean             # make anything of it
	    bench/run soak
END
mapfile -t present < <(tree_files | grep '\.md$' | grep -v '^CHANGELOG')
looks paths 2 "the paths that documents name are in the tree" "${present[@]}" \
	<<<'The rules are in `src/nowhere/rules.rs`, `src/mr/` and `src/mr/nothing.rs`.'
looks tests 3 "the tests that SECURITY.md names exist" SECURITY.md <<-END
	| what | what happens | tests |
	| --- | --- | --- |
	| a | these are there | \`docs\` "README has at most", \`no_link_is_followed\` |
	| b | none | \`no_such_suite\`, \`docs\` "nothing$((1)) says so" |
	| c | none | |
END

mkdir -p "$work/site/part"
echo '<h1 id="top">A</h1> <a href="part/other.html#here">right</a> <a href="part/other.html#there">wrong</a>' >"$work/site/index.html"
echo '<p id="here"></p> <a href="../index.html#top">right</a> <img src="none.png"> <a href="https://example.org/">elsewhere</a>' >"$work/site/part/other.html"
check "a broken link of a site is found" [ "$(packaging/site check "$work/site" | grep -c "no such")" = 2 ]
unlisted() { find docs -name '*.md' ! -name SUMMARY.md -printf '%P\n' | while read -r page; do grep -qF "]($page)" docs/SUMMARY.md || echo "$page"; done; }
check "docs/SUMMARY.md, the site's contents, has each page of docs/: $(unlisted | paste -sd,)" [ -z "$(unlisted)" ]
check "the site's pages link to pages of the site" packaging/site prepare

check "docs/results/faults.md has each fault, withstood, and its suite" python3 -B ctests/special/faults/page.py check
# The last column is librdmamr's.
stale() { grep '^| stale, of' docs/results/peers.md | awk -F ' *[|] *' '{ sum += $(NF - 1) } END { print NR ? sum : "no row" }'; }
check "no table of docs/results/peers.md has a stale region of librdmamr" [ "$(stale)" = 0 ]
check "README has at most 150 lines and 10 000 bytes: $(wc -lc <README.md | tr -s ' ')" [ "$(wc -l <README.md)" -le 150 -a "$(wc -c <README.md)" -le 10000 ]

# Words that are right here: of Rust, of a test's argument, and the name of ROCm's header.
# perftest prints "syndrom".
spelt() { codespell -L crate,clos,statics,hsa,syndrom "$@"; }
if command -v codespell >/dev/null; then
	# The pages under man/ are generated, with commands that look like words.
	mapfile -t sources < <(tree_files | grep -vE '^(Cargo\.lock|THIRDPARTY|man/[^.]*\.[1-9][a-z]*|.*\.png|.*\.xz)$')
	check "words are spelt right: ${#sources[@]} files" spelt "${sources[@]}"
else
	lacks spelling codespell
fi

# A copy, with figures that differ, and one without a source.
mkdir -p "$work/copy/bench"
cp -r README.md Makefile docs "$work/copy"
cp bench/figures "$work/copy/bench"
sed -i -e '/^| a message to 512 B/s/| \([0-9.]* us\)/| 9\1/' "$work/copy/README.md"
sed -i '0,/^| 4 KiB | [0-9.]* |/s/^| 4 KiB | /&9/' "$work/copy/docs/results/figures.md"
echo "It takes 5 ms." >>"$work/copy/docs/use.md"
check "wrong figures are found" \
	[ "$("$work/copy/bench/figures" check | grep -cE ' in docs/results/figures.tsv, and | has no source$')" = 3 ]
check "figures are those of docs/results/figures.tsv" bench/figures check

# What is shipped has no marks of our programs.
marks() { grep -rn '<!--' README.md CHANGELOG.md SECURITY.md docs examples man packaging --include='*.md' --include='*.scd'; }
check "no comment stands in a document: $(marks | head -1)" [ -z "$(marks)" ]
tap_done
