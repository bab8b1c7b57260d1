/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An io_uring that does one request after the other. */
#ifndef CTESTS_URING_H
#define CTESTS_URING_H

#include <errno.h>
#include <linux/io_uring.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct uring {
	int fd; /* -1: not open */
	struct io_uring_params params;
	char *queues;
	struct io_uring_sqe *entries;
};

/* Without its queues, which suffices for buffers. False with an errno if the kernel refuses. */
static inline bool uring_set_up(struct uring *ring)
{
	ring->fd = (int)syscall(SYS_io_uring_setup, 4, &ring->params);
	return ring->fd >= 0;
}

static inline bool uring_map(struct uring *ring)
{
	const struct io_uring_params *params = &ring->params;
	size_t size = params->sq_off.array + params->sq_entries * sizeof(unsigned int);
	size_t cq_size = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);

	/* Both queues are in one mapping (Linux 5.4). */
	ring->queues = mmap(NULL, size > cq_size ? size : cq_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
			    IORING_OFF_SQ_RING);
	ring->entries = mmap(NULL, params->sq_entries * sizeof(*ring->entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd,
			     IORING_OFF_SQES);
	return params->features & IORING_FEAT_SINGLE_MMAP && ring->queues != MAP_FAILED && ring->entries != MAP_FAILED;
}

static inline unsigned int *uring_word(struct uring *ring, uint32_t offset)
{
	return (unsigned int *)(ring->queues + offset);
}

/* The request's result: a negative one is an errno. */
static inline int uring_do(struct uring *ring, struct io_uring_sqe request)
{
	const struct io_sqring_offsets *sq = &ring->params.sq_off;
	const struct io_cqring_offsets *cq = &ring->params.cq_off;
	unsigned int tail = *uring_word(ring, sq->tail), slot = tail & *uring_word(ring, sq->ring_mask);
	unsigned int head = *uring_word(ring, cq->head);
	const struct io_uring_cqe *cqes = (const void *)(ring->queues + cq->cqes);
	int result;

	ring->entries[slot] = request;
	uring_word(ring, sq->array)[slot] = slot;
	__atomic_store_n(uring_word(ring, sq->tail), tail + 1, __ATOMIC_RELEASE);
	do
		result = (int)syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	while (result < 0 && errno == EINTR);
	if (result < 0)
		return -errno;
	while (__atomic_load_n(uring_word(ring, cq->tail), __ATOMIC_ACQUIRE) == head)
		syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	result = cqes[head & *uring_word(ring, cq->ring_mask)].res;
	__atomic_store_n(uring_word(ring, cq->head), head + 1, __ATOMIC_RELEASE);
	return result;
}

#endif
