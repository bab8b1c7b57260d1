/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that registers memory by libfabric's calls and knows nothing of this library: it is
 * built with libfabric's headers and -lfabric alone, and the provider is a name in its hints.
 * Compiled with -DALONE, the same calls do the same without libfabric: on a protection domain of
 * libibverbs, by the library's own functions.
 *
 * Usage: registers [MAJOR.MINOR]: the version of libfabric that the program claims to be written
 * for, 1.17 by default; one that libfabric does not know is refused. The device is CHECK_DEVICE.
 */
#ifdef ALONE
#define RDMAMR_NO_LIBFABRIC
#include <infiniband/verbs.h>
#include <rdmamr/fi_mr.h>
#else
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include "../../lib/tap.h"

enum { PAGE = 4096, SIZE = 256 * PAGE, PATIENCE = 300000 /* ms */ };
#define LOCAL (FI_SEND | FI_RECV | FI_READ | FI_WRITE)
#define ALL (LOCAL | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define UNKNOWN (1ULL << 35)

static uint32_t version = FI_VERSION(1, 17);
static const char *device;
static char *memory; /* SIZE bytes */

static struct fid_domain *domain;
static struct fid_eq *queue;

/* The two ways differ in how a domain and a queue are opened. */

#ifdef ALONE
static struct ibv_context *context;
static struct ibv_pd *pd;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	must(list);
	for (int n = 0; list[n]; n++)
		if (!strcmp(ibv_get_device_name(list[n]), device))
			context = ibv_open_device(list[n]);
	ibv_free_device_list(list);
	must(context);
	pd = ibv_alloc_pd(context);
	must(pd);
}

static void close_device(void)
{
	is(ibv_dealloc_pd(pd), 0, "the protection domain is not in use");
	is(ibv_close_device(context), 0, "the device is closed");
}

static void open_domain(bool provider_keys)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr),
		.api_version = version,
		.mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | (provider_keys ? FI_MR_VIRT_ADDR | FI_MR_PROV_KEY : 0),
	};

	must(rdmamr_domain_open(pd, &attr, &domain, &version) == 0 && domain);
}

static void open_queue(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };

	must(rdmamr_eq_open(version, &attr, &queue, &version) == 0 && queue);
}

static void trywait(int answer, const char *when)
{
	/* A call of the fabric. */
	(void)answer;
	(void)when;
}
#else
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

static void open_device(void)
{
	/* Each domain calls fi_getinfo for itself. */
}

static void close_device(void)
{
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

static void open_queue(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };

	must(fi_eq_open(fabric, &attr, &queue, &version) == 0 && queue);
}

static void trywait(int answer, const char *when)
{
	struct fid *queues[] = { &queue->fid, &queue->fid }, *other = &domain->fid;

	is(fi_trywait(fabric, queues, 2), answer, "%s: fi_trywait", when);
	is(fi_trywait(fabric, &other, 1), -FI_EINVAL, "%s: fi_trywait of a domain", when);
	is(fi_trywait(fabric, queues, 0), 0, "%s: fi_trywait of nothing", when);
}
#endif

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

static void close_domain(const char *name)
{
	is(fi_close(&domain->fid), 0, "%s: the domain is closed", name);
	is(pinned(), 0, "%s: nothing is pinned", name);
}

static void errors(void)
{
	struct fid_mr *untouched = (struct fid_mr *)&untouched, *mr = untouched;
	struct iovec iov[17];
	char *hole = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 1, .access = ALL, .requested_key = 40 };

	must(hole != MAP_FAILED && constant != MAP_FAILED);
	for (int n = 0; n < 17; n++)
		iov[n] = (struct iovec){ memory + 2 * n * PAGE, PAGE };
	is(reg(memory, PAGE, 0, 40, &mr), 0, "no access: only the owner reads");
	is(fi_close(&mr->fid), 0, "which is closed");
	mr = untouched;
	is(reg(memory, PAGE, ALL | UNKNOWN, 40, &mr), -FI_EINVAL, "an unknown access");
	is(reg(memory, 0, ALL, 40, &mr), -FI_EINVAL, "no length");
	is(reg(memory, SIZE_MAX, ALL, 40, &mr), -FI_EINVAL, "all of memory");
	is(reg((void *)(UINTPTR_MAX - PAGE), 2 * PAGE, ALL, 40, &mr), -FI_EINVAL, "past the end of the address space");
	is(reg(hole, PAGE, ALL, 40, &mr), -FI_EFAULT, "unmapped memory");
	is(reg(constant, PAGE, FI_RECV, 40, &mr), -FI_EFAULT, "to receive into read-only memory");
	is(fi_mr_reg(domain, memory, PAGE, ALL, 4, 40, 0, &mr, NULL), -FI_EINVAL, "an offset");
	is(fi_mr_reg(domain, memory, PAGE, ALL, 0, 40, UNKNOWN, &mr, NULL), -FI_EBADFLAGS, "unknown flags");
	is(fi_mr_reg(domain, memory, PAGE, ALL, 0, 40, 0, NULL, NULL), -FI_EINVAL, "nowhere to put the region");
	is(fi_mr_regv(domain, iov, 0, ALL, 0, 40, 0, &mr, NULL), -FI_EINVAL, "no pieces");
	is(fi_mr_regv(domain, iov, 17, ALL, 0, 40, 0, &mr, NULL), -FI_EINVAL, "17 pieces");
	is(fi_mr_regv(domain, NULL, 1, ALL, 0, 40, 0, &mr, NULL), -FI_EINVAL, "pieces at NULL");
	attr.auth_key_size = 4;
	attr.auth_key = (uint8_t *)memory;
	is(fi_mr_regattr(domain, &attr, 0, &mr), -FI_ENOSYS, "an authorization key");
	attr.auth_key_size = 0;
	is(fi_mr_regattr(domain, &attr, UNKNOWN, &mr), -FI_EBADFLAGS, "unknown flags, fi_mr_regattr");
	attr.iov_count = 0;
	is(fi_mr_regattr(domain, &attr, 0, &mr), -FI_EINVAL, "no pieces, fi_mr_regattr");
	ok(mr == untouched, "no failure has written a region");
	is(pinned(), 0, "nor pinned memory");
	is(reg(constant, PAGE, FI_SEND, 40, &mr), 0, "to send from read-only memory");
	is(fi_close(&mr->fid), 0, "which is closed");
	must(munmap(hole, 2 * PAGE) == 0 && munmap(constant, PAGE) == 0);
}

static void application_keys(void)
{
	struct fid_mr *mr = NULL, *untouched = (struct fid_mr *)&untouched, *other = untouched, *third = NULL;
	struct iovec apart[] = { { memory, PAGE }, { memory + 4 * PAGE, PAGE }, { memory + 8 * PAGE, 100 } };
	struct iovec adjacent[] = { { memory, 100 }, { memory + 100, PAGE }, { memory + 100 + PAGE, 50 } };
	struct fi_mr_attr attr = { .mr_iov = adjacent, .iov_count = 1, .access = LOCAL, .requested_key = 9,
				   .context = &attr };

	is(reg(memory, SIZE, ALL, 7, &mr), 0, "registered");
	must(mr);
	is_pinned(SIZE, "the memory is pinned");
	is((long long)fi_mr_key(mr), 7, "the key is the application's");
	ok(fi_mr_desc(mr) != NULL, "it has a descriptor");
	ok(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == &mr, "the object has its class and context");
	is(reg(memory, PAGE, ALL, 7, &other), -FI_ENOKEY, "the key is in use");
	is(fi_mr_regv(domain, apart, 3, ALL, 0, 7, 0, &other, NULL), -FI_ENOKEY, "fi_mr_regv, too");
	attr.requested_key = 7;
	is(fi_mr_regattr(domain, &attr, 0, &other), -FI_ENOKEY, "fi_mr_regattr, too");
	is(reg(memory, PAGE, ALL, FI_KEY_NOTAVAIL, &other), -FI_EKEYREJECTED, "no key at all");
	ok(other == untouched, "no failure has written a region");
	is(reg(memory, PAGE, ALL, 8, &other), 0, "another key");
	is((long long)fi_mr_key(other), 8, "is another region's");
	is(fi_close(&domain->fid), -FI_EBUSY, "the domain is busy with its regions");
	is(fi_close(&mr->fid), 0, "closed");
	is_pinned(PAGE, "its memory is not pinned any more");
	is(reg(memory, PAGE, ALL, 7, &mr), 0, "and its key is free");
	is(fi_close(&mr->fid), 0, "closed");
	is(fi_close(&other->fid), 0, "closed");

	attr.requested_key = 9;
	is(fi_mr_regattr(domain, &attr, 0, &mr), 0, "by attributes");
	ok(fi_mr_key(mr) == 9 && fi_mr_desc(mr) && mr->fid.context == &attr, "with its key and context");
	is(fi_mr_regv(domain, apart, 3, ALL, 0, 10, 0, &other, &apart), 0, "three pieces, one region");
	ok(fi_mr_key(other) == 10 && !fi_mr_desc(other) && other->fid.context == &apart, "one key, no descriptor");
	is_pinned(4 * PAGE, "one page of the first, three of the other are pinned");
	is(fi_mr_regv(domain, adjacent, 3, LOCAL, 0, 11, 0, &third, NULL), 0, "three pieces that are one");
	ok(fi_mr_key(third) == 11 && fi_mr_desc(third), "have a descriptor");
	is(fi_close(&mr->fid), 0, "closed");
	is(fi_close(&other->fid), 0, "closed");
	is(fi_close(&third->fid), 0, "closed");
}

static void provider_keys(void)
{
	struct fid_mr *mrs[2] = { 0 }, *other = NULL;

	is(reg(memory, SIZE, ALL, 7, &mrs[0]), 0, "provider's keys: registered");
	is(reg(memory, SIZE, ALL, 7, &mrs[1]), 0, "the requested key does not count");
	must(mrs[0] && mrs[1]);
	is(pinned(), 2 * SIZE, "the memory is pinned for each");
	ok(fi_mr_key(mrs[0]) != fi_mr_key(mrs[1]), "two keys: %#llx, %#llx", (unsigned long long)fi_mr_key(mrs[0]),
	   (unsigned long long)fi_mr_key(mrs[1]));
	ok(fi_mr_key(mrs[0]) <= UINT32_MAX && fi_mr_key(mrs[1]) <= UINT32_MAX, "of the device");
	ok(fi_mr_desc(mrs[0]) && fi_mr_desc(mrs[1]) && fi_mr_desc(mrs[0]) != fi_mr_desc(mrs[1]), "two descriptors");
	is(fi_mr_reg(domain, memory, PAGE, ALL, 0, 7, 1ULL << 58, &other, NULL), -FI_EBADFLAGS,
	   "a key cannot be insisted on");
	is(fi_close(&mrs[0]->fid), 0, "closed");
	is(fi_close(&mrs[1]->fid), 0, "closed");
}

static void other_calls(void)
{
	struct iovec iov = { memory, PAGE };
	struct fid_mr *mr = NULL;

	must(reg(memory, PAGE, ALL, 1, &mr) == 0);
	is(fi_mr_enable(mr), 0, "a region is enabled from the start");
	is(fi_mr_refresh(mr, &iov, 1, 0), -FI_ENOSYS, "and not refreshed");
	is(fi_mr_bind(mr, &queue->fid, FI_REMOTE_WRITE), -FI_ENOSYS, "no events of remote peers' writes");
	is(fi_mr_bind(mr, &queue->fid, FI_RECV), -FI_EBADFLAGS, "other flags");
	is(fi_mr_bind(mr, NULL, FI_REMOTE_WRITE), -FI_EINVAL, "a region bound to NULL");
	is(fi_mr_bind(mr, &mr->fid, FI_REMOTE_WRITE), -FI_EINVAL, "an object that is no queue and no counter");
	is(fi_control(&mr->fid, FI_GETWAIT, &mr), -FI_ENOSYS, "other controls");
	is(fi_close(&mr->fid), 0, "closed");
}

static void raw_keys(void)
{
	struct iovec apart[] = { { memory, PAGE }, { memory + 4 * PAGE, PAGE } };
	struct fid_mr *mr = NULL;
	uint64_t base = 1, key = 0, again = 0;
	uint8_t raw[1024], first;
	size_t size = 0, needed;
	int taken = 0;

	must(fi_mr_regv(domain, apart, 2, ALL, 0, 5, 0, &mr, NULL) == 0);
	is(fi_mr_raw_attr(mr, &base, raw, &size, 0), -FI_ETOOSMALL, "a raw key of no bytes is too small");
	needed = size;
	ok(needed > 0 && needed < sizeof(raw), "%zu are needed", needed);
	memset(raw, 0x5a, sizeof(raw));
	size = needed - 1;
	is(fi_mr_raw_attr(mr, &base, raw, &size, 0), -FI_ETOOSMALL, "one less is too small");
	is((long long)size, (long long)needed, "and the needed size is returned");
	is(fi_mr_raw_attr(mr, &base, raw, &size, 1), -FI_EBADFLAGS, "there are no flags");
	is(fi_mr_raw_attr(mr, &base, raw, &size, 0), 0, "the raw key");
	ok(base == 0 && size == needed && raw[needed] == 0x5a, "its base, its size, and nothing behind it");
	is(fi_mr_map_raw(domain, base, raw, size, &key, 0), 0, "mapped");
	ok(key > UINT32_MAX && key != FI_KEY_NOTAVAIL, "to a key that no device has: %#llx", (unsigned long long)key);
	is(fi_close(&domain->fid), -FI_EBUSY, "the domain is busy with it");
	for (size_t n = 0; n < needed; n++) {
		for (int bit = 0; bit < 8; bit++) {
			raw[n] ^= (uint8_t)(1 << bit);
			again = 0;
			if (fi_mr_map_raw(domain, base, raw, size, &again, 0) != -FI_EINVAL || again)
				taken++;
			raw[n] ^= (uint8_t)(1 << bit);
		}
	}
	is(taken, 0, "with any bit changed it is none");
	first = raw[0];
	is(fi_mr_map_raw(domain, base + 8, raw, size, &again, 0), -FI_EINVAL, "nor with another base");
	is(fi_mr_map_raw(domain, base, raw, size - 1, &again, 0), -FI_EINVAL, "nor in part");
	is(fi_mr_map_raw(domain, base, raw, 0, &again, 0), -FI_EINVAL, "nor with length 0");
	is(raw[0], first, "it is not written to");
	is(fi_mr_unmap_key(domain, key), 0, "unmapped");
	is(fi_mr_unmap_key(domain, key), -FI_ENOKEY, "once");
	is(fi_mr_unmap_key(domain, 5), -FI_ENOKEY, "a region's key is not a mapped one");
	is(fi_close(&mr->fid), 0, "closed");
}

/* Waits for an event; returns 24, or another result of the read. */
static ssize_t next(uint32_t *event, struct fi_eq_entry *entry)
{
	*event = 77;
	*entry = (struct fi_eq_entry){ .data = 7 };
	return fi_eq_sread(queue, event, entry, sizeof(*entry), PATIENCE, 0);
}

static void asynchronous(void)
{
	enum { COUNT = 50 };
	char *hole = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fi_eq_err_entry error = { 0 };
	struct fid_mr *mrs[COUNT] = { 0 }, *mr = NULL;
	struct fi_eq_entry entry;
	uint32_t event;
	char words[200] = "";
	const char *said;
	int wrong = 0, seen = 0;

	must(hole != MAP_FAILED);
	trywait(0, "later: no events");
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), 0, "later: the domain is bound");
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), -FI_EBUSY, "later: once");
	for (int n = 0; n < COUNT; n++)
		wrong += reg(memory + n * PAGE, PAGE, ALL, (uint64_t)n + 1, &mrs[n]) != 0;
	is(wrong, 0, "later: %d registrations return 0", COUNT);
	is(reg(memory, PAGE, ALL, 3, &mr), -FI_ENOKEY, "later: a key in use is refused at once");
	is(reg(memory, 0, ALL, 900, &mr), -FI_EINVAL, "later: and so is length 0");
	for (; seen < COUNT; seen++) {
		struct fid_mr **of;

		if (next(&event, &entry) != sizeof(entry))
			break;
		of = entry.context;
		wrong += event != FI_MR_COMPLETE || entry.data || of < mrs || of >= mrs + COUNT ||
			 entry.fid != &(*of)->fid || fi_mr_key(*of) != (uint64_t)(of - mrs) + 1 || !fi_mr_desc(*of);
	}
	is(seen, COUNT, "later: one event each");
	is(wrong, 0, "later: of its object and context, with its key and descriptor");
	is(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "later: no more");
	is_pinned(COUNT * PAGE, "later: the memory is pinned");
	is(fi_close(&queue->fid), -FI_EBUSY, "later: the queue is busy");
	is(fi_close(&domain->fid), -FI_EBUSY, "later: the domain is busy");
	for (int n = 0; n < COUNT; n++)
		wrong += fi_close(&mrs[n]->fid) != 0;
	is(wrong, 0, "later: all are closed");

	is(reg(hole, PAGE, ALL, 77, &mr), 0, "later: unmapped memory");
	is(next(&event, &entry), -FI_EAVAIL, "later: is an error");
	trywait(-FI_EAGAIN, "later: an error to be read");
	is(fi_eq_readerr(queue, &error, 0), sizeof(error), "later: which is read");
	ok(error.fid == &mr->fid && error.context == &mr, "later: of its object and context");
	ok(error.err == FI_EFAULT && error.prov_errno == EFAULT, "later: EFAULT");
	said = fi_eq_strerror(queue, error.prov_errno, error.err_data, words, sizeof(words));
	ok(said && strlen(said) > 5, "later: in words: %s", said ? said : "NULL");
	trywait(0, "later: the error was read");
	is(fi_close(&mr->fid), 0, "later: it is closed");

	for (int n = 0; n < COUNT; n++)
		must(reg(memory, SIZE, ALL, (uint64_t)n + 1, &mrs[n]) == 0);
	for (int n = COUNT - 1; n >= 0; n--)
		wrong += fi_close(&mrs[n]->fid) != 0;
	is(wrong, 0, "later: all are closed under way");
	is(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "later: and have no events");
	must(munmap(hole, 2 * PAGE) == 0);
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
#ifndef ALONE
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
#endif
	open_device();
	open_domain(false);
	open_queue();
	ok(domain->fid.fclass == FI_CLASS_DOMAIN && domain->fid.context == &version, "the domain has its class and context");
	ok(queue->fid.fclass == FI_CLASS_EQ && queue->fid.context == &version, "the queue has its class and context");
	errors();
	application_keys();
	other_calls();
	raw_keys();
	asynchronous();
	close_domain("application's keys");
	is(fi_close(&queue->fid), 0, "the queue is closed");
#ifndef ALONE
	close_fabric();
#endif
	open_domain(true);
	provider_keys();
	close_domain("provider's keys");
#ifndef ALONE
	close_fabric();
#endif
	close_device();
	return done_testing();
}
