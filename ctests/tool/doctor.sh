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
doctor() { "$tool" doctor ${device:+"$device"} "$@"; }

doctor >"$work/text"
status=$?
doctor --json >"$work/json"
check "--json ends with the same status" [ $? = $status ]
check "it is JSON" python3 -m json.tool "$work/json"
check "of the documented shape" python3 -c '
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
subjects=(kernel rdma-core libfabric library container memlock cgroup userfaultfd fence mappings fork hugepages 'transparent hugepages')
[ -n "$(grep -lE '^0x(10de|1002)$' /sys/bus/pci/devices/*/vendor 2>/dev/null)" ] || subjects+=(gpu)
for subject in "${subjects[@]}"; do
	check "it looks at $subject" bash -c '[ "$(grep -c "\"subject\": \"$1\"" "$2")" = 1 ]' - "$subject" "$work/json"
done
says "the library loads" library ok "$library" cat "$work/text"
release=$(dpkg-query -W -f '${Version}' libibverbs1 2>/dev/null | cut -d- -f1)
if [ -n "$release" ]; then
	# Not in the path, which has it too.
	says "the release of rdma-core" rdma-core ok "^release ${release//./\\.} " cat "$work/text"
else
	skip "the release of rdma-core" "dpkg-query does not know it"
fi
# With a device, these checks need not run again: the host's libraries, limits and filters decide
# them, and a start of the program takes seconds in the machine.
if [ -z "$device" ]; then
	says "a library that cannot be preloaded" library FAILURE "cannot be preloaded" env RDMAMR_LIBRARY="$(
		cp "$library" "$work/broken.so"
		# It needs a version of the C library that does not exist.
		sed -i 's/GLIBC_2\.34/GLIBC_9.99/g' "$work/broken.so"
		echo "$work/broken.so"
	)" "$tool" doctor
	says "a library that does not exist" library FAILURE "No such file" env RDMAMR_LIBRARY=/nowhere "$tool" doctor
fi
check "it fits 80 columns, except lines to copy" [ "$(grep -v '^ *-> ' "$work/text" | wc -L)" -le 80 ]
[ -n "$device" ] || check "a device that does not exist" ends_with 1 nosuch "$tool" doctor nosuch
check "wrong usage" ends_with 2 nosuch "$tool" doctor --nosuch

# A filter of system calls, as containers have one.
filtered() { ${hidden:+hide} "${built:-target/ctests}/starts_filtered" "$@"; } # ACTION COMMAND...
if [ "$(uname -m)" = x86_64 ]; then
	says "userfaultfd is allowed" userfaultfd ok "allowed" cat "$work/text"
	# Without a device libibverbs cannot ask the kernel, which needs no help from 5.13 on.
	if [ ! -e /sys/class/infiniband ] && [ "$(printf '5.13\n%s\n' "$(uname -r)" | sort -V | head -1)" = 5.13 ]; then
		says "fork support is not needed" fork ok "not needed" cat "$work/text"
	else
		skip "fork support without a device" "there is one, or the kernel is older than 5.13"
	fi
	if [ -z "$device" ]; then
		if [ -r /dev/userfaultfd ]; then
			says "refused by a container's filter, and granted by the device" userfaultfd ok "allowed" filtered refuse "$tool" doctor
		else
			skip "the device in place of the call" "there is none, or not for this user"
		fi
		hide() { # COMMAND...: in a container without the device
			if [ -e /dev/userfaultfd ]; then
				unshare -m sh -c 'mount --bind /dev/null /dev/userfaultfd && exec "$@"' - "$@"
			else
				"$@"
			fi
		}
		if hide true 2>/dev/null; then
			hidden=yes
			says "refused by a container's filter" userfaultfd warning "seccomp" filtered refuse "$tool" doctor
			says "in the other way that they refuse" userfaultfd warning "seccomp" filtered lack "$tool" doctor
			hidden=
		else
			skip "refused by a container's filter" "the device cannot be hidden here"
		fi
	fi
fi
[ -n "$device" ] || says "a pod" container ok "a container of Kubernetes; this is a job of Slurm" env KUBERNETES_SERVICE_HOST=10.0.0.1 SLURM_JOB_ID=1 "$tool" doctor
if [ "$(id -u)" = 0 ] && setpriv --reuid=65534 --clear-groups test -x "$tool"; then
	says "userfaultfd needs no privilege" userfaultfd ok "allowed" "${nobody[@]}" "$tool" doctor
	little() { prlimit --memlock=65536 env -u container "$@" "$tool" doctor; }
	if [ -z "$device" ]; then
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
	fi
	if prlimit --memlock=unlimited true 2>/dev/null; then
		says "a soft limit that every user may raise" memlock warning "ulimit -l unlimited" \
			prlimit --memlock=65536:unlimited "${nobody[@]}" "$tool" doctor
		says "unlimited" memlock ok "unlimited" prlimit --memlock=unlimited "$tool" doctor
	else
		skip "limits above this one's" "this root may not raise its own"
	fi
	little "${nobody[@]}" >/dev/null
	check "a warning does not change the status, $status" [ $? = $status ]
else
	skip "limits of other users" "only root can become one, where the program can be reached"
fi

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
if on_machine yes true 2>/dev/null; then
	about_gpus() { on_machine "$1" "$tool" doctor ${device:+"$device"}; }
	says "a GPU" "gpu 0000:19:01.0" ok "NVIDIA 2330, driver none, NUMA node 0, BAR of 128 GiB for 80 GiB of memory" about_gpus yes
	says "a driver exports dma-bufs" "gpu driver" ok \
		"NVIDIA 570.86.15, open kernel modules; it exports dma-bufs; nvidia_peermem is not loaded" about_gpus yes
	says "one without dma-bufs" "gpu driver" warning "1 of 1 GPUs export no dma-buf.*Linux 5.12.*modprobe nvidia_peermem" about_gpus no
	says "a library that hangs" "gpu driver" ok "(it did not answer within 20 s)" about_gpus hang
	# Devices of vm/hca are called as the hardware that they stand in for.
	case $device in
	rxe* | siw*) says "a device in software takes no dma-buf" "gpu memory" warning "GPU memory can be registered on $device: not: ${device%%[0-9]*} takes no dma-buf.*no PCI device" about_gpus yes ;;
	esac
else
	skip "GPUs" "this user may not mount them"
fi

# The causes of an errno, from docs/troubleshooting.md, and the checks for them.
if [ -z "$device" ]; then
	says "AddressSanitizer's runtime would come second" instruments warning "-> rdmamr run" env ASAN_OPTIONS=a=1 LD_PRELOAD="$library" "$tool" doctor
	says "but not if its order does not count" instruments ok "is set" env ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD="$library" "$tool" doctor
	says "valgrind" instruments warning "each registration is plain" valgrind -q "$tool" doctor
	check "without them it says nothing of such" bash -c '! grep -q instruments "$1"' - "$work/text"
	"$tool" explain enomem >"$work/explained"
	check "explain ENOMEM has causes and what to do, in 80 columns" bash -c 'grep -q "^ 1\. " "$1" && grep -q "^ *-> " "$1" && [ "$(grep -v "^ *-> " "$1" | wc -L)" -le 80 ]' - "$work/explained"
	check "memory of a GPU among them" grep -q "memory of a GPU, says" "$work/explained"
	for runtime in Docker Kubernetes Slurm systemd prlimit; do
		check "explain ENOMEM says how $runtime raises the limit" grep -q "^  - .*$runtime" <(sed 's/^  - A process that.*prlimit/  - prlimit/' "$work/explained")
	done
	[ "$(id -u)" != 0 ] || says "and what the limit is" memlock warning "soft limit 64 KiB" prlimit --memlock=65536 "${nobody[@]}" "$tool" explain ENOMEM
	check "another errno has a line" grep -q "^EIO: likely the device is gone" <("$tool" explain EIO)
	check "so has one from standard input" diff <(echo "fi_mr_reg failed, ret is:-12" | "$tool" explain -) "$work/explained"
	check "words need no quotes" grep -q "^EFAULT: Bad address" <("$tool" explain Bad address)
	check "an unknown errno: the known ones" ends_with 2 "ENOMEM, EFAULT" "$tool" explain EXDEV
fi

if [ -z "$device" ]; then
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
"$tool" doctor "$device" >"$work/text"
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
	most=$(cat /proc/sys/vm/max_map_count)
	echo 20000 >/proc/sys/vm/max_map_count
	says "few mappings" mappings warning "sysctl -w vm.max_map_count" doctor
	echo "$most" >/proc/sys/vm/max_map_count
	echo never >/sys/kernel/mm/transparent_hugepage/enabled
	says "no transparent hugepages" "transparent hugepages" warning "echo madvise" doctor
	echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
	huge=$(cat /proc/sys/vm/nr_hugepages)
	echo 4 >/proc/sys/vm/nr_hugepages
	says "hugepages" hugepages ok "4 of 4 (of 2048 kB) are free" doctor
	echo "$huge" >/proc/sys/vm/nr_hugepages
	netdev=$(cat "/sys/class/infiniband/$device/ports/1/gid_attrs/ndevs/0" 2>/dev/null)
	if [ -n "$netdev" ]; then
		ip link set dev "$netdev" down
		says "a port that is down" device warning "no data can move" "$tool" doctor "$device"
		ip link set dev "$netdev" up
	fi
fi
tap_done
