/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Preloaded, makes the kernel one of before 5.0: it has the ioctl and checks the driver's number, but knows
 * neither INVOKE_WRITE nor MR_DESTROY. Everything else is the kernel's own.
 */
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
	if (request == RDMA_VERBS_IOCTL &&
	    ((header->object_id == UVERBS_OBJECT_DEVICE && header->method_id == UVERBS_METHOD_INVOKE_WRITE) ||
	     header->object_id == UVERBS_OBJECT_MR)) {
		/* A method that no kernel has tells a wrong driver (EINVAL) from a right one. */
		struct ib_uverbs_ioctl_hdr ask = {
			.length = sizeof(ask), .object_id = UVERBS_OBJECT_DEVICE,
			.method_id = 0xfff, .driver_id = header->driver_id,
		};

		if (next(fd, RDMA_VERBS_IOCTL, &ask) && errno != EPROTONOSUPPORT)
			return -1;
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return next(fd, request, argument);
}
