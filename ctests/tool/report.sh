#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# report.sh RDMAMR: "rdmamr report" on a trace whose numbers are known: as text, as JSON, and as a page that a browser shows.
set -u
here=$(dirname "$(realpath "$0")")
. "$here/../tap.sh"
rdmamr=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

${CC:-cc} -O1 -g "$here/callers.c" -o callers
${CC:-cc} -O1 -shared -fPIC -DLIBRARY "$here/callers.c" -o libcallers.so
# Their code is older than the trace, which says it is of 2025.
touch -d 2020-01-01 callers libcallers.so
python3 "$here/trace.py" known trace "$work/callers" "$work/libcallers.so"
line() { grep -n "/\* $1 \*/" "$here/callers.c" | cut -d: -f1; }

"$rdmamr" report --text trace >text 2>errors
check "a trace is reported on as text" [ $? = 0 ] && [ ! -s errors ]
# In an extended regular expression, with any number of blanks for one.
# Lines that are continued are one.
sed -Ez 's/\n {16}([^ ])/ \1/g' text >unwrapped
says() { check "the text says: $1" grep -qE -- "${1// / +}" unwrapped; }
says 'Program ./rpc --name <script>alert\(1\)</script>'
says 'pid 4711, 2025-06-15T15:06:40Z, ran 3.00 s, 269 calls, 12.2 ms in them'
says 'pid 4712, 2025-06-15T15:06:41Z, ran 1.00 s at least, 1 call, 400 us in them, has NOT'
says 'Calls 270 by 3 threads: 134 registrations \(113 plain, 20 hits, 1 miss\)'
says 'Time in calls 12.6 ms, 0.31 % of the run time of 4.00 s'
says 'Peak pinned 3.12 MiB after 2.00 s \(2.12 MiB plain, 1 MiB by the pool\); at the end 2.12 MiB'
says 'Left registered 3 regions, 2.12 MiB'
says 'WARNING 7 calls were dropped'
says 'WARNING Process 4712 has not ended in order'
says 'WARNING A block is cut off'
says '8 KiB register, plain 100 5.00 ms 50.0 us 50.0 us'
says '512 KiB register, hit 20 6.00 us 300 ns 300 ns'
says "send_message callers.c:$(line send_message) callers\+0x"
says "fetch_rows callers.c:$(line fetch_rows) callers\+0x"
says 'load_index\+0x[0-9a-f]+ libcallers.so\+0x'
says '6.88 ms 100 7.00 ms 12 KiB 0x20000000 local '
says '3.60 ms 10 4.00 ms 1 MiB 0x30000000 remote '
says '2 128 KiB forgotten lib & <gone>.so\+0x1234'
says '1 2 MiB in use fetch_rows'
says 'ibv_reg_mr ENOMEM: 3 times, from load_index'
says 'ENOMEM from the kernel: RLIMIT_MEMLOCK <b>this</b> & that'
says 'ibv_reg_mr EFAULT: 2 times'
check "the text fits 80 columns" [ "$(wc -L <text)" -le 80 ]

"$rdmamr" report --json trace >json
values() { # each line PATH VALUE, as Python and JSON write them
	python3 - json <<-END
		import json, sys
		report, wrong = json.load(open(sys.argv[1])), 0
		for line in """$1""".strip().splitlines():
		    path, value = line.split(None, 1)
		    found = eval("report" + path)
		    if found != json.loads(value):
		        print(f"{path} is {found!r}, not {value}")
		        wrong += 1
		sys.exit(wrong)
	END
}
check "the JSON has the same numbers, exactly" values '
["version"] 1
["totals"]["calls"] 270
["totals"]["failed"] 5
["totals"]["dropped"] 7
["totals"]["time_ns"] 12593200
["totals"]["run_ns"] 4000400000
["totals"]["threads"] 3
["totals"]["registrations"] 134
["totals"]["hits"] 20
["totals"]["misses"] 1
["totals"]["deregistrations"] 131
["totals"]["kept"] 21
["totals"]["pool_deregistrations"] 1
["totals"]["leaked_regions"] 3
["totals"]["leaked_bytes"] 2228224
["processes"][1]["ended"] false
["pinned"]["peak_bytes"] 3276800
["pinned"]["peak_at_ns"] 2000400000
["pinned"]["end_bytes"] 2228224
["advice"]["hit_ns"] 500
["advice"]["hit_measured"] true
["advice"]["local"] {"ranges": 1, "hits": 99, "saved_ns": 6880500}
["advice"]["all"] {"ranges": 2, "hits": 108, "saved_ns": 10476000}
["callers"][0]["function"] "send_message"
["callers"][0]["calls"] 242
["callers"][0]["time_ns"] 8010200
["ranges"][0]["registrations"] 100
["ranges"][1]["access"] "local_write|remote_write|remote_read"
["leaks"][1]["caller"]["module"] "/nowhere/lib & <gone>.so"
["failures"][0]["count"] 3
["failures"][1]["example"] null'

printed=$("$rdmamr" report trace)
check "the page is written beside the trace, and where it is is printed" [ "$printed" = trace.html ] && [ -s trace.html ]
"$rdmamr" report -o page.html trace >/dev/null
check "or where -o says" cmp trace.html page.html
fails() { ! "$@"; }
names_nothing() { ! grep -oiE '(src|href|data|action|poster|srcset)=|url\(|@import|[a-z]+://|<(script|link|iframe|object|embed|img)' "$1"; }
check "the page names nothing to load, and has no script" names_nothing page.html
echo "<p><img src=x>" >image.html
check "a page that does would be seen" fails names_nothing image.html

# Without the network if the machine lets us, and without a host in any case.
browser=(chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars "--user-data-dir=$work/profile"
	"--host-resolver-rules=MAP * ~NOTFOUND" "--window-size=1100,1700")
if unshare -rn true 2>/dev/null; then browser=(unshare -rn "${browser[@]}"); fi
if ! command -v chromium >/dev/null; then
	for name in "the page in a browser has the figures" "its plots show them" "a page without plots is seen" \
		"on a phone nothing is wider than the screen"; do
		skip "$name" "chromium is not installed: vm/packages browser"
	done
else
	timeout 600 "${browser[@]}" --dump-dom "file://$work/page.html" >dom 2>browser.log
	shown() {
		local figure missing=0
		for figure in "$@"; do grep -qF -- "$figure" dom || { echo "not in the page: $figure"; missing=1; }; done
		[ -s dom ] || tail -5 browser.log
		return $missing
	}
	check "the page in a browser has the figures" shown '12.6 ms' '0.31 % of 4.00 s run time' '>270<' '3 threads, 7 dropped' \
		'20 hits, 1 miss' '3.12 MiB' '2.12 MiB' '6.88 ms' '10.5 ms' '7 calls were dropped' 'has not ended in order' \
		'>8.01 ms<' '>63.6 %<' '>242<' '>ibv_dereg_mr_relaxed<' '>0x30000000<' '>128 KiB<' '>forgotten<' '>EFAULT<' '<code>send_message</code>' \
		'&lt;script&gt;alert(1)' 'lib &amp; &lt;gone&gt;.so+0x1234' 'RLIMIT_MEMLOCK &lt;b&gt;this&lt;/b&gt; &amp; that'
	picture() { timeout 600 "${browser[@]}" "--screenshot=$work/$1.png" "file://$work/$1.html" >browser.log 2>&1; }
	picture page
	check "its plots show them" python3 "$here/look.py" page.png
	sed -E 's/<(polygon|rect) [^>]*>//' page.html >bare.html
	picture bare
	check "a page without plots is seen" fails python3 "$here/look.py" bare.png
	# Headless windows are no narrower than 500 pixels; a frame in one is.
	cat >frame.html <<-'END'
		<iframe src="page.html" width="375" height="1000" style="border: 0"></iframe>
		<script>onload = () => document.title = `${frames[0].document.documentElement.scrollWidth} wide`</script>
	END
	timeout 600 "${browser[@]}" --allow-file-access-from-files --dump-dom "file://$work/frame.html" >dom 2>browser.log
	check "on a phone nothing is wider than the screen: $(grep -o '<title>[^<]*' dom)" grep -q '<title>375 wide<' dom
fi

refused() { # STATUS WORDS ARGUMENT...
	local status=$1 words=$2 found
	shift 2
	found=$(timeout 600 "$rdmamr" report "$@" 2>&1)
	local ended=$?
	echo "$found"
	[ $ended = "$status" ] && grep -qF -- "$words" <<<"$found"
}
echo "#!/bin/sh" >script
: >empty
check "a file that is no trace is refused in words, with 2" refused 2 'is not a trace of librdmamr' script
check "an empty one" refused 2 'it is empty' empty
check "one that is not there" refused 2 'No such file' none
check "a folder" refused 2 'is not a regular file' "$work"
mkfifo pipe
check "a pipe, without waiting for who writes to it" refused 2 'is not a regular file' pipe
cp trace kept
ln -s trace symbolic
ln trace hard
for page in trace ./trace symbolic hard; do
	check "the page does not replace the trace, by the name $page" refused 2 'is the trace itself' -o "$page" trace
done
check "the trace is as before" cmp trace kept
check "a page that cannot be written" refused 2 'cannot be written' -o /nowhere/page.html trace
check "text and JSON at once" refused 2 'cannot be used with' --text --json trace
enough() { # by the signal, or by the error that it is where the signal is ignored
	local status
	(sleep 0.3 && exec "$rdmamr" report --text trace 2>errors) | true
	status=${PIPESTATUS[0]}
	cat errors
	[[ $status == 0 || $status == 141 ]] && [ ! -s errors ]
}
check "a reader that has enough hears no complaint" enough
tap_done
