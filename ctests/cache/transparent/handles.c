/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that gets every function from libibverbs by handle, as NCCL does, and is linked to none
 * of them. Its registrations reach the library all the same, since libibverbs' own ibv_reg_mr jumps
 * through its PLT, and so do their ends, since the provider calls ibv_cmd_dereg_mr through its own.
 * The cache serves them, and each deregistration ends one use.
 */
#include "../../lib/pair.h"
#include <dlfcn.h>

enum { ROUNDS = 300 };

static struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
static int (*dereg_mr)(struct ibv_mr *);
static int (*flush)(struct ibv_pd *);

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
	int failed = 0, wrong = 0, more = 0, others;
	struct rdmamr_stats before, after;
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
	*(void **)&flush = dlsym(RTLD_DEFAULT, "ibv_flush_relaxed_mr");
	must(reg_mr && dereg_mr && flush);
	pair_open(&pair);
	from = pages(2);
	to = from + PAGE;
	source = reg_mr(pair.pd, from, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(source);
	others = kernel_regions(pair.context);
	before = stats();
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *mr = reg_mr(pair.pd, to, PAGE, LOCAL_AND_REMOTE);

		failed += !mr;
		if (!mr)
			continue;
		memset(from, round + 1, 64);
		wrong += pair_write(&pair, source, from, 64, (uintptr_t)to, mr->rkey) != IBV_WC_SUCCESS ||
			 memcmp(from, to, 64) != 0;
		failed += dereg_mr(mr) != 0;
		more += kernel_regions(pair.context) > others + 1;
		/* New pages, which no cached region has. */
		if (round % 10 == 9) {
			must(munmap(to, PAGE) == 0);
			must(mmap(to, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == to);
		}
	}
	after = stats();
	printf("# %lld hits, %lld by the kernel; bypassed: memory %lld, watch %lld, busy %lld\n",
	       (long long)(after.hits - before.hits), (long long)(after.reg_kernel - before.reg_kernel),
	       (long long)after.bypassed_memory, (long long)after.bypassed_watch, (long long)after.bypassed_busy);
	is(failed, 0, "registered and deregistered by handle, %d times", ROUNDS);
	is(wrong, 0, "data has landed each time");
	is(more, 0, "the kernel has had one region at most after their end");
	ok(after.hits > before.hits, "the cache has served");
	is((long long)(after.hits - before.hits + after.reg_kernel - before.reg_kernel), ROUNDS,
	   "each registration was a hit or the kernel's");
	must(dereg_mr(source) == 0 && flush(pair.pd) == 0);
	is(kernel_regions(pair.context), others - 1, "at the end the kernel has none of these regions");
	is((long long)(stats().live + stats().idle), 0, "nor has the library");
	pair_close(&pair);
	return done_testing();
}
