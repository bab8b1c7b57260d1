#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# doctor.sh TOOL LIBRARY [DEVICE]: the findings of "rdmamr doctor", on a device or without one. In
# the machine of vm/ it also changes the things that the doctor examines, and checks that it sees
# that.
. "$(dirname "$0")/../lib/script.sh"
tool=$1 library=$2 device=${3:-}
chmod 755 "$work"
export RDMAMR_LIBRARY=$library
unset LD_PRELOAD RDMAV_FORK_SAFE IBV_FORK_SAFE RDMAV_HUGEPAGES_SAFE

# The text's check of a subject, on the device if it names one, in one line: "STATE SUBJECT DEVICE: FOUND ...".
about() { # SUBJECT
	awk '/^(ok|warning|FAILURE) / { if (n++) print ""; } { sub(/^ +/, ""); printf "%s ", $0 } END { print "" }' |
		sed 's/^\([a-zA-Z]*\) */\1 /' | grep -m 1 "^[a-zA-Z]* $1\( $device\)\?: "
}
says() { # NAME SUBJECT STATE WORDS COMMAND...: checks a subject's state, and words in its finding, meaning or help
	local name=$1 subject=$2 state=$3 words=$4 answer found
	shift 4
	answer=$("$@")
	found=$(about "$subject" <<<"$answer")
	if [ "${found%% *}" = "$state" ] && grep -q -- "$words" <<<"${found#*: }"; then
		pass "$name: $found"
	else
		fail "$name" "wanted: $state, $words" "found: $found" "$answer"
	fi
}
doctor() { "$tool" doctor ${device:+"$device"}; }

doctor >"$work/text"
status=$?
"$tool" doctor ${device:+"$device"} --json >"$work/json"
check "--json ends with the same status" [ $? = $status ]
check "it is JSON of the documented shape" python3 -c '
import json, sys
answer = json.load(open(sys.argv[1]))
assert list(answer) == ["schema", "state", "checks"] and answer["schema"] == 1, list(answer)
order = ["ok", "warning", "failure"]
for check in answer["checks"]:
    assert list(check) == ["subject", "device", "state", "found", "meaning", "fix"], check
    assert check["state"] in order and check["found"] and (check["state"] == "ok" or check["meaning"]), check
assert answer["state"] == max((check["state"] for check in answer["checks"]), key=order.index)
' "$work/json"
check "text and JSON have the same checks" bash -c '[ "$(grep -c "^ok \|^warning\|^FAILURE" "$1")" = "$(grep -c "\"subject\"" "$2")" ]' - "$work/text" "$work/json"
check "the text counts them: $(tail -1 "$work/text")" grep -Eqx '[0-9]+ ok, [0-9]+ warnings?, [0-9]+ failures?' "$work/text"
check "it fits 80 columns, except lines to copy" [ "$(grep -v '^ *-> ' "$work/text" | wc -L)" -le 80 ]
subjects=(kernel rdma-core libfabric library container memlock cgroup userfaultfd 'live page' mappings fork hugepages 'transparent hugepages')
[ -n "$(grep -lE '^0x(10de|1002)$' /sys/bus/pci/devices/*/vendor 2>/dev/null)" ] || subjects+=(gpu)
for subject in "${subjects[@]}"; do
	check "it looks at $subject" [ "$(grep -c "\"subject\": \"$subject\"" "$work/json")" = 1 ]
done
release=$(dpkg-query -W -f '${Version}' libibverbs1 2>/dev/null | cut -d- -f1)
if [ -n "$release" ]; then
	# Not in the path, which has it too.
	says "the release of rdma-core" rdma-core ok "^release ${release//./\\.} " cat "$work/text"
else
	skip "the release of rdma-core" "dpkg-query does not know it"
fi
says "userfaultfd is allowed" userfaultfd ok "allowed" cat "$work/text"

# A machine with an NVIDIA GPU, as sysfs and procfs show it; tool/src/doctor/gpu has others.
machine=$work/machine
gpu=$machine/devices/pci0000:17/0000:17:01.0/0000:19:01.0
mkdir -p "$gpu/iommu_group" "$machine"/{bus,module,lib,proc/nvidia}
ln -s "$gpu" "$machine/bus/"
cp "${built:-target/ctests}/libcuda.so.doctor" "$machine/lib/libcuda.so.1"
for file in vendor=0x10de class=0x030200 device=0x2330 numa_node=0 iommu_group/type=identity; do
	echo "${file#*=}" >"$gpu/${file%=*}"
done
printf '0x%x 0x%x 0x40200\n0x380000000000 0x%x 0x14220c\n' $((1 << 30)) $(((1 << 30) + 65535)) $((0x380000000000 + (128 << 30) - 1)) >"$gpu/resource"
echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build" >"$machine/proc/nvidia/version"
on_machine() { # yes|no|hang COMMAND...: libcuda's answer about dma-bufs
	CHECK_GPU_SAYS=$1 LD_LIBRARY_PATH=$machine/lib unshare -m sh -c '
		cd "$0" && mount --bind bus /sys/bus/pci/devices && mount --bind module /sys/module && mount --bind proc /proc/driver && cd / && exec "$@"' "$machine" "${@:2}"
}
if ! on_machine yes true 2>/dev/null; then
	skip "GPUs" "this user may not mount them"
elif [ -z "$device" ]; then
	says "a GPU" "gpu 0000:19:01.0" ok "NVIDIA 2330, driver none, NUMA node 0, BAR of 128 GiB for 80 GiB of memory" on_machine yes "$tool" doctor
	says "a driver exports dma-bufs" "gpu driver" ok \
		"NVIDIA 570.86.15, open kernel modules; it exports dma-bufs; nvidia_peermem is not loaded" on_machine yes "$tool" doctor
	says "one without dma-bufs" "gpu driver" warning "1 of 1 GPUs export no dma-buf.*Linux 5.12.*modprobe nvidia_peermem" on_machine no "$tool" doctor
	says "a library that hangs" "gpu driver" ok "(it did not answer within 20 s)" on_machine hang "$tool" doctor
# Devices of vm/hca are called as the hardware that they stand in for.
elif [[ $device == rxe* || $device == siw* ]]; then
	says "a device in software takes no dma-buf" "gpu memory" warning \
		"GPU memory can be registered on $device: not: ${device%%[0-9]*} takes no dma-buf.*no PCI device" on_machine yes "$tool" doctor "$device"
fi

# The host's libraries, limits and filters decide these, and not the device.
if [ -z "$device" ]; then
	says "the library loads" library ok "$library" cat "$work/text"
	# It needs a version of the C library that does not exist.
	sed 's/GLIBC_2\.34/GLIBC_9.99/g' "$library" >"$work/broken.so"
	says "a library that cannot be preloaded" library FAILURE "cannot be preloaded" env RDMAMR_LIBRARY="$work/broken.so" "$tool" doctor
	says "a library that does not exist" library FAILURE "No such file" env RDMAMR_LIBRARY=/nowhere "$tool" doctor
	check "a device that does not exist" ends_with 1 nosuch "$tool" doctor nosuch
	check "wrong usage" ends_with 2 nosuch "$tool" doctor --nosuch
	says "a pod" container ok "a container of Kubernetes; this is a job of Slurm" env KUBERNETES_SERVICE_HOST=10.0.0.1 SLURM_JOB_ID=1 "$tool" doctor

	# A filter of system calls, as containers have one.
	filtered=${built:-target/ctests}/starts_filtered
	hidden() { unshare -m sh -c 'mount --bind /dev/null /dev/userfaultfd && exec "$@"' - "$@"; } # COMMAND...
	[ -e /dev/userfaultfd ] || hidden() { "$@"; }
	if [ "$(uname -m)" = x86_64 ]; then
		# Without a device libibverbs cannot ask the kernel, which needs no help from 5.13 on.
		if [ ! -e /sys/class/infiniband ] && [ "$(printf '5.13\n%s\n' "$(uname -r)" | sort -V | head -1)" = 5.13 ]; then
			says "fork support is not needed" fork ok "not needed" cat "$work/text"
		else
			skip "fork support without a device" "there is one, or the kernel is older than 5.13"
		fi
		if [ -r /dev/userfaultfd ]; then
			says "refused by a container's filter, and granted by the device" userfaultfd ok "allowed" "$filtered" refuse "$tool" doctor
		else
			skip "the device in place of the call" "there is none, or not for this user"
		fi
		if hidden true 2>/dev/null; then
			says "refused by a container's filter" userfaultfd warning "seccomp" hidden "$filtered" refuse "$tool" doctor
			says "in the other way that they refuse" userfaultfd warning "seccomp" hidden "$filtered" lack "$tool" doctor
		else
			skip "refused by a container's filter" "the device cannot be hidden here"
		fi
	fi
	if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -x "$tool"; then
		little() { prlimit --memlock=65536 env -u container "$@" "$tool" doctor; }
		says "userfaultfd needs no privilege" userfaultfd ok "allowed" "${nobody[@]}" "$tool" doctor
		says "64 KiB that may be pinned" memlock warning "soft limit 64 KiB" little "${nobody[@]}"
		says "a user's bounding set does not help" memlock warning "in the bounding set alone" little "${nobody[@]}"
		says "nor does a bounding set without it" memlock warning "not even in the bounding set" little setpriv --bounding-set=-ipc_lock "${nobody[@]}"
		if unshare -Ur true 2>/dev/null; then
			says "nor do the rights of a user namespace" memlock warning "one of a user namespace" little unshare -Ur
		else
			skip "a user namespace" "this process may not make one"
		fi
		says "an ambient capability does" memlock ok "CAP_IPC_LOCK" little "${nobody[@]:0:4}" --inh-caps=+ipc_lock --ambient-caps=+ipc_lock
		says "in a pod" memlock warning "systemctl edit containerd" little "${nobody[@]}" env KUBERNETES_SERVICE_HOST=10.0.0.1
		says "in a job" memlock warning "PropagateResourceLimitsExcept=MEMLOCK" little "${nobody[@]}" env SLURM_JOB_ID=1
		says "with CAP_IPC_LOCK the limit does not apply" memlock ok "CAP_IPC_LOCK" little
		if prlimit --memlock=unlimited true 2>/dev/null; then
			says "a soft limit that every user may raise" memlock warning "ulimit -l unlimited" \
				prlimit --memlock=65536:unlimited "${nobody[@]}" "$tool" doctor
			says "unlimited" memlock ok "unlimited" prlimit --memlock=unlimited "$tool" doctor
		else
			skip "limits above this one's" "this root may not raise its own"
		fi
		little "${nobody[@]}" >/dev/null
		check "a warning does not change the status, $status" [ $? = $status ]
		says "explain ENOMEM says what the limit is" memlock warning "soft limit 64 KiB" \
			prlimit --memlock=65536 "${nobody[@]}" "$tool" explain ENOMEM
	else
		skip "limits of other users" "only root can become one, where the program can be reached"
	fi

	# The causes of an errno, from docs/troubleshooting.md, and the checks for them.
	# tool/src/explain.rs has each errno.
	says "AddressSanitizer's runtime would come second" instruments warning "-> rdmamr run" env ASAN_OPTIONS=a=1 LD_PRELOAD="$library" "$tool" doctor
	says "but not if its order does not count" instruments ok "is set" env ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD="$library" "$tool" doctor
	says "valgrind" instruments warning "each registration is plain" valgrind -q "$tool" doctor
	check "without them it says nothing of such" fails grep -q instruments "$work/text"
	"$tool" explain enomem >"$work/explained"
	check "explain ENOMEM has causes and what to do, in 80 columns" bash -c 'grep -q "^ 1\. " "$1" && grep -q "^ *-> " "$1" && [ "$(grep -v "^ *-> " "$1" | wc -L)" -le 80 ]' - "$work/explained"
	check "memory of a GPU among them" grep -q "memory of a GPU, says" "$work/explained"
	for runtime in Docker Kubernetes Slurm systemd prlimit; do
		check "explain ENOMEM says how $runtime raises the limit" grep -q "^  - .*$runtime" <(sed 's/^  - A process that.*prlimit/  - prlimit/' "$work/explained")
	done
	check "so does explain of a line on standard input" diff <(echo "fi_mr_reg failed, ret is:-12" | "$tool" explain -) "$work/explained"
	check "words need no quotes" grep -q "^EFAULT: Bad address" <("$tool" explain Bad address)
	check "an unknown errno: the known ones" ends_with 2 "ENOMEM, EFAULT" "$tool" explain EXDEV

	if [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
		says "no device is a failure, with the way to get one" device FAILURE "type rxe" cat "$work/text"
		check "status 1" [ $status = 1 ]
	else
		skip "a machine without a device" "this one has some"
	fi
	tap_done
	exit
fi
check "with a device, status 0" [ $status = 0 ]
for subject in device uverbs driver regions; do
	says "$subject $device" "$subject" ok "" cat "$work/text"
done
check "it does not look at other devices" [ "$(grep -c '^[a-zA-Z]* *uverbs ' "$work/text")" = 1 ]
says "how many regions there are, of how many" regions ok "^$(rdma resource show "$device" | grep -oP ' mr \K[0-9]+') of [1-9][0-9]*, of" \
	cat "$work/text"
case $device in
rxe*)
	says "the table has its driver" driver ok "^rxe: the library registers by its own ioctl (" cat "$work/text"
	says "it has no on-demand paging" odp ok "^no on-demand paging" cat "$work/text"
	;;
siw*) says "the table has its driver" driver ok "^siw: the library registers by its own ioctl, with 8 private bytes" cat "$work/text" ;;
esac
says "the kernel's ABI" kernel ok "Linux $(uname -r), uverbs ABI 6" cat "$work/text"
says "fork support is not needed, with the effect of ibv_fork_init" fork ok "$(
	case $(dpkg-query -W -f '${Version}' libibverbs1) in
	[1-4][0-9].* | 50.*) echo "not needed.*calls ibv_fork_init.*kept from children all the same, unless it runs under the library.*posix_spawn" ;;
	*) echo "not needed.*posix_spawn" ;;
	esac
)" cat "$work/text"
says "if it was requested all the same" fork warning "unset RDMAV_FORK_SAFE" env RDMAV_FORK_SAFE=1 "$tool" doctor

if [ -n "${VM:-}" ]; then
	says "userfaultfd needs no privilege" userfaultfd ok "allowed" "${nobody[@]}" "$tool" doctor
	touch /.dockerenv
	says "a container" container ok "of Docker" "$tool" doctor "$device"
	rm /.dockerenv
	node=/dev/infiniband/$(basename "$(grep -lx "$device" /sys/class/infiniband_verbs/*/ibdev | head -1 | xargs dirname)")
	chmod 600 "$node"
	says "a device that others may not open" uverbs FAILURE "chmod 666 $node" "${nobody[@]}" "$tool" doctor "$device"
	chmod 666 "$node"
	says "a container without the device's file" uverbs FAILURE "--device=/dev/infiniband" unshare -m sh -c 'mount -t tmpfs none /dev/infiniband && exec "$@"' - "$tool" doctor "$device"
	group=$work/service
	mkdir "$group" && mount -t cgroup2 none "$group" && mkdir "$group/app.service"
	says "a service with PrivateDevices=" uverbs FAILURE "app.service: likely its PrivateDevices= hides.*PrivateDevices=no" \
		unshare -m bash -c 'echo $$ >"$0/cgroup.procs" && mount -t tmpfs none /dev && exec "$@"' "$group/app.service" "$tool" doctor "$device"
	umount -l "$group"
	says "no provider" uverbs FAILURE "apt-get install ibverbs-providers" unshare -m sh -c 'mount -t tmpfs none /etc/libibverbs.d && exec "$@"' - "$tool" doctor "$device"
	says "no libibverbs" rdma-core FAILURE "cannot be loaded" unshare -m sh -c 'mount --bind /dev/null "$(readlink -f /usr/lib/x86_64-linux-gnu/libibverbs.so.1)" && exec "$@"' - "$tool" doctor "$device"
	group=$work/cgroup
	mkdir "$group" && mount -t cgroup2 none "$group"
	echo "+memory +hugetlb +rdma" >"$group/cgroup.subtree_control"
	mkdir "$group/tight"
	echo 256M >"$group/tight/memory.max"
	echo 0 >"$group/tight/hugetlb.2MB.max"
	echo "$device hca_object=0" >"$group/tight/rdma.max"
	inside() { bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group/tight" "$@"; }
	says "no limits of groups" cgroup ok "no limit on memory" "$tool" doctor nosuch
	says "limits of a group" cgroup warning "memory.max 256 MiB.*hugetlb.2MB.max 0 B.*rdma.max of $device: 0 of 0 objects.*SIGKILL.*EFAULT.*EAGAIN" \
		inside "$tool" doctor nosuch
	umount -l "$group"
	says_with() { # FILE VALUE NAME SUBJECT STATE WORDS: while the kernel's file has that value
		local was
		was=$(sed 's/.*\[\(.*\)\].*/\1/' "$1")
		echo "$2" >"$1"
		says "${@:3}" doctor
		echo "$was" >"$1"
	}
	says_with /proc/sys/vm/max_map_count 20000 "few mappings" mappings warning "sysctl -w vm.max_map_count"
	says_with /sys/kernel/mm/transparent_hugepage/enabled never "no transparent hugepages" "transparent hugepages" warning "echo madvise"
	says_with /proc/sys/vm/nr_hugepages 4 "hugepages" hugepages ok "4 of 4 (of 2048 kB) are free"
	netdev=$(cat "/sys/class/infiniband/$device/ports/1/gid_attrs/ndevs/0" 2>/dev/null)
	if [ -n "$netdev" ]; then
		ip link set dev "$netdev" down
		says "a port that is down" device warning "no data can move" "$tool" doctor "$device"
		ip link set dev "$netdev" up
	fi
fi
tap_done
