/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A domain of the library that reports to another provider's event queue: tcp's, which accepts
 * every event, and verbs', which must be opened with FI_WRITE for that. Then the calling thread
 * makes the registrations, the call returns failures, and the event is in the queue when the call
 * returns.
 */
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include "../../lib/fabric.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static char *memory, *hole;

/* Another provider's fabric, or NULL if it has none. */
static struct fid_fabric *fabric_of(const char *provider)
{
	bool verbs = !strcmp(provider, "verbs");
	const char *address = getenv("CHECK_ADDRESS");
	struct fi_info *hints = fi_allocinfo(), *info = NULL, *one;
	struct fid_fabric *fabric = NULL;

	must(hints && address);
	hints->fabric_attr->prov_name = strdup(provider);
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = ~0ULL;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	/* Without an address verbs finds no device. */
	if (!fi_getinfo(FI_VERSION(1, 17), verbs ? address : NULL, NULL, verbs ? FI_SOURCE : 0, hints, &info)) {
		for (one = info; one && strchr(one->fabric_attr->prov_name, ';'); one = one->next)
			;
		if (one)
			must(fi_fabric(one->fabric_attr, &fabric, NULL) == 0);
	}
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return fabric;
}

static struct fid_eq *queue_of(struct fid_fabric *fabric, uint64_t flags)
{
	struct fi_eq_attr attr = { .flags = flags, .wait_obj = FI_WAIT_UNSPEC };
	struct fid_eq *queue = NULL;

	must(fi_eq_open(fabric, &attr, &queue, NULL) == 0 && queue);
	return queue;
}

static ssize_t read_now(struct fid_eq *queue)
{
	struct fi_eq_entry entry;
	uint32_t event;

	return fi_eq_read(queue, &event, &entry, sizeof(entry), 0);
}

static int reg(struct fid_domain *domain, const void *buf, uint64_t access, uint64_t key, struct fid_mr **mr)
{
	return fi_mr_reg(domain, buf, PAGE, access, 0, key, 0, mr, mr);
}

static void reported(const char *name, struct fid_eq *queue, struct fid_mr **mr)
{
	struct fi_eq_entry entry = { .data = 7 };
	uint32_t event = 77;

	is(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), sizeof(entry), "%s: its event is in the queue", name);
	is(event, FI_MR_COMPLETE, "%s: a completion", name);
	ok(entry.fid == &(*mr)->fid && entry.context == mr && !entry.data, "%s: of its object and context", name);
	is(read_now(queue), -FI_EAGAIN, "%s: the only one", name);
}

static void takes(const char *name, struct fid_fabric *fabric, uint64_t flags, const struct kind *kind)
{
	struct fid_eq *queue = queue_of(fabric, flags), *second;
	struct fid_domain *domain = open_kind(pd, kind);
	struct fid_mr *untouched = (struct fid_mr *)&untouched, *mr = untouched, *pieces = NULL;
	struct iovec iov[] = { { memory, 100 }, { memory + 2 * PAGE, 100 } };
	struct rdmamr_segment segment = { 0 };
	size_t count = 1;

	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), 0, "%s: bound", name);
	is(read_now(queue), -FI_EAGAIN, "%s: which leaves nothing in the queue", name);
	second = queue_of(fabric, flags);
	is(fi_domain_bind(domain, &second->fid, FI_REG_MR), -FI_EBUSY, "%s: once", name);
	is(read_now(second), -FI_EAGAIN, "%s: and nothing in the queue that was refused", name);
	is(fi_close(&second->fid), 0, "%s: which is closed", name);

	is(reg(domain, hole, FI_ALL, 5, &mr), -FI_EFAULT, "%s: unmapped memory is refused at once", name);
	ok(strstr(rdmamr_last_reason(), "EFAULT") != NULL, "%s: %s", name, rdmamr_last_reason());
	is(reg(domain, memory, 1, 5, &mr), -FI_EINVAL, "%s: and so is an unknown access", name);
	ok(mr == untouched, "%s: no region was written", name);
	is(read_now(queue), -FI_EAGAIN, "%s: and no event", name);

	is(reg(domain, memory, FI_ALL, 5, &mr), 0, "%s: registered", name);
	must(mr != untouched && mr);
	is(rdmamr_mr_segments(mr, &segment, &count), 0, "%s: it is in the queue when the call returns", name);
	ok(count == 1 && fi_mr_desc(mr) == (void *)(uintptr_t)segment.lkey &&
	   fi_mr_key(mr) == (kind->provider_keys ? segment.rkey : 5), "%s: with key and descriptor", name);
	is(fi_mr_enable(mr), 0, "%s: enabled", name);
	reported(name, queue, &mr);
	is(fi_mr_regv(domain, iov, 2, FI_ALL, 0, 6, 0, &pieces, &pieces), 0, "%s: two pieces", name);
	reported(name, queue, &pieces);
	is(fi_close(&domain->fid), -FI_EBUSY, "%s: the domain is busy", name);
	is(fi_close(&pieces->fid), 0, "%s: closed", name);
	is(fi_close(&mr->fid), 0, "%s: closed", name);
	is(read_now(queue), -FI_EAGAIN, "%s: closing is not an event", name);
	is(fi_close(&domain->fid), 0, "%s: the domain is closed", name);
	is(fi_close(&queue->fid), 0, "%s: and the queue", name);
}

/* An event in the queue may be another's, and stays there. */
static void not_empty(const char *name, struct fid_fabric *fabric, uint64_t flags)
{
	struct fid_eq *queue = queue_of(fabric, flags);
	struct fid_domain *domain = open_kind(pd, &kinds[OFFSETS]);
	struct fi_eq_entry entry = { .fid = &domain->fid, .context = &entry, .data = 99 }, got = { 0 };
	struct fid_mr *mr = NULL;
	uint32_t event = 77;

	is(fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry), "%s: an event of another object", name);
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), -FI_EBUSY, "%s: no binding to a queue that is not empty", name);
	is(fi_eq_read(queue, &event, &got, sizeof(got), 0), sizeof(got), "%s: the event is still there", name);
	ok(event == FI_NOTIFY && got.fid == entry.fid && got.context == &entry && got.data == 99, "%s: unchanged", name);
	is(read_now(queue), -FI_EAGAIN, "%s: and nothing behind it", name);
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), 0, "%s: then it is bound", name);
	is(reg(domain, memory, FI_ALL, 5, &mr), 0, "%s: registered", name);
	reported(name, queue, &mr);
	is(fi_close(&mr->fid), 0, "%s: closed", name);
	is(fi_close(&domain->fid), 0, "%s: the domain is closed", name);
	is(fi_close(&queue->fid), 0, "%s: and the queue", name);
}

static void refuses(const char *name, struct fid_fabric *fabric)
{
	struct fid_eq *queue = queue_of(fabric, 0), *writable = queue_of(fabric, FI_WRITE);
	struct fid_domain *domain = open_kind(pd, &kinds[OFFSETS]);
	struct fid_mr *mr = NULL;

	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), -FI_EINVAL, "%s: refused, as the queue's fi_eq_write is", name);
	ok(strlen(rdmamr_last_reason()) > 10, "%s: %s", name, rdmamr_last_reason());
	is(reg(domain, memory, FI_ALL, 5, &mr), 0, "%s: the domain is unchanged", name);
	ok(fi_mr_key(mr) == 5 && fi_mr_desc(mr), "%s: and registers at once", name);
	is(read_now(queue), -FI_EAGAIN, "%s: without an event", name);
	is(fi_close(&mr->fid), 0, "%s: closed", name);
	is(fi_domain_bind(domain, &writable->fid, FI_REG_MR), 0, "%s: a queue that can be written is bound then", name);
	is(fi_close(&domain->fid), 0, "%s: the domain is closed", name);
	is(fi_close(&queue->fid), 0, "%s: and the queue", name);
	is(fi_close(&writable->fid), 0, "%s: and the other", name);
}

int main(void)
{
	struct fid_fabric *tcp, *verbs;

	fabric_begin();
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	memory = pages(4);
	hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(hole != MAP_FAILED);

	tcp = fabric_of("tcp");
	if (tcp) {
		takes("tcp", tcp, 0, &kinds[OFFSETS]);
		takes("tcp with FI_WRITE", tcp, FI_WRITE, &kinds[PROVIDER_KEYS]);
		not_empty("tcp", tcp, 0);
		is(fi_close(&tcp->fid), 0, "tcp's fabric is closed");
	} else {
		skip("tcp's queue", "libfabric has no provider tcp here");
	}
	verbs = fabric_of("verbs");
	if (verbs) {
		takes("verbs with FI_WRITE", verbs, FI_WRITE, &kinds[OFFSETS]);
		not_empty("verbs with FI_WRITE", verbs, FI_WRITE);
		refuses("verbs without FI_WRITE", verbs);
		is(fi_close(&verbs->fid), 0, "verbs' fabric is closed");
	} else {
		skip("verbs' queue", "libfabric has no provider verbs here");
	}
	is((long long)stats().live, 0, "no region is live");
	is(kernel_regions(context), 0, "the kernel has none");
	is(ibv_dealloc_pd(pd), 0, "the protection domain is not in use");
	is(ibv_close_device(context), 0, "the device is closed");
	return done_testing();
}
