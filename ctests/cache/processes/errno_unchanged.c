/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A registration or deregistration that succeeds leaves errno unchanged, as libibverbs' does: the
 * first one of a process, in which the library asks the device for its driver and starts the cache,
 * one that misses, one that hits, and the memory calls between.
 * So does an mremap that the library repeats, because its watch has split the mapping.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

enum { TIMES = 4, PLACES = 40, MINE = 12345, LARGE = 8 << 20 };

static const char *const settings[][4] = {
	{ "RDMAMR_LOG=error" },
	{ "RDMAMR_LOG=debug" },
	{ "RDMAMR_CACHE=all" },
	{ "RDMAMR_CACHE=all", "RDMAMR_LOG=debug" },
	{ "RDMAMR_CACHE=all", "RDMAMR_CACHE_MAX_IDLE=8" },
	{ "RDMAMR_TRACE=/dev/null", "RDMAMR_CACHE=all" },
};
enum { SETTINGS = sizeof(settings) / sizeof(*settings) };

static int changed;

static void look(const char *after)
{
	if (errno != MINE) {
		printf("# errno is %d after %s\n", errno, after);
		changed++;
	}
	errno = MINE;
}

static int calls(bool relaxed)
{
	char *memory = pages(PLACES), *large;

	errno = MINE;
	for (int time = 0; time < TIMES; time++)
		for (int place = 0; place < PLACES; place++) {
			char *here = memory + place * PAGE;
			struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), here, PAGE, IBV_ACCESS_LOCAL_WRITE) :
						      ibv_reg_mr(stub_pd(), here, PAGE, IBV_ACCESS_LOCAL_WRITE);

			must(mr);
			look("a registration");
			must((relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
			look("a deregistration");
			if (place % 8 == 7) {
				must(madvise(here, PAGE, MADV_DONTNEED) == 0);
				look("madvise");
			}
		}
	large = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(large != MAP_FAILED);
	errno = MINE;
	for (int time = 0; time < TIMES; time++) {
		struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), large + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE) :
					      ibv_reg_mr(stub_pd(), large + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && (relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
	}
	large = mremap(large, LARGE, 2 * LARGE, MREMAP_MAYMOVE);
	must(large != MAP_FAILED);
	look("mremap");
	must(munmap(large, 2 * LARGE) == 0 && munmap(memory, PLACES * PAGE) == 0);
	look("munmap");
	return changed > 100 ? 100 : changed;
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "plain", "relaxed" };
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		skip_all(why);
	if (argc > 1)
		return calls(!strcmp(argv[1], "relaxed"));
	for (int n = 0; n < SETTINGS; n++)
		for (int way = 0; way < 2; way++)
			is(once_more(names[way], settings[n]), 0, "%s calls that succeed leave errno unchanged, %s%s%s", names[way], settings[n][0],
			   settings[n][1] ? " " : "", settings[n][1] ? settings[n][1] : "");
	return done_testing();
}
