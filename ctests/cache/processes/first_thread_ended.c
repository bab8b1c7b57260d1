/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The first thread of a program has ended by pthread_exit: from then on /proc/self/maps, which is
 * that thread's, opens and is empty. Regions that the other threads register in shared memory are
 * not reused all the same, and the cache sees the number of the process's mappings: it leaves the
 * program those that it needs.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { SIZE = 4 * PAGE, ROUNDS = 20, LEFT = 3000, SCATTERED = 1800, WANTED = 200 };

/* The watch of a region splits its 2 MiB off the mapping. */
static const size_t APART = 4 << 20;
static bool plain;
static pthread_t first;

static struct ibv_mr *reg(void *memory, size_t length)
{
	struct ibv_mr *mr = plain ? ibv_reg_mr(stub_pd(), memory, length, LOCAL_AND_REMOTE) :
				    ibv_reg_mr_relaxed(stub_pd(), memory, length, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static void dereg(struct ibv_mr *mr)
{
	must((plain ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) == 0);
}

/* A plain registration that bypassed the cache, since its range was new, does not count. */
static bool lands(void *memory, size_t length)
{
	struct rdmamr_stats before;
	bool good = true;

	do {
		struct ibv_mr *mr;

		before = stats();
		mr = reg(memory, length);
		good = stub_lands(mr) && good;
		dereg(mr);
	} while (good && stats().bypassed_first != before.bypassed_first);
	return good;
}

static void shared_memory(void)
{
	int fd = memfd_create("memory", MFD_CLOEXEC), stale = 0;
	char *memory = new_place(SIZE);

	must(fd >= 0 && ftruncate(fd, SIZE) == 0);
	must(syscall(SYS_mmap, memory, (long)SIZE, (long)(PROT_READ | PROT_WRITE), (long)(MAP_SHARED | MAP_FIXED_NOREPLACE),
		     (long)fd, 0L) == (long)memory);
	for (int round = 0; round < ROUNDS; round++) {
		stale += !lands(memory, SIZE);
		stale += !lands(memory, SIZE);
		must(ftruncate(fd, 0) == 0 && ftruncate(fd, SIZE) == 0);
		stale += !lands(memory, SIZE);
	}
	is(stale, 0, "shared memory cut by ftruncate: data lands in the current page, in %d rounds", ROUNDS);
	must(munmap(memory, SIZE) == 0 && close(fd) == 0);
}

static void private_memory(void)
{
	char *memory = pages(SIZE / PAGE);
	struct rdmamr_stats before;

	must(lands(memory, SIZE) && lands(memory, SIZE));
	before = stats();
	ok(lands(memory, SIZE) && stats().hits == before.hits + 1, "private memory is reused");
	must(munmap(memory, SIZE) == 0);
}

/* Makes mappings until that many are left: each second page has other rights. */
static void crowd(int left)
{
	int count = most_mappings() - left - mappings();
	char *memory = mmap(NULL, ((size_t)count + 1) * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(count > 0 && memory != MAP_FAILED);
	for (int n = 0; n < count; n += 2)
		must(mprotect(memory + (size_t)n * PAGE, PAGE, PROT_READ) == 0);
}

static void few_mappings_left(void)
{
	static struct ibv_mr *regions[SCATTERED];
	char *memory;
	int refused = 0;

	if (most_mappings() > 1 << 20) {
		skip("few mappings are left", "vm.max_map_count is very high here");
		return;
	}
	memory = mmap(NULL, SCATTERED * APART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		      0);
	must(memory != MAP_FAILED);
	crowd(LEFT);
	for (int n = 0; n < SCATTERED; n++)
		regions[n] = reg(memory + (size_t)n * APART, PAGE);
	for (int n = 0; n < WANTED; n++) {
		void *mapped = mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				    -1, 0);

		refused += mapped == MAP_FAILED;
	}
	is(refused, 0, "of %d mappings left, beside %d registrations, the program gets %d", LEFT, SCATTERED, WANTED);
	for (int n = 0; n < SCATTERED; n++)
		dereg(regions[n]);
}

static void *other(void *argv)
{
	char *memory;

	must(pthread_join(first, NULL) == 0);
	/* The cache counts the mappings when it starts. */
	if (!getenv("MAPPINGS")) {
		few_mappings_left();
		go_on_with(argv, "MAPPINGS", "many");
	}
	memory = pages(1);
	must(lands(memory, PAGE));
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	shared_memory();
	private_memory();
	if (!plain)
		go_on_with(argv, "RDMAMR_CACHE", "all");
	exit(done_testing());
}

int main(int argc, char **argv)
{
	const char *why;
	pthread_t thread;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	continue_report();
	plain = getenv("RDMAMR_CACHE") != NULL;
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	first = pthread_self();
	must(pthread_create(&thread, NULL, other, argv) == 0);
	pthread_exit(NULL);
}
