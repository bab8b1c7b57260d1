/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE_MAX_IDLE and RDMAMR_CACHE_MAX_IDLE_BYTES: more regions, or more bytes, are never
 * idle for long. Regions that have been idle for seconds make room for others, and regions in use
 * do not count.
 */
#include "../../lib/observe.h"

enum { COUNT = 10, MOST = 4, MOST_PAGES = 256 };

static struct pair pair;
static char *memory;

/* Registers that many regions of that many pages each, and then deregisters them, in order. */
static void at_once(const char *name, int count, int length)
{
	struct ibv_mr *regions[COUNT];
	uint32_t keys[COUNT];
	struct rdmamr_stats before = stats();
	int idle, in_kernel = 0;

	for (int n = 0; n < count; n++) {
		regions[n] = register_region(pair.pd, memory + (long)n * length * PAGE, (size_t)length * PAGE, LOCAL_AND_REMOTE);
		must(regions[n]);
		keys[n] = regions[n]->lkey;
	}
	is((long long)stats().flushed_watermark, (long long)before.flushed_watermark, "%s, in use: none ends", name);
	is(kernel_regions(pair.context), far.others + count, "%s: the kernel has all %d", name, count);
	for (int n = 0; n < count; n++)
		must(deregister_region(regions[n]) == 0);
	ok(comes(stats().idle <= MOST && stats().idle_bytes <= MOST_PAGES * PAGE),
	   "%s: no more are idle than allowed", name);
	idle = (int)stats().idle;
	is((long long)stats().idle_bytes, (long long)idle * length * PAGE, "%s: %d are idle", name, idle);
	is((long long)(stats().flushed_watermark - before.flushed_watermark), count - idle,
	   "%s: the others are counted", name);
	is(kernel_regions(pair.context), far.others + idle, "%s: and gone from the kernel", name);
	for (int n = 0; n < count; n++)
		in_kernel += kernel_has_key(pair.context, keys[n]);
	is(in_kernel, idle, "%s: so are their keys", name);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
}

/* Three that have been idle for some seconds make room for three that come then. */
static void older_first(void)
{
	uint32_t keys[6];
	int old = 0, new = 0;

	for (int n = 0; n < 9; n++) {
		int which = n < 6 ? n : n - 3;
		struct ibv_mr *mr = register_region(pair.pd, memory + which * PAGE, PAGE, LOCAL_AND_REMOTE);

		must(mr);
		keys[which] = mr->lkey;
		must(deregister_region(mr) == 0);
		if (n == 2)
			usleep(3000000);
		if (n == 5)
			ok(comes(stats().idle <= 1), "of six, those end that were idle for seconds");
	}
	for (int n = 0; n < 6; n++)
		*(n < 3 ? &old : &new) += kernel_has_key(pair.context, keys[n]);
	is(old, 0, "of six, none of the older is left");
	is(new, 3, "and the newer ones stay");
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
}

/* One after the other, none in use beyond its turn: at no time more than that. */
static void in_turn(const char *name, int length)
{
	struct rdmamr_stats before = stats();
	int rounds = 0, over = 0, most = 0;

	for (int n = 0; n < 30 && over < 3; n++, rounds++) {
		must(lands(&pair, memory + (long)n * length * PAGE, (size_t)length * PAGE));
		over += !comes(stats().idle <= MOST && stats().idle_bytes <= MOST_PAGES * PAGE);
		most = (int)stats().idle > most ? (int)stats().idle : most;
	}
	is(over, 0, "%s, one after the other: never more than allowed (%d were idle)", name, most);
	ok((int)(stats().flushed_watermark - before.flushed_watermark) >= rounds - MOST, "%s: %d have ended", name,
	   (int)(stats().flushed_watermark - before.flushed_watermark));
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE", "4");
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1M");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	as_root();
	relaxed_open(&pair);
	memory = pages(4096);
	in_turn("of a page", 1);
	at_once("ten of a page", 10, 1);
	at_once("four of a page", 4, 1);
	at_once("three of 512 KiB", 3, 128);
	at_once("two of 512 KiB", 2, 128);
	at_once("one of 2 MiB", 1, 512);
	older_first();
	in_turn("of a page, again", 1);
	in_turn("of 512 KiB", 128);
	control(&pair, "within the limits", memory, PAGE);
	return relaxed_close(&pair);
}
