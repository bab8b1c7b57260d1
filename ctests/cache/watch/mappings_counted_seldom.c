/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache leaves half of the mappings that a process may still have (vm.max_map_count) to the
 * program, and counts them when it may have used up half of the others. To count them it must read
 * all of them, 15 ms for 50 000: near the limit that must not happen for every few registrations.
 * The kernel reports how much the process has read.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { ROOM = 60, MISSES = 3000, MOST_MAPPINGS = 300000 };

/* The number of bytes that the process has read, -1 if the kernel does not count them. */
static long long bytes_read(void)
{
	FILE *file = fopen("/proc/self/io", "re");
	long long bytes = -1;

	if (!file)
		return -1;
	if (fscanf(file, "rchar: %lld", &bytes) != 1)
		bytes = -1;
	must(fclose(file) == 0);
	return bytes;
}

static long long size_of_maps(void)
{
	long long before = bytes_read();

	must(mappings() > 0);
	return bytes_read() - before;
}

static void miss(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	remap(memory, PAGE);
}

int main(int argc, char **argv)
{
	int most = most_mappings(), cuts;
	char *memory, *cut;
	long long size, before;
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	if (bytes_read() < 0)
		skip_all("the kernel does not count what a process reads (/proc/self/io)");
	if (most > MOST_MAPPINGS)
		skip_all("vm.max_map_count is so large that the test would need much memory");
	memory = pages(1);
	cuts = (most - ROOM - mappings()) & ~1;
	must(cuts > 0);
	cut = mmap(NULL, (size_t)(cuts + 1) * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(cut != MAP_FAILED);
	for (int n = 0; n < cuts; n += 2)
		must(syscall(SYS_mprotect, cut + (size_t)n * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	size = size_of_maps();
	before = bytes_read();
	for (int n = 0; n < MISSES; n++)
		miss(memory);
	is((bytes_read() - before) / size > MISSES / 100, 0,
	   "%d registrations that miss, with %d of %d mappings: not each hundredth reads all mappings", MISSES,
	   mappings(), most);
	printf("# all mappings were read %lld times; %llu misses were not watched for want of mappings\n",
	       (bytes_read() - before) / size, (unsigned long long)stats().bypassed_limit);
	must(munmap(cut, (size_t)(cuts + 1) * PAGE) == 0);
	return done_testing();
}
