# SPDX-License-Identifier: MIT OR Apache-2.0
# "make help" lists the targets. bench/run NAME runs a benchmark, ctests/run NAME a test that
# "make check" does not run.
PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR     ?= $(PREFIX)/bin
MANDIR     ?= $(PREFIX)/share/man
DOCDIR     ?= $(PREFIX)/share/doc/rdmamr
# The shells' folders of completions.
BASHDIR    ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR     ?= $(PREFIX)/share/zsh/site-functions
FISHDIR    ?= $(PREFIX)/share/fish/vendor_completions.d
CARGO      ?= cargo
CFLAGS     ?= -O1 -g
STRIP      ?= strip
OBJCOPY    ?= objcopy

version  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
release  := target/release
so       := $(release)/librdmamr.so
audit    := $(release)/librdmamr-audit.so
program  := $(release)/rdmamr
archive  := $(release)/installed/librdmamr.a
built    := target/ctests

all: $(so) $(archive) $(audit) $(program) ## build the libraries, shared and static, the module for LD_AUDIT, and the program rdmamr
# The program is built once, for packages (debian/rules) too: its crates take long. Therefore no panic
# message and no line table may name the builder's own folders.
cargo_home := $(or $(CARGO_HOME),$(HOME)/.cargo)
remapped = RUSTFLAGS="$(RUSTFLAGS) --remap-path-prefix=$(CURDIR)=/usr/src/rdmamr --remap-path-prefix=$(cargo_home)=/usr/src/cargo"
here     = CARGO_TARGET_DIR=$(CURDIR)/target $(remapped) $(CARGO)
# Cargo links with cc, unless a variable of its own names another linker, as conda's does.
linker:
	@command -v cc >/dev/null || env | grep -q '^CARGO_TARGET_.*_LINKER=' || vm/packages build
$(so) $(program) $(audit): | linker
$(so): FORCE
	+$(if $(for_package),$(remapped)) $(CARGO) build --release
$(program): FORCE
	+$(here) build --profile tool -p rdmamr-tool
	@mkdir -p $(@D)
	ln -f target/tool/rdmamr $@
# The module for LD_AUDIT needs no library, not even the C library, which each process would load a second time.
audit_link := -nostdlib -nostartfiles -Wl,-z,defs,-z,now,-z,relro
# Atomics in functions of arm64's compiler would ask the C library, which the module does not have, what the
# processor can do.
inline_atomics = $(if $(filter aarch64,$(1)),-C target-feature=-outline-atomics)
$(audit): FORCE
	+$(here) rustc --profile audit -p rdmamr-audit --crate-type cdylib -- $(call inline_atomics,$(shell uname -m)) -C link-args="$(audit_link)"
	@mkdir -p $(@D)
	ln -f target/audit/librdmamr_audit.so $@
# The installed archive is one object with the library's own symbols. Cargo's archive also has those of Rust's standard
# library, of which a program in Rust has its own copy.
$(archive): $(so)
	@mkdir -p $(@D)
	readelf -W --dyn-syms $(so) | awk '$$1 ~ /^[0-9]+:$$/ && $$5 != "LOCAL" && $$7 != "UND" && $$7 != "ABS" && $$8 { print $$8 }' >$(@D)/exported
	$(LD) -r --force-group-allocation -u mmap -o $(@D)/librdmamr.o $(release)/librdmamr.a
	# Bitcode of Rust's standard library would have ar ask a plugin of LLVM, and that one complain.
	$(OBJCOPY) --keep-global-symbols=$(@D)/exported --remove-section=.llvmbc --remove-section=.llvmcmd $(@D)/librdmamr.o
	rm -f $@
	$(AR) rcs $@ $(@D)/librdmamr.o

# cbindgen's output changes between minor versions: this version is installed under target/.
cbindgen_version := 0.29.4
cbindgen := target/tools/cbindgen-$(cbindgen_version)/bin/cbindgen
$(cbindgen):
	+$(CARGO) install --quiet --debug --locked --version $(cbindgen_version) --root $(dir $(cbindgen)).. cbindgen
cbindgen: $(cbindgen)
	@echo $(abspath $(cbindgen))
# cbindgen reads one file. A file's own documentation may only stand at its top.
headers: $(cbindgen) ## make the headers under include/ from the source
	mkdir -p target $(headers_in)/rdmamr
	sed '/^\/\/!/d' src/capi/rdmamr.rs src/stats/counters.rs >target/rdmamr.rs
	$(cbindgen) -q -c cbindgen.toml target/rdmamr.rs | awk -f src/capi/constants.awk >$(headers_in)/rdmamr.h
	$(verbs_toml) cbindgen.toml >target/verbs.toml
	$(cbindgen) -q -c target/verbs.toml -o $(headers_in)/rdmamr/verbs.h src/capi/relaxed.rs
	src/capi/fabric/fi_mr.sh $(cbindgen) >$(headers_in)/rdmamr/fi_mr.h
# The test of the headers generates them elsewhere.
headers_in := include
# The second header's settings differ in its names only.
verbs_toml := sed -e 's/RDMAMR_H/RDMAMR_VERBS_H/' -e 's|capi/rdmamr.rs and src/stats/counters.rs|capi/relaxed.rs|' \
	-e 's|^sys_includes.*|sys_includes = ["infiniband/verbs.h"]|'

# A site generator from crates.io, likewise.
mdbook_version := 0.5.4
mdbook := target/tools/mdbook-$(mdbook_version)/bin/mdbook
$(mdbook):
	+$(CARGO) install --quiet --debug --locked --version $(mdbook_version) --no-default-features --features search --root $(dir $(mdbook)).. mdbook
mdbook: $(mdbook)
site: $(mdbook) ## make a site of docs/ with a search, target/site/html, and check its links
	packaging/site $(mdbook)

man: $(patsubst %.scd,%,$(wildcard man/*.scd)) ## make the manual pages from their sources, by scdoc
man/%: man/%.scd
	vm/packages man
	scdoc <$< >$@

check: ## test each thing once, where it can fail; the device is DEVICE=name or the soft-RoCE machine's
	@ctests/check
check-all: ## run every suite in every place, and the release's tests: before a release, and after a large change
	@ctests/check --all
hardware: ## test and measure DEVICE=name, and write one file to send without names and addresses (docs/hardware.md)
	@bench/hardware/run

ctests: ## compile the C tests and benchmarks, as ctests/build.mk says
include ctests/build.mk

demo: ## run programs under the library, on DEVICE=name or soft-RoCE, and show the effect
	@bench/demo
NAME ?= plain
bench: ## time registration beside libibverbs; NAME=... is another benchmark (bench/run lists them)
	@bench/run $(NAME)
peers: ## compare the newest registration caches after changes of memory, into docs/results/peers.md
	@ctests/run peers

installed_headers := rdmamr.h rdmamr/verbs.h rdmamr/fi_mr.h rdmamr/compat/infiniband/verbs.h
# "strip_flag=" leaves the symbols to a packager. An archive can lose only the debug symbols.
strip_flag := -s
# "sudo make install" after "make" must neither need cargo in root's PATH nor build as root: it installs
# the files that are there. Packages build theirs.
installed := $(so) $(archive) $(audit) $(program)
unbuilt   = $(if $(for_package),$(installed),$(if $(filter-out $(wildcard $(installed)),$(installed)),cargo $(installed)))
cargo:
	@command -v $(firstword $(CARGO)) >/dev/null || { echo "There is nothing to install yet: run make first, as the user who has cargo" >&2; exit 1; }
install: $(unbuilt) ## install what make has built, under DESTDIR, PREFIX, LIBDIR
	@packaging/installed changed $(release)/librdmamr.d target/tool/rdmamr.d
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)/rdmamr/compat/infiniband $(DESTDIR)$(BINDIR)
	install -m 755 $(strip_flag) $(so) $(DESTDIR)$(LIBDIR)/librdmamr.so.$(version)
	ln -sf librdmamr.so.$(version) $(DESTDIR)$(LIBDIR)/librdmamr.so.1
	ln -sf librdmamr.so.1 $(DESTDIR)$(LIBDIR)/librdmamr.so
	install -m 644 $(archive) $(DESTDIR)$(LIBDIR)/
	$(if $(strip_flag),$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/librdmamr.a)
	install -d $(DESTDIR)$(LIBDIR)/rdmamr
	install -m 755 $(strip_flag) $(audit) $(DESTDIR)$(LIBDIR)/rdmamr/
	# libfabric looks for providers here if it has the same LIBDIR; otherwise set FI_PROVIDER_PATH.
	install -d $(DESTDIR)$(LIBDIR)/libfabric
	ln -sf ../librdmamr.so.1 $(DESTDIR)$(LIBDIR)/libfabric/librdmamr-fi.so
	for header in $(installed_headers); do install -m 644 include/$$header $(DESTDIR)$(INCLUDEDIR)/$$header || exit; done
	for name in rdmamr rdmamr-compat; do \
		sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' -e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(version)|' \
			pkgconfig/$$name.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/$$name.pc || exit; done
	install -m 755 $(strip_flag) $(program) $(DESTDIR)$(BINDIR)/
	install -d $(addprefix $(DESTDIR),$(BASHDIR) $(ZSHDIR) $(FISHDIR))
	$(program) completions bash >$(DESTDIR)$(BASHDIR)/rdmamr
	$(program) completions zsh >$(DESTDIR)$(ZSHDIR)/_rdmamr
	$(program) completions fish >$(DESTDIR)$(FISHDIR)/rdmamr.fish
	install -d $(addprefix $(DESTDIR)$(MANDIR)/man,1 3 5 7)
	man/names | while read -r file page; do \
		if [ $${file##*/} = $$page ]; then install -m 644 man/$$page $(DESTDIR)$(MANDIR)/$$file; \
		else echo ".so $${file%%/*}/$$page" >$(DESTDIR)$(MANDIR)/$$file; fi || exit; done
	packaging/docs install "$(DESTDIR)$(DOCDIR)" "$(PREFIX)" "$(LIBDIR)"
	@$(if $(DESTDIR),,packaging/installed there $(LIBDIR) $(BINDIR))

uninstall: ## remove the installed files
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,librdmamr.so.$(version) librdmamr.so.1 librdmamr.so librdmamr.a libfabric/librdmamr-fi.so rdmamr/librdmamr-audit.so pkgconfig/rdmamr.pc pkgconfig/rdmamr-compat.pc)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,$(installed_headers))
	rm -f $(addprefix $(DESTDIR),$(BINDIR)/rdmamr $(BASHDIR)/rdmamr $(ZSHDIR)/_rdmamr $(FISHDIR)/rdmamr.fish)
	man/names | while read -r file page; do rm -f $(DESTDIR)$(MANDIR)/$$file; done
	packaging/docs remove "$(DESTDIR)$(DOCDIR)"
	-rmdir -p --ignore-fail-on-non-empty $(DESTDIR)$(INCLUDEDIR)/rdmamr/compat/infiniband
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(LIBDIR)/rdmamr
	@$(if $(DESTDIR),,packaging/installed gone $(LIBDIR))

dist: ## make the tarball target/dist/librdmamr-VERSION.tar.gz, which builds, checks and installs without git, and another with the crates
	@packaging/dist
	@packaging/vendored
	@cd target/dist && sha256sum librdmamr-$(version).tar.gz librdmamr-$(version)-vendored.tar.gz >SHA256SUMS
deb: ## build Debian packages into target/deb
	@debian/build
# Packages are built in a folder of their own, without the builder's folders in messages and line tables.
packaged = CARGO_TARGET_DIR=$(CURDIR)/target/packaged $(MAKE) -s --no-print-directory release=$(CURDIR)/target/packaged/release for_package=yes
rpm: ## build RPM packages into target/rpm
	vm/packages rpm
	rm -rf target/rpm/stage
	+$(packaged) install DESTDIR=$(CURDIR)/target/rpm/stage PREFIX=/usr LIBDIR=/usr/lib64 DOCDIR=/usr/share/doc/rdmamr-tools
	packaging/rpm target/rpm/stage
# ARCH=aarch64 is another processor: rustup target add aarch64-unknown-linux-gnu.
ARCH ?= $(shell uname -m)
for_wheel = CARGO_TARGET_DIR=$(CURDIR)/target/zig $(remapped) $(CARGO) rustc -q --target $(ARCH)-unknown-linux-gnu
# zig warns of options of rustc that it does not need.
linked_by_zig = -C linker=$(CURDIR)/target/wheel/$(ARCH)/cc -A unknown_lints -A linker_messages
wheel: ## make a Python wheel for glibc 2.28 and later, in target/wheel; ARCH=aarch64 one for arm64, in target/wheel/aarch64
	packaging/wheel tools $(ARCH)
	rm -rf target/wheel/stage
	+$(packaged) install DESTDIR=$(CURDIR)/target/wheel/stage PREFIX= LIBDIR=/lib
	+$(for_wheel) --release -p rdmamr --crate-type staticlib
	+$(for_wheel) --profile audit -p rdmamr-audit --crate-type cdylib -- $(call inline_atomics,$(ARCH)) $(linked_by_zig) -C link-args="$(audit_link)"
	+$(for_wheel) --profile tool -p rdmamr-tool --bin rdmamr -- $(linked_by_zig)
	packaging/wheel link $(ARCH)
	packaging/wheel pack $(ARCH)
audit: ## check licences, sources, duplicates and known advisories of all crates (packaging/deny.toml)
	@packaging/audit
clean: ## remove everything that was built or downloaded
	rm -rf target
help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F '|' '{ printf "  make %-13s %s\n", $$1, $$2 }'

FORCE:
.PHONY: all linker headers site man check check-all hardware ctests demo bench peers install uninstall dist deb rpm wheel audit clean help cargo cbindgen mdbook FORCE
