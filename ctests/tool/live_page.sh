#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# live_page.sh LIBRARY HOLDS: the live page: which processes have a file of it, where, with which
# rights, and until when. An obstacle to it costs the program nothing. top.sh reads its content. HOLDS
# is ctests/tool/holds.c.
TMPDIR=/dev/shm . "$(dirname "$0")/../lib/script.sh"
library=$1 holds=$2
trap 'kill -9 ${held[*]:-} 2>/dev/null; rm -rf "$work" ${theirs:+"$theirs"}' EXIT
. "$here/holds.sh"
export XDG_RUNTIME_DIR=$work/run
folder=$XDG_RUNTIME_DIR/rdmamr
mkdir -m 700 "$XDG_RUNTIME_DIR"
files() { find "$folder/" -mindepth 1 2>/dev/null | wc -l; } # unfinished ones too
mapped() { grep -c "$folder/" "/proc/$1/maps"; }             # PID
registers() { # NAME FILES WORDS COMMAND...: it registers, and then there are so many files
	start "$1" "${@:4}"
	is "$3: the program registers" "done" "$(ask "$1" "register 1")"
	is "$3: $2 files" "$2" "$(files)"
}

registers none 0 "with RDMAMR_LIVE=0 there is no page" holder RDMAMR_LIVE=0
check "and no folder" [ ! -e "$folder" ]
ends none $pid

start one holder
one=$pid
ask one "again 0" >/dev/null
before=$(ls /proc/$one/fd)
ask one "register 1" >/dev/null
page=$(find "$folder" -type f)
is "a process that registers has a file of mode 0600 in a folder of mode 0700" "700 600 $(id -u)" \
	"$(stat -c %a "$folder") $(stat -c '%a %u' "$page")"
check "whose name has its number" grep -q -- "-$one-" <<<"$page"
is "which it has mapped, once" 1 "$(mapped $one)"
is "without a descriptor" "$before" "$(ls /proc/$one/fd)"
ask one fork >/dev/null
child=$(xargs <"/proc/$one/task/$one/children")
is "a child has no page of its parent's" "0 1" "$(mapped "$child") $(files)"
ask one "register 1" >/dev/null
is "but one of its own" "1 2" "$(mapped "$child") $(files)"
ask one end >/dev/null
is "which ends with the child" "$page" "$(find "$folder" -type f)"
ends one $one
is "no file is left at the exit" 0 "$(files)"

registers killed 1 "a process that is killed" holder
kill -9 $pid
wait $pid 2>/dev/null
is "its file stays" 1 "$(files)"
registers image 1 "the next process has removed the killed one's file" holder
echo exec >"$work/image.in"
ask image "again 0" >/dev/null
is "the file of a program that replaces itself stays" "0 1" "$(mapped $pid) $(files)"
ask image "register 1" >/dev/null
is "and is replaced by that of the next one" "1 1" "$(mapped $pid) $(files)"
ends image $pid

# Obstacles.
limited() { ulimit -f 4 && holder; }
registers limit 0 "RLIMIT_FSIZE allows no file, and there is no SIGXFSZ" limited
start full holder
ask full "again 0" >/dev/null
for ((lowest = 0; ; lowest++)); do [ -e /proc/$pid/fd/$lowest ] || break; done
prlimit --pid $pid --nofile=$lowest:$lowest
is "no descriptor is left: the program registers" "done 0" "$(ask full "register 1") $(files)"
rm -rf "$folder"
mkdir "$work/other"
ln -s "$work/other" "$folder"
registers link 0 "the folder is a link" holder
check "and no file is made behind the link" rmdir "$work/other"
rm "$folder"
mkdir -m 755 "$folder"
registers readable 0 "others may read the folder" holder
if [ "$(id -u)" = 0 ]; then
	chmod 700 "$folder" && chown 65534 "$folder"
	registers foreign 0 "the folder is another user's" holder
	chown 0 "$folder"
	# sudo(8) can leave the variable of the user who calls it.
	theirs=/run/user/$((64000 + $$ % 1000))
	mkdir -p /run/user && mkdir -m 700 "$theirs"
	registers sudo 0 "XDG_RUNTIME_DIR is another user's" holder XDG_RUNTIME_DIR="$theirs"
	is "nothing is made in it" "" "$(ls -A "$theirs")"
	# shellcheck disable=SC2016
	on_full() {
		exec unshare --mount bash -c 'mount -t tmpfs -o mode=0700,size=8k none "$0" && LD_PRELOAD=$1 exec "$2"' \
			"$folder" "$library" "$holds"
	}
	if unshare --mount true 2>/dev/null; then
		registers disk 0 "a full file system" on_full
		is "and no file is made in it" 0 "$(find "/proc/$pid/root$folder/" -mindepth 1 | wc -l)"
	else
		skip "a full file system" "this process can mount nothing"
	fi
else
	skip "a folder of another user, a full file system" "needs root"
fi
tap_done
