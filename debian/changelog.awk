#!/usr/bin/awk -f
# SPDX-License-Identifier: MIT OR Apache-2.0
# changelog.awk: CHANGELOG.md as debian/changelog. Needs -v maintainer=, and version= and date= for
# the unreleased part. A release's heading is "## [1.2.3] - 2026-01-31".
function entry(n, words, i, line) { # the collected item, in lines of 80
	n = split(item, words, /[ \t]+/)
	line = "  *"
	for (i = 1; i <= n; i++) {
		if (length(line " " words[i]) > 80) { print line; line = "   " }
		line = line " " words[i]
	}
	if (n) print line
	item = ""
}
function finish() {
	entry()
	if (open) printf "\n -- %s  %s\n\n", maintainer, date
}
/^## / {
	finish()
	open = 1
	if ($2 != "Unreleased") {
		version = $2
		gsub(/[][]/, "", version)
		("date -uRd " $4) | getline date
	}
	printf "rdmamr (%s) %s; urgency=medium\n", version, $2 == "Unreleased" ? "UNRELEASED" : "unstable"
	next
}
open && /^### / { entry(); printf "\n  [ %s ]\n", substr($0, 5); next }
open && /^- / { entry(); item = substr($0, 3); next }
open && /^  [^ ]/ { item = item " " substr($0, 3) }
END { finish() }
