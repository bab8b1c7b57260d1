/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A garbage collector stops all other threads by a signal whose handler waits, and then unmaps
 * memory. A thread that was stopped inside the cache holds the cache's lock. The unmapping thread
 * does not wait for it, and no region of the unmapped memory is reused.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { ROUNDS = 400, COUNT = 4, LENGTH = COUNT * PAGE, PLACES = 60 };

static sem_t stopped, go;
static atomic_bool done;

static void stop(int number)
{
	int before = errno;

	(void)number;
	sem_post(&stopped);
	while (sem_wait(&go) != 0)
		;
	errno = before;
}

static void *registers(void *unused)
{
	char *memory = pages(PLACES * COUNT);

	for (unsigned round = 0; !done; round++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + round % PLACES * LENGTH, LENGTH - round % 3 * PAGE, LOCAL_AND_REMOTE);

		must(mr);
		must(ibv_dereg_mr_relaxed(mr) == 0);
		if (round % 16 == 0)
			must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	}
	return unused;
}

static void is_hung(int number)
{
	static const char text[] = "Bail out! munmap waits for a thread that is stopped\n";

	(void)number;
	if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

int main(int argc, char **argv)
{
	const char *why;
	struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};
	pthread_t thread;
	int wrong = 0;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	must(sem_init(&stopped, 0, 0) == 0 && sem_init(&go, 0, 0) == 0);
	must(sigaction(SIGUSR1, &action, NULL) == 0);
	signal(SIGALRM, is_hung);
	must(pthread_create(&thread, NULL, registers, NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		char *memory = pages(COUNT);
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
		alarm(DEADLOCK);
		must(pthread_kill(thread, SIGUSR1) == 0);
		must(sem_wait(&stopped) == 0);
		must(munmap(memory, LENGTH) == 0);
		must(sem_post(&go) == 0);
		must(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
		mr = ibv_reg_mr_relaxed(stub_pd(), memory, LENGTH, LOCAL_AND_REMOTE);
		must(mr);
		memory[0] = 1;
		must(stub_write(mr, 2) == 0);
		wrong += memory[0] != 2;
		must(ibv_dereg_mr_relaxed(mr) == 0);
		must(munmap(memory, LENGTH) == 0);
	}
	done = true;
	must(pthread_join(thread, NULL) == 0);
	ok(true, "munmap returns in %d rounds, whatever the stopped thread holds", ROUNDS);
	is(wrong, 0, "and no stale region is handed out");
	return done_testing();
}
