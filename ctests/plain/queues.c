/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A queue that cannot be made, and a domain that is busy, are explained. The results are libibverbs' own. */
#include "../lib/observe.h"
#include <linux/capability.h>
#include <linux/netlink.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* The calls, by the library and by libibverbs alone. */
static __typeof__(ibv_create_cq) *own_cq;
static __typeof__(ibv_create_qp) *own_qp;
static __typeof__(ibv_create_srq) *own_srq;
static int entries_of_cq = 4000;

static void *make_cq(bool own)
{
	return (own ? own_cq : ibv_create_cq)(context, entries_of_cq, &entries_of_cq, NULL, 0);
}

static void *make_qp(bool own)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1000, 1000, 1, 1, 0 },
	};

	return (own ? own_qp : ibv_create_qp)(pd, &attr);
}

static void *make_srq(bool own)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4000, .max_sge = 1 } };

	return (own ? own_srq : ibv_create_srq)(pd, &attr);
}

static const struct { const char *name; void *(*make)(bool own); void *end; } calls[] = {
	{ "ibv_create_cq", make_cq, ibv_destroy_cq }, { "ibv_create_qp", make_qp, ibv_destroy_qp },
	{ "ibv_create_srq", make_srq, ibv_destroy_srq },
};
enum { CALLS = sizeof(calls) / sizeof(*calls) };

/* Both ways end alike: the errno, 0 for success. */
static int outcome(int n)
{
	int err[2];

	for (int own = 0; own < 2; own++) {
		void *queue;

		errno = 77;
		queue = calls[n].make(own);
		err[own] = queue ? 0 : errno;
		if (queue)
			must(((int (*)(void *))calls[n].end)(queue) == 0);
	}
	is(err[0], err[1], "%s: the errno of libibverbs", calls[n].name);
	return err[0];
}

/* Each call fails, and the reason begins so. */
static void run_out(const char *words)
{
	for (int n = 0; n < CALLS; n++) {
		char expected[256];

		is(outcome(n), ENOMEM, "%s fails", calls[n].name);
		snprintf(expected, sizeof(expected), "%s: ENOMEM from libibverbs: %s", calls[n].name, words);
		ok(strstr(rdmamr_last_reason(), expected) == rdmamr_last_reason(), "%s", rdmamr_last_reason());
	}
}

/* The kernel pins the queues of this device. */
static void queues_pinned(void)
{
	struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	struct ibv_mr *mr = ibv_reg_mr(pd, pages(6), 6 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	char name[32], expected[200];
	long kib = field_of("/proc/self/status", "VmPin");

	/* The queue made before is pinned, too. */
	must(mr && kib > 24 && sscanf(getenv("CHECK_DEVICE"), "%31[a-z]", name) == 1);
	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	drop_memlock_right();
	snprintf(expected, sizeof(expected),
		 "likely RLIMIT_MEMLOCK: %s queues are pinned, and %ld of 64 KiB are pinned already (VmPin). Raise it (ulimit -l", name, kib);
	run_out(expected);
	must(ibv_dereg_mr(mr) == 0);
}

/* The kernel allocates them, and the provider maps them: the address space is too small. */
static void queues_mapped(void)
{
	struct rlimit before, limit;

	must(getrlimit(RLIMIT_AS, &before) == 0);
	limit = (struct rlimit){ (rlim_t)field_of("/proc/self/status", "VmSize") * 1024 + 4 * PAGE, before.rlim_max };
	must(setrlimit(RLIMIT_AS, &limit) == 0);
	run_out("RLIMIT_MEMLOCK is not the cause: the kernel's rxe driver allocates the queue itself; not known: what ran out (more: ");
	must(setrlimit(RLIMIT_AS, &before) == 0);
}

static void is_busy(struct ibv_pd *domain, const char *words)
{
	char expected[256];

	is(ibv_dealloc_pd(domain), EBUSY, "a domain is busy");
	snprintf(expected, sizeof(expected), "ibv_dealloc_pd: EBUSY from libibverbs: %s", words);
	ok(!strcmp(rdmamr_last_reason(), expected), "%s", rdmamr_last_reason());
}

/* The objects of a domain. src/mr/held.rs has the thread that made the first. */
static void domains(void)
{
	enum { MANY = 300 };
	struct ibv_mr *many[MANY];
	struct ibv_mr *mr = ibv_reg_mr(pd, pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE), *more;
	struct ibv_qp *qp = make_qp(false);
	struct ibv_srq *srq = make_srq(false);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_pd *second;

	must(mr && qp && srq && mw);
	is_busy(pd, "the domain still has 1 region, 1 shared receive queue, 1 queue pair, 1 unlisted object");
	must(ibv_dealloc_mw(mw) == 0);
	must(ibv_destroy_srq(srq) == 0 && ibv_destroy_qp(qp) == 0);
	is_busy(pd, "the domain still has 1 region");
	/* The kernel's list has many messages. */
	for (int n = 0; n < MANY; n++)
		must((many[n] = ibv_reg_mr(pd, pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE)));
	is_busy(pd, "the domain still has 301 regions");
	for (int n = 0; n < MANY; n++)
		must(ibv_dereg_mr(many[n]) == 0);
	second = ibv_alloc_pd(context);
	must(second);
	is_busy(pd, "the domain still has 1 region");
	more = ibv_reg_mr(second, pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	srq = make_srq(false);
	must(more && srq);
	is_busy(second, "2 domains of this process have 2 regions, 1 shared receive queue");
	must(ibv_destroy_srq(srq) == 0 && ibv_dereg_mr(more) == 0);
	is(ibv_dealloc_pd(second), 0, "a domain without objects is deallocated");
	if (!refuse_calls(SYS_socket, 2, NETLINK_RDMA, EACCES))
		skip("without netlink", "no seccomp filter");
	else
		is_busy(pd, "the domain still has regions, queue pairs or other objects; not known: which (the kernel's list, RDMA netlink, does not say)");
	must(ibv_dereg_mr(mr) == 0);
}

int main(int argc, char **argv)
{
	bool is_rxe;

	(void)argc;
	with_setting(argv, "RDMAMR_LOG", "warn");
	pd = domain_of_device();
	context = pd->context;
	own_cq = of_libibverbs("ibv_create_cq", "IBVERBS_1.1");
	own_qp = of_libibverbs("ibv_create_qp", "IBVERBS_1.1");
	own_srq = of_libibverbs("ibv_create_srq", "IBVERBS_1.1");
	ok(own_cq != ibv_create_cq && own_qp != ibv_create_qp && own_srq != ibv_create_srq, "the calls go through the library");
	cq = make_cq(false);
	must(cq);
	ok(cq->context == context && cq->cq_context == &entries_of_cq && cq->cqe >= entries_of_cq, "a queue is made with its arguments");
	must(ibv_destroy_cq(cq) == 0);
	entries_of_cq = 100;
	cq = make_cq(false);
	must(cq);
	for (int n = 0; n < CALLS; n++)
		is(outcome(n), 0, "%s succeeds", calls[n].name);
	is_rxe = !strncmp(context->device->name, "rxe", 3);
	if (is_rxe) {
		domains();
		entries_of_cq = -1;
		is(outcome(0), EINVAL, "a wrong number of entries is refused");
		ok(!strstr(rdmamr_last_reason(), "ibv_create_cq"), "which no limit explains");
	}
	entries_of_cq = 4000;
	hear_errors();
	if (is_rxe)
		queues_mapped();
	else
		queues_pinned();
	is(times_said("ibv_create_cq: ENOMEM from libibverbs"), 1, "the line is printed once");
	hear_no_more();
	is(ibv_destroy_cq(cq), 0, "the queue ends");
	is(ibv_dealloc_pd(pd), 0, "the domain ends");
	return done_testing();
}
