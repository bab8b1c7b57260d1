/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Preloaded, makes the kernel one whose device has gone while regions exist: deregistering them is EIO. */
#include <dlfcn.h>
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <stdarg.h>
#include <sys/ioctl.h>

int ioctl(int fd, unsigned long request, ...)
{
	static int (*next)(int, unsigned long, ...);
	const struct ib_uverbs_ioctl_hdr *header;
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "ioctl");
	header = argument;
	if (request == RDMA_VERBS_IOCTL && header->object_id == UVERBS_OBJECT_MR &&
	    header->method_id == UVERBS_METHOD_MR_DESTROY) {
		errno = EIO;
		return -1;
	}
	return next(fd, request, argument);
}
