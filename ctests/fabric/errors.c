/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Calls that are refused: the error, and the reason in words. A refused call leaves nothing behind
 * and writes nothing to the caller. Also calls that look bad, and must succeed.
 */
#include "../lib/fabric.h"
#include "../lib/program.h"
#include <rdmamr/verbs.h>
#include <ctype.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#pragma weak ibv_flush_relaxed_mr

#define EXPORTED(name) ((__typeof__(&name))exported(#name))
#define UNTOUCHED ((void *)0x5550)
/* Of fi_info.mode: an old name of libfabric's, which this program does without. */
#define LOCAL_MR (1ULL << 55)

static struct ibv_context *context;
static struct ibv_pd *pd;
static char *memory, *read_only;

/* The place that the calls write their object to. */
static struct fid_mr *mr;
static struct fid_domain *made;
static struct fid_eq *queue;

static struct {
	uint64_t live;
	int regions;
	char reason[4096];
} before;

/*
 * Before a call that must fail: makes another failure the last one, so that an old reason is not
 * taken for a new one.
 */
static void about_to_fail(void)
{
	mr = UNTOUCHED;
	made = UNTOUCHED;
	queue = UNTOUCHED;
	/*
	 * A domain with the cache may end its idle regions at any time: only regions in use are
	 * counted.
	 */
	must(ibv_flush_relaxed_mr(pd) == 0);
	before.live = stats().live;
	before.regions = kernel_regions(context);
	must(!ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE));
	snprintf(before.reason, sizeof(before.reason), "%s", rdmamr_last_reason());
}

/* Whether any of "these|words" is in a text, in capitals or not. */
static bool names(const char *text, const char *words)
{
	char low[4096], one[100];
	size_t n;

	for (n = 0; text[n] && n < sizeof(low) - 1; n++)
		low[n] = (char)tolower(text[n]);
	low[n] = '\0';
	while (*words) {
		for (n = 0; *words && *words != '|'; words++)
			one[n++] = (char)tolower(*words);
		one[n] = '\0';
		words += *words == '|';
		if (strstr(low, one))
			return true;
	}
	return false;
}

/* After the call: checks the error, its reason, and that nothing was made or written. */
__attribute__((format(printf, 4, 5)))
static void failed(long long ret, long long want, const char *words, const char *format, ...)
{
	const char *reason = rdmamr_last_reason();
	char name[200], said[4096];
	va_list args;

	va_start(args, format);
	vsnprintf(name, sizeof(name), format, args);
	va_end(args);
	snprintf(said, sizeof(said), "%s", reason);
	must(ibv_flush_relaxed_mr(pd) == 0);
	is(ret, want, "%s", name);
	ok(strcmp(said, before.reason) && names(said, words), "%s: %s", name,
	   !strcmp(said, before.reason) ? "no reason was given" : said);
	ok(mr == UNTOUCHED && made == UNTOUCHED && queue == UNTOUCHED && stats().live == before.live &&
	   kernel_regions(context) == before.regions, "%s: nothing was made or written", name);
}
#define FAILS(call, want, words, ...)                                          \
	do {                                                                   \
		long long ret_;                                                \
									       \
		about_to_fail();                                               \
		ret_ = (call);                                                 \
		failed(ret_, want, words, __VA_ARGS__);                        \
	} while (0)

/* --- Domains --- */

static int domain_with(int32_t mr_mode, uint64_t mode, uint64_t caps, uint64_t flags, size_t mr_key_size)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr),
		.api_version = FI_VERSION(1, 17),
		.mr_mode = mr_mode,
		.mode = mode,
		.caps = caps,
		.flags = flags,
		.mr_key_size = mr_key_size,
	};

	return rdmamr_domain_open(pd, &attr, &made, &made);
}

static struct fid_domain *plain(int32_t mr_mode, uint32_t api_version)
{
	struct fid_domain *domain = NULL;

	must(open_with(pd, api_version, mr_mode, 0, &domain) == 0 && domain);
	return domain;
}

static void close_all(struct fid *one, struct fid *other)
{
	must(fi_close(one) == 0);
	if (other)
		must(fi_close(other) == 0);
}

/* The keys and addresses of a domain: P or A, V or 0; R if only raw keys are accepted. */
static const char *keys_of(struct fid_domain *domain)
{
	static char kind[4];
	uint64_t base = 1;
	uint8_t raw[2048];
	size_t size = sizeof(raw), count = 1;
	struct rdmamr_segment segment;
	struct fid_mr *region_of = region(domain, memory, PAGE, FI_ALL, 0x77);

	must(fi_mr_raw_attr(region_of, &base, raw, &size, 0) == 0);
	must(rdmamr_mr_segments(region_of, &segment, &count) == 0);
	kind[0] = fi_mr_key(region_of) == FI_KEY_NOTAVAIL ? 'R' :
		  fi_mr_key(region_of) == segment.rkey ? 'P' : fi_mr_key(region_of) == 0x77 ? 'A' : '?';
	kind[1] = base == (uintptr_t)memory ? 'V' : base == 0 ? '0' : '?';
	must(fi_close(&region_of->fid) == 0);
	return kind;
}

static void accepted_domains(void)
{
	static const struct {
		const char *name, *kind;
		int32_t mr_mode;
		uint64_t mode;
	} cases[] = {
		{ "no mode", "A0", 0, 0 },
		{ "FI_MR_SCALABLE", "A0", FI_MR_SCALABLE, 0 },
		{ "FI_MR_BASIC", "PV", FI_MR_BASIC, 0 },
		{ "FI_MR_PROV_KEY and FI_MR_VIRT_ADDR", "PV", FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, 0 },
		{ "RDMAMR_PROV_MR_ATTR", "PV", 0, RDMAMR_PROV_MR_ATTR },
		{ "FI_MR_VIRT_ADDR", "AV", FI_MR_VIRT_ADDR, 0 },
		{ "FI_MR_LOCAL", "A0", FI_MR_LOCAL, 0 },
		{ "FI_MR_ALLOCATED", "A0", FI_MR_ALLOCATED, 0 },
		{ "FI_LOCAL_MR", "A0", 0, LOCAL_MR },
		{ "all bits that change nothing, and provider keys", "PV",
		  FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, LOCAL_MR | RDMAMR_PROV_MR_ATTR },
		{ "FI_MR_RAW", "R0", FI_MR_RAW, 0 },
		{ "FI_MR_RAW and provider keys", "RV", FI_MR_RAW | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, 0 },
		{ "FI_MR_RAW and FI_MR_VIRT_ADDR", "RV", FI_MR_RAW | FI_MR_VIRT_ADDR, 0 },
	};

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		made = NULL;
		if (!is(domain_with(cases[n].mr_mode, cases[n].mode, 0, 0, 0), 0, "a domain with %s", cases[n].name))
			continue;
		ok(made->fid.fclass == FI_CLASS_DOMAIN && made->fid.context == &made, "%s: is one, with its context",
		   cases[n].name);
		ok(!strcmp(keys_of(made), cases[n].kind), "%s: its keys and addresses are %s", cases[n].name,
		   cases[n].kind);
		is(fi_close(&made->fid), 0, "%s: closed", cases[n].name);
	}
	made = NULL;
	is(rdmamr_domain_open(pd, NULL, &made, NULL), 0, "a domain without attributes");
	ok(!strcmp(keys_of(made), "PV"), "has provider keys and virtual addresses");
	is(fi_close(&made->fid), 0, "and is closed");
}

static void refused_domains(void)
{
	static const struct {
		const char *name, *words;
		int32_t mr_mode;
		uint64_t mode, caps, flags;
		size_t mr_key_size;
	} cases[] = {
		{ "FI_MR_PROV_KEY alone", "PROV_KEY|VIRT_ADDR", FI_MR_PROV_KEY, 0, 0, 0, 0 },
		{ "FI_MR_MMU_NOTIFY", "mr_mode|MMU_NOTIFY", FI_MR_MMU_NOTIFY, 0, 0, 0, 0 },
		{ "FI_MR_RMA_EVENT", "mr_mode|RMA_EVENT", FI_MR_RMA_EVENT, 0, 0, 0, 0 },
		{ "FI_MR_ENDPOINT", "mr_mode|ENDPOINT", FI_MR_ENDPOINT, 0, 0, 0, 0 },
		{ "FI_MR_HMEM", "mr_mode|HMEM", FI_MR_HMEM, 0, 0, 0, 0 },
		{ "FI_MR_COLLECTIVE", "mr_mode|COLLECTIVE", FI_MR_COLLECTIVE, 0, 0, 0, 0 },
		{ "an unknown bit of mr_mode", "mr_mode", 1 << 20, 0, 0, 0, 0 },
		{ "the sign of mr_mode", "mr_mode", INT32_MIN, 0, 0, 0, 0 },
		{ "an unknown mode", "mode", 0, 1 << 20, 0, 0, 0 },
		{ "FI_CONTEXT of the modes", "mode", 0, 1ULL << 59, 0, 0, 0 },
		{ "an unknown capability", "caps|capabilit", 0, 0, 1 << 20, 0, 0 },
		{ "FI_RMA of the capabilities", "caps|capabilit", 0, 0, 1 << 2, 0, 0 },
		{ "an unknown flag", "flag", 0, 0, 0, 2, 0 },
		{ "the highest flag", "flag", 0, 0, 0, 1ULL << 63, 0 },
		{ "keys of 9 bytes", "key", 0, 0, 0, 0, 9 },
		{ "keys of more bytes than there are", "key", 0, 0, 0, 0, SIZE_MAX },
	};
	struct rdmamr_domain_attr good = { .size = sizeof(good) };
	struct { struct rdmamr_domain_attr attr; uint64_t more[3]; } larger = { .attr = { .size = sizeof(larger) } };
	struct ibv_device_attr_ex device;

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++)
		FAILS(domain_with(cases[n].mr_mode, cases[n].mode, cases[n].caps, cases[n].flags, cases[n].mr_key_size),
		      -FI_EINVAL, cases[n].words, "a domain with %s", cases[n].name);
	FAILS(rdmamr_domain_open(NULL, &good, &made, NULL), -FI_EINVAL, "pd|NULL", "a domain without a PD");
	FAILS(rdmamr_domain_open(NULL, NULL, &made, NULL), -FI_EINVAL, "pd|NULL",
	      "a domain without a PD and attributes");
	FAILS(rdmamr_domain_open(pd, &good, NULL, NULL), -FI_EINVAL, "domain|NULL", "a domain with nowhere to put it");
	FAILS(rdmamr_domain_open(pd, NULL, NULL, NULL), -FI_EINVAL, "domain|NULL", "likewise without attributes");

	for (size_t size = 0; size < 12; size += size == 8 ? 3 : 4) {
		good.size = size;
		FAILS(rdmamr_domain_open(pd, &good, &made, NULL), -FI_EINVAL, "size", "attributes of %zu bytes", size);
	}
	made = NULL;
	is(rdmamr_domain_open(pd, &larger.attr, &made, NULL), 0, "larger attributes, with 0 in the unknown fields");
	must(fi_close(&made->fid) == 0);
	for (int n = 0; n < 3; n++) {
		larger.more[n] = 1ULL << 63;
		FAILS(rdmamr_domain_open(pd, &larger.attr, &made, NULL), -FI_EINVAL, "size|know|zero|0",
		      "larger attributes, with a value in word %d of the unknown fields", n);
		larger.more[n] = 0;
	}
	larger.more[0] = 1;
	larger.attr.size = SIZE_MAX;
	FAILS(rdmamr_domain_open(pd, &larger.attr, &made, NULL), -FI_EINVAL, "size|know|zero|0",
	      "attributes without end");

	if (!ibv_query_device_ex(context, NULL, &device) && !(device.odp_caps.general_caps & IBV_ODP_SUPPORT))
		FAILS(domain_with(0, 0, RDMAMR_DYNAMIC_MR, 0, 0), -FI_ENOSYS, "demand|ODP|DYNAMIC",
		      "RDMAMR_DYNAMIC_MR on a device without on-demand paging");
	else
		skip("RDMAMR_DYNAMIC_MR on a device without on-demand paging", "this one has it");
}

/*
 * Attributes of each older size, with no readable memory behind them. The library obeys the fields
 * that they have.
 */
static void domain_sizes(void)
{
	for (size_t size = 16; size <= sizeof(struct rdmamr_domain_attr); size += 8) {
		struct rdmamr_domain_attr attr = { .size = size, .mr_mode = FI_MR_VIRT_ADDR }, *cut;

		cut = (struct rdmamr_domain_attr *)at_the_edge(size);
		if (size >= 24)
			attr.mode = RDMAMR_PROV_MR_ATTR;
		memcpy(cut, &attr, size);
		made = NULL;
		is(rdmamr_domain_open(pd, cut, &made, NULL), 0, "attributes of %zu bytes at the end of the mapping",
		   size);
		ok(!strcmp(keys_of(made), size >= 24 ? "PV" : "AV"), "are obeyed");
		must(fi_close(&made->fid) == 0);
		cut->mr_mode = 1 << 30;
		is(rdmamr_domain_open(pd, cut, &made, NULL), -FI_EINVAL, "attributes of %zu bytes with a bad mode",
		   size);
	}
	/*
	 * Attributes of the least size: the other fields count as 0, and the library does not read
	 * beyond.
	 */
	struct rdmamr_domain_attr attr;

	memset(&attr, 0xff, sizeof(attr));
	attr.size = 12;
	attr.api_version = 0;
	made = NULL;
	is(rdmamr_domain_open(pd, &attr, &made, NULL), 0, "attributes of 12 bytes");
	ok(!strcmp(keys_of(made), "A0"), "the others are 0: keys are the application's");
	must(fi_close(&made->fid) == 0);
}

/* The function of a table's slot; each table starts with its size in bytes. */
static int empty_slots(const void *table)
{
	const size_t *words = table;
	int empty = 0;

	for (size_t n = 1; n < words[0] / sizeof(*words); n++)
		empty += !words[n];
	return words[0] < 2 * sizeof(*words) || words[0] > 1000 ? -1 : empty;
}

/* libfabric's inline functions call the entries of the tables unchecked. */
static void tables(void)
{
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));
	struct fid_mr *one = region(domain, memory, PAGE, FI_ALL, 1);
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	void *ops = NULL;

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &queue, NULL) == 0);
	is(empty_slots(domain->fid.ops), 0, "the domain's calls are all set");
	is(empty_slots(domain->ops), 0, "the domain's openers are all set");
	is(empty_slots(domain->mr), 0, "the domain's registrations are all set");
	is(empty_slots(one->fid.ops), 0, "a region's calls are all set");
	is(empty_slots(queue->fid.ops), 0, "a queue's calls are all set");
	is(empty_slots(queue->ops), 0, "a queue's own calls are all set");
	is(domain->fid.ops->ops_open(&domain->fid, "x", 0, &ops, NULL), -FI_ENOSYS,
	   "a domain has no more calls to open");
	is(one->fid.ops->ops_open(&one->fid, "x", 0, &ops, NULL), -FI_ENOSYS, "nor has a region");
	is(queue->fid.ops->bind(&queue->fid, &domain->fid, 0), -FI_ENOSYS, "a queue cannot be bound");
	close_all(&one->fid, &domain->fid);
	must(fi_close(&queue->fid) == 0);
}

/* --- Registrations --- */

enum call { REG, REGV, REGATTR, CALLS };
static const char *const calls[] = { "fi_mr_reg", "fi_mr_regv", "fi_mr_regattr" };

static int make(int call, struct fid_domain *domain, const void *buf, size_t length, uint64_t access, uint64_t offset,
		uint64_t key, uint64_t flags)
{
	struct iovec iov = { (void *)buf, length };
	struct fi_mr_attr attr = {
		.mr_iov = &iov,
		.iov_count = 1,
		.access = access,
		.offset = offset,
		.requested_key = key,
	};

	switch (call) {
	case REG: return fi_mr_reg(domain, buf, length, access, offset, key, flags, &mr, NULL);
	case REGV: return fi_mr_regv(domain, &iov, 1, access, offset, key, flags, &mr, NULL);
	default: return fi_mr_regattr(domain, &attr, flags, &mr);
	}
}

static void arguments(const struct kind *kind)
{
	struct fid_domain *domain = open_kind(pd, kind);
	char in_hole[40];
	const struct {
		const char *name;
		const void *buf;
		size_t length;
		uint64_t access, offset, flags;
		int want;
		const char *words;
	} cases[] = {
		{ "unknown rights", memory, PAGE, FI_ALL | 1ULL << 40, 0, 0, -FI_EINVAL, "access|right" },
		{ "an offset", memory, PAGE, FI_ALL, 1, 0, -FI_EINVAL, "offset" },
		{ "the memory's own address as offset", memory, PAGE, FI_ALL, (uintptr_t)memory, 0, -FI_EINVAL,
			"offset" },
		{ "length 0", memory, 0, FI_ALL, 0, 0, -FI_EINVAL, "length|0 bytes|empty" },
		{ "a range past the end of the addresses", (void *)-PAGE, 2 * PAGE, FI_ALL, 0, 0, -FI_EINVAL,
		  "end|address space|wrap" },
		{ "all there can be", memory, SIZE_MAX, FI_ALL, 0, 0, -FI_EINVAL, "end|address space|wrap" },
		{ "an unknown flag", memory, PAGE, FI_ALL, 0, 1 << 20, -FI_EBADFLAGS, "flag" },
		{ "FI_MR_DMABUF", memory, PAGE, FI_ALL, 0, 1ULL << 40, -FI_EBADFLAGS, "flag" },
		{ "nothing mapped", NOWHERE, PAGE, FI_ALL, 0, 0, -FI_EFAULT, in_hole },
		{ "nothing mapped, to be sent", NOWHERE, PAGE, FI_SEND, 0, 0, -FI_EFAULT, in_hole },
		{ "NULL", NULL, PAGE, FI_ALL, 0, 0, -FI_EFAULT, "mapped" },
		{ "read-only memory to receive into", read_only, PAGE, FI_RECV, 0, 0, -FI_EFAULT, "read-only|writ" },
		{ "read-only memory to read into", read_only, PAGE, FI_READ, 0, 0, -FI_EFAULT, "read-only|writ" },
		{ "read-only memory for remote peers to write", read_only, PAGE, FI_REMOTE_WRITE, 0, 0, -FI_EFAULT,
		  "read-only|writ" },
	};

	snprintf(in_hole, sizeof(in_hole), "%p", (void *)NOWHERE);
	for (int call = 0; call < CALLS; call++) {
		int wrong = 0;

		for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++)
			FAILS(make(call, domain, cases[n].buf, cases[n].length, cases[n].access, cases[n].offset, 1,
				   cases[n].flags), cases[n].want, cases[n].words, "%s, %s: %s", kind->name,
			      calls[call], cases[n].name);
		if (kind->provider_keys) {
			FAILS(make(call, domain, memory, PAGE, FI_ALL, 0, 1, RDMAMR_MR_KEY), -FI_EBADFLAGS, "key|flag",
			      "%s, %s: RDMAMR_MR_KEY", kind->name, calls[call]);
			FAILS(make(call, domain, memory, PAGE, FI_ALL, 8, 1, RDMAMR_MR_OFFSET), -FI_EINVAL,
			      "offset|page",
			      "%s, %s: an offset with another page offset than the address", kind->name, calls[call]);
		}
		FAILS(make(call, domain, memory, 2 * PAGE, FI_ALL, (uint64_t)-PAGE, 1, RDMAMR_MR_OFFSET), -FI_EINVAL,
		      "offset|end|address space|wrap", "%s, %s: addresses past the end", kind->name, calls[call]);

		/* Each single bit. */
		about_to_fail();
		for (int bit = 0; bit < 64; bit++) {
			uint64_t one = 1ULL << bit;

			if (!(FI_ALL & one)) {
				wrong += make(call, domain, memory, PAGE, one, 0, 1, 0) != -FI_EINVAL;
				wrong += make(call, domain, memory, PAGE, FI_ALL | one, 0, 1, 0) != -FI_EINVAL;
			}
			if (one != RDMAMR_MR_KEY && one != RDMAMR_MR_OFFSET)
				wrong += make(call, domain, memory, PAGE, FI_ALL, 0, 1, one) != -FI_EBADFLAGS;
		}
		failed(wrong, 0, "flag", "%s, %s: every other bit of access and flags is refused", kind->name,
		       calls[call]);

		/* Each set of the six rights. */
		for (uint64_t access = 0; access <= FI_ALL; access += FI_READ) {
			mr = NULL;
			wrong += make(call, domain, memory, PAGE, access, 0, 1, 0) != 0 || !mr || !fi_mr_desc(mr);
			wrong += !mr || fi_close(&mr->fid) != 0;
		}
		none(wrong, "%s, %s: every set of rights is registered", kind->name, calls[call]);
		for (uint64_t access = 0; access <= FI_REMOTE_READ; access = access ? access << 1 : FI_WRITE) {
			if (access == FI_RECV)
				continue;
			mr = NULL;
			wrong += make(call, domain, read_only, PAGE, access, 0, 1, 0) != 0 || fi_close(&mr->fid) != 0;
		}
		none(wrong, "%s, %s: memory that is only read may be read-only", kind->name, calls[call]);
	}
	is(fi_close(&domain->fid), 0, "%s: the domain has no region", kind->name);
}

/* Pointers and counts of each call. */
static void pointers(const struct kind *kind)
{
	struct fid_domain *domain = open_kind(pd, kind);
	struct iovec iov[17], half[2] = { { memory, 1ULL << 63 }, { memory, 1ULL << 63 } };
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 1, .access = FI_ALL };
	const size_t counts[] = { 0, 17, 1000, SIZE_MAX };

	for (int n = 0; n < 17; n++)
		iov[n] = (struct iovec){ memory + n * 3 * PAGE / 2, PAGE / 2 };
	FAILS(fi_mr_reg(domain, memory, PAGE, FI_ALL, 0, 1, 0, NULL, NULL), -FI_EINVAL, "mr|NULL",
	      "%s, fi_mr_reg: nowhere to put the region", kind->name);
	FAILS(fi_mr_regv(domain, iov, 1, FI_ALL, 0, 1, 0, NULL, NULL), -FI_EINVAL, "mr|NULL",
	      "%s, fi_mr_regv: nowhere to put the region", kind->name);
	FAILS(fi_mr_regattr(domain, &attr, 0, NULL), -FI_EINVAL, "mr|NULL",
	      "%s, fi_mr_regattr: nowhere to put the region",
	      kind->name);
	FAILS(fi_mr_regattr(domain, NULL, 0, &mr), -FI_EINVAL, "attr|NULL", "%s, fi_mr_regattr: no attributes",
	      kind->name);
	FAILS(fi_mr_regv(domain, NULL, 1, FI_ALL, 0, 1, 0, &mr, NULL), -FI_EINVAL, "iov|buffer|NULL",
	      "%s, fi_mr_regv: no buffers", kind->name);
	/* With FI_MR_DMABUF other structures stand in place of the buffers. */
	attr.mr_iov = NULL;
	FAILS(fi_mr_regattr(domain, &attr, 1ULL << 40, &mr), -FI_EBADFLAGS, "flag",
	      "%s, fi_mr_regattr: FI_MR_DMABUF without buffers", kind->name);
	FAILS(fi_mr_regattr(domain, &attr, 0, &mr), -FI_EINVAL, "iov|buffer|NULL", "%s, fi_mr_regattr: no buffers",
	      kind->name);
	attr.mr_iov = iov;
	for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
		FAILS(fi_mr_regv(domain, iov, counts[n], FI_ALL, 0, 1, 0, &mr, NULL), -FI_EINVAL, "count|buffer|16",
		      "%s, fi_mr_regv: %zu buffers", kind->name, counts[n]);
		attr.iov_count = counts[n];
		FAILS(fi_mr_regattr(domain, &attr, 0, &mr), -FI_EINVAL, "count|buffer|16",
		      "%s, fi_mr_regattr: %zu buffers",
		      kind->name, counts[n]);
	}
	iov[2].iov_len = 0;
	FAILS(fi_mr_regv(domain, iov, 4, FI_ALL, 0, 1, 0, &mr, NULL), -FI_EINVAL, "length|0 bytes|empty",
	      "%s: a buffer of length 0 among others", kind->name);
	iov[2] = (struct iovec){ (void *)-PAGE, 2 * PAGE };
	FAILS(fi_mr_regv(domain, iov, 4, FI_ALL, 0, 1, 0, &mr, NULL), -FI_EINVAL, "end|address space|wrap",
	      "%s: a buffer past the end of the addresses among others", kind->name);
	FAILS(fi_mr_regv(domain, half, 2, FI_ALL, 0, 1, 0, &mr, NULL), -FI_EINVAL,
	      "end|length|address space|wrap|large",
	      "%s: two halves of all addresses", kind->name);
	is(fi_close(&domain->fid), 0, "%s: the domain has no region", kind->name);
}

/* --- Keys --- */

static void keys(void)
{
	struct fid_domain *domain = plain(0, 0), *other = plain(FI_MR_VIRT_ADDR, 0);
	struct fid_mr *first = region(domain, memory, PAGE, FI_ALL, 1234), *second;

	for (int call = 0; call < CALLS; call++) {
		FAILS(make(call, domain, memory + PAGE, PAGE, FI_ALL, 0, 1234, 0), -FI_ENOKEY, "key",
		      "%s: a key that is in use", calls[call]);
		FAILS(make(call, domain, memory + PAGE, PAGE, FI_ALL, 0, 1234, RDMAMR_MR_KEY), -FI_ENOKEY, "key",
		      "%s: a key that is in use, with RDMAMR_MR_KEY", calls[call]);
		FAILS(make(call, domain, memory, PAGE, FI_ALL, 0, FI_KEY_NOTAVAIL, 0), -FI_EKEYREJECTED, "key",
		      "%s: FI_KEY_NOTAVAIL for a key", calls[call]);
		FAILS(make(call, domain, memory, PAGE, FI_ALL, 0, FI_KEY_NOTAVAIL, RDMAMR_MR_KEY), -FI_EKEYREJECTED,
		      "key",
		      "%s: FI_KEY_NOTAVAIL for a key, with RDMAMR_MR_KEY", calls[call]);
		FAILS(make(call, domain, NOWHERE, PAGE, FI_ALL, 0, 99, 0), -FI_EFAULT, "mapped",
		      "%s: key 99 on no memory",
		      calls[call]);
		second = region(domain, memory, PAGE, FI_ALL, 99);
		ok(fi_mr_key(second) == 99, "%s: key 99 was not taken by that", calls[call]);
		must(fi_close(&second->fid) == 0);
	}
	second = region(other, memory, PAGE, FI_ALL, 1234);
	ok(fi_mr_key(second) == 1234, "a key that is in use is free in another domain");
	must(fi_close(&first->fid) == 0);
	first = region(domain, memory, PAGE, FI_ALL, 1234);
	ok(fi_mr_key(first) == 1234, "a key is free again when its region is closed");
	FAILS(make(REG, domain, memory, PAGE, FI_ALL, 0, 1234, 0), -FI_ENOKEY, "key", "and then in use again");
	close_all(&first->fid, &domain->fid);
	close_all(&second->fid, &other->fid);

	/* The size of keys. */
	for (size_t size = 0; size <= 8; size++) {
		uint64_t largest = size && size < 8 ? (1ULL << 8 * size) - 1 : FI_KEY_NOTAVAIL - 1;

		made = NULL;
		must(domain_with(0, 0, 0, 0, size) == 0);
		domain = made;
		first = NULL;
		is(fi_mr_reg(domain, memory, PAGE, FI_ALL, 0, largest, 0, &first, NULL), 0,
		   "keys of %zu bytes: the largest, %#llx", size, (unsigned long long)largest);
		ok(first && fi_mr_key(first) == largest, "keys of %zu bytes: is the region's", size);
		must(first && fi_close(&first->fid) == 0);
		FAILS(make(REG, domain, memory, PAGE, FI_ALL, 0, largest + 1, 0), -FI_EKEYREJECTED, "key",
		      "keys of %zu bytes: one more", size);
		first = region(domain, memory, PAGE, FI_ALL, 0);
		ok(fi_mr_key(first) == 0, "keys of %zu bytes: 0 is a key", size);
		close_all(&first->fid, &domain->fid);
	}

	/* A provider that chooses the keys ignores the requested one. */
	domain = plain(FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, 0);
	first = region(domain, memory, PAGE, FI_ALL, FI_KEY_NOTAVAIL);
	second = region(domain, memory, PAGE, FI_ALL, FI_KEY_NOTAVAIL);
	ok(fi_mr_key(first) != fi_mr_key(second) && fi_mr_key(first) <= UINT32_MAX,
	   "provider keys: any request will do");
	must(fi_close(&first->fid) == 0);
	close_all(&second->fid, &domain->fid);
}

/* --- Attributes of older and newer libfabrics --- */

/* struct fi_mr_attr of libfabric 2.0, of which older ones are the beginning. */
struct attr_2_0 {
	const struct iovec *mr_iov;
	size_t iov_count;
	uint64_t access, offset, requested_key;
	void *context;
	size_t auth_key_size; /* 1.5 */
	uint8_t *auth_key;
	uint64_t iface; /* 1.9 */
	uint64_t device;
	void *hmem_data;	/* 1.19 */
	size_t page_size;	/* 1.22 */
	const struct fid_mr *base_mr; /* 2.0 */
	size_t sub_mr_cnt;
};
_Static_assert(sizeof(struct attr_2_0) == 112, "as libfabric has it");

static struct attr_2_0 garbage_behind(size_t size, const struct iovec *iov)
{
	struct attr_2_0 attr, clean = { .mr_iov = iov, .iov_count = 1, .access = FI_ALL, .context = (void *)iov };

	memset(&attr, 0xff, sizeof(attr));
	memcpy(&attr, &clean, size);
	return attr;
}

static void attributes(void)
{
	static const struct {
		int major, minor;
		size_t size;
	} versions[] = {
		{ 0, 0, 48 }, { 1, 0, 48 }, { 1, 1, 48 }, { 1, 4, 48 }, { 1, 5, 64 }, { 1, 8, 64 }, { 1, 9, 80 },
		{ 1, 17, 80 }, { 1, 18, 80 }, { 1, 19, 88 }, { 1, 20, 88 }, { 1, 21, 88 }, { 1, 22, 96 }, { 2, 0, 112 },
		{ 2, 1, 112 },
	};
	struct iovec iov = { memory, PAGE };
	struct fid_mr one = { .fid = { .fclass = FI_CLASS_MR } };
	uint8_t auth_key[16] = { 1 };

	for (size_t n = 0; n < sizeof(versions) / sizeof(versions[0]); n++) {
		uint32_t version = FI_VERSION((uint32_t)versions[n].major, (uint32_t)versions[n].minor);
		struct fid_domain *domain = plain(0, version);
		struct attr_2_0 attr = garbage_behind(versions[n].size, &iov);
		void *cut = at_the_edge(versions[n].size);
		char name[30];

		snprintf(name, sizeof(name), "api %d.%d", versions[n].major, versions[n].minor);
		memcpy(cut, &attr, versions[n].size);
		mr = NULL;
		is(fi_mr_regattr(domain, cut, 0, &mr), 0, "%s: %zu bytes at the end of the mapping", name,
		   versions[n].size);
		ok(mr && mr->fid.context == &iov, "%s: are obeyed", name);
		if (mr)
			must(fi_close(&mr->fid) == 0);
		mr = NULL;
		is(fi_mr_regattr(domain, (struct fi_mr_attr *)&attr, 0, &mr), 0,
		   "%s: memory behind %zu bytes is not read",
		   name, versions[n].size);
		if (mr)
			must(fi_close(&mr->fid) == 0);

		attr = garbage_behind(sizeof(attr), &iov);
		attr.iface = 1; /* FI_HMEM_CUDA */
		attr.device = 3;
		mr = NULL;
		is(fi_mr_regattr(domain, (struct fi_mr_attr *)&attr, 0, &mr), 0,
		   "%s: the kind of memory is not asked for",
		   name);
		if (mr)
			must(fi_close(&mr->fid) == 0);

		attr = garbage_behind(sizeof(attr), &iov);
		attr.auth_key_size = sizeof(auth_key);
		attr.auth_key = auth_key;
		mr = NULL;
		if (version < FI_VERSION(1, 5)) {
			is(fi_mr_regattr(domain, (struct fi_mr_attr *)&attr, 0, &mr), 0,
			   "%s: has no authorization key", name);
			if (mr)
				must(fi_close(&mr->fid) == 0);
		} else {
			FAILS(fi_mr_regattr(domain, (struct fi_mr_attr *)&attr, 0, &mr), -FI_ENOSYS, "auth",
			      "%s: an authorization key", name);
		}

		attr = garbage_behind(sizeof(attr), &iov);
		attr.base_mr = &one;
		attr.sub_mr_cnt = 1;
		mr = NULL;
		if (version < FI_VERSION(2, 0)) {
			is(fi_mr_regattr(domain, (struct fi_mr_attr *)&attr, 0, &mr), 0, "%s: has no base region",
			   name);
			if (mr)
				must(fi_close(&mr->fid) == 0);
		} else {
			FAILS(fi_mr_regattr(domain, (struct fi_mr_attr *)&attr, 0, &mr), -FI_ENOSYS, "base",
			      "%s: a base region",
			      name);
		}
		must(fi_close(&domain->fid) == 0);
	}
}

/* --- Operations on regions --- */

/* One of many answers, shown if it is wrong. */
static int differs(int which, int got, int want)
{
	if (got != want)
		printf("# %d: got %d, want %d\n", which, got, want);
	return got != want;
}

static void regions(void)
{
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));
	struct fid_mr *one = region(domain, memory, PAGE, FI_ALL, 1);
	struct fid counter = { .fclass = FI_CLASS_CNTR }, eq = { .fclass = FI_CLASS_EQ }, other = { 0 };
	struct iovec iov = { memory, PAGE };
	uint64_t *modify = (uint64_t *)at_the_edge(56);
	int wrong = 0;

	FAILS(fi_mr_bind(one, &counter, FI_REMOTE_WRITE), -FI_ENOSYS, "writ", "a counter of remote writes");
	FAILS(fi_mr_bind(one, &counter, FI_WRITE), -FI_ENOSYS, "writ", "a counter of writes");
	FAILS(fi_mr_bind(one, &eq, FI_REMOTE_WRITE), -FI_ENOSYS, "writ", "a queue for remote writes");
	FAILS(fi_mr_bind(one, &eq, FI_WRITE), -FI_ENOSYS, "writ", "a queue for writes");
	FAILS(fi_mr_bind(one, NULL, FI_REMOTE_WRITE), -FI_EINVAL, "NULL|bind|fid", "a region bound to nothing");
	for (int n = 0; n < 64; n++)
		if (1ULL << n != FI_REMOTE_WRITE && 1ULL << n != FI_WRITE)
			wrong += fi_mr_bind(one, &counter, 1ULL << n) != -FI_EBADFLAGS;
	none(wrong, "a region bound with every other flag: -FI_EBADFLAGS");
	wrong = 0;
	FAILS(fi_mr_bind(one, &counter, 0), -FI_EBADFLAGS, "flag", "a region bound without flags");
	FAILS(fi_mr_bind(one, &counter, FI_REMOTE_READ), -FI_EBADFLAGS, "flag", "a region bound with another flag");
	for (size_t class = 0; class < 20; class++) {
		other.fclass = class;
		if (class != FI_CLASS_CNTR && class != FI_CLASS_EQ && class != FI_CLASS_CQ)
			wrong += differs((int)class, fi_mr_bind(one, &other, FI_REMOTE_WRITE), -FI_EINVAL);
	}
	none(wrong, "a region bound to an object of every other class: -FI_EINVAL");
	wrong = 0;
	FAILS(fi_mr_bind(one, &domain->fid, FI_REMOTE_WRITE), -FI_EINVAL, "class|queue|counter|bind",
	      "bound to a domain");

	is(fi_mr_enable(one), 0, "a region that is registered is enabled");
	is(fi_mr_enable(one), 0, "and can be again");
	FAILS(fi_mr_refresh(one, &iov, 1, 0), -FI_ENOSYS, "refresh", "fi_mr_refresh");
	FAILS(fi_mr_refresh(one, NULL, 0, 0), -FI_ENOSYS, "refresh", "fi_mr_refresh of nothing");
	/* The flags, and the attributes that libfabric 1.0 has. */
	memset(modify, 0, 56);
	FAILS(fi_control(&one->fid, FI_REFRESH, modify), -FI_ENOSYS, "refresh", "FI_REFRESH by an old program");
	for (int command = -1; command < 40; command++)
		if (command != FI_ENABLE && command != FI_GET_RAW_MR)
			wrong += differs(command, fi_control(&one->fid, command, NULL), -FI_ENOSYS);
	none(wrong, "every other control of a region: -FI_ENOSYS");
	wrong = 0;
	FAILS(fi_control(&one->fid, FI_ALIAS, NULL), -FI_ENOSYS, "control|command|ALIAS", "FI_ALIAS of a region");
	FAILS(fi_control(&one->fid, FI_GET_RAW_MR, NULL), -FI_EINVAL, "NULL|raw", "FI_GET_RAW_MR without an argument");
	for (int command = -1; command < 40; command++)
		if (command != FI_MAP_RAW_MR && command != FI_UNMAP_KEY)
			wrong += differs(command, fi_control(&domain->fid, command, NULL), -FI_ENOSYS);
	none(wrong, "every other control of a domain: -FI_ENOSYS");
	FAILS(fi_control(&domain->fid, FI_MAP_RAW_MR, NULL), -FI_EINVAL, "NULL|raw",
	      "FI_MAP_RAW_MR without an argument");
	FAILS(fi_control(&domain->fid, FI_UNMAP_KEY, NULL), -FI_EINVAL, "NULL|key", "FI_UNMAP_KEY without an argument");

	FAILS(fi_close(&domain->fid), -FI_EBUSY, "region|open", "a domain is closed while a region is open");
	ok(fi_mr_key(one) == 1 && fi_mr_enable(one) == 0, "and the region is unchanged");
	must(fi_close(&one->fid) == 0);
	FAILS(fi_close(&one->fid), -FI_EINVAL, "clos", "a region is closed twice");
	is(fi_close(&domain->fid), 0, "then the domain is closed");
}

/* A child has no part in its parent's regions. */
static void forked(void)
{
	for (int n = 0; n < KINDS; n++) {
		struct fid_domain *domain = open_kind(pd, &kinds[n]);
		struct iovec iov[2] = { { memory, PAGE }, { memory + 2 * PAGE, PAGE } };
		struct fid_mr *one = region(domain, memory + 4 * PAGE, PAGE, FI_ALL, 1), *several = NULL;
		int status = -1, regions_now = kernel_regions(context);
		pid_t pid;

		must(fi_mr_regv(domain, iov, 2, FI_ALL, 0, 2, 0, &several, NULL) == 0);
		regions_now = kernel_regions(context);
		pid = fork();
		must(pid >= 0);
		if (!pid) {
			int wrong = 0;

			alarm(DEADLOCK);
			wrong |= (fi_close(&one->fid) != -FI_EINVAL) << 0;
			wrong |= !names(rdmamr_last_reason(), "fork|parent|process|child") << 1;
			wrong |= (fi_close(&several->fid) != -FI_EINVAL) << 2;
			_exit(wrong);
		}
		must(waitpid(pid, &status, 0) == pid);
		is(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), 0,
		   "%s: a child is refused to close its parent's regions", kinds[n].name);
		is(kernel_regions(context), regions_now, "%s: they still exist", kinds[n].name);
		must(fi_close(&one->fid) == 0);
		close_all(&several->fid, &domain->fid);
	}
}

/* --- Queues that are bound to domains --- */

/* Another provider's queue. */
struct foreign {
	struct fid_eq eq;
	size_t count;
	struct {
		uint32_t event;
		size_t length;
		char data[64];
	} events[8];
};

static ssize_t foreign_read(struct fid_eq *eq, uint32_t *event, void *buf, size_t length, uint64_t flags)
{
	struct foreign *foreign = (struct foreign *)eq;
	size_t size;

	if (!foreign->count)
		return -FI_EAGAIN;
	size = foreign->events[0].length;
	if (size > length)
		return -FI_ETOOSMALL;
	*event = foreign->events[0].event;
	memcpy(buf, foreign->events[0].data, size);
	if (!(flags & FI_PEEK))
		memmove(&foreign->events[0], &foreign->events[1], --foreign->count * sizeof(foreign->events[0]));
	return (ssize_t)size;
}

static ssize_t foreign_readerr(struct fid_eq *eq, struct fi_eq_err_entry *entry, uint64_t flags)
{
	(void)eq, (void)entry, (void)flags;
	return -FI_EAGAIN;
}

static ssize_t foreign_write(struct fid_eq *eq, uint32_t event, const void *buf, size_t length, uint64_t flags)
{
	struct foreign *foreign = (struct foreign *)eq;

	(void)flags;
	must(length <= 64 && foreign->count < 8);
	foreign->events[foreign->count].event = event;
	foreign->events[foreign->count].length = length;
	memcpy(foreign->events[foreign->count++].data, buf, length);
	return (ssize_t)length;
}

static ssize_t foreign_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t length, int timeout, uint64_t flags)
{
	(void)timeout;
	return foreign_read(eq, event, buf, length, flags);
}

static const char *foreign_strerror(struct fid_eq *eq, int prov_errno, const void *data, char *buf, size_t length)
{
	(void)eq, (void)data, (void)buf, (void)length;
	return prov_errno ? "an error of another provider" : "none";
}

static int foreign_nothing(struct fid *fid)
{
	(void)fid;
	return 0;
}

static struct foreign foreign_queue(void)
{
	static struct fi_ops fid_ops = { .size = sizeof(fid_ops), .close = foreign_nothing };
	static struct fi_ops_eq ops = {
		.size = sizeof(ops),
		.read = foreign_read,
		.readerr = foreign_readerr,
		.write = foreign_write,
		.sread = foreign_sread,
		.strerror = foreign_strerror,
	};

	return (struct foreign){ .eq = { .fid = { .fclass = FI_CLASS_EQ, .ops = &fid_ops }, .ops = &ops } };
}

static void bound(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));
	struct fid_eq *eq = NULL, *second = NULL;
	struct fid other = { .fclass = FI_CLASS_CQ };
	struct fi_eq_entry entry;
	struct fid_mr *one;
	uint32_t event;
	int wrong = 0;

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &eq, NULL) == 0);
	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &second, NULL) == 0);
	FAILS(fi_domain_bind(domain, NULL, FI_REG_MR), -FI_EINVAL, "NULL|queue", "a domain bound to nothing");
	FAILS(fi_domain_bind(domain, &other, FI_REG_MR), -FI_EINVAL, "queue|class",
	      "a domain bound to a completion queue");
	FAILS(fi_domain_bind(domain, &domain->fid, FI_REG_MR), -FI_EINVAL, "queue|class", "a domain bound to itself");
	FAILS(fi_domain_bind(domain, &eq->fid, 0), -FI_EBADFLAGS, "flag", "a domain bound without flags");
	FAILS(fi_domain_bind(domain, &eq->fid, FI_REG_MR | 1), -FI_EBADFLAGS, "flag",
	      "a domain bound with one more flag");
	for (int bit = 0; bit < 64; bit++)
		if (1ULL << bit != FI_REG_MR)
			wrong += fi_domain_bind(domain, &eq->fid, 1ULL << bit) != -FI_EBADFLAGS;
	none(wrong, "a domain bound with every other flag: -FI_EBADFLAGS");

	one = region(domain, memory, PAGE, FI_ALL, 1);
	FAILS(fi_domain_bind(domain, &eq->fid, FI_REG_MR), -FI_EOPBADSTATE, "region|open",
	      "a domain with a region is bound");
	must(fi_close(&one->fid) == 0);
	is(fi_domain_bind(domain, &eq->fid, FI_REG_MR), 0, "a domain without one is bound");
	FAILS(fi_domain_bind(domain, &eq->fid, FI_REG_MR), -FI_EBUSY, "bound|already", "a domain is bound twice");
	FAILS(fi_domain_bind(domain, &second->fid, FI_REG_MR), -FI_EBUSY, "bound|already",
	      "a domain is bound to another too");
	FAILS(fi_close(&eq->fid), -FI_EBUSY, "bound|domain", "a queue is closed while a domain is bound to it");
	is(fi_close(&second->fid), 0, "a queue that was refused is closed");

	/* An error in the arguments is reported at once. */
	for (int call = 0; call < CALLS; call++) {
		FAILS(make(call, domain, memory, PAGE, 1, 0, 1, 0), -FI_EINVAL, "access|right",
		      "asynchronous %s: unknown rights",
		      calls[call]);
		FAILS(make(call, domain, memory, 0, FI_ALL, 0, 1, 0), -FI_EINVAL, "length|0 bytes|empty",
		      "asynchronous %s: length 0", calls[call]);
		FAILS(make(call, domain, memory, PAGE, FI_ALL, 3, 1, 0), -FI_EINVAL, "offset",
		      "asynchronous %s: an offset",
		      calls[call]);
		FAILS(make(call, domain, memory, PAGE, FI_ALL, 0, 1, 1), -FI_EBADFLAGS, "flag",
		      "asynchronous %s: a flag",
		      calls[call]);
		FAILS(make(call, domain, memory, PAGE, FI_ALL, 0, FI_KEY_NOTAVAIL, 0), -FI_EKEYREJECTED, "key",
		      "asynchronous %s: no key", calls[call]);
	}
	one = region(domain, memory, PAGE, FI_ALL, 1);
	is(fi_eq_sread(eq, &event, &entry, sizeof(entry), 10000, 0), sizeof(entry), "asynchronous: one event comes");
	ok(event == FI_MR_COMPLETE && entry.fid == &one->fid, "asynchronous: of the region");
	FAILS(make(REG, domain, memory, PAGE, FI_ALL, 0, 1, 0), -FI_ENOKEY, "key", "asynchronous: a key in use");
	is(fi_eq_sread(eq, &event, &entry, sizeof(entry), 100, 0), -FI_EAGAIN,
	   "asynchronous: and no event of calls that were refused at once");
	FAILS(fi_close(&domain->fid), -FI_EBUSY, "region|open",
	      "asynchronous: a domain is closed while a region is open");
	close_all(&one->fid, &domain->fid);
	is(fi_close(&eq->fid), 0, "a queue is closed when its domain is");
}

static void bound_to_foreign(void)
{
	struct foreign foreign = foreign_queue();
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));

	FAILS(fi_domain_bind(domain, &foreign.eq.fid, FI_REG_MR), -FI_EINVAL, "queue|rdmamr_eq_open",
	      "another provider's queue is refused");
	is((long long)foreign.count, 0, "and gets no event");
	is(make(0, domain, memory, PAGE, FI_ALL, 0, 1, 0), 0, "the domain registers at once");
	must(mr && fi_close(&mr->fid) == 0);
	is(fi_close(&domain->fid), 0, "and is closed");
}

/* --- The library's functions, as languages without inline functions call them --- */

static void nothing_and_others(void)
{
	/* Objects of a class that no call here is for, with no tables. */
	struct { struct fid fid; void *more[8]; } other = { .fid = { .fclass = FI_CLASS_AV } };
	struct fid_domain *domains[] = { NULL, (void *)&other };
	struct fid_mr *mrs[] = { NULL, (void *)&other };
	struct fid_eq *eqs[] = { NULL, (void *)&other };
	struct fi_eq_err_entry error = { 0 };
	struct fi_eq_entry entry = { 0 };
	struct iovec iov = { memory, PAGE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = FI_ALL };
	struct rdmamr_segment segment;
	uint8_t raw[2048];
	size_t size = sizeof(raw), count = 1;
	uint64_t base, key;
	uint32_t event;

	for (int n = 0; n < 2; n++) {
		const char *what = n ? "of another class" : "NULL";
#define INVALID(call, name)                                                    \
	FAILS(call, -FI_EINVAL, "NULL|class|domain|region|queue|object", "%s of an object %s", name, what)
		INVALID(EXPORTED(fi_mr_reg)(domains[n], memory, PAGE, FI_ALL, 0, 1, 0, &mr, NULL), "fi_mr_reg");
		INVALID(EXPORTED(fi_mr_regv)(domains[n], &iov, 1, FI_ALL, 0, 1, 0, &mr, NULL), "fi_mr_regv");
		INVALID(EXPORTED(fi_mr_regattr)(domains[n], &attr, 0, &mr), "fi_mr_regattr");
		INVALID(EXPORTED(fi_mr_bind)(mrs[n], &other.fid, FI_REMOTE_WRITE), "fi_mr_bind");
		INVALID(EXPORTED(fi_mr_enable)(mrs[n]), "fi_mr_enable");
		INVALID(EXPORTED(fi_mr_refresh)(mrs[n], &iov, 1, 0), "fi_mr_refresh");
		INVALID(EXPORTED(fi_mr_raw_attr)(mrs[n], &base, raw, &size, 0), "fi_mr_raw_attr");
		INVALID(EXPORTED(fi_mr_map_raw)(domains[n], 0, raw, size, &key, 0), "fi_mr_map_raw");
		INVALID(EXPORTED(fi_mr_unmap_key)(domains[n], 1), "fi_mr_unmap_key");
		INVALID(EXPORTED(fi_domain_bind)(domains[n], &other.fid, FI_REG_MR), "fi_domain_bind");
		INVALID(EXPORTED(fi_eq_read)(eqs[n], &event, &entry, sizeof(entry), 0), "fi_eq_read");
		INVALID(EXPORTED(fi_eq_readerr)(eqs[n], &error, 0), "fi_eq_readerr");
		INVALID(EXPORTED(fi_eq_write)(eqs[n], 1, &entry, sizeof(entry), 0), "fi_eq_write");
		INVALID(EXPORTED(fi_eq_sread)(eqs[n], &event, &entry, sizeof(entry), 0, 0), "fi_eq_sread");
		INVALID(rdmamr_resolve(domains[n], 1, 0, 1, &segment, &count), "rdmamr_resolve");
		INVALID(rdmamr_mr_segments(mrs[n], &segment, &count), "rdmamr_mr_segments");
		ok(EXPORTED(fi_mr_desc)(mrs[n]) == NULL, "fi_mr_desc of an object %s: NULL", what);
		ok(EXPORTED(fi_mr_key)(mrs[n]) == FI_KEY_NOTAVAIL, "fi_mr_key of an object %s: FI_KEY_NOTAVAIL", what);
#undef INVALID
	}
	FAILS(EXPORTED(fi_close)(NULL), -FI_EINVAL, "NULL", "fi_close of NULL");
	FAILS(EXPORTED(fi_control)(NULL, FI_ENABLE, NULL), -FI_EINVAL, "NULL", "fi_control of NULL");
}

/* The library's calls pass objects of other providers on to their providers. */
static struct {
	const void *object, *pointers[4];
	uint64_t numbers[6];
} heard;

static int heard_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
		     uint64_t flags, struct fid_mr **out, void *with)
{
	heard.object = fid;
	memcpy(heard.pointers, (const void *[]){ buf, out, with }, 3 * sizeof(void *));
	memcpy(heard.numbers, (uint64_t[]){ len, access, offset, key, flags }, 5 * sizeof(uint64_t));
	return -1001;
}

static int heard_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset,
		      uint64_t key, uint64_t flags, struct fid_mr **out, void *with)
{
	return heard_reg(fid, iov, count, access, offset, key, flags, out, with) - 1;
}

static int heard_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
	return heard_reg(fid, attr, 0, 0, 0, 0, flags, out, NULL) - 2;
}

static int heard_close(struct fid *fid)
{
	heard.object = fid;
	return -1004;
}

static int heard_bind(struct fid *fid, struct fid *to, uint64_t flags)
{
	heard.object = fid;
	heard.pointers[0] = to;
	heard.numbers[0] = flags;
	return -1005;
}

static int heard_control(struct fid *fid, int command, void *argument)
{
	heard.object = fid;
	heard.pointers[0] = argument;
	heard.numbers[0] = (uint64_t)command;
	switch (command) {
	case FI_GET_RAW_MR: {
		const struct fi_mr_raw_attr *attr = argument;

		memcpy(heard.pointers, (const void *[]){ attr->base_addr, attr->raw_key, attr->key_size },
		       3 * sizeof(void *));
		heard.numbers[1] = attr->flags;
		break;
	}
	case FI_MAP_RAW_MR: {
		const struct fi_mr_map_raw *map = argument;

		memcpy(heard.pointers, (const void *[]){ map->raw_key, map->key }, 2 * sizeof(void *));
		memcpy(heard.numbers + 1, (uint64_t[]){ map->flags, map->base_addr, map->key_size },
		       3 * sizeof(uint64_t));
		break;
	}
	case FI_UNMAP_KEY:
		heard.numbers[1] = *(uint64_t *)argument;
		break;
	case FI_REFRESH: {
		const struct fi_mr_modify *modify = argument;

		heard.pointers[0] = modify->attr.mr_iov;
		memcpy(heard.numbers + 1, (uint64_t[]){ modify->flags, modify->attr.iov_count, modify->attr.access },
		       3 * sizeof(uint64_t));
		break;
	}
	}
	return -1006;
}

static bool heard_is(const void *object, const void *a, const void *b, const void *c, uint64_t n0, uint64_t n1,
		     uint64_t n2,
		     uint64_t n3)
{
	bool same = heard.object == object && heard.pointers[0] == a && heard.pointers[1] == b &&
		heard.pointers[2] == c &&
		    heard.numbers[0] == n0 && heard.numbers[1] == n1 && heard.numbers[2] == n2 &&
			    heard.numbers[3] == n3;

	memset(&heard, 0, sizeof(heard));
	return same;
}

static void objects_of_others(void)
{
	static struct fi_ops fid_ops = {
		.size = sizeof(fid_ops),
		.close = heard_close,
		.bind = heard_bind,
		.control = heard_control,
	};
	static struct fi_ops_mr mr_ops = {
		.size = sizeof(mr_ops),
		.reg = heard_reg,
		.regv = heard_regv,
		.regattr = heard_regattr,
	};
	struct fid_domain domain = { .fid = { .fclass = FI_CLASS_DOMAIN, .ops = &fid_ops }, .mr = &mr_ops };
	struct fid_mr theirs = {
		.fid = { .fclass = FI_CLASS_MR, .ops = &fid_ops },
		.mem_desc = &theirs,
		.key = 0x123456789abc,
	};
	struct foreign foreign = foreign_queue();
	struct iovec iov = { memory, PAGE };
	struct fi_mr_attr attr = { .mr_iov = &iov };
	struct fi_eq_entry entry = { .data = 7 };
	struct fi_eq_err_entry error;
	struct rdmamr_segment segment;
	uint64_t base, key;
	uint8_t raw[8];
	size_t size = 8, count = 1;
	uint32_t event = 0;
	char buf[8];

	is(EXPORTED(fi_mr_reg)(&domain, memory, 1, 2, 3, 4, 5, &mr, buf), -1001, "fi_mr_reg of another provider's domain");
	ok(heard.numbers[4] == 5 && heard_is(&domain, memory, &mr, buf, 1, 2, 3, 4), "with the arguments");
	is(EXPORTED(fi_mr_regv)(&domain, &iov, 1, 2, 3, 4, 5, &mr, buf), -1002, "fi_mr_regv of another provider's domain");
	ok(heard.numbers[4] == 5 && heard_is(&domain, &iov, &mr, buf, 1, 2, 3, 4), "with the arguments");
	is(EXPORTED(fi_mr_regattr)(&domain, &attr, 5, &mr), -1003, "fi_mr_regattr of another provider's domain");
	ok(heard.numbers[4] == 5 && heard_is(&domain, &attr, &mr, NULL, 0, 0, 0, 0), "with the arguments");
	is(EXPORTED(fi_close)(&theirs.fid), -1004, "fi_close of another provider's region");
	ok(heard_is(&theirs, NULL, NULL, NULL, 0, 0, 0, 0), "with the object");
	ok(EXPORTED(fi_mr_desc)(&theirs) == &theirs, "fi_mr_desc of another provider's region");
	ok(EXPORTED(fi_mr_key)(&theirs) == 0x123456789abc, "fi_mr_key of another provider's region");
	is(EXPORTED(fi_mr_bind)(&theirs, &domain.fid, 9), -1005, "fi_mr_bind of another provider's region");
	ok(heard_is(&theirs, &domain, NULL, NULL, 9, 0, 0, 0), "with the arguments");
	is(EXPORTED(fi_domain_bind)(&domain, &theirs.fid, 9), -1005, "fi_domain_bind of another provider's domain");
	ok(heard_is(&domain, &theirs, NULL, NULL, 9, 0, 0, 0), "with the arguments");
	is(EXPORTED(fi_control)(&theirs.fid, 77, buf), -1006, "fi_control of another provider's region");
	ok(heard_is(&theirs, buf, NULL, NULL, 77, 0, 0, 0), "with the arguments");
	is(EXPORTED(fi_mr_enable)(&theirs), -1006, "fi_mr_enable of another provider's region");
	ok(heard_is(&theirs, NULL, NULL, NULL, FI_ENABLE, 0, 0, 0), "as the control FI_ENABLE");
	is(EXPORTED(fi_mr_refresh)(&theirs, &iov, 1, 3), -1006, "fi_mr_refresh of another provider's region");
	ok(heard_is(&theirs, &iov, NULL, NULL, FI_REFRESH, 3, 1, 0), "as the control FI_REFRESH");
	is(EXPORTED(fi_mr_raw_attr)(&theirs, &base, raw, &size, 3), -1006, "fi_mr_raw_attr of another provider's region");
	ok(heard_is(&theirs, &base, raw, &size, FI_GET_RAW_MR, 3, 0, 0), "as the control FI_GET_RAW_MR");
	is(EXPORTED(fi_mr_map_raw)(&domain, 5, raw, 8, &key, 3), -1006, "fi_mr_map_raw of another provider's domain");
	ok(heard_is(&domain, raw, &key, NULL, FI_MAP_RAW_MR, 3, 5, 8), "as the control FI_MAP_RAW_MR");
	is(EXPORTED(fi_mr_unmap_key)(&domain, 88), -1006, "fi_mr_unmap_key of another provider's domain");
	heard.pointers[0] = NULL;
	ok(heard_is(&domain, NULL, NULL, NULL, FI_UNMAP_KEY, 88, 0, 0), "as the control FI_UNMAP_KEY");
	is(EXPORTED(fi_eq_write)(&foreign.eq, 3, &entry, sizeof(entry), 0), sizeof(entry),
	   "fi_eq_write of another provider's");
	is(EXPORTED(fi_eq_read)(&foreign.eq, &event, &entry, 4, 0), -FI_ETOOSMALL,
	   "fi_eq_read of another provider's queue");
	is(EXPORTED(fi_eq_sread)(&foreign.eq, &event, &entry, sizeof(entry), 0, FI_PEEK), sizeof(entry),
	   "fi_eq_sread of it");
	ok(event == 3 && foreign.count == 1, "with the arguments");
	is(EXPORTED(fi_eq_readerr)(&foreign.eq, &error, 0), -FI_EAGAIN, "fi_eq_readerr of it");
	ok(!strcmp(EXPORTED(fi_eq_strerror)(&foreign.eq, 0, NULL, buf, 0), "none"), "fi_eq_strerror of it");

	/* Other providers know nothing of the library's own calls. */
	FAILS(rdmamr_resolve(&domain, 1, 0, 1, &segment, &count), -FI_EINVAL, "domain|rdmamr|librar|provider",
	      "rdmamr_resolve of another provider's domain");
	FAILS(rdmamr_mr_segments(&theirs, &segment, &count), -FI_EINVAL, "region|rdmamr|librar|provider",
	      "rdmamr_mr_segments of another provider's region");
}

/* Pointers of the library's own calls. */
static void own_calls(void)
{
	struct fid_domain *domain = plain(0, 0);
	struct fid_mr *one = region(domain, memory, PAGE, FI_ALL, 3);
	struct rdmamr_segment segment;
	size_t count = 1;

	FAILS(rdmamr_resolve(domain, 3, 0, 1, &segment, NULL), -FI_EINVAL, "NULL|count",
	      "rdmamr_resolve without a count");
	FAILS(rdmamr_resolve(domain, 3, 0, 1, NULL, &count), -FI_ETOOSMALL, "room|segment",
	      "rdmamr_resolve with a NULL array");
	is((long long)count, 1, "returns their number");
	FAILS(rdmamr_mr_segments(one, &segment, NULL), -FI_EINVAL, "NULL|count", "rdmamr_mr_segments without a count");
	count = 1;
	FAILS(rdmamr_mr_segments(one, NULL, &count), -FI_ETOOSMALL, "room|segment",
	      "rdmamr_mr_segments with a NULL array");
	is((long long)count, 1, "returns their number");
	FAILS(rdmamr_resolve(domain, 4, 0, 1, &segment, &count), -FI_ENOKEY, "key", "rdmamr_resolve of an unknown key");
	FAILS(rdmamr_resolve(domain, FI_KEY_NOTAVAIL, 0, 1, &segment, &count), -FI_ENOKEY, "key",
	      "rdmamr_resolve of FI_KEY_NOTAVAIL");
	FAILS(rdmamr_resolve(domain, 3, 0, 0, &segment, &count), -FI_EINVAL, "length|0 bytes|empty",
	      "rdmamr_resolve of length 0");
	FAILS(rdmamr_resolve(domain, 3, PAGE, 1, &segment, &count), -FI_EINVAL, "outside|beyond|range|end|region",
	      "rdmamr_resolve beyond the end");
	close_all(&one->fid, &domain->fid);
}

/* Without the right to pin more, for the rest of the program. */
static void limited(void)
{
	struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	/* (If remote peers count from 0, memory that both sides may use is pinned twice.) */
	struct fid_domain *domain = plain(FI_MR_VIRT_ADDR, 0);
	struct iovec iov[3] = { { memory, 6 * PAGE }, { memory + 8 * PAGE, 6 * PAGE },
				{ memory + 16 * PAGE, 6 * PAGE } };

	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	must(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	data[0].permitted &= ~(1u << CAP_IPC_LOCK);
	must(syscall(SYS_capset, &header, data) == 0);
	for (int call = 0; call < CALLS; call++)
		FAILS(make(call, domain, memory, 20 * PAGE, FI_ALL, 0, 1, 0), -FI_ENOMEM, "RLIMIT_MEMLOCK",
		      "%s: more than may be pinned", calls[call]);
	FAILS(fi_mr_regv(domain, iov, 3, FI_ALL, 0, 1, 0, &mr, NULL), -FI_ENOMEM,
	      " 48 KiB of the same call, and ", "the third of three buffers is more than may be pinned");
	mr = NULL;
	is(fi_mr_regv(domain, iov, 2, FI_ALL, 0, 1, 0, &mr, NULL), 0, "two of them may");
	must(mr);
	close_all(&mr->fid, &domain->fid);
	domain = plain(0, 0);
	if (context->device->transport_type == IBV_TRANSPORT_IWARP) {
		/* Its regions are at their own addresses: a table counts from 0. */
		mr = NULL;
		is(fi_mr_reg(domain, memory, 10 * PAGE, FI_ALL, 0, 1, 0, &mr, NULL), 0, "a buffer that may be pinned once");
		must(mr && fi_close(&mr->fid) == 0);
	} else {
		FAILS(fi_mr_reg(domain, memory, 10 * PAGE, FI_ALL, 0, 1, 0, &mr, NULL), -FI_ENOMEM,
		      " 40 KiB of the same call, and ", "a buffer that may be pinned once, and takes two");
	}
	must(fi_close(&domain->fid) == 0);
}

int main(void)
{
	fabric_begin();
	memory = pages(64);
	read_only = pages(1);
	must(mprotect(read_only, PAGE, PROT_READ) == 0);
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);

	as_case(accepted_domains(), "domains that are opened");
	as_case(refused_domains(), "domains that are refused");
	as_case(domain_sizes(), "attributes of each size");
	as_case(tables(), "tables of functions");
	for (int n = 0; n < KINDS; n++) {
		as_case(arguments(&kinds[n]), "bad arguments, %s", kinds[n].name);
		as_case(pointers(&kinds[n]), "bad pointers, %s", kinds[n].name);
	}
	as_case(keys(), "keys that are taken, and freed");
	as_case(attributes(), "attributes of regions");
	as_case(regions(), "calls on regions");
	as_case(forked(), "after a fork");
	as_case(bound(), "bound objects");
	as_case(bound_to_foreign(), "objects bound to those of others");
	as_case(nothing_and_others(), "NULL, and objects of another class");
	as_case(objects_of_others(), "objects of others");
	as_case(own_calls(), "the calls of rdmamr");
	as_case(limited(), "limits");

	is((long long)stats().live, 0, "no region is left");
	is(ibv_dealloc_pd(pd), 0, "and the PD has none");
	is(ibv_close_device(context), 0, "the device is closed");
	return done_testing();
}
