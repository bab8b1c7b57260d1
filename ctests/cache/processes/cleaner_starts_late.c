/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The kernel gives the library no thread at first (RLIMIT_NPROC). Later it would, and the next
 * thread that registers has a table of descriptors of its own, and ends. Its files are closed with
 * it: the reader of the other end of its pipe sees the end. And the other threads' regions are
 * reused.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

/* A user without any other process, for the limit. */
enum { FIRST_USER = 1 << 20, TASKS = 100, TIMES = 5, ATTEMPT_US = 1300000 };

static char *memory, *other;
static pthread_barrier_t left, allowed;

static void registers(char *at, int times)
{
	for (int n = 0; n < times; n++) {
		struct ibv_mr *mr = ibv_reg_mr(stub_pd(), at, PAGE, LOCAL_AND_REMOTE);

		must(mr && stub_lands(mr) && ibv_dereg_mr(mr) == 0);
	}
}

static void *apart(void *argument)
{
	must(unshare(CLONE_FILES) == 0);
	pthread_barrier_wait(&left);
	pthread_barrier_wait(&allowed);
	registers(other, TIMES);
	return argument;
}

int main(int argc, char **argv)
{
	struct rlimit limit = { 3, TASKS }; /* two threads, and the reader of userfaultfd */
	uid_t user = FIRST_USER + (uid_t)getpid();
	struct pollfd end;
	pthread_t thread;
	long before;
	int ends[2];
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE", "all");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	if (setresgid(user, user, user) || setresuid(user, user, user))
		skip_all("only root becomes another user, whom RLIMIT_NPROC binds");
	memory = pages(1);
	other = pages(1);
	must(pipe(ends) == 0);
	must(pthread_barrier_init(&left, NULL, 2) == 0 && pthread_barrier_init(&allowed, NULL, 2) == 0);
	must(pthread_create(&thread, NULL, apart, NULL) == 0);
	pthread_barrier_wait(&left);
	must(setrlimit(RLIMIT_NPROC, &limit) == 0);
	registers(memory, TIMES);
	ok(stats().hits == 0, "without the threads no region is reused");
	limit.rlim_cur = TASKS;
	must(setrlimit(RLIMIT_NPROC, &limit) == 0);
	/* The library tries again after a second. */
	usleep(ATTEMPT_US);
	pthread_barrier_wait(&allowed);
	must(pthread_join(thread, NULL) == 0 && close(ends[1]) == 0);
	end = (struct pollfd){ ends[0], POLLIN, 0 };
	ok(comes(poll(&end, 1, 0) == 1 && end.revents & POLLHUP), "the pipe of the ended thread has ended");
	registers(memory, 20 * TIMES);
	before = stub_registered();
	registers(memory, TIMES);
	is(stub_registered() - before, 0, "another thread's regions are reused");
	return done_testing();
}
