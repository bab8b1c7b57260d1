/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the tests of relaxed registration share. The proof against a stale translation is always the same:
 * what the device writes must be in the page that the program sees now, and what the program writes there is
 * what the device reads. The statistics then say whether the pool had used a region again or made one.
 */
#ifndef RELAXED_H
#define RELAXED_H

#include <rdmamr/verbs.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "../device/pair.h"

/* libibverbs has none of these: without the library a program still links, and says so. */
#pragma weak ibv_reg_mr_relaxed
#pragma weak ibv_dereg_mr_relaxed
#pragma weak ibv_flush_relaxed_mr

/* Compiled once more for RDMAMR_CACHE: the pool serves the plain calls, and all else is the same. */
#ifdef PLAIN_CALLS
#define ibv_reg_mr_relaxed(pd, addr, length, access) ibv_reg_mr(pd, addr, length, access)
#define ibv_dereg_mr_relaxed(mr) ibv_dereg_mr(mr)
#endif

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define WP_ASYNC (1ULL << 15) /* UFFD_FEATURE_WP_ASYNC, Linux 6.7 */

enum { WINDOW = 16 * PAGE };

/* The other end of every transfer, plainly registered: what is sent, and what comes back. */
static struct {
	struct ibv_mr *mr;
	char *out, *in;
	int others; /* regions of the open file that are not relaxed ones */
} far;

__attribute__((unused))
static const int kinds[] = { LOCAL_AND_REMOTE, IBV_ACCESS_LOCAL_WRITE };
__attribute__((unused))
static const char *const kind_names[] = { "remote rights", "local rights" };

/*
 * Starts the program anew with a setting of the library, which reads them when it is loaded. First in main.
 * (Most tests want a long RDMAMR_RELAXED_LINGER: a slow machine must not end a region that the test means to
 * find, or to find withdrawn for another reason than its age.)
 */
__attribute__((unused))
static void with_setting(char **argv, const char *name, const char *value)
{
	const char *now = getenv(name);

	if (now && !strcmp(now, value))
		return;
	must(setenv(name, value, 1) == 0);
	execv("/proc/self/exe", argv);
	must(!"execv");
}

/* The features of userfaultfd here; 0 where this process may not have one. */
__attribute__((unused))
static uint64_t uffd_features(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd < 0)
		return 0;
	if (ioctl(fd, UFFDIO_API, &api))
		api.features = 0;
	close(fd);
	return api.features;
}

/* Whether the watch takes memory of every kind, private file mappings and .data among it: with STRICT=1, where the
 * kernel can. */
__attribute__((unused))
static bool watches_files(void)
{
	const char *strict = getenv("RDMAMR_RELAXED_STRICT");

	return strict && !strcmp(strict, "1") && uffd_features() & WP_ASYNC;
}

/* The plain region at the far end, in the domain of the pair. Also after a pair_reconnect: once is enough. */
__attribute__((unused))
static void far_open(struct pair *pair)
{
	far.out = pages(2 * WINDOW / PAGE);
	far.in = far.out + WINDOW;
	far.mr = ibv_reg_mr(pair->pd, far.out, 2 * WINDOW, LOCAL_AND_REMOTE);
	must(far.mr);
	far.others = kernel_regions(pair->context);
}

/* Connects a pair. Without the three calls, or without userfaultfd, there is nothing to test. */
__attribute__((unused))
static void relaxed_open(struct pair *pair)
{
	if (getenv("TAP_COUNT"))
		tap_count = atoi(getenv("TAP_COUNT"));
	must(ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed && ibv_flush_relaxed_mr);
	if (!uffd_features())
		skip_all("userfaultfd is refused here: nothing is kept that could be used again");
	pair_open(pair);
	far_open(pair);
}

/* Ends a test's use of the pair: a flush leaves the kernel with what is not relaxed, and the domain can
 * go. */
__attribute__((unused))
static void relaxed_end(struct pair *pair)
{
	is(ibv_flush_relaxed_mr(pair->pd), 0, "at the end: flushed");
	is(stats().idle, 0, "at the end: nothing is idle");
	is(kernel_regions(pair->context), far.others, "at the end: the kernel has no relaxed region");
	must(ibv_dereg_mr(far.mr) == 0);
	must(munmap(far.out, 2 * WINDOW) == 0);
	pair_close(pair);
	is(stats().live, 0, "at the end: no region is left");
}

/* Likewise, and ends the program: return relaxed_close(&pair). */
__attribute__((unused))
static int relaxed_close(struct pair *pair)
{
	relaxed_end(pair);
	return done_testing();
}

/* Runs the program once more, with another setting, as the second part of the same report. After
 * relaxed_end. */
__attribute__((unused))
static void go_on_with(char **argv, const char *name, const char *value)
{
	char count[16];

	snprintf(count, sizeof(count), "%d", tap_count);
	must(setenv("TAP_COUNT", count, 1) == 0);
	with_setting(argv, name, value);
	must(!"the setting is new");
}

/* Fresh private memory of zeros at an address that is free. */
__attribute__((unused))
static void fresh_at(void *address, size_t length)
{
	must(mmap(address, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
		  -1,
		  0) == address);
}

/* A place where nothing has been in this process, and with which the pool cannot know anything to be
 * wrong. */
__attribute__((unused))
static char *new_place(size_t length)
{
	static uintptr_t next = (uintptr_t)1 << 44;
	char *place = (char *)next;

	next += (length + (4 << 20)) & ~(uintptr_t)((2 << 20) - 1);
	return place;
}

/* A pattern that no other call makes, and that no page of zeros has. */
static void fill(char *memory, size_t length)
{
	static unsigned int seed;

	seed = seed * 1103515245 + 12345;
	for (size_t n = 0; n < length; n++)
		memory[n] = (char)(((seed >> 16) + n * 31 + n / 251) | 1);
}

static int status_is_good(int status, const char *what)
{
	if (status != IBV_WC_SUCCESS)
		printf("# %s: %s\n", what,
		       status < 0 ? "not taken, or not answered" : ibv_wc_status_str(status));
	return status == IBV_WC_SUCCESS;
}

/* One transfer each way. Remote: by the region's rkey, from the far end; else by its lkey, to the far end. */
static int piece_lands(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length, bool remote)
{
	uint64_t there = (uintptr_t)memory, in = (uintptr_t)far.in, out = (uintptr_t)far.out;

	fill(far.out, length);
	if (!status_is_good(remote ? pair_write(pair, far.mr, far.out, length, there, mr->rkey) :
				     pair_read(pair, mr, memory, length, out,
					       far.mr->rkey), "the device writes"))
		return 0;
	/* Read back too: it tells a write to another page from no write, and on iWARP comes after the
	 * write. */
	memset(far.in, 0, length);
	if (remote &&
	    !status_is_good(pair_read(pair, far.mr, far.in, length, there, mr->rkey), "it reads back"))
		return 0;
	if (memcmp(memory, far.out, length)) {
		printf("# STALE: what the device wrote is not in the program's page%s\n",
		       remote && !memcmp(far.in, far.out, length) ? ", but in another" : "");
		return 0;
	}
	fill(memory, length);
	memset(far.in, 0, length);
	if (!status_is_good(remote ? pair_read(pair, far.mr, far.in, length, there, mr->rkey) :
				     pair_write(pair, mr, memory, length, in,
						far.mr->rkey), "the device reads"))
		return 0;
	/* On iWARP a write is complete when it is sent; what is read behind it is answered later. */
	if (!remote && pair->iwarp)
		pair_read(pair, far.mr, far.out, 8, in, far.mr->rkey);
	if (memcmp(memory, far.in, length)) {
		printf("# STALE: what the device reads is not what the program wrote\n");
		return 0;
	}
	return 1;
}

static int all_lands(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length, bool remote)
{
	size_t piece = length <= 4 * WINDOW ? WINDOW : PAGE;
	size_t step = length <= 4 * WINDOW ? WINDOW : length / 16;

	for (size_t at = 0; at < length; at += step) {
		if (!piece_lands(pair, mr, memory + at, piece < length - at ? piece : length - at, remote))
			return 0; /* it has said why */
	}
	return length <= 4 * WINDOW || piece_lands(pair, mr, memory + length - piece, piece, remote);
}

/*
 * Whether data lands in the page that the program sees, both ways, by the region's rkey (it needs remote
 * write and read). All of the memory up to 256 KiB, some pages of more. Changes the memory.
 */
__attribute__((unused))
static int lands_in(struct pair *pair, const struct ibv_mr *mr, void *memory, size_t length)
{
	return all_lands(pair, mr, memory, length, true);
}

/* Likewise by its lkey (it needs local write). */
__attribute__((unused))
static int lands_by_lkey(struct pair *pair, const struct ibv_mr *mr, void *memory, size_t length)
{
	return all_lands(pair, mr, memory, length, false);
}

static int lands_with(struct pair *pair, void *memory, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair->pd, memory, length, access);
	int good, err;

	if (!mr) {
		printf("# ibv_reg_mr_relaxed: %s\n", strerror(errno));
		return 0;
	}
	good = mr->addr == memory && mr->length == length && mr->pd == pair->pd;
	if (!good)
		printf("# the region does not describe what was asked for\n");
	good = all_lands(pair, mr, memory, length, access & IBV_ACCESS_REMOTE_WRITE) && good;
	err = ibv_dereg_mr_relaxed(mr);
	if (err)
		printf("# ibv_dereg_mr_relaxed: %s\n", strerror(err));
	return good && !err;
}

/* Registers the memory relaxed with all remote rights, moves data both ways, deregisters. 1 if all was
 * right. */
__attribute__((unused))
static int lands(struct pair *pair, void *memory, size_t length)
{
	return lands_with(pair, memory, length, LOCAL_AND_REMOTE);
}

/* Likewise with local rights only. */
__attribute__((unused))
static int lands_local(struct pair *pair, void *memory, size_t length)
{
	return lands_with(pair, memory, length, IBV_ACCESS_LOCAL_WRITE);
}

__attribute__((unused))
static uint64_t bypassed(const struct rdmamr_stats *now)
{
	return now->bypassed_access + now->bypassed_device + now->bypassed_memory + now->bypassed_watch +
	       now->bypassed_fork + now->bypassed_limit + now->bypassed_busy;
}

/* Whether the one relaxed registration between the two was served by a region that was there. */
__attribute__((unused))
static bool reused(struct rdmamr_stats before, struct rdmamr_stats after)
{
	return after.hits == before.hits + 1 && after.reg_kernel == before.reg_kernel &&
	       after.misses == before.misses && bypassed(&after) == bypassed(&before);
}

/* Whether it made a region in the kernel, in the pool or past it. */
__attribute__((unused))
static bool made_anew(struct rdmamr_stats before, struct rdmamr_stats after)
{
	return after.hits == before.hits && after.reg_kernel == before.reg_kernel + 1;
}

/* Waits until no more regions end: those whose memory has changed are idle until the pool's thread comes by. */
__attribute__((unused))
static void settle(void)
{
	unsigned long long ended;

	do {
		ended = stats().dereg_kernel;
		usleep(500000);
	} while (stats().dereg_kernel != ended);
}

__attribute__((unused))
static void show(struct rdmamr_stats before, struct rdmamr_stats after)
{
#define SHOW(field)                                                            \
	if (after.field != before.field)                                       \
	printf(", %s %+lld", #field, (long long)(after.field - before.field))
	printf("# statistics");
	SHOW(hits);
	SHOW(misses);
	SHOW(shared);
	SHOW(idle);
	SHOW(reg_kernel);
	SHOW(reg_failed);
	SHOW(dereg_kernel);
	SHOW(flushed_watermark);
	SHOW(flushed_linger);
	SHOW(flushed_pressure);
	SHOW(flushed_hook);
	SHOW(flushed_event);
	SHOW(flushed_fence);
	SHOW(flushed_stamp);
	SHOW(stale_avoided_hook);
	SHOW(stale_avoided_event);
	SHOW(stale_avoided_fence);
	SHOW(stale_avoided_stamp);
	SHOW(bypassed_access);
	SHOW(bypassed_device);
	SHOW(bypassed_memory);
	SHOW(bypassed_watch);
	SHOW(bypassed_fork);
	SHOW(bypassed_limit);
	SHOW(bypassed_busy);
	printf("\n");
#undef SHOW
}

/* Runs a function in a thread of its own, to its end: from then on the library must expect other threads. */
__attribute__((unused))
static void in_thread(void *(*function)(void *), void *argument)
{
	pthread_t thread;

	must(pthread_create(&thread, NULL, function, argument) == 0);
	must(pthread_join(thread, NULL) == 0);
}

/*
 * The control case, and what leaves the pool an idle region of the memory: registered twice with nothing in
 * between, the second time is a hit. What was done to the memory before may still be on its way to the pool,
 * and where pages were just dropped nothing is kept for a second: so it has tries for two.
 */
__attribute__((unused))
static int control_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	struct rdmamr_stats before, after;
	int good = 1, tries;

	for (tries = 0; tries < 10; tries++) {
		before = stats();
		good = lands_with(pair, memory, length, access) && good;
		after = stats();
		if (tries && (!good || reused(before, after)))
			break;
		if (tries)
			usleep(tries * 50000);
	}
	if (tries == 10)
		show(before, after);
	return ok(good && tries < 10, "%s: unchanged, the region is used again", name);
}

__attribute__((unused))
static int control(struct pair *pair, const char *name, void *memory, size_t length)
{
	return control_with(pair, name, memory, length, LOCAL_AND_REMOTE);
}

/* The same of memory that the watch cannot see all of: nothing is kept of it. What was mapped by a system call
 * is kept once, until the library looks at it when it would be used again; that region ends a moment later. */
__attribute__((unused))
static int not_kept(struct pair *pair, const char *name, void *memory, size_t length)
{
	struct rdmamr_stats before, after;
	int good = 1, idle = (int)stats().idle, made = 1;

	for (int round = 0; round < 2; round++) {
		before = stats();
		good = lands(pair, memory, length) && good;
		after = stats();
		made = made_anew(before, after) && made;
	}
	if (!made)
		show(before, after);
	for (int tries = 0; tries < 200 && (int)stats().idle > idle; tries++)
		usleep(10000);
	return ok(good && made && (int)stats().idle <= idle, "%s: nothing is kept of such memory", name);
}

/* After a change: data lands where the program sees it, by a region that was made now. */
__attribute__((unused))
static int anew_with(struct pair *pair, const char *name, void *memory, size_t length, int access)
{
	struct rdmamr_stats before = stats(), after;
	int good = lands_with(pair, memory, length, access), made;

	after = stats();
	made = made_anew(before, after);
	if (!made)
		show(before, after);
	return ok(good && made, "%s: registered anew, and data lands in the page of now", name);
}

__attribute__((unused))
static int anew(struct pair *pair, const char *name, void *memory, size_t length)
{
	return anew_with(pair, name, memory, length, LOCAL_AND_REMOTE);
}

/* After what leaves the pages where they are: data lands; a hit or not, both are right. */
__attribute__((unused))
static int either(struct pair *pair, const char *name, void *memory, size_t length)
{
	struct rdmamr_stats before = stats(), after;
	int good = lands(pair, memory, length);

	after = stats();
	return ok(good && (reused(before, after) || made_anew(before, after)),
		  "%s: data lands in the page of now (%s)",
		  name, reused(before, after) ? "used again" : "registered anew");
}

/* After what must not cost a registration: data lands, by the region that was there. */
__attribute__((unused))
static int still(struct pair *pair, const char *name, void *memory, size_t length)
{
	struct rdmamr_stats before = stats(), after;
	int good = lands(pair, memory, length), hit;

	after = stats();
	hit = reused(before, after);
	if (!hit)
		show(before, after);
	return ok(good && hit, "%s: the region is used again, and data lands in the page of now", name);
}

#endif
