/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that the cache does not watch. Near vm.max_map_count the watch, which splits mappings, is
 * not to be had: a region of unwatched memory serves its caller alone. The kernel gives the events
 * of memory to one userfaultfd: the cache leaves another's watch alone, and the program gets EBUSY
 * for no memory but that of regions. Before Linux 6.16 another userfaultfd may unregister memory
 * that the cache watches.
 */
#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "../../lib/stub_rows.h"

/* Whether the program sees the device's writes to each page of the memory, which it registers. */
static bool lands(char *at, size_t count)
{
	struct ibv_mr *mr = reg(at, count * PAGE), page = *mr;
	bool good = true;

	page.length = PAGE;
	for (size_t n = 0; n < count; n++) {
		page.addr = at + n * PAGE;
		good = stub_lands(&page) && good;
	}
	dereg(mr);
	return good;
}

static void limit_is_near(int left)
{
	if (most_mappings() > 300000)
		skip_all("vm.max_map_count is so large that the test would need much memory");
	fill_mappings(NULL, most_mappings() - left);
}

static void not_shared(void)
{
	/* The library counts the mappings by the 64th region at the latest. */
	enum { ROUNDS = 100, UNCOUNTED = 64, FREE = 80 };
	struct rdmamr_stats before;

	limit_is_near(FREE);
	for (int n = 0; n < UNCOUNTED && !stats().bypassed_limit; n++)
		once(pages(1));
	row_rights = (int)row->value;
	before = stats();
	for (int round = 0; round < ROUNDS; round++) {
		char *memory = pages(1);
		struct ibv_mr *first = reg(memory, PAGE), *second;

		raw_remap(memory, PAGE);
		second = reg(memory, PAGE);
		ok(first->lkey != second->lkey, "mapped anew by raw system calls under a region in use, it has two regions");
		ok(stub_lands(second), "data lands in the current page");
		dereg(second);
		dereg(first);
		must(munmap(memory, PAGE) == 0);
	}
	ok(stats().bypassed_limit + stats().bypassed_watch >= before.bypassed_limit + 2 * ROUNDS, "no memory was watched");
	is((long long)stats().idle, (long long)before.idle, "none is cached");
	is(in_device(), (long)before.idle, "the device has no other region left");
}

/* The number of mappings. The cache leaves half of those that are left to the program. */

/* The cache counts the mappings when it starts. */
static void few_left(void)
{
	enum { LEFT = 3000, SCATTERED = 1800, WANTED = 200 };
	const size_t apart = 4 << 20; /* the watch of a region splits its 2 MiB off the mapping */
	char *memory = untouched(SCATTERED * apart);
	static struct ibv_mr *regions[SCATTERED];
	static void *mapped[WANTED];
	int before;

	/* Before Linux 6.17 the kernel never joins parts that were touched apart (docs/limits.md). */
	memory[0] = 1;
	limit_is_near(LEFT);
	before = mappings();
	for (int n = 0; n < SCATTERED; n++)
		regions[n] = reg(memory + (size_t)n * apart, PAGE);
	for (int n = 0; n < WANTED; n++) {
		mapped[n] = mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		ok(mapped[n] != MAP_FAILED, "of %d mappings left, beside %d registrations, the program gets %d", LEFT, SCATTERED, n + 1);
	}
	for (int n = 0; n < SCATTERED; n++) {
		char *page = memory + (size_t)n * apart;

		dereg(regions[n]);
		if (n % 3)
			must((n % 3 == 1 ? madvise(page, PAGE, MADV_DONTNEED) : (int)syscall(SYS_madvise, page, PAGE, MADV_DONTNEED)) == 0);
		once(page);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	for (int n = 0; n < WANTED; n++)
		must(munmap(mapped[n], PAGE) == 0);
	ok(mappings() <= before + SCATTERED / 2, "a flush gives the others back: %d before, %d after", before, mappings());
}

/* /proc/self/maps is the first thread's, and empty from then on. */
static pthread_t first;

static void *other_thread(void *unused)
{
	must_join(first);
	few_left();
	row_ends();
	return unused;
}

static void first_ends(void)
{
	first = pthread_self();
	must_start(other_thread, NULL);
	pthread_exit(NULL);
}

/* Another userfaultfd. It only reads, so that no unmapping thread waits for it. */

static struct event_count other;

static void other_begins(void)
{
	pthread_t reader;

	other.fd = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE);
	must(other.fd >= 0 && pthread_create(&reader, NULL, count_events, &other) == 0);
}

static int other_takes(char *at, size_t length, uint64_t mode)
{
	struct uffdio_register registration = { .range = { (uintptr_t)at, length }, .mode = mode };

	return ioctl(other.fd, UFFDIO_REGISTER, &registration) ? errno : 0;
}

/* The stand-in has an ioctl of its own before the library's. */
static int unregisters(void *range)
{
	int (*after)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");

	return after(other.fd, UFFDIO_UNREGISTER, range) ? errno : 0;
}

static int other_leaves(char *at, size_t length) { return unregisters(&(struct uffdio_range){ (uintptr_t)at, length }); }

/* The program does not notice: its registrations just succeed. */
static void other_watches_first(void)
{
	char *memory = pages(8), *page = memory + 4 * PAGE;
	uint64_t mode = (uint64_t)row->value;
	struct rdmamr_stats before;
	long seen;

	if (mode == UFFDIO_REGISTER_MODE_WP && !(uffd_features() & UFFD_FEATURE_PAGEFAULT_FLAG_WP))
		skip_all("the kernel's userfaultfd has no write protection");
	other_begins();
	is(other_takes(page, PAGE, mode), 0, "another userfaultfd has a page");
	before = stats();
	is(hits(page, 2), 0, "of that the cache keeps no region");
	is((long long)(stats().bypassed_memory - before.bypassed_memory), 2, "which is counted");
	ok(lands(page - PAGE, 3), "data lands in memory that it watches in part");
	leave_idle(memory);
	/* The other's events stay its own, even when the cache ends its regions nearby. */
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	seen = other.events;
	raw_remap(page, PAGE);
	ok(comes(other.events > seen), "the other has seen an unmap");
	once(page);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	raw_remap(page, PAGE);
	is(other_takes(page, PAGE, mode), 0, "after a new mapping the other watches it again");
	is(hits(page, 2), 0, "and again the cache keeps no region");
	is(other_leaves(page, PAGE), 0, "the other ends its watch");
	leave_idle(page);
	served(page, HIT, "then");
}

/* A region in use must not become idle in memory that the cache does not watch. */
static void other_watches_second(void)
{
	char *page = idle();
	struct ibv_mr *mr;

	other_begins();
	other_takes(page, PAGE, UFFDIO_REGISTER_MODE_MISSING);
	mr = reg(page, PAGE);
	ok(stub_lands(mr), "data lands in memory that another userfaultfd has wanted");
	dereg(mr);
	raw_remap(page, PAGE);
	ok(lands(page, 1), "and in a page that was mapped anew");
}

/* Memory that raw system calls map anew must not count as the registered memory. */
static void other_unregisters(void)
{
	static const struct { const char *name; int page, pages, from, count; } cases[] = {
		{ "its very pages", 0, 2, 0, 2 }, { "one of its pages", 4, 2, 5, 1 }, { "all memory around it", 8, 1, 0, 16 },
	};
	char *memory = pages(16);
	struct ibv_mr *old;

	other.fd = open_userfaultfd(0);
	must(other.fd >= 0);
	for (size_t n = 0; n < sizeof(cases) / sizeof(*cases); n++) {
		char *at = memory + cases[n].page * PAGE;
		size_t count = (size_t)cases[n].pages;

		for (int times = 0; times < 3; times++)
			must(lands(at, count));
		other_leaves(memory + cases[n].from * PAGE, (size_t)cases[n].count * PAGE);
		raw_remap(at, count * PAGE);
		ok(lands(at, count) && lands(at, count), "%s: data lands in the current page", cases[n].name);
		leave_idle(at);
	}
	old = reg(memory + 12 * PAGE, PAGE);
	other_leaves(memory + 12 * PAGE, PAGE);
	raw_remap(memory + 12 * PAGE, PAGE);
	ok(lands(memory + 12 * PAGE, 1), "a region in use: data lands in the current page");
	dereg(old);
	ok(lands(memory + 12 * PAGE, 1), "and after its end");
	is(unregisters((void *)8), EFAULT, "an unmapped argument: EFAULT");
	is(unregisters(NULL), EFAULT, "none: EFAULT");
}

/*
 * The program takes fresh memory, where regions of the cache were until just now, and unmaps it. The
 * unmap has returned, so the reader has read the event, and the count comes right after.
 */
static void in_turn(void)
{
	enum { TURNS = 1000 };
	/* Far from where the kernel puts mappings by itself, so that no other mapping lands there. */
	char *const place = (char *)0x10000000000;

	idle();
	other_begins();
	for (int turn = 0; turn < TURNS; turn++) {
		long heard = other.events;

		fresh_at(place, PAGE);
		dereg(reg(place, PAGE));
		if (turn % 2)
			must(ibv_flush_relaxed_mr(stub_pd()) == 0);
		must(munmap(place, PAGE) == 0);
		fresh_at(place, PAGE);
		/* On one processor, too, other threads get a chance to be in the middle of something. */
		sched_yield();
		is(other_takes(place, PAGE, UFFDIO_REGISTER_MODE_WP), 0, "the program gets its own memory");
		must(munmap(place, PAGE) == 0);
		for (int waits = 0; other.events == heard && waits < 1000; waits++)
			sched_yield();
		ok(comes(other.events > heard), "and sees each unmap");
	}
}

/* A GPU's driver may answer for private addresses that have no page (nvidia_peermem). */
static void without_pages(void)
{
	idle_page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(idle_page != MAP_FAILED);
}

static const struct row rows[] = {
	{ "memory without a watch, remote rights", not_shared, LOCAL_AND_REMOTE },
	{ "memory without a watch, local rights", not_shared, IBV_ACCESS_LOCAL_WRITE },
	{ "few mappings are left", few_left },
	{ "few mappings are left, and the first thread has ended", first_ends },
	{ "another userfaultfd watches missing pages", other_watches_first, UFFDIO_REGISTER_MODE_MISSING },
	{ "another userfaultfd watches for writes", other_watches_first, UFFDIO_REGISTER_MODE_WP },
	{ "another userfaultfd wants memory that the cache watches", other_watches_second },
	{ "another userfaultfd unregisters memory", other_unregisters },
	{ "memory without pages", without_pages, .then = PLAIN, .flags = UNPINNED },
	{ "another userfaultfd takes fresh memory in turn with the cache", in_turn, .flags = NO_PINS },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
