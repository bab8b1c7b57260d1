# SPDX-License-Identifier: MIT OR Apache-2.0
PREFIX     ?= /usr/local
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
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

headers: $(cbindgen) ## make include/rdmamr.h from the source
	$(cbindgen) -q -c cbindgen.toml -o include/rdmamr.h src/capi/rdmamr.rs
$(cbindgen):
	$(CARGO) install --quiet --locked --version $(cbindgen_version) --root $(dir $(cbindgen)).. cbindgen

man: man/rdmamr.7 ## make the manual page from its source, by scdoc
man/%: man/%.scd
	vm/packages man
	scdoc <$< >$@

cbindgen: $(cbindgen)
	@echo $(abspath $(cbindgen))

check: ## run all tests, those that need a device on DEVICE=name or in the soft-RoCE machine
	@ctests/check

ctests: $(addprefix $(built)/,$(basename $(notdir $(filter-out %/pair.c %/kernel_regions.c,$(wildcard ctests/device/*.c ctests/differential/*.c))))) \
	$(built)/calls $(built)/record.so $(built)/old_kernel.so $(built)/device_gone.so $(built)/registration $(built)/startup ## compile the C tests and benchmarks

strict := -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -Iinclude
common := ctests/device/pair.c ctests/device/kernel_regions.c
needs  := $(wildcard ctests/*.h ctests/*/*.h bench/*.h include/*.h) Makefile | $(built)
$(built):
	mkdir -p $@
$(built)/%: ctests/device/%.c $(common) $(needs)
	$(CC) $(strict) $(CFLAGS) $< $(common) -o $@ -libverbs -lrdmacm -lpthread -ldl
$(built)/%: ctests/differential/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -libverbs
$(built)/%: ctests/golden/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -libverbs
$(built)/%.so: ctests/golden/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) -shared -fPIC $< -o $@ -ldl
$(built)/%: bench/%.c $(needs)
	$(CC) $(strict) $(CFLAGS) $< -o $@ -libverbs -ldl

demo: ## run programs under the library, on DEVICE=name or soft-RoCE, and show what happened
	@bench/demo

bench: ## time registration beside libibverbs, on DEVICE=name or in the soft-RoCE machine
	@bench/run

vm: ## run CMD='...' in the soft-RoCE machine, with KERNEL=6.1 (default) or 6.12
	@vm/run -- sh -c '$(subst ','\'',$(value CMD))'

install: $(so) ## install under DESTDIR, PREFIX, LIBDIR
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(MANDIR)/man7
	install -m 755 -s $(so) $(DESTDIR)$(LIBDIR)/librdmamr.so.$(version)
	ln -sf librdmamr.so.$(version) $(DESTDIR)$(LIBDIR)/librdmamr.so.1
	ln -sf librdmamr.so.1 $(DESTDIR)$(LIBDIR)/librdmamr.so
	install -m 644 $(release)/librdmamr.a $(DESTDIR)$(LIBDIR)/
	install -m 644 include/rdmamr.h $(DESTDIR)$(INCLUDEDIR)/
	install -m 644 man/rdmamr.7 $(DESTDIR)$(MANDIR)/man7/
	sed -e 's|@prefix@|$(PREFIX)|' -e 's|@libdir@|$(LIBDIR)|' -e 's|@includedir@|$(INCLUDEDIR)|' -e 's|@version@|$(version)|' \
		pkgconfig/rdmamr.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/rdmamr.pc

uninstall: ## remove what install has installed
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,librdmamr.so.$(version) librdmamr.so.1 librdmamr.so librdmamr.a pkgconfig/rdmamr.pc)
	rm -f $(DESTDIR)$(INCLUDEDIR)/rdmamr.h $(DESTDIR)$(MANDIR)/man7/rdmamr.7

clean: ## remove everything that was built or downloaded
	rm -rf target

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F '|' '{ printf "  make %-10s %s\n", $$1, $$2 }'

FORCE:
.PHONY: all headers man cbindgen check ctests demo bench vm install uninstall clean help FORCE
