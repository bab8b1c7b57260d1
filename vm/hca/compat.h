/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Everything that differs between the kernels 6.1, 6.12 and 7.2, so that the other files know one
 * kernel only.
 */
#ifndef RDMAMR_HCA_COMPAT_H
#define RDMAMR_HCA_COMPAT_H

#include <linux/dma-buf.h>
#if __has_include(<linux/hex.h>)
#include <linux/hex.h>
#else
#include <linux/kernel.h>
#endif
#include <linux/version.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#if __has_include(<rdma/iter.h>) /* In older kernels ib_verbs.h has it. */
#include <rdma/iter.h>
#endif
#include <rdma/uverbs_ioctl.h>

/* A constant: a condition of it costs nothing and still compiles on every kernel. */
#define SINCE(major, minor) (LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))

/* A driver's number that a kernel does not know yet is a number all the same. */
#define HCA_DRIVER_MANA 20
#define HCA_DRIVER_IONIC 21

/* 6.17: registration takes a DMA handle. */
#if SINCE(6, 17)
#define HCA_DMAH struct ib_dmah *dmah,
#define HCA_HAS_DMAH (dmah != NULL)
#define HCA_SINCE_6_17(...) __VA_ARGS__
#else
#define HCA_DMAH
#define HCA_HAS_DMAH false
#define HCA_SINCE_6_17(...)
#endif

/* 6.12: create_cq and the registration of a dma-buf take all attributes of the call. */
#if SINCE(6, 12)
#define HCA_ATTRS struct uverbs_attr_bundle *attrs
#define HCA_UDATA (&attrs->driver_udata)
#define HCA_SINCE_6_12(...) __VA_ARGS__
#else
#define HCA_ATTRS struct ib_udata *udata
#define HCA_UDATA udata
#define HCA_SINCE_6_12(...)
static inline int ib_umem_check_rereg(struct ib_umem *umem, int flags, int access)
{
	return 0;
}
#endif

#if SINCE(7, 0)
#define HCA_CREATE_CQ create_user_cq
#define HCA_MOVE_NOTIFY invalidate_mappings
#else
#define HCA_CREATE_CQ create_cq
#define HCA_MOVE_NOTIFY move_notify
static inline struct ib_umem *ib_umem_get_va(struct ib_device *device, unsigned long start,
					     size_t length, int access)
{
	return ib_umem_get(device, start, length, access);
}
#endif

#endif
