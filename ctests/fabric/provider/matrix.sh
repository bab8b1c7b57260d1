#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# matrix.sh LIBRARY [BUILT]: the answers of libfabric's providers rdmamr, tcp and verbs to the same
# calls, as a Markdown table for docs/fabric.md, and TAP: the library's answers are those of
# docs/fabric.md. The others' are printed and not judged.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../lib/tap.sh"
[ $# -ge 1 ] || { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
library=$(realpath "$1") built=${2:-$here/../../../target/ctests}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
matrix=$built/matrix
if [ ! -x "$matrix" ]; then
	matrix=$work/matrix
	"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g "$here/matrix.c" -o "$matrix" -lfabric || exit
fi
mkdir "$work/providers"
ln -s "$library" "$work/providers/librdmamr-fi.so"

providers=(rdmamr tcp verbs)
for provider in "${providers[@]}"; do
	FI_PROVIDER_PATH=$work/providers timeout 600 "$matrix" "$provider" >"$work/$provider" 2>"$work/$provider.stderr"
	echo "# $provider: exit status $?, $(sed -n 's/^# //p' "$work/$provider" | paste -sd' ')"
done

# The rows of that table, each as QUESTION|ANSWER, in the order of the program's questions.
documented=$(sed -n '/^| call | rdmamr |/,/^$/{ /^| call \|^| ---\|^$/d; s/^| \(.*\) | \([^|]*\) | [^|]* | [^|]* |$/\1|\2/; s/|`\(-FI_[A-Z]*\)`$/|\1/; p }' "$here/../../../docs/fabric.md")
check "docs/fabric.md has $(wc -l <<<"$documented") answers" [ "$(wc -l <<<"$documented")" -ge 20 ]

answer() { # PROVIDER QUESTION: or why there is none
	awk -F '|' -v question="$2" '
		$1 == question { print $2; found = 1 }
		$1 == "done" { whole = 1 }
		END { if (!found) print whole ? "not asked" : NR > 1 ? "crashed" : "not there" }' "$work/$1"
}
printf '| call |'
printf ' %s |' "${providers[@]}"
printf '\n| --- | --- | --- | --- |\n'
while IFS='|' read -r question expected; do
	printf '| %s |' "$question"
	for provider in "${providers[@]}"; do
		words=$(answer "$provider" "$question")
		[[ $words != -FI_* ]] || words="\`$words\`"
		printf ' %s |' "$words"
	done
	echo
	got=$(answer rdmamr "$question")
	check "$question: $expected, not $got" [ "$got" = "$expected" ]
done <<<"$documented"
sed -n '/^#/d;/^done/d;s/|.*//p' "$work/rdmamr" >"$work/asked"
check "the program has no question that is not documented" diff "$work/asked" <(cut -d '|' -f 1 <<<"$documented")
check "and ran to its end" grep -q '^done|' "$work/rdmamr"
tap_done
