#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# site.sh: "make site" makes the site, all of whose links lead somewhere, and its search finds a word
# without a server.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
unset MAKEFLAGS MAKELEVEL

check "make site" make -s --no-print-directory site
pages() { grep -o '](\([^)]*\.md\))' docs/SUMMARY.md | tr -d '()]' | sed -E 's|^([^.])|docs/\1|; s|^\.\./||; s|(^\|/)README\.md$|\1index.md|; s|md$|html|'; }
missing() { pages | while read -r page; do [ -s "target/site/html/$page" ] || echo "$page"; done; }
check "it has each page of the contents, $(pages | wc -l): $(missing | paste -sd,)" [ -z "$(missing)" ]
if command -v chromium >/dev/null; then
	chromium --headless=new --no-sandbox --disable-gpu "--user-data-dir=$work" --virtual-time-budget=8000 --dump-dom \
		"file://$PWD/target/site/html/index.html?search=memlock" >"$work/page" 2>/dev/null
	check "its search finds memlock in docs/troubleshooting.md" grep -q '<li><a href="docs/troubleshooting.html?highlight=memlock#' "$work/page"
else
	lacks "its search" chromium
fi
tap_done
