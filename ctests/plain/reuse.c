/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Two devices, two domains, and addresses that are reused: no object may find the state of an
 * earlier one.
 */
#include "../lib/device.h"

static char *memory;

/*
 * A context at the address of another device's context, which was closed without the library: the
 * library's record of the address is outdated. The test cannot make the memory of a context come
 * back, so it changes the file behind it.
 */
static void other_driver(struct ibv_context *context)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *other = NULL;
	struct ibv_pd *pd = ibv_alloc_pd(context), *other_pd, disguised;
	int fd = context->cmd_fd, wrong = 0;

	for (int n = 0; list[n]; n++)
		if (strcmp(ibv_get_device_name(list[n]), getenv("CHECK_DEVICE")))
			other = ibv_open_device(list[n]);
	ibv_free_device_list(list);
	if (!other) {
		skip("another driver at the same address", "there is one device only");
		return;
	}
	other_pd = ibv_alloc_pd(other);
	must(pd && other_pd);
	disguised = *other_pd;
	disguised.context = context;
	for (int round = 0; round < 10; round++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);

		wrong += !mr || ibv_dereg_mr(mr) != 0;
		context->cmd_fd = other->cmd_fd;
		mr = ibv_reg_mr(&disguised, memory, PAGE, LOCAL_AND_REMOTE);
		wrong += !mr || ibv_dereg_mr(mr) != 0;
		context->cmd_fd = fd;
	}
	is(wrong, 0, "two drivers in turn at the same address");
	is((long long)stats().reg_next, 0, "each by its own rules");
	is(kernel_regions(context) + kernel_regions(other), 0, "the kernels have none");
	must(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(other_pd) == 0 && ibv_close_device(other) == 0);
}

int main(void)
{
	struct ibv_context *contexts[2] = { open_device(), open_device() };
	struct ibv_pd *pds[2][2], *pd, *last = NULL;
	struct ibv_mr *regions[2][2];
	int returned = 0, failed = 0;

	memory = pages(1);

	for (int n = 0; n < 4; n++) {
		pds[n / 2][n % 2] = ibv_alloc_pd(contexts[n / 2]);
		regions[n / 2][n % 2] = ibv_reg_mr(pds[n / 2][n % 2], memory, PAGE, LOCAL_AND_REMOTE);
		must(regions[n / 2][n % 2]);
	}
	is((long long)stats().live, 4, "two devices, two domains each, a region each");
	ok(regions[0][0]->handle == regions[1][0]->handle, "the kernel's handles are the same in both devices");
	is(ibv_dereg_mr(regions[1][0]), 0, "one of the second device");
	is(kernel_regions(contexts[0]), 2, "leaves the first its two");
	is(kernel_regions(contexts[1]), 1, "and the second one");
	is(ibv_close_device(contexts[1]), 0, "closing the second with a region");
	is((long long)stats().live, 2, "leaves two");
	is((long long)stats().ended_elsewhere, 1, "and counts that one as ended elsewhere");
	is(ibv_dereg_mr(regions[0][0]), 0, "the first device's first");
	is(ibv_dereg_mr(regions[0][1]), 0, "and second region");
	is(ibv_dealloc_pd(pds[0][0]), 0, "its first domain");
	is(ibv_dealloc_pd(pds[0][1]), 0, "its second domain");

	for (int round = 0; round < 100; round++) {
		struct ibv_mr *mr;

		pd = ibv_alloc_pd(contexts[0]);
		returned += pd == last;
		last = pd;
		mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);
		failed += !mr || ibv_dealloc_pd(pd) != EBUSY || ibv_dereg_mr(mr) != 0 ||
			  ibv_dealloc_pd(pd) != 0;
	}
	is(failed, 0, "domains allocated and deallocated");
	ok(returned > 0, "%d times at the same address", returned);
	other_driver(contexts[0]);
	is(ibv_close_device(contexts[0]), 0, "the first device");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
