/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for a device, so that the library runs on a machine without RDMA: a context and a protection
 * domain made by hand, and an ioctl() that answers those of uverbs as soft-RoCE's driver would.
 *
 * With STUB_PIN a registration pins its memory as a fixed buffer of an io_uring, and stub_write() reads from
 * a pipe into that buffer. So the data goes to the pages of the registration, whatever happens to the
 * program's page tables, as that of a device does.
 */
#ifndef STUB_DEVICE_H
#define STUB_DEVICE_H

#include <rdmamr/verbs.h>
#include <stdbool.h>

/* libibverbs lacks these: without the library a program still links, and says so. */
#pragma weak ibv_reg_mr_relaxed
#pragma weak ibv_dereg_mr_relaxed
#pragma weak ibv_flush_relaxed_mr

enum stub_kind {
	STUB_NOTHING, /* registrations get a handle and keys, which suffices for a benchmark */
	STUB_PIN,     /* and their memory is pinned; at most 4096 at a time, of at most 1 GiB each */
	STUB_UMEM,    /* pinned as the kernel's ib_umem_get does, 512 pages at a time; at most 4, of at most 8 GiB each */
};

/* Opens the device, once. Returns NULL, or the reason if it cannot: the kernel refuses io_uring. */
const char *stub_open(enum stub_kind kind);

/* From now on the device has this many regions, fewer than before. */
void stub_have(uint32_t regions);

/* The device is of another driver. 0 stands for the core's errno, and for no maximum. */
struct stub_driver {
	uint32_t id;
	int full;             /* the errno if no key is left */
	int unpinned;         /* if the memory cannot be pinned, for whatever reason */
	uint64_t max_mr_size;
	int too_long;         /* if the region would be longer than that */
	uint32_t max_mr;      /* what the device says that it has, of which other processes have the rest */
};
void stub_drive(struct stub_driver driver);

/* The device is gone: each command fails with EIO, but those that end an object. */
void stub_unplug(void);

/* If set, the device takes dma-bufs, and gives the memory at an address a number, which stub_number_of() tells. */
extern uint64_t (*stub_number)(uint64_t iova);
uint64_t stub_number_of(uint32_t lkey);

/* From now on the device has a provider, each of whose functions is this one, whatever the arguments. */
void stub_provide(long (*operation)(void));

/* Its protection domains, two of them. They can be deallocated only if the device has a provider. */
struct ibv_pd *stub_pd(void);
struct ibv_pd *stub_other_pd(void);

/* The device writes `value` to all bytes of the region. 0, or an errno: EKEYREJECTED for an unknown lkey. */
int stub_write(const struct ibv_mr *mr, unsigned char value);

/* Whether the program sees the device's writes to the region. Only its first page is written. */
bool stub_lands(const struct ibv_mr *mr);

/* The next `times` registrations, or deregistrations, fail with this errno, and change nothing. */
enum stub_call { STUB_REGISTER, STUB_DEREGISTER };
void stub_fail(enum stub_call call, int err, long times);

/* Each registration takes this many milliseconds more, once its memory is pinned. */
extern _Atomic int stub_slow;

/* Each call of this kind that succeeds raises this signal in the thread that makes it; 0: none. */
extern _Atomic int stub_signals[2];

/*
 * Called, unless it is NULL, before each system call that the library makes by number, except those for this
 * device. It may run in a thread that has no thread-locals but an errno, and makes its own calls by
 * stub_syscall().
 */
extern void (*_Atomic stub_before)(long number, const long argument[6]);
extern long (*stub_syscall)(long number, ...);

/* In such a thread the device's number names another device, which knows no region, and counts the requests. */
extern _Thread_local bool stub_is_another;
long stub_misled(void);

/* The device writes to a part of the region, or reads it: at most 32 KiB. 0, or an errno as above. */
int stub_put(const struct ibv_mr *mr, size_t at, const void *from, size_t length);
int stub_get(const struct ibv_mr *mr, size_t at, void *to, size_t length);

/* ibv_reg_mr and ibv_dereg_mr of the device alone, for a run without the library. */
struct ibv_mr *stub_register(struct ibv_pd *pd, void *addr, size_t length, int access);
int stub_deregister(struct ibv_mr *mr);

/* The number of successful requests to the device to register memory, and to deregister it. */
long stub_registered(void);
long stub_deregistered(void);

#endif
