/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls whose arguments fill the registers, and calls through the tables of libfabric's objects:
 * each from a function of its own, which the report must name. Some of them register in the
 * background. Compiled with libfabric's inline functions, and with the library's symbols.
 */
#include "../../lib/fabric.h"
#include "../../lib/program.h"

#define FROM_HERE __attribute__((noinline, noclone)) static

static struct ibv_pd *pd;
static char *memory;

/* Some devices support neither: a failed call has a caller as well. */
FROM_HERE void changes(struct ibv_mr *mr)
{
	int code = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0);

	printf("# ibv_rereg_mr: %d\n", code);
}

FROM_HERE void shares(void)
{
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, PAGE, 0x5000, -1, IBV_ACCESS_LOCAL_WRITE);

	must(!mr);
}

/* A right that fi_mr(3) does not define. */
#define UNKNOWN (1ull << 40)

FROM_HERE struct fid_mr *registers(struct fid_domain *domain, uint64_t access, uint64_t key)
{
	struct fid_mr *mr = NULL;
	int code = fi_mr_reg(domain, memory, 3 * PAGE, access, 0, key, 0, &mr, NULL);

	must(!code == (access != UNKNOWN));
	return mr;
}

FROM_HERE struct fid_mr *gathers(struct fid_domain *domain, uint64_t key)
{
	struct iovec iov[] = { { memory, PAGE }, { memory + 2 * PAGE, PAGE } };
	struct fid_mr *mr = NULL;

	must(fi_mr_regv(domain, iov, 2, FI_ALL, 0, key, 0, &mr, NULL) == 0 && mr);
	return mr;
}

FROM_HERE struct fid_mr *describes(struct fid_domain *domain, uint64_t key)
{
	struct iovec iov = { memory, PAGE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = FI_LOCAL, .requested_key = key };
	struct fid_mr *mr = NULL;

	must(fi_mr_regattr(domain, &attr, 0, &mr) == 0 && mr);
	return mr;
}

FROM_HERE void closes(struct fid_mr *mr)
{
	must(fi_close(&mr->fid) == 0);
}

/* The call's context, for the thread that reads the events. */
struct slot {
	struct fid_mr *mr;
};

static struct fid_eq *queue;

/*
 * Closes each region when its event arrives, and forgets it: as fast as the call that registers it,
 * or faster.
 */
FROM_HERE void *ends(void *count)
{
	for (int n = *(int *)count; n > 0; n--) {
		struct fi_eq_entry entry;
		struct slot *slot;
		struct fid_mr *mr;
		uint32_t event;

		must(fi_eq_sread(queue, &event, &entry, sizeof(entry), -1, 0) == sizeof(entry) && event == FI_MR_COMPLETE);
		slot = entry.context;
		mr = slot->mr;
		must(&mr->fid == entry.fid);
		slot->mr = NULL;
		must(fi_close(&mr->fid) == 0);
	}
	return NULL;
}

/* In the background, where no region is left when the call returns. */
FROM_HERE void begins(struct fid_domain *domain, uint64_t flags)
{
	static struct slot slots[400];
	int count = sizeof(slots) / sizeof(slots[0]);
	pthread_t reader = must_start(ends, &count);

	for (int n = 0; n < count; n++)
		must(fi_mr_reg(domain, memory, PAGE, FI_RECV, flags ? n * PAGE : 0, n, flags, &slots[n].mr, &slots[n]) == 0);
	must_join(reader);
}

/* In the background, on unmapped memory: the call returns 0. */
FROM_HERE void fails_later(struct fid_domain *domain)
{
	struct fi_eq_err_entry error = { 0 };
	struct fid_mr *mr;

	must(fi_mr_reg(domain, NOWHERE, PAGE, FI_RECV, 0, 1, 0, &mr, NULL) == 0);
	while (fi_eq_readerr(queue, &error, 0) == -FI_EAGAIN)
		usleep(1000);
	must(error.fid == &mr->fid && error.err == FI_EFAULT);
	must(fi_close(&mr->fid) == 0);
}

/*
 * Regions without an lkey of their own, and some that another region has replaced before they are
 * closed.
 */
FROM_HERE void replaces(struct fid_domain *domain)
{
	struct iovec iov[] = { { memory, PAGE }, { memory + 2 * PAGE, PAGE } };
	struct fid_mr *composites[3], *placed[3];

	for (int n = 0; n < 3; n++) {
		must(fi_mr_regv(domain, iov, 2, FI_LOCAL, 0, n, 0, &composites[n], NULL) == 0);
		must(fi_mr_reg(domain, memory, PAGE, FI_REMOTE, 0, 10 + n, RDMAMR_MR_OFFSET, &placed[n], NULL) == 0);
	}
	for (int n = 0; n < 3; n++) {
		must(fi_close(&composites[n]->fid) == 0);
		must(fi_close(&placed[n]->fid) == 0);
	}
}

static void has_events(uint64_t flags)
{
	struct rdmamr_domain_attr attr = { .size = sizeof(attr), .api_version = FI_VERSION(1, 17), .flags = flags };
	struct fid_domain *domain;

	must(rdmamr_domain_open(pd, &attr, &domain, NULL) == 0);
	replaces(domain);
	must(rdmamr_eq_open(FI_VERSION(1, 17), NULL, &queue, NULL) == 0);
	must(fi_domain_bind(domain, &queue->fid, FI_REG_MR) == 0);
	begins(domain, 0);
	begins(domain, RDMAMR_MR_OFFSET);
	fails_later(domain);
	must(fi_close(&domain->fid) == 0);
	must(fi_close(&queue->fid) == 0);
}

int main(void)
{
	struct fid_domain *domain;
	struct ibv_mr *mr;

	pd = domain_of_device();
	memory = pages(4);
	mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	changes(mr);
	shares();
	for (int kind = 0; kind < KINDS; kind++) {
		if (kinds[kind].provider_keys)
			continue;
		domain = open_kind(pd, &kinds[kind]);
		must(!registers(domain, UNKNOWN, 1));
		closes(registers(domain, FI_ALL, 7));
		closes(gathers(domain, 8));
		closes(describes(domain, 9));
		must(fi_close(&domain->fid) == 0);
	}
	has_events(0);
	has_events(RDMAMR_DOMAIN_CACHE);
	must(ibv_dereg_mr(mr) == 0);
	return 0;
}
