/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache asks the service `rdmamr fence` for counters of changes. While they stand, hits make no
 * system call; after each count the next hit asks the kernel. Whatever is wrong with the service or
 * its answer, the cache works as without it. The service and the kernel's counts are a stand-in
 * (fence_stub.h): so this shows the client, and not that the kernel's counts come in time.
 */
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "../../lib/fence_stub.h"
#include "../../lib/stub_rows.h"

enum { HITS = 200 };

static char *page;

/* The number of files in the table of the library's reader. */
static int files_of_reader(void)
{
	char path[64];
	pid_t reader;

	if (threads_named("rdmamr-uffd", &reader, 1) == 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/task/%d/fd", reader);
	return entries(path) - 2;
}

/* Registers the page until it is reused, in a process of two threads. */
static void start(void)
{
	fence_stub_count((enum fence_kind)row->value);
	page = pages(1);
	become_threaded();
	must(hits(page, 2) == 1 && userfaultfds(NULL) == 1);
}

/* So many registrations are hits, and ask the kernel so often. */
static bool are_hits(long count, unsigned long asks, void (*before_each)(void))
{
	unsigned long asked = stats().fence_asked;
	long reused = 0;

	for (long n = 0; n < count; n++) {
		if (before_each)
			before_each();
		reused += hits(page, 1);
	}
	return reused == count && stats().fence_asked - asked == asks;
}

#define all_hits(count, asks, before_each) \
	ok(are_hits(count, asks, before_each), "line %d: %d hits ask %d times", __LINE__, (int)(count), (int)(asks))

/* The machine is busy, and the stand-in's answer took longer than the library waits. */
static bool is_late(void)
{
	double since = seconds_now();

	while (files_of_reader() != 1 + FENCE_FILES) {
		if (files_of_reader() <= 1 && seconds_now() - since > 0.05)
			return true;
		usleep(1000);
	}
	return false;
}

static void start_counted(void)
{
	start();
	if (is_late())
		row_again();
	/* The last hit kept the counters. */
	ok(comes(hits(page, 1) && stats().fence_asked > 0), "the kernel counts");
	all_hits(1, 0, NULL);
}

static void moves_once(void) { atomic_fetch_add(fence_stub.moves, 1); }
static void gap(void) { atomic_fetch_add(fence_stub.gaps, 1); }

/* The fence's ioctl is refused: a hit that asks is none. */
static void *asks_in_vain(void *unused)
{
	hits(page, 1);
	must(filter_calls(SYS_ioctl, 1, (uint32_t)UFFDIO_WRITEPROTECT, SECCOMP_RET_ERRNO | EPERM, 0) == 0);
	all_hits(HITS, 0, NULL);
	moves_once();
	ok(!are_hits(1, 1, NULL), "a hit that asks is none");
	return unused;
}

static void counted(void)
{
	start_counted();
	all_hits(HITS, 0, NULL);
	all_hits(HITS, HITS, moves_once);
	all_hits(HITS, HITS, gap);
	all_hits(HITS, 0, NULL);
	/* A processor has skipped counts: nothing is kept until it counts again. */
	atomic_fetch_add(fence_stub.open, 1);
	gap();
	all_hits(HITS, HITS, NULL);
	atomic_fetch_sub(fence_stub.open, 1);
	all_hits(HITS, 1, NULL);
	/* A wrap. */
	atomic_store(fence_stub.moves, UINT64_MAX);
	all_hits(HITS, 1, NULL);
	moves_once();
	all_hits(HITS, 1, NULL);
	/* A change by a call of the C library is seen by the hooks, counted or not. */
	must(munmap(page, PAGE) == 0);
	fresh_at(page, PAGE);
	hits(page, 2);
	in_thread(asks_in_vain, NULL);
}

/* A raw change: data must land in the page that the program sees. */
static void raw_change(void)
{
	raw_remap(page, PAGE);
	is(hits(page, 1), 0, "memory mapped anew is registered anew");
	ok(comes(hits(page, 1)), "and later reused");
}

static void changes(void)
{
	start_counted();
	for (int n = 0; n < 20; n++) {
		leave_idle(page);
		moves_once();
		raw_change();
	}
}

/* The kernel stops to count, and the reader notices it at the next event. */
static void stops(void)
{
	start_counted();
	fence_stub_count(COUNTS_NOTHING);
	leave_idle(page);
	raw_change();
	/* The counters are read no more. */
	all_hits(HITS, 0, moves_once);
}

/* While a processor skips counts, an event that was not counted proves nothing. */
static void skips(void)
{
	start_counted();
	fence_stub_count(COUNTS_NOTHING);
	atomic_fetch_add(fence_stub.open, 1);
	gap();
	leave_idle(page);
	raw_change();
	atomic_fetch_sub(fence_stub.open, 1);
	all_hits(HITS, 1, NULL);
	all_hits(HITS, HITS, moves_once);
}

static void uncounted(void)
{
	long kind = row->value;

	start();
	ok(kind <= NEVER_ACCEPTS || comes(*fence_stub.asked > 0), "the service is asked, if it can be");
	usleep(30000);
	ok(comes(files_of_reader() == 1), "the reader has none of its files");
	/* An answer that came too late was not judged. */
	if (kind >= SHORT && *fence_stub.heard == 0)
		row_again();
	all_hits(HITS, 0, moves_once);
}

static void by_setting(void)
{
	uncounted();
	is(*fence_stub.asked, 0, "the service is not asked");
}

/* A forked child has no counters, and works as without. */
static int mapped_before;

static int has_none(void)
{
	once(page);
	return maps_with("counters-of-test") == mapped_before - 1 && stats().fence_asked == 0 ? 0 : 1;
}

static void forks(void)
{
	start_counted();
	mapped_before = maps_with("counters-of-test");
	is(in_forked(has_none), 0, "the child has no counters");
	all_hits(HITS, 0, NULL);
}

/* The counters do not make a thread in another table of descriptors hit. */
static void *elsewhere(void *unused)
{
	must(unshare(CLONE_FILES) == 0);
	is(hits(page, 1), 0, "there it does not hit");
	return unused;
}

static void tables_apart(void)
{
	start_counted();
	in_thread(elsewhere, NULL);
	all_hits(HITS, 0, NULL);
}

/* A filter that also applies to the reader kills the process at calls by which the client ends. */
static void filtered(void)
{
	static const int killed[] = { SYS_recvmsg, SYS_pselect6, SYS_userfaultfd };

	start();
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	must(filter_each_in(killed, 3, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC));
	usleep(50000);
	once(page);
	is((long long)stats().fence_asked, 0, "there are no counters");
	row_ends();
}

static void beside_service(void)
{
	fence_stub_inherit();
	fence_stub_serve((enum fence_kind)row->value);
	on_stub();
}

#define UNCOUNTED(kind, words) { words, uncounted, kind },

static const struct row rows[] = {
	{ "hits ask once after each count", counted, SERVES },
	{ "RDMAMR_FENCE=auto", counted, SERVES, .settings = "RDMAMR_FENCE=auto" },
	{ "raw changes are counted and seen", changes, SERVES },
	{ "RDMAMR_FENCE=ioctl", by_setting, SERVES, .settings = "RDMAMR_FENCE=ioctl" },
	FENCE_FAULTS(UNCOUNTED)
	{ "the kernel stops to count", stops, SERVES },
	{ "a processor skips counts", skips, SERVES },
	{ "a child of a process with counters", forks, SERVES },
	{ "a seccomp filter while a service hangs", filtered, NEVER_ANSWERS },
	{ "a thread in another table of descriptors", tables_apart, SERVES },
};

int main(int argc, char **argv)
{
	const char *refused = getenv("CHECK_ROW") ? NULL : fence_stub_open();

	(void)argc;
	if (refused)
		skip_all(refused);
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, beside_service);
}
