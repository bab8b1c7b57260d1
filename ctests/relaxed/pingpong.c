/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The purpose of relaxed registration: a ping-pong in which each side deregisters and registers a
 * slot before every post, and tries again after EAGAIN. All data is checked. At the end everything
 * is deregistered and the domain deallocated without a flush, as a program written for Oracle's
 * kernel may do.
 *
 * Usage: pingpong [ROUNDS]
 */
#include "../lib/reuse.h"

/* Slots share pages with their neighbours, as buffers from one allocation do. */
enum { SLOTS = 500, LENGTH = PAGE + 512, BATCH = 8, SIDES = 2 };

static struct side {
	struct ibv_qp *qp;
	char *memory;
	struct ibv_mr *mrs[SLOTS];
	int slot; /* the next slot to use */
} sides[SIDES];

static struct pair pair;
static long again, renewed, failed, corrupt;

static char *memory_of(const struct side *side, int slot)
{
	return side->memory + (size_t)slot * LENGTH;
}

static struct ibv_mr *register_slot(struct side *side, int slot)
{
	struct ibv_mr *mr;

retry:
	mr = register_region(pair.pd, memory_of(side, slot), LENGTH, IBV_ACCESS_LOCAL_WRITE);
	if (!mr && errno == EAGAIN) {
		again++;
		usleep(1);
		goto retry;
	}
	must(mr);
	side->mrs[slot] = mr;
	return mr;
}

/* The side's next slot, registered anew. */
static int renew(struct side *side)
{
	int slot = side->slot;

	side->slot = (slot + 1) % SLOTS;
	failed += deregister_region(side->mrs[slot]) != 0;
	register_slot(side, slot);
	renewed++;
	return slot;
}

static char expected(long message, size_t at)
{
	return (char)(message * 131 + (long)at * 7 + (long)(at >> 8) + 1);
}

static struct ibv_sge sge(struct side *side, int slot)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)memory_of(side, slot), .length = LENGTH, .lkey = side->mrs[slot]->lkey,
	};
}

/* A batch of messages from one side to the other. */
static void send_batch(struct side *from, struct side *to, long message)
{
	int received[BATCH], completions = 0;
	struct ibv_wc wc;

	for (int n = 0; n < BATCH; n++) {
		struct ibv_sge list;
		struct ibv_recv_wr request = { .sg_list = &list, .num_sge = 1 }, *bad;

		received[n] = renew(to);
		memset(memory_of(to, received[n]), 0, LENGTH);
		list = sge(to, received[n]);
		must(ibv_post_recv(to->qp, &request, &bad) == 0);
	}
	for (int n = 0; n < BATCH; n++) {
		int slot = from->slot;
		struct ibv_sge list;
		struct ibv_send_wr request = { .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

		for (size_t at = 0; at < LENGTH; at++)
			memory_of(from, slot)[at] = expected(message + n, at);
		must(renew(from) == slot);
		list = sge(from, slot);
		must(ibv_post_send(from->qp, &request, &bad) == 0);
	}
	for (int tries = 0; completions < 2 * BATCH; tries++) {
		int count = ibv_poll_cq(pair.cq, 1, &wc);

		must(count >= 0 && tries < 1000000);
		if (!count) {
			usleep(10);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			printf("# %s\n", ibv_wc_status_str(wc.status));
		must(wc.status == IBV_WC_SUCCESS);
		completions++;
	}
	for (int n = 0; n < BATCH; n++) {
		const char *memory = memory_of(to, received[n]);
		bool good = true;

		for (size_t at = 0; at < LENGTH; at++)
			good = good && memory[at] == expected(message + n, at);
		corrupt += !good;
	}
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 250, message = 0;
	struct rdmamr_stats before, after;
	struct ibv_context *context;

	must(ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed);
	pair_open(&pair);
	context = pair.context;
	sides[0].qp = pair.qp;
	sides[1].qp = pair.peer;
	for (int n = 0; n < SIDES; n++) {
		sides[n].memory = pages((SLOTS * LENGTH + PAGE - 1) / PAGE);
		for (int slot = 0; slot < SLOTS; slot++)
			register_slot(&sides[n], slot);
	}
	before = stats();
	for (long round = 0; round < rounds; round++, message += 2 * BATCH) {
		send_batch(&sides[0], &sides[1], message);
		send_batch(&sides[1], &sides[0], message + BATCH);
	}
	after = stats();
	printf("# %ld messages of %d bytes, %ld registrations (%ld more after EAGAIN): %lld hits, %lld kernel registrations\n",
	       message, LENGTH, renewed, again, (long long)(after.hits - before.hits),
	       (long long)(after.reg_kernel - before.reg_kernel));
	is(corrupt, 0, "no message of %ld was corrupted", message);
	is(failed, 0, "no deregistration failed");
	is(renewed, 2 * message, "a registration before every post");
	is((long long)(after.hits + after.misses + bypassed(&after) - before.hits - before.misses - bypassed(&before)),
	   renewed, "each was a hit, a miss or a bypass");
	if (after.bypassed_watch)
		skip("regions are reused", "userfaultfd is refused here: the cache keeps no region");
	else
		ok((long)(after.hits - before.hits) > renewed / 2, "regions are reused");
	is(ibv_dealloc_pd(pair.pd), EBUSY, "the domain has live regions");

	failed = 0;
	for (int n = 0; n < SIDES; n++)
		for (int slot = 0; slot < SLOTS; slot++)
			failed += deregister_region(sides[n].mrs[slot]) != 0;
	is(failed, 0, "all slots are deregistered");
	for (int n = 0; n < SIDES; n++) {
		rdma_disconnect(pair.ids[n]);
		rdma_destroy_qp(pair.ids[n]);
	}
	must(ibv_destroy_cq(pair.cq) == 0);
	is(ibv_dealloc_pd(pair.pd), 0, "and the domain is deallocated, without a flush");
	is(kernel_regions(context), 0, "with every region of the kernel");
	is((long long)(stats().idle + stats().live), 0, "none is idle or live");
	return done_testing();
}
