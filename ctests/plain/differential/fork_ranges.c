/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The pages that libibverbs keeps from children (ibv_fork_init) if it cannot ask the kernel whether it copies
 * registered pages: while memory is registered, counted where regions overlap, not after a failure, not on demand.
 */
#include <linux/netlink.h>
#include <sys/syscall.h>
#include "../../lib/program.h"
#include "../../lib/verdict.h"

enum { COUNT = 6 };

/* A letter for each page: D if a child would not get it (VmFlags "dc" of smaps), else a dot. */
static const char *kept(char *memory)
{
	static char letters[COUNT + 1];

	for (int n = 0; n < COUNT; n++)
		letters[n] = vm_flag(memory + n * PAGE, "dc") ? 'D' : '.';
	return letters;
}

/* libibverbs reads its environment once: each part in a process of its own. */
static struct ibv_pd *domain(void)
{
	must(refuse_calls(SYS_socket, 2, NETLINK_RDMA, EACCES));
	return domain_of_device();
}

static void late(void)
{
	struct ibv_mr *mr = ibv_reg_mr(domain(), pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	int err;

	must(mr);
	err = ibv_fork_init();
	verdict("ibv_fork_init after a registration\t%s", name_of(err));
}

static void ranges(void)
{
	struct ibv_pd *pd;
	struct ibv_mr *first, *second;
	char *memory;

	must(setenv("RDMAV_FORK_SAFE", "1", 1) == 0);
	pd = domain();
	memory = pages(COUNT);
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
	in_part(late);
	in_part(ranges);
	return 0;
}
