/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "pair.h"
#include <arpa/inet.h>
#include <poll.h>

/* Waits for an event of this kind, and returns the id that it concerns. Both ends share a channel. */
static struct rdma_cm_id *expect(struct pair *pair, enum rdma_cm_event_type type)
{
	struct pollfd ready = { .fd = pair->channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	must(poll(&ready, 1, 10000) == 1);
	must(rdma_get_cm_event(pair->channel, &event) == 0);
	if (event->event != type) {
		printf("# %s instead of %s\n", rdma_event_str(event->event), rdma_event_str(type));
		must(event->event == type);
	}
	id = event->id;
	must(rdma_ack_cm_event(event) == 0);
	return id;
}

static void make_qp(struct pair *pair, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};

	if (!pair->cq) {
		pair->context = id->verbs;
		if (!pair->foreign_pd)
			pair->pd = ibv_alloc_pd(id->verbs);
		pair->cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0);
		must(pair->pd && pair->cq);
	}
	attr.send_cq = attr.recv_cq = pair->cq;
	must(rdma_create_qp(id, pair->pd, &attr) == 0);
}

static void connect_ids(struct pair *pair)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	/* Retries: a loaded machine may answer late. */
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	const char *text = getenv("CHECK_ADDRESS");
	struct rdma_cm_id *server;

	must(text);
	if (!*text)
		skip_all("no IPv4 address reaches the device (ADDRESS)");
	must(inet_pton(AF_INET, text, &address.sin_addr) == 1);
	must(rdma_create_id(pair->channel, &pair->listener, NULL, RDMA_PS_TCP) == 0);
	must(rdma_bind_addr(pair->listener, (struct sockaddr *)&address) == 0);
	must(rdma_listen(pair->listener, 1) == 0);
	address.sin_port = rdma_get_src_port(pair->listener);

	must(rdma_create_id(pair->channel, &pair->ids[0], NULL, RDMA_PS_TCP) == 0);
	must(rdma_resolve_addr(pair->ids[0], NULL, (struct sockaddr *)&address, 5000) == 0);
	expect(pair, RDMA_CM_EVENT_ADDR_RESOLVED);
	must(rdma_resolve_route(pair->ids[0], 5000) == 0);
	expect(pair, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(pair, pair->ids[0]);
	must(rdma_connect(pair->ids[0], &param) == 0);
	server = expect(pair, RDMA_CM_EVENT_CONNECT_REQUEST);
	pair->ids[1] = server;
	make_qp(pair, server);
	must(rdma_accept(server, &param) == 0);
	expect(pair, RDMA_CM_EVENT_ESTABLISHED);
	expect(pair, RDMA_CM_EVENT_ESTABLISHED);
	pair->qp = pair->ids[0]->qp;
	pair->iwarp = pair->context->device->transport_type == IBV_TRANSPORT_IWARP;
}

static void disconnect_ids(struct pair *pair)
{
	for (int n = 0; n < 2; n++) {
		rdma_disconnect(pair->ids[n]);
		rdma_destroy_qp(pair->ids[n]);
		rdma_destroy_id(pair->ids[n]);
	}
	rdma_destroy_id(pair->listener);
	rdma_destroy_event_channel(pair->channel);
}

void pair_open_in(struct pair *pair, struct ibv_pd *pd)
{
	memset(pair, 0, sizeof(*pair));
	pair->pd = pd;
	pair->foreign_pd = pd != NULL;
	pair->channel = rdma_create_event_channel();
	must(pair->channel);
	connect_ids(pair);
}

void pair_reconnect(struct pair *pair)
{
	struct ibv_wc wc;

	disconnect_ids(pair);
	while (ibv_poll_cq(pair->cq, 1, &wc) > 0)
		;
	pair->channel = rdma_create_event_channel();
	must(pair->channel);
	connect_ids(pair);
}

void pair_close(struct pair *pair)
{
	disconnect_ids(pair);
	must(ibv_destroy_cq(pair->cq) == 0);
	if (!pair->foreign_pd)
		must(ibv_dealloc_pd(pair->pd) == 0);
}

/* Posts a request about one piece of local memory, and waits for its completion. */
static int post(struct pair *pair, struct ibv_send_wr request, const struct ibv_mr *local,
		const void *memory, size_t length)
{
	static _Atomic uint64_t last;
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = (uint32_t)length,
			       .lkey = local->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int err;

	request.wr_id = ++last;
	request.sg_list = &sge;
	request.num_sge = 1;
	err = ibv_post_send(pair->qp, &request, &bad);
	if (err) {
		errno = err;
		return -1;
	}
	/* A lost packet comes again after seconds. */
	for (int tries = 0; tries < 60000; tries++) {
		int count = ibv_poll_cq(pair->cq, 1, &wc);

		must(count >= 0);
		/* An earlier request, which had no completion in time, may have one now. */
		if (count && wc.wr_id == request.wr_id)
			return wc.status;
		usleep(tries < 100 ? 20 : 1000);
	}
	errno = ETIMEDOUT;
	return -1;
}

int pair_write(struct pair *pair, const struct ibv_mr *local, const void *from, size_t length,
	       uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr request = { .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { remote, rkey } };

	return post(pair, request, local, from, length);
}

int pair_read(struct pair *pair, const struct ibv_mr *local, void *to, size_t length,
	      uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr request = { .opcode = IBV_WR_RDMA_READ, .wr.rdma = { remote, rkey } };

	return post(pair, request, local, to, length);
}

int pair_fetch_add(struct pair *pair, const struct ibv_mr *local, void *old, uint64_t add,
		   uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr request = {
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { .remote_addr = remote, .compare_add = add, .rkey = rkey },
	};

	return post(pair, request, local, old, 8);
}
