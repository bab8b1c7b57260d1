# SPDX-License-Identifier: MIT OR Apache-2.0
PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR     ?= $(PREFIX)/bin
MANDIR     ?= $(PREFIX)/share/man
# Where the shells look for completions.
BASHDIR    ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR     ?= $(PREFIX)/share/zsh/site-functions
FISHDIR    ?= $(PREFIX)/share/fish/vendor_completions.d
CARGO      ?= cargo
CFLAGS     ?= -O1 -g

version  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
release  := target/release
so       := $(release)/librdmamr.so
built    := target/ctests

# cbindgen's output changes between minor versions, so it is this one, under target/.
cbindgen_version := 0.29.4
cbindgen := target/tools/cbindgen-$(cbindgen_version)/bin/cbindgen

all: $(so) ## build the shared and the static library
$(so): FORCE
	$(CARGO) build --release

headers: $(cbindgen) ## make the headers under include/ from the source
	$(cbindgen) -q -c cbindgen.toml -o include/rdmamr.h src/capi/rdmamr.rs
	mkdir -p target
	$(verbs_toml) cbindgen.toml >target/verbs.toml
	$(cbindgen) -q -c target/verbs.toml -o include/rdmamr/verbs.h src/capi/relaxed.rs
	src/capi/fabric/fi_mr.sh $(cbindgen) >include/rdmamr/fi_mr.h
# The second header's settings differ in its names only.
verbs_toml := sed -e 's/RDMAMR_H/RDMAMR_VERBS_H/' -e 's|capi/rdmamr.rs|capi/relaxed.rs|' \
	-e 's|^sys_includes.*|sys_includes = ["infiniband/verbs.h"]|'
$(cbindgen):
	$(CARGO) install --quiet --locked --version $(cbindgen_version) --root $(dir $(cbindgen)).. cbindgen

man: $(patsubst %.scd,%,$(wildcard man/*.scd)) ## make the manual pages from their sources, by scdoc
man/%: man/%.scd
	vm/packages man
	scdoc <$< >$@

cbindgen: $(cbindgen)
	@echo $(abspath $(cbindgen))

check: ## run all tests, those that need a device on DEVICE=name or in the soft-RoCE machine
	@ctests/check

# Those that are parts of others, and what its own script compiles.
parts    := %/pair.c %/kernel_regions.c %/stub_device.c %/asan.c
programs := $(filter-out $(parts),$(wildcard ctests/device/*.c ctests/differential/*.c ctests/relaxed/*.c))
# About the three relaxed calls themselves, or that regions are shared while they are in use, or without a device.
by_name  := $(addprefix ctests/relaxed/,$(addsuffix .c,race ucx semantics trap_20_mixed_deregistration linger refused no_write_protection \
	trap_12_access trap_13_page_hull trap_14_handles trap_19_close_device trap_21_flush_beside_hits))
# The tests of relaxed registration once more, by the plain calls, which the pool serves under RDMAMR_CACHE; and those
# that are about nothing else.
cache    := $(addprefix $(built)/cache_,$(basename $(notdir $(filter-out $(by_name),$(filter ctests/relaxed/%,$(programs))) $(wildcard ctests/cache/*.c))))
# Each of the fabric family twice: with libfabric's inlines, and with our symbols alone.
fabric   := $(foreach name,$(basename $(notdir $(wildcard ctests/fabric/*.c))),$(built)/fabric_$(name) $(built)/fabric_$(name)_alone) \
	$(addprefix $(built)/fabric_,async_address async_thread fuzz_address raw_keys_address) \
	$(addprefix $(built)/,registers registers_alone matrix foreign_queue ffi example) \
	$(addprefix $(built)/monitor_,stale stale.so races life nodes plugin cost)
ctests: $(addprefix $(built)/,$(basename $(notdir $(programs)))) \
	$(fabric) $(cache) $(built)/calls $(built)/record.so $(built)/old_kernel.so $(built)/device_gone.so $(addprefix $(built)/trace_,calls callers callers_alone) $(built)/rpc $(built)/registration $(built)/relaxed_device $(built)/startup ## compile the C tests and benchmarks

strict := -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -Iinclude
common := ctests/device/pair.c ctests/device/kernel_regions.c
stub   := ctests/relaxed/stub_device.c
needs  := $(wildcard ctests/*.h ctests/*/*.h bench/*.h include/*.h include/*/*.h) Makefile | $(built)
$(built):
	mkdir -p $@
$(built)/%: ctests/device/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/race $(built)/ucx: $(built)/%: ctests/relaxed/%.c $(stub) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(stub) -o $@ -libverbs -lpthread -ldl
$(built)/no_write_protection: ctests/relaxed/refused.c
$(built)/%: ctests/relaxed/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/cache_%: ctests/cache/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/cache_%: ctests/relaxed/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) -DPLAIN_CALLS $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/fabric_%_alone: ctests/fabric/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) -DRDMAMR_NO_LIBFABRIC $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/fabric_%_address: ctests/fabric/%.c $(common) $(so) $(needs)
	$(CC) $(strict) $(CFLAGS) -fsanitize=address $< $(common) -o $@ $(so) -libverbs -lrdmacm -lpthread -ldl
$(built)/fabric_%_thread: ctests/fabric/%.c $(common) $(so) $(needs)
	$(CC) $(strict) $(CFLAGS) -fsanitize=thread $< $(common) -o $@ $(so) -libverbs -lrdmacm -lpthread -ldl
$(built)/fabric_%: ctests/fabric/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/registers $(built)/matrix: $(built)/%: ctests/provider/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -lfabric -lpthread
$(built)/registers_alone: ctests/provider/registers.c $(so) $(needs)
	$(CC) $(strict) $(CFLAGS) -DALONE $< -o $@ $(so) -libverbs -lpthread
$(built)/foreign_queue: ctests/provider/foreign_queue.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -lfabric -libverbs -lrdmacm -lpthread -ldl
$(built)/monitor_plugin: ctests/monitor/plugin.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -ldl
$(built)/monitor_stale.so: ctests/monitor/stale.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) -shared -fPIC $< $(common) -o $@ -lfabric -libverbs -lrdmacm -ldl
# Exported, so that libfabric finds the functions that the programs stand in with.
$(built)/monitor_%: ctests/monitor/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) -rdynamic $< $(common) -o $@ -lfabric -libverbs -lrdmacm -lpthread -ldl
$(built)/example: examples/register.c $(so) $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ $(so) -lfabric -libverbs
$(built)/ffi: ctests/ffi/ffi.rs $(so) $(needs)
	rustc --edition 2024 $< -o $@ -L $(release) -l dylib=rdmamr -l ibverbs
$(built)/%: ctests/differential/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -libverbs
$(built)/trace_%_alone: ctests/trace/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) -DRDMAMR_NO_LIBFABRIC $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/trace_%: ctests/trace/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/%: ctests/golden/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -libverbs
$(built)/%.so: ctests/golden/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) -shared -fPIC $< -o $@ -ldl
$(built)/%: bench/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -libverbs -ldl -lm

demo: ## run programs under the library, on DEVICE=name or soft-RoCE, and show what happened
	@bench/demo

bench: ## time registration beside libibverbs, on DEVICE=name or in the soft-RoCE machine
	@bench/run

bench-relaxed: ## time relaxed registration beside UCX's registration cache, on this machine's own kernel
	@bench/relaxed

bench-trace: ## time what it costs that calls are written down, on this machine's own processor
	@bench/trace

bench-prefault: ## time registration of memory that was never touched, with RDMAMR_PREFAULT=2, on this machine, then as bench
	@bench/prefault

bench-fabric: ## time libfabric's calls on our domains beside libfabric's verbs provider, on DEVICE=name or soft-RoCE
	@bench/fabric

bench-cache: ## time a program that registers per message with RDMAMR_CACHE and without, on DEVICE=name or soft-RoCE
	@bench/cache

DURATION ?= 600
soak: all ctests ## run random relaxed registrations, unmaps, forks and traffic for DURATION seconds (600), and a long race
	vm/run -t $$(($(DURATION) + 120)) -- env LD_PRELOAD=$(abspath $(so)) CHECK_DEVICE=rxe0 CHECK_ADDRESS=10.77.0.1 $(built)/soak $(DURATION)
	LD_PRELOAD=$(abspath $(so)) $(built)/race 1000000

vm: ## run CMD='...' in the soft-RoCE machine, with KERNEL=6.1 (default) or 6.12
	@vm/run -- sh -c '$(subst ','\'',$(value CMD))'

installed_headers := rdmamr.h rdmamr/verbs.h rdmamr/fi_mr.h rdmamr/compat/infiniband/verbs.h
# "strip_flag=" leaves the symbols to who packages them apart.
strip_flag := -s
program := $(release)/rdmamr
$(program): FORCE
	$(CARGO) build --profile tool -p rdmamr-tool
	ln -f $(release)/../tool/rdmamr $@
install: $(so) $(program) ## install under DESTDIR, PREFIX, LIBDIR
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)/rdmamr/compat/infiniband $(DESTDIR)$(BINDIR)
	install -m 755 $(strip_flag) $(so) $(DESTDIR)$(LIBDIR)/librdmamr.so.$(version)
	ln -sf librdmamr.so.$(version) $(DESTDIR)$(LIBDIR)/librdmamr.so.1
	ln -sf librdmamr.so.1 $(DESTDIR)$(LIBDIR)/librdmamr.so
	install -m 644 $(release)/librdmamr.a $(DESTDIR)$(LIBDIR)/
	# Where libfabric looks for providers, if it is installed beside; else FI_PROVIDER_PATH tells it.
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

uninstall: ## remove what install has installed
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,librdmamr.so.$(version) librdmamr.so.1 librdmamr.so librdmamr.a libfabric/librdmamr-fi.so pkgconfig/rdmamr.pc pkgconfig/rdmamr-compat.pc)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,$(installed_headers))
	rm -f $(addprefix $(DESTDIR),$(BINDIR)/rdmamr $(BASHDIR)/rdmamr $(ZSHDIR)/_rdmamr $(FISHDIR)/rdmamr.fish)
	man/names | while read -r file page; do rm -f $(DESTDIR)$(MANDIR)/$$file; done
	-rmdir -p --ignore-fail-on-non-empty $(DESTDIR)$(INCLUDEDIR)/rdmamr/compat/infiniband

deb: ## build Debian packages into target/deb
	@debian/build

clean: ## remove everything that was built or downloaded
	rm -rf target

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F '|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

FORCE:
.PHONY: all headers man cbindgen check ctests demo bench bench-relaxed bench-trace bench-prefault bench-fabric bench-cache soak vm install uninstall deb clean help FORCE
