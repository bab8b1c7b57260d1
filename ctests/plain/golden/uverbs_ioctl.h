/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* For libraries that are preloaded: an ioctl() that passes those of uverbs to uverbs_ioctl(), and all others on. */
#ifndef UVERBS_IOCTL_H
#define UVERBS_IOCTL_H

#include <dlfcn.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <stdarg.h>
#include <sys/ioctl.h>

typedef int (*next_ioctl)(int fd, unsigned long request, ...);

/* The library's answer to an ioctl of uverbs; `next` passes the ioctl to the kernel. */
static int uverbs_ioctl(int fd, struct ib_uverbs_ioctl_hdr *header, next_ioctl next);

int ioctl(int fd, unsigned long request, ...)
{
	static next_ioctl next;
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "ioctl");
	return request == RDMA_VERBS_IOCTL ? uverbs_ioctl(fd, argument, next) : next(fd, request, argument);
}

#endif
