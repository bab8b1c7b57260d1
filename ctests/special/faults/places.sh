#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# places.sh LIBRARY BUILT: a program under the library with /proc, /sys, /dev/shm or a folder for
# files missing, hidden or read-only, or at a limit of its own. No call fails, no region is stale, and
# no region is reused if the kernel cannot be asked, and a line says so. Prints TAP.
. "$(dirname "$0")/../../lib/script.sh"
expects 2 "$@"
export library built
library=$(realpath "$1") built=$(realpath "$2")
unshare -m true 2>/dev/null || skip_all "no namespace of mounts for this user"

program() { # its last words, and its failures
	env -u RDMAMR_CACHE RDMAMR_CACHE=all RDMAMR_CACHE_LINGER=1000000 RDMAMR_STATS="$work/stats" RDMAMR_TRACE="$work/trace" \
		LD_PRELOAD="$library" timeout 300 "$built/faults_scenario" calls
	echo "status $?"
}
export -f program
export work
# KEPT is "kept" if regions must be reused, "none" if none may be, "either" if both are right.
place() { # NAME KEPT SETUP
	local name=$1 kept=$2 setup=$3 said hits
	said=$(setup=$setup unshare -m bash -c 'mount --make-rprivate / && eval "$setup" >/dev/null 2>&1 || { echo "skip the set-up fails"; exit; }
		program' 2>"$work/errors")
	case $said in "skip "*) skip "$name" "${said%%$'\n'*}"; return ;; esac
	hits=$(sed -n 's/^end .*hits=//p; s/^end hits=//p' <<<"$said")
	case $kept:$hits in
	*:) ;;
	kept:0 | none:[1-9]*) said+=$'\n'"wrong: hits: $hits" ;;
	none:0) grep -q '^rdmamr: regions are not reused' "$work/errors" || said+=$'\n'"wrong: no line says so" ;;
	esac
	if grep -q '^status 0$' <<<"$said" && [ -n "$hits" ] && ! grep -q '^wrong\|^fails' <<<"$said"; then
		pass "$name: every call succeeds, data lands, regions are reused $hits times"
	else
		fail "$name" "$said" "$(cat "$work/errors")"
	fi
}

place "nothing is missing" kept true
place "/proc is absent" none 'mount -t tmpfs none /proc'
place "/proc is read-only" kept 'mount --bind -o ro /proc /proc && mount -o remount,bind,ro /proc'
place "/proc hides other processes" kept 'mount -t proc -o hidepid=2 none /proc'
place "/proc/sys is hidden" either 'mount -t tmpfs none /proc/sys'
place "/sys is absent" kept 'mount -t tmpfs none /sys'
place "/sys is read-only" kept 'mount --bind -o ro /sys /sys && mount -o remount,bind,ro /sys'
place "/sys/fs/cgroup is absent" kept 'mount -t tmpfs none /sys/fs/cgroup'
place "/dev is empty" either 'mount -t tmpfs none /dev'
place "/dev/shm is read-only" kept 'mkdir -p /dev/shm; mount -t tmpfs -o ro none /dev/shm'
place "/run and /tmp are read-only" kept 'mount -t tmpfs -o ro none /run; mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp'
place "no folder for files: a full file system" kept 'mount -t tmpfs -o nr_inodes=2,size=4k none "$work"'
place "the working directory is deleted" kept 'mkdir "$work/gone" && cd "$work/gone" && rmdir "$work/gone"'
place "RLIMIT_NOFILE leaves two descriptors" either 'ulimit -n 12'
place "RLIMIT_FSIZE is 0" either 'ulimit -f 0'
tap_done
