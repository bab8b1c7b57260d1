/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * host PLUGIN...: runs the calls of plug-ins, each loaded into a scope of its own with the libmlx5
 * that it is linked to. host handle LIBMLX5: looks a call up in that file's handle, as DPDK and NCCL
 * do, and makes it. host none: makes it where there is no libmlx5.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "mlx5.h"

typedef struct mlx5dv_devx_umem *(*umem_reg)(struct ibv_context *, void *, size_t, uint32_t);

static void *load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	return library;
}

int main(int count, char **arguments)
{
	umem_reg reg = NULL;
	struct ibv_context *(*device)(void);

	if (count == 2 && !strcmp(arguments[1], "none")) {
		*(void **)&reg = dlsym(RTLD_DEFAULT, "mlx5dv_devx_umem_reg");
		if (!reg)
			return puts("no function") < 0;
		if (!reg(NULL, NULL, 4096, 0))
			puts(strerror(errno));
		return 0;
	}
	if (count == 3 && !strcmp(arguments[1], "handle")) {
		void *library = load(arguments[2]);

		if (!library)
			return 1;
		*(void **)&device = dlsym(library, "stand_in_device");
		*(void **)&reg = dlvsym(library, "mlx5dv_devx_umem_reg", "MLX5_1.7");
		printf("%s\n", reg(device(), (void *)0x10000000, 4096, 0) ? "done" : "failed");
		return 0;
	}
	for (int n = 1; n < count; n++) {
		void (*calls)(void);
		void *library = load(arguments[n]);

		if (!library)
			return 1;
		*(void **)&calls = dlsym(library, "calls");
		calls();
	}
	return 0;
}
