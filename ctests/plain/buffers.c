/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ibv_reg_mr_ex of a buffer of ibv_alloc_buf (rdma-core 64), by which ibv_reg_buf_mr registers: the
 * library serves ordinary memory, by the cache too, and leaves to libibverbs what it refuses, and
 * what has a dma-buf.
 *
 * The device is the stand-in (stub_device.h). The buffers are made here, with the fields of
 * rdma-core's private structure, since older releases have none.
 */
#include <dlfcn.h>
#include "../lib/init_attr.h"
#include "../lib/observe.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

struct buffer {
	void *addr;
	size_t size;
	struct ibv_pd *pd;
	int dmabuf_fd;
};

static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct init_attr *);

static struct ibv_mr *reg(struct buffer *buffer, char *addr, size_t length)
{
	struct init_attr attr = {
		.length = length, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = MASK_ADDR | MASK_BUF, .addr = addr, .buffer = buffer,
	};

	return reg_mr_ex(stub_pd(), &attr);
}

/* The library forwards it: the libibverbs of this machine refuses it, or lacks the call. */
static void is_forwarded(const char *name, struct buffer *buffer, char *addr, size_t length)
{
	uint64_t before = stats().reg_kernel;

	ok(!reg(buffer, addr, length) && stats().reg_kernel == before, "%s is left to libibverbs", name);
}

int main(void)
{
	char *memory = pages(2);
	struct buffer buffer = { .addr = memory, .size = 2 * PAGE, .dmabuf_fd = -1 }, other;
	struct ibv_mr *mr;

	must(stub_open(STUB_NOTHING) == NULL);
	*(void **)&reg_mr_ex = dlvsym(RTLD_DEFAULT, "ibv_reg_mr_ex", "IBVERBS_1.15");
	must(reg_mr_ex);
	buffer.pd = stub_pd();
	for (int n = 0; n < 3; n++) {
		mr = reg(&buffer, memory + PAGE, PAGE);
		ok(mr && mr->addr == memory + PAGE && mr->length == PAGE, "ordinary memory is registered");
		must(mr && ibv_dereg_mr(mr) == 0);
	}
	is((long long)stats().reg_kernel, 2, "the library registered it");
	is((long long)stats().hits, 1, "and the third time the cache did");

	is_forwarded("memory past the buffer's end", &buffer, memory + PAGE, PAGE + 1);
	is_forwarded("memory before the buffer", &(struct buffer){ memory + PAGE, PAGE, buffer.pd, -1 }, memory, PAGE);
	other = buffer;
	other.pd = (struct ibv_pd *)&other;
	is_forwarded("a buffer of another domain", &other, memory, PAGE);
	other = buffer;
	other.dmabuf_fd = 1000;
	is_forwarded("a buffer with a dma-buf", &other, memory, PAGE);
	return done_testing();
}
