/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Idle regions in a cgroup. With nine of ten objects registered and deregistered, the program finds
 * room for other objects of the device. With 300 MiB of memory, a program that allocates and frees
 * buffers of 100 MiB needs hardly more than without the cache. With as many huge pages as one
 * buffer has, each new buffer gets them. With no thread left, registrations succeed, and are reused
 * when there is one.
 *
 * Runs only in the machine of vm/, where the test may change the cgroups.
 */
#include <sys/mount.h>
#include <sys/stat.h>
#include "../../lib/observe.h"

#define ROOT "/sys/fs/cgroup"
#define GROUP ROOT "/limits"
enum { OBJECTS = 10, BUFFER = 100 << 20, HUGE_BUFFER = 8 << 20, ROUNDS = 10 };

static bool put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return done;
}

static long long number_in(const char *path)
{
	FILE *file = fopen(path, "re");
	long long number = -1;

	if (!file || fscanf(file, "%lld", &number) != 1)
		number = -1;
	if (file)
		fclose(file);
	return number;
}

static void enter(bool inside)
{
	must(put(inside ? GROUP "/cgroup.procs" : ROOT "/cgroup.procs", "0"));
}

/* Objects: in a group that allows the device ten. */
static void objects(void)
{
	struct ibv_context *context;
	struct ibv_mr *regions[OBJECTS - 1];
	struct ibv_pd *pd, *other;
	struct ibv_cq *cq;
	char *memory = pages(OBJECTS), limit[128];

	snprintf(limit, sizeof(limit), "%s hca_object=%d", getenv("CHECK_DEVICE"), OBJECTS);
	must(put(GROUP "/rdma.max", limit));
	enter(true);
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	for (int relaxed = 0; relaxed < 2; relaxed++) {
		const char *name = relaxed ? "relaxed calls" : "RDMAMR_CACHE=all";

		for (int at_once = 0; at_once < 2; at_once++) {
			int failed = 0;

			for (int n = 0; n < OBJECTS - 1; n++) {
				/* RDMAMR_CACHE serves a range that is registered again. */
				regions[n] = relaxed ? NULL : ibv_reg_mr(pd, memory + n * PAGE, PAGE, LOCAL_AND_REMOTE);
				failed += !relaxed && !regions[n];
				must(!regions[n] || ibv_dereg_mr(regions[n]) == 0);
				regions[n] = relaxed ? ibv_reg_mr_relaxed(pd, memory + n * PAGE, PAGE, LOCAL_AND_REMOTE) :
						       ibv_reg_mr(pd, memory + n * PAGE, PAGE, LOCAL_AND_REMOTE);
				failed += !regions[n];
				if (!at_once)
					must(ibv_dereg_mr(regions[n]) == 0);
			}
			for (int n = 0; at_once && n < OBJECTS - 1; n++)
				must(ibv_dereg_mr(regions[n]) == 0);
			is(failed, 0, "%s: nine registrations, %s", name, at_once ? "at once" : "in turn");
			cq = ibv_create_cq(context, 1, NULL, NULL, 0);
			ok(!!cq, "%s: after that a completion queue", name);
			other = ibv_alloc_pd(context);
			ok(!!other, "%s: and a protection domain", name);
			must((!cq || ibv_destroy_cq(cq) == 0) && (!other || ibv_dealloc_pd(other) == 0));
			/* The cache's threads may be waiting for a processor. */
			for (int wait = 0; wait < 500 && stats().idle > 1; wait++)
				usleep(10000);
			ok(stats().idle <= 1, "%s: at most an eighth of the rest is idle: %d", name, (int)stats().idle);
		}
	}
	for (int n = 0; n < OBJECTS - 1; n++) {
		regions[n] = ibv_reg_mr(pd, memory + n * PAGE, PAGE, LOCAL_AND_REMOTE);
		must(regions[n]);
	}
	errno = 0;
	ok(!ibv_reg_mr(pd, memory + (OBJECTS - 1) * PAGE, PAGE, LOCAL_AND_REMOTE) && errno == EAGAIN, "a tenth region: EAGAIN");
	ok(strstr(rdmamr_last_reason(), "hca_object=10") != NULL, "with the limit: %s", rdmamr_last_reason());
	for (int n = 0; n < OBJECTS - 1; n++)
		must(ibv_dereg_mr(regions[n]) == 0);
	is(ibv_dealloc_pd(pd), 0, "the domain ends");
	is(ibv_close_device(context), 0, "the device is closed");
	enter(false);
}

/* Memory: rounds of a buffer that is mapped, filled, registered, deregistered and unmapped. */
static void rounds(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);

	must(pd);
	for (int n = 0; n < ROUNDS; n++) {
		char *memory = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_mr *mr;

		must(memory != MAP_FAILED);
		memset(memory, n, BUFFER);
		mr = ibv_reg_mr(pd, memory, BUFFER, IBV_ACCESS_LOCAL_WRITE);
		must(mr && ibv_dereg_mr(mr) == 0 && munmap(memory, BUFFER) == 0);
	}
	_exit(0);
}

/* The group's highest use of memory in MiB while the rounds run with that setting. */
static long peak(const char *cache)
{
	const char *settings[] = { cache, NULL };
	long long bytes;

	must(rmdir(GROUP) == 0 && mkdir(GROUP, 0755) == 0);
	must(put(GROUP "/memory.max", "314572800"));
	put(GROUP "/memory.swap.max", "0");
	enter(true);
	is(once_more("rounds", settings), 0, "%s: all rounds in 300 MiB", cache);
	enter(false);
	bytes = number_in(GROUP "/memory.peak");
	must(bytes > BUFFER);
	return (long)(bytes >> 20);
}

/* Huge pages: a buffer of all that the group may have, mapped anew each round. */
static void huge_rounds(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_device());

	must(pd);
	for (int n = 0; n < ROUNDS; n++) {
		char *memory = mmap(NULL, HUGE_BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		struct ibv_mr *mr;

		must(memory != MAP_FAILED);
		memset(memory, n, HUGE_BUFFER);
		mr = ibv_reg_mr(pd, memory, HUGE_BUFFER, IBV_ACCESS_LOCAL_WRITE);
		must(mr && ibv_dereg_mr(mr) == 0 && munmap(memory, HUGE_BUFFER) == 0);
	}
	_exit(0);
}

static void huge_pages(void)
{
	char limit[32];

	if (!put("/proc/sys/vm/nr_hugepages", "16") || access(GROUP "/hugetlb.2MB.max", W_OK)) {
		skip("huge pages", "no controller of huge pages");
		return;
	}
	snprintf(limit, sizeof(limit), "%d", HUGE_BUFFER);
	must(put(GROUP "/hugetlb.2MB.max", limit));
	enter(true);
	is(once_more("huge", NULL), 0, "a buffer of all huge pages that the group may have, %d times", ROUNDS);
	enter(false);
}

/* Threads: the group may have no more processes than it has. */
static void few_threads(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	char *memory = pages(1);
	int again = 0;

	must(pd && put(GROUP "/pids.max", "1"));
	for (int n = 0; n < ROUNDS; n++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
	again = (int)stats().hits;
	must(put(GROUP "/pids.max", "max"));
	for (int n = 0; n < 300 && stats().hits == 0; n++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr(mr) == 0);
		usleep(100000);
	}
	_exit(again == 0 && stats().hits > 0 ? 0 : 1);
}

static void threads(void)
{
	if (access(GROUP "/pids.max", W_OK)) {
		skip("threads", "no controller of processes");
		return;
	}
	/* The started program is the group's only process. */
	must(put(GROUP "/pids.max", "max"));
	is(once_more("threads", NULL), 0, "with no thread left registrations succeed and none is reused, until there is one");
}

int main(int argc, char **argv)
{
	long without, with;

	if (argc > 1 && !strcmp(argv[1], "huge"))
		huge_rounds();
	if (argc > 1 && !strcmp(argv[1], "threads")) {
		enter(true);
		few_threads();
	}
	if (argc > 1)
		rounds();
	if (!getenv("VM"))
		skip_all("only in the machine of vm/: the cgroups are changed");
	with_setting(argv, "RDMAMR_CACHE", "all");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (mount("none", ROOT, "cgroup2", 0, NULL))
		skip_all("no cgroup2");
	if (!put(ROOT "/cgroup.subtree_control", "+rdma +memory +hugetlb +pids"))
		skip_all("no controller of rdma, memory, hugetlb or pids");
	must(mkdir(GROUP, 0755) == 0);
	objects();
	without = peak("RDMAMR_CACHE=off");
	with = peak("RDMAMR_CACHE=all");
	ok(with * 10 <= without * 12, "at most 1.2 times the memory: %ld MiB, %ld without", with, without);
	must(rmdir(GROUP) == 0 && mkdir(GROUP, 0755) == 0);
	huge_pages();
	threads();
	must(rmdir(GROUP) == 0 && umount2(ROOT, MNT_DETACH) == 0);
	return done_testing();
}
