/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A registration cache on top of the relaxed calls, as libfabric's is: it holds regions that its
 * own users have released, and has a userfaultfd and a monitor of its own to see unmaps. Only one
 * of the two can watch a mapping: the first to register it with userfaultfd. The other must do
 * without. Both caches must stay right in either case, and the statistics must count the regions
 * that each of them holds.
 */
#include <poll.h>
#include "../../lib/pair_rows.h"

enum { BUFFERS = 12, BUFFER = 4 * PAGE, ROUNDS = 400 };

/* The cache: regions by their exact range. One lock, as libfabric's. */
struct cached {
	char *memory;
	struct ibv_mr *mr;
	int users;
	bool watched, dead;
};

static struct {
	pthread_mutex_t lock;
	pthread_t monitor;
	int fd, hits, misses, unwatched, invalidated;
	bool watch_first;
	volatile int stop;
	struct cached entries[BUFFERS];
} cache = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool cache_watches(char *memory)
{
	struct uffdio_register registration = {
		.range = { (uintptr_t)memory, BUFFER },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	return ioctl(cache.fd, UFFDIO_REGISTER, &registration) == 0;
}

static void cache_ends(struct cached *entry)
{
	must(deregister_region(entry->mr) == 0);
	memset(entry, 0, sizeof(*entry));
}

static void cache_invalidates(uint64_t start, uint64_t end)
{
	for (int n = 0; n < BUFFERS; n++) {
		struct cached *entry = &cache.entries[n];

		if (entry->mr && (uintptr_t)entry->memory < end && (uintptr_t)entry->memory + BUFFER > start) {
			entry->dead = true;
			cache.invalidated++;
		}
	}
}

/*
 * Reads with the lock held, so that a lookup after an unmap has returned comes after the events
 * were read.
 */
static void *cache_monitor(void *argument)
{
	while (!cache.stop) {
		struct pollfd ready = { .fd = cache.fd, .events = POLLIN };
		struct uffdio_range page = { .len = PAGE };
		struct uffd_msg message;

		if (poll(&ready, 1, 20) < 1)
			continue;
		pthread_mutex_lock(&cache.lock);
		if (read(cache.fd, &message, sizeof(message)) == sizeof(message))
			switch (message.event) {
			case UFFD_EVENT_PAGEFAULT: /* the program touches memory that it has discarded: it shall go on */
				page.start = message.arg.pagefault.address & ~(PAGE - 1ULL);
				cache_invalidates(page.start, page.start + PAGE);
				must(ioctl(cache.fd, UFFDIO_UNREGISTER, &page) == 0);
				break;
			case UFFD_EVENT_REMAP:
				cache_invalidates(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
				break;
			default:
				cache_invalidates(message.arg.remove.start, message.arg.remove.end);
			}
		pthread_mutex_unlock(&cache.lock);
	}
	return argument;
}

static struct cached *cache_get(char *memory)
{
	struct cached *entry = NULL;

	pthread_mutex_lock(&cache.lock);
	for (int n = 0; n < BUFFERS; n++) {
		struct cached *there = &cache.entries[n];

		if (there->mr && there->dead && !there->users)
			cache_ends(there);
		if (there->mr && there->memory == memory && !there->dead)
			entry = there;
	}
	if (entry) {
		cache.hits++;
	} else {
		for (int n = 0; n < BUFFERS && !entry; n++)
			if (!cache.entries[n].mr)
				entry = &cache.entries[n];
		must(entry);
		entry->memory = memory;
		entry->watched = cache.watch_first && cache_watches(memory);
		entry->mr = register_region(pair.pd, memory, BUFFER, LOCAL_AND_REMOTE);
		must(entry->mr);
		entry->watched = entry->watched || cache_watches(memory);
		cache.misses++;
		cache.unwatched += !entry->watched;
	}
	entry->users++;
	pthread_mutex_unlock(&cache.lock);
	return entry;
}

/* This cache keeps no memory that is not watched. */
static void cache_put(struct cached *entry)
{
	pthread_mutex_lock(&cache.lock);
	if (!--entry->users && (!entry->watched || entry->dead))
		cache_ends(entry);
	pthread_mutex_unlock(&cache.lock);
}

static int cache_holds(void)
{
	int count = 0;

	for (int n = 0; n < BUFFERS; n++)
		count += cache.entries[n].mr != NULL;
	return count;
}

/* Buffers that come and go at few addresses, by every way; each use moves data. */
static int used(char *const *buffers, unsigned int *random)
{
	char *memory = buffers[(unsigned int)rand_r(random) % BUFFERS];
	struct cached *entry;
	int good;

	switch ((unsigned int)rand_r(random) % 40) {
	case 0 ... 3: remap(memory, BUFFER); break;
	case 4 ... 7: raw_remap(memory, BUFFER); break;
	case 8: must(syscall(SYS_madvise, memory, BUFFER, MADV_DONTNEED) == 0); break;
	case 9: must(madvise(memory, BUFFER, MADV_DONTNEED) == 0); break;
	}
	/* Mode MISSING makes the kernel refuse memory that the program has not touched. */
	for (int n = 0; n < BUFFER; n += PAGE)
		memory[n] = 1;
	entry = cache_get(memory);
	good = lands_in(&pair, entry->mr, memory, BUFFER);
	cache_put(entry);
	return good;
}

enum { WATCHES_FIRST = 1, IN_A_ROW = 2 };

static void both_caches(void)
{
	char *buffers[BUFFERS], *area = pages(BUFFERS * BUFFER / PAGE);
	struct rdmamr_stats before, after;
	unsigned int random = 1;
	int stale = 0;

	for (int n = 0; n < BUFFERS; n++) {
		buffers[n] = row->value & IN_A_ROW ? area + n * BUFFER : pages(BUFFER / PAGE + 1);
		if (!(row->value & IN_A_ROW))
			must(mprotect(buffers[n] + BUFFER, PAGE, PROT_NONE) == 0);
	}
	cache.fd = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE);
	cache.watch_first = row->value & WATCHES_FIRST;
	must(cache.fd >= 0 && pthread_create(&cache.monitor, NULL, cache_monitor, NULL) == 0);
	before = stats();
	for (int round = 0; round < ROUNDS; round++)
		stale += !used(buffers, &random);
	after = stats();
	is(stale, 0, "data always landed in %d uses", ROUNDS);
	printf("# the one on top had %d hits, %d misses, %d not watched, %d invalidated\n", cache.hits, cache.misses,
	       cache.unwatched, cache.invalidated);
	show(before, after);
	is((long long)((after.hits - before.hits) + (after.reg_kernel - before.reg_kernel)), cache.misses,
	   "the misses of the one on top came to the cache");
	ok(cache.hits > 0 || cache.unwatched == cache.misses, "the one on top hits, unless it may watch nothing");
	is((long long)after.live, 1 + cache_holds(), "in use are the far end's region and those that the one on top holds");
	settle();
	is(kernel_regions(pair.context), 1 + cache_holds() + (int)stats().idle, "and the kernel has these, and the idle ones");
	ok(pinned() >= 2 * WINDOW / PAGE + cache_holds() * BUFFER / PAGE, "all of it is pinned");
	for (int n = 0; n < BUFFERS; n++)
		if (cache.entries[n].mr)
			cache_ends(&cache.entries[n]);
	cache.stop = 1;
	must(pthread_join(cache.monitor, NULL) == 0 && close(cache.fd) == 0);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), 1, "when both have released all, the kernel has the far end's");
	control_later(&pair, "the cache alone", area, PAGE);
}

static const struct row rows[] = {
	{ "the one on top watches first, buffers apart", both_caches, WATCHES_FIRST },
	{ "the cache watches first, buffers apart", both_caches, 0 },
	{ "the one on top watches first, buffers in a row", both_caches, WATCHES_FIRST | IN_A_ROW },
	{ "the cache watches first, buffers in a row", both_caches, IN_A_ROW },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
