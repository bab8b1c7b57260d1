/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process without a cache forks while another thread is in a call that changes memory in a way
 * that userfaultfd does not report, mprotect. As long as such a call is under way, a cache that
 * starts keeps no region, because it may not learn of the change. In the child the call never ends,
 * since its thread does not exist there: the child's cache keeps regions.
 *
 * The device is the stand-in (stub_device.h). A filter of system calls stops the thread in the
 * kernel's call: its handler of the filter's signal waits.
 */
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { STAYS = 7 * PAGE };

static sem_t in_call, go_on;

static void stays(int signal)
{
	(void)signal;
	sem_post(&in_call);
	while (sem_wait(&go_on))
		;
}

static void *protects(void *memory)
{
	/* The result is the handler's, since the filter's signal takes the place of the call. */
	mprotect(memory, STAYS, PROT_READ);
	return NULL;
}

static bool is_used_again(void)
{
	char *memory = pages(1);
	long before;

	for (int times = 0; times < 2; times++) {
		struct ibv_mr *mr;

		before = stub_registered();
		mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
		must(mr && stub_lands(mr));
		must(ibv_dereg_mr_relaxed(mr) == 0);
	}
	return stub_registered() == before;
}

static int in_child(void)
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		_exit(stub_open(STUB_PIN) || !is_used_again());
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
	const struct sigaction action = { .sa_handler = stays };
	pthread_t thread;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (in_child())
		skip_all("userfaultfd or io_uring is refused here");
	must(sem_init(&in_call, 0, 0) == 0 && sem_init(&go_on, 0, 0) == 0);
	must(sigaction(SIGSYS, &action, NULL) == 0);
	if (filter_calls(SYS_mprotect, 1, STAYS, SECCOMP_RET_TRAP, 0))
		skip_all("this process can have no filter of system calls");
	must(pthread_create(&thread, NULL, protects, pages(STAYS / PAGE)) == 0);
	while (sem_wait(&in_call))
		;
	is(in_child(), 0, "a child forked during a call of another thread reuses regions");
	must(!stub_open(STUB_PIN));
	ok(!is_used_again(), "its parent reuses none during the call");
	sem_post(&go_on);
	must(pthread_join(thread, NULL) == 0);
	ok(is_used_again(), "and reuses regions after it");
	return done_testing();
}
