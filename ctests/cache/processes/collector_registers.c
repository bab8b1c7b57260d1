/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A garbage collector stops a thread by a signal whose handler waits. The collector itself
 * registers memory, deregisters and flushes it, unmaps it and forks. The stopped thread may be
 * anywhere in the library: it starts the cache, it holds the cache's lock, or it registers or
 * deregisters a region. Each call of the collector returns, with the result that it has without the
 * library, and no stale region is handed out. When the thread goes on, it finds all in order.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { COUNT = 8, LENGTH = COUNT * PAGE, TIMES = 3, COLLECTIONS = 3, RIGHT = 42 };

enum place { IN_THE_START, WITH_THE_LOCK, IN_A_REGISTRATION, IN_A_DEREGISTRATION, PLACES };

static const char *const in_words[] = {
	"while it starts the cache", "while it holds the cache's lock", "in a registration", "in a deregistration",
};

static enum place place;
static _Atomic pid_t mutator;
static atomic_bool armed;
static atomic_bool done;
static sem_t stopped, go;

/* The collector's signal. */
static void stop(int number)
{
	int before = errno;

	(void)number;
	if (stub_syscall(SYS_gettid) != mutator)
		return;
	sem_post(&stopped);
	while (sem_wait(&go) != 0)
		;
	errno = before;
}

static int stops_at(long number, const long *argument)
{
	switch (place) {
	case IN_THE_START:
		return number == SYS_userfaultfd;
	case WITH_THE_LOCK:
		return number == SYS_ioctl && argument[1] == (long)UFFDIO_UNREGISTER;
	default:
		return 0;
	}
}

/* Runs before each system call of the library, and raises the signal at the right one. */
static void interrupts(long number, const long *argument)
{
	if (armed && stops_at(number, argument) && stub_syscall(SYS_gettid) == mutator) {
		armed = false;
		stub_syscall(SYS_tkill, mutator, SIGUSR1);
	}
}

static struct ibv_mr *registered(char *memory, bool relaxed)
{
	struct ibv_mr *mr = relaxed ? ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE) :
				      ibv_reg_mr(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

static void deregister(struct ibv_mr *mr, bool relaxed)
{
	must((relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr)) == 0);
}

static void *mutates(void *unused)
{
	char *memory = pages(COUNT);

	(void)unused;
	if (place == IN_A_DEREGISTRATION)
		stub_signal = SIGUSR1;
	mutator = (pid_t)syscall(SYS_gettid);
	armed = true;
	do {
		struct ibv_mr *mr = registered(memory, true);

		must(stub_lands(mr));
		deregister(mr, true);
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	} while (!done);
	return NULL;
}

static void collects(char *memory, char *idle)
{
	pid_t child;
	int status;

	for (int time = 0; time < TIMES; time++) {
		for (int relaxed = 0; relaxed < 2; relaxed++) {
			struct ibv_mr *mr = registered(memory, relaxed);

			must(stub_lands(mr));
			deregister(mr, relaxed);
		}
		must(munmap(memory, LENGTH) == 0);
		fresh_at(memory, LENGTH);
	}
	deregister(registered(idle, true), true);
	child = fork();
	must(child >= 0);
	if (child == 0)
		_exit(RIGHT);
	must(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == RIGHT);
	ibv_flush_relaxed_mr(stub_pd());
}

static void is_hung(int number)
{
	static const char text[] = "# a call waits for a thread that is stopped\n";

	(void)number;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

static int in_a_process(void)
{
	struct sigaction action = { .sa_handler = stop, .sa_flags = SA_RESTART };
	char *memory = pages(COUNT), *idle = pages(COUNT);
	pthread_t thread;

	signal(SIGALRM, is_hung);
	alarm(DEADLOCK);
	must(!stub_open(STUB_PIN));
	must(sem_init(&stopped, 0, 0) == 0 && sem_init(&go, 0, 0) == 0);
	must(sigaction(SIGUSR1, &action, NULL) == 0);
	if (place != IN_THE_START)
		for (int time = 0; time < TIMES; time++) {
			deregister(registered(memory, true), true);
			deregister(registered(idle, true), true);
		}
	stub_before = interrupts;
	must(pthread_create(&thread, NULL, mutates, NULL) == 0);
	for (int collection = 0; collection < COLLECTIONS; collection++) {
		if (place == IN_A_REGISTRATION) {
			must(comes(mutator != 0));
			stub_slow = 20;
			usleep(5000);
			must(pthread_kill(thread, SIGUSR1) == 0);
		}
		must(sem_wait(&stopped) == 0);
		stub_slow = 0;
		stub_signal = 0;
		collects(memory, idle);
		if (collection + 1 == COLLECTIONS || place == IN_THE_START)
			done = true;
		else if (place == IN_A_DEREGISTRATION)
			stub_signal = SIGUSR1;
		else
			armed = true;
		must(sem_post(&go) == 0);
		if (place == IN_THE_START)
			break;
	}
	must(pthread_join(thread, NULL) == 0);
	stub_before = NULL;
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	if (!comes(stub_deregistered() == stub_registered()))
		return 3;
	return RIGHT;
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE", "all");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	for (place = 0; place < PLACES; place++) {
		pid_t child;
		int status;

		fflush(stdout);
		child = fork();
		must(child >= 0);
		if (child == 0)
			_exit(in_a_process());
		must(waitpid(child, &status, 0) == child);
		ok(WIFEXITED(status) && WEXITSTATUS(status) == RIGHT, "a collector that has stopped a thread %s goes on",
		   in_words[place]);
	}
	return done_testing();
}
