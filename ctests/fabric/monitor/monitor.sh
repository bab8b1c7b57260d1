#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# monitor.sh LIBRARY [BUILT]: RDMAMR_MONITOR=libfabric with each libfabric, in programs of many
# kinds: threads, children, short-lived domains, plug-ins; and cases without effect,
# which it must report. The device is CHECK_DEVICE, reached by CHECK_ADDRESS.
. "$(dirname "$0")/libfabrics.sh"
[ -n "${CHECK_ADDRESS:-}" ] || skip_all "no IPv4 address reaches the device (ADDRESS)"
monitored=(timeout 600 env RDMAMR_MONITOR=libfabric LD_PRELOAD="$library")

says() { # NAME EXPECTED [NAME=VALUE...] COMMAND...
	local name=$1 expected=$2 output
	shift 2
	output=$("${monitored[@]}" RDMAMR_LOG=info "$@" 2>&1 | grep '^rdmamr: .*\(RDMAMR_MONITOR\|registration cache\)')
	if grep -qF -- "$expected" <<<"$output" && [ "$(wc -l <<<"$output")" = 1 ]; then
		pass "$name: reported in one line"
	else
		fail "$name: reported in one line" "expected: $expected" "got: $output"
	fi
}
plugin() { # WORDS: in the program's output, which is shown if they lack
	grep -- "$1" "$work/plugin" || { tail -n 5 "$work/plugin"; return 1; }
}

for run in "${libfabrics[@]}"; do
	read -ra run <<<"$run"
	version=$("${run[@]}" "$built/monitor_nodes" --version)
	results "$version, version nodes" "${monitored[@]}" "${run[@]}" "$built/monitor_nodes"
	results "$version, threads" "${monitored[@]}" "${run[@]}" "$built/monitor_races"
	results "$version, a process's life" "${monitored[@]}" "${run[@]}" "$built/monitor_life"

	"${monitored[@]}" "${run[@]}" "$built/monitor_plugin" "$built/monitor_stale.so" >"$work/plugin" 2>&1
	check "$version, a plug-in that brings libfabric: it ran to its end" plugin '^done|'
	check "$version, and with it the cache serves" plugin '^nothing|hit'
	check "$version, and the cache is notified of changes: nothing is stale" fails grep STALE "$work/plugin"

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
