/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * With RDMAV_FORK_SAFE=1 libibverbs keeps registered memory from children, as long as it is
 * registered, if it cannot ask the kernel whether it copies that memory for them. The cache then
 * serves no call: relaxed calls get plain regions, and children get their memory again after the
 * deregistration. Threads use the same memory.
 */
#include "../../lib/reuse.h"
#include <linux/netlink.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { COUNT = 4, SECONDS = 4 };

static struct pair pair;
static char *memory;
static time_t deadline;

static void *use(void *argument)
{
	unsigned int seed = *(unsigned int *)argument;
	long failed = 0;

	while (time(NULL) < deadline) {
		char *page = memory + rand_r(&seed) % COUNT * PAGE;
		int access = rand_r(&seed) % 2 ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE;
		struct ibv_mr *mr = register_region(pair.pd, page, PAGE, access);

		failed += !mr || deregister_region(mr) != 0;
	}
	return (void *)failed;
}

/* The number of pages that madvise(MADV_DONTFORK) keeps from children: "dc" in the flags. */
static int kept_from_children(void)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	uintptr_t start = 0, end = 0, from = (uintptr_t)memory, to = from + COUNT * PAGE;
	char line[512];
	int pages = 0;

	must(file);
	while (fgets(line, sizeof(line), file)) {
		uintptr_t first, last;

		if (sscanf(line, "%lx-%lx ", &first, &last) == 2) {
			start = first;
			end = last;
		}
		if (strncmp(line, "VmFlags:", 8) != 0 || !strstr(line, " dc"))
			continue;
		if (start < to && end > from)
			pages += (int)(((end < to ? end : to) - (start > from ? start : from)) / PAGE);
	}
	fclose(file);
	return pages;
}

int main(int argc, char **argv)
{
	unsigned int seeds[] = { 1, 2, 3 };
	pthread_t threads[3];
	struct ibv_mr *mr;
	long failed = 0;
	int status;
	pid_t pid;

	with_setting(argv, "RDMAV_FORK_SAFE", "1");
	(void)argc;
	alarm(DEADLOCK);
	must(refuse_calls(SYS_socket, 2, NETLINK_RDMA, EACCES));
	relaxed_open(&pair);
	memory = pages(COUNT);
	mr = register_region(pair.pd, memory, COUNT * PAGE, LOCAL_AND_REMOTE);
	must(mr);
	is(kept_from_children(), COUNT, "registered memory is kept from children");
	must(deregister_region(mr) == 0);
	is(kept_from_children(), 0, "and children get it again when it is deregistered");
	ok(stats().bypassed_fork > 0 && stats().misses == 0, "the cache serves no relaxed call");
	deadline = time(NULL) + SECONDS;
	for (int n = 0; n < 3; n++)
		must(pthread_create(&threads[n], NULL, use, &seeds[n]) == 0);
	for (int n = 0; n < 3; n++) {
		void *result;

		must(pthread_join(threads[n], &result) == 0);
		failed += (long)result;
	}
	is(failed, 0, "three threads use the same pages");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "and flush");
	is(kept_from_children(), 0, "after that children get all of it");
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		memset(memory, 1, COUNT * PAGE);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid);
	is(status, 0, "a child can write to it");
	return relaxed_close(&pair);
}
