/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What several programs of this folder share: the three calls that register, and queues. */
#ifndef CTESTS_FABRIC_COMMON_H
#define CTESTS_FABRIC_COMMON_H

#include <poll.h>
#include "../lib/fabric.h"
#include "../lib/program.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { PATIENCE = 300000 /* ms, for events that should come at once */ };
enum reg_call { REG, REGV, REGATTR, CALLS };
static const char *const calls[] = { "fi_mr_reg", "fi_mr_regv", "fi_mr_regattr" };

/* A region of these buffers by one of the calls; fi_mr_reg has one. */
static inline int make_region(enum reg_call call, struct fid_domain *domain, const struct iovec *iov, size_t count, uint64_t access,
			      uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	struct fi_mr_attr attr = {
		.mr_iov = iov, .iov_count = count, .access = access, .offset = offset, .requested_key = key, .context = context,
	};

	switch (call) {
	case REG: return fi_mr_reg(domain, iov->iov_base, iov->iov_len, access, offset, key, flags, mr, context);
	case REGV: return fi_mr_regv(domain, iov, count, access, offset, key, flags, mr, context);
	default: return fi_mr_regattr(domain, &attr, flags, mr);
	}
}

static inline struct fid_eq *queue_with(int wait_obj, uint64_t flags)
{
	struct fi_eq_attr attr = { .size = 16, .flags = flags, .wait_obj = wait_obj };
	struct fid_eq *queue = NULL;

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &queue, NULL) == 0 && queue);
	return queue;
}

/* What the last read of a queue has written, over what it has found. */
static uint32_t event;
static struct fi_eq_entry entry;

static inline void before_read(void)
{
	event = 77;
	entry = (struct fi_eq_entry){ .data = 77 };
}

static inline bool nothing_read(void) { return event == 77 && !entry.fid && !entry.context && entry.data == 77; }

static inline ssize_t take(struct fid_eq *eq, uint64_t flags)
{
	before_read();
	return fi_eq_read(eq, &event, &entry, sizeof(entry), flags);
}

static inline ssize_t wait_and_take(struct fid_eq *eq, int timeout, uint64_t flags)
{
	before_read();
	return fi_eq_sread(eq, &event, &entry, sizeof(entry), timeout, flags);
}

/* Whether that was the completion of the region that `mr` points to, whose context is `mr`. */
static inline bool is_complete(struct fid_mr **mr)
{
	return event == FI_MR_COMPLETE && entry.context == mr && entry.fid == &(*mr)->fid && !entry.data;
}

/* It is the next event. */
static inline void completes(struct fid_eq *queue, struct fid_mr **mr)
{
	gives(sizeof(entry), wait_and_take(queue, PATIENCE, 0));
	holds(is_complete(mr));
}

static inline struct fid_domain *bound_to(struct fid_eq *queue, struct ibv_pd *pd, const struct kind *kind)
{
	struct fid_domain *domain = open_kind(pd, kind);

	must(fi_domain_bind(domain, &queue->fid, FI_REG_MR) == 0);
	return domain;
}

/* -1 if poll reports something else. */
static inline int readable(int fd, int timeout)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	int count = poll(&ready, 1, timeout);

	return count == 1 && ready.revents == POLLIN ? 1 : count == 0 ? 0 : -1;
}

static inline int wait_fd(struct fid_eq *queue)
{
	int fd = -1;

	must(fi_control(&queue->fid, FI_GETWAIT, &fd) == 0 && fd >= 0);
	return fd;
}

#endif
