#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# report.sh: the report of "make hardware" has the facts and results of a machine, and none of its
# names and addresses. The machine is a folder, and its results name all that must not be sent.
. "$(dirname "$0")/../../lib/script.sh"
cd "$here/../../.." || exit 1
tool=$PWD/bench/hardware
root=$work/root sysfs=$work/root/sys/class/infiniband/rocex7cfe90cb743a
# The user whose process it is may have any name.
person=(env USER=wilhelmina LOGNAME=wilhelmina SUDO_USER=wilhelmina HOME=/people/wilhelmina PYTHONPATH="$tool" PYTHONDONTWRITEBYTECODE=1)

mkdir -p "$root"/{etc,proc/sys/kernel,sys/module/mlx5_core,sys/module/mlx5_ib,sys/class/dmi/id,sys/class/net/ibs3} "$sysfs/ports/1"
ln -s ../../../../module/mlx5_core "$work/driver"
mkdir "$sysfs/device" && ln -s "$root/sys/module/mlx5_core" "$sysfs/device/driver"
put() { echo "$2" >"$root/$1"; } # FILE TEXT
put etc/hostname node17
put proc/sys/kernel/hostname node17
put proc/sys/kernel/domainname '(none)'
put etc/hosts $'127.0.0.1 localhost\n10.20.30.40 node17.cluster.example.org node17\n10.20.30.41 storage-04 # the old one'
put etc/resolv.conf $'nameserver 10.20.0.53\nsearch cluster.example.org lab'
put etc/passwd $'root:x:0:0::/root:/bin/sh\nmarianne:x:1000:1000::/users/physics/marianne:/bin/sh'
put etc/machine-id 5d1c0e8a93b24b7ab7d1e0c4f2a6b811
put etc/os-release 'PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"'
put proc/cpuinfo $'processor\t: 0\nmodel name\t: AMD EPYC 9354\nflags\t\t: fpu sse2\nprocessor\t: 1'
put proc/meminfo 'MemTotal:       24684084 kB'
put sys/class/dmi/id/product_serial QX77-8812-ZZ
put sys/class/net/ibs3/address 80:00:00:48:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:cb:74:3a
put sys/module/mlx5_core/version 5.8-2.0.3
echo 1234:5678:9012:3456 >"$sysfs/node_guid"
echo 229.1.123.0 >"$sysfs/fw_ver"
echo MT4129 >"$sysfs/hca_type"
echo '4: ACTIVE' >"$sysfs/ports/1/state"
echo InfiniBand >"$sysfs/ports/1/link_layer"
echo '400 Gb/sec (4X NDR)' >"$sysfs/ports/1/rate"

# What must not be in the report, and a line that has it, as the programs print such a line.
secrets=(
	'/scratch/tree' 'at /scratch/tree/src/lib.rs:12:5'
	'wilhelmina' 'for the user wilhelmina'
	'/people' 'open /people/wilhelmina/.cache: permission denied'
	'/users/physics' 'cannot read /users/physics/marianne/app'
	'marianne' 'marianne holds the lock'
	'bob' 'in /home/bob/src'
	'carol' 'report it to carol@elsewhere.org'
	'login9' 'from login9.cluster.example.org: timed out'
	'printer' 'from printer.lab'
	'node17' 'server NODE17 and node17-ib0'
	'example' 'in cluster.example.org'
	'storage-04' 'storage-04 has no route'
	'QX77' 'serial number QX77-8812-ZZ'
	'10.20.30' 'local address 10.20.30.40, peer [10.20.30.44]:4791'
	'0a14' 'GID: 0000:0000:0000:0000:0000:ffff:0a14:1e28'
	'254:203' ' remote address: LID 0000 QPN 0x0011 PSN 0x2b, GID: 254:128:00:00:00:00:00:00:126:254:144:255:254:203:116:58'
	'7efe' 'link:fe80::7efe:90ff:fecb:743a, and ::ffff:7efe:1'
	'e5d0' 'node guid 0x0002c9030001e5d0, 0002:c903:0001:e5d0'
	'74:3b' 'ether 7c:fe:90:cb:74:3b'
	'cb-74' 'ether 7c-fe-90-cb-74-3b'
	'743c' 'ether 7cfe.90cb.743c'
	'90cb743' 'enx7cfe90cb743d is down'
	'1234567890123456' 'guid 1234567890123456'
	'ip-10' 'host name ip-10-20-30-44, or 10-20-30-44'
	'4c4c4544' 'system 4c4c4544-0051-3010-8056-b8c04f4d5a31'
)
# What the reader needs.
stays=('229.1.123.0' 'libibverbs.so.1.14.44.0' 'librdmacm.so.1.3.44.0' 'mlx5_core 5.8-2.0.3, mlx5_ib' 'MT4129' '1 active, InfiniBand, 400 Gb/sec (4X NDR)' '2 of AMD EPYC 9354'
	'Rocky Linux 9.4' 'Debian' '24684084 kB' 'at 12:34:56' '0000:3b:00.0' '4398046511104 bytes' 'access_flags@all' 'ibv_reg_mr 0.994' 'src/lib.rs:12:5'
	'1 failure' '20 passed, 1 failed, 0 skipped' 'std::fs::File')
{
	echo "not ok 1 - it says at 12:34:56"
	for ((n = 0; n < ${#secrets[@]}; n += 2)); do echo "# ${secrets[n + 1]}"; done
	echo "# 0000:3b:00.0: 4398046511104 bytes, std::fs::File, librdmacm.so.1.3.44.0"
	echo "1..1"
} >"$work/hw.access_flags@all.tap"
printf 'ok 1 - fine on printer.lab\n1..1\n' >"$work/hw.data.tap"
printf 'hw.access_flags@all 20 passed 1 failed\n\n20 passed, 1 failed, 0 skipped\n' >"$work/summary"
printf '   4 KiB   ibv_reg_mr 0.994\n\n18 figures are in target/figures; `bench/figures take` puts them into README.md\n' >"$work/bench.plain"
echo "storage-04: failed" >"$work/bench.cache"
cat >"$work/doctor" <<-END
	ok       device rocex7cfe90cb743a: port 1 active
	ok       driver rocex7cfe90cb743a: mlx5: the library registers by its own
	         ioctl (of Debian)
	ok       rdma-core: release 44.0 (/usr/lib/libibverbs.so.1.14.44.0)

	2 ok, 0 warnings, 1 failure
END

report() { "${person[@]}" python3 "$tool/report.py" rocex7cfe90cb743a "$work" "$root" /scratch/tree; }
check "the report is written" report
report >"$work/report"
# These print what they found wrong.
told() { # FILE: the secrets in it
	for ((n = 0; n < ${#secrets[@]}; n += 2)); do ! grep -qiF -- "${secrets[n]}" "$1" || echo "${secrets[n]}"; done
}
lacks() { for words in "${stays[@]}"; do grep -qF -- "$words" "$1" || echo "$words"; done; }
cat "$work"/*.tap >"$work/results"
check "the results name each of $((${#secrets[@]} / 2)) secrets" [ "$(told "$work/results" | wc -l)" = $((${#secrets[@]} / 2)) ]
check "the report has none: $(told "$work/report" | xargs)" [ -z "$(told "$work/report")" ]
check "and has the ${#stays[@]} facts that its reader needs: $(lacks "$work/report" | paste -sd,)" [ -z "$(lacks "$work/report")" ]
check "it shows the end of the suite that failed" grep -q '^not ok 1 - it says' "$work/report"
check "and not of one that passed" bash -c '! grep -q "^ok 1 - fine" "$1"' - "$work/report"
check "nothing but text" bash -c '! LC_ALL=C grep -q "[^[:print:][:space:]]" "$1"' - "$work/report"

check "a device that does not exist" \
	ends_with 2 "there is no RDMA device nosuch; there are: " env DEVICE=nosuch "$tool/run"
check "it runs what is built already, where there is no cargo" \
	ends_with 2 "there is no RDMA device nosuch; there are: " env VM=1 DEVICE=nosuch "$tool/run"
tap_done
