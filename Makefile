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
STRIP      ?= strip
OBJCOPY    ?= objcopy

version  := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
release  := target/release
so       := $(release)/librdmamr.so
audit    := $(release)/librdmamr-audit.so
built    := target/ctests

# cbindgen's output changes between minor versions, so it is this one, under target/.
cbindgen_version := 0.29.4
# Tools of crates.io that "make check" does not need.
tools := target/tools/audit/bin
cbindgen := target/tools/cbindgen-$(cbindgen_version)/bin/cbindgen

all: $(so) $(audit) $(release)/rdmamr ## build the libraries, shared and static, the module for LD_AUDIT, and the program rdmamr
$(so): FORCE
	+$(if $(for_package),$(remapped)) $(CARGO) build --release

# cbindgen reads one file. A file's own documentation may only stand at its top.
headers: $(cbindgen) ## make the headers under include/ from the source
	mkdir -p target $(headers_in)/rdmamr
	sed '/^\/\/!/d' src/capi/rdmamr.rs src/report/stats.rs >target/rdmamr.rs
	$(cbindgen) -q -c cbindgen.toml -o $(headers_in)/rdmamr.h target/rdmamr.rs
	$(verbs_toml) cbindgen.toml >target/verbs.toml
	$(cbindgen) -q -c target/verbs.toml -o $(headers_in)/rdmamr/verbs.h src/capi/relaxed.rs
	src/capi/fabric/fi_mr.sh $(cbindgen) >$(headers_in)/rdmamr/fi_mr.h
# The test of the headers makes them elsewhere.
headers_in := include
# The second header's settings differ in its names only.
verbs_toml := sed -e 's/RDMAMR_H/RDMAMR_VERBS_H/' -e 's|capi/rdmamr.rs and src/report/stats.rs|capi/relaxed.rs|' \
	-e 's|^sys_includes.*|sys_includes = ["infiniband/verbs.h"]|'
$(cbindgen):
	+$(CARGO) install --quiet --debug --locked --version $(cbindgen_version) --root $(dir $(cbindgen)).. cbindgen

man: $(patsubst %.scd,%,$(wildcard man/*.scd)) ## make the manual pages from their sources, by scdoc
man/%: man/%.scd
	vm/packages man
	scdoc <$< >$@

cbindgen: $(cbindgen)
	@echo $(abspath $(cbindgen))

check: ## run all tests, those that need a device on DEVICE=name or in the soft-RoCE machine
	@ctests/check

# The C tests and benchmarks: NAME, SOURCE and BUILD of ctests/manifest, as variables of make.
target/manifest.mk: ctests/manifest Makefile
	@mkdir -p $(@D)
	@awk '!/^#/ && NF && $$2 != "-" && $$3 != "script" { \
		file = "$$(built)/" $$1; print "tests += " file "\n" file ": " $$2; \
		print "source_" $$1 " := " $$2 "\nbuild_" $$1 " := " $$3 }' $< >$@
-include target/manifest.mk
ctests: $(tests) ## compile the C tests and benchmarks

# The words of BUILD: flags for the compiler, and inputs for the linker.
flags_alone        := -DRDMAMR_NO_LIBFABRIC
flags_shared       := -shared -fPIC
flags_gpu          := -shared -fPIC -Wl,-soname,libcuda.so.1
flags_plugin       := -shared -fPIC
flags_exported     := -rdynamic
flags_address      := -fsanitize=address
flags_thread       := -fsanitize=thread
flags_linked_alone := -DALONE
# Its calls are weak, and libibverbs is to be loaded all the same.
inputs_stub         = $(built)/lib/stub_device.o -Wl,--no-as-needed -libverbs
inputs_fuzz         = $(addprefix $(built)/lib/,stub_device.o steps.o calls.o limits.o beyond.o look.o regions.o)
inputs_exported    := $(built)/lib/cached.o
inputs_plugin      := $(built)/lib/cached.o
inputs_address     := $(so)
inputs_thread      := $(so)
inputs_linked      := $(so)
inputs_linked_alone := $(so)
with = $(filter $(addprefix $(built)/,$(foreach name,$(patsubst $(built)/%,%,$(tests)),$(if $(filter $(1),$(build_$(name))),$(name)))),$(tests))
$(call with,stub): $(built)/lib/stub_device.o
$(call with,fuzz): $(inputs_fuzz)
$(call with,exported plugin): $(built)/lib/cached.o
$(call with,address thread linked linked_alone): $(so)

# The programs share a library. stub_device.c and cached.c are not in it: they replace ioctl and
# ibv_alloc_pd, so a word of BUILD names them.
objects := $(patsubst ctests/lib/%.c,$(built)/lib/%.o,$(wildcard ctests/lib/*.c))
# libfabric 2 calls names deprecated that the tests are about, by a pragma that no option silences.
strict  := $(shell pkg-config --exists 'libfabric >= 2' 2>/dev/null || echo -Werror)
compile  = $(CC) -std=gnu11 -D_GNU_SOURCE -Wall -Wextra $(strict) -Iinclude -MMD -MP -MF $(built)/lib/$(@F).d $(CFLAGS)
vpath %.c ctests/lib ctests/relaxed ctests/monitor ctests/fuzz
$(built)/lib/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(compile) -fPIC -c $< -o $@
$(built)/libctest.a: $(objects)
	rm -f $@
	$(AR) rcs $@ $^
# A benchmark, one of which "make demo" compiles, links neither the library nor libfabric.
rust  := $(call with,rust)
bench := $(call with,bench)
libs   = $(built)/libctest.a -Wl,--as-needed -lfabric -libverbs -lrdmacm -lpthread -ldl -lm
$(bench): libs = -libverbs -ldl -lm
$(filter-out $(rust) $(bench),$(tests)): $(built)/libctest.a
$(filter-out $(rust),$(tests)): Makefile
	@mkdir -p $(built)/lib
	$(compile) $(flags_$(build_$(@F))) $(source_$(@F)) $(inputs_$(build_$(@F))) -o $@ $(libs)
$(rust): $(so)
	+rustc --edition 2024 $(source_$(@F)) -o $@ -L $(release) -l dylib=rdmamr -l ibverbs
# Old dependency files name sources that are gone.
ctests/%.c: ;
-include $(wildcard $(built)/lib/*.d)

# Without Go its test is skipped.
ctests: ffi_go
ffi_go: $(so)
	@ctests/ffi/go.sh --build $(so) $(built)
.PHONY: ffi_go

demo: ## run programs under the library, on DEVICE=name or soft-RoCE, and show what happened
	@bench/demo

bench: ## time registration beside libibverbs, on DEVICE=name or in the soft-RoCE machine
	@bench/run

bench-relaxed: ## time relaxed registration beside UCX's registration cache, on this machine's own kernel
	@bench/relaxed

bench-trace: ## time what it costs that calls are written down, on this machine's own processor
	@bench/trace

bench-report: ## time "rdmamr report" on traces of a million and ten million calls, with its memory and the size of its page
	@bench/report

predict: all $(built)/workload ## run programs with the cache, and judge what "rdmamr report" foretold of them
	@python3 -B ctests/tool/predict.py $(release)/rdmamr $(so) $(built)/workload

bench-prefault: ## time registration of memory that was never touched, with RDMAMR_PREFAULT=2, on this machine, then as bench
	@bench/prefault

bench-large: ## time registration of 1 and 2 GiB by kind of memory, on DEVICE=name or soft-RoCE
	@bench/large

bench-fabric: ## time libfabric's calls on our domains beside libfabric's verbs provider, on DEVICE=name or soft-RoCE
	@bench/fabric

bench-cache: ## time a program that registers per message with RDMAMR_CACHE and without, on DEVICE=name or soft-RoCE
	@bench/cache

bench-scale: ## time and weigh a region among 1 to 1 000 000, with one thread and two, on this machine's own processor
	@bench/scale

figures: ## put the figures of the benchmarks that ran here into README.md and docs/
	@bench/figures take

picture: ## make examples/report.png again: the report on Mooncake, in the soft-RoCE machine
	@examples/picture

ranks: ## make target/ranks/ranks.html, the report on three ranks of Open MPI, in the soft-RoCE machine
	@examples/ranks

top-picture: all $(built)/holds ## make docs/results/top.svg again: rdmamr top beside a benchmark, in the soft-RoCE machine
	vm/packages vm programs top
	CHECK_PICTURE=1 vm/run -k 6.12 -t 300 -o target/top -- ctests/on-device rxe-6.12 rxe0 10.77.0.1 1 tool_top_device
	ctests/tool/terminal_svg.py 'rdmamr top beside a benchmark and a program without the library' <target/top/top.ansi >docs/results/top.svg

# It runs in the tree of vm/tree, and is linked to that tree's Open MPI.
ring_in = target/vm/sid/usr/lib/x86_64-linux-gnu/openmpi
$(built)/ring: ctests/programs/ring.c
	vm/tree sid >/dev/null
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror $(CFLAGS) -I$(ring_in)/include $< -o $@ \
		-L$(ring_in)/lib -lmpi -lopen_mpi -Wl,--unresolved-symbols=ignore-in-shared-libs

wall: all ctests target/release/rdmamr ## run programs of other projects without the library, with it and with the cache, and write docs/results/programs.md
	vm/packages vm programs wall
	# What cannot be downloaded is skipped, and the run says so.
	-ctests/programs/mooncake_wheel store >/dev/null
	-ctests/programs/rust_example >/dev/null
	rm -rf target/wall
	CHECK_WALL=1 vm/run -k 6.12 -m 6144 -t 5400 -o target/wall -- ctests/on-device rxe-6.12 rxe0 10.77.0.1 1 programs@all
	-$(MAKE) -s $(built)/ring
	if [ -x $(built)/ring ]; then \
		CHECK_WALL=1 vm/run -k sid -m 6144 -t 3600 -o target/wall -- ctests/on-device rxe-sid rxe0 10.77.0.1 1 fork fork_unneeded programs@sid; \
	else echo "Skipped: what runs in a tree of Debian sid, which could not be made (vm/tree)"; fi
	! grep '^not ok\|^Bail' target/wall/*.tap
	python3 -B ctests/programs/table.py target/wall target/release/rdmamr docs/results/programs.md

# Everything takes hours on an emulated processor: ONLY='^7.2-.*-rxe' runs a part, what has a result
# does not run again, and FRESH=1 forgets the results of that part.
matrix: all ctests ## run the suites of ctests/matrix/rows on each kernel, rdma-core and libfabric, and write docs/results/matrix.md
	vm/packages vm siw tree programs fabric
	ctests/matrix/run

arm64: ## run those suites on arm64, emulated, and write docs/results/arm64.md
	+ctests/matrix/arm64

example-rust: ## build the Rust program of examples/rust with a published binding, and run it in the soft-RoCE machine
	vm/packages vm bindings
	rm -rf target/examples/rust target/examples/installed
	mkdir -p target/examples
	cp -r examples/rust target/examples/
	+$(MAKE) -s --no-print-directory install DESTDIR=$(CURDIR)/target/examples/installed PREFIX= LIBDIR=/lib
	+cd target/examples/rust && RDMAMR_LIBDIR=$(CURDIR)/target/examples/installed/lib CARGO_TARGET_DIR=../build $(CARGO) build -q
	vm/run -k 6.12 -- target/examples/build/debug/register
	vm/run -k 6.12 -- env RDMAMR_CACHE=all target/examples/build/debug/register

house: ## print which room of src/ uses which
	@python3 -B ctests/host/house.py --draw

# The release whose ABI is kept: the last tag, or, of a tree without tags, the commit that was 0.1.
released ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo e45bab7)
abi: $(so) ## build the library of the last release, compare the two by abidiff, and run its programs on the library of today
	vm/packages abi
	[ -e target/abi/.git ] || git worktree add --detach target/abi $(released)
	+CARGO_TARGET_DIR=$(CURDIR)/target/abi/target $(CARGO) build -q --release --manifest-path target/abi/Cargo.toml
	ctests/abi/kept.sh $(so) target/abi/target/release/librdmamr.so

reproducible: ## build the library twice, in two folders, and compare
	@packaging/reproducible

sbom: ## write what is linked into the library and the program to target/sbom, as CycloneDX
	@packaging/sbom target/sbom

deny = PATH=$(abspath $(tools)):$$PATH $(CARGO) deny --all-features --config packaging/deny.toml
audit: $(tools)/cargo-deny ## judge licences, sources, duplicates and known advisories of all crates (packaging/deny.toml)
	$(deny) check licenses bans sources
	if $(deny) fetch db; then $(deny) check advisories; \
	else echo "audit: the list of advisories cannot be fetched, so they were not judged"; fi

# The unit tests judge each mutant, and suites of this machine. uverbs is a package of its own, with unit tests alone.
ROOM ?= dispatch
cargo-mutants: all ctests $(tools)/cargo-mutants ## change src/ROOM (mr, uverbs, cache, watch, fabric, dispatch) in every small way (PART=0/25: a part of them), and list what no test here notices
	CHECK_TREE=$(CURDIR) PATH=$(abspath $(tools)):$$PATH $(CARGO) mutants -p $(if $(filter uverbs,$(ROOM)),rdmamr-uverbs,rdmamr) -f 'src/$(ROOM)/**' \
		-e '**/*tests.rs' --timeout 300 $(if $(PART),--shard $(PART) --sharding round-robin) -o target/mutants.$(ROOM) -- --lib $(if $(filter uverbs,$(ROOM)),,--test suites)

$(tools)/%:
	+$(CARGO) install --quiet --debug --locked --root $(dir $@).. $*

mutants: all ctests ## break the code of each lemma of docs/proof.md, and see its test fail
	@python3 -B ctests/mutants/lemmas.py

SECONDS ?= 60
fuzz: ## feed what reads foreign bytes with inputs of libFuzzer, SECONDS for all targets at once (60): settings, /proc, raw keys, the kernel's answers, traces, live pages, ELF files
	@ctests/fuzz/targets --guided $(SECONDS)

# Suites that docs/results/faults.md names run as in "make check", but the sweep each time that a call is made, and 1000 kills.
faults: all ctests ## have each system call of the library fail, kill, stop and starve programs, and write docs/results/faults.md
	vm/packages vm faults
	rm -rf target/faults && mkdir -p target/faults
	-RESULTS=$(CURDIR)/target/faults ctests/suite host $$(ctests/faults/page.py suites host)
	-python3 -B ctests/faults/sweep.py $(so) $(built) --all --rows target/faults/host.tsv >target/faults/host.faults.tap
	-CHECK_KILLS=1000 vm/run -k 6.12 -t 3600 -o target/faults -- ctests/on-device rxe-6.12 rxe0 10.77.0.1 1 $$(ctests/faults/page.py suites rxe-6.12)
	-CHECK_DEVICE=rxe0 CHECK_ADDRESS=10.77.0.1 CHECK_GID_INDEX=1 vm/run -k 6.12 -t 3600 -o target/faults -- \
		sh -c 'python3 -B ctests/faults/sweep.py $(so) $(built) --rows $$VM_OUT/device.tsv' >target/faults/device.tap
	python3 -B ctests/faults/page.py write target/faults
	@ctests/summary target/faults/*.tap
	@python3 -B ctests/faults/page.py check

HOURS ?= 2
soak: $(so) $(built)/soak $(built)/fabric_data ## run programs at once for HOURS hours (2) in the soft-RoCE machine, say whether anything grows, and write docs/results/soak.md
	vm/packages vm programs
	ctests/programs/mooncake_wheel >/dev/null
	rm -rf target/soak
	vm/run -k 6.12 -m 6144 -t $$(awk 'BEGIN { print int($(HOURS) * 3600 + 7200) }') -o target/soak -- \
		python3 -B ctests/soak/run.py $(HOURS) $(abspath $(so) $(built)) rxe0 10.77.0.1 1
	+$(CARGO) run -q --profile tool -p rdmamr-tool --example soak_curve -- target/soak/soak.tsv docs/results/soak.svg
	python3 -B ctests/soak/verdict.py target/soak docs/results/soak.md

long-race: $(so) $(built)/race $(built)/fuzz_memory ## run a million rounds of the two-thread race and a million steps of the fuzzer, on this machine
	LD_PRELOAD=$(abspath $(so)) $(built)/race 1000000
	LD_PRELOAD=$(abspath $(so)) $(built)/fuzz_memory 1000000

vm: ## run CMD='...' in the soft-RoCE machine, with KERNEL=6.1 (default), 6.12 or sid
	@vm/run -- sh -c '$(subst ','\'',$(value CMD))'

installed_headers := rdmamr.h rdmamr/verbs.h rdmamr/fi_mr.h rdmamr/compat/infiniband/verbs.h
# "strip_flag=" leaves the symbols to a packager. Of an archive only the debug symbols can go.
strip_flag := -s
# The program is built once, also for packages (debian/rules): its crates take two minutes. So no
# panic message and no line table names the builder's own folders.
program := $(release)/rdmamr
cargo_home := $(or $(CARGO_HOME),$(HOME)/.cargo)
remapped = RUSTFLAGS="$(RUSTFLAGS) --remap-path-prefix=$(CURDIR)=/usr/src/rdmamr --remap-path-prefix=$(cargo_home)=/usr/src/cargo"
$(program): FORCE
	+CARGO_TARGET_DIR=$(CURDIR)/target $(remapped) $(CARGO) build --profile tool -p rdmamr-tool
	ln -f target/tool/rdmamr $@
# The module for LD_AUDIT needs no library at all, not the C library either, which each process would load a second time.
$(audit): FORCE
	+CARGO_TARGET_DIR=$(CURDIR)/target $(remapped) $(CARGO) rustc --profile audit -p rdmamr-audit --crate-type cdylib -- \
		-C link-args="-nostdlib -nostartfiles -Wl,-z,defs,-z,now,-z,relro"
	@mkdir -p $(@D)
	ln -f target/audit/librdmamr_audit.so $@
# The archive that is installed is one object with the library's own symbols. Cargo's has those of Rust's standard library
# too, of which a program in Rust has its own.
archive := $(release)/installed/librdmamr.a
$(archive): $(so)
	@mkdir -p $(@D)
	readelf -W --dyn-syms $(so) | awk '$$1 ~ /^[0-9]+:$$/ && $$5 != "LOCAL" && $$7 != "UND" && $$7 != "ABS" && $$8 { print $$8 }' >$(@D)/exported
	$(LD) -r --force-group-allocation -u mmap -o $(@D)/librdmamr.o $(release)/librdmamr.a
	$(OBJCOPY) --keep-global-symbols=$(@D)/exported $(@D)/librdmamr.o
	rm -f $@
	$(AR) rcs $@ $(@D)/librdmamr.o
install: $(so) $(archive) $(audit) $(program) ## install under DESTDIR, PREFIX, LIBDIR
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR)/rdmamr/compat/infiniband $(DESTDIR)$(BINDIR)
	install -m 755 $(strip_flag) $(so) $(DESTDIR)$(LIBDIR)/librdmamr.so.$(version)
	ln -sf librdmamr.so.$(version) $(DESTDIR)$(LIBDIR)/librdmamr.so.1
	ln -sf librdmamr.so.1 $(DESTDIR)$(LIBDIR)/librdmamr.so
	install -m 644 $(archive) $(DESTDIR)$(LIBDIR)/
	$(if $(strip_flag),$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/librdmamr.a)
	install -d $(DESTDIR)$(LIBDIR)/rdmamr
	install -m 755 $(strip_flag) $(audit) $(DESTDIR)$(LIBDIR)/rdmamr/
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
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,librdmamr.so.$(version) librdmamr.so.1 librdmamr.so librdmamr.a libfabric/librdmamr-fi.so rdmamr/librdmamr-audit.so pkgconfig/rdmamr.pc pkgconfig/rdmamr-compat.pc)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,$(installed_headers))
	rm -f $(addprefix $(DESTDIR),$(BINDIR)/rdmamr $(BASHDIR)/rdmamr $(ZSHDIR)/_rdmamr $(FISHDIR)/rdmamr.fish)
	man/names | while read -r file page; do rm -f $(DESTDIR)$(MANDIR)/$$file; done
	-rmdir -p --ignore-fail-on-non-empty $(DESTDIR)$(INCLUDEDIR)/rdmamr/compat/infiniband
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(LIBDIR)/rdmamr

dist: ## make the tarball target/dist/librdmamr-VERSION.tar.gz, which builds, checks and installs without git
	@packaging/dist

dist-check: ## build that tarball where there is no git, run the suites that need no machine, and install it
	@packaging/dist_check

deb: ## build Debian packages into target/deb
	@debian/build

# Packages are made of what is built beside target/release, without the builder's own folders.
packaged = CARGO_TARGET_DIR=$(CURDIR)/target/packaged $(MAKE) -s --no-print-directory release=$(CURDIR)/target/packaged/release for_package=yes
wheel: ## make a Python wheel for glibc 2.28 and later, in target/wheel
	packaging/wheel tools
	rm -rf target/wheel/stage
	+$(packaged) install DESTDIR=$(CURDIR)/target/wheel/stage PREFIX= LIBDIR=/lib
	packaging/wheel link
	+CARGO_TARGET_DIR=$(CURDIR)/target $(remapped) $(CARGO) rustc -q --profile tool -p rdmamr-tool --bin rdmamr -- -C linker=$(CURDIR)/target/wheel/cc
	cp target/tool/rdmamr target/wheel/rdmamr
	packaging/wheel pack
wheel-check: wheel ## install the wheel into a fresh environment, and run Mooncake under it in the soft-RoCE machine
	vm/packages vm programs
	ctests/programs/mooncake_wheel >/dev/null
	vm/run -k 6.12 -t 1200 -- ctests/programs/wheel.sh target/wheel/*.whl rxe0 10.77.0.1 1

rpm: ## build RPM packages into target/rpm
	vm/packages rpm
	rm -rf target/rpm/stage
	+$(packaged) install DESTDIR=$(CURDIR)/target/rpm/stage PREFIX=/usr LIBDIR=/usr/lib64
	packaging/rpm target/rpm/stage

clean: ## remove everything that was built or downloaded
	rm -rf target

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F '|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

FORCE:
.PHONY: abi arm64 reproducible sbom audit cargo-mutants house matrix wall faults example-rust all headers man cbindgen check ctests demo bench bench-relaxed bench-trace bench-report bench-prefault bench-large bench-fabric bench-cache bench-scale figures picture ranks soak long-race mutants vm install uninstall dist dist-check deb wheel wheel-check rpm clean help top-picture FORCE
