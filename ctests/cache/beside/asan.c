/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Compiled with -fsanitize=address: AddressSanitizer interposes memory calls too, and has an
 * allocator of its own, whose raw system calls map and unmap memory. Both must go on working, above
 * and below each other. sanitizer.sh runs this in each order of loading.
 *
 * Usage: asan [write-exec|use-after-free]: with such a word, does only that, which AddressSanitizer
 * must report.
 */
#include <malloc.h>
#include "../../lib/stub_rows.h"

enum { ROUNDS = 3000, SIZE = 8 * PAGE };

static void renewed(void)
{
	char *memory = idle();

	renew((enum renewal)row->value, memory, PAGE);
	is(hits(memory, 1), 0, "registered anew");
	leave_idle(memory);
	served(memory, HIT, "later");
	ok((row->value == BY_RAW_MUNMAP ? stats().stale_avoided_event : stats().stale_avoided_hook) > 0, "the library has seen it");
}

/* Memory that is mapped, and memory of AddressSanitizer's allocator, which is unmapped at any time. */
static void *traffic(void *seeded)
{
	unsigned int seed = (unsigned int)(uintptr_t)seeded;
	char *memory = pages(SIZE / PAGE);
	long wrong = 0;

	for (int round = 0; round < ROUNDS; round++) {
		char *heap = malloc((size_t)rand_r(&seed) % 600000 + 1);
		int how = rand_r(&seed) % 5;

		must(heap);
		if (how < BY_MREMAP)
			/* In one call: another thread could take the place. */
			renew(how == BY_MADVISE ? BY_MADVISE : BY_FIXED, memory, SIZE);
		else
			must(munmap(memory, SIZE) == 0 && (memory = pages(SIZE / PAGE)));
		heap = realloc(heap, malloc_usable_size(heap) * 3 / 2);
		must(heap);
		wrong += !arrives(memory, SIZE) || !arrives(heap, malloc_usable_size(heap));
		free(heap);
	}
	return (void *)wrong;
}

static void threads(void)
{
	pthread_t other = must_start(traffic, (void *)1);

	ok(!traffic((void *)2) && !must_join(other),
	   "%d rounds of mapping, unmapping, allocating and registering", ROUNDS);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	none_is_left();
}

/* Both are errors, which AddressSanitizer sees by interposing calls: it must still do so. */
static int misbehave(const char *how)
{
	char *memory = malloc(100), *volatile freed = memory;

	must(!stub_open(STUB_PIN));
	dereg(reg(memory, 100));
	free(memory);
	if (!strcmp(how, "use-after-free"))
		return freed[10];
	return mmap(NULL, PAGE, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

static const struct row rows[] = {
	{ "munmap and mmap", renewed, BY_MUNMAP },
	{ "the same by raw system calls", renewed, BY_RAW_MUNMAP },
	{ "mmap with MAP_FIXED", renewed, BY_FIXED },
	{ "madvise", renewed, BY_MADVISE },
	{ "mremap away and mmap", renewed, BY_MREMAP },
	{ "two threads", threads },
};

int main(int argc, char **argv)
{
	return argc > 1 && strchr(argv[1], '-') ? misbehave(argv[1]) : run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
