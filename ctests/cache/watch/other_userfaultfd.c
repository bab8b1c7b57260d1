/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Another userfaultfd of the process, such as that of libfabric's monitor. The kernel gives the events
 * of memory to one userfaultfd: the cache keeps no region of memory that another watches. Before Linux
 * 6.16 another userfaultfd may unregister memory that the cache watches, and from then on the kernel
 * refuses.
 */
#include <poll.h>
#include "../../lib/pair_rows.h"

static int other = -1;

static int other_takes(char *at, size_t length, uint64_t mode)
{
	struct uffdio_register registration = { .range = { (uintptr_t)at, length }, .mode = mode };

	return ioctl(other, UFFDIO_REGISTER, &registration) ? errno : 0;
}

static int other_leaves(char *at, size_t length)
{
	struct uffdio_range range = { (uintptr_t)at, length };

	return ioctl(other, UFFDIO_UNREGISTER, &range) ? errno : 0;
}

/* It only reads, so that no unmapping thread waits for it. */
static struct event_count heard;

static void other_begins(void)
{
	pthread_t reader;

	other = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE);
	must((heard.fd = other) >= 0 && pthread_create(&reader, NULL, count_events, &heard) == 0);
}

/* The program does not notice: its registrations just succeed. */
static void other_watches_first(void)
{
	char *page = memory + 4 * PAGE;
	uint64_t mode = (uint64_t)row->value;
	struct rdmamr_stats before, after;
	int seen;

	if (mode == UFFDIO_REGISTER_MODE_WP && !(uffd_features() & UFFD_FEATURE_PAGEFAULT_FLAG_WP))
		skip_all("the kernel's userfaultfd has no write protection");
	other_begins();
	is(other_takes(page, PAGE, mode), 0, "another userfaultfd has a page");
	before = stats();
	not_kept(&pair, "it", page, PAGE);
	is((long long)(stats().bypassed_memory - before.bypassed_memory), 2, "which is counted");
	ok(lands_by_cache(&pair, page - PAGE, 3 * PAGE, LOCAL_AND_REMOTE, &before, &after), "data lands in memory that it watches in part");
	ok(lands_by_cache(&pair, page, PAGE, IBV_ACCESS_LOCAL_WRITE, &before, &after), "by local rights too");
	either(&pair, "memory beside it", memory, PAGE);
	either(&pair, "memory beside it, again", memory, PAGE);
	/* The other's events stay its own, even when the cache ends its regions nearby. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	seen = heard.events;
	raw_remap(page, PAGE);
	ok(comes(heard.events > seen), "the other has seen an unmap");
	ok(lands_by_cache(&pair, page, PAGE, LOCAL_AND_REMOTE, &before, &after), "data lands in a page that was mapped anew");
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	raw_remap(page, PAGE);
	is(other_takes(page, PAGE, mode), 0, "after a new mapping the other watches it again");
	not_kept(&pair, "it", page, PAGE);
	is(other_leaves(page, PAGE), 0, "the other ends its watch");
	control(&pair, "then", page, PAGE);
	control(&pair, "memory beside it too", memory, PAGE);
}

/* A region in use must not become idle in memory that the cache does not watch. */
static void other_watches_second(void)
{
	struct ibv_mr *mr;
	int err;

	other_begins();
	control(&pair, "memory that the cache watches", memory, PAGE);
	err = other_takes(memory, PAGE, UFFDIO_REGISTER_MODE_MISSING);
	printf("# NOTE: another userfaultfd that wants memory that the cache watches gets %s\n", err ? strerrorname_np(err) : "yes");
	mr = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
	ok(lands_in(&pair, mr, memory, PAGE), "data lands all the same");
	let_go(mr);
	raw_remap(memory, PAGE);
	ok(lands(&pair, memory, PAGE), "and in a page that was mapped anew");
}

/* Memory that raw system calls map anew must not count as the registered memory. */
static void other_unregisters(void)
{
	static const struct { const char *name; int page, pages, from, count; } cases[] = {
		{ "its very pages", 0, 2, 0, 2 }, { "one of its pages", 4, 2, 5, 1 }, { "all memory around it", 8, 1, 0, 16 },
	};
	struct ibv_mr *old;

	other = open_userfaultfd(0);
	must(other >= 0);
	for (size_t n = 0; n < sizeof(cases) / sizeof(*cases); n++) {
		char *at = memory + cases[n].page * PAGE;
		size_t length = (size_t)cases[n].pages * PAGE;
		int err;

		control(&pair, cases[n].name, at, length);
		err = other_leaves(memory + cases[n].from * PAGE, (size_t)cases[n].count * PAGE);
		printf("# NOTE: the other gets %s\n", err ? strerrorname_np(err) : "yes");
		raw_remap(at, length);
		ok(lands(&pair, at, length) && lands(&pair, at, length), "%s: data lands in the current page", cases[n].name);
		control(&pair, cases[n].name, at, length);
	}
	old = reg_with(memory + 12 * PAGE, PAGE, LOCAL_AND_REMOTE);
	other_leaves(memory + 12 * PAGE, PAGE);
	raw_remap(memory + 12 * PAGE, PAGE);
	ok(lands(&pair, memory + 12 * PAGE, PAGE), "a region in use: data lands in the current page");
	let_go(old);
	ok(lands(&pair, memory + 12 * PAGE, PAGE), "and after its end");
	errno = 0;
	ok(ioctl(other, UFFDIO_UNREGISTER, (void *)8) == -1 && errno == EFAULT, "an unmapped argument: EFAULT");
	ok(ioctl(other, UFFDIO_UNREGISTER, NULL) == -1 && errno == EFAULT, "none: EFAULT");
}

static const struct row rows[] = {
	{ "it watches missing pages", other_watches_first, UFFDIO_REGISTER_MODE_MISSING },
	{ "it watches for writes", other_watches_first, UFFDIO_REGISTER_MODE_WP },
	{ "it wants memory that the cache watches", other_watches_second },
	{ "it watches missing pages, RDMAMR_CACHE=all", other_watches_first, UFFDIO_REGISTER_MODE_MISSING,
	  .flags = PLAIN_CALLS },
	{ "it unregisters memory", other_unregisters },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
