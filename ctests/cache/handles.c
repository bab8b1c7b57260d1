/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that takes every function from libibverbs by handle, as NCCL does, and is linked to
 * none of them. Its registrations come to the library all the same, since libibverbs' own
 * ibv_reg_mr jumps through its PLT; whatever the cache is set to, they are regions of their own,
 * and end with their end.
 */
#include "../lib/pair.h"
#include <dlfcn.h>

enum { ROUNDS = 300 };

static struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
static int (*dereg_mr)(struct ibv_mr *);

static void with_cache(char **argv, const char *value)
{
	const char *now = getenv("RDMAMR_CACHE");

	if (now && !strcmp(now, value))
		return;
	must(setenv("RDMAMR_CACHE", value, 1) == 0);
	execv("/proc/self/exe", argv);
	must(!"execv");
}

int main(int argc, char **argv)
{
	void *handle;
	int failed = 0, wrong = 0, kept = 0, others;
	struct ibv_mr *source;
	struct pair pair;
	char *from, *to;

	(void)argc;
	if (!getenv("RDMAMR_CACHE"))
		with_cache(argv, "all");
	handle = dlopen("libibverbs.so.1", RTLD_NOW);
	must(handle);
	*(void **)&reg_mr = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.1");
	*(void **)&dereg_mr = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	must(reg_mr && dereg_mr);
	pair_open(&pair);
	from = pages(2);
	to = from + PAGE;
	source = reg_mr(pair.pd, from, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(source);
	others = kernel_regions(pair.context);
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *mr = reg_mr(pair.pd, to, PAGE, LOCAL_AND_REMOTE);

		failed += !mr;
		if (!mr)
			continue;
		memset(from, round + 1, 64);
		wrong += pair_write(&pair, source, from, 64, (uintptr_t)to, mr->rkey) != IBV_WC_SUCCESS ||
			 memcmp(from, to, 64) != 0;
		failed += dereg_mr(mr) != 0;
		kept += kernel_regions(pair.context) != others;
		/* New pages, of which a kept region would not know. */
		if (round % 10 == 9) {
			must(munmap(to, PAGE) == 0);
			must(mmap(to, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == to);
		}
	}
	is(failed, 0, "registered and deregistered by handle, %d times", ROUNDS);
	is(wrong, 0, "data has landed each time");
	is(kept, 0, "and the kernel has had no region after its end");
	is((long long)stats().reg_kernel, ROUNDS + 1, "each was a registration of the library's");
	is((long long)(stats().hits + stats().misses + stats().idle), 0, "and none the pool's");
	is((long long)stats().bypassed_caller, ROUNDS + 1, "which is counted: the caller has looked the function up");
	must(dereg_mr(source) == 0);
	pair_close(&pair);
	is((long long)stats().live, 0, "at the end: no region is left");
	return done_testing();
}
