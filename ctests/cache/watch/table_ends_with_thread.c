/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread leaves the program's table of descriptors, opens files in its own, registers memory, and
 * ends. Its files are then closed: the reader of the other end of its pipe sees the end, and its
 * lock is free.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

/* The failures in the child. */
enum { PIPE = 1, LOCK = 2, REUSE = 4, ALL = 7 };

static int ends[2];
static char *memory, name[] = "/tmp/table_ends_XXXXXX";
static pthread_barrier_t left;

static void registers(bool relaxed)
{
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) :
					      ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

		must(mr && stub_lands(mr) && (relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
	}
}

static void *apart(void *relaxed)
{
	int file;

	must(unshare(CLONE_FILES) == 0);
	pthread_barrier_wait(&left);
	file = open(name, O_RDWR | O_CLOEXEC);
	must(file >= 0 && flock(file, LOCK_EX) == 0);
	registers(relaxed != NULL);
	return NULL;
}

static int part(bool relaxed)
{
	struct pollfd end;
	pthread_t thread;
	long before;
	int file, answer = 0;

	must(pipe(ends) == 0 && (file = mkstemp(name)) >= 0);
	memory = pages(1);
	must(pthread_barrier_init(&left, NULL, 2) == 0);
	must(pthread_create(&thread, NULL, apart, relaxed ? memory : NULL) == 0);
	pthread_barrier_wait(&left);
	close(ends[1]);
	must(pthread_join(thread, NULL) == 0);
	end = (struct pollfd){ ends[0], POLLIN, 0 };
	/* The kernel closes the files of an ended thread a moment after its join. */
	if (!comes(poll(&end, 1, 0) == 1 && end.revents & POLLHUP))
		answer |= PIPE;
	if (!comes(flock(file, LOCK_EX | LOCK_NB) == 0))
		answer |= LOCK;
	before = stub_registered();
	registers(relaxed);
	/* After a refusal some registrations are plain, and then the cache keeps one region. */
	for (int round = 0; round < 20; round++)
		registers(relaxed);
	if (userfaultfds(NULL) != 1 || stub_registered() - before > 40)
		answer |= REUSE;
	unlink(name);
	return answer;
}

int main(int argc, char **argv)
{
	static const char *const settings[] = { "RDMAMR_CACHE=all", "RDMAMR_CACHE_LINGER=" FOREVER, NULL };
	const char *why = stub_open(STUB_PIN);

	if (why)
		skip_all(why);
	if (argc > 1)
		return part(strcmp(argv[1], "plain") != 0);
	must(unshare(CLONE_FILES) == 0 || errno == EPERM);
	if (errno == EPERM)
		skip_all("unshare is refused here");
	for (int n = 0; n < 2; n++) {
		int answer = once_more(n ? "relaxed" : "plain", settings);

		case_begin("%s registrations of a thread with a table of its own", n ? "relaxed" : "plain");
		ok(!(answer & ~ALL), "the child ended with %d", answer);
		ok(!(answer & PIPE), "its pipe has ended with it");
		ok(!(answer & LOCK), "its lock is free");
		ok(!(answer & REUSE), "another thread's regions are reused");
		case_end();
	}
	return done_testing();
}
