/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* 100 000 regions at once, by the kernel's own count, and back to none. */
#include "../lib/device.h"

enum { MANY = 100000 };

/*
 * The number of regions on the device, of all processes, as "rdma resource" reports it: the sum for
 * the device, which is quick, or with "show mr" a line for each.
 */
static int resources(const char *name, const char *filter)
{
	char command[128];
	int count = -1;
	FILE *pipe;

	snprintf(command, sizeof(command), filter, name);
	pipe = popen(command, "r");
	must(pipe && fscanf(pipe, "%d", &count) == 1);
	pclose(pipe);
	return count;
}

#define LINES "rdma resource show mr dev %s | wc -l"
#define SUM "rdma resource show %s | sed 's/.* mr \\([0-9]*\\).*/\\1/'"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr **regions = calloc(MANY, sizeof(*regions));
	const char *name = getenv("CHECK_DEVICE");
	char *memory = pages(1);
	int failed = 0, before = resources(name, LINES);

	must(pd && regions);
	for (int n = 0; n < MANY; n++)
		failed += !(regions[n] = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE));
	is(failed, 0, "%d regions are registered", MANY);
	is((long long)stats().live, MANY, "they are live");
	is((long long)stats().live_bytes, (long long)MANY * PAGE, "with their bytes");
	is(resources(name, SUM) - before, MANY, "rdma resource has them");
	/* In a random order, rather than that of registration or its reverse. */
	for (int n = 0; n < MANY; n++)
		failed += ibv_dereg_mr(regions[(n * 7919L) % MANY]) != 0;
	is(failed, 0, "they are deregistered");
	is((long long)(stats().live + stats().live_bytes), 0, "none is live");
	is(resources(name, LINES) - before, 0, "rdma resource show mr has none");
	is(ibv_dealloc_pd(pd), 0, "the domain has none");
	is(ibv_close_device(context), 0, "the device is closed");
	return done_testing();
}
