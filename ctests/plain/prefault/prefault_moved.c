/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_PREFAULT asks for huge pages in memory that is registered, unless the program refuses them.
 * mremap accepts a single mapping only, and realloc of a large block calls it inside the C library:
 * after the registration both must move the memory as they do without the library, whether all of
 * the mapping was registered or a part.
 *
 * A copy touches each page of a new block, and the kernel counts that. The device is the stand-in,
 * which pins as the kernel does (stub_device.h).
 */
#include <malloc.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { MIB = 1 << 20, HUGE = 2 * MIB, SIZE = 64 * MIB, PAGES = SIZE / PAGE, FEW = PAGES / 8, TRIES = 40 };

/* Registers untouched memory. Whether huge pages were asked for: a helper may come too late. */
static bool registered(char *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, length, IBV_ACCESS_LOCAL_WRITE);
	bool asked = false;

	must(mr && ibv_dereg_mr(mr) == 0);
	for (size_t at = 0; at < length && !asked; at += HUGE)
		asked = vm_flag(memory + at, "hg");
	return asked;
}

/* Memory that does not begin with a huge page. */
static char *odd_mapping(void)
{
	char *room = mmap(NULL, SIZE + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *memory = (char *)(((uintptr_t)room + HUGE) & ~(uintptr_t)(HUGE - 1)) + 3 * PAGE;

	must(room != MAP_FAILED);
	must(mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
	return memory;
}

static void mremaps(const char *what, size_t before, size_t length)
{
	char *memory = odd_mapping(), *moved;
	int tries = 0;

	while (!registered(memory + before, length) && ++tries < TRIES)
		memory = odd_mapping();
	if (tries == TRIES) {
		skip(what, "no helper came in time to ask for huge pages");
		return;
	}
	if (before == 0 && length == SIZE)
		ok(smaps_kib(memory, PAGE, "Size") >= SIZE / 1024, "%s: it is a single mapping", what);
	memory[SIZE - 1] = 7;
	moved = mremap(memory, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
	ok(moved != MAP_FAILED && moved[SIZE - 1] == 7, "%s: mremap moves it", what);
}

static void reallocs(const char *what, size_t before, size_t length)
{
	char *block = malloc(SIZE), *next;
	int tries = 0;
	long touched;

	while (!registered(block + before, length) && ++tries < TRIES)
		must(block = malloc(SIZE));
	if (tries == TRIES) {
		skip(what, "no helper came in time to ask for huge pages");
		return;
	}
	for (size_t at = 0; at < SIZE; at += PAGE)
		block[at] = 7;
	touched = faults();
	must(next = realloc(block, 2 * SIZE));
	touched = faults() - touched;
	ok(touched < FEW, "%s: realloc touches few pages: %ld of %d", what, touched, PAGES);
	is(next[SIZE - PAGE], 7, "%s: and the data is there", what);
	free(next);
}

int main(void)
{
	static const char MODE[] = "/sys/kernel/mm/transparent_hugepage/enabled";
	FILE *file = fopen(MODE, "r");
	char mode[64] = "";
	const char *why;
	int asked = 0;

	if (!file || !fgets(mode, sizeof(mode), file) || !strstr(mode, "[madvise]"))
		skip_all("this machine does not give huge pages on request");
	must(fclose(file) == 0);
	why = stub_open(STUB_UMEM);
	if (why)
		skip_all(why);
	must(mallopt(M_MMAP_THRESHOLD, MIB) == 1);
	for (int n = 0; n < TRIES / 4; n++) {
		char *memory = odd_mapping();

		must(madvise(memory, SIZE, MADV_NOHUGEPAGE) == 0);
		asked += registered(memory, SIZE);
	}
	is(asked, 0, "no huge pages are asked for where the program has refused them");
	mremaps("all of a mapping was registered", 0, SIZE);
	mremaps("a part of a mapping was registered", 8 * MIB, SIZE / 2);
	reallocs("all of a block was registered", 0, SIZE);
	reallocs("a part of a block was registered", 8 * MIB, SIZE / 2);
	return done_testing();
}
