/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registers memory that was never touched on a machine whose free memory lies in single pages between
 * used ones: by libibverbs, and by the library with RDMAMR_PREFAULT. The times of memory for which the
 * program itself asks for huge pages stand beside, since they show what the kernel's moving of pages
 * costs there. Run by bench/fragmented.
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include "../ctests/lib/device.h"
#include "../ctests/lib/program.h"
#include "median.h"

enum { MIB = 1 << 20, LENGTH = 1024 * MIB, ROUNDS = 7, HUGE_BLOCKS = LENGTH / (2 * MIB) / 2 };
enum way { THEIRS, OURS, ASKED, WAYS };

static const char *const names[WAYS] = { "libibverbs", "the library", "libibverbs, the program asks for huge pages" };
static struct ibv_mr *(*their_reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*their_dereg)(struct ibv_mr *);
static struct ibv_pd *pd;

/* How many blocks of 2 MiB and more are free. */
static unsigned long huge_blocks(void)
{
	FILE *file = fopen("/proc/buddyinfo", "r");
	unsigned long counts[11], free = 0;
	char line[512];

	must(file);
	while (fgets(line, sizeof(line), file)) {
		char *at = strstr(line, "zone");

		must(at);
		at += strlen("zone");
		at += strspn(at, " ");
		at += strcspn(at, " ");
		for (int order = 0; order < 11; order++)
			counts[order] = strtoul(at, &at, 10);
		free += counts[9] + 2 * counts[10];
	}
	must(fclose(file) == 0);
	return free;
}

/* Takes nearly all free memory in single pages, and gives every other page back: movable ones remain. */
static void fragment(void)
{
	size_t length = (field_of("/proc/meminfo", "MemAvailable") - 256 * 1024) * 1024 / PAGE * PAGE;
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED && madvise(memory, length, MADV_NOHUGEPAGE) == 0);
	for (size_t at = 0; at < length; at += PAGE)
		memory[at] = 1;
	for (size_t at = 0; at < length; at += 2ul * PAGE)
		must(madvise(memory + at, PAGE, MADV_DONTNEED) == 0);
}

static double registered(enum way way)
{
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	double start, took;
	struct ibv_mr *mr;

	must(memory != MAP_FAILED);
	must(way != ASKED || madvise(memory, LENGTH, MADV_HUGEPAGE) == 0);
	start = seconds_now();
	mr = way == OURS ? ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE) :
			   their_reg(pd, memory, LENGTH, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE);
	took = seconds_now() - start;
	must(mr && (way == OURS ? ibv_dereg_mr(mr) : their_dereg(mr)) == 0);
	must(munmap(memory, LENGTH) == 0);
	return took;
}

int main(void)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);
	double took[WAYS][ROUNDS];
	long stalls[WAYS] = { 0 };

	must(handle);
	*(void **)&their_reg = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&their_dereg = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	must(their_reg && their_dereg);
	if (field_of("/proc/meminfo", "MemAvailable") < 3l * LENGTH / 1024)
		skip_all("less than 3 GiB of memory are available");
	pd = ibv_alloc_pd(open_device());
	must(pd);
	fragment();
	printf("%lu huge pages are free\n", huge_blocks());
	must(huge_blocks() < HUGE_BLOCKS);
	for (int round = 0; round < ROUNDS; round++)
		for (int turn = 0; turn < WAYS; turn++) {
			enum way way = (enum way)((turn + round) % WAYS);
			long before = field_of("/proc/vmstat", "compact_stall");

			took[way][round] = registered(way);
			stalls[way] += field_of("/proc/vmstat", "compact_stall") - before;
		}
	for (int way = 0; way < WAYS; way++) {
		double middle = median(took[way], ROUNDS);

		printf("%.3f s, from %.3f to %.3f, %ld stalls: %s\n", middle, took[way][0], took[way][ROUNDS - 1], stalls[way],
		       names[way]);
	}
	return 0;
}
