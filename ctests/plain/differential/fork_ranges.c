/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The pages that libibverbs keeps from children (ibv_fork_init): while memory is registered and not
 * afterwards, counted where regions overlap, not after a failure, not with on-demand paging.
 * libibverbs does so if it cannot ask the kernel whether it copies registered pages for children;
 * rdma-core before 51 does so on every kernel.
 */
#include <linux/netlink.h>
#include <sys/syscall.h>
#include "../../lib/program.h"
#include "../../lib/verdict.h"
#include <sys/wait.h>

enum { COUNT = 6 };

/* A letter for each page: D if a child would not get it (VmFlags "dc" of smaps), else a dot. */
static const char *kept(char *memory)
{
	static char letters[COUNT + 1];

	for (int n = 0; n < COUNT; n++)
		letters[n] = vm_flag(memory + n * PAGE, "dc") ? 'D' : '.';
	return letters;
}

static void late(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	char *memory = pages(1);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	int err;

	must(mr);
	err = ibv_fork_init();
	verdict("ibv_fork_init after a registration\t%s", err ? strerrorname_np(err) : "0");
}

static void ranges(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *first, *second;
	char *memory;

	must(setenv("RDMAV_FORK_SAFE", "1", 1) == 0);
	pd = ibv_alloc_pd(open_device());
	memory = pages(COUNT);
	must(pd);
	verdict("before\t%s", kept(memory));
	first = ibv_reg_mr(pd, memory + PAGE + 100, 2 * PAGE, LOCAL_AND_REMOTE);
	must(first);
	verdict("a region from the second page into the fourth\t%s", kept(memory));
	second = ibv_reg_mr(pd, memory + 3 * PAGE, 2 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(second);
	verdict("a second one, from the fourth\t%s", kept(memory));
	must(ibv_dereg_mr(first) == 0);
	verdict("without the first\t%s", kept(memory));
	must(!ibv_reg_mr(pd, memory, COUNT * PAGE, IBV_ACCESS_REMOTE_WRITE));
	verdict("after one that failed\t%s", kept(memory));
	first = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_ON_DEMAND);
	verdict("one with paging on demand%s\t%s", first ? "" : ", which failed", kept(memory));
	if (first)
		must(ibv_dereg_mr(first) == 0);
	must(ibv_dereg_mr(second) == 0);
	verdict("without any\t%s", kept(memory));
}

int main(void)
{
	void (*parts[])(void) = { late, ranges };

	/* libibverbs reads its environment once: each part in a process of its own. */
	for (int n = 0; n < 2; n++) {
		pid_t pid = must_fork();
		int status;

		if (!pid) {
			must(refuse_calls(SYS_socket, 2, NETLINK_RDMA, EACCES));
			parts[n]();
			exit(0);
		}
		must(waitpid(pid, &status, 0) == pid && status == 0);
	}
	return 0;
}
