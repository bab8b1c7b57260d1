/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "stub_device.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "uring.h"

/*
 * A region has a slot. Its handle is the slot's number; its keys are the number and a part of the
 * generation, so that another region does not soon get the keys of a region that has ended. A
 * slot's word is its generation, times four, and one of these.
 */
enum { FREE, MAKING, LIVE, ENDING };
#ifndef STUB_SLOT_BITS
#define STUB_SLOT_BITS 18
#endif
enum { SLOTS = 1 << STUB_SLOT_BITS, PINNED_SLOTS = 4096, UMEM_SLOTS = 4, GENERATION_BITS = 32 - STUB_SLOT_BITS, PATTERN = 1 << 15 };
/* The bytes that ib_umem_get pins at once, and the greatest number of such chunks in a region. */
enum { UMEM_BYTES = 512 * 4096, UMEM_PARTS = 4096 };

/* With abi_compat all ones, libibverbs uses the memory before a context, in later versions more of it. */
static struct {
	char before[1024];
	struct verbs_context extended;
} device = { .extended.context = { .cmd_fd = -1 } };
/* `priv`: a few words that are no function, the table of the provider's functions, and a flag. */
static long (*functions[256])(void);
static struct ibv_device identity = { .name = "stub0", .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB };
static struct ibv_pd pds[] = {
	{ .context = &device.extended.context, .handle = 1 },
	{ .context = &device.extended.context, .handle = 2 },
};

static _Atomic uint32_t slots[SLOTS];
static _Atomic uint32_t next_slot;
static _Atomic long registered, deregistered;
static uint32_t usable_slots;
static struct { _Atomic int err; _Atomic long times; } failure[2];

static struct {
	pthread_mutex_t lock;
	int pipe[2];
	struct uring uring;
	unsigned char rest[PATTERN];
	/* With STUB_UMEM each slot has a ring of its own, which locks no other: so two can be pinned at once. */
	struct uring of_slot[UMEM_SLOTS];
	struct iovec (*parts)[UMEM_PARTS];
} ring = { .lock = PTHREAD_MUTEX_INITIALIZER, .uring.fd = -1 };

static uint32_t key_of(uint32_t slot, uint32_t word)
{
	return slot << GENERATION_BITS | ((word >> 2) & ((1 << GENERATION_BITS) - 1));
}

/* All up to ioctl() may run in a thread without thread-locals but an errno: no locks, no memory, no output. */

static int fail(int err)
{
	errno = err;
	return -1;
}

/* As ib_umem_get: chunk by chunk. Length 0: none in the place of those that are there. */
static struct io_uring_rsrc_update2 in_parts(struct iovec *parts, uint64_t start, uint64_t length)
{
	uint32_t nr = 0;

	for (uint64_t at = 0; at < length; at += UMEM_BYTES)
		parts[nr++] = (struct iovec){ (void *)(uintptr_t)(start + at),
					      length - at < UMEM_BYTES ? length - at : UMEM_BYTES };
	for (; !length && nr < UMEM_PARTS && parts[nr].iov_len; nr++)
		parts[nr] = (struct iovec){ 0 };
	return (struct io_uring_rsrc_update2){ .data = (uintptr_t)parts, .nr = nr };
}

static int pin(uint32_t slot, uint64_t start, uint64_t length)
{
	struct iovec whole = { (void *)(uintptr_t)start, length };
	struct io_uring_rsrc_update2 update = { .offset = slot, .data = (uintptr_t)&whole, .nr = 1 };
	int fd = ring.parts ? ring.of_slot[slot].fd : ring.uring.fd, err;
	long done;

	if (fd < 0)
		return 0;
	if (ring.parts && length > (uint64_t)UMEM_PARTS * UMEM_BYTES)
		return -1;
	if (ring.parts)
		update = in_parts(ring.parts[slot], start, length);
	done = syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS_UPDATE, &update, sizeof(update));
	if (done == update.nr)
		return 0;
	/* io_uring sets no errno if it could pin the first ones only. */
	err = done < 0 ? errno : EFAULT;
	if (ring.parts && length)
		pin(slot, 0, 0);
	return fail(err);
}

static const struct ib_uverbs_attr *attribute(const struct ib_uverbs_ioctl_hdr *header, uint16_t id)
{
	for (int n = 0; n < header->num_attrs; n++)
		if (header->attrs[n].attr_id == id)
			return &header->attrs[n];
	return NULL;
}

/* Whether this call fails. Several threads may share one failure too many: then more calls fail. */
static int fails(enum stub_call call)
{
	return atomic_load(&failure[call].times) > 0 && atomic_fetch_sub(&failure[call].times, 1) > 0 ?
	       failure[call].err : 0;
}

_Atomic int stub_signals[2];

static void signals(enum stub_call call)
{
	if (stub_signals[call])
		syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), stub_signals[call]);
}

void stub_fail(enum stub_call call, int err, long times)
{
	failure[call].err = err;
	failure[call].times = times;
}

_Atomic int stub_slow;

static struct stub_driver driver = { .id = RDMA_DRIVER_RXE };

void stub_drive(struct stub_driver wanted) { driver = wanted; }

static atomic_bool is_gone;

void stub_unplug(void) { is_gone = true; }

/* A slot that is free, which is being made from now on; -1 if there is none. `word`: what it had. */
static long free_slot(uint32_t count, uint32_t *word)
{
	for (uint32_t tries = 0; tries < count; tries++) {
		uint32_t slot = atomic_fetch_add_explicit(&next_slot, 1,
							  memory_order_relaxed) % count;

		*word = atomic_load_explicit(&slots[slot], memory_order_relaxed);
		if ((*word & 3) == FREE &&
		    atomic_compare_exchange_strong(&slots[slot], word, *word + MAKING))
			return slot;
	}
	return -1;
}

static int make(const struct ib_uverbs_reg_mr *command, struct ib_uverbs_reg_mr_resp *answer)
{
	int err = fails(STUB_REGISTER);
	uint32_t word;
	long slot;

	if (err)
		return fail(err);
	if (command->pd_handle != pds[0].handle && command->pd_handle != pds[1].handle)
		return fail(ENOENT);
	/* As the kernel: uverbs knows no such rights, and ib_umem_get no such memory. */
	if (command->length == 0 || command->start + command->length < command->start ||
	    ((command->access_flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
	     !(command->access_flags & IBV_ACCESS_LOCAL_WRITE)))
		return fail(EINVAL);
	if (driver.max_mr_size && command->length > driver.max_mr_size)
		return fail(driver.too_long);
	slot = free_slot(usable_slots, &word);
	if (slot < 0)
		return fail(driver.full ? driver.full : ENOMEM);
	if (pin((uint32_t)slot, command->start, command->length)) {
		atomic_store(&slots[slot], word);
		return driver.unpinned ? fail(driver.unpinned) : -1;
	}
	if (stub_slow) {
		struct timespec time = { stub_slow / 1000, stub_slow % 1000 * 1000000L };

		syscall(SYS_nanosleep, &time, NULL);
	}
	answer->mr_handle = (uint32_t)slot;
	answer->lkey = answer->rkey = key_of((uint32_t)slot, word);
	atomic_store(&slots[slot], word + LIVE);
	atomic_fetch_add_explicit(&registered, 1, memory_order_relaxed);
	signals(STUB_REGISTER);
	return 0;
}

static int register_memory(const struct ib_uverbs_ioctl_hdr *header)
{
	const struct ib_uverbs_attr *in = attribute(header, UVERBS_ATTR_CORE_IN);
	const struct ib_uverbs_attr *out = attribute(header, UVERBS_ATTR_CORE_OUT);

	if (!in || !out || in->len < sizeof(struct ib_uverbs_reg_mr) ||
	    out->len < sizeof(struct ib_uverbs_reg_mr_resp))
		return fail(ENOSPC);
	return make((const void *)(uintptr_t)in->data, (void *)(uintptr_t)out->data);
}

/* The dma-buf of a region, which the kernel holds as long as the region exists, plus 1; and its number. */
static int held[PINNED_SLOTS];
static uint64_t numbers[PINNED_SLOTS];
uint64_t (*stub_number)(uint64_t iova);

uint64_t stub_number_of(uint32_t lkey) { return numbers[lkey >> GENERATION_BITS]; }

static uint64_t value_of(const struct ib_uverbs_ioctl_hdr *header, uint16_t id)
{
	const struct ib_uverbs_attr *attr = attribute(header, id);

	return attr ? attr->data : 0;
}

static int register_dmabuf(struct ib_uverbs_ioctl_hdr *header)
{
	int file = (int)value_of(header, UVERBS_ATTR_REG_DMABUF_MR_FD);
	uint64_t end = value_of(header, UVERBS_ATTR_REG_DMABUF_MR_OFFSET) + value_of(header, UVERBS_ATTR_REG_DMABUF_MR_LENGTH);
	struct ib_uverbs_attr *handle;
	uint32_t word, key;
	long slot;

	if (!stub_number || end > (uint64_t)lseek(file, 0, SEEK_END))
		return fail(EINVAL);
	slot = free_slot(PINNED_SLOTS, &word);
	if (slot < 0)
		return fail(ENOMEM);
	key = key_of((uint32_t)slot, word);
	numbers[slot] = stub_number(value_of(header, UVERBS_ATTR_REG_DMABUF_MR_IOVA));
	held[slot] = fcntl(file, F_DUPFD_CLOEXEC, 0) + 1;
	memcpy((void *)(uintptr_t)value_of(header, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY), &key,
	       sizeof(key));
	memcpy((void *)(uintptr_t)value_of(header, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY), &key,
	       sizeof(key));
	handle = (struct ib_uverbs_attr *)(uintptr_t)attribute(header, UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
	handle->data = (uint64_t)slot;
	atomic_store(&slots[slot], word + LIVE);
	return 0;
}

static int destroy(uint64_t handle)
{
	uint32_t word, slot = (uint32_t)handle;
	int err = fails(STUB_DEREGISTER);

	if (err)
		return fail(err);
	if (handle >= usable_slots)
		return fail(ENOENT);
	word = atomic_load(&slots[slot]);
	if ((word & 3) != LIVE || !atomic_compare_exchange_strong(&slots[slot], &word, word - LIVE + ENDING))
		return fail(ENOENT);
	if (slot < PINNED_SLOTS && held[slot]) {
		syscall(SYS_close, held[slot] - 1);
		held[slot] = 0;
	} else if (pin(slot, 0, 0)) {
		atomic_store(&slots[slot], word);
		return -1;
	}
	atomic_store(&slots[slot], word - LIVE + 4);
	atomic_fetch_add_explicit(&deregistered, 1, memory_order_relaxed);
	signals(STUB_DEREGISTER);
	return 0;
}

static int query(const struct ib_uverbs_ioctl_hdr *header)
{
	const struct ib_uverbs_attr *out = attribute(header, UVERBS_ATTR_CORE_OUT);
	/* Devices have millions, most of which the cache leaves to others. */
	struct ib_uverbs_query_device_resp answer = {
		.max_mr = driver.max_mr	       ? driver.max_mr :
			  usable_slots < SLOTS ? usable_slots :
						 1 << 24,
		.max_mr_size = driver.max_mr_size,
		.atomic_cap = 1, /* IB_ATOMIC_HCA */
	};

	if (!out || out->len < sizeof(answer))
		return fail(ENOSPC); /* without its input: the driver's number is right */
	memcpy((void *)(uintptr_t)out->data, &answer, sizeof(answer));
	return 0;
}

/* A thread of the library has no thread-locals, and reads zeros there. */
_Thread_local bool stub_is_another;

/* As a pin, leaves a page at the start of the memory, if it can have one. Here the stack is less deep. */
static int populated(const struct ib_uverbs_ioctl_hdr *header)
{
	const struct ib_uverbs_reg_mr *command = (const void *)(uintptr_t)attribute(header, UVERBS_ATTR_CORE_IN)->data;
	int before = errno;

	syscall(SYS_madvise, command->start & ~4095ul, 4096, MADV_POPULATE_READ);
	errno = before;
	return 0;
}

static _Atomic long misled;

long stub_misled(void) { return misled; }

static int uverbs(struct ib_uverbs_ioctl_hdr *header)
{
	const struct ib_uverbs_attr *command = attribute(header, UVERBS_ATTR_WRITE_CMD);

	if (header->driver_id != driver.id)
		return fail(EINVAL);
	if (stub_is_another) {
		atomic_fetch_add(&misled, 1);
		return fail(ENOENT);
	}
	if (header->object_id == UVERBS_OBJECT_MR && header->method_id == UVERBS_METHOD_MR_DESTROY)
		return destroy(value_of(header, UVERBS_ATTR_DESTROY_MR_HANDLE));
	if (header->object_id == UVERBS_OBJECT_MR && header->method_id == UVERBS_METHOD_REG_DMABUF_MR)
		return register_dmabuf(header);
	if (header->object_id == UVERBS_OBJECT_MR && header->method_id == UVERBS_METHOD_QUERY_MR)
		return fail(EINVAL); /* without its attributes: the method exists */
	if (header->object_id != UVERBS_OBJECT_DEVICE || header->method_id != UVERBS_METHOD_INVOKE_WRITE || !command)
		return fail(EPROTONOSUPPORT);
	if (is_gone && attribute(header, UVERBS_ATTR_CORE_IN))
		return fail(EIO);
	switch (command->data) {
	case IB_USER_VERBS_CMD_REG_MR:
		return register_memory(header) ? -1 : populated(header);
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
		return query(header);
	default:
		return fail(EOPNOTSUPP);
	}
}

/* The program's own, to which the library's calls are bound. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	if (request == RDMA_VERBS_IOCTL && fd == device.extended.context.cmd_fd)
		return uverbs(argument);
	return (int)syscall(SYS_ioctl, fd, request, argument);
}

void (*_Atomic stub_before)(long, const long *);
long (*stub_syscall)(long, ...);

/* The library's own threads call it by number. It reads six arguments, passed or not. */
__attribute__((no_sanitize_address)) long syscall(long number, ...)
{
	void (*before)(long, const long *);
	va_list args;
	long argument[6];

	va_start(args, number);
	for (int n = 0; n < 6; n++)
		argument[n] = va_arg(args, long);
	va_end(args);
	if (number == SYS_ioctl && argument[1] == (long)RDMA_VERBS_IOCTL && argument[0] == device.extended.context.cmd_fd)
		return uverbs((void *)argument[2]);
	/* The program calls this first, when it opens the device: a thread of the library must not look it up. */
	if (!stub_syscall)
		*(void **)&stub_syscall = dlsym(RTLD_NEXT, "syscall");
	before = stub_before;
	if (before)
		before(number, argument);
	return stub_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

/* With room for so many buffers. */
static const char *set_up(struct uring *uring, uint32_t buffers)
{
	struct io_uring_rsrc_register table = { .nr = buffers, .flags = IORING_RSRC_REGISTER_SPARSE };

	if (!uring_set_up(uring))
		return errno == ENOSYS || errno == EPERM || errno == EACCES ?
		       "io_uring is refused to this process" : "io_uring_setup fails";
	return syscall(SYS_io_uring_register, uring->fd, IORING_REGISTER_BUFFERS2, &table, sizeof(table)) ?
	       "io_uring has no table of buffers that can be changed (before Linux 5.19)" : NULL;
}

static const char *open_ring(enum stub_kind kind)
{
	const char *why = NULL;

	if (kind == STUB_UMEM) {
		ring.parts = calloc(UMEM_SLOTS, sizeof(*ring.parts));
		if (!ring.parts)
			return "no memory";
		for (int slot = 0; slot < UMEM_SLOTS && !why; slot++)
			why = set_up(&ring.of_slot[slot], UMEM_PARTS);
		return why;
	}
	why = set_up(&ring.uring, PINNED_SLOTS);
	if (why)
		return why;
	if (!uring_map(&ring.uring))
		return "no memory for the queues of io_uring";
	/* io_uring reads a pipe at once; it may hand other files to a thread of the kernel. */
	return pipe2(ring.pipe, O_CLOEXEC | O_NONBLOCK) ? "no pipe" : NULL;
}

const char *stub_open(enum stub_kind kind)
{
	const char *why = kind == STUB_NOTHING ? NULL : open_ring(kind);

	if (why)
		return why;
	usable_slots = kind == STUB_NOTHING ? SLOTS : kind == STUB_PIN ? PINNED_SLOTS : UMEM_SLOTS;
	device.extended.context.device = &identity;
	device.extended.context.async_fd = -1;
	device.extended.context.num_comp_vectors = 1;
	device.extended.context.abi_compat = (void *)-1;
	pthread_mutex_init(&device.extended.context.mutex, NULL);
	device.extended.context.cmd_fd = memfd_create("stub device", MFD_CLOEXEC);
	return device.extended.context.cmd_fd < 0 ? "memfd_create fails" : NULL;
}

void stub_provide(long (*operation)(void))
{
	for (size_t n = 0; n < sizeof(functions) / sizeof(*functions); n++)
		functions[n] = operation;
	device.extended.priv = (struct verbs_ex_private *)functions;
}

void stub_have(uint32_t regions) { usable_slots = regions; }
struct ibv_pd *stub_pd(void) { return &pds[0]; }
struct ibv_pd *stub_other_pd(void) { return &pds[1]; }

struct ibv_mr *stub_register(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ib_uverbs_reg_mr command = {
		.start = (uintptr_t)addr,
		.length = length,
		.hca_va = (uintptr_t)addr,
		.pd_handle = pd->handle,
		.access_flags = (uint32_t)access,
	};
	struct ib_uverbs_reg_mr_resp answer;
	struct ibv_mr *mr = malloc(sizeof(*mr));

	if (!mr || make(&command, &answer)) {
		free(mr);
		return NULL;
	}
	*mr = (struct ibv_mr){
		.context = pd->context,
		.pd = pd,
		.addr = addr,
		.length = length,
		.handle = answer.mr_handle,
		.lkey = answer.lkey,
		.rkey = answer.rkey,
	};
	return mr;
}

int stub_deregister(struct ibv_mr *mr)
{
	if (destroy(mr->handle))
		return errno;
	free(mr);
	return 0;
}

/* Reads the pipe's content into the buffer of that slot, or writes it to the pipe: all of it, or an error. */
static int transfer(int opcode, uint32_t slot, unsigned char *at, unsigned int length)
{
	int result = uring_do(&ring.uring, (struct io_uring_sqe){
		.opcode = (uint8_t)opcode,
		.fd = ring.pipe[opcode == IORING_OP_WRITE_FIXED],
		.addr = (uintptr_t)at,
		.len = length,
		.buf_index = (uint16_t)slot,
	});

	return result < 0 ? -result : result == (int)length ? 0 : EIO;
}

/* The slot of a region by its lkey; -1 with an errno if the device does not know it. */
static long slot_of(const struct ibv_mr *mr)
{
	uint32_t slot = mr->lkey >> GENERATION_BITS, word = slot < usable_slots ? slots[slot] : 0;

	if (ring.uring.fd < 0 || ring.parts)
		return fail(EOPNOTSUPP);
	if ((word & 3) != LIVE || key_of(slot, word) != mr->lkey)
		return fail(EKEYREJECTED);
	return slot;
}

/* Moves at most PATTERN bytes: from the program's memory, or else to it. */
static int move(const struct ibv_mr *mr, size_t at, const void *from, void *to, size_t length)
{
	unsigned char *there = (unsigned char *)mr->addr + at;
	int opcode = from ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED, err = 0;
	long slot = slot_of(mr);

	if (slot < 0)
		return errno;
	if (length > PATTERN)
		return EMSGSIZE;
	pthread_mutex_lock(&ring.lock);
	if (from && write(ring.pipe[1], from, length) != (ssize_t)length)
		err = EIO;
	if (!err)
		err = transfer(opcode, (uint32_t)slot, there, (unsigned int)length);
	if (!err && to && read(ring.pipe[0], to, length) != (ssize_t)length)
		err = EIO;
	/* After an error the written bytes stay in the pipe. */
	while (err && read(ring.pipe[0], ring.rest, PATTERN) > 0)
		;
	pthread_mutex_unlock(&ring.lock);
	return err;
}

int stub_put(const struct ibv_mr *mr, size_t at, const void *from, size_t length)
{
	return move(mr, at, from, NULL, length);
}
int stub_get(const struct ibv_mr *mr, size_t at, void *to, size_t length)
{
	return move(mr, at, NULL, to, length);
}

int stub_write(const struct ibv_mr *mr, unsigned char value)
{
	unsigned char same[PATTERN];
	int err = 0;

	memset(same, value, mr->length < PATTERN ? mr->length : PATTERN);
	for (size_t at = 0; at < mr->length && !err; at += PATTERN)
		err = stub_put(mr, at, same, mr->length - at < PATTERN ? mr->length - at : PATTERN);
	return err;
}

bool stub_lands(const struct ibv_mr *mr)
{
	static _Atomic unsigned char last;
	volatile unsigned char *memory = mr->addr;
	unsigned char value = ++last;
	struct ibv_mr page = *mr;

	page.length = page.length < 4096 ? page.length : 4096;
	*memory = (unsigned char)~value;
	return stub_write(&page, value) == 0 && *memory == value;
}

long stub_registered(void) { return registered; }
long stub_deregistered(void) { return deregistered; }
