/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Pages that go by none of the program's threads and no call that can be stood in for: a kernel worker of an io_uring
 * discards them, or process_madvise on the process itself. The worker waits for the word of it to be read, by a thread
 * that must not wait for the worker.
 */
#include "observe.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct pair pair;
static char *memory;

static struct {
	int fd;
	char *rings;
	struct io_uring_sqe *entries;
	struct io_uring_params params;
} uring;

static bool uring_open(void)
{
	size_t size;

	uring.fd = (int)syscall(SYS_io_uring_setup, 4, &uring.params);
	if (uring.fd < 0 || !(uring.params.features & IORING_FEAT_SINGLE_MMAP))
		return false;
	size = uring.params.cq_off.cqes + uring.params.cq_entries * sizeof(struct io_uring_cqe);
	uring.rings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, uring.fd, IORING_OFF_SQ_RING);
	uring.entries = mmap(NULL, uring.params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_POPULATE, uring.fd, IORING_OFF_SQES);
	must(uring.rings != MAP_FAILED && uring.entries != MAP_FAILED);
	return true;
}

static unsigned int *ring(uint32_t offset)
{
	return (unsigned int *)(uring.rings + offset);
}

/* Submits one request; its result is for uring_result(). */
static void uring_submit(const struct io_uring_sqe *request)
{
	unsigned int tail = *ring(uring.params.sq_off.tail), slot = tail & *ring(uring.params.sq_off.ring_mask);

	uring.entries[slot] = *request;
	ring(uring.params.sq_off.array)[slot] = slot;
	__atomic_store_n(ring(uring.params.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	must(syscall(SYS_io_uring_enter, uring.fd, 1, 0, 0, NULL, 0) == 1);
}

static int uring_result(void)
{
	unsigned int head = *ring(uring.params.cq_off.head);
	const struct io_uring_cqe *cqes = (const void *)(uring.rings + uring.params.cq_off.cqes);
	int result;

	while (__atomic_load_n(ring(uring.params.cq_off.tail), __ATOMIC_ACQUIRE) == head)
		must(syscall(SYS_io_uring_enter, uring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) >= 0);
	result = cqes[head & *ring(uring.params.cq_off.ring_mask)].res;
	__atomic_store_n(ring(uring.params.cq_off.head), head + 1, __ATOMIC_RELEASE);
	return result;
}

static void by_uring(const char *name, uint8_t flags)
{
	struct io_uring_sqe request = {
		.opcode = IORING_OP_MADVISE,
		.flags = flags,
		.fd = -1,
		.addr = (uintptr_t)memory,
		.len = 2 * PAGE,
		.fadvise_advice = MADV_DONTNEED,
	};
	int stale = 0;

	control_later(&pair, name, memory, 2 * PAGE);
	uring_submit(&request);
	is(uring_result(), 0, "%s: discarded", name);
	is(memory[0], 0, "%s: the page is a new one", name);
	anew(&pair, name, memory, 2 * PAGE);
	control_later(&pair, name, memory, 2 * PAGE);

	/* It is submitted, and the memory registered while a worker may be at it; then it is done. */
	for (int round = 0; round < 200; round++) {
		memory[0] = 1;
		uring_submit(&request);
		must(lands_local(&pair, memory + 4 * PAGE, PAGE));
		must(ibv_dereg_mr_relaxed(ibv_reg_mr_relaxed(pair.pd, memory, 2 * PAGE, LOCAL_AND_REMOTE)) == 0);
		must(uring_result() == 0);
		stale += !lands(&pair, memory, 2 * PAGE);
	}
	is(stale, 0, "%s: 200 times beside registrations, and data always landed", name);
	control_later(&pair, name, memory, 2 * PAGE);
}

/* A file mapping loses its pages by a worker: the pool has none of such memory. */
static void punched_by_uring(void)
{
	struct io_uring_sqe request = { .opcode = IORING_OP_FALLOCATE, .flags = IOSQE_ASYNC };
	int fd = memfd_create("punched", MFD_CLOEXEC);
	char *file;

	must(fd >= 0 && ftruncate(fd, 2 * PAGE) == 0);
	file = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(file != MAP_FAILED);
	memset(file, 1, 2 * PAGE);
	not_kept(&pair, "a memfd", file, 2 * PAGE);
	request.fd = fd;
	request.len = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; /* the mode */
	request.addr = 2 * PAGE; /* the length */
	uring_submit(&request);
	is(uring_result(), 0, "a memfd: a worker makes a hole");
	is(file[0], 0, "a memfd: the page is a new one");
	anew(&pair, "a memfd with a hole", file, 2 * PAGE);
	must(munmap(file, 2 * PAGE) == 0 && close(fd) == 0);
}

static void by_process_madvise(void)
{
	static const struct {
		const char *name;
		int advice;
		bool goes;
	} advices[] = {
		{ "process_madvise, not needed", MADV_DONTNEED, true },
		{ "process_madvise, paged out", MADV_PAGEOUT, false },
		{ "process_madvise, cold", MADV_COLD, false },
		{ "process_madvise, collapsed", MADV_COLLAPSE, false },
	};
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	struct iovec range = { memory, 2 * PAGE };

	must(self >= 0);
	for (size_t n = 0; n < sizeof(advices) / sizeof(advices[0]); n++) {
		long done;

		control(&pair, advices[n].name, memory, 2 * PAGE);
		done = syscall(SYS_process_madvise, self, &range, 1, advices[n].advice, 0);
		if (done != 2 * PAGE)
			printf("# %s: %s\n", advices[n].name, done < 0 ? strerrorname_np(errno) : "in part");
		if (done == 2 * PAGE && advices[n].goes)
			anew(&pair, advices[n].name, memory, 2 * PAGE);
		else if (done < 0 && errno == EINVAL)
			still(&pair, advices[n].name, memory, 2 * PAGE); /* this kernel has not got that */
		else
			either(&pair, advices[n].name, memory, 2 * PAGE);
	}
	close(self);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "600");
	alarm(100);
	relaxed_open(&pair);
	memory = pages(5);
	by_process_madvise();
	if (uring_open()) {
		by_uring("a worker of an io_uring", IOSQE_ASYNC);
		by_uring("an io_uring", 0);
		punched_by_uring();
	} else {
		skip("an io_uring", "there is none for this user");
	}
	return relaxed_close(&pair);
}
