/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef DEVICE_H
#define DEVICE_H

#include <infiniband/verbs.h>
#include <string.h>

/* A domain of a device, or NULL. */
static inline struct ibv_pd *domain_of(const char *device)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int n = 0; list && list[n]; n++)
		if (!strcmp(ibv_get_device_name(list[n]), device))
			context = ibv_open_device(list[n]);
	return context ? ibv_alloc_pd(context) : NULL;
}

#endif
