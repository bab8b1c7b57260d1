/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registers by libmlx5's own calls, and prints each result with errno and what libmlx5 was asked: a
 * program, or the plug-in of host.c. The functions that call are those that mlx5.sh looks for.
 * Nothing has the memory: the stand-in does not look at it.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "mlx5.h"

enum { KIB = 1 << 10, MIB = 1 << 20, KEPT_ERRNO = 7 };

void calls(void);

static void show(const char *call, bool has_made)
{
	int error = errno;

	printf("%s: %s, errno %d, %s\n", call, has_made ? "done" : "failed", error, stand_in_said());
	errno = KEPT_ERRNO;
}

static void end(struct mlx5dv_devx_umem *umem)
{
	int code = mlx5dv_devx_umem_dereg(umem);

	show("dereg", code == 0);
	printf("code %d\n", code);
}

__attribute__((noinline)) static void register_rings(void)
{
	struct mlx5dv_devx_umem *rings[2];

	for (int round = 0; round < 3; round++) {
		for (int n = 0; n < 2; n++) {
			rings[n] = mlx5dv_devx_umem_reg(stand_in_device(0), (void *)(0x10000000L + n * MIB), (n + 1) * 64 * KIB,
							IBV_ACCESS_LOCAL_WRITE);
			show("reg", rings[n]);
		}
		for (int n = 0; n < 2; n++)
			end(rings[n]);
	}
	end(rings[0]);
}

__attribute__((noinline)) static void register_queue(void)
{
	struct mlx5dv_devx_umem_in in = { (void *)0x20000000, MIB, IBV_ACCESS_LOCAL_WRITE, 0xfff000, 0, -1 };
	struct mlx5dv_devx_umem_in of_dmabuf = { (void *)0x1000, 2 * MIB, IBV_ACCESS_LOCAL_WRITE, 0xfff000, MLX5DV_UMEM_MASK_DMABUF, 3 };
	struct mlx5dv_devx_umem *umem;

	/* It stays. */
	show("reg_ex", mlx5dv_devx_umem_reg_ex(stand_in_device(0), &in));
	umem = mlx5dv_devx_umem_reg_ex(stand_in_device(0), &of_dmabuf);
	show("reg_ex of a dma-buf", umem);
	end(umem);
}

__attribute__((noinline)) static void register_gpu(void)
{
	static struct ibv_pd pd;

	pd.context = stand_in_device(0);
	show("reg_dmabuf_mr", mlx5dv_reg_dmabuf_mr(&pd, 0x2000, 128 * KIB, 0x7000, 5, IBV_ACCESS_REMOTE_WRITE, 0x77));
}

__attribute__((noinline)) static void register_in_vain(void)
{
	show("reg without length", mlx5dv_devx_umem_reg(stand_in_device(0), (void *)0x30000000, 0, 0));
	show("reg of too much", mlx5dv_devx_umem_reg(stand_in_device(0), (void *)0x30000000, 4096, IBV_ACCESS_MW_BIND));
	show("reg on another's device", mlx5dv_devx_umem_reg(stand_in_device(1), (void *)0x30000000, 4096, 0));
}

void calls(void)
{
	errno = KEPT_ERRNO;
	register_rings();
	register_queue();
	register_gpu();
	register_in_vain();
}

#ifndef PLUGIN
int main(int count, char **arguments)
{
	calls();
	fflush(stdout);
	if (count > 1 && !strcmp(arguments[1], "hold"))
		getchar();
	return 0;
}
#endif
