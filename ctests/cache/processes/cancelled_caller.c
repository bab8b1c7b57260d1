/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread that pthread_cancel has asked to end registers, deregisters and changes memory. None of
 * these calls is a cancellation point, with the library or without: the thread ends at its own
 * pthread_testcancel, and each call has done its work. In each process these are the first calls,
 * so the cache starts in that thread.
 *
 * libibverbs and its providers call functions that are cancellation points: verbs_uninit_context
 * calls close(). The library puts the cancellation off until they have returned.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

static const char *const settings[][4] = {
	{ "RDMAMR_LOG=warn" },
	{ "RDMAMR_LOG=debug" },
	{ "RDMAMR_CACHE=all" },
	{ "RDMAMR_CACHE=all", "RDMAMR_LOG=debug" },
	{ "RDMAMR_TRACE=/dev/null", "RDMAMR_CACHE=all" },
	{ "RDMAMR_STATS=/dev/null", "RDMAMR_CACHE=all", "RDMAMR_LOG=info" },
	{ "RDMAMR_PREFAULT=2", "RDMAMR_CACHE=all" },
	/* libibverbs keeps registered memory from children, and reads the size of its pages from a file. */
	{ "RDMAV_HUGEPAGES_SAFE=1", "RDMAMR_CACHE=all" },
};
enum { SETTINGS = sizeof(settings) / sizeof(*settings), TIMES = 3, LARGE = 32 << 20 };
enum { RIGHT = 0, ENDED_EARLY = 1, NOT_ENDED = 2 };

static bool relaxed;
static volatile bool all_done;

static void use(char *memory, size_t length)
{
	for (int time = 0; time < TIMES; time++) {
		struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, length, IBV_ACCESS_LOCAL_WRITE) :
					      ibv_reg_mr(stub_pd(), memory, length, IBV_ACCESS_LOCAL_WRITE);

		must(mr && (relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
	}
}

static int provided;

/* The provider's part of a call is a cancellation point. */
static long close_nothing(void)
{
	close(-1);
	provided++;
	return 0;
}

static void call_provider(void)
{
	struct { struct ibv_mr mr; char rest[256]; } foreign = {
		.mr = { .context = stub_pd()->context, .pd = stub_pd(), .handle = 1 << 30, .lkey = 1 << 30 },
	};

	stub_provide(close_nothing);
	ibv_fork_init();
	must(!ibv_reg_dmabuf_mr(stub_pd(), 0, PAGE, 0, -1, IBV_ACCESS_LOCAL_WRITE) && provided == 1);
	must(ibv_rereg_mr(&foreign.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0 && provided == 2);
	must(ibv_dereg_mr(&foreign.mr) == 0 && provided == 3);
	must(ibv_dealloc_pd(stub_pd()) == 0 && provided == 4);
	must(ibv_close_device(stub_pd()->context) == 0 && provided == 5);
}

static void *on_request_to_end(void *unused)
{
	char *memory = pages(4), *large;

	large = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(large != MAP_FAILED);
	must(pthread_cancel(pthread_self()) == 0);
	use(memory, PAGE);
	use(large, LARGE);
	must(madvise(memory, PAGE, MADV_DONTNEED) == 0);
	use(memory + PAGE, PAGE);
	must(mprotect(memory, PAGE, PROT_READ) == 0);
	must(munmap(memory + 2 * PAGE, 2 * PAGE) == 0);
	must(mremap(large, LARGE, LARGE / 2, 0) == large && munmap(large, LARGE / 2) == 0);
	if (relaxed)
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	call_provider();
	all_done = true;
	pthread_testcancel();
	return unused;
}

static int cancelled(void)
{
	pthread_t thread;
	void *answer;

	must(pthread_create(&thread, NULL, on_request_to_end, NULL) == 0 && pthread_join(thread, &answer) == 0);
	if (!all_done)
		return ENDED_EARLY;
	return answer == PTHREAD_CANCELED ? RIGHT : NOT_ENDED;
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "plain", "relaxed" };
	const char *why = stub_open(STUB_NOTHING);

	if (why)
		skip_all(why);
	if (argc > 1) {
		if (getenv("RDMAV_HUGEPAGES_SAFE"))
			ibv_fork_init();
		relaxed = !strcmp(argv[1], "relaxed");
		return cancelled();
	}
	for (int n = 0; n < SETTINGS; n++)
		for (int way = 0; way < 2; way++)
			is(once_more(names[way], settings[n]), RIGHT, "%s calls of a thread that is cancelled, %s%s%s", names[way],
			   settings[n][0], settings[n][1] ? " " : "", settings[n][1] ? settings[n][1] : "");
	return done_testing();
}
