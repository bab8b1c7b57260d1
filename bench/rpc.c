/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that registers per message, as many do: remote procedure calls between two processes
 * over one RC queue pair. Each request and each reply is in memory fresh from malloc, which is
 * registered, sent or fetched, checked, deregistered and freed. The program has no code for this
 * library, which changes it from outside alone.
 *
 * Up to 4 KiB travel with the message. Beyond that, the server reads the request from the client's
 * memory by RDMA and writes the reply there, so the client's large buffers have remote rights, and
 * all others have not.
 *
 * Usage: rpc DEVICE GID_INDEX MESSAGES. Prints a row for each class of sizes, with medians: the
 * number of messages, the us that one took, and the us of these in the registration calls of both
 * processes.
 */
#include <infiniband/verbs.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench.h"
#include "device.h"
#include "median.h"

#define must(condition)                                                        \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "rpc: %s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
			exit(1);                                               \
		}                                                              \
	} while (0)

enum { EAGER = 4096, WARM_UP = 200 };

/* Precedes the data, or the notice that data has been written. */
struct header {
	uint32_t sequence, rkey;
	uint64_t length, reply_length, address, reply_address;
	uint32_t reply_rkey, last;
};

struct end {
	uint32_t qp_number;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
/* The constant parts: one header to send and one to receive. */
static struct header *headers;
static struct ibv_mr *headers_mr;

enum { CLASSES = 4 };
static const struct {
	const char *name;
	size_t up_to;
	unsigned int percent;
} classes[CLASSES] = {
	{ "64 B to 512 B", 512, 50 },
	{ "to 4 KiB", 4096, 25 },
	{ "to 64 KiB", 65536, 20 },
	{ "to 1 MiB", 1 << 20, 5 },
};

/* The time of each call, and its part in the registration calls of each process; in memory that
 * both share. */
static struct call {
	int class;
	double total, registering[2];
} *calls;
/* The time that this process has spent in registration calls. */
static double registering;

static double now(void) { return clock_of(CLOCK_MONOTONIC) / 1e3; }

static struct ibv_mr *reg(void *memory, size_t length, int access)
{
	double start = now();
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, access);

	registering += now() - start;
	must(mr);
	return mr;
}

static void dereg(struct ibv_mr *mr)
{
	double start = now();

	must(ibv_dereg_mr(mr) == 0);
	registering += now() - start;
}

static uint64_t word(uint32_t sequence, size_t n)
{
	return (sequence + 1) * 0x9e3779b97f4a7c15 + n;
}

static void fill(char *memory, size_t length, uint32_t sequence)
{
	for (size_t n = 0; n < length / 8; n++) {
		uint64_t value = word(sequence, n);

		memcpy(memory + n * 8, &value, 8);
	}
}

static void check(const char *memory, size_t length, uint32_t sequence)
{
	uint64_t wrong = 0;

	for (size_t n = 0; n < length / 8; n++) {
		uint64_t value;

		memcpy(&value, memory + n * 8, 8);
		wrong |= value ^ word(sequence, n);
	}
	if (wrong) {
		fprintf(stderr, "rpc: WRONG DATA in message %u of %zu bytes\n", sequence, length);
		exit(2);
	}
}

/* Waits without spinning, which on few processors would delay soft-RoCE's own work. */
static void poll_cq(struct ibv_wc *wc)
{
	struct ibv_cq *of;
	void *unused;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, wc))) {
		must(ibv_req_notify_cq(cq, 0) == 0);
		count = ibv_poll_cq(cq, 1, wc);
		if (count)
			break;
		must(ibv_get_cq_event(channel, &of, &unused) == 0);
		ibv_ack_cq_events(of, 1);
	}
	must(count == 1);
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "rpc: %s\n", ibv_wc_status_str(wc->status));
		exit(1);
	}
}

static void completed(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc;
	static bool early;

	/* A message may arrive before the completion of the previous send. */
	if (early && opcode == IBV_WC_RECV) {
		early = false;
		return;
	}
	for (;;) {
		poll_cq(&wc);
		if (wc.opcode == opcode)
			return;
		must(wc.opcode == IBV_WC_RECV && !early);
		early = true;
	}
}

/* Receives the next message: its header into headers[1], its data into the memory. */
static void expect(void *memory, size_t length, const struct ibv_mr *mr)
{
	struct ibv_sge sges[2] = {
		{ .addr = (uintptr_t)&headers[1], .length = sizeof(struct header), .lkey = headers_mr->lkey },
		{ .addr = (uintptr_t)memory, .length = (uint32_t)length, .lkey = mr ? mr->lkey : 0 },
	};
	struct ibv_recv_wr request = { .sg_list = sges, .num_sge = mr ? 2 : 1 }, *bad;

	must(ibv_post_recv(qp, &request, &bad) == 0);
}

/* Sends headers[0], with the memory. */
static void send_with(const void *memory, size_t length, const struct ibv_mr *mr)
{
	struct ibv_sge sges[2] = {
		{ .addr = (uintptr_t)&headers[0], .length = sizeof(struct header), .lkey = headers_mr->lkey },
		{ .addr = (uintptr_t)memory, .length = (uint32_t)length, .lkey = mr ? mr->lkey : 0 },
	};
	struct ibv_send_wr request = {
		.sg_list = sges, .num_sge = mr ? 2 : 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	must(ibv_post_send(qp, &request, &bad) == 0);
	completed(IBV_WC_SEND);
}

static void move(enum ibv_wr_opcode opcode, void *memory, size_t length, const struct ibv_mr *mr, uint64_t there,
		 uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = (uint32_t)length, .lkey = mr->lkey };
	struct ibv_send_wr request = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = there, .rkey = rkey },
	}, *bad;

	must(ibv_post_send(qp, &request, &bad) == 0);
	completed(opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
}

static void call(uint32_t sequence, size_t length, size_t reply_length, bool last)
{
	char *request = malloc(length), *reply = malloc(reply_length);
	bool eager = length <= EAGER, eager_reply = reply_length <= EAGER;
	struct ibv_mr *mr, *reply_mr;

	must(request && reply);
	fill(request, length, sequence);
	mr = reg(request, length, eager ? 0 : IBV_ACCESS_REMOTE_READ);
	reply_mr = reg(reply, reply_length, IBV_ACCESS_LOCAL_WRITE | (eager_reply ? 0 : IBV_ACCESS_REMOTE_WRITE));
	expect(reply, reply_length, eager_reply ? reply_mr : NULL);
	headers[0] = (struct header){
		.sequence = sequence, .length = length, .reply_length = reply_length, .last = last,
		.address = (uintptr_t)request, .rkey = mr->rkey,
		.reply_address = (uintptr_t)reply, .reply_rkey = reply_mr->rkey,
	};
	send_with(request, length, eager ? mr : NULL);
	completed(IBV_WC_RECV);
	must(headers[1].sequence == sequence);
	check(reply, reply_length, ~sequence);
	dereg(mr);
	dereg(reply_mr);
	free(request);
	free(reply);
}

/* Serves one call, whose message is in `message`. */
static void serve(char *message, const struct header *asked)
{
	char *request = message, *reply = malloc(asked->reply_length);
	struct ibv_mr *mr;

	must(reply);
	if (asked->length > EAGER) {
		request = malloc(asked->length);
		must(request);
		mr = reg(request, asked->length, IBV_ACCESS_LOCAL_WRITE);
		move(IBV_WR_RDMA_READ, request, asked->length, mr, asked->address, asked->rkey);
		dereg(mr);
	}
	check(request, asked->length, asked->sequence);
	if (request != message)
		free(request);

	fill(reply, asked->reply_length, ~asked->sequence);
	mr = reg(reply, asked->reply_length, 0);
	headers[0] = (struct header){ .sequence = asked->sequence };
	if (asked->reply_length > EAGER)
		move(IBV_WR_RDMA_WRITE, reply, asked->reply_length, mr, asked->reply_address, asked->reply_rkey);
	send_with(reply, asked->reply_length, asked->reply_length > EAGER ? NULL : mr);
	dereg(mr);
	free(reply);
}

/* The memory for the next message is registered before the reply to the last lets the client go
 * on. */
static void server(void)
{
	char *message = malloc(EAGER);
	struct ibv_mr *mr;
	bool last = false;

	must(message);
	mr = reg(message, EAGER, IBV_ACCESS_LOCAL_WRITE);
	expect(message, EAGER, mr);
	while (!last) {
		char *next = malloc(EAGER);
		struct ibv_mr *next_mr;
		struct header asked;
		double before;

		must(next);
		completed(IBV_WC_RECV);
		asked = headers[1];
		last = asked.last;
		before = registering;
		next_mr = reg(next, EAGER, IBV_ACCESS_LOCAL_WRITE);
		expect(next, EAGER, next_mr);
		serve(message, &asked);
		dereg(mr);
		free(message);
		message = next;
		mr = next_mr;
		calls[asked.sequence].registering[1] = registering - before;
	}
	must(ibv_destroy_qp(qp) == 0);
	dereg(mr);
	free(message);
}

/* Uniform on a logarithmic scale; the same in every run. */
static size_t some_length(int class)
{
	size_t least = class ? classes[class - 1].up_to + 8 : 64;
	double length = (double)least * pow((double)classes[class].up_to / (double)least, (double)random() / RAND_MAX);

	return ((size_t)length + 7) & ~(size_t)7;
}

static int some_class(void)
{
	unsigned int at = (unsigned int)random() % 100;
	int class = 0;

	while (at >= classes[class].percent)
		at -= classes[class++].percent;
	return class;
}

static void client(long messages)
{
	srandom(4711);
	for (long n = 0; n < messages; n++) {
		int class = some_class();
		size_t length = some_length(class), reply_length = some_length(class);
		double start = now(), before = registering;

		call((uint32_t)n, length, reply_length, n == messages - 1);
		/* The server writes its own share, perhaps at this moment. */
		calls[n].class = class;
		calls[n].total = now() - start;
		calls[n].registering[0] = registering - before;
	}
	must(ibv_destroy_qp(qp) == 0);
}

/* Medians: unlike means, they do not move with a busy moment of the machine. */
static void report(long messages)
{
	double *totals = calloc((size_t)messages, sizeof(double)), *shares = calloc((size_t)messages, sizeof(double));

	must(totals && shares);
	for (int class = 0; class < CLASSES; class++) {
		int count = 0;

		for (long n = WARM_UP; n < messages; n++) {
			if (calls[n].class != class)
				continue;
			totals[count] = calls[n].total;
			shares[count++] = calls[n].registering[0] + calls[n].registering[1];
		}
		if (count)
			printf("%-16s %6d %10.1f %10.1f\n", classes[class].name, count, median(totals, count),
			       median(shares, count));
	}
}

static void open_device(const char *name, int gid_index, struct end *end)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};

	pd = domain_of(name);
	must(pd);
	context = pd->context;
	channel = ibv_create_comp_channel(context);
	must(channel);
	cq = ibv_create_cq(context, 32, NULL, channel, 0);
	must(cq);
	attr.send_cq = attr.recv_cq = cq;
	qp = ibv_create_qp(pd, &attr);
	must(qp);
	headers = calloc(2, sizeof(*headers));
	must(headers);
	headers_mr = ibv_reg_mr(pd, headers, 2 * sizeof(*headers), IBV_ACCESS_LOCAL_WRITE);
	must(headers_mr);
	end->qp_number = qp->qp_num;
	must(ibv_query_gid(context, 1, gid_index, &end->gid) == 0);
}

static void connect_to(const struct end *peer, int gid_index)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};

	must(ibv_query_port(context, 1, &port) == 0);
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = peer->qp_number, .rq_psn = 1,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer->gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64 } },
	};
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(int argc, char **argv)
{
	struct end ends[2];
	int sockets[2], status, gid_index, side;
	long messages;
	pid_t pid;

	if (argc != 4) {
		fprintf(stderr, "usage: rpc DEVICE GID_INDEX MESSAGES\n");
		return 2;
	}
	gid_index = atoi(argv[2]);
	messages = WARM_UP + atol(argv[3]);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	calls = mmap(NULL, (size_t)messages * sizeof(*calls), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(calls != MAP_FAILED);
	pid = fork();
	must(pid >= 0);
	side = pid ? 0 : 1;
	open_device(argv[1], gid_index, &ends[side]);
	must(write(sockets[side], &ends[side], sizeof(*ends)) == sizeof(*ends));
	must(read(sockets[side], &ends[!side], sizeof(*ends)) == sizeof(*ends));
	connect_to(&ends[!side], gid_index);
	if (side)
		server();
	else
		client(messages);
	must(ibv_dereg_mr(headers_mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 &&
	     ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	if (side)
		return 0;
	must(waitpid(pid, &status, 0) == pid && status == 0);
	report(messages);
	return 0;
}
