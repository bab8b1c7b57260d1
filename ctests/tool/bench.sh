#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# bench.sh TOOL LIBRARY [DEVICE]: the output of "rdmamr bench": that it has the right figures, not
# how large they are.
. "$(dirname "$0")/../lib/script.sh"
tool=$1 library=$2 device=${3:-}
chmod 755 "$work"
cd "$work" || exit 1
export RDMAMR_LIBRARY=$library
unset LD_PRELOAD

check "a device that does not exist" ends_with 2 "there is no" "$tool" bench nosuch
check "an invalid size" ends_with 2 "64K, 1M or 2G" "$tool" bench --sizes 4K,big
check "no rounds" ends_with 2 "invalid value '0'" "$tool" bench --rounds 0
check "an unknown kind of memory" ends_with 2 "memfd" "$tool" bench --kinds paper
if [ -z "$device" ]; then
	tap_done
	exit
fi

check "a name is no line of its own" fails grep -q '^forged' <("$tool" bench $'x\nforged' 2>&1)
"$tool" bench "$device" --sizes 32M --rounds 2 --threads 1,2 --kinds anonymous,memfd,shared,huge >table 2>errors
check "it measures" [ $? = 0 ]
check "standard error is empty: no bar" [ ! -s errors ]
check "no escape codes" bash -c '! grep -q "$1" table' - $'\e'
check "a line for each kind: the floors, leaving, libibverbs and each number of threads" bash -c \
	'[ "$(grep -Ec "^ *32 MiB  (anonymous|memfd|shared) +small ( +[0-9.]+){5}( +[0-9.]+ x +[0-9.]+){2}$" table)" = 3 ] || { cat table; false; }'
check "and one for huge pages, with the reason if the machine has none" bash -c \
	'[ "$(grep -Ec "^ *32 MiB  huge +2 MiB " table)" = 1 ]'
check "its JSON has the same" bash -c '"$1" bench "$2" --sizes 16M --rounds 1 --kinds memfd --json | python3 -c "
import json, sys
row, = json.load(sys.stdin)[\"rows\"]
assert row[\"kind\"] == \"memfd\" and row[\"bytes\"] == 16 << 20 and row[\"error\"] is None, row
assert all(row[name] > 0 for name in (\"populate\", \"pin\", \"deregister\", \"unmap\", \"libibverbs\"))
assert len(row[\"rdmamr\"]) == len(row[\"times\"]) == 1 and row[\"times\"][0] > 0
"' - "$tool" "$device"
small=(--sizes 4M --kinds memfd)
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -x "$tool"; then
	check "a limit that is too low: the output says why" ends_with 1 "Cannot allocate memory" \
		prlimit --memlock=1048576 "${nobody[@]}" "$tool" bench "$device" "${small[@]}" --rounds 2
else
	skip "a limit that is too low: the output says why" "only root becomes a user whom the limit holds, and who may reach the tool"
fi
if ! command -v script >/dev/null; then
	lacks "on a terminal there is a bar" script
else
	check "on a terminal there is a bar" grep -q $'\r.*█' <<<"$(script -qec "'$tool' bench $device ${small[*]} --rounds 20 --json >/dev/null" /dev/null </dev/null)"
fi
check "none of its processes is left" fails pgrep -f "bench[-]worker"
LD_PRELOAD=$library RDMAMR_DISABLE=1 "$tool" bench "$device" "${small[@]}" --rounds 100000 >/dev/null 2>&1 &
pid=$!
of_two() { [ "$(pgrep -P $pid -f "bench[-]worker" | wc -l)" = 2 ]; }
check "it has two processes" awaits of_two
have() { pgrep -P $pid | xargs -I{} grep -lz "^$1" /proc/{}/environ | wc -l; }
check "a preloaded library stays out of libibverbs' process" [ "$(have LD_PRELOAD=)" = 1 ]
check "settings for the library are ignored" [ "$(have RDMAMR_DISABLE=)" = 0 ]
kill -KILL $pid
wait $pid 2>/dev/null
check "they end with it, even when it is killed" awaits fails pgrep -f "bench[-]worker"
tap_done
