/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The pins of idle regions count against RLIMIT_MEMLOCK: if a relaxed registration does not fit
 * beside them, they end and it succeeds. Without idle regions the limit is the program's own
 * matter: ENOMEM, with a reason. (pressure.c shows that a plain registration ends them too.)
 */
#include "../../lib/observe.h"

enum { LIMIT = 16, IDLE = 15, WANTED = 10 };

static struct pair pair;

int main(int argc, char **argv)
{
	char *memory, *reason;
	struct ibv_mr *regions[IDLE], *used, *mr;
	struct rdmamr_stats before;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1G");
	drop_memlock_right();
	relaxed_open(&pair);
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 pins by itself, and counts otherwise");
	memory = pages(64);
	control(&pair, "without a limit", memory, PAGE);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	allow_pins(LIMIT);

	for (int n = 0; n < IDLE; n++) {
		regions[n] = register_by_cache(pair.pd, memory + n * 2 * PAGE, PAGE, LOCAL_AND_REMOTE, &before);
		must(regions[n]);
	}
	for (int n = 0; n < IDLE; n++)
		must(deregister_region(regions[n]) == 0);
	is(stats().idle, IDLE, "%d of %d pages are pinned by idle regions", IDLE, LIMIT);
	before = stats();
	mr = register_region(pair.pd, memory + 40 * PAGE, WANTED * PAGE, LOCAL_AND_REMOTE);
	ok(mr != NULL, "a registration of %d pages succeeds", WANTED);
	must(mr);
	ok(lands_in(&pair, mr, memory + 40 * PAGE, WANTED * PAGE), "data lands by it");
	ok(stats().flushed_pressure > before.flushed_pressure, "%d idle regions ended for it",
	   (int)(stats().flushed_pressure - before.flushed_pressure));
	is(stats().reg_failed, 0, "no registration is counted as failed");

	/* One of the limit's pages is in use, others are idle: the region in use must stay. */
	used = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(used && deregister_region(mr) == 0);
	mr = register_region(pair.pd, memory + 20 * PAGE, (LIMIT - 1) * PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(mr != NULL, "all that the limit leaves, beside one in use");
	must(mr);
	ok(lands_by_lkey(&pair, mr, memory + 20 * PAGE, (LIMIT - 1) * PAGE), "data lands by it");
	ok(lands_in(&pair, used, memory, PAGE), "and by the one in use");

	errno = 0;
	before = stats();
	ok(!register_region(pair.pd, memory + 50 * PAGE, 2 * PAGE, LOCAL_AND_REMOTE) && errno == ENOMEM,
	   "with no idle region, a registration that does not fit is ENOMEM");
	is(stats().reg_failed - before.reg_failed, 1, "which is counted as one failure");
	reason = (char *)(uintptr_t)rdmamr_last_reason();
	ok(strstr(reason, "pinned already (VmPin)") != NULL, "the reason: %s", reason);
	ok(lands_in(&pair, used, memory, PAGE), "data still lands by the one in use");
	is(deregister_region(mr), 0, "the big one is deregistered");
	is(deregister_region(used), 0, "the other too");
	errno = 0;
	ok(!register_region(pair.pd, memory, (LIMIT + 1) * PAGE, LOCAL_AND_REMOTE) && errno == ENOMEM,
	   "a registration that can never fit is ENOMEM, with idle regions too");
	anew(&pair, "one that fits then", memory + 30 * PAGE, LIMIT * PAGE);
	control(&pair, "at the limit", memory + 30 * PAGE, LIMIT * PAGE);
	return relaxed_close(&pair);
}
