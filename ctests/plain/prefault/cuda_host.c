/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cudaHostRegister or hipHostRegister, called by a plug-in whose runtime is in a scope of its own: its
 * result and errno are the runtime's, also after another plug-in's runtime was unloaded. With
 * RDMAMR_PREFAULT another thread populates the memory from its end, while the runtime populates it from its
 * start; small memory and a device's is left to the runtime.
 *
 * The runtime is a stand-in (cudart.c).
 */
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include "../../lib/tap.h"

enum { LARGE = 64 << 20, SMALL = 1 << 20 };

static int (*pin)(void *, size_t, unsigned int);

static char *fresh(size_t size)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}

static void *load(const char *path)
{
	void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	must(plugin);
	*(void **)&pin = dlsym(plugin, "pin");
	must(pin);
	return plugin;
}

int main(int argc, char **argv)
{
	void *plugin, *runtime;

	must(argc == 2);
	plugin = load(argv[1]);
	must(!dlsym(RTLD_DEFAULT, "cudaFree"));
	errno = 0;
	is(pin(fresh(LARGE), LARGE, 0), 0, "large memory is registered%s", getenv("CHECK_HELPED") ? ", and another thread helps" : "");
	is(errno, 77, "errno is the runtime's");
	errno = 5;
	is(pin(fresh(LARGE), LARGE, 0x100), 1, "an error of the runtime is the result");
	is(errno, 5, "with errno left alone");
	must(unsetenv("CHECK_HELPED") == 0);
	is(pin(fresh(SMALL), SMALL, 0), 0, "small memory is registered");
	is(pin(fresh(LARGE), LARGE, 4), 0, "a device's memory is registered");
	is(pin(fresh(LARGE), LARGE, 8), 0, "memory for reading only is registered");
	/* A plug-in ends, and its runtime with it. The next one's lies elsewhere. */
	runtime = dlsym(plugin, "cudaHostRegister") ?: dlsym(plugin, "hipHostRegister");
	must(runtime && dlclose(plugin) == 0);
	runtime = (char *)runtime - (uintptr_t)runtime % 4096;
	must(mmap(runtime, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == runtime);
	load(argv[1]);
	is(pin(fresh(LARGE), LARGE, 0), 0, "by the next plug-in, after this one and its runtime were unloaded");
	return done_testing();
}
