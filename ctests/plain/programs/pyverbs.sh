#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# pyverbs.sh LIBRARY DEVICE GID_INDEX: every test of rdma-core's pyverbs (Debian: python3-pyverbs) has the same result
# with the library in front, as run_tests.py would run it, and the library makes all their registrations. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
. "$here/stats.sh"
expects 3 "$@"
device=$2 gid=$3
limit=800 # seconds, against a hang
shipped=/usr/share/doc/rdma-core/tests
# If Debian is installed without its documentation, ctests/check has unpacked the package.
[ -e $shipped/run_tests.py ] || shipped=$here/../../../target/pyverbs$shipped
# Debian's own Python, which finds Debian's pyverbs; another one may come first in PATH.
python=/usr/bin/python3

{ [ -e "$shipped/run_tests.py" ] && $python -c 'import pyverbs.device' 2>/dev/null; } ||
	skip_all "pyverbs and its tests are not installed (Debian: python3-pyverbs, rdma-core)"
[ -e "/sys/class/infiniband/$device" ] || skip_all "there is no device $device"
# A copy: a build meanwhile would change the file under the suite that has mapped it.
library=$work/library.so
cp "$1" "$library" || exit 2
cp -r "$shipped" "$work/tests"
gunzip -q "$work"/tests/*.gz
cd "$work/tests" || exit

suite() { # RESULTS PREFIX...: the status is 0 whatever the tests report, else that of the first process that died
	local results=$work/$1 first=0 status ran
	shift
	: >"$results"
	while :; do
		ran=$(wc -l <"$results")
		timeout -k 5 "$limit" "$@" "$python" "$here/pyverbs_run.py" "$results" --dev "$device" --gid "$gid" -v \
			>"$results.log" 2>&1 </dev/null
		status=$?
		[ $status != 0 ] || break
		echo "# The suite, ${results##*/}, ended with $status. Its last words:"
		tail -n 20 "$results.log" | sed 's/^/# /'
		[ $first != 0 ] || first=$status
		# A test that kills its process (not the limit's 124 and 137): the tests after it run in
		# another.
		[ $status -gt 128 ] && [ $status != 137 ] && [ "$(wc -l <"$results")" -gt "$ran" ] || break
	done
	return $first
}
ends=(0 0)
both() { # SUFFIX; ends are the statuses without and with, of the last run that was not 0
	suite "without$1" env || ends[0]=$?
	suite "with$1" env LD_PRELOAD="$library" RDMAMR_STATS="$work/stats" || ends[1]=$?
}
judge() { # RESULTS...
	(cd "$work" && "$python" "$here/pyverbs_compare.py" "$@") >"$work/judgement" || fail "the results can be read"
}

both ''
judge without with
# Traffic on a slow machine times out now and then. So a second round decides about differences; it
# runs the whole suite, since a test may depend on those before it.
if grep -q ^fail "$work/judgement"; then
	both .again
	judge without with without.again with.again
fi
name="the suite runs to its end"
if [ "${ends[1]}" = 0 ]; then
	pass "$name"
elif [ "${ends[1]}" = "${ends[0]}" ] && [[ ${ends[0]} != @(124|137) ]]; then
	skip "$name" "it ends with ${ends[0]} without the library as well"
else
	fail "$name" "Without the library it ends with ${ends[0]}, with it with ${ends[1]}; 124 and 137 are the limit of $limit s."
fi
while IFS=$'\t' read -ra judgement; do "${judgement[@]}"; done <"$work/judgement"

# A dma-buf is not memory of the process: its registrations are forwarded by design.
passed_on=0
! grep -qiE $'^pass\t.*dmabuf' "$work/judgement" || passed_on=any
sum_stats "$work/stats"
ours() { ((stats[reg_kernel] > 0)) && [[ $passed_on = any || ${stats[reg_next]} = 0 ]]; }
check "every registration of plain memory is the library's: $(show_stats)" ours
tap_done
