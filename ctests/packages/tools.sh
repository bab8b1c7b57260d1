#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# tools.sh: vm/packages finds tools as tools, on machines that stand in for Fedora, openSUSE and Arch:
# without dpkg and apt-get, and with the name of that distribution's package manager.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
unset PACKAGES

machine() { # MANAGER TOOL...: makes the machine: this one's programs, without these tools
	local tool
	rm -rf "$work/bin"
	mkdir "$work/bin"
	ln -s /usr/bin/* /bin/* "$work/bin/" 2>/dev/null
	rm -f "$work"/bin/{dpkg,apt}*
	for tool in "${@:2}"; do rm -f "$work/bin/$tool"; done
	[ -z "$1" ] || printf '#!/bin/sh\nexit 9\n' >"$work/bin/$1"
	[ -z "$1" ] || chmod +x "$work/bin/$1"
}
there() { PATH=$work/bin "$@" 2>&1; }

# The groups whose tools are all here.
groups=()
for group in demo rpm docs c; do
	if CHECK_INSTALLED=yes vm/packages $group >/dev/null 2>&1; then groups+=($group); else lacks "$group" "a tool of its"; fi
done
unset CHECK_INSTALLED
for manager in dnf zypper pacman; do
	machine $manager
	for group in "${groups[@]}"; do
		check "$manager: the tools of $group are found without dpkg" there vm/packages $group
	done
done
machine dnf gcc cc codespell
check "dnf: a missing tool is named by dnf's package" ends_with 1 " dnf install codespell gcc" there vm/packages docs demo
check "dnf: and by its own name" ends_with 1 "These tools are missing: gcc codespell." there vm/packages docs demo
check "dnf: PACKAGES=installed goes on without" there env PACKAGES=installed vm/packages docs demo
machine zypper g++ man
check "zypper: a missing tool is named by zypper's package" ends_with 1 " zypper install gcc-c++ man" there vm/packages c docs
machine pacman ib_write_bw go
check "pacman: a missing tool is named by pacman's package" ends_with 1 " pacman -S --needed go" there vm/packages go demo
check "pacman: a tool without a package is named" ends_with 1 "No package of this distribution is known for: ib_write_bw" there vm/packages demo
machine "" codespell
check "without a package manager the tools are named" ends_with 1 "These tools are missing: codespell." there vm/packages docs
check "while suites run a missing tool is named, not installed" \
	ends_with 1 "should have installed these tools at its beginning, and has not: codespell" there env CHECK_INSTALLED=yes vm/packages docs
check "a group that does not exist is refused" ends_with 2 "there is no group nothing" there vm/packages docs nothing

machine dnf
check "make demo without a device says how to make one" ends_with 1 "rdma link add rxe0 type rxe" there bench/demo
tap_done
