/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that gets its functions from libibverbs by handle, as NCCL and brpc do: the library
 * intercepts only some of its calls. libibverbs' own ibv_reg_mr jumps through its PLT to the
 * library's, but its ibv_dereg_mr calls the provider, which frees the library's object.
 */
#include "../lib/pair.h"
#include "../lib/program.h"
#include <dlfcn.h>
#include <malloc.h>

static struct ibv_mr *(*handle_reg_mr)(struct ibv_pd *, void *, size_t, int);
static struct ibv_mr *(*handle_reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*handle_dereg_mr)(struct ibv_mr *);

static void take_by_handle(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);

	must(handle);
	*(void **)&handle_reg_mr = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.1");
	*(void **)&handle_reg_mr_iova2 = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&handle_dereg_mr = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	must(handle_reg_mr && handle_reg_mr_iova2 && handle_dereg_mr);
}

enum { MANY = 5000 };

int main(void)
{
	static struct ibv_mr *regions[MANY];
	struct rdmamr_stats before, now;
	struct ibv_mr *mr, *foreign;
	struct pair pair;
	char *memory = pages(2);
	int failed = 0, foreign_count = 0;
	struct mallinfo2 heap;

	take_by_handle();
	pair_open(&pair);

	/* As NCCL does: one region after the other. */
	for (int round = 0; round < MANY; round++) {
		mr = handle_reg_mr(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
		failed += !mr || handle_dereg_mr(mr) != 0;
	}
	is(failed, 0, "registered by the library, deregistered without it");
	now = stats();
	is((long long)now.reg_kernel, MANY, "the library made each registration");
	is((long long)now.live, 0, "none counts as live");
	is((long long)now.ended_elsewhere, MANY, "they count as ended elsewhere");
	is(kernel_regions(pair.context), 0, "the kernel has none");

	/* Many regions alive together. */
	for (int n = 0; n < MANY; n++)
		failed += !(regions[n] = handle_reg_mr(pair.pd, memory, PAGE, LOCAL_AND_REMOTE));
	for (int n = 0; n < MANY; n++)
		failed += handle_dereg_mr(regions[n]) != 0;
	heap = mallinfo2();
	for (int round = 0; round < 3; round++) {
		for (int n = 0; n < MANY; n++)
			failed += !(regions[n] = handle_reg_mr(pair.pd, memory, PAGE, LOCAL_AND_REMOTE));
		for (int n = 0; n < MANY; n++)
			failed += handle_dereg_mr(regions[n]) != 0;
	}
	is(failed, 0, "%d at once, three times", MANY);
	ok(mallinfo2().uordblks <= heap.uordblks + 65536, "and they leak no memory (%zd bytes)",
	   (ssize_t)(mallinfo2().uordblks - heap.uordblks));
	is((long long)stats().live, 0, "the table is empty");

	/*
	 * Foreign regions now lie where the library's regions were: none may be taken for the
	 * library's.
	 */
	before = stats();
	for (int n = 0; n < MANY; n++) {
		foreign = regions[n] = handle_reg_mr_iova2(pair.pd, memory + PAGE, PAGE,
							   (uintptr_t)memory + PAGE, LOCAL_AND_REMOTE);
		failed += !foreign;
	}
	for (int n = 0; n < MANY; n++)
		failed += ibv_dereg_mr(regions[n]) != 0;
	now = stats();
	foreign_count = (int)(now.dereg_next - before.dereg_next);
	is(failed, 0, "foreign regions are deregistered");
	is(foreign_count, MANY, "each by libibverbs");
	is(kernel_regions(pair.context), 0, "the kernel has none");
	is((long long)stats().live, 0, "and the library has none");

	/* Mixed: the library's regions at places of foreign ones must work, with data. */
	{
		char *target = pages(1);
		struct ibv_mr *source = ibv_reg_mr(pair.pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

		for (int n = 0; n < 200; n++) {
			mr = (n % 2 ? ibv_reg_mr : handle_reg_mr)(pair.pd, target, PAGE, LOCAL_AND_REMOTE);
			must(mr);
			memory[0] = (char)n;
			failed += pair_write(&pair, source, memory, 8, (uintptr_t)target, mr->rkey) != 0;
			/* On iWARP a write is complete when it is sent, and may arrive later. */
			failed += !comes(*(volatile char *)target == (char)n);
			failed += (n % 3 ? ibv_dereg_mr : handle_dereg_mr)(mr) != 0;
		}
		is(failed, 0, "mixed with intercepted calls, data moves");
		must(ibv_dereg_mr(source) == 0);
	}
	is(kernel_regions(pair.context), 0, "the kernel has none");
	pair_close(&pair);
	is((long long)stats().live, 0, "nor has the library");
	return done_testing();
}
