/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program registers the first part of a buffer, in ever other lengths: more regions begin at its
 * first page than the index has entries for one page. Each registration ends, and the last
 * registered region is reused.
 */
#include "../../lib/reuse.h"

enum { PAGES = 100 };

static struct pair pair;

/*
 * Whether the registration reused a region. Before Linux 6.11 the library reads all mappings to
 * find one, for a tenth of the time at most: on a busy machine it may have to wait, and then counts
 * that.
 */
static bool used_again(char *memory, size_t length, int access, int *failed)
{
	for (int tries = 1;; tries++) {
		struct rdmamr_stats before = stats(), after;

		*failed += !lands_with(&pair, memory, length, access);
		after = stats();
		if (reused(before, after))
			return true;
		show(before, after);
		if (tries == 20 || after.bypassed_busy != before.bypassed_busy + 1)
			return false;
		usleep(tries * 50000);
	}
}

static void growing(const char *name, char *memory, int access)
{
	int failed = 0, anew = 0;

	for (int n = 1; n <= PAGES; n++) {
		for (int round = 0; round < 2; round++) {
			struct ibv_mr *mr = register_region(pair.pd, memory, (size_t)n * PAGE, access);

			failed += !mr || deregister_region(mr) != 0;
		}
		anew += !used_again(memory, (size_t)n * PAGE, access, &failed);
	}
	is(failed, 0, "%s: each of 1 to %d pages is registered three times, and data lands", name, PAGES);
	is(anew, 0, "%s: by a cached region", name);
}

int main(int argc, char **argv)
{
	char *memory;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	memory = pages(PAGES);
	growing("rights of remote peers", memory, LOCAL_AND_REMOTE);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	growing("local rights", memory, IBV_ACCESS_LOCAL_WRITE);
	return relaxed_close(&pair);
}
