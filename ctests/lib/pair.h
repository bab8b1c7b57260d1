/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two queue pairs of one device in one process, connected by librdmacm, for RoCE and iWARP alike. */
#ifndef PAIR_H
#define PAIR_H

#include "device.h"
#include <rdma/rdma_cma.h>

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp; /* posts requests */
	bool iwarp, foreign_pd;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *ids[2];
};

/*
 * Connects a pair over CHECK_ADDRESS, in the caller's protection domain on the device that librdmacm opened, or
 * in its own. If CHECK_ADDRESS is empty, the rest of the program is skipped.
 */
void pair_open_in(struct pair *pair, struct ibv_pd *pd);
#define pair_open(pair) pair_open_in(pair, NULL)
/* Connects the queue pairs anew: after an error they are unusable. */
void pair_reconnect(struct pair *pair);
void pair_close(struct pair *pair);
/*
 * Posts a request and returns its completion status, an enum ibv_wc_status; or -1 with errno if the
 * post failed, or with ETIMEDOUT if there was no completion in a minute. So do the two below.
 */
int pair_write(struct pair *pair, const struct ibv_mr *local, const void *from, size_t length,
	       uint64_t remote, uint32_t rkey);
int pair_read(struct pair *pair, const struct ibv_mr *local, void *to, size_t length,
	      uint64_t remote, uint32_t rkey);
int pair_fetch_add(struct pair *pair, const struct ibv_mr *local, void *old, uint64_t add,
		   uint64_t remote, uint32_t rkey);

#endif
