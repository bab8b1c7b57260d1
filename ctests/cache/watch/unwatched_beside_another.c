/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache stops watching memory. Between its decision and its system call another thread unmaps
 * the memory by raw system calls, and another userfaultfd watches the memory that is mapped there.
 * Before Linux 6.16 the kernel lets one userfaultfd unregister the memory of another; the other
 * must keep its memory all the same. A seccomp filter holds the cache's system call meanwhile.
 */
#include "../../lib/observe.h"
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

static struct pair pair;
static int other;
static char *memory;
static _Atomic int listener = -1, may_take, has_taken;

static void *flushes(void *argument)
{
	/* This thread's calls that unregister memory wait for an answer. */
	listener = filter_calls(SYS_ioctl, 1, (uint32_t)UFFDIO_UNREGISTER, SECCOMP_RET_USER_NOTIF,
				SECCOMP_FILTER_FLAG_NEW_LISTENER);
	must(listener >= 0);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	return argument;
}

static void *takes(void *argument)
{
	struct uffdio_register registration = {
		.range = { (uintptr_t)memory, PAGE },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	while (!may_take)
		usleep(1000);
	raw_remap(memory, PAGE);
	must(ioctl(other, UFFDIO_REGISTER, &registration) == 0);
	has_taken = 1;
	return argument;
}

/* Lets one held call go on, a second later, in which another can take the memory. */
static void let_go_on(void)
{
	struct seccomp_notif held = { 0 };
	struct seccomp_notif_resp answer = { .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };

	must(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &held) == 0);
	may_take = 1;
	for (int left = 100; left > 0 && !has_taken; left--)
		usleep(10000);
	answer.id = held.id;
	must(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0);
}

static bool other_watches(void)
{
	struct uffdio_writeprotect nothing = { .range = { (uintptr_t)memory, PAGE } };

	return ioctl(other, UFFDIO_WRITEPROTECT, &nothing) == 0;
}

int main(int argc, char **argv)
{
	struct pollfd held = { .events = POLLIN };
	pthread_t flusher, taker;
	int calls = 0;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	relaxed_open(&pair);
	other = open_userfaultfd(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
	must(other >= 0);
	memory = pages(1);
	control(&pair, "memory that the cache watches", memory, PAGE);
	must(pthread_create(&taker, NULL, takes, NULL) == 0 && pthread_create(&flusher, NULL, flushes, NULL) == 0);
	must(comes(listener >= 0));
	/* The filter goes with the thread. */
	for (held.fd = listener; poll(&held, 1, -1) == 1 && held.revents & POLLIN; calls++)
		let_go_on();
	must(pthread_join(flusher, NULL) == 0);
	is(calls, 1, "the cache stops watching the memory");
	may_take = 1;
	must(pthread_join(taker, NULL) == 0);
	ok(other_watches(), "and the other userfaultfd keeps the memory that it has taken meanwhile");
	ok(lands(&pair, memory, PAGE), "data lands in the current page");
	close(other);
	return relaxed_close(&pair);
}
