/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program filters its system calls, and the filter kills it at a call that rdma-core does not need for what
 * the program does then. Each row makes one of the calls that the library takes over. The library has been
 * asked for nothing before, or has registered memory. Without the library the rows pass too.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "../lib/device.h"
#include "../lib/rows.h"

#define ALLOWED(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct ibv_pd *pd;
static char *page;

/* After a registration it comes too late. */
static void forks(void) { must(ibv_fork_init() == (row->value ? EINVAL : 0)); }

/* What rdma-core's verbs of memory, the C library's allocator and the end of a process need, and the result's line. */
static void set_filter(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOWED(SYS_ioctl), ALLOWED(SYS_write), ALLOWED(SYS_close), ALLOWED(SYS_mmap), ALLOWED(SYS_munmap),
		ALLOWED(SYS_brk), ALLOWED(SYS_exit_group),
		/* rdma-core 44 tries it. */
		ALLOWED(row->act == forks ? SYS_madvise : SYS_exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	const struct sock_fprog program = { sizeof(rules) / sizeof(*rules), rules };

	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static struct ibv_mr *reg(void) { return ibv_reg_mr(pd, page, PAGE, LOCAL_AND_REMOTE); }

static void registers(void)
{
	for (int n = 0; n < 5; n++) {
		struct ibv_mr *mr = reg();

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

static void registers_by_iova(void)
{
	struct ibv_mr *mr = ibv_reg_mr_iova(pd, page, PAGE, 0x10000, LOCAL_AND_REMOTE);

	must(mr && ibv_dereg_mr(mr) == 0);
}

static void is_refused(void)
{
	for (int n = 0; n < 5; n++)
		must(!ibv_reg_mr(pd, (void *)0x10000, PAGE, LOCAL_AND_REMOTE) && errno == EFAULT);
}

static void wrong_access(void)
{
	must(!ibv_reg_mr(pd, page, PAGE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
}

static void dmabuf_is_refused(void) { must(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, LOCAL_AND_REMOTE)); }

static void changes(void)
{
	struct ibv_mr *mr = reg();

	must(mr);
	(void)ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	must(ibv_dereg_mr(mr) == 0);
}

static void deallocates(void) { must(ibv_dealloc_pd(pd) == 0); }

static void closes(void)
{
	struct ibv_context *context = pd->context;

	must(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

static void ends(void) { }

#define ROWS_OF(words, act)                                                                  \
	{ words ", first", act }, { words ", first, RDMAMR_CACHE=all", act, .settings = "RDMAMR_CACHE=all" }, \
	{ words ", after registrations", act, 1 },                                            \
	{ words ", after registrations, RDMAMR_CACHE=local", act, 1, .settings = "RDMAMR_CACHE=local" }, \
	{ words ", after registrations, RDMAMR_CACHE=all", act, 1, .settings = "RDMAMR_CACHE=all" }
static const struct row rows[] = {
	ROWS_OF("registers", registers),
	ROWS_OF("registers at an iova", registers_by_iova),
	ROWS_OF("a registration is refused", is_refused),
	ROWS_OF("a registration has wrong access flags", wrong_access),
	ROWS_OF("a dma-buf is refused", dmabuf_is_refused),
	ROWS_OF("changes a region", changes),
	ROWS_OF("deallocates a domain", deallocates),
	ROWS_OF("closes a device", closes),
	ROWS_OF("ends", ends),
	{ "ends, after registrations, RDMAMR_LIVE=0", ends, 1, .settings = "RDMAMR_LIVE=0" },
	ROWS_OF("keeps memory from children", forks),
};

static void around(void)
{
	pd = domain_of_device();
	page = pages(1);
	if (row->value)
		registers();
	/* The C library looks at the file at the first output. */
	printf("# a filter is set\n");
	fflush(stdout);
	set_filter();
	row->act();
	ok(true, "the filter has not killed");
}

RUN_ROWS("RDMAMR_CACHE=off", around)
