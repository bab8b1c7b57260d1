/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ioctl.h>
#include "device.h"

/* UVERBS_METHOD_INFO_HANDLES, of each driver until one answers. */
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
