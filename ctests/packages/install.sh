#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# install.sh: installs into a folder of its own, and uses the files as a program's author would:
# pkg-config, dynamic and static linking; then removes them.
. "$(dirname "$0")/../lib/script.sh"
cd "$here/../.." || exit 1
stage=$work
cc=${CC:-cc}

install() { make -s --no-print-directory "$@" DESTDIR="$stage" PREFIX=/usr LIBDIR=/usr/lib/here; }
check "make install" install install
# tool_run looks at what the completions say.
for file in lib/here/librdmamr.so.1 lib/here/librdmamr.so lib/here/librdmamr.a lib/here/pkgconfig/rdmamr.pc \
	lib/here/pkgconfig/rdmamr-compat.pc include/rdmamr.h include/rdmamr/verbs.h include/rdmamr/compat/infiniband/verbs.h \
	include/rdmamr/fi_mr.h lib/here/libfabric/librdmamr-fi.so lib/here/rdmamr/librdmamr-audit.so bin/rdmamr share/bash-completion/completions/rdmamr \
	share/zsh/site-functions/_rdmamr share/fish/vendor_completions.d/rdmamr.fish; do
	check "installed: $file" [ -s "$stage/usr/$file" ]
done
size=$(stat -c %s "$stage/usr/lib/here/librdmamr.a")
check "the archive has no debug symbols: $((size >> 10)) KiB" [ "$size" -lt $((6 << 20)) ]
check "a packager can get them: strip_flag=" bash -c 'make -s --no-print-directory install strip_flag= DESTDIR="$1" PREFIX=/usr LIBDIR=/lib &&
	readelf -SW "$1/lib/librdmamr.a" 2>/dev/null | grep -q "\.debug_info" && rm -r "$1"' - "$stage/with"
documents() { while read -r file; do [ -s "$stage/usr/share/doc/rdmamr/$file" ] || echo "$file"; done < <(packaging/docs list); }
check "and the documents, $(packaging/docs list | wc -l) files" [ -z "$(documents)" ]
check "whose links lead to installed files" bash -c 'find "$1" -name "*.md" -print0 | xargs -0 ctests/packages/docs.py links' - "$stage/usr/share/doc/rdmamr"
pages=$(man/names)
missing() { while read -r file _; do [ -s "$stage/usr/share/man/$file" ] || echo "$file"; done <<<"$pages"; }
check "and $(wc -l <<<"$pages") manual pages and links to them" [ -z "$(missing)" ]
links() { grep -rhs '^\.so ' "$stage/usr/share/man" | sort -u | while read -r _ file; do [ -s "$stage/usr/share/man/$file" ] || echo "$file"; done; }
check "each link leads to a page" [ -z "$(links)" ]
. packaging/tree.sh
says=$("$stage/usr/bin/rdmamr" --version)
check "the program knows its version" grep -qx "rdmamr $tree_version" <<<"$says"
check "and that of the installed library" grep -q "^librdmamr $tree_version (.*/librdmamr.so" <<<"$(RDMAMR_LIBRARY=$stage/usr/lib/here/librdmamr.so.1 "$stage/usr/bin/rdmamr" -V)"
check "which prints nothing itself" [ -z "$(RDMAMR_LIBRARY=$stage/usr/lib/here/librdmamr.so.1 "$stage/usr/bin/rdmamr" -V 2>&1 >/dev/null)" ]
check "and rdma-core's: $(sed -n 3p <<<"$says")" grep -qE '^rdma-core [0-9.]+( or later)? \(.*/libibverbs' <<<"$says"
check "and the kernel's" grep -qx "Linux $(uname -r)" <<<"$says"
check "without a library it says so" grep -q '^librdmamr not found: .*/nowhere' <<<"$(RDMAMR_LIBRARY=/nowhere "$stage/usr/bin/rdmamr" -V)"

export PKG_CONFIG_PATH=$stage/usr/lib/here/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
check "pkg-config knows the version" [ "$(pkg-config --modversion rdmamr)" = "$tree_version" ]
libraries() { pkg-config --libs "$@" | grep -o -- '-l\(rdmamr\|ibverbs\)' | xargs; } # PACKAGE...
for order in rdmamr "libibverbs rdmamr" "rdmamr libibverbs" "libibverbs rdmamr-compat"; do
	# shellcheck disable=SC2086 # words
	check "pkg-config --libs $order: $(libraries $order)" [ "$(libraries $order)" = "-lrdmamr -libverbs" ]
done
read -ra flags <<<"$(pkg-config --cflags --libs rdmamr)"
consumer=$stage/consumer
check "a program compiles and links" "$cc" -std=gnu11 -Wall -Wextra -Werror "$here/consumer.c" "$here/../lib/tap.c" -o "$consumer" "${flags[@]}" -libverbs
bindings=$(LD_LIBRARY_PATH=$stage/usr/lib/here LD_DEBUG=bindings "$consumer" 2>&1 >/dev/null)
check "the loader binds its ibv_reg_mr to librdmamr's" \
	grep -q 'consumer .*to .*librdmamr.so.1.*ibv_reg_mr. \[IBVERBS_1.1\]' <<<"$bindings"
whole "it runs" env LD_LIBRARY_PATH="$stage/usr/lib/here" "$consumer"

read -ra flags <<<"$(pkg-config --cflags rdmamr)"
check "a program links the archive" "$cc" -std=gnu11 -Wall -Wextra -Werror "$here/consumer.c" "$here/../lib/tap.c" -o "$stage/static" "${flags[@]}" \
	"$stage/usr/lib/here/librdmamr.a" -libverbs -lgcc_s -lpthread -ldl
check "and needs no librdmamr" bash -c '! readelf -dW "$1" | grep -q "NEEDED.*rdmamr"' - "$stage/static"
whole "it runs" "$stage/static"
check "it obeys its settings" grep -q '^{"reg_kernel":0,' <<<"$(RDMAMR_STATS=stderr "$stage/static" 2>&1)"
check "libibverbs' own calls reach the program's: its symbol is exported" bash -c 'readelf -W --dyn-syms "$1" | grep -q " ibv_reg_mr_iova2@@IBVERBS_1.8"' - "$stage/static"

# A program in Rust has a standard library of its own.
cat >"$stage/static.rs" <<-END
	use std::ffi::{CStr, c_char, c_int, c_void};
	#[link(name = "rdmamr", kind = "static")]
	unsafe extern "C" {
	    fn rdmamr_version() -> *const c_char;
	    fn ibv_reg_mr(pd: *mut c_void, address: *mut c_void, length: usize, access: c_int) -> *mut c_void;
	}
	#[link(name = "ibverbs")]
	unsafe extern "C" {
	    fn ibv_get_device_list(count: *mut c_int) -> *mut c_void;
	}
	fn main() {
	    let register: [*const c_void; 2] = [ibv_reg_mr as _, ibv_get_device_list as _];
	    println!("{:?} {}", unsafe { CStr::from_ptr(rdmamr_version()) }, register.len());
	    assert!(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1))).is_err());
	}
END
check "a program in Rust links it as well" rustc --edition 2024 "$stage/static.rs" -o "$stage/static_rs" -L "$stage/usr/lib/here"
check "it runs: $("$stage/static_rs" 2>&1)" "$stage/static_rs"
check "its ibv_reg_mr is the library's" bash -c 'nm "$1" | grep -q " T ibv_reg_mr$"' - "$stage/static_rs"

read -ra flags <<<"$(pkg-config --cflags --libs rdmamr-compat)"
check "a source for Solaris compiles unchanged and links" "$cc" -std=gnu11 -Wall -Wextra -Werror "$here/solaris.c" -o "$stage/solaris" "${flags[@]}" -libverbs
check "it runs" env LD_LIBRARY_PATH="$stage/usr/lib/here" "$stage/solaris"

# As "sudo make install" runs: in root's environment, without cargo, into folders of the machine.
as_root() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
system() { as_root make -s --no-print-directory CARGO=/nowhere/cargo "$@"; }
loads() { LD_TRACE_LOADED_OBJECTS=1 LD_PRELOAD=${1:-librdmamr.so.1} /bin/true 2>/dev/null | grep -q '/librdmamr\.so\.1 (0x\|librdmamr\.so\.1 => /'; } # [LIBRARY]
check "make install needs no cargo once make has run" as_root make -s --no-print-directory install CARGO=/nowhere/cargo DESTDIR="$stage/again"
rm -rf "$stage/again"
nothing=$(as_root make -s --no-print-directory install CARGO=/nowhere/cargo release="$stage/none" DESTDIR="$stage/again" 2>&1)
check "without make it says so" grep -q '^There is nothing to install yet: run make first' <<<"$nothing"
check "and installs nothing" [ ! -e "$stage/again" ]
mkdir "$stage/lists"
echo "it: $PWD/Cargo.toml" >"$stage/lists/old.d"
touch -d 2000-01-01 "$stage/lists/old.d"
check "a source that is newer than the build is named" grep -q "Cargo.toml has changed since the last make" <<<"$(packaging/installed changed "$stage/lists/old.d" 2>&1)"
said=$(system install PREFIX="$stage/own")
check "a prefix that the linker does not know: LD_PRELOAD fails, and it says what helps" \
	grep -qF "LD_PRELOAD=$stage/own/lib/librdmamr.so.1 ./app" <<<"$said"
check "and how the shell finds the program" grep -qF "export PATH=$stage/own/bin:" <<<"$said"
check "its first advice is right" loads "$stage/own/lib/librdmamr.so.1"
check "its second advice is right" "$stage/own/bin/rdmamr" run -- /bin/true
rm -rf "$stage/own"
# In a copy of the folders that it changes.
installed_here() {
	local folder said
	for folder in /etc /usr/local /var/cache/ldconfig; do
		mkdir -p "$stage/here$folder" "$folder"
		[ "$folder" = /usr/local ] || cp -a "$folder/." "$stage/here$folder/"
		mount --bind "$stage/here$folder" "$folder"
	done
	said=$(system install) || { echo "make install fails: $said"; return 1; }
	# On Debian the linker looks in /usr/local/lib.
	grep -q 'The dynamic linker does not look in' <<<"$said" || loads || { echo "LD_PRELOAD=librdmamr.so.1 fails: $said"; return 1; }
	# A linker that does not look there, as Fedora's.
	grep -rl /usr/local/lib /etc/ld.so.conf.d | xargs -r rm
	ldconfig
	said=$(system install)
	grep -qxF '  echo /usr/local/lib >/etc/ld.so.conf.d/rdmamr.conf && ldconfig' <<<"$said" || { echo "no word about ld.so.conf: $said"; return 1; }
	! loads || { echo "the linker finds it all the same"; return 1; }
	echo /usr/local/lib >/etc/ld.so.conf.d/rdmamr.conf
	ldconfig
	loads || { echo "the advice is wrong"; return 1; }
	system uninstall >/dev/null || return 1
	! ldconfig -p | grep rdmamr
}
if unshare -m true 2>/dev/null; then
	export -f as_root system loads installed_here
	export stage
	check "sudo make install: LD_PRELOAD=librdmamr.so.1 works at once, and the linker forgets it with make uninstall" \
		unshare -m --propagation private bash -c installed_here
else
	skip "sudo make install" "no namespace of mounts for this user"
fi

# Files of other packages in the same folders.
others=$(find "$stage/usr" -type d | sed 's|$|/another|' | sort)
xargs -r touch <<<"$others"
check "make uninstall" install uninstall
check "no file of it is left, and all of others'" diff <(echo "$others") <(find "$stage/usr" -type f -o -type l | sort)
tap_done
