/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Preloaded, simulates a kernel before 5.9, whose ioctl does not know QUERY_MR. */
#include <errno.h>
#include "uverbs_ioctl.h"

static int uverbs_ioctl(int fd, struct ib_uverbs_ioctl_hdr *header, next_ioctl next)
{
	/* The answer to a method that no kernel has distinguishes a wrong driver (EINVAL) from a right one. */
	struct ib_uverbs_ioctl_hdr ask = {
		.length = sizeof(ask),
		.object_id = UVERBS_OBJECT_DEVICE,
		.method_id = 0xfff,
		.driver_id = header->driver_id,
	};

	if (header->object_id != UVERBS_OBJECT_MR || header->method_id != UVERBS_METHOD_QUERY_MR)
		return next(fd, RDMA_VERBS_IOCTL, header);
	if (next(fd, RDMA_VERBS_IOCTL, &ask) && errno != EPROTONOSUPPORT)
		return -1;
	errno = EPROTONOSUPPORT;
	return -1;
}
