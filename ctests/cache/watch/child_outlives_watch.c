/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A child that a raw clone made has the parent's userfaultfd still open when the parent closes it:
 * memory registered with it would then stop every thread of the parent that unmaps it, until the
 * child ends. Here the children end on request, so a parent that waits for one never finishes.
 */
#include "../../lib/pair_rows.h"

enum { COUNT = 8, SIZE = COUNT * PAGE };

/* One child by fork and one by the raw system call, which runs no handlers. */
static int gate[2];
static pid_t children[2];

static void start_children(void)
{
	must(pipe(gate) == 0);
	fflush(stdout);
	for (int n = 0; n < 2; n++) {
		char byte;

		children[n] = n ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
		must(children[n] >= 0);
		if (children[n])
			continue;
		close(gate[1]);
		_exit(read(gate[0], &byte, 1) != 0);
	}
}

static void end_children(void)
{
	for (int n = 0; n < 2; n++)
		is(waitpid(children[n], NULL, WNOHANG), 0, "child %d was there all the time", n);
	must(close(gate[1]) == 0);
	for (int n = 0; n < 2; n++)
		is(child_status(children[n]), 0, "child %d ends", n);
	must(close(gate[0]) == 0);
}

/* All calls that would wait if the memory were still watched, and no thread read the events. */
static void change(char *at)
{
	must(syscall(SYS_madvise, at, PAGE, MADV_DONTNEED) == 0);
	must(mmap(at + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + PAGE);
	must(mremap(at, SIZE, PAGE, 0) == at);
	must(munmap(at, SIZE) == 0);
}

/* The cache keeps no region for a second where pages were just dropped. */
static bool is_reused(struct ibv_pd *pd, char *at)
{
	struct rdmamr_stats before = stats();

	must(deregister_region(register_region(pd, at, SIZE, LOCAL_AND_REMOTE)) == 0);
	return reused(before, stats());
}

/* The parent closes its only device while the children live, and the next device is used as the first. */
static void device_closed(void)
{
	if (!uffd_features())
		skip_all("userfaultfd is refused here: no memory is watched");
	for (int again = 0; again < 2; again++) {
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ibv_alloc_pd(context);
		char *at[3] = { pages(COUNT), pages(COUNT), pages(COUNT) };

		must(pd);
		for (int n = 0; n < 3; n++)
			ok(comes(is_reused(pd, at[n])), "device %d: a region is reused, so memory is watched", again);
		start_children();
		change(at[0]);
		is(ibv_flush_relaxed_mr(pd), 0, "flushed beside children");
		change(at[1]);
		is(ibv_dealloc_pd(pd) | ibv_close_device(context), 0, "the device is closed beside children");
		change(at[2]);
		end_children();
	}
}

static const struct row rows[] = { { "the device is closed beside children", device_closed, .flags = NO_PAIR } };

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
