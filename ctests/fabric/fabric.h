/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the tests of the fabric family share. Each program is compiled twice: with libfabric's headers, where
 * fi_mr_reg and its kin are inline functions that go through the object's table, and with RDMAMR_NO_LIBFABRIC, where
 * they are the library's symbols. What a program proves must hold both ways.
 */
#ifndef CTESTS_FABRIC_H
#define CTESTS_FABRIC_H

#include <rdmamr/fi_mr.h>
#include <dlfcn.h>
#include <sys/uio.h>
#include "../device/pair.h"

/* Linked without the library, which is preloaded. */
#pragma weak rdmamr_domain_open
#pragma weak rdmamr_eq_open
#pragma weak rdmamr_resolve
#pragma weak rdmamr_mr_segments
#ifdef RDMAMR_NO_LIBFABRIC
#pragma weak fi_mr_reg
#pragma weak fi_mr_regv
#pragma weak fi_mr_regattr
#pragma weak fi_close
#pragma weak fi_mr_desc
#pragma weak fi_mr_key
#pragma weak fi_mr_bind
#pragma weak fi_mr_enable
#pragma weak fi_mr_refresh
#pragma weak fi_mr_raw_attr
#pragma weak fi_mr_map_raw
#pragma weak fi_mr_unmap_key
#pragma weak fi_domain_bind
#pragma weak fi_control
#pragma weak fi_eq_read
#pragma weak fi_eq_readerr
#pragma weak fi_eq_write
#pragma weak fi_eq_sread
#pragma weak fi_eq_strerror
#endif

/* What the tests name of libfabric, and the library's header leaves to libfabric's. */
#ifdef RDMAMR_NO_LIBFABRIC
#ifndef FI_MR_MMU_NOTIFY
#define FI_MR_MMU_NOTIFY (1 << 7)
#define FI_MR_RMA_EVENT (1 << 8)
#define FI_MR_ENDPOINT (1 << 9)
#define FI_MR_HMEM (1 << 10)
#define FI_MR_COLLECTIVE (1 << 11)
#endif
#ifndef FI_CLASS_AV
#define FI_CLASS_AV 11
#define FI_CLASS_CQ 14
#endif
#ifndef FI_WAIT_SET
#define FI_WAIT_SET 2
#define FI_WAIT_MUTEX_COND 4
#define FI_WAIT_YIELD 5
#define FI_WAIT_POLLFD 6
#endif
#ifndef FI_ALIAS
#define FI_ALIAS 4
#endif
#ifndef FI_SHUTDOWN
#define FI_SHUTDOWN 3
#endif
#endif

/* All rights, local ones, none but to be a source. */
#define FI_ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define FI_LOCAL (FI_SEND | FI_RECV | FI_READ | FI_WRITE)
#define FI_REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* Where nothing is mapped, and nothing comes to be. */
#define NOWHERE ((char *)((uintptr_t)1 << 44))

/* Reports that a count of what went wrong is 0, and counts anew. */
#define none(wrong, ...)                                                       \
	do {                                                                   \
		is((long long)(wrong), 0, __VA_ARGS__);                        \
		(wrong) = 0;                                                   \
	} while (0)

/* What says which keys and addresses a domain has. */
static const struct kind {
	const char *name;
	int32_t mr_mode;
	uint64_t flags;
	bool provider_keys, virtual_addresses, relaxed;
} kinds[] __attribute__((unused)) = {
	{ "provider keys", FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, 0, true, true, false },
	{ "own keys and offsets", 0, 0, false, false, false },
	{ "own keys and virtual addresses", FI_MR_VIRT_ADDR, 0, false, true, false },
	{ "relaxed, provider keys", FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, RDMAMR_DOMAIN_RELAXED, true, true, true },
	{ "relaxed, own keys and offsets", 0, RDMAMR_DOMAIN_RELAXED, false, false, true },
	{ "relaxed, own keys and virtual addresses", FI_MR_VIRT_ADDR, RDMAMR_DOMAIN_RELAXED, false, true, true },
};
enum { PROVIDER_KEYS, OFFSETS, VIRTUAL_ADDRESSES, PLAIN_KINDS, KINDS = 6 };

/* Says which of the two ways this is. First in main. */
__attribute__((unused))
static void fabric_begin(void)
{
	must(rdmamr_domain_open && rdmamr_eq_open && rdmamr_resolve && rdmamr_mr_segments);
#ifdef RDMAMR_NO_LIBFABRIC
	ok((void *)fi_mr_reg == dlsym(RTLD_DEFAULT, "fi_mr_reg") &&
	   (void *)fi_eq_read == dlsym(RTLD_DEFAULT, "fi_eq_read"), "the calls are the library's functions");
#else
	ok((void *)fi_mr_reg != dlsym(RTLD_DEFAULT, "fi_mr_reg") &&
	   (void *)fi_eq_read != dlsym(RTLD_DEFAULT, "fi_eq_read"), "the calls are libfabric's inline functions");
#endif
}

/* The library's own function of a name, which takes what libfabric's inline one would crash of. */
__attribute__((unused))
static void *exported(const char *name)
{
	void *function = dlsym(RTLD_DEFAULT, name);

	if (!function)
		printf("# no function %s\n", name);
	must(function);
	return function;
}

__attribute__((unused))
static int open_with(struct ibv_pd *pd, uint32_t api_version, int32_t mr_mode, uint64_t flags,
		     struct fid_domain **domain)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr),
		.api_version = api_version,
		.mr_mode = mr_mode,
		.flags = flags,
	};

	return rdmamr_domain_open(pd, &attr, domain, NULL);
}

__attribute__((unused))
static struct fid_domain *open_kind(struct ibv_pd *pd, const struct kind *kind)
{
	struct fid_domain *domain = NULL;

	must(open_with(pd, FI_VERSION(1, 17), kind->mr_mode, kind->flags, &domain) == 0 && domain);
	return domain;
}

/* A region that must be there for the test to mean anything. */
__attribute__((unused))
static struct fid_mr *region(struct fid_domain *domain, const void *buf, size_t length, uint64_t access, uint64_t key)
{
	struct fid_mr *mr = NULL;
	int ret = fi_mr_reg(domain, buf, length, access, 0, key, 0, &mr, NULL);

	if (ret)
		printf("# fi_mr_reg: %d, %s\n", ret, rdmamr_last_reason());
	must(!ret && mr);
	return mr;
}

/* Where the addresses begin by which peers reach a buffer. */
__attribute__((unused))
static uint64_t base_of(const struct kind *kind, const void *buf)
{
	return kind->virtual_addresses ? (uintptr_t)buf : 0;
}

/* The transfers of pair.h take the lkey of a struct ibv_mr, and nothing else of it. */
__attribute__((unused))
static const struct ibv_mr *with_lkey(uint32_t lkey)
{
	static struct ibv_mr mrs[8];
	static unsigned int next;
	struct ibv_mr *mr = &mrs[next++ % 8];

	mr->lkey = lkey;
	return mr;
}

__attribute__((unused))
static const struct ibv_mr *with_desc(struct fid_mr *mr)
{
	return with_lkey((uint32_t)(uintptr_t)fi_mr_desc(mr));
}

/* The one segment that a range of a region is. */
__attribute__((unused))
static struct rdmamr_segment resolved(struct fid_domain *domain, uint64_t key, uint64_t at, size_t length)
{
	struct rdmamr_segment segment = { 0 };
	size_t count = 1;
	int ret = rdmamr_resolve(domain, key, at, length, &segment, &count);

	if (ret || count != 1)
		printf("# rdmamr_resolve: %d, %zu segments\n", ret, count);
	must(!ret && count == 1 && segment.length == length);
	return segment;
}

/*
 * Moves a range between local memory and a region as a peer does: each segment is a request of its own. Returns the
 * status of the first that did not succeed, -1 if there was none to post.
 */
__attribute__((unused))
static int peer_moves(struct pair *pair, enum ibv_wr_opcode opcode, struct fid_domain *domain, uint64_t key,
		      uint64_t at,
		      const struct ibv_mr *local, char *memory, size_t length)
{
	struct rdmamr_segment segments[RDMAMR_MR_IOV_LIMIT];
	size_t count = RDMAMR_MR_IOV_LIMIT, sum = 0;
	int status = -1, ret = rdmamr_resolve(domain, key, at, length, segments, &count);

	if (ret) {
		printf("# rdmamr_resolve: %d, %s\n", ret, rdmamr_last_reason());
		return -1;
	}
	for (size_t n = 0; n < count; n++) {
		struct rdmamr_segment *to = &segments[n];

		if (sum + to->length > length)
			return -1;
		status = opcode == IBV_WR_RDMA_READ ?
			pair_read(pair, local, memory + sum, to->length, to->addr, to->rkey) :
			pair_write(pair, local, memory + sum, to->length, to->addr, to->rkey);
		if (status != IBV_WC_SUCCESS) {
			/* All that is posted behind a failure is flushed: it is no news. */
			if (status != IBV_WC_WR_FLUSH_ERR)
				printf("# segment %zu of %zu: %s\n", n, count,
				       status < 0 ? "no answer" : ibv_wc_status_str((enum ibv_wc_status)status));
			return status;
		}
		sum += to->length;
	}
	return sum == length ? status : -1;
}

/* Reports that data moved; if it did not, the connection is of no use any more, and the next one gets another. */
__attribute__((format(printf, 3, 4), unused))
static void moved(struct pair *pair, int status, const char *format, ...)
{
	char name[300];
	va_list args;

	va_start(args, format);
	vsnprintf(name, sizeof(name), format, args);
	va_end(args);
	if (!is(status, IBV_WC_SUCCESS, "%s", name))
		pair_reconnect(pair);
}

/* A pattern that no other call makes, and that no page of zeros has. */
__attribute__((unused))
static void fill(char *memory, size_t length)
{
	static unsigned int seed;

	seed = seed * 1103515245 + 12345;
	for (size_t n = 0; n < length; n++)
		memory[n] = (char)(((seed >> 16) + n * 31 + n / 251) | 1);
}

__attribute__((unused))
static bool all_zero(const char *memory, size_t length)
{
	for (size_t n = 0; n < length; n++) {
		if (memory[n])
			return false;
	}
	return true;
}

/* `length` bytes that end where nothing can be read any more. */
__attribute__((unused))
static char *at_the_edge(size_t length)
{
	size_t count = length / PAGE + 2;
	char *memory = pages(count);

	must(mprotect(memory + (count - 1) * PAGE, PAGE, PROT_NONE) == 0);
	return memory + (count - 1) * PAGE - length;
}

#endif
