/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Steps on memory of their own, beyond the windows, since their calls need more of it: blocks of
 * the C library that realloc grows by mremap. Each step registers parts of the memory before its
 * call, so that the cache has idle regions there, and after it.
 */
#include "fuzz.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void write_pages(char *at, size_t count, uint64_t tag)
{
	for (size_t page = 0; page < count; page++)
		if (poke(at + page * PAGE + 8, tag | (uint64_t)step_number << 16 | page))
			note(" fault");
}

/* In each page, the bytes that are written here, and those that the device writes. */
static void note_content(const char *at, size_t length)
{
	uint64_t sum = 0;
	int fault = 0;

	for (size_t page = 0; page < length && !fault; page += PAGE)
		sum = sum * 31 + look_bytes(at + page, 24, &fault);
	note(" content %016llx fault %d", (unsigned long long)sum, fault);
}

/* A part of that many pages. */
static void part(uint32_t word, size_t pages, size_t *first, size_t *count)
{
	*first = word % pages;
	*count = 1 + word / 1024 % 16;
	if (*count > pages - *first)
		*count = pages - *first;
}

static void use_parts(char *at, size_t pages, uint32_t word, uint32_t how)
{
	for (uint32_t n = 0; n < 1 + how % 3; n++) {
		size_t first, count;

		part(word + n * 0x9e3779b9, pages, &first, &count);
		use_memory(at + first * PAGE, count * PAGE, how / 3 + n);
	}
}

/* --- realloc */

/*
 * The kernel chooses the addresses of blocks, which differ from run to run. The page faults show
 * whether realloc has copied a block or moved its pages. A block is larger than the heap's spare
 * memory (calls_open), or it would not be a mapping of its own; few of its pages are touched.
 */
enum { LEAST = 24576, MORE = 2048, TOUCHED = 512, HEADER = 64 };
static char *block;
static size_t block_pages;

/* The first whole page of the block. */
static char *first_page(void)
{
	return (char *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

static void note_block(size_t pages)
{
	note_content(first_page(), TOUCHED * PAGE);
	note_content(first_page() + (pages - TOUCHED) * PAGE, (TOUCHED - 2) * PAGE);
}

static void resize(size_t pages, struct ibv_mr *mr)
{
	size_t same = block_pages < pages ? block_pages : pages;
	struct rusage before, after;
	char *now;

	note(" from %zu to %zu pages", block_pages, pages);
	must(getrusage(RUSAGE_THREAD, &before) == 0);
	errno = 0;
	now = realloc(block, pages * PAGE - HEADER);
	if (!now) {
		note_result(-1);
		return;
	}
	must(getrusage(RUSAGE_THREAD, &after) == 0);
	if (after.ru_minflt - before.ru_minflt > LEAST / 4)
		note(" COPIED");
	else if (pages > block_pages)
		happened(GROWN);
	block = now;
	block_pages = pages;
	note_block(same);
	if (mr) { /* the device writes by an old region to the pages that have moved */
		device_writes_held(mr);
		note_block(same);
	}
}

void realloc_step(const struct step *step)
{
	struct ibv_mr *mr = NULL;
	size_t pages;

	note("realloc");
	if (library_lost_its_file) /* it copies (docs/limits.md) */
		return;
	if (block && (step->word[0] % 6 == 0 || block_pages > LEAST + MORE)) {
		free(block);
		block = NULL;
	}
	if (!block) {
		block_pages = LEAST + step->word[1] % 256;
		errno = 0;
		block = malloc(block_pages * PAGE - HEADER);
		if (!block) {
			note_result(-1);
			return;
		}
	}
	write_pages(first_page(), TOUCHED, 0xb000000000000000);
	write_pages(first_page() + (block_pages - TOUCHED) * PAGE, TOUCHED - 2, 0xb100000000000000);
	use_parts(first_page(), block_pages - 2, step->word[2], step->word[3]);
	if (step->word[5] % 4 == 0)
		mr = hold_memory(first_page() + step->word[5] / 4 % TOUCHED * PAGE, 3 * PAGE);
	pages = step->word[4] % 8 ? block_pages + 1 + step->word[4] / 8 % 512 : block_pages - step->word[4] / 8 % 256;
	resize(pages < LEAST ? LEAST : pages, mr);
	if (mr)
		let_go_memory(mr);
	use_parts(first_page(), block_pages - 2, step->word[2], step->word[6]);
}
