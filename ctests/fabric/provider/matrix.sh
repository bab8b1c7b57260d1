#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# matrix.sh LIBRARY [BUILT]: the answers of libfabric's providers rdmamr, tcp and verbs to the same
# calls, as a Markdown table for docs/fabric.md, and TAP: the library's answers are the documented
# ones, in this script and in docs/fabric.md. The others' are printed and not judged.
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

# The documented answers, in the order of the program's questions.
documented='`fid.context` of a region|the call'"'"'s
a `requested_key` that is in use|-FI_ENOKEY
unknown flags (`1 << 35`)|-FI_EBADFLAGS
`fi_mr_regv`, 2 buffers|0
`fi_mr_regv`, no buffer|-FI_EINVAL
length 0|-FI_EINVAL
offset 4|-FI_EINVAL
memory that is not mapped|-FI_EFAULT
read-only memory, to send from|0
access 0|0
unknown access bits (`1 << 35`)|-FI_EINVAL
length `SIZE_MAX`|-FI_EINVAL
past the end of the address space|-FI_EINVAL
`fi_mr_bind` of an event queue|-FI_ENOSYS
`fi_mr_bind` of a counter, `FI_REMOTE_WRITE`|-FI_ENOSYS
`fi_mr_enable`|0
`fi_mr_refresh`|-FI_ENOSYS
`fi_mr_raw_attr`|0
`fi_mr_map_raw`|0
`fi_mr_unmap_key`|0
`fi_domain_bind` of an event queue, `FI_REG_MR`|0
then: registrations that are reported|9 of 9
reports that name the region|9 of 9
reports with the call'"'"'s context|9 of 9'

answer() { # PROVIDER QUESTION: or why there is none
	awk -F '|' -v question="$2" '
		$1 == question { print $2; found = 1 }
		$1 == "done" { whole = 1 }
		/^#/ { why = $0 }
		END { if (!found) print whole ? "not asked" : NR > 1 ? "crashed" : "not there" }' "$work/$1"
}
printf '| call |'
printf ' %s |' "${providers[@]}"
printf '\n| --- |'
printf ' --- |%.0s' "${providers[@]}"
echo
while IFS='|' read -r question _; do
	printf '| %s |' "$question"
	for provider in "${providers[@]}"; do
		words=$(answer "$provider" "$question")
		[[ $words != -FI_* ]] || words="\`$words\`"
		printf ' %s |' "$words"
	done
	echo
done <<<"$documented"

while IFS='|' read -r question expected; do
	got=$(answer rdmamr "$question")
	if [ "$got" = "$expected" ]; then
		pass "$question: $got"
	else
		fail "$question: $expected" "got: $got"
	fi
done <<<"$documented"
# The table in docs/fabric.md has the same answers for the library.
while IFS='|' read -r question expected; do
	[[ $expected != -FI_* ]] || expected="\`$expected\`"
	check "docs/fabric.md says so: $question" grep -qF "| $question | $expected |" "$here/../../../docs/fabric.md"
done <<<"$documented"
sed -n '/^#/d;/^done/d;s/|.*//p' "$work/rdmamr" >"$work/asked"
cut -d '|' -f 1 <<<"$documented" >"$work/questions"
check "the program has no question that is not documented" diff "$work/asked" "$work/questions"
check "and ran to its end" grep -q '^done|' "$work/rdmamr"
tap_done
