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
	*(void **)&gpu.allocate = dlsym(runtime, "gpu_allocate");
	*(void **)&gpu.free = dlsym(runtime, "gpu_free");
	*(void **)&gpu.remap = dlsym(runtime, "gpu_remap");
	*(void **)&gpu.bytes = dlsym(runtime, "gpu_bytes");
	*(void **)&gpu.rules = dlsym(runtime, "gpu_rules");
	*(void **)&gpu.exports = dlsym(runtime, "gpu_exports");
	*(void **)&gpu.exports_by_pcie = dlsym(runtime, "gpu_exports_by_pcie");
	*(void **)&gpu.retained = dlsym(runtime, "gpu_retained");
	must(gpu.allocate && gpu.free && gpu.remap && gpu.bytes && gpu.rules && gpu.exports && gpu.exports_by_pcie && gpu.retained);
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
