#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# report.sh RDMAMR: "rdmamr report" on a trace whose numbers are known: as text, as JSON, and as a
# page in a browser.
. "$(dirname "$0")/../lib/script.sh"
rdmamr=$(realpath "$1")
cd "$work" || exit 1

${CC:-cc} -O1 -g "$here/callers.c" -o callers
${CC:-cc} -O1 -shared -fPIC -DLIBRARY "$here/callers.c" -o libcallers.so
# Their code is older than the trace, whose date is in 2025.
touch -d 2020-01-01 callers libcallers.so
python3 "$here/trace.py" known trace "$work/callers" "$work/libcallers.so"
line() { grep -n "/\* $1 \*/" "$here/callers.c" | cut -d: -f1; }

"$rdmamr" report --text trace >text 2>errors
check "a trace is reported on as text" [ $? = 0 -a ! -s errors ]
# In an extended regular expression, with any number of blanks for one.
# Lines that are continued are one.
sed -Ez 's/\n {16}([^ ])/ \1/g' text >unwrapped
check "the verdict is the first line" grep -qxE 'Not worth it: 98 of 134 registrations came back, and `--cache=local` saves at' <<<"$(head -1 text)"
check "then the failures and the regions that were left, before the program" bash -c '
	grep -nE "^(Failed: 5 calls|Never deregistered: at least 2 regions, 128 KiB|Trace )" text | cut -d: -f1 | sort -nc &&
	[ "$(grep -cE "^(Failed: 5 calls|Never deregistered: at least 2 regions, 128 KiB|Trace )" text)" = 3 ] &&
	[ "$(sed -n "/^Failed/=" text)" -lt 8 ]'
says() { check "the text says: $1" grep -qE -- "${1// / +}" unwrapped; }
# tool/src/report has the numbers; here are the names, which the files of the trace's programs have.
says 'Program ./rpc --name <script>alert\(1\)</script>'
says 'Calls 270: 3 threads, 7 dropped, 5 failed'
says 'WARNING Process 4712 has not ended in order'
says "send_message callers.c:$(line send_message) callers\+0x"
says "fetch_rows callers.c:$(line fetch_rows) callers\+0x"
says 'load_index\+0x[0-9a-f]+ libcallers.so\+0x'
says '2 128 KiB lib & <gone>.so\+0x1234'
says 'ENOMEM from the kernel: RLIMIT_MEMLOCK <b>this</b> & that'

# tool/src/report/tests.rs has the names of the JSON.
check "the JSON has the calls and their time, exactly" python3 -c 'import json, sys
totals = json.load(sys.stdin)["totals"]
assert (totals["calls"], totals["time_ns"]) == (270, 12593200), totals' < <("$rdmamr" report --text --json trace)

printed=$("$rdmamr" report trace)
check "the page is written beside the trace, and its path is printed" [ "$printed" = trace.html -a -s trace.html ]
"$rdmamr" report -o page.html trace >/dev/null
check "or where -o says" cmp trace.html page.html
names_nothing() { [ -s "$1" ] && ! grep -oiE '(src|href|data|action|poster|srcset)=|url\(|@import|[a-z]+://|<(script|link|iframe|object|embed|img)' "$1"; }
check "the page names nothing to load, and has no script" names_nothing page.html

# Three ranks on two hosts, each with its trace.
python3 "$here/trace.py" job folder_of_a_job "$work/callers" "$work/libcallers.so"
"$rdmamr" report --text folder_of_a_job >job
is "ranks are in one report, the slowest first" "2 node2 0 node1 1 node1" "$(grep -A3 '^ *rank' job | awk 'NR > 1 { print $1, $2 }' | xargs)"
# Two runs: the job as it was, and with half the time.
python3 "$here/trace.py" job faster "$work/callers" "$work/libcallers.so" 2
check "two runs are compared: the gain" grep -qF '30.0 ms gained: 60.0 ms in calls before, 30.0 ms after (50.0 %).' \
	<("$rdmamr" report --diff --text folder_of_a_job faster | tr -s '\n ' ' ')
check "the page of it is beside the second" [ "$("$rdmamr" report --diff folder_of_a_job faster)" = faster/report.diff.html ]
check "--diff of one trace" ends_with 2 "compares two traces" "$rdmamr" report --diff trace

# Chrome's trace event format, by its rules: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
events() { # FILE CALLS PROCESSES
	python3 - "$@" <<-'END'
		import json, sys
		# What an event must have, by its kind: a call, an instant, a counter, a process's name or place in the list.
		needs = {
		    "X": lambda one: one["ts"] >= 0 and one["dur"] >= 0 and isinstance(one["cat"], str),
		    "i": lambda one: one["ts"] >= 0 and one["s"] in ("g", "p", "t"),
		    "C": lambda one: one["ts"] >= 0 and one["args"] and all(isinstance(value, (int, float)) for value in one["args"].values()),
		    "M": lambda one: one["name"] in ("process_name", "process_sort_index"),
		}
		events = json.load(open(sys.argv[1]))["traceEvents"]
		for one in events:
		    assert one["name"] and isinstance(one["pid"], int) and isinstance(one["tid"], int) and needs[one["ph"]](one), one
		calls = [one["pid"] for one in events if one["ph"] == "X"]
		assert {one["pid"] for one in events} == {one["pid"] for one in events if one["ph"] == "M"}, "a process without a name"
		assert [len(calls), len(set(calls))] == [int(number) for number in sys.argv[2:]], calls
	END
}
check "the export for Perfetto is named" [ "$("$rdmamr" report --perfetto folder_of_a_job)" = folder_of_a_job/report.json ]
check "it is of Chrome's trace event format, two hosts' equal pids apart" events folder_of_a_job/report.json 120 3
"$rdmamr" report --perfetto -o perfetto.json trace >/dev/null
check "so is that of a trace with everything" events perfetto.json 270 2
# tool/src/report/flame.rs has the lines of folded stacks, and what is drawn.
check "the stacks are folded, with all the time in calls" awk '{ sum += $NF } END { exit sum != 12593200 }' <("$rdmamr" report --folded trace)
check "the flame graph is drawn" [ "$("$rdmamr" report --flamegraph callers.svg trace)" = callers.svg ]
check "as well-formed SVG" python3 -c 'import xml.etree.ElementTree as xml; xml.parse("callers.svg")'

# Pinned memory of the page's plot: 3200 is 3 s wide, and a MiB 296 high. There are 0.125 MiB, from
# 1.5 s to 2.5 s 1 MiB of the cache, on top, and from 2 s on 2 MiB of the second process.
for path in plain:V963H2133V370H3200 cache:V963H1601V667H2133V74H2667V370H3200; do
	check "the plot shows the pinned memory: ${path%:*}" grep -q "<path class=\"${path%:*}\" d=\"M0 1000[^\"]*${path#*:}V1000Z\"" page.html
done

# Without the network if the machine allows that, and without a host in any case.
browser=(chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars "--user-data-dir=$work/profile"
	"--host-resolver-rules=MAP * ~NOTFOUND" "--window-size=1100,1700")
if unshare -rn true 2>/dev/null; then browser=(unshare -rn "${browser[@]}"); fi
if ! command -v chromium >/dev/null; then
	lacks "the page in a browser" chromium
else
	# The sections below the first screen are folded.
	unfolded() { sed 's/<details>/<details open>/g' "$1.html"; }
	unfolded page >open.html
	timeout 600 "${browser[@]}" --dump-dom "file://$work/page.html" >dom 2>browser.log
	sed -i 's/<wbr>//g' dom
	shown() {
		local figure missing=0
		for figure in "$@"; do grep -qF -- "$figure" dom || { echo "not in the page: $figure"; missing=1; }; done
		[ -s dom ] || tail -5 browser.log
		return $missing
	}
	check "the page in a browser has the figures" shown '12.6 ms' '0.31 % of 4.00 s thread time' '>270<' '3 threads, 7 dropped' \
		'20 hits, 1 miss' '3.12 MiB' '2.12 MiB' '6.86 ms' '10.1 ms' '7 calls are not in the trace' 'has not ended in order' \
		'>8.01 ms<' '>63.6 %<' '>242<' 'ibv_dereg_mr_relaxed<' '>128 KiB<' '>EFAULT<' '<code>send_message</code>' \
		'&lt;script&gt;alert(1)' 'lib &amp; &lt;gone&gt;.so+0x1234' 'RLIMIT_MEMLOCK &lt;b&gt;this&lt;/b&gt; &amp; that'
	# Headless windows are at least 500 pixels wide; a frame in one may be narrower.
	cp "$here/probe.html" .
	looks_right() { # PAGE WIDTH OPTION...: prints the probe's verdict
		timeout 600 "${browser[@]}" --allow-file-access-from-files --window-size=1400,2100 "${@:3}" \
			--dump-dom "file://$work/probe.html#$1,$2" >dom 2>browser.log
		sed -n 's/.*<title>\(.*\)<\/title>.*/\1/p' dom
		grep -q '<title>right on ' dom
	}
	"$rdmamr" report -o folded.html folder_of_a_job >/dev/null
	unfolded folded >job.html
	cp faster/report.diff.html diff.html
	dark=--blink-settings=preferredColorScheme=0
	for words in "job 390" "folded 390" "diff 390" "open 390 $dark" "job 1280 $dark" "open 1280"; do
		# shellcheck disable=SC2086 # words
		set -- $words
		check "at $2 pixels the page $1 is legible, by keyboard too${3:+, where the screen is dark}" looks_right "$1.html" "${@:2}"
		[ -z "${3:-}" ] || check "and dark" grep -q '<title>right on 21,24,27<' dom
	done
fi

echo "#!/bin/sh" >script
check "a file that is no trace is refused in words, with 2" \
	ends_with 2 'is not a trace of librdmamr' "$rdmamr" report script
cp trace kept
ln -s trace symbolic
ln trace hard
for page in trace ./trace symbolic hard; do
	check "the page does not replace the trace, by the name $page" \
		ends_with 2 'is the trace itself' "$rdmamr" report -o "$page" trace
done
check "the trace is unchanged" cmp trace kept
# tool/src/files/named.rs has links in the page's place.
check "-o - writes the page to standard output" cmp page.html <("$rdmamr" report -o - trace)

# A pipe, and a file of several names. The line that names the trace differs.
same() { diff <(grep -v '^Trace \|WARNING' text) <("$rdmamr" report --text "$@" | grep -v '^Trace \|WARNING'); }
check "a trace comes through standard input" same - <trace
check "a file that is named three times counts once" same trace symbolic hard
mkdir folder
cp trace folder/one.trace
check "the page on a folder is in it" [ "$("$rdmamr" report folder)" = folder/report.html ]
check "a page that cannot be written" ends_with 2 'cannot be written' "$rdmamr" report -o /nowhere/page.html trace
enough() { # ends by the signal, or by the error that replaces it if the signal is ignored
	local status
	(sleep 0.3 && exec "$rdmamr" report --text trace 2>errors) | true
	status=${PIPESTATUS[0]}
	cat errors
	[[ $status == 0 || $status == 141 ]] && [ ! -s errors ]
}
check "a reader that closes the pipe early gets no complaint" enough
tap_done
