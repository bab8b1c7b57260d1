/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fork(2) copies pinned pages for the child. Idle regions end first, so a fork after registrations
 * shares the memory as it does without the cache. Regions in use stay.
 *
 * The device is the stand-in (stub_device.h). Its counts in the child are those of the moment of
 * the fork. On kernels whose io_uring gives pages back only a second later (6.1), the shared memory
 * after a fork proves nothing.
 */
#include <pthread.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { REGIONS = 16, BYTES = 2 << 20, ALL = REGIONS * BYTES, FORKS = 200 };

static char *memory;

static void leave_idle(void)
{
	for (int n = 0; n < REGIONS; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + (long)n * BYTES, BYTES, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
}

/* The part of the memory that this process shares with another, in KiB. */
static long shared(void)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long start = 0, end = 0;
	char line[512];
	long sum = 0, kib;

	must(file);
	while (fgets(line, sizeof(line), file)) {
		if (strchr(line, '-') && sscanf(line, "%lx-%lx ", &start, &end) == 2)
			continue;
		if (sscanf(line, "Shared_Dirty: %ld", &kib) == 1 && start >= (unsigned long)memory &&
		    end <= (unsigned long)memory + ALL)
			sum += kib;
	}
	fclose(file);
	return sum;
}

struct seen {
	long registered, shared_kib;
};

/* A child's view. With `again` it is a child of the child, whose parent has no cache. */
static struct seen seen_by_child(bool again)
{
	struct seen seen = { -1, -1 };
	int from_child[2], status;
	pid_t child;

	must(pipe(from_child) == 0);
	child = fork();
	must(child >= 0);
	if (!child) {
		pid_t grandchild = again ? fork() : 0;

		if (grandchild)
			_exit(waitpid(grandchild, &status, 0) == grandchild ? status != 0 : 1);
		seen = (struct seen){ stub_registered() - stub_deregistered(), shared() };
		_exit(write(from_child[1], &seen, sizeof(seen)) != sizeof(seen));
	}
	close(from_child[1]);
	must(read(from_child[0], &seen, sizeof(seen)) == sizeof(seen));
	close(from_child[0]);
	must(waitpid(child, &status, 0) == child);
	is(status, 0, "the child ends");
	return seen;
}

/* Whether the stand-in's pages are unpinned when a deregistration returns. */
static bool gives_back_at_once(void)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, BYTES, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr(mr) == 0);
	return seen_by_child(false).shared_kib == ALL >> 10;
}

static bool gives_back;

static void idle_ones(bool at_once, bool again)
{
	struct seen seen;

	case_begin("%s, %s", at_once ? "at once after deregistration" : "a while after deregistration",
		   again ? "a child of a child" : "a child");
	leave_idle();
	if (!at_once)
		usleep(300000);
	is(stub_registered() - stub_deregistered(), REGIONS, "before the fork all regions are idle");
	seen = seen_by_child(again);
	is(seen.registered, 0, "none is registered when the child begins");
	if (gives_back)
		is(seen.shared_kib, ALL >> 10, "the child shares the memory");
	case_end();
	leave_idle();
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "the cache goes on");
}

static void one_in_use(void)
{
	struct ibv_mr *mr, *again;
	struct rdmamr_stats before;

	case_begin("a region in use");
	mr = ibv_reg_mr_relaxed(stub_pd(), memory, BYTES, LOCAL_AND_REMOTE);
	must(mr);
	is(seen_by_child(false).registered, 1, "is still registered when the child begins");
	ok(stub_lands(mr), "its data lands in the parent");
	before = stats();
	again = ibv_reg_mr_relaxed(stub_pd(), memory, BYTES, LOCAL_AND_REMOTE);
	is((long long)(stats().hits - before.hits), 1, "and it is shared");
	must(again && ibv_dereg_mr_relaxed(again) == 0 && ibv_dereg_mr_relaxed(mr) == 0);
	is(seen_by_child(false).registered, 0, "until its last user has gone");
	case_end();
}

/* Other threads register and fork. */
static void *registers(void *stop)
{
	while (!*(volatile bool *)stop)
		leave_idle();
	return NULL;
}

static void *forks(void *unused)
{
	for (int n = 0; n < FORKS; n++) {
		pid_t child = fork();
		int status;

		if (!child)
			_exit(0);
		must(waitpid(child, &status, 0) == child && status == 0);
	}
	return unused;
}

static void beside_threads(void)
{
	pthread_t registering, forking[2];
	bool stop = false;

	case_begin("two threads fork while one registers");
	must(pthread_create(&registering, NULL, registers, &stop) == 0);
	for (int n = 0; n < 2; n++)
		must(pthread_create(&forking[n], NULL, forks, NULL) == 0);
	for (int n = 0; n < 2; n++)
		must(pthread_join(forking[n], NULL) == 0);
	stop = true;
	must(pthread_join(registering, NULL) == 0);
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "all have come to their end");
	is(stub_registered() - stub_deregistered(), 0, "and no region is left");
	case_end();
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	memory = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED && madvise(memory, ALL, MADV_NOHUGEPAGE) == 0);
	memset(memory, 1, ALL);
	case_begin("a plain registration");
	gives_back = gives_back_at_once();
	case_end();
	if (!gives_back)
		skip("the shared memory after a fork", "this kernel's io_uring gives pages back late");
	for (int n = 0; n < 4; n++)
		idle_ones(n & 1, n & 2);
	one_in_use();
	beside_threads();
	return done_testing();
}
