/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Preloaded, simulates a kernel before 5.0, whose ioctl knows neither INVOKE_WRITE nor MR_DESTROY. */
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

	if (header->object_id != UVERBS_OBJECT_MR &&
	    (header->object_id != UVERBS_OBJECT_DEVICE || header->method_id != UVERBS_METHOD_INVOKE_WRITE))
		return next(fd, RDMA_VERBS_IOCTL, header);
	if (next(fd, RDMA_VERBS_IOCTL, &ask) && errno != EPROTONOSUPPORT)
		return -1;
	errno = EPROTONOSUPPORT;
	return -1;
}
