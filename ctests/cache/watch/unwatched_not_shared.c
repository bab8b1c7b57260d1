/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process with nearly as many mappings as the kernel allows (vm.max_map_count) cannot have the
 * watch, which splits mappings. A region of unwatched memory serves its caller alone, even while it
 * is in use: a raw system call may have replaced the memory, and the next registration must get the
 * current page.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

/* The library counts the mappings by the 64th region at the latest. */
enum { ROUNDS = 100, UNCOUNTED = 64, FREE = 80 };

/* Makes mappings until the process has that many: each second page has other rights. */
static void crowd(int wanted)
{
	int count = wanted - mappings();
	char *memory = mmap(NULL, ((size_t)count + 1) * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(memory != MAP_FAILED);
	for (int n = 0; n < count; n += 2)
		must(mprotect(memory + (size_t)n * PAGE, PAGE, PROT_READ) == 0);
	must(mappings() >= wanted - 16);
}

/* Whether the program sees the device's write. */
static bool lands_at(const struct ibv_mr *mr, volatile char *memory, char value)
{
	*memory = (char)~value;
	must(stub_write(mr, (unsigned char)value) == 0);
	return *memory == value;
}

static void under_a_region_in_use(int access, const char *rights)
{
	int stale = 0, alike = 0;

	for (int round = 0; round < ROUNDS; round++) {
		char *memory = pages(1);
		struct ibv_mr *first = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, access), *second;

		must(first);
		raw_remap(memory, PAGE);
		second = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, access);
		must(second);
		alike += first->lkey == second->lkey;
		stale += !lands_at(second, memory, (char)round);
		must(ibv_dereg_mr_relaxed(second) == 0 && ibv_dereg_mr_relaxed(first) == 0);
		must(munmap(memory, PAGE) == 0);
	}
	is(stale, 0, "%s: mapped anew by raw system calls under a region in use, data lands in the current page", rights);
	is(alike, 0, "%s: the regions are two", rights);
}

int main(int argc, char **argv)
{
	struct rdmamr_stats before;
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	if (most_mappings() > 1 << 20)
		skip_all("vm.max_map_count is very high here");
	crowd(most_mappings() - FREE);
	for (int n = 0; n < UNCOUNTED && !stats().bypassed_limit; n++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), pages(1), PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
	before = stats();
	under_a_region_in_use(LOCAL_AND_REMOTE, "remote rights");
	under_a_region_in_use(IBV_ACCESS_LOCAL_WRITE, "local rights");
	ok(stats().bypassed_limit + stats().bypassed_watch >= before.bypassed_limit + 4 * ROUNDS,
	   "no memory was watched");
	is((long long)stats().idle, (long long)before.idle, "none is cached");
	is(stub_registered() - stub_deregistered(), (long)before.idle, "the device has no other region left, of %ld", stub_registered());
	return done_testing();
}
