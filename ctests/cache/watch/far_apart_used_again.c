/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Many regions far apart, each registered twice in turn: the second registration reuses the first
 * one's region, for any number of regions. The library asks the kernel about the memory of each
 * (Linux 6.11). On older kernels it reads all mappings, and only so often: then the regions are
 * reused later.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <fcntl.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

#define PROCMAP_QUERY 0xc0686611u
enum { FEW = 1000, MANY = 20000 };

static bool kernel_answers(void)
{
	char question[0x68] = { sizeof(question) };
	int fd = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC), err;

	must(fd >= 0);
	err = ioctl(fd, PROCMAP_QUERY, question) ? errno : 0;
	must(close(fd) == 0);
	return err != ENOTTY;
}

static void once(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
}

/* Pages with a hole before each, so that each is a mapping. */
static char *scattered(int count)
{
	char *memory = new_place((size_t)count * 2 * PAGE);

	for (int n = 0; n < count; n++)
		fresh_at(memory + (size_t)n * 2 * PAGE, PAGE);
	return memory;
}

static void at_once(int count)
{
	char *memory = scattered(count);
	struct rdmamr_stats before = stats();
	double began = seconds_now();

	for (int n = 0; n < count; n++)
		for (int time = 0; time < 2; time++)
			once(memory + (size_t)n * 2 * PAGE);
	printf("# %d regions: %.1f us for each registered twice\n", count, (seconds_now() - began) / count * 1e6);
	is((long long)(stats().hits - before.hits), count, "%d regions far apart: each is reused at once", count);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0 && munmap(memory, (size_t)count * 2 * PAGE) == 0);
}

/* A page with a reused region needs no further region, even while there is no answer. */
static void later(int count)
{
	char *memory = scattered(count);
	struct rdmamr_stats before = stats();
	long again = 0;

	for (int n = 0; n < count; n++)
		for (int time = 0; time < 3; time++)
			once(memory + (size_t)n * 2 * PAGE);
	ok(stats().idle - before.idle <= (unsigned int)count, "%d regions far apart: no page has two of them idle", count);
	for (int tries = 0; tries < 200 && again < count; tries++) {
		before = stats();
		for (int n = 0; n < count; n++)
			once(memory + (size_t)n * 2 * PAGE);
		again = (long)(stats().hits - before.hits);
		usleep(20000);
	}
	is(again, count, "%d regions far apart, all mappings read: after a while each is reused", count);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0 && munmap(memory, (size_t)count * 2 * PAGE) == 0);
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE", "100000");
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1G");
	continue_report();
	why = stub_open(STUB_NOTHING);
	if (why)
		skip_all(why);
	if (getenv("NO_ANSWER")) {
		if (refuse_calls(SYS_ioctl, 1, PROCMAP_QUERY, ENOTTY))
			later(FEW);
		else
			skip("all mappings are read", "no seccomp filter can be had");
		return done_testing();
	}
	once(pages(1));
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	if (kernel_answers()) {
		at_once(FEW);
		at_once(MANY);
	} else {
		skip("far apart, reused at once", "the kernel answers no question about a mapping");
	}
	go_on_with(argv, "NO_ANSWER", "1");
}
