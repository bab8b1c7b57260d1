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
for probe in reg_start reg_done hit dereg evict; do
	check "rdmamr:$probe has a note" grep -q "^rdmamr $probe " "$work/notes"
done
check "there is no other" [ -z "$(awk '{ print $2 }' "$work/notes" | grep -vxE 'reg_start|reg_done|hit|dereg|evict')" ]
# The place of the code's segment in the file.
in_file=$(readelf -lW "$library" | awk '$1 == "LOAD" && / R E / { print $2; exit }')
in_memory=$(readelf -lW "$library" | awk '$1 == "LOAD" && / R E / { print $3; exit }')
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
	found=$(seen "${wanted%=*}")
	if [ "$found" = "${wanted#*=}" ]; then
		pass "rdmamr:${wanted%=*} was hit ${wanted#*=} times, with the length"
	else
		fail "rdmamr:${wanted%=*} was hit ${wanted#*=} times, with the length" "found: $found" "$(tail -5 "$instance/trace")"
	fi
done
tap_done
