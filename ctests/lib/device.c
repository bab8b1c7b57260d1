/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "device.h"
#include <dlfcn.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ioctl.h>

struct ibv_context *open_named(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	must(list);
	for (int n = 0; list[n]; n++)
		if (!strcmp(ibv_get_device_name(list[n]), name))
			context = ibv_open_device(list[n]);
	ibv_free_device_list(list);
	return context;
}

struct ibv_context *open_device(void)
{
	const char *name = getenv("CHECK_DEVICE");
	struct ibv_context *context;

	must(name);
	context = open_named(name);
	must(context);
	return context;
}

struct ibv_pd *domain_of_device(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_device());

	must(pd);
	return pd;
}

void *of_libibverbs(const char *name, const char *version)
{
	void *function = dlvsym(dlopen("libibverbs.so.1", RTLD_NOW), name, version);

	must(function);
	return function;
}

struct rdmamr_stats stats(void)
{
	struct rdmamr_stats now = { 0 };

	if (rdmamr_get_stats)
		must(rdmamr_get_stats(&now, sizeof(now)) == 0);
	return now;
}

/* Asks by UVERBS_METHOD_INFO_HANDLES for one driver after the other until one answers. */
int kernel_regions(struct ibv_context *context)
{
	for (uint32_t driver = 0; driver < 32; driver++) {
		static uint32_t list[200000];
		uint32_t total = 0;
		struct {
			struct ib_uverbs_ioctl_hdr header;
			struct ib_uverbs_attr attrs[3];
		} bundle = {
			.header = {
				.length = sizeof(bundle),
				.object_id = UVERBS_OBJECT_DEVICE,
				.method_id = UVERBS_METHOD_INFO_HANDLES,
				.num_attrs = 3,
				.driver_id = driver,
			},
			.attrs = {
				{ .attr_id = UVERBS_ATTR_INFO_OBJECT_ID, .len = 8,
				  .flags = UVERBS_ATTR_F_MANDATORY, .data = UVERBS_OBJECT_MR },
				{ .attr_id = UVERBS_ATTR_INFO_TOTAL_HANDLES, .len = 4,
				  .flags = UVERBS_ATTR_F_MANDATORY, .data = (uintptr_t)&total },
				{ .attr_id = UVERBS_ATTR_INFO_HANDLES_LIST, .len = 65532,
				  .flags = UVERBS_ATTR_F_MANDATORY, .data = (uintptr_t)list },
			},
		};

		if (!ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, &bundle))
			return (int)total;
		if (errno == ENOSPC)
			return 65532 / 4; /* at least */
	}
	return -1;
}
