#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# with_fence.sh TOOL COMMAND...: a test of the cache while the service "rdmamr fence" runs: as
# without it, and the process has used the counters. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
tool=$1
shift
service=
trap 'kill $service 2>/dev/null; rm -rf "$work"' EXIT

"$tool" fence --check 2>"$work/check" || [ -n "${VM:-}" ] || skip_all "$(tr '\n' ' ' <"$work/check")"
"$tool" fence 2>>"$work/check" &
service=$!
# Until it serves, only root may connect.
for _ in $(seq 300); do [ "$(stat -c %a /run/rdmamr/fence 2>/dev/null)" != 666 ] || break; sleep 0.1; done
# A process does without the counters if the answer takes more than 10 ms, as on a busy machine.
for _ in 1 2 3 4 5; do
	said=$(RDMAMR_STATS="$work/stats" "$@" 2>&1)
	status=$?
	! grep -q '"fence_asked":[1-9]' "$work/stats" || break
	rm -f "$work/stats"
done
take_over "with the service" $status "$said"
check "the counters were used" grep -q '"fence_asked":[1-9]' "$work/stats"
check "the service still runs" kill -0 "$service"
tap_done
