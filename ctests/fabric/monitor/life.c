/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The monitor over a process's life: unmapped memory is deregistered though nobody asks for it again; a fork changes
 * nothing for the parent, and a child has a cache of its own; the cache ends and starts again with its domains.
 */
#include "../../lib/program.h"
#include "cached.h"
#include "../../lib/reuse.h"
#include <signal.h>
#include <sys/wait.h>

enum { COUNT = 64, LENGTH = 2 * PAGE, MANY = 17000 };

static struct fid_domain *domain;

static uint64_t key_of(char *memory)
{
	struct fid_mr *mr = reg(domain, memory, LENGTH);
	uint64_t key = fi_mr_key(mr);

	must(fi_close(&mr->fid) == 0);
	return key;
}

static bool hits(char *memory)
{
	uint64_t key = key_of(memory);

	return key_of(memory) == key;
}

static void given_back(void)
{
	struct ibv_context *context = last_pd->context;
	char *memory[COUNT], *probe = pages(2);
	int before, after = 0, most;

	key_of(probe);
	before = kernel_regions(context);
	for (int n = 0; n < COUNT; n++) {
		memory[n] = pages(3);
		key_of(memory[n]);
	}
	most = kernel_regions(context);
	is(most - before, COUNT, "the cache keeps %d regions", COUNT);
	for (int n = 0; n < COUNT; n++)
		must(raw_munmap(memory[n], 3 * PAGE) == 0);
	/* The first registration sees the changes, and the next one after the notification ends the regions. */
	for (int tries = 0; tries < 100; tries++) {
		char *other = pages(3);

		key_of(other);
		after = kernel_regions(context);
		must(munmap(other, 3 * PAGE) == 0);
		if (after <= before + 3)
			break;
		usleep(20000);
	}
	ok(after <= before + 3, "unmapped, they are deregistered without a request for them: %d of %d left", after - before,
	   COUNT);
	ok(hits(probe), "memory that was not unmapped is served");
}

/* It ends when it has nothing to notify: it would keep a process whose first thread has called pthread_exit. */
static int monitor_threads(void)
{
	pid_t list[4];

	return threads_named("rdmamr-monitor", list, 4);
}

/* A child that has unmapped its copy when this returns, and lives on. */
static pid_t unmaps(char *memory)
{
	pid_t child = must_fork();
	int status;

	if (!child) {
		munmap(memory, LENGTH);
		raise(SIGSTOP);
		_exit(0);
	}
	must(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
	return child;
}

static void let_end(pid_t child) { must(kill(child, SIGCONT) == 0 && child_status(child) == 0); }

static void beside_a_child(void)
{
	char *memory = pages(2), *gone = pages(2);
	bool served = false;
	uint64_t key, old;
	pid_t child;

	/* On a busy machine a request may meet the cache at work, and the region ends: another child then. */
	for (int children = 0;; children++) {
		int tries = 0;

		do {
			key = key_of(memory);
			usleep(100000);
		} while (key_of(memory) != key && tries++ < 100);
		old = key_of(gone);
		child = unmaps(memory);
		served = key_of(memory) == key;
		if (served || children == 10)
			break;
		let_end(child);
	}
	ok(served, "beside a child that has unmapped its copy: served");
	raw_remap(gone, LENGTH);
	ok(key_of(gone) != old, "and memory that the parent has unmapped is registered anew");
	let_end(child);
	ok(hits(memory) && hits(gone), "after the child's end: served");
}

static int has_cache(void)
{
	char *memory = pages(2);
	uint64_t key;

	domain = open_domain();
	if (!hits(memory))
		return 2;
	key = key_of(memory);
	raw_remap(memory, LENGTH);
	return key_of(memory) == key ? 4 : fi_close(&domain->fid) ? 5 : 0;
}

static void in_a_child(void) { is(in_forked(has_cache), 0, "a child of a process without domains has a cache, and no stale region"); }

/* The watch is no region of a device, though a region of that device had its slot before. */
static void beside_relaxed_regions(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = pages(2), *other = pages(2);

	must(pd);
	must(ibv_dereg_mr_relaxed(ibv_reg_mr_relaxed(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE)) == 0);
	must(ibv_flush_relaxed_mr(pd) == 0);
	ok(hits(other), "after relaxed regions: served");
	is(ibv_dealloc_pd(pd), 0, "their domain ends");
	is(ibv_close_device(context), 0, "and their device is closed");
}

/* Many ranges, each once: the cache drops most of them, and not each version reports that. */
static void many(void)
{
	char *memory = pages(2), *large = untouched((size_t)MANY * PAGE);

	for (size_t n = 0; n < MANY; n++)
		must(fi_close(&reg(domain, large + n * PAGE, 64)->fid) == 0);
	usleep(100000);
	key_of(memory);
	ok(hits(memory), "after %d ranges: served", MANY);
}

int main(void)
{
	char *probe = pages(2), *gone = pages(2);

	open_fabric();
	in_a_child();
	domain = open_domain();
	given_back();
	ok(comes(!monitor_threads()), "the monitor's thread ends");
	beside_a_child();
	is(fi_close(&domain->fid), 0, "the last domain closes");
	domain = open_domain();
	ok(hits(probe), "a new one serves");
	beside_relaxed_regions();
	many();
	must(key_of(gone) && raw_munmap(gone, LENGTH) == 0);
	ok(comes((key_of(probe), monitor_threads())), "a change starts it again");
	is(fi_close(&domain->fid), 0, "the domain closes");
	done_testing();
	fflush(stdout);
	pthread_exit(NULL);
}
