/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that registers memory by libfabric's calls and knows nothing of this library: it is
 * built with libfabric's headers and -lfabric alone, and the provider is a name in its hints.
 * The objects are those that the programs of fabric/ test; errors.c has the refusals. Here are what
 * the provider offers, a region of each kind of key, events, and what the kernel has pinned.
 *
 * Usage: registers [MAJOR.MINOR]: the version of libfabric that the program claims to be written
 * for, 1.17 by default; one that libfabric does not know is refused. The device is CHECK_DEVICE.
 */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include "../../lib/tap.h"

enum { PAGE = 4096, SIZE = 256 * PAGE, PATIENCE = 300000 /* ms */ };
#define ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static uint32_t version = FI_VERSION(1, 17);
static const char *device;
static char *memory; /* SIZE bytes */

static struct fid_domain *domain;
static struct fid_eq *queue;

static struct fi_info *info;
static struct fid_fabric *fabric;

static int ask(uint32_t asked_for, int mr_mode, uint64_t mode)
{
	struct fi_info *hints = fi_allocinfo();
	int ret;

	must(hints);
	hints->fabric_attr->prov_name = strdup("rdmamr");
	hints->domain_attr->name = strdup(device);
	hints->domain_attr->mr_mode = mr_mode;
	hints->mode = mode;
	ret = fi_getinfo(asked_for, NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	return ret;
}

/* Before libfabric 1.5 fi_info.mode said whether local memory needs a registration. */
static void old_application(void)
{
	const uint64_t takes[] = { FI_LOCAL_MR | FI_CONTEXT, FI_CONTEXT };

	for (int n = 0; n < 2; n++) {
		is(ask(FI_VERSION(1, 4), FI_MR_UNSPEC, takes[n]), 0, "an application of 1.4");
		if (info) {
			is(info->domain_attr->mr_mode, FI_MR_BASIC, "has one kind of memory");
			is((long long)info->mode, (long long)(takes[n] & FI_LOCAL_MR), "and registers local memory if it says so");
		}
		fi_freeinfo(info);
		info = NULL;
	}
}

static void close_fabric(void)
{
	is(fi_close(&fabric->fid), 0, "the fabric is closed");
	fi_freeinfo(info);
	info = NULL;
}

static void open_domain(bool provider_keys)
{
	int ret = ask(version, FI_MR_LOCAL | FI_MR_ALLOCATED | (provider_keys ? FI_MR_VIRT_ADDR | FI_MR_PROV_KEY : 0), ~0ULL);

	if (ret)
		printf("# fi_getinfo: %d (%s)\n", ret, fi_strerror(-ret));
	must(!ret && info);
	ok(!strcmp(info->fabric_attr->prov_name, "rdmamr"), "the provider is the library alone: %s", info->fabric_attr->prov_name);
	ok(!strcmp(info->fabric_attr->name, "rdmamr") && !strcmp(info->domain_attr->name, device),
	   "its fabric is rdmamr, its domain the device: %s", info->domain_attr->name);
	is((long long)info->mode, 0, "it wants no mode of the application");
	ok(info->next == NULL, "there is one such domain");
	is(info->ep_attr->type, FI_EP_RDM, "its endpoints would be of the kind that is not built upon");
	is(info->domain_attr->mr_mode, FI_MR_LOCAL | FI_MR_ALLOCATED |
	   (provider_keys ? FI_MR_VIRT_ADDR | FI_MR_PROV_KEY : 0), "its mode is the requested one");
	is((long long)info->domain_attr->mr_iov_limit, 16, "of up to 16 pieces");
	ok(info->domain_attr->mr_key_size > 0 && info->domain_attr->mr_key_size <= 8 && info->domain_attr->mr_cnt > 0,
	   "keys of %zu bytes, %zu regions", info->domain_attr->mr_key_size, info->domain_attr->mr_cnt);
	must(fi_fabric(info->fabric_attr, &fabric, &version) == 0);
	ok(fabric->fid.context == &version && fabric->fid.fclass == FI_CLASS_FABRIC, "the fabric is opened");
	ret = fi_domain(fabric, info, &domain, &version);
	if (ret)
		printf("# fi_domain: %d (%s)\n", ret, fi_strerror(-ret));
	must(!ret && domain);
}

static void trywait(int answer, const char *when)
{
	struct fid *queues[] = { &queue->fid, &queue->fid }, *other = &domain->fid;

	is(fi_trywait(fabric, queues, 2), answer, "%s: fi_trywait", when);
	is(fi_trywait(fabric, &other, 1), -FI_EINVAL, "%s: fi_trywait of a domain", when);
	is(fi_trywait(fabric, queues, 0), 0, "%s: fi_trywait of nothing", when);
}
/* The number of bytes that the kernel counts as pinned. */
static long pinned(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[200];
	long kilobytes = -1;

	must(status);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "VmPin: %ld", &kilobytes);
	fclose(status);
	must(kilobytes >= 0);
	return kilobytes * 1024;
}

/* A region may be registered once for its own process and once for remote peers. */
static void is_pinned(long bytes, const char *name)
{
	long now = pinned();

	ok(now >= bytes && now <= 2 * bytes, "%s: %ld bytes for %ld", name, now, bytes);
}

static int reg(const void *buf, size_t length, uint64_t access, uint64_t key, struct fid_mr **mr)
{
	return fi_mr_reg(domain, buf, length, access, 0, key, 0, mr, mr);
}

static void close_domain(void)
{
	gives(0, fi_close(&domain->fid));
	gives(0, pinned());
}

/* Two regions of the same memory; the requested key counts if the provider has none of its own. */
static void keys(bool provider)
{
	struct fid_mr *mrs[2] = { 0 };

	for (int n = 0; n < 2; n++) {
		uint64_t key = provider ? 7 : 7 + (uint64_t)n;

		gives(0, reg(memory, SIZE, ALL, key, &mrs[n]));
		must(mrs[n]);
		holds(provider ? fi_mr_key(mrs[n]) <= UINT32_MAX : fi_mr_key(mrs[n]) == key);
		holds(fi_mr_desc(mrs[n]) && mrs[n]->fid.fclass == FI_CLASS_MR && mrs[n]->fid.context == &mrs[n]);
	}
	/* For a provider's keys once each. */
	ok(!provider || pinned() == 2 * SIZE, "the memory is pinned once");
	is_pinned(2 * SIZE, "the memory is pinned");
	holds(fi_mr_key(mrs[0]) != fi_mr_key(mrs[1]));
	gives(-FI_EBUSY, fi_close(&domain->fid));
	gives(0, fi_close(&mrs[0]->fid));
	gives(0, fi_close(&mrs[1]->fid));
	gives(0, pinned());
}

static void asynchronous(void)
{
	char *hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_entry entry = { 0 };
	struct fid_mr *mr = NULL, *bad = NULL;
	uint32_t event = 0;

	must(hole != MAP_FAILED);
	trywait(0, "no events");
	gives(0, fi_domain_bind(domain, &queue->fid, FI_REG_MR));
	gives(0, reg(memory, PAGE, ALL, 5, &mr));
	must(fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0) == sizeof(entry));
	holds(event == FI_MR_COMPLETE && entry.fid == &mr->fid && entry.context == &mr && fi_mr_key(mr) == 5);
	is_pinned(PAGE, "the memory is pinned");
	gives(0, reg(hole, PAGE, ALL, 77, &bad));
	gives(-FI_EAVAIL, fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0));
	trywait(-FI_EAGAIN, "an error to be read");
	gives(sizeof(error), fi_eq_readerr(queue, &error, 0));
	holds(error.fid == &bad->fid && error.context == &bad && error.err == FI_EFAULT);
	trywait(0, "the error was read");
	gives(-FI_EBUSY, fi_close(&queue->fid));
	gives(0, fi_close(&mr->fid));
	gives(0, fi_close(&bad->fid));
	must(munmap(hole, PAGE) == 0);
}

int main(int argc, char **argv)
{
	unsigned int major, minor;

	if (argc > 1) {
		must(sscanf(argv[1], "%u.%u", &major, &minor) == 2);
		version = FI_VERSION(major, minor);
	}
	device = getenv("CHECK_DEVICE");
	must(device);
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	must(memory != MAP_FAILED);
	if (version > fi_version()) {
		is(ask(version, FI_MR_LOCAL | FI_MR_ALLOCATED, ~0ULL), -FI_ENOSYS, "libfabric refuses a newer version");
		ok(info == NULL, "and offers nothing");
		return done_testing();
	}
	is(ask(version, FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR, ~0ULL), 0, "application's keys, virtual addresses");
	if (info)
		is(info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY), FI_MR_VIRT_ADDR, "are offered");
	fi_freeinfo(info);
	info = NULL;
	old_application();
	open_domain(false);
	must(fi_eq_open(fabric, &(struct fi_eq_attr){ .wait_obj = FI_WAIT_FD }, &queue, &version) == 0 && queue);
	ok(domain->fid.fclass == FI_CLASS_DOMAIN && domain->fid.context == &version, "the domain has its class and context");
	ok(queue->fid.fclass == FI_CLASS_EQ && queue->fid.context == &version, "the queue has its class and context");
	as_case(keys(false), "the application's keys");
	as_case(asynchronous(), "asynchronous");
	close_domain();
	is(fi_close(&queue->fid), 0, "the queue is closed");
	close_fabric();
	open_domain(true);
	as_case(keys(true), "the provider's keys");
	close_domain();
	close_fabric();
	return done_testing();
}
