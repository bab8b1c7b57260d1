#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# probes.sh LIBRARY HOLDS: the USDT probes: each has a note, each note leads to a nop, and the
# kernel's uprobes find the calls of HOLDS (ctests/tool/holds.c) there, with their arguments.
TMPDIR=/dev/shm . "$(dirname "$0")/../lib/script.sh"
library=$1 holds=$2
tracing=/sys/kernel/tracing
group=rdmamr_$$
instance=$tracing/instances/$group
away() {
	[ ! -d "$instance" ] || { echo 0 >"$instance/events/$group/enable"; rmdir "$instance"; }
	[ ! -s "$work/events" ] || cut -d' ' -f1 "$work/events" | sed 's/^p:/-:/' | while read -r gone; do echo "$gone" >>$tracing/uprobe_events; done
	rm -rf "$work"
}
trap away EXIT

# A line for each place: name, place in memory, arguments.
readelf -nW "$library" | awk '
	$1 == "Provider:" { provider = $2 } /NT_STAPSDT/ { provider = $NF }
	$1 == "Name:" { name = $2 }
	$1 == "Location:" { place = $2; sub(",", "", place) }
	$1 == "Arguments:" { $1 = ""; print provider, name, place $0 }' >"$work/notes"
is "each probe has a note, and nothing else has one" "rdmamr dereg, rdmamr evict, rdmamr hit, rdmamr reg_done, rdmamr reg_start" \
	"$(cut -d' ' -f1,2 "$work/notes" | sort -u | paste -sd, | sed 's/,/, /g')"
# The place of the code's segment.
read -r in_file in_memory < <(readelf -lW "$library" | awk '$1 == "LOAD" && / R E / { print $2, $3; exit }')
offset() { printf -v offset '0x%x' $(($1 - in_memory + in_file)); }
nops() {
	local place
	while read -r _ _ place _; do
		offset "$place"
		[ "$(od -An -tx1 -j "$offset" -N 1 "$library")" = " 90" ] || { echo "$place is no nop"; return 1; }
	done <"$work/notes"
}
if [ "$(uname -m)" = x86_64 ]; then
	check "each note leads to a nop: $(wc -l <"$work/notes") places" nops
fi

if [ "$(id -u)" != 0 ] || { [ ! -e $tracing/uprobe_events ] && ! mount -t tracefs none $tracing 2>/dev/null; } ||
	! mkdir "$instance" 2>/dev/null || [ "$(uname -m)" != x86_64 ]; then
	skip "the kernel's uprobes" "needs root, x86-64 and a kernel with uprobe_events"
	tap_done
	exit
fi
cp "$library" "$work/librdmamr.so"
n=0
while read -r _ name place _ length _; do
	# The kernel calls %rax %ax.
	length=${length#8@}
	[[ $length != %r[a-z]* ]] || length=%${length#%r}
	offset "$place"
	echo "p:$group/${name}_$((n++)) $work/librdmamr.so:$offset length=$length:u64"
done <"$work/notes" >"$work/wanted"
while read -r event; do
	if echo "$event" >>$tracing/uprobe_events; then echo "$event" >>"$work/events"; fi
done <"$work/wanted" 2>/dev/null
check "the kernel accepts a uprobe at each place" cmp "$work/events" "$work/wanted"
echo 1 >"$instance/events/$group/enable"
printf 'register 3\nagain 10\nrelease\nflush\n' | RDMAMR_CACHE_LINGER=1000000 LD_PRELOAD=$work/librdmamr.so "$holds" >/dev/null
echo 0 >"$instance/events/$group/enable"
seen() { grep -cE " ${1}_[0-9]+: .*length=65536" "$instance/trace"; }
for wanted in reg_start=4 reg_done=4 hit=9 dereg=3 evict=1; do
	is "rdmamr:${wanted%=*} was hit ${wanted#*=} times, with the length" "${wanted#*=}" "$(seen "${wanted%=*}")"
done
tap_done
