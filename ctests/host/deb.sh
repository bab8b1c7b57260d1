#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# deb.sh: the Debian packages are built, say what they need, and have the files of deb.files; lintian has nothing to say
# about them. Installed in the machine of vm/, they serve who compiles and who preloads; removed, they leave nothing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../tap.sh"
cd "$here/../.." || exit 1

# Runs in the machine, whose root file system forgets all of this.
installed() { # DEVICE GID_INDEX
	local device=$1 gid=$2 work file server status paths existed
	. ctests/programs/stats.sh
	work=$(mktemp -d)
	mapfile -t paths < <(for file in "${packages[@]}"; do dpkg-deb --fsys-tarfile "$file" | tar -t; done | sed 's|^\.||; s|/$||' | sort -u)
	there() { for file in "${paths[@]}"; do [ ! -e "$file" ] || echo "$file"; done; }
	existed=$(there)
	# Building the index of all manual pages takes longer than all else, and is not ours to test.
	rm -f /var/lib/man-db/auto-update
	# What small images of Debian leave out is asked for below.
	check "dpkg -i" dpkg --path-include='/usr/share/*' -i "${packages[@]}"
	check "every file is there" [ "$(there | wc -l)" = ${#paths[@]} ]

	read -ra flags <<<"$(pkg-config --cflags --libs rdmamr)"
	check "pkg-config names the library: ${flags[*]}" [ "${flags[*]}" = -lrdmamr ]
	check "a program compiles and links" cc -std=gnu11 -Wall -Wextra -Werror ctests/host/consumer.c -o "$work/consumer" "${flags[@]}" -libverbs
	take_over "it runs" "$("$work/consumer" >"$work/out" 2>&1; echo $?)" "$(cat "$work/out")"
	read -ra flags <<<"$(pkg-config --cflags --libs rdmamr-compat)"
	check "and one for Solaris" cc -std=gnu11 -Wall -Wextra -Werror ctests/host/solaris.c -o "$work/solaris" "${flags[@]}" -libverbs
	check "it runs" "$work/solaris"
	check "a program links the archive" cc -std=gnu11 ctests/host/consumer.c -o "$work/static" -l:librdmamr.a -libverbs -lgcc_s -lpthread -ldl
	take_over "it runs" "$("$work/static" >"$work/out" 2>&1; echo $?)" "$(cat "$work/out")"

	# As in "make demo", by the library's name alone.
	export RDMAMR_STATS=$work/stats LD_PRELOAD=librdmamr.so.1
	ibv_rc_pingpong -d "$device" -g "$gid" -n 100 -c >"$work/server" 2>&1 &
	server=$!
	until grep -qsi ":$(printf %X 18515) " /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
	ibv_rc_pingpong -d "$device" -g "$gid" -n 100 -c localhost >"$work/client" 2>&1
	status=$?
	check "LD_PRELOAD=librdmamr.so.1 ibv_rc_pingpong: the server ends well" wait $server
	unset RDMAMR_STATS LD_PRELOAD
	check "the client ends well" [ $status = 0 ]
	sum_stats "$work/stats"
	# shellcheck disable=SC2154 # sum_stats sets them
	check "2 processes used the library ($(show_stats))" [ "${stats[processes]}" = 2 ]
	check "it registered their memory, and passed nothing on" [ "${stats[reg_kernel]} ${stats[reg_next]} ${stats[live]}" = "2 0 0" ]
	check "libfabric finds the provider where it is installed" bash -c 'fi_info -p rdmamr -d "$1" | grep -q "domain: $1$"' - "$device"

	check "rdmamr --version is the package's" [ "$(rdmamr --version | awk '{ print $NF }')" = "$version" ]
	for page in "rdmamr 1" "rdmamr_trace 5" "rdmamr 7" "rdmamr_get_stats 3" "rdmamr_version 3" "ibv_flush_relaxed_mr 3" "fi_mr 3rdmamr" "fi_mr_reg 3rdmamr" "rdmamr_fi_mr 3"; do
		check "man ${page#* } ${page% *}" [ -s "$(man -w "${page#* }" "${page% *}")" ]
	done
	for shell in bash-completion/completions/rdmamr zsh/vendor-completions/_rdmamr fish/vendor_completions.d/rdmamr.fish; do
		check "completions: $shell" grep -q doctor /usr/share/$shell
	done

	check "dpkg --purge" dpkg --purge rdmamr-tools librdmamr-dev librdmamr1
	check "nothing is left" diff <(echo "$existed") <(there)
	check "nothing of it is known" bash -c '! ls /var/lib/dpkg/info | grep rdmamr && ! ldconfig -p | grep rdmamr'
	rm -rf "$work"
	tap_done
}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
pick() { packages=(target/deb/librdmamr1_*.deb target/deb/librdmamr-dev_*.deb target/deb/rdmamr-tools_*.deb); }
if [ "${1:-}" = inside ]; then
	pick
	installed "$2" "$3"
	exit
fi

for tool in dpkg-buildpackage dh lintian; do
	command -v $tool >/dev/null || { echo "1..0 # SKIP $tool is not installed (vm/packages deb)"; exit; }
done
check "make deb" make -s --no-print-directory deb
pick

said=$(lintian --fail-on error,warning target/deb/*.changes 2>&1)
check "lintian has no error and no warning" [ $? = 0 ]
grep '^[EW]:' <<<"$said" | sed 's/^/# /'

triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
contents() {
	local package
	for package in "${packages[@]}"; do
		dpkg-deb -c "$package" | sed -n "/^d/d; s|^.* \./\(.*\)|$(dpkg-deb -f "$package" Package) /\1|p"
	done | sed "s|$triplet|TRIPLET|; s|so\.$version|so.VERSION|" | LC_ALL=C sort
}
check "their files are those of deb.files" diff -u <(grep -v '^#' "$here/deb.files") <(contents)
check "no file names a folder of the builder" bash -c 'for package; do ! dpkg-deb --fsys-tarfile "$package" | grep -qaF -e "$PWD" -e "$HOME/" || { echo "$package"; exit 1; }; done' - target/deb/*.deb

has() { # PACKAGE FIELD PATTERN
	dpkg-deb -f target/deb/"$1"_*.deb "$2" | grep -E -- "$3"
}
own='librdmamr1 \(= [^)]*\)'
check "the library needs the C library, and no libibverbs" has librdmamr1 Depends '^libc6 \([^)]*\), libgcc-s1 \([^)]*\)$'
check "but recommends it" has librdmamr1 Recommends '^libibverbs1$'
check "librdmamr-dev needs the library and libibverbs' headers" has librdmamr-dev Depends "^$own, libibverbs-dev$"
check "rdmamr-tools needs the library" has rdmamr-tools Depends "(^|, )$own"
check "libraries of several architectures can be installed" has librdmamr1 Multi-Arch '^same$'
check "so can what they are compiled with" has librdmamr-dev Multi-Arch '^same$'
check "the debug symbols are packages" [ "$(find target/deb -name '*-dbgsym_*.deb' | wc -l)" = 2 ]
symbols() { dpkg-deb --ctrl-tarfile target/deb/librdmamr1_*.deb | tar -xO ./symbols; }
check "programs that use a call need librdmamr1 (>= 0.1.0~)" grep -q '^ rdmamr_get_stats@RDMAMR_1.0 0.1.0~$' <(symbols)

if [ -n "${DEVICE:-}" ]; then
	skip "installed and removed" "that is for the machine of vm/, not for one with DEVICE"
else
	output=$(vm/run -t 300 -- ctests/host/deb.sh inside rxe0 1 2>&1)
	take_over "installed" $? "$output"
fi
tap_done
