#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# bench.sh TOOL LIBRARY [DEVICE]: the output of "rdmamr bench": that it has the right figures, not
# how large they are.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/tap.sh"
tool=$1 library=$2 device=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work" || exit 1
export RDMAMR_LIBRARY=$library
unset LD_PRELOAD

fails() { # NAME STATUS WORDS COMMAND...
	local name=$1 wanted=$2 words=$3 output status
	shift 3
	output=$("$@" 2>&1)
	status=$?
	if [ $status = "$wanted" ] && grep -q -- "$words" <<<"$output"; then
		pass "$name: $(grep -m 1 -- "$words" <<<"$output")"
	else
		fail "$name" "wanted: status $wanted, $words" "found: status $status" "$output"
	fi
}
fails "a device that does not exist" 2 "there is no" "$tool" bench nosuch
fails "an invalid size" 2 "64K, 1M or 2G" "$tool" bench --sizes 4K,big
fails "no rounds" 2 "invalid value '0'" "$tool" bench --rounds 0
fails "threads without --large" 2 "large" "$tool" bench --threads 2
fails "an unknown kind of memory" 2 "memfd" "$tool" bench --large --kinds paper
if [ -z "$device" ]; then
	tap_done
	exit
fi

"$tool" bench "$device" --sizes 4K,5000,1M --rounds 3 --svg plot.svg >table 2>errors
check "it measures" [ $? = 0 ]
check "a table with a line for each size, and the spread of each time" bash -c '[ "$(grep -Ec "^ *(4 KiB|5000 B|1 MiB)( +[0-9.]+ (ns|us|ms) ±[0-9]+ %){2} " table)" = 3 ] || { cat table; false; }'
check "with three times and two ratios each" bash -c '[ "$(grep -Ec " (ns|us|ms) .* (ns|us|ms) .* [0-9.e-]+ .* (ns|us|ms) .* [0-9.e-]+$" table)" = 3 ]'
check "standard error is empty: no bar" [ ! -s errors ]
check "no escape codes" bash -c '! grep -q "$1" table' - $'\e'
check "the plot is XML" python3 -c 'import xml.dom.minidom; xml.dom.minidom.parse("plot.svg")'
check "with three lines, of three points each, and its sizes" python3 -c '
import xml.etree.ElementTree as tree
root = tree.parse("plot.svg").getroot()
name = "{http://www.w3.org/2000/svg}"
assert root.tag == name + "svg"
lines = [line for line in root.iter(name + "polyline") if len(line.get("points").split()) == 3]
assert len(lines) == 3, len(lines)
assert len(list(root.iter(name + "circle"))) == 9
text = " ".join(text.text.strip() for text in root.iter(name + "text"))
for word in ("libibverbs", "plain", "relaxed", "4 KiB", "5000 B", "1 MiB"):
    assert word in text, (word, text)'
shape='
import json, sys
answer = json.load(sys.stdin)
assert list(answer) == ["schema", "device", "kernel", "library", "rounds", "sizes"] and answer["schema"] == 1, list(answer)
assert [row["bytes"] for row in answer["sizes"]] == [4096, 1 << 20]
fields = ["bytes", "libibverbs_us", "plain_us", "relaxed_us", "libibverbs_reg_us", "plain_reg_us",
          "libibverbs_spread", "plain_spread", "relaxed_spread", "plain_ratio", "relaxed_ratio",
          "plain_own", "relaxed_kept", "error"]
for row in answer["sizes"]:
    assert list(row) == fields, list(row)
    assert row["error"] is None and row["plain_own"] and row["relaxed_kept"], row
    assert all(row[field] > 0 for field in fields[1:6] + fields[9:11]), row
    assert all(row[field] >= 0 for field in fields[6:9]), row
    assert abs(row["plain_ratio"] - row["plain_us"] / row["libibverbs_us"]) < 1e-9, row
    assert row["plain_reg_us"] < row["plain_us"], row'
json() { "$@" bench "$device" --sizes 4K,1M --rounds 2 --json; }
check "JSON of the documented shape: the library's by its own call, relaxed ones cached" python3 -c "$shape" <<<"$(json "$tool")"
check "settings for the library are ignored" python3 -c "$shape" <<<"$(RDMAMR_DISABLE=1 RDMAMR_CACHE_LINGER=0 json "$tool")"
check "a preloaded library stays out of libibverbs' process" python3 -c "$shape" <<<"$(LD_PRELOAD=$library json "$tool" 2>/dev/null)"
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -x "$tool"; then
	fails "a limit that is too low: the rest is measured, and the output says why" 1 "RLIMIT_MEMLOCK" \
		prlimit --memlock=1048576 setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \
		"$tool" bench "$device" --sizes 4K,4M --rounds 2
fi
if command -v script >/dev/null; then
	check "on a terminal there is a bar" grep -q $'\r.*█' <<<"$(script -qec "'$tool' bench $device --sizes 4K --rounds 20 --json >/dev/null" /dev/null </dev/null)"
fi
check "none of its processes is left" bash -c '! pgrep -f "bench[-]worker"'
"$tool" bench "$device" --rounds 100000 >/dev/null 2>&1 &
pid=$!
for _ in $(seq 600); do
	workers=$(pgrep -cP $pid)
	[ "$workers" = 3 ] && break
	sleep 0.5
done
kill -KILL $pid
wait $pid 2>/dev/null
for _ in $(seq 600); do
	pgrep -f "bench[-]worker" >/dev/null || break
	sleep 0.5
done
check "its $workers processes end with it, even when it is killed" bash -c '[ "$1" = 3 ] && ! pgrep -f "bench[-]worker"' - "$workers"
fails "a plot that cannot be written" 2 "nowhere/plot.svg" "$tool" bench "$device" --sizes 4K --rounds 1 --svg /nowhere/plot.svg
"$tool" bench "$device" --large --sizes 32M --rounds 2 --threads 1,2 --kinds anonymous,memfd,shared,huge >table 2>errors
check "--large measures" [ $? = 0 ]
check "with a line for each kind: the floors, leaving, libibverbs and each number of threads" bash -c \
	'[ "$(grep -Ec "^ *32 MiB  (anonymous|memfd|shared) +small ( +[0-9.]+){5}( +[0-9.]+ x +[0-9.]+){2}$" table)" = 3 ] || { cat table; false; }'
check "and one for huge pages, with the reason if the machine has none" bash -c \
	'[ "$(grep -Ec "^ *32 MiB  huge +2 MiB " table)" = 1 ]'
check "its JSON has the same" bash -c '"$1" bench "$2" --large --sizes 16M --rounds 1 --kinds memfd --json | python3 -c "
import json, sys
row, = json.load(sys.stdin)[\"rows\"]
assert row[\"kind\"] == \"memfd\" and row[\"bytes\"] == 16 << 20 and row[\"error\"] is None, row
assert all(row[name] > 0 for name in (\"populate\", \"pin\", \"deregister\", \"unmap\", \"libibverbs\"))
assert len(row[\"rdmamr\"]) == len(row[\"times\"]) == 1 and row[\"times\"][0] > 0
"' - "$tool" "$device"
tap_done
