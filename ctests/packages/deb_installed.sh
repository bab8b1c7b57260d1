#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# deb_installed.sh DEVICE GID_INDEX VERSION PACKAGE...: installs the Debian packages, as root:
# programs can be compiled with them and preload them; purged, they leave nothing.
. "$(dirname "$0")/../lib/script.sh"
. "$here/../plain/programs/stats.sh"
device=$1 gid=$2 version=$3
shift 3

for package; do dpkg-deb --fsys-tarfile "$package" | tar -t; done | sed -n 's|^\./\(.*[^/]\)/*$|/\1|p' | sort -u >"$work/paths"
there() { while read -r path; do [ ! -e "$path" ] || echo "$path"; done <"$work/paths"; }
there >"$work/before"
# The index of all manual pages takes longer than all else, and is not under test.
rm -f /var/lib/man-db/auto-update
# Small images of Debian leave out the files of share/.
install() { dpkg --path-include='/usr/share/*' -i "$@"; }
others=()
for package; do
	case $package in */librdmamr-libfabric_*) provider_package=$package ;; *) others+=("$package") ;; esac
done
before=$(fi_info -l 2>&1)
check "dpkg -i, all but the provider" install "${others[@]}"
check "libfabric's list is unchanged" [ "$(fi_info -l 2>&1)" = "$before" ]
check "dpkg -i, the provider" install "$provider_package"
there >"$work/installed"
check "every file is there" diff "$work/paths" "$work/installed"

compile() { # NAME SOURCE ARGUMENT...
	cc -std=gnu11 -Wall -Wextra -Werror "$here/$2" "$here/../lib/tap.c" -o "$work/$1" "${@:3}" -libverbs
}
read -ra flags <<<"$(pkg-config --cflags --libs rdmamr)"
check "pkg-config names the library: ${flags[*]}" grep -q -- ' -lrdmamr ' <<<" ${flags[*]} "
check "a program compiles and links" compile consumer consumer.c "${flags[@]}"
results "it runs" "$work/consumer"
check "a program links the archive" compile static consumer.c -l:librdmamr.a -lgcc_s -lpthread -ldl
results "it runs" "$work/static"

# As in "make demo", by the library's name alone. Soft-RoCE delivers a message to the program before
# it acknowledges it: if the client ends in between, the server gets no acknowledgement, and fails.
# Then try once more.
for port in 18515 18516 18517; do
	rm -f "$work/stats"
	pingpong=(env RDMAMR_STATS="$work/stats" LD_PRELOAD=librdmamr.so.1 ibv_rc_pingpong -p $port -d "$device" -g "$gid" -n 100 -c)
	"${pingpong[@]}" >"$work/server" 2>&1 &
	server=$!
	until grep -qsi ":$(printf %X $port) " /proc/net/tcp /proc/net/tcp6 || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
	"${pingpong[@]}" localhost >"$work/client" 2>&1
	client=$?
	wait $server
	server=$?
	[ $server != 0 ] && grep -q 'transport retry counter exceeded' "$work/server" || break
	echo "# the server on port $port: $(tail -n 1 "$work/server")"
done
check "LD_PRELOAD=librdmamr.so.1 ibv_rc_pingpong: $(tail -n 1 "$work/client")" [ $client = 0 ]
check "its server: $(tail -n 1 "$work/server")" [ $server = 0 ]
sum_stats "$work/stats"
# shellcheck disable=SC2154 # sum_stats sets them
check "2 processes used the library ($(show_stats))" [ "${stats[processes]}" = 2 ]
check "it registered their memory, and forwarded no call" [ "${stats[reg_kernel]} ${stats[reg_next]} ${stats[live]}" = "2 0 0" ]
provider=$(fi_info -p rdmamr -d "$device" 2>&1)
check "libfabric finds the installed provider" grep -q "domain: $device$" <<<"$provider"

check "rdmamr run finds the library" grep -q "/librdmamr\.so\.$version$" <<<"$(rdmamr run -- cat /proc/self/maps 2>&1)"
check "rdmamr --version names the library" grep -q "^librdmamr $version (/usr/lib/.*/librdmamr.so" <<<"$(rdmamr --version)"
for page in "1 rdmamr" "7 rdmamr" "3 ibv_flush_relaxed_mr" "3rdmamr fi_mr_reg"; do
	check "man $page" [ -s "$(man -w "${page% *}" "${page#* }")" ]
done

check "dpkg --purge" dpkg --purge rdmamr-tools librdmamr-libfabric librdmamr-dev librdmamr1
there >"$work/after"
check "no file is left" diff "$work/before" "$work/after"
check "dpkg knows nothing of it" [ -z "$(find /var/lib/dpkg/info -name '*rdmamr*')" ]
check "nor the loader" [ -z "$(ldconfig -p | grep rdmamr)" ]
tap_done
