/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* fence_cost N: the ns of changes of memory, and of switches between processes, for bench/fence. */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "bench.h"

enum { PAGE = 4096 };
#define must(done) do { if (!(done)) { perror(#done); exit(1); } } while (0)

static char *page;

static char *unwatched(size_t length)
{
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED);
	return at;
}

static char *watched(size_t length)
{
	struct uffdio_api api = { .api = UFFD_API };
	static int watch = -1;
	char *at = unwatched(length);
	struct uffdio_register range = { .range = { (uintptr_t)at, length }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	if (watch < 0) {
		watch = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1);
		must(watch >= 0 && !ioctl(watch, UFFDIO_API, &api));
	}
	must(!ioctl(watch, UFFDIO_REGISTER, &range));
	return at;
}

/* ns of one: the least of 60 rounds, which nothing else has disturbed. */
static void cost_of(const char *what, void (*once)(void), int number)
{
	double least = 1e9;

	for (int round = 0; round < 60; round++) {
		double it = -clock_of(CLOCK_MONOTONIC);

		for (int n = 0; n < number; n++)
			once();
		it = (it + clock_of(CLOCK_MONOTONIC)) / number;
		least = it < least ? it : least;
	}
	printf("%s\t%.0f\n", what, least);
}

static int there[2], back[2];

static void maps_unwatched(void) { munmap(unwatched(PAGE), PAGE); }
static void maps_watched(void) { munmap(watched(PAGE), PAGE); }
static void maps_emptied(void) { madvise(page, PAGE, MADV_DONTNEED); }
static void protects(void) { mprotect(page, PAGE, PROT_READ), mprotect(page, PAGE, PROT_READ | PROT_WRITE); }
static void switches(void)
{
	char byte = 0;

	must(write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1);
}

int main(int argc, char **argv)
{
	int number = argc > 1 ? atoi(argv[1]) : 300;
	cpu_set_t first;
	pid_t other;
	char byte = 0;

	must(!pipe(there) && !pipe(back));
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	must(!sched_setaffinity(0, sizeof(first), &first));
	if (!(other = fork()))
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
	page = unwatched(PAGE);
	*page = 1;
	cost_of("a page mapped and unmapped", maps_unwatched, number);
	cost_of("madvise(MADV_DONTNEED)", maps_emptied, number);
	cost_of("mprotect, twice", protects, number);
	cost_of("a watched page mapped and unmapped", maps_watched, number);
	cost_of("two switches between processes", switches, number);
	kill(other, SIGKILL);
	return 0;
}

