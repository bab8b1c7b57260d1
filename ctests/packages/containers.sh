#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# containers.sh LIBRARY BUILT RDMAMR: the files of docs/containers are valid by their schemas, and do
# what docs/containers.md says where this machine can try it: under the seccomp profile, with a
# container's capabilities and limits, as root and as a user.
. "$(dirname "$0")/../lib/script.sh"
library=$(realpath "$1") built=$(realpath "$2") rdmamr=$(realpath "$3")
cd "$here/../.." || exit 1
files=$PWD/docs/containers helper=$PWD/ctests/packages/containers.py
profile=$files/seccomp.json
chmod 755 "$work"
unset LD_PRELOAD "${!RDMAMR_@}"
. packaging/tree.sh

# The files, by their schemas.
if tools=$(ctests/packages/kubernetes_validate 2>"$work/pip"); then
	check "Kubernetes' schemas accept each YAML file" python3 -B "$helper" yaml "$tools" "$files"/*.yaml
else
	skip "Kubernetes' schemas" "kubernetes-validate could not be downloaded: $(tail -n 1 "$work/pip")"
fi
check "the seccomp profile allows userfaultfd, and no call that no container gets" /usr/bin/python3 -B "$helper" profile "$profile"
versions() { grep -hoE 'rdmamr[:/][0-9]+\.[0-9]+\.[0-9]+' "$files"/* docs/containers.md | grep -oE '[0-9.]+$' | sort -u; }
check "the files name this version: $(versions | paste -sd,)" [ "$(versions)" = "$tree_version" ]

# The program of the suite faults_places: it asserts its data itself, and prints its hits.
unshare -m true 2>/dev/null || { skip "in a sandbox" "no namespace of mounts for this user"; tap_done; exit; }
empty_dev='mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/urandom c 1 9'
with_device="$empty_dev && mknod -m 666 /dev/userfaultfd c \$(tr : ' ' </sys/class/misc/userfaultfd/dev)"
# The capabilities that runtimes leave, and none of them for a user.
bounding=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap
inside() { # SETUP USER BOUNDING COMMAND...
	setup=$1 unshare -m --propagation private bash -c 'eval "$setup" || exit 125; exec "$@"' - \
		setpriv --reuid "$2" --regid "$2" --clear-groups --no-new-privs --inh-caps=-all --bounding-set="$3" "${@:4}"
}
under=(/usr/bin/python3 -B "$helper" seccomp "$profile")
reuse() { # NAME KEPT SETUP USER [OPTION...]: KEPT: regions are reused, or none is
	local name=$1 kept=$2 hits
	inside "$3" "$4" $bounding "${under[@]}" "${@:5}" -- env RDMAMR_STATS=stderr LD_PRELOAD="$library" \
		"$built/holds" <<<"again 100" >"$work/errors" 2>&1
	hits=$(grep -oE '"hits":[0-9]+' "$work/errors" | cut -d: -f2)
	if [ -n "$hits" ] && [ $((hits > 0)) = "$kept" ]; then
		pass "$name: 100 registrations, of which $hits reuse a region"
	else
		fail "$name" "$(cat "$work/errors")"
	fi
}
reuse "the profile, as root" 1 "$empty_dev" 0
reuse "the profile, as a user" 1 "$empty_dev" 1000
reuse "Docker's own, without userfaultfd" 0 "$empty_dev" 0 --without userfaultfd
check "which the library says, with the remedy" grep -q 'userfaultfd(2) is refused' "$work/errors"
if [ -r /sys/class/misc/userfaultfd/dev ]; then
	reuse "Docker's own and the device /dev/userfaultfd, as a user" 1 "$with_device" 1000 --without userfaultfd
else
	skip "Docker's own and the device /dev/userfaultfd" "this kernel has no /dev/userfaultfd"
fi
# A program that asserts its data itself. The stand-in of a device pins by io_uring, which no profile
# allows, and the limit counts that for all processes of a user.
also=(--also io_uring_setup --also io_uring_enter --also io_uring_register)
said=$(inside "$empty_dev" 0 "$bounding,+ipc_lock" "${under[@]}" "${also[@]}" -- env RDMAMR_CACHE=all RDMAMR_CACHE_LINGER=1000000 \
	LD_PRELOAD="$library" "$built/faults_scenario" calls 2>&1)
right() { grep -q '^end .*hits=[1-9]' <<<"$1" && ! grep '^wrong\|^fails' <<<"$1"; }
case $said in
"skip "*) skip "the profile, every call of the suite faults_places" "${said#skip }" ;;
*) check "the profile, every call of the suite faults_places: $(tail -n 1 <<<"$said")" right "$said" ;;
esac

# What the pod's init container copies.
check "make install PREFIX=/opt/rdmamr" env -u MAKEFLAGS -u MAKELEVEL make -s --no-print-directory install DESTDIR="$work/image" PREFIX=/opt/rdmamr
mkdir "$work/rdmamr"
check "cp -a /opt/rdmamr/. /rdmamr/" cp -a "$work/image/opt/rdmamr/." "$work/rdmamr/"
check "the copy's rdmamr run loads the copy's library" \
	grep -qF "$work/rdmamr/lib/librdmamr.so.$tree_version" <("$work/rdmamr/bin/rdmamr" run -- cat /proc/self/maps)
# The DaemonSet's script and capabilities, on a process of another user in another container.
if [ -n "$tools" ]; then
	mkfifo "$work/in"
	mkdir -m 755 "$work/textfile"
	container='mkdir -p /dev/shm && mount -t tmpfs -o mode=1777 none /dev/shm'
	# It ends when this script does, however that is: only the script has the pipe open to write.
	exec 8<>"$work/in"
	inside "$container" 1001 -all env LD_PRELOAD="$library" "$built/holds" <"$work/in" >"$work/out" 2>&1 8>&- &
	echo "register 3" >&8
	awaits [ -s "$work/out" ]
	top() { # BOUNDING: one round of the script
		rm -f "$work/textfile/rdmamr.prom"
		python3 -B "$helper" script $tools "$files/daemonset.yaml" |
			sed "s|/opt/rdmamr/bin/rdmamr|$rdmamr|; s|/textfile|$work/textfile|; s|sleep 15|kill -TERM \$\$; sleep 15|" >"$work/script"
		inside true 0 "$1" sh "$work/script" || return
		grep -q 'user="1001"' "$work/textfile/rdmamr.prom"
	}
	capabilities=-all,$(python3 -B "$helper" capabilities $tools "$files/daemonset.yaml")
	check "the DaemonSet's script writes the registrations of other containers, with $capabilities, and ends by SIGTERM" top "$capabilities"
	check "it needs each of them: sys_ptrace alone is not enough" fails top -all,+sys_ptrace
	check "nor with dac_read_search" fails top -all,+sys_ptrace,+dac_read_search
else
	skip "the DaemonSet's script" "kubernetes-validate could not be downloaded"
fi

# Slurm: slurmd runs the prolog with the task's environment and obeys its lines.
prolog() { env "$@" sh "$files/task-prolog" 2>"$work/words"; }
installed=$work/image/opt/rdmamr/share/doc/rdmamr/docs/containers
check "the task prolog leaves other jobs alone" [ -z "$(prolog 2>&1)" ]
check "and those whose module names the library" [ -z "$(prolog RDMAMR_LIBRARY="$library" 2>&1)" ]
lib=$work/rdmamr/lib
asks=(RDMAMR_LIBRARY="$lib/librdmamr.so.1" RDMAMR_CACHE=local)
check "a line in the value of another variable asks for nothing" [ -z "$(prolog RDMAMR_LIBRARY="$lib/librdmamr.so.1" OTHER=$'x\nRDMAMR_CACHE=local' 2>&1)" ]
with() { eval "$line" && "$@"; }
preloads='^LD_\|^[A-Z]*_OPTIONS\|^GLIBC_'
given() { env "$@" RDMAMR_LIBRARY="$lib/librdmamr.so.1" "$rdmamr" run -- env 2>/dev/null | grep "$preloads" | sort; }
for own in A=1 LD_AUDIT=/audit.so "LD_PRELOAD=/other.so /x/libtsan.so.2:/x/libclang_rt.asan.so" \
	ASAN_OPTIONS=a=1 ASAN_OPTIONS=a=1:verify_asan_link_order=1; do
	line=$(prolog "${asks[@]}" "$own")
	check "a job that asks for the library has it as under rdmamr run, with $own" [ "$(exec 2>/dev/null; export "$own"; with env | grep "$preloads" | sort)" = "$(given "$own")" ]
done
line=$(prolog "${asks[@]}")
check "whose task has it" grep -qF "$lib/librdmamr.so" <(with cat /proc/self/maps)
line=$(prolog PKG_CONFIG_PATH="$work/image/opt/rdmamr/lib/pkgconfig" RDMAMR_CACHE=local)
check "pkg-config knows the folder. A node without the library says so on standard error, and goes on: $(cat "$work/words")" \
	[ "$line $(cat "$work/words")" = " rdmamr: /opt/rdmamr/lib/librdmamr.so.1 is not on $(uname -n)" ]
env -i DESTDIR="$work/rpm" PATH="$PATH" make -s --no-print-directory install PREFIX=/usr LIBDIR=/usr/lib64 DOCDIR=/usr/share/doc/rdmamr-tools >"$work/rpm.said" 2>&1
of_rpm=$work/rpm/usr/share/doc/rdmamr-tools/docs/containers
check "the installed prolog names its own folder, also RPM's" \
	[ "$(grep -h '^folder=' "$installed/task-prolog" "$of_rpm/task-prolog" | paste -sd,)" = folder=/opt/rdmamr/lib,folder=/usr/lib64 ]
check "and can be run" [ -x "$of_rpm/task-prolog" ]

# The module file, by the interpreter of its language.
if command -v tclsh >/dev/null; then
	cat >"$work/modules.tcl" <<-'TCL'
		proc module-whatis {text} {}
		proc conflict {name} {}
		proc prepend-path {name value} { puts "$name $value" }
		proc setenv {name value} { puts "$name $value" }
		source [lindex $argv 0]
		ModulesHelp
	TCL
	paths() { env PKG_CONFIG_PATH="$work/image/opt/rdmamr/lib/pkgconfig" tclsh "$work/modules.tcl" "$1" 2>/dev/null; } # FILE
	missing() { paths "$1" | while read -r _ path; do [ -e "$2$path" ] || echo "$path"; done; } # FILE ROOT
	module=$files/rdmamr.modulefile
	check "the module file sets $(paths "$module" | wc -l) variables, whose files make install has made: $(missing "$module" "$work/image" | paste -sd,)" \
		[ "$(paths "$module" | wc -l) $(missing "$module" "$work/image" | wc -l)" = "6 0" ]
	check "also the installed one" [ "$(paths "$installed/rdmamr.modulefile")" = "$(paths "$module")" ]
	check "and RPM's: $(missing "$of_rpm/rdmamr.modulefile" "$work/rpm" | paste -sd,)" \
		[ "$(paths "$of_rpm/rdmamr.modulefile" | grep -c ' /usr/lib64') $(missing "$of_rpm/rdmamr.modulefile" "$work/rpm" | wc -l)" = "4 0" ]
	check "the module's folder of LD_AUDIT is that of rdmamr run" \
		grep -qxF "LD_AUDIT $(given | sed -n "s|^LD_AUDIT=$work/rdmamr|/opt/rdmamr|p")" <(paths "$module")
	check "it begins as a module file" [ "$(head -c 8 "$module")" = '#%Module' ]
else
	lacks "the module file" tclsh
fi

# Each environment that one of our files sets, in processes of which none uses the library.
environments() { # a line "NAME VALUE" for each variable
	! command -v tclsh >/dev/null || paths "$files/rdmamr.modulefile" | sed "s|/opt/rdmamr|$work/rdmamr|" | grep -v ' /.*/bin$'
	prolog "${asks[@]}" | sed 's/^export \([A-Z_]*\)=/\1 /'
	sed -n 's/^ENV \([A-Z_]*\)=/\1 /p' packaging/Containerfile | grep -v '^PATH '
	sed -n 's/.*env\.set("\(RDMAMR_[A-Z]*\)".*/\1 x/p; s/^modextravars = {.\(RDMAMR_[A-Z]*\).*/\1 x/p' packaging/spack/package.py packaging/easybuild/rdmamr.eb
	sed -n '/^ *- name: RDMAMR_/{ s/.*: //; N; s/\n *value: / /p; }' "$files"/*.yaml
}
check "they set $(environments | cut -d ' ' -f 1 | sort -u | paste -sd,)" [ "$(environments | grep -c '^RDMAMR_LIBRARY\|^LD_PRELOAD\|^LD_AUDIT')" -ge 4 ]
mapfile -t set_by_us < <(environments | sort -u -k 1,1 | sed 's/ /=/')
said=$(env "${set_by_us[@]}" LD_PRELOAD="$library" sh -c 'true; ls' 2>&1 >/dev/null)
check "under them no process says a word: $said" [ -z "$said" ]
tap_done
