#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# trace.sh LIBRARY BUILT PROGRAM: the trace (RDMAMR_TRACE) of a program whose calls are known
# (calls.c), as PROGRAM, "rdmamr", reads it: every call once, of all threads and of a forked child,
# with result, reason and caller; with the cache and without; for a killed program, the calls that
# it had written. On $CHECK_DEVICE. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
expects 3 "$@"
library=$(realpath "$1") built=$(realpath "$2") rdmamr=$(realpath "$3")
calls=$built/trace_calls
cd "$work" || exit 2
. "$here/../values.sh"

# The parent makes 3 * 400 pairs, 2 failures and one registration that is left; the child 50 pairs.
recorded plain "$calls"
check "the program runs as without" [ "$status" = 0 ]
reports "each call of each thread is there once" 2503 plain 'report["totals"]["calls"]'
reports "the registrations" 1251 plain 'report["totals"]["registrations"]'
reports "no hits without the cache" "0 0" plain '"{hits} {misses}".format(**report["totals"])'
reports "the child is a process of its own" "[100, 2403]" plain 'sorted(process["calls"] for process in report["processes"])'
reports "both ended in order" "[True, True]" plain '[process["ended"] for process in report["processes"]]'
reports "three threads and the main one" "[1, 4]" plain 'sorted(process["threads"] for process in report["processes"])'
reports "the failures by their errno" "[('EFAULT', 1), ('EINVAL', 1)]" plain 'sorted((failure["name"], failure["count"]) for failure in report["failures"])'
reports "with their reasons" "[True, True]" plain '[any(words in failure["example"] for failure in report["failures"]) for words in ("nothing is mapped at 0x1000", "need local write")]'
reports "from the function that made them" "{'fail'}" plain '{failure["caller"]["function"] for failure in report["failures"]}'
reports "the function that registers most" "pairs" plain 'max(report["callers"], key=lambda caller: caller["calls"])["function"]'
reports "the regions that are left, and their callers" "[(1, 12288, 'forget')]" plain '[(leak["regions"], leak["bytes"], leak["caller"]["function"]) for leak in report["leaks"]]'
reports "the time of the calls is less than that of the threads" True plain '0 < report["totals"]["time_ns"] < 4 * report["totals"]["run_ns"]'
reports "the regions that are left are pinned at the end" 12288 plain 'report["pinned"]["end_bytes"]'

# Plain are registrations with another iova, and those of a child whose parent had a cache.
RDMAMR_CACHE=all RDMAMR_STATS=$work/stats recorded all "$calls"
check "with the cache: the program runs as without" [ "$status" = 0 ]
reports "with the cache: each call is there once" 2503 all 'report["totals"]["calls"]'
# The cache declines a registration while it cannot be certain about the memory, as beside a thread
# that maps its stack or (Linux 6.1) while another thread reads all mappings. Such a region is its
# caller's own, and the statistics count it as declined. If the cache had made it before, it is a
# miss in the trace.
said() { # EXPRESSION: of the statistics, "s" being those of a process
	value all 'sum('"$1"' for s in map(json.loads, open("stats")))'
}
declined=$(said 's["bypassed_busy"] + s["bypassed_limit"]')
echo "# $(value all '"{hits} hits, {misses} misses".format(**report["totals"])'), $declined declined"
reports "with the cache: the hits are those of the statistics" "$(said 's["hits"]')" all 'report["totals"]["hits"]'
reports "with the cache: the misses are those of the statistics, and the regions that the cache made and did not keep" True all \
	"0 <= report['totals']['misses'] - $(said 's["misses"]') <= $declined"
reports "with the cache: most are hits" True all 'report["totals"]["hits"] > 600'
# Two registrations fail, both of new ranges.
check "with the cache: each of the parent's 1200 pairs and 2 failures is a hit, a miss, declined, or of a new range" \
	[ "$(said 's["hits"] + s["misses"] + s["bypassed_first"]')" -eq $((1202 - declined)) ]
reports "with the cache: the parent's deregistrations leave each region of the cache to the cache" True all \
	'report["totals"]["kept"] == report["totals"]["hits"] + report["totals"]["misses"]'

# The records of a killed program up to its end. The child ended in order.
recorded killed "$calls" kill
check "killed: it was" [ "$status" = 137 ]
# The very last call is in the file too if it came late.
reports "killed: all calls but those that its last 10 ms left in a buffer" True killed 'report["totals"]["calls"] in (2506, 2507)'
reports "killed: the report says so" "[False, True]" killed 'sorted(process["ended"] for process in report["processes"])'
recorded exited "$calls" _exit
reports "ended by _exit: the report does not call that in order" "[False, True]" exited 'sorted(process["ended"] for process in report["processes"])'

# The library reports a file that cannot be written once, and the program runs on.
RDMAMR_TRACE=/nonexistent/trace LD_PRELOAD=$library "$calls" 2>said
check "a file that cannot be written: the program runs" [ $? = 0 ]
check "which is reported, once a process" [ "$(grep -c 'RDMAMR_TRACE: cannot be written, tracing stops: No such file' said)" = 2 ]
RDMAMR_TRACE=/dev/full LD_PRELOAD=$library "$calls" 2>said
check "no room" grep -q 'tracing stops: No space left' said
mkfifo pipe
RDMAMR_TRACE=$work/pipe LD_PRELOAD=$library timeout 500 "$calls" 2>said
check "a pipe without a reader does not block the program" [ $? = 0 ]
# A write beyond that limit raises a signal that would end the program. run.sh has RDMAMR_TRACE.
head -c 4096 /dev/zero >limited
(ulimit -f 4 && exec env RDMAMR_STATS="$work/limited" LD_PRELOAD="$library" "$calls") 2>said
check "a file at RLIMIT_FSIZE: the program runs" [ $? = 0 ]
check "and says why" grep -q 'RDMAMR_STATS: cannot be written.*: File too large' said

# The name; src/trace/place.rs has more of them. The child, of the same rank, has a process number of its own.
RANK=9 PMIX_RANK=x OMPI_COMM_WORLD_RANK=4 RDMAMR_TRACE=$work/of-%h-%r-%p LD_PRELOAD=$library "$calls"
check "a file for each process, by host and rank" [ "$(ls "of-$(uname -n)-4-"* | wc -l)" = 2 ]
"$rdmamr" report --json of-* >ranked.json
reports "the trace holds host and rank of both processes" "[('$(uname -n)', 4), ('$(uname -n)', 4)]" ranked '[(process["host"], process["rank"]) for process in report["processes"]]'

# A limit. The calls beyond it are counted.
RDMAMR_TRACE_LIMIT=64K recorded limited "$calls"
check "with a limit: the program runs as without" [ "$status" = 0 ]
check "the file's calls stay within it" [ "$(stat -c %s limited)" -le $((112 * 1024)) ]
check "which is reported, once a process at most" bash -c '[ "$(grep -c "RDMAMR_TRACE_LIMIT: the trace is full" limited.said)" -ge 1 ]'
reports "each call is in the trace, or counted" 2503 limited 'report["totals"]["calls"] + report["totals"]["dropped"]'

# Two programs at once share a file.
rm -f both
both=()
for _ in 1 2; do
	RDMAMR_TRACE=$work/both LD_PRELOAD=$library "$calls" &
	both+=($!)
done
# By number: a plain wait would wait for the interpreter too.
wait "${both[@]}"
"$rdmamr" report --json both >both.json
reports "two programs at once: all calls of both" 5006 both 'report["totals"]["calls"]'
reports "in four processes" 4 both 'len(report["processes"])'

# Calls whose arguments fill the registers, and those through tables of functions, have callers like
# all others. libfabric's calls: one that fails and 3 that do not, on 4 domains; then on a plain
# domain and a relaxed one 400 in the background, 400 that are placed (the cache serves none of
# them), one that fails later, 3 composites and 3 that are replaced.
for way in callers callers_alone; do
	rm -f "$way.stats.json"
	RDMAMR_STATS=$work/$way.stats.json recorded $way "$built/trace_$way"
	check "$way: the program runs as without" [ "$status" = 0 ]
	reports "$way: each call is there once" "[('begins', 1600), ('changes', 1), ('closes', 12), ('describes', 4), ('ends', 1600), ('fails_later', 2), ('fails_later', 2), ('gathers', 4), ('main', 1), ('main', 1), ('registers', 8), ('replaces', 6), ('replaces', 6), ('replaces', 6), ('replaces', 6), ('shares', 1)]" \
		$way '[place[:2] for place in places(report)]'
	reports "$way: with the name of its function" "[('begins', 'fi_mr_reg'), ('changes', 'ibv_rereg_mr'), ('closes', 'fi_close'), ('describes', 'fi_mr_regattr'), ('ends', 'fi_close'), ('gathers', 'fi_mr_regv'), ('registers', 'fi_mr_reg'), ('shares', 'ibv_reg_dmabuf_mr')]" \
		$way '[(place[0], *place[2:]) for place in places(report) if place[0] not in ("main", "replaces", "fails_later")]'
	reports "$way: the call with an unknown access fails, with its reason" "[(4, True)]" \
		$way '[(failure["count"], "access" in failure["example"]) for failure in report["failures"] if failure["caller"]["function"] == "registers"]'
	reports "$way: a failure in the background has its reason, and the caller that began it" "[(2, True)]" \
		$way '[(failure["count"], "nothing is mapped" in failure["example"]) for failure in report["failures"] if failure["caller"]["function"] == "fails_later"]'
	reports "$way: nothing is left" "[]" $way 'report["leaks"]'
	reports "$way: each deregistration is of a known region" "[]" $way '[note for note in report["notes"] if "whose registration" in note or "bypassed the library" in note]'
	# On a busy machine some calls find the cache busy. The statistics count the parts of composites too.
	reports "$way: in the domain with the cache, the cache serves all but the placed ones" 414 \
		$way.stats 'report["hits"] + report["misses"] + sum(report[name] for name in report if name.startswith("bypassed_"))'
	served=$(value $way.stats 'report["hits"] + report["misses"]')
	reports "$way: so does the trace say, of $served in the statistics" True \
		$way "$served - 5 <= report['totals']['hits'] + report['totals']['misses'] <= $served and report['totals']['misses'] >= 2"
done
tap_done
