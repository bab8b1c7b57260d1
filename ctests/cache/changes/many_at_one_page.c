/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A buffer of which the first part is registered, in ever other lengths: more regions begin at its
 * first page than there are places for the way to them. Each registration ends, and what was
 * registered last is used again.
 */
#include "../../lib/reuse.h"

enum { PAGES = 100 };

static struct pair pair;

/*
 * Whether the registration used a region that was there. Before Linux 6.11 the library reads all
 * mappings to learn about one, and does so for a tenth of the time at most: on a busy machine it may
 * have to wait, and says so.
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
		if (tries == 10 || after.bypassed_busy != before.bypassed_busy + 1)
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
	is(anew, 0, "%s: by a region that was there", name);
}

int main(int argc, char **argv)
{
	char *memory;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	memory = pages(PAGES);
	growing("rights of peers", memory, LOCAL_AND_REMOTE);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	growing("local rights", memory, IBV_ACCESS_LOCAL_WRITE);
	return relaxed_close(&pair);
}
