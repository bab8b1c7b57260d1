/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that another userfaultfd of the process watches, as libfabric's monitor does: the kernel
 * gives the cache none of the events, so the cache keeps no region of it. The program does not
 * notice: its registrations just succeed. When the other ends its watch, the cache keeps such
 * memory again; memory beside it, in the same mapping before, was never affected.
 */
#include "../../lib/observe.h"
#include <poll.h>
#include <pthread.h>

static struct pair pair;
static int other = -1;

static int other_takes(void *memory, size_t length, uint64_t mode)
{
	struct uffdio_register registration = {
		.range = { (uintptr_t)memory, length },
		.mode = mode,
	};

	return ioctl(other, UFFDIO_REGISTER, &registration) ? errno : 0;
}

static void other_leaves(void *memory, size_t length)
{
	struct uffdio_range range = { (uintptr_t)memory, length };

	must(ioctl(other, UFFDIO_UNREGISTER, &range) == 0);
}

/* The other monitor: it only reads, so that no unmapping thread waits for it. */
static volatile int events;
static volatile int stop;

static void *other_reads(void *argument)
{
	while (!stop) {
		struct pollfd ready = { .fd = other, .events = POLLIN };
		struct uffd_msg message;

		if (poll(&ready, 1, 50) == 1 && read(other, &message, sizeof(message)) == sizeof(message))
			events++;
	}
	return argument;
}

static void watched_first(const char *name, uint64_t mode)
{
	char *memory = pages(8), *page = memory + 4 * PAGE;
	struct rdmamr_stats before, after;
	int seen;

	is(other_takes(page, PAGE, mode), 0, "%s: another userfaultfd has a page", name);
	before = stats();
	not_kept(&pair, name, page, PAGE);
	is((long long)(stats().bypassed_memory - before.bypassed_memory), 2, "%s: which is counted", name);
	ok(lands_by_cache(&pair, page - PAGE, 3 * PAGE, LOCAL_AND_REMOTE, &before, &after),
	   "%s: data lands in memory that the other watches in part", name);
	ok(lands_by_cache(&pair, page, PAGE, IBV_ACCESS_LOCAL_WRITE, &before, &after), "%s: by local rights too", name);
	either(&pair, "memory beside it", memory, PAGE);
	either(&pair, "memory beside it, again", memory, PAGE);

	/*
	 * The other's events stay its own, even when the cache ends its regions nearby; and the page is
	 * a new one for the cache.
	 */
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	seen = events;
	raw_remap(page, PAGE);
	ok(comes(events > seen), "%s: the other has seen an unmap", name);
	ok(lands_by_cache(&pair, page, PAGE, LOCAL_AND_REMOTE, &before, &after),
	   "%s: data lands in a page that was mapped anew", name);

	/* Neither watches it any more. Once more, and then the other ends its watch. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	raw_remap(page, PAGE);
	is(other_takes(page, PAGE, mode), 0, "%s: after a new mapping the other watches it again", name);
	not_kept(&pair, name, page, PAGE);
	other_leaves(page, PAGE);
	control(&pair, "when the other has ended its watch", page, PAGE);
	control(&pair, "memory beside it too", memory, PAGE);
	must(ibv_flush_relaxed_mr(pair.pd) == 0 && munmap(memory, 8 * PAGE) == 0);
}

/*
 * A region in use when the other takes over: it must not become idle in memory that the cache does
 * not watch.
 */
static void watched_second(void)
{
	char *memory = pages(4);
	struct ibv_mr *mr;
	int err;

	control(&pair, "memory that the cache watches", memory, PAGE);
	err = other_takes(memory, PAGE, UFFDIO_REGISTER_MODE_MISSING);
	printf("# NOTE: another userfaultfd that wants memory that the cache watches gets %s\n",
	       err ? strerrorname_np(err) : "yes");
	mr = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(mr);
	ok(lands_in(&pair, mr, memory, PAGE), "data lands all the same");
	must(deregister_region(mr) == 0);
	raw_remap(memory, PAGE);
	ok(lands(&pair, memory, PAGE), "and in a page that was mapped anew");
	must(munmap(memory, 4 * PAGE) == 0);
}

int main(int argc, char **argv)
{
	pthread_t reader;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	other = open_userfaultfd(UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE);
	must(other >= 0);
	must(pthread_create(&reader, NULL, other_reads, NULL) == 0);
	watched_first("missing pages", UFFDIO_REGISTER_MODE_MISSING);
	if (uffd_features() & UFFD_FEATURE_PAGEFAULT_FLAG_WP)
		watched_first("write protection", UFFDIO_REGISTER_MODE_WP);
	watched_second();
	stop = 1;
	must(pthread_join(reader, NULL) == 0);
	close(other);
	return relaxed_close(&pair);
}
