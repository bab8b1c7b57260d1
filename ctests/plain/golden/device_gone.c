/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Preloaded, simulates a kernel whose device has gone while regions exist: deregistering them is EIO. */
#include <errno.h>
#include "uverbs_ioctl.h"

static int uverbs_ioctl(int fd, struct ib_uverbs_ioctl_hdr *header, next_ioctl next)
{
	if (header->object_id == UVERBS_OBJECT_MR && header->method_id == UVERBS_METHOD_MR_DESTROY) {
		errno = EIO;
		return -1;
	}
	return next(fd, RDMA_VERBS_IOCTL, header);
}
