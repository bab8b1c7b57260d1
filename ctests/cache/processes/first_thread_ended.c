/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The first thread of a program has ended by pthread_exit: from then on /proc/self/maps, which is
 * that thread's, opens and is empty. Regions that the other threads register in shared memory are
 * not reused all the same, and the cache sees the number of the process's mappings: it leaves the
 * program those that it needs.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <pthread.h>
#include <sys/syscall.h>
#include "../../lib/stub_rows.h"

enum { SIZE = 4 * PAGE, ROUNDS = 20, LEFT = 3000, SCATTERED = 1800, WANTED = 200 };

/* The watch of a region splits its 2 MiB off the mapping. */
static const size_t APART = 4 << 20;

/* A plain registration that bypassed the cache, since its range was new, does not count. */
static void lands(void *memory)
{
	uint64_t bypassed;

	do {
		bypassed = stats().bypassed_first;
		once(memory);
	} while (stats().bypassed_first != bypassed);
}

static void shared_memory(void)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);
	char *memory = new_place(SIZE);

	must(fd >= 0 && ftruncate(fd, SIZE) == 0);
	must(syscall(SYS_mmap, memory, (long)SIZE, (long)(PROT_READ | PROT_WRITE), (long)(MAP_SHARED | MAP_FIXED_NOREPLACE),
		     (long)fd, 0L) == (long)memory);
	for (int round = 0; round < ROUNDS; round++) {
		long before = stub_registered();

		lands(memory);
		lands(memory);
		must(ftruncate(fd, 0) == 0 && ftruncate(fd, SIZE) == 0);
		lands(memory);
		ok(stub_registered() - before >= 3, "cut by ftruncate in round %d: no region is reused", round);
	}
}

static void private_memory(void)
{
	served(idle(), HIT, "private memory");
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

/* The cache counts the mappings when it starts. */
static void few_mappings_left(void)
{
	char *memory = mmap(NULL, SCATTERED * APART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int refused = 0;

	if (most_mappings() > 1 << 20)
		skip_all("vm.max_map_count is very high here");
	must(memory != MAP_FAILED);
	crowd(LEFT);
	for (int n = 0; n < SCATTERED; n++)
		reg(memory + (size_t)n * APART, PAGE);
	for (int n = 0; n < WANTED; n++)
		refused += mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
	is(refused, 0, "of %d mappings left, beside %d registrations, the program gets %d", LEFT, SCATTERED, WANTED);
}

static pthread_t first;

static void *other(void *unused)
{
	must(pthread_join(first, NULL) == 0);
	((void (*)(void))(uintptr_t)row->of)();
	row_ends();
	return unused;
}

static void first_ends(void)
{
	pthread_t thread;

	first = pthread_self();
	must(pthread_create(&thread, NULL, other, NULL) == 0);
	pthread_exit(NULL);
}

static const struct row rows[] = {
	{ "few mappings are left", first_ends, .of = few_mappings_left },
	{ "shared memory", first_ends, .of = shared_memory, .flags = BOTH_CALLS },
	{ "private memory", first_ends, .of = private_memory, .flags = BOTH_CALLS },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
