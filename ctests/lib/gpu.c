/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "gpu.h"
#include <dlfcn.h>
#include <unistd.h>
#include "hca.h"
#include "tap.h"

struct gpu gpu;
static const char *device;

const char *gpu_begin(void)
{
	static const struct { void *at; const char *name; } calls[] = {
		{ &gpu.allocate, "gpu_allocate" }, { &gpu.free, "gpu_free" }, { &gpu.remap, "gpu_remap" }, { &gpu.bytes, "gpu_bytes" },
		{ &gpu.rules, "gpu_rules" }, { &gpu.exports, "gpu_exports" }, { &gpu.exports_by_pcie, "gpu_exports_by_pcie" },
		{ &gpu.retained, "gpu_retained" },
	};
	const char *file = getenv("CHECK_GPU");
	void *runtime;

	device = getenv("CHECK_DEVICE");
	must(device && file);
	if (!hca_has(device))
		skip_all("the device is none of vm/hca");
	if (access("/dev/udmabuf", R_OK | W_OK))
		skip_all("this kernel has no /dev/udmabuf");
	runtime = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	must(runtime);
	for (size_t n = 0; n < sizeof(calls) / sizeof(*calls); n++)
		must((*(void **)calls[n].at = dlsym(runtime, calls[n].name)));
	*(void **)&gpu.other = dlsym(runtime, "gpu_other");
	gpu.is_cuda = dlsym(runtime, "cuCtxGetCurrent") != NULL;
	return device;
}

bool gpu_lands(uint32_t key, uint64_t iova, uint64_t address, bool remote)
{
	static unsigned char pattern;
	unsigned char wanted[GPU_SHOWN], got[GPU_SHOWN];

	memset(wanted, ++pattern, GPU_SHOWN);
	if (hca_write(device, key, iova, wanted, GPU_SHOWN, remote) || memcmp(gpu.bytes(address), wanted, GPU_SHOWN))
		return false;
	memset(gpu.bytes(address), ++pattern, GPU_SHOWN);
	memset(wanted, pattern, GPU_SHOWN);
	return hca_read(device, key, iova, got, GPU_SHOWN, remote) == 0 && !memcmp(got, wanted, GPU_SHOWN);
}
