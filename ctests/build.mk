# SPDX-License-Identifier: MIT OR Apache-2.0
# How the C tests and benchmarks are compiled, a part of the Makefile.

# The C tests and benchmarks: NAME, SOURCE and BUILD of ctests/manifest, as variables of make.
target/manifest.mk: ctests/manifest ctests/build.mk
	@mkdir -p $(@D)
	@awk '!/^#/ && NF && $$2 != "-" && $$3 != "script" { \
		file = "$$(built)/" $$1; print "tests += " file "\n" file ": " $$2; \
		print "source_" $$1 " := " $$2 "\nbuild_" $$1 " := " $$3 }' $< >$@
-include target/manifest.mk
ctests: $(tests)

# The words of BUILD: flags for the compiler, and inputs for the linker.
flags_alone         := -DRDMAMR_NO_LIBFABRIC
flags_shared        := -shared -fPIC
flags_gpu           := -shared -fPIC -Wl,-soname,libcuda.so.1
flags_rocm          := -shared -fPIC -DROCM -Wl,-soname,libhsa-runtime64.so.1
flags_plugin        := -shared -fPIC
flags_symver        := -shared -fPIC -Wl,-soname,libcudart.so.12 -Wl,--default-symver
flags_cudart        := -shared -fPIC -Wl,-soname,libcudart.so.12
flags_cuda_plugin   := -shared -fPIC '-Wl,-rpath,$$ORIGIN'
inputs_cuda_plugin   = $(built)/libcudart.so.12
flags_amdhip        := -shared -fPIC -DcudaHostRegister=hipHostRegister -Wl,-soname,libamdhip64.so.6
flags_hip_plugin    := $(flags_cuda_plugin) -DcudaHostRegister=hipHostRegister
inputs_hip_plugin    = $(built)/libamdhip64.so.6
flags_exported      := -rdynamic
flags_address       := -fsanitize=address
flags_thread        := -fsanitize=thread
# Its calls are weak, and libibverbs must be loaded all the same.
inputs_stub          = $(built)/lib/stub_device.o -Wl,--no-as-needed -libverbs
inputs_stub_alone    = $(built)/lib/stub_device.o
inputs_fuzz          = $(addprefix $(built)/lib/,stub_device.o calls.o look.o regions.o)
inputs_exported     := $(built)/lib/cached.o
inputs_plugin       := $(built)/lib/cached.o
inputs_alone        := $(so)
inputs_address      := $(so)
inputs_thread       := $(so)
inputs_linked       := $(so)
inputs_linked_behind := -Wl,--no-as-needed -libverbs $(so)
with = $(filter $(addprefix $(built)/,$(foreach name,$(patsubst $(built)/%,%,$(tests)),$(if $(filter $(1),$(build_$(name))),$(name)))),$(tests))
$(call with,stub stub_alone): $(built)/lib/stub_device.o
$(call with,cuda_plugin): $(built)/libcudart.so.12
$(call with,hip_plugin): $(built)/libamdhip64.so.6
$(call with,fuzz): $(inputs_fuzz)
$(call with,exported plugin): $(built)/lib/cached.o
$(call with,alone address thread linked linked_behind): $(so)

# The programs share a library. stub_device.c and cached.c are not in it: they replace ioctl and
# ibv_alloc_pd, so a word of BUILD names them.
objects := $(patsubst ctests/lib/%.c,$(built)/lib/%.o,$(filter-out %/stub_device.c,$(wildcard ctests/lib/*.c)))
# libfabric 2 deprecates names that the tests are about, by a pragma that no option silences.
strict  := $(shell pkg-config --exists 'libfabric >= 2' 2>/dev/null || echo -Werror)
compile  = $(CC) -std=gnu11 -D_GNU_SOURCE -Wall -Wextra $(strict) -Iinclude -MMD -MP -MF $(built)/lib/$(@F).d $(CFLAGS)
vpath %.c ctests/lib ctests/fabric/monitor ctests/cache/fuzz
$(built)/lib/%.o: %.c ctests/build.mk
	@mkdir -p $(@D)
	$(compile) -fPIC -c $< -o $@
$(built)/libctest.a: $(objects)
	rm -f $@
	$(AR) rcs $@ $^
# A benchmark, one of which "make demo" compiles, links neither the library nor libfabric.
bench := $(call with,bench)
libs   = $(built)/libctest.a -Wl,--as-needed -lfabric -libverbs -lrdmacm -lpthread -ldl -lm
$(bench): libs = -libverbs -ldl -lm
$(filter-out $(bench),$(tests)): $(built)/libctest.a
$(tests): ctests/build.mk
	@mkdir -p $(built)/lib
	$(compile) $(flags_$(build_$(@F))) $(source_$(@F)) $(inputs_$(build_$(@F))) -o $@ $(libs)
# Old dependency files name removed sources.
ctests/%.c ctests/%.h: ;
-include $(wildcard $(built)/lib/*.d)
