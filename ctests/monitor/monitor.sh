#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# monitor.sh LIBRARY [BUILT]: RDMAMR_MONITOR=libfabric beside what a program does, with each
# libfabric: threads, children, domains that come and go, plug-ins, fi_pingpong; and when it has no
# effect, and says so. The device is CHECK_DEVICE, reached by CHECK_ADDRESS.
set -u
[ $# -ge 1 ] || { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
. "$(dirname "$0")/libfabrics.sh"
monitored=(env RDMAMR_MONITOR=libfabric LD_PRELOAD="$library")

program() { # NAME [NAME=VALUE...]: one that reports its own results
	local name=$1 output
	shift
	output=$("${monitored[@]}" "$@" 2>&1)
	take_over "$name" $? "$output"
}
says() { # NAME EXPECTED [NAME=VALUE...] COMMAND...
	local name=$1 expected=$2 output
	shift 2
	output=$("${monitored[@]}" RDMAMR_LOG=info "$@" 2>&1 | grep '^rdmamr: .*\(RDMAMR_MONITOR\|registration cache\)')
	if grep -qF -- "$expected" <<<"$output" && [ "$(wc -l <<<"$output")" = 1 ]; then
		pass "$name: said in one line"
	else
		fail "$name: said in one line" "expected: $expected" "got: $output"
	fi
}

for run in "${libfabrics[@]}"; do
	read -ra run <<<"$run"
	version=$(version_of "${run[*]}")
	program "$version, version nodes" timeout 600 "${run[@]}" "$built/monitor_nodes"
	program "$version, threads" timeout 600 "${run[@]}" "$built/monitor_races"
	program "$version, a process's life" timeout 600 "${run[@]}" "$built/monitor_life"

	output=$("${monitored[@]}" timeout 600 "${run[@]}" "$built/monitor_plugin" "$built/monitor_stale.so" 2>&1)
	check "$version, a plug-in that brings libfabric: nothing is stale" grep -q '^done|' <<<"$output"
	check "$version, and with it the cache serves" grep -q '^nothing|hit' <<<"$output"
	check "$version, and that is told of changes" [ "$(grep -c 'STALE' <<<"$output")" = 0 ]

	pingpong=$(command -v fi_pingpong)
	[ ${#run[@]} = 0 ] || pingpong=$(dirname "${run[0]}")/../../bin/fi_pingpong
	"${monitored[@]}" timeout 600 "${run[@]}" "$pingpong" -p verbs -e msg -d "$CHECK_DEVICE" -B 18700 -I 20 -S 4096 -c >"$work/server" 2>&1 &
	server=$!
	until grep -qsi ":$(printf %X 18700) " /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
	check "$version, fi_pingpong: the client" "${monitored[@]}" timeout 600 "${run[@]}" "$pingpong" -p verbs -e msg -d "$CHECK_DEVICE" -P 18700 -I 20 -S 4096 -c "$CHECK_ADDRESS"
	if wait $server; then
		pass "$version, fi_pingpong: the server"
	else
		fail "$version, fi_pingpong: the server" "exit status $?" "$(cat "$work/server")"
	fi

	says "$version, imported" "libfabric's registration cache is told of changes of memory" "${run[@]}" "$built/monitor_nodes"
	says "$version, FI_MR_CACHE_MONITOR=disabled" "no effect: FI_MR_CACHE_MONITOR=disabled" FI_MR_CACHE_MONITOR=disabled "${run[@]}" "$built/monitor_nodes"
	says "$version, FI_MR_CACHE_MONITOR=memhooks" "no effect: FI_MR_CACHE_MONITOR chooses" FI_MR_CACHE_MONITOR=memhooks "${run[@]}" "$built/monitor_nodes"
	says "$version, a monitor before ours" "no effect: libfabric has another imported monitor" "${run[@]}" "$built/monitor_nodes" --own
	says "$version, RDMAMR_DISABLE=1" "no effect: RDMAMR_DISABLE=1" RDMAMR_DISABLE=1 "${run[@]}" "$built/monitor_nodes"
done
skip_newer

# One that is too old: a stand-in with a version.
cat >"$work/old.c" <<'C'
unsigned fi_version(void) { return 1 << 16 | 13; }
int fi_getinfo(void) { return -61; }
C
echo 'FABRIC_1.0 { fi_version; fi_getinfo; };' >"$work/old.map"
"${CC:-cc}" -shared -fPIC -Wl,-soname,libfabric.so.1,--version-script="$work/old.map" "$work/old.c" -o "$work/libfabric.so.1"
echo 'int fi_getinfo(void); int main(void) { return fi_getinfo() != -61; }' |
	"${CC:-cc}" -o "$work/old" -x c - -x none "$work/libfabric.so.1" -Wl,-rpath,"$work"
says "libfabric 1.13" "no effect: libfabric is older than 1.14" "$work/old"
check "and its call goes on" "${monitored[@]}" "$work/old"
tap_done
