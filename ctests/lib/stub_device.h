/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A device that is none, so that the library runs on a machine without RDMA, on its own kernel and
 * at full speed: a context and a protection domain made by hand, and an ioctl() of the program's
 * own that answers those of uverbs as soft-RoCE's kernel driver would. Everything else of the
 * library is the real thing.
 *
 * A device writes to the pages that it pinned, whatever the program's page tables have become: with
 * STUB_PIN a registration pins its memory as a fixed buffer of an io_uring, and stub_write() reads
 * into that buffer from a file. That goes to the pages of the registration, as an RDMA write does.
 */
#ifndef STUB_DEVICE_H
#define STUB_DEVICE_H

#include <rdmamr/verbs.h>
#include <stdbool.h>

/* libibverbs has none of these: without the library a program still links, and says so. */
#pragma weak ibv_reg_mr_relaxed
#pragma weak ibv_dereg_mr_relaxed
#pragma weak ibv_flush_relaxed_mr

enum stub_kind {
	STUB_NOTHING, /* registrations get a handle and keys, which is all that a benchmark wants */
	STUB_PIN,     /* and their memory is pinned; at most 4096 at a time, of at most 1 GiB each */
	STUB_UMEM,    /* pinned as the kernel's ib_umem_get does, 512 pages at a time; at most 4, of at most 8 GiB each */
};

/* Opens the device, once. NULL, or why it cannot be had: the kernel refuses io_uring. */
const char *stub_open(enum stub_kind kind);

/* From now on the device has so many regions, fewer than before. */
void stub_have(uint32_t regions);

/*
 * The device is of another driver, which has errnos of its own. 0 stands for the core's errno, and
 * for no maximum.
 */
struct stub_driver {
	uint32_t id;
	/* No key is left. */
	int full;
	/* The memory cannot be pinned, for whatever reason. */
	int unpinned;
	/* The region would be longer than this. */
	uint64_t max_mr_size;
	int too_long;
	/* What the device says that it has, of which other processes have the rest. */
	uint32_t max_mr;
};

void stub_drive(struct stub_driver driver);

/* The device is gone: each command fails with EIO. */
void stub_unplug(void);

/*
 * From now on a registration takes at least so many ns and so many more a page, and a
 * deregistration so many.
 */
struct stub_costs { long registration, page, deregistration; };
void stub_take(struct stub_costs costs);

/*
 * Its protection domains, of which there are two. They cannot be deallocated: there is no provider
 * behind them.
 */
struct ibv_pd *stub_pd(void);
struct ibv_pd *stub_other_pd(void);

/*
 * The device writes `value` to all bytes of the region, from addr on for length. 0, or an errno:
 * EKEYREJECTED if the device does not know the region's lkey.
 */
int stub_write(const struct ibv_mr *mr, unsigned char value);

/*
 * Whether the program sees what the device writes to the region. Writes to its first page only, by the program and by
 * the device.
 */
bool stub_lands(const struct ibv_mr *mr);

/*
 * The next `times` registrations, or deregistrations, fail with this errno, and change nothing.
 */
enum stub_call { STUB_REGISTER, STUB_DEREGISTER };
void stub_fail(enum stub_call call, int err, long times);

/* Each registration takes so many milliseconds more, once its memory is pinned. */
extern _Atomic int stub_slow;

/* Each deregistration raises this signal at the thread that deregisters, unless it is 0. */
extern _Atomic int stub_signal;

/*
 * Called, unless it is NULL, before each system call that the library makes by number, other than
 * those for this device: so a test stops or kills a thread at a place of its choice. It may run in
 * a thread that has no more than an errno of its own, and makes its own calls by stub_syscall().
 */
extern void (*_Atomic stub_before)(long number, const long argument[6]);
extern long (*stub_syscall)(long number, ...);

/*
 * In a thread with a table of descriptors of its own the device's number is another device's: it
 * knows no region, and counts how often it was asked.
 */
extern _Thread_local bool stub_is_another;
long stub_misled(void);

/*
 * The device writes to a part of the region, or reads it: at most 32 KiB, from the offset `at` on.
 * 0, or an errno as above.
 */
int stub_put(const struct ibv_mr *mr, size_t at, const void *from, size_t length);
int stub_get(const struct ibv_mr *mr, size_t at, void *to, size_t length);

/* ibv_reg_mr and ibv_dereg_mr of the device alone, for a run without the library. */
struct ibv_mr *stub_register(struct ibv_pd *pd, void *addr, size_t length, int access);
int stub_deregister(struct ibv_mr *mr);

/* How often the device was asked to register memory, and to deregister it, successfully. */
long stub_registered(void);
long stub_deregistered(void);

#endif
