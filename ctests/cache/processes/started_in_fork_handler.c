/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A fork handler of the program makes the first registrations of the process, so the cache starts
 * there. Before glibc 2.36 a thread that calls pthread_atfork in a fork handler waits for itself. So
 * this program counts the handlers that the library registers there, and registers them as glibc
 * does. The child has no file of its parent's cache.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

static bool forking;
static int registered, registered_in_fork;
static struct ibv_mr *mr;
static char *memory;

typedef int registering(void (*)(void), void (*)(void), void (*)(void), void *);
registering __register_atfork;

/* glibc's pthread_atfork calls this function. */
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library)
{
	registering *glibcs = (registering *)dlsym(RTLD_NEXT, "__register_atfork");

	registered++;
	registered_in_fork += forking;
	return glibcs(prepare, parent, child, library);
}

static void before(void)
{
	forking = true;
	for (int round = 0; round < 2; round++) {
		mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
}

static void after(void)
{
	forking = false;
}

int main(void)
{
	const char *why = stub_open(STUB_NOTHING);
	struct rdmamr_stats stats;
	int status, files;
	pid_t child;

	if (why)
		skip_all(why);
	alarm(DEADLOCK);
	memory = pages(1);
	ok(registered > 0, "the library registers its fork handlers when it is loaded");
	must(pthread_atfork(before, after, after) == 0);
	child = fork();
	if (child == 0)
		_exit(userfaultfds(NULL));
	must(child > 0 && waitpid(child, &status, 0) == child);
	must(rdmamr_get_stats(&stats, sizeof(stats)) == 0);
	is(stats.hits, 1, "a fork handler of the program registers memory for the second time, from the cache");
	is(registered_in_fork, 0, "and none in a fork handler in which the cache starts");
	files = userfaultfds(NULL);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child of that fork has no userfaultfd (its parent has %d)", files);
	return done_testing();
}
