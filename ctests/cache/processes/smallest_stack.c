/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread with the smallest stack that the C library gives makes the first registration of the
 * process, and then calls of every kind, under each setting: the library's functions fit on it.
 */
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../../lib/reuse.h"
#include "../../lib/stub_device.h"

static const char *const settings[][4] = {
	{ "RDMAMR_LOG=warn" },
	{ "RDMAMR_LOG=debug" },
	{ "RDMAMR_CACHE=all", "RDMAMR_LOG=debug" },
	{ "RDMAMR_TRACE=/dev/null" },
	{ "RDMAMR_TRACE=/dev/null", "RDMAMR_CACHE=all", "RDMAMR_LOG=debug" },
	{ "RDMAMR_PREFAULT=2", "RDMAMR_PROGRESS=1" },
};
enum { SETTINGS = sizeof(settings) / sizeof(*settings), LARGE = 32 << 20 };

static void registers(struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int), int (*dereg)(struct ibv_mr *))
{
	char *memory = pages(2), *large;
	struct ibv_mr *mr;

	for (int time = 0; time < 3; time++) {
		mr = reg(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
		must(mr && dereg(mr) == 0);
	}
	must(munmap(memory, PAGE) == 0);
	must(raw_munmap(memory + PAGE, PAGE) == 0);
	must(!reg(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT);
	large = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(large != MAP_FAILED);
	for (int time = 0; time < 3; time++) {
		mr = reg(stub_pd(), large, LARGE, LOCAL_AND_REMOTE);
		must(mr && dereg(mr) == 0);
	}
	must(mremap(large, LARGE, LARGE / 2, 0) == large && munmap(large, LARGE / 2) == 0);
}

static struct ibv_mr *plain(struct ibv_pd *pd, void *memory, size_t length, int access)
{
	return ibv_reg_mr(pd, memory, length, access);
}

static void *on_it(void *relaxed)
{
	if (relaxed) {
		registers(ibv_reg_mr_relaxed, ibv_dereg_mr_relaxed);
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	} else {
		registers(plain, ibv_dereg_mr);
	}
	return NULL;
}

static void on_the_smallest(void *relaxed)
{
	pthread_attr_t attributes;
	pthread_t thread;

	must(pthread_attr_init(&attributes) == 0);
	must(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
	must(pthread_create(&thread, &attributes, on_it, relaxed) == 0 && pthread_join(thread, NULL) == 0);
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "plain", "relaxed" };
	const char *why = stub_open(STUB_PIN);

	if (why)
		skip_all(why);
	if (argc > 1) {
		on_the_smallest(strcmp(argv[1], "plain") ? argv : NULL);
		return 0;
	}
	for (int n = 0; n < SETTINGS; n++)
		for (int way = 0; way < 2; way++)
			is(once_more(names[way], settings[n]), 0, "%s registrations on a stack of %ld bytes, %s%s%s", names[way],
			   (long)PTHREAD_STACK_MIN, settings[n][0], settings[n][1] ? " " : "", settings[n][1] ? settings[n][1] : "");
	return done_testing();
}
