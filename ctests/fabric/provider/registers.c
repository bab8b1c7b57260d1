/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program with libfabric's headers and -lfabric alone, to which the provider is a name in its hints: the
 * modes that they agree on, a region of each kind of key, events, and what the kernel has pinned. The
 * programs of fabric/ test the objects.
 *
 * Usage: registers [MAJOR.MINOR]: the version of libfabric that the program claims to be written for (1.17).
 */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>
#include "../../lib/memory.h"
#include "../../lib/tap.h"

enum { SIZE = 256 * PAGE, PATIENCE = 300000 /* ms */ };
enum { OWN_KEYS = FI_MR_LOCAL | FI_MR_ALLOCATED, PROVIDER_KEYS = OWN_KEYS | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY };
#define ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static uint32_t version = FI_VERSION(1, 17);
static char *memory; /* SIZE bytes */
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *queue;

static int ask(uint32_t asked_for, int mr_mode, uint64_t mode)
{
	struct fi_info *hints = fi_allocinfo();
	int ret;

	must(hints && getenv("CHECK_DEVICE"));
	hints->fabric_attr->prov_name = strdup("rdmamr");
	hints->domain_attr->name = strdup(getenv("CHECK_DEVICE"));
	hints->domain_attr->mr_mode = mr_mode;
	hints->mode = mode;
	info = NULL;
	ret = fi_getinfo(asked_for, NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	return ret;
}

/* What the program takes, and what is agreed on. Version 0: the program's. */
static const struct offer {
	const char *name;
	uint32_t version;
	int takes, agreed;
	uint64_t mode, agreed_mode;
} offers[] = {
	{ "own keys and offsets", 0, OWN_KEYS, OWN_KEYS, ~0ULL, 0 },
	{ "the provider's keys", 0, PROVIDER_KEYS, PROVIDER_KEYS, ~0ULL, 0 },
	/* Before libfabric 1.5 fi_info.mode said whether local memory needs a registration. */
	{ "1.4, local memory too", FI_VERSION(1, 4), FI_MR_UNSPEC, FI_MR_BASIC, FI_LOCAL_MR | FI_CONTEXT, FI_LOCAL_MR },
};

static void offered(const struct offer *offer)
{
	if (!gives(0, ask(offer->version ? offer->version : version, offer->takes, offer->mode)))
		return;
	gives(offer->agreed, info->domain_attr->mr_mode);
	gives(offer->agreed_mode, info->mode);
	holds(info->domain_attr->mr_key_size > 0 && info->domain_attr->mr_key_size <= 8 && info->domain_attr->mr_cnt > 0);
	fi_freeinfo(info);
}

static void trywait(int answer, const char *when)
{
	struct fid *queues[] = { &queue->fid, &queue->fid }, *other = &domain->fid;

	is(fi_trywait(fabric, queues, 2), answer, "%s: fi_trywait", when);
	is(fi_trywait(fabric, &other, 1), -FI_EINVAL, "%s: fi_trywait of a domain", when);
	is(fi_trywait(fabric, queues, 0), 0, "%s: fi_trywait of nothing", when);
}

static long pinned(void) { return field_of("/proc/self/status", "VmPin") * 1024; }

/* By own keys a region may be registered once for its own process and once for remote peers. */
static bool is_pinned(long bytes) { return pinned() >= bytes && pinned() <= 2 * bytes; }

static int reg(const void *buf, size_t length, uint64_t key, struct fid_mr **mr)
{
	return fi_mr_reg(domain, buf, length, ALL, 0, key, 0, mr, mr);
}

static void events(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	struct fi_eq_entry entry = { 0 };
	struct fid_mr *mr = NULL;
	uint32_t event = 0;

	must(fi_eq_open(fabric, &attr, &queue, &version) == 0 && queue);
	holds(queue->fid.fclass == FI_CLASS_EQ && queue->fid.context == &version);
	trywait(0, "no events");
	gives(0, fi_domain_bind(domain, &queue->fid, FI_REG_MR));
	gives(0, reg(memory, PAGE, 5, &mr));
	must(fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, FI_PEEK) == sizeof(entry));
	trywait(-FI_EAGAIN, "an event to be read");
	gives(sizeof(entry), fi_eq_read(queue, &event, &entry, sizeof(entry), 0));
	holds(event == FI_MR_COMPLETE && entry.fid == &mr->fid && entry.context == &mr && fi_mr_key(mr) == 5);
	trywait(0, "it was read");
	holds(is_pinned(PAGE));
	gives(-FI_EBUSY, fi_close(&queue->fid));
	gives(0, fi_close(&mr->fid));
}

/* Two regions of the same memory; the requested key counts if the provider has none of its own. */
static void registers(bool provider)
{
	struct fid_mr *mrs[2] = { 0 };

	must(ask(version, provider ? PROVIDER_KEYS : OWN_KEYS, ~0ULL) == 0);
	must(fi_fabric(info->fabric_attr, &fabric, &version) == 0 && fi_domain(fabric, info, &domain, &version) == 0);
	holds(fabric->fid.fclass == FI_CLASS_FABRIC && fabric->fid.context == &version);
	holds(domain->fid.fclass == FI_CLASS_DOMAIN && domain->fid.context == &version);
	for (uint64_t n = 0; n < 2; n++) {
		gives(0, reg(memory, SIZE, provider ? 7 : 7 + n, &mrs[n]));
		must(mrs[n]);
		holds(provider ? fi_mr_key(mrs[n]) <= UINT32_MAX : fi_mr_key(mrs[n]) == 7 + n);
		holds(fi_mr_desc(mrs[n]) && mrs[n]->fid.fclass == FI_CLASS_MR && mrs[n]->fid.context == &mrs[n]);
	}
	holds(fi_mr_key(mrs[0]) != fi_mr_key(mrs[1]));
	/* Under the provider's keys each region is pinned once. */
	holds(provider ? pinned() == 2 * SIZE : is_pinned(2 * SIZE));
	gives(-FI_EBUSY, fi_close(&domain->fid));
	gives(0, fi_close(&mrs[0]->fid));
	gives(0, fi_close(&mrs[1]->fid));
	gives(0, pinned());
	if (!provider)
		events();
	gives(0, fi_close(&domain->fid));
	gives(0, pinned());
	holds(provider || fi_close(&queue->fid) == 0);
	gives(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
}

int main(int argc, char **argv)
{
	unsigned int major, minor;

	if (argc > 1) {
		must(sscanf(argv[1], "%u.%u", &major, &minor) == 2);
		version = FI_VERSION(major, minor);
	}
	memory = pages(SIZE / PAGE);
	if (version > fi_version()) {
		ok(ask(version, OWN_KEYS, ~0ULL) == -FI_ENOSYS && !info, "libfabric refuses a newer version");
		return done_testing();
	}
	for (size_t n = 0; n < sizeof(offers) / sizeof(*offers); n++)
		as_case(offered(&offers[n]), "agreed on: %s", offers[n].name);
	as_case(registers(false), "the application's keys, and events");
	as_case(registers(true), "the provider's keys");
	return done_testing();
}
