/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Regions of one mapping share the watch of the 2 MiB around them. When the memory of one of them
 * goes, the watch of the others must go on: a raw system call that replaces their memory still ends
 * them, and data lands in the current page.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <sys/mman.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { CHUNK = 2 << 20, REGIONS = 5, APART = 20 };

static char *place(char *chunk, int region)
{
	return chunk + (1 + (size_t)region * APART) * PAGE;
}

static struct ibv_mr *registered(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

/* Whether the cache has a region of the memory, which then is idle. */
static bool is_cached(char *memory)
{
	for (int tries = 0; tries < 40; tries++) {
		struct rdmamr_stats before = stats(), after;

		must(ibv_dereg_mr_relaxed(registered(memory)) == 0);
		after = stats();
		if (after.hits > before.hits)
			return true;
		must(usleep(tries * 5000) == 0);
	}
	return false;
}

static void by_munmap(char *memory) { must(munmap(memory, PAGE) == 0); }
static void by_raw_munmap(char *memory) { must(raw_munmap(memory, PAGE) == 0); }
static void by_mmap(char *memory) { remap(memory, PAGE); }

static void by_mremap(char *memory)
{
	char *elsewhere = pages(1);

	must(mremap(memory, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere);
}

/* The memory of one region, or of two, goes; then the memory of another is replaced. */
static void goes(const char *name, void (*ends)(char *), int first, int second, int checked)
{
	/* A new place begins with a chunk. */
	char *chunk = new_place(CHUNK), *replaced = place(chunk, checked);
	struct ibv_mr *mr;

	fresh_at(chunk, CHUNK);
	for (int n = 0; n < REGIONS; n++)
		ok(is_cached(place(chunk, n)), "%s: region %d is cached", name, n);
	ends(place(chunk, first));
	if (second >= 0)
		ends(place(chunk, second));
	/* Other registrations make the cache see the change. */
	must(ibv_dereg_mr_relaxed(registered(place(chunk, REGIONS))) == 0);
	raw_remap(replaced, PAGE);
	mr = registered(replaced);
	ok(stub_lands(mr), "%s: without region %d%s, data lands in the new page of region %d", name, first,
	   second < 0 ? "" : " and another", checked);
	must(ibv_dereg_mr_relaxed(mr) == 0);
	must(munmap(chunk, CHUNK) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*ends)(char *);
	} ways[] = { { "munmap", by_munmap },
		     { "raw munmap", by_raw_munmap },
		     { "mmap at the same place", by_mmap },
		     { "mremap", by_mremap } };
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	for (size_t n = 0; n < sizeof(ways) / sizeof(*ways); n++) {
		for (int first = 0; first < REGIONS; first++) {
			for (int checked = 0; checked < REGIONS; checked++) {
				int second = 2 * first - checked;

				if (checked == first)
					continue;
				goes(ways[n].name, ways[n].ends, first, -1, checked);
				if (second >= 0 && second < REGIONS)
					goes(ways[n].name, ways[n].ends, first, second, checked);
			}
		}
	}
	return done_testing();
}
