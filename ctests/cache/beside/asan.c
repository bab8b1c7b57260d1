/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Compiled with -fsanitize=address: AddressSanitizer interposes memory calls too, and has an
 * allocator of its own, whose raw system calls map and unmap memory. Both must go on working, above
 * and below each other: the cache sees the program's changes of its memory, and AddressSanitizer
 * has nothing to report. The device is the stand-in of stub_device.h; sanitizer.sh runs this in
 * each order of loading.
 *
 * Usage: asan [write-exec|use-after-free]: with a word, does only that, which AddressSanitizer must
 * report.
 */
#include <malloc.h>
#include <pthread.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/stub_device.h"

enum { THREADS = 2, ROUNDS = 3000, SIZE = 8 * PAGE };

static long wrong;

static void *map(void *where, size_t length, int flags)
{
	void *memory = mmap(where, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}

/*
 * Registers the memory, has the device write to it, and compares. Returns true if the data is
 * there.
 */
static bool lands(void *memory, size_t length, int access)
{
	static _Atomic unsigned char values;
	unsigned char value = ++values;
	struct ibv_mr *mr;
	bool good = true;
	int err;

	while (!(mr = ibv_reg_mr_relaxed(stub_pd(), memory, length, access)))
		must(errno == EAGAIN);
	memset(memory, (unsigned char)~value, length);
	err = stub_write(mr, value);
	if (err)
		printf("# stub_write: %s\n", strerror(err));
	for (size_t n = 0; n < length; n++)
		good = good && ((unsigned char *)memory)[n] == value;
	good = good && !err;
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

static bool registered_anew(void *memory, size_t length, bool *landed)
{
	long before = stub_registered();

	*landed = lands(memory, length, IBV_ACCESS_LOCAL_WRITE);
	return stub_registered() > before;
}

/*
 * The control: unchanged memory is reused. It tries for some time, because the cache keeps no
 * region for a while where pages were dropped.
 */
static bool used_again(void *memory, size_t length)
{
	bool landed, anew = true;

	for (int tries = 0; tries < 50 && anew; tries++) {
		if (tries > 5)
			usleep(100000);
		anew = registered_anew(memory, length, &landed);
		if (!landed)
			return false;
	}
	return !anew;
}

static void changed(const char *what, void *memory, size_t length)
{
	bool landed, anew = registered_anew(memory, length, &landed);

	ok(anew && landed, "%s: registered anew, and data lands in the current page", what);
	ok(used_again(memory, length), "%s: then reused", what);
}

static void each_call(void)
{
	char *memory = map(NULL, SIZE, 0), *elsewhere = map(NULL, SIZE, 0), *old = memory;

	ok(lands(memory, SIZE, IBV_ACCESS_LOCAL_WRITE) && used_again(memory, SIZE), "a region is reused");
	must(munmap(memory, SIZE) == 0 && map(memory, SIZE, MAP_FIXED_NOREPLACE) == memory);
	changed("munmap and mmap", memory, SIZE);
	must(syscall(SYS_munmap, memory, SIZE) == 0 && map(memory, SIZE, MAP_FIXED_NOREPLACE) == memory);
	changed("the same, munmap by a raw system call", memory, SIZE);
	must(map(memory + PAGE, PAGE, MAP_FIXED) == memory + PAGE);
	changed("mmap with MAP_FIXED over a page", memory, SIZE);
	must(madvise(memory, PAGE, MADV_DONTNEED) == 0);
	changed("madvise", memory, SIZE);
	must(mremap(memory, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
	changed("mremap, the new address", elsewhere, SIZE);
	must(map(old, SIZE, MAP_FIXED_NOREPLACE) == old);
	changed("mremap, the old address mapped again", old, SIZE);
	must(munmap(old, SIZE) == 0 && munmap(elsewhere, SIZE) == 0);
}

/*
 * AddressSanitizer's own allocator, with its quarantine: memory that is allocated again, or
 * unmapped, at any time.
 */
static void allocator(void)
{
	int bad = 0;

	for (int round = 0; round < 300; round++) {
		size_t length = round % 3 ? (size_t)(100 + round * 37) : (size_t)(600000 + round * PAGE);
		char *memory = malloc(length);

		must(memory);
		bad += !lands(memory, length, IBV_ACCESS_LOCAL_WRITE);
		bad += !lands(memory, length, LOCAL_AND_REMOTE);
		if (round % 5 == 0) {
			memory = realloc(memory, 2 * length);
			must(memory);
			bad += !lands(memory, 2 * length, IBV_ACCESS_LOCAL_WRITE);
		}
		free(memory);
	}
	is(bad, 0, "memory of malloc, realloc and free");
}

static void *traffic(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	char *memory = map(NULL, SIZE, 0);

	for (int round = 0; round < ROUNDS; round++) {
		int kind = rand_r(&seed) % 6;
		char *heap = malloc((size_t)rand_r(&seed) % 200000 + 1);

		must(heap);
		if (kind == 0) {
			must(munmap(memory, SIZE) == 0);
			memory = map(NULL, SIZE, 0);
		} else if (kind == 1) {
			must(syscall(SYS_munmap, memory, SIZE) == 0);
			memory = map(NULL, SIZE, 0);
		} else if (kind == 2) {
			must(madvise(memory, SIZE, MADV_DONTNEED) == 0);
		} else if (kind == 3) {
			must(mprotect(memory, SIZE, PROT_READ) == 0 &&
			     mprotect(memory, SIZE, PROT_READ | PROT_WRITE) == 0);
		} else if (kind == 4) {
			memory = mremap(memory, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
			must(memory != MAP_FAILED && munmap(memory + SIZE, SIZE) == 0);
		}
		if (!lands(memory, SIZE, kind & 1 ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE) ||
		    !lands(heap, 1 + malloc_usable_size(heap) / 2, IBV_ACCESS_LOCAL_WRITE))
			__atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
		free(heap);
	}
	must(munmap(memory, SIZE) == 0);
	return NULL;
}

static void threads(void)
{
	pthread_t threads[THREADS];

	for (long n = 0; n < THREADS; n++)
		must(pthread_create(&threads[n], NULL, traffic, (void *)(n + 1)) == 0);
	for (int n = 0; n < THREADS; n++)
		must(pthread_join(threads[n], NULL) == 0);
	is(wrong, 0, "%d threads, %d rounds each of mapping, unmapping, allocating and registering", THREADS, ROUNDS);
}

/* Both are errors, which AddressSanitizer sees by interposing calls: it must still do so. */
static int misbehave(const char *how)
{
	char *memory = malloc(100), *volatile freed = memory;
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, 100, IBV_ACCESS_LOCAL_WRITE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	free(memory);
	if (!strcmp(how, "use-after-free"))
		return freed[10];
	return mmap(NULL, PAGE, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

int main(int argc, char **argv)
{
	const char *why;

	must(ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed && ibv_flush_relaxed_mr);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	if (argc > 1)
		return misbehave(argv[1]);
	each_call();
	allocator();
	threads();
	ok(stats().stale_avoided_hook > 0, "the library's hooks saw changes: %llu regions",
	   (unsigned long long)stats().stale_avoided_hook);
	ok(stats().stale_avoided_event > 0, "and the kernel reported others: %llu regions",
	   (unsigned long long)stats().stale_avoided_event);
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "flushed");
	is(stub_registered() - stub_deregistered(), 0, "the device has no region left");
	return done_testing();
}
