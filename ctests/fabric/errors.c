/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls that are refused, with the error and the reason, and leave nothing behind; and calls that only look bad. */
#include "common.h"
#include "../lib/observe.h"

#define UNTOUCHED ((void *)0x5550)
#define DMABUF (1ULL << 40)

static struct ibv_context *context;
static struct ibv_pd *pd;
static char *memory, *read_only;

/* The place that the calls write their object to. */
static struct fid_mr *mr;
static struct fid_domain *made;

static struct {
	uint64_t live;
	int regions;
	char reason[4096];
} before;

/* Before a call that must fail: another failure is the last one, so that its reason is not taken for the new one. */
static void about_to_fail(void)
{
	mr = UNTOUCHED;
	made = UNTOUCHED;
	/* A domain with the cache may end its idle regions at any time: only regions in use are counted. */
	must(ibv_flush_relaxed_mr(pd) == 0);
	before.live = stats().live;
	before.regions = kernel_regions(context);
	must(!ibv_reg_mr(pd, memory, 0, IBV_ACCESS_LOCAL_WRITE));
	snprintf(before.reason, sizeof(before.reason), "%s", rdmamr_last_reason());
}

/* After the call: checks the error, its reason, and that nothing was made or written. */
static void failed(long long ret, long long want, const char *words, const char *name)
{
	char said[4096];

	snprintf(said, sizeof(said), "%s", rdmamr_last_reason());
	must(ibv_flush_relaxed_mr(pd) == 0);
	is(ret, want, "%s", name);
	ok(strcmp(said, before.reason) && strcasestr(said, words), "%s: %s", name,
	   !strcmp(said, before.reason) ? "no reason was given" : said);
	ok(mr == UNTOUCHED && made == UNTOUCHED && stats().live == before.live &&
	   kernel_regions(context) == before.regions, "%s: nothing was made or written", name);
}
#define FAILS(want, words, ...)                                                \
	do {                                                                   \
		about_to_fail();                                               \
		failed((long long)(__VA_ARGS__), want, words, #__VA_ARGS__);   \
	} while (0)
/* Each value of a variable but those for which `except` holds gets this answer. */
#define EACH(variable, from, to, except, want, ...)                            \
	for (int64_t variable = (from); variable < (to); variable++)           \
		if (!(except) && (__VA_ARGS__) != (want))                      \
			is((__VA_ARGS__), want, "%s, " #variable " %lld", #__VA_ARGS__, (long long)variable)

/* --- Domains --- */

#define ATTR(...) #__VA_ARGS__, { .size = sizeof(struct rdmamr_domain_attr), .api_version = FI_VERSION(1, 17), \
				  __VA_ARGS__ }

static int open_attr(const struct rdmamr_domain_attr *attr) { return rdmamr_domain_open(pd, attr, &made, &made); }

static struct fid_domain *plain(int32_t mr_mode, uint32_t api_version)
{
	struct rdmamr_domain_attr attr = { .size = sizeof(attr), .api_version = api_version, .mr_mode = mr_mode };
	struct fid_domain *domain = NULL;

	must(rdmamr_domain_open(pd, &attr, &domain, NULL) == 0 && domain);
	return domain;
}

static void close_all(struct fid *one, struct fid *other)
{
	must(fi_close(one) == 0 && fi_close(other) == 0);
}

/* The keys and addresses of a domain: P or A, V or 0; R if only raw keys are accepted. Closes it. */
static const char *keys_of(struct fid_domain *domain)
{
	static char kind[4];
	uint64_t base = 1, key;
	uint8_t raw[2048];
	size_t size = sizeof(raw), count = 1;
	struct rdmamr_segment segment;
	struct fid_mr *region_of = region(domain, memory, PAGE, FI_ALL, 0x77);

	must(fi_mr_raw_attr(region_of, &base, raw, &size, 0) == 0);
	must(rdmamr_mr_segments(region_of, &segment, &count) == 0);
	kind[0] = fi_mr_key(region_of) == FI_KEY_NOTAVAIL ? 'R' :
		  fi_mr_key(region_of) == segment.rkey ? 'P' : fi_mr_key(region_of) == 0x77 ? 'A' : '?';
	/* The raw key is the only one. */
	if (kind[0] == 'R') {
		must(fi_mr_desc(region_of) && fi_mr_map_raw(domain, base, raw, size, &key, 0) == 0);
		ok(resolved(domain, key, base + 8, 8).addr % PAGE == 8, "the raw key leads to the memory");
		must(fi_mr_unmap_key(domain, key) == 0);
	}
	kind[1] = base == (uintptr_t)memory ? 'V' : base == 0 ? '0' : '?';
	close_all(&region_of->fid, &domain->fid);
	return kind;
}

static void opens(const struct rdmamr_domain_attr *attr, const char *kind)
{
	made = NULL;
	if (!gives(0, open_attr(attr)))
		return;
	holds(made->fid.fclass == FI_CLASS_DOMAIN && made->fid.context == &made);
	ok(!strcmp(keys_of(made), kind), "its keys and addresses are %s", kind);
}

static void domains(void)
{
	static const struct {
		const char *kind, *words, *name; /* of those that are opened; of those that are refused */
		struct rdmamr_domain_attr attr;
	} rows[] = {
		{ "A0", "", ATTR(.mr_mode = 0) },
		{ "A0", "", ATTR(.mr_mode = FI_MR_SCALABLE) },
		{ "PV", "", ATTR(.mr_mode = FI_MR_BASIC) },
		{ "PV", "", ATTR(.mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR) },
		{ "PV", "", ATTR(.mode = RDMAMR_PROV_MR_ATTR) },
		{ "AV", "", ATTR(.mr_mode = FI_MR_VIRT_ADDR) },
		{ "PV", "", ATTR(.mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR,
				 .mode = RDMAMR_LOCAL_MR | RDMAMR_PROV_MR_ATTR) },
		{ "R0", "", ATTR(.mr_mode = FI_MR_RAW) },
		{ "RV", "", ATTR(.mr_mode = FI_MR_RAW | FI_MR_VIRT_ADDR) },
		/* Zeroed, of no interface and of those before 1.5. */
		{ "PV", "", "zeroed", { .size = sizeof(struct rdmamr_domain_attr) } },
		{ "PV", "", "1.4", { .size = sizeof(struct rdmamr_domain_attr), .api_version = FI_VERSION(1, 4) } },
		{ "A0", "", "1.4, FI_MR_SCALABLE",
		  { .size = sizeof(struct rdmamr_domain_attr), .api_version = FI_VERSION(1, 4), .mr_mode = FI_MR_SCALABLE } },
		{ NULL, "FI_MR_PROV_KEY needs", ATTR(.mr_mode = FI_MR_PROV_KEY) },
		{ NULL, "mr_mode", ATTR(.mr_mode = FI_MR_MMU_NOTIFY) },
		{ NULL, "mr_mode", ATTR(.mr_mode = INT32_MIN) },
		{ NULL, "mode", ATTR(.mode = 1ULL << 59) },
		{ NULL, "capabilities", ATTR(.caps = 1 << 2) },
		{ NULL, "flag", ATTR(.flags = 1ULL << 63) },
		{ NULL, "key", ATTR(.mr_key_size = SIZE_MAX) },
	};

	for (size_t n = 0; n < COUNT(rows); n++) {
		about("%s", rows[n].name);
		if (rows[n].kind)
			opens(&rows[n].attr, rows[n].kind);
		else
			FAILS(-FI_EINVAL, rows[n].words, open_attr(&rows[n].attr));
	}
}

/* Without attributes, of other sizes, and with pointers to nothing. */
static void other_domains(void)
{
	struct rdmamr_domain_attr good = { .size = sizeof(good) }, dynamic = { .size = sizeof(good), .caps = RDMAMR_DYNAMIC_MR };
	struct { struct rdmamr_domain_attr attr; uint64_t more[3]; } larger = { .attr = { .size = sizeof(larger) } };
	struct ibv_device_attr_ex device;

	opens(NULL, "PV");
	FAILS(-FI_EINVAL, "NULL", rdmamr_domain_open(NULL, &good, &made, NULL));
	FAILS(-FI_EINVAL, "the place for the domain is NULL", rdmamr_domain_open(pd, &good, NULL, NULL));

	about("attributes of 11 bytes");
	good.size = 11;
	FAILS(-FI_EINVAL, "size", open_attr(&good));
	about("attributes larger than the library's");
	opens(&larger.attr, "PV");
	larger.more[2] = 1ULL << 63;
	FAILS(-FI_EINVAL, "the attributes", open_attr(&larger.attr));
	larger.attr.size = SIZE_MAX;
	FAILS(-FI_EINVAL, "the attributes", open_attr(&larger.attr));

	about("on-demand paging");
	if (!ibv_query_device_ex(context, NULL, &device) && !(device.odp_caps.general_caps & IBV_ODP_SUPPORT))
		FAILS(-FI_ENOSYS, "on-demand", open_attr(&dynamic));
	else
		skip("RDMAMR_DYNAMIC_MR on a device without on-demand paging", "this one has it");
}

/* Attributes of each older size, with nothing readable behind them: the fields that they lack count as 0. */
static void domain_sizes(void)
{
	for (size_t size = 12; size <= sizeof(struct rdmamr_domain_attr); size += size == 12 ? 4 : 8) {
		struct rdmamr_domain_attr attr = { .size = size, .mr_mode = FI_MR_VIRT_ADDR, .mode = RDMAMR_PROV_MR_ATTR };
		struct rdmamr_domain_attr *cut = (struct rdmamr_domain_attr *)at_the_edge(size);

		about("%zu bytes", size);
		memcpy(cut, &attr, size < 24 ? size : 24);
		opens(cut, size == 16 ? "AV" : "PV");
		if (size == 12)
			continue;
		cut->mr_mode = 1 << 30;
		gives(-FI_EINVAL, open_attr(cut));
	}
}

/* libfabric's inline functions call the entries of the tables unchecked. A table begins with its size in bytes. */
static void tables(void)
{
	struct fid_eq *eq = queue_with(FI_WAIT_FD, 0);
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));
	struct fid_mr *one = region(domain, memory, PAGE, FI_ALL, 1);
	const void *const tables[] = { domain->fid.ops, domain->ops, domain->mr, one->fid.ops, eq->fid.ops, eq->ops };
	void *ops = NULL;

	for (size_t n = 0; n < COUNT(tables); n++) {
		const size_t *words = tables[n];

		about("table %zu", n);
		must(words[0] >= 2 * sizeof(*words) && words[0] <= 1000);
		for (size_t slot = 1; slot < words[0] / sizeof(*words); slot++)
			holds(words[slot]);
	}
	gives(-FI_ENOSYS, domain->fid.ops->ops_open(&domain->fid, "x", 0, &ops, NULL));
	gives(-FI_ENOSYS, one->fid.ops->ops_open(&one->fid, "x", 0, &ops, NULL));
	gives(-FI_ENOSYS, eq->fid.ops->bind(&eq->fid, &domain->fid, 0));
	close_all(&one->fid, &domain->fid);
	must(fi_close(&eq->fid) == 0);
}

/* --- Registrations --- */

static int make(enum reg_call call, struct fid_domain *domain, const void *buf, size_t length, uint64_t access, uint64_t offset,
		uint64_t key, uint64_t flags)
{
	struct iovec iov = { (void *)buf, length };

	return make_region(call, domain, &iov, 1, access, offset, key, flags, &mr, NULL);
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
		bool provider_keys; /* for such domains alone */
	} rows[] = {
		/* src/fabric/access.rs has each bit; data.c has what the rights allow. */
		{ "unknown rights", memory, PAGE, FI_ALL | 1ULL << 40, 0, 0, -FI_EINVAL, "access", 0 },
		{ "an offset", memory, PAGE, FI_ALL, 1, 0, -FI_EINVAL, "offset", 0 },
		{ "length 0", memory, 0, FI_ALL, 0, 0, -FI_EINVAL, "length is 0", 0 },
		{ "past the end", (void *)-PAGE, 2 * PAGE, FI_ALL, 0, 0, -FI_EINVAL, "past the end", 0 },
		{ "an unknown flag", memory, PAGE, FI_ALL, 0, 1 << 20, -FI_EBADFLAGS, "flag", 0 },
		{ "FI_MR_DMABUF", memory, PAGE, FI_ALL, 0, DMABUF, -FI_EBADFLAGS, "flag", 0 },
		{ "nothing mapped", NOWHERE, PAGE, FI_ALL, 0, 0, -FI_EFAULT, in_hole, 0 },
		{ "read-only, receives", read_only, PAGE, FI_RECV, 0, 0, -FI_EFAULT, "read-only", 0 },
		{ "read-only, remote writes", read_only, PAGE, FI_REMOTE_WRITE, 0, 0, -FI_EFAULT, "read-only", 0 },
		{ "addresses past the end", memory, 2 * PAGE, FI_ALL, (uint64_t)-PAGE, RDMAMR_MR_OFFSET, -FI_EINVAL,
		  "past the end", 0 },
		{ "RDMAMR_MR_KEY", memory, PAGE, FI_ALL, 0, RDMAMR_MR_KEY, -FI_EBADFLAGS, "FI_MR_KEY", 1 },
		{ "not alike in the page", memory, PAGE, FI_ALL, 8, RDMAMR_MR_OFFSET, -FI_EINVAL, "pages", 1 },
	};

	snprintf(in_hole, sizeof(in_hole), "%p", (void *)NOWHERE);
	for (enum reg_call call = REG; call < CALLS; call++) {
		for (size_t n = 0; n < COUNT(rows); n++) {
			about("%s, %s", calls[call], rows[n].name);
			if (!rows[n].provider_keys || kind->provider_keys)
				FAILS(rows[n].want, rows[n].words, make(call, domain, rows[n].buf, rows[n].length,
				      rows[n].access, rows[n].offset, 1, rows[n].flags));
		}
		about("%s", calls[call]);
		about_to_fail();
		EACH(bit, 0, 64, 1ULL << bit == RDMAMR_MR_KEY || 1ULL << bit == RDMAMR_MR_OFFSET, -FI_EBADFLAGS,
		     make(call, domain, memory, PAGE, FI_ALL, 0, 1, 1ULL << bit));
		failed(0, 0, "flag", "every other bit of the flags");
	}
	gives(0, fi_close(&domain->fid));
}

/* Pointers and counts of each call; src/fabric/attributes.rs has the buffers. */
static void pointers(const struct kind *kind)
{
	struct fid_domain *domain = open_kind(pd, kind);
	struct iovec iov[17];
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 1, .access = FI_ALL };
	const size_t counts[] = { 0, 17 };

	for (int n = 0; n < 17; n++)
		iov[n] = (struct iovec){ memory + n * 3 * PAGE / 2, PAGE / 2 };
	FAILS(-FI_EINVAL, "the place for the region is NULL", fi_mr_reg(domain, memory, PAGE, FI_ALL, 0, 1, 0, NULL, NULL));
	FAILS(-FI_EINVAL, "the place for the region is NULL", fi_mr_regv(domain, iov, 1, FI_ALL, 0, 1, 0, NULL, NULL));
	FAILS(-FI_EINVAL, "the place for the region is NULL", fi_mr_regattr(domain, &attr, 0, NULL));
	FAILS(-FI_EINVAL, "the attributes are NULL", fi_mr_regattr(domain, NULL, 0, &mr));
	FAILS(-FI_EINVAL, "buffers is NULL", fi_mr_regv(domain, NULL, 1, FI_ALL, 0, 1, 0, &mr, NULL));
	/* With FI_MR_DMABUF other structures stand in place of the buffers. */
	attr.mr_iov = NULL;
	FAILS(-FI_EBADFLAGS, "flag", fi_mr_regattr(domain, &attr, DMABUF, &mr));
	FAILS(-FI_EINVAL, "buffers is NULL", fi_mr_regattr(domain, &attr, 0, &mr));
	attr.mr_iov = iov;
	for (size_t n = 0; n < COUNT(counts); n++) {
		about("%zu buffers", counts[n]);
		attr.iov_count = counts[n];
		FAILS(-FI_EINVAL, "must be 1 to 16", fi_mr_regv(domain, iov, counts[n], FI_ALL, 0, 1, 0, &mr, NULL));
		FAILS(-FI_EINVAL, "must be 1 to 16", fi_mr_regattr(domain, &attr, 0, &mr));
	}
	gives(0, fi_close(&domain->fid));
}

/* --- Keys --- */

/* Registers under a key, which must be the region's. */
static struct fid_mr *keyed(struct fid_domain *domain, uint64_t key)
{
	struct fid_mr *one = region(domain, memory, PAGE, FI_ALL, key);

	is((long long)fi_mr_key(one), (long long)key, "key %#llx is the region's", (unsigned long long)key);
	return one;
}

static void keys(void)
{
	struct fid_domain *domain = plain(FI_MR_SCALABLE, 0), *other = plain(FI_MR_VIRT_ADDR, 0);
	struct fid_mr *first = keyed(domain, 1234), *second;
	const uint64_t flags[] = { 0, RDMAMR_MR_KEY };

	for (enum reg_call call = REG; call < CALLS; call++) {
		about("%s", calls[call]);
		for (int n = 0; n < 2; n++) {
			FAILS(-FI_ENOKEY, "key", make(call, domain, memory + PAGE, PAGE, FI_ALL, 0, 1234, flags[n]));
			FAILS(-FI_EKEYREJECTED, "key", make(call, domain, memory, PAGE, FI_ALL, 0, FI_KEY_NOTAVAIL, flags[n]));
		}
		/* A call that fails takes no key. */
		FAILS(-FI_EFAULT, "mapped", make(call, domain, NOWHERE, PAGE, FI_ALL, 0, 99, 0));
		must(fi_close(&keyed(domain, 99)->fid) == 0);
	}
	about("a key in use is free in another domain, and when its region is closed");
	second = keyed(other, 1234);
	must(fi_close(&first->fid) == 0);
	first = keyed(domain, 1234);
	FAILS(-FI_ENOKEY, "key", make(REG, domain, memory, PAGE, FI_ALL, 0, 1234, 0));
	close_all(&first->fid, &domain->fid);
	close_all(&second->fid, &other->fid);

	/* src/fabric/mode.rs has keys of fewer bytes. */
	about("a provider that chooses the keys ignores the requested one");
	domain = plain(FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, 0);
	first = region(domain, memory, PAGE, FI_ALL, FI_KEY_NOTAVAIL);
	second = region(domain, memory, PAGE, FI_ALL, FI_KEY_NOTAVAIL);
	holds(fi_mr_key(first) != fi_mr_key(second) && fi_mr_key(first) <= UINT32_MAX);
	must(fi_close(&first->fid) == 0);
	close_all(&second->fid, &domain->fid);
}

/* --- Attributes of older and newer libfabrics --- */

/* The words of struct fi_mr_attr in libfabric 2.0, of which older ones are the beginning. */
enum { AUTH_KEY_SIZE = 6, BASE_MR = 12, ATTR_WORDS = 14 };

static void attributes(void)
{
	static const struct { uint32_t api; size_t words; } versions[] = {
		{ FI_VERSION(1, 4), 6 }, { FI_VERSION(1, 5), 8 }, { FI_VERSION(1, 22), 12 }, { FI_VERSION(2, 0), 14 },
	};
	/* Fields that the library refuses where the version has them, each in two words. */
	const struct { const char *words; uint32_t api; int at; uint64_t to[2]; } fields[] = {
		{ "auth", FI_VERSION(1, 5), AUTH_KEY_SIZE, { 16, (uintptr_t)memory } },
		{ "base", FI_VERSION(2, 0), BASE_MR, { (uintptr_t)memory, 1 } },
	};
	struct iovec iov = { memory, PAGE };
	const uint64_t clean[ATTR_WORDS] = { (uintptr_t)&iov, 1, FI_ALL, 0, 0, (uintptr_t)&iov };

	for (size_t n = 0; n < COUNT(versions); n++) {
		const uint32_t api = versions[n].api;
		struct fid_domain *domain = plain(FI_MR_SCALABLE, api);
		size_t size = versions[n].words * sizeof(uint64_t);
		/* Nothing is readable behind it. */
		char *attr = at_the_edge(size);

		about("api %u.%u", api >> 16, api & 0xffff);
		memcpy(attr, clean, size);
		gives(0, fi_mr_regattr(domain, (struct fi_mr_attr *)attr, 0, &mr));
		holds(mr->fid.context == &iov);
		close_all(&mr->fid, &domain->fid);
	}
	/* src/fabric/attributes.rs has older versions, for which they are no error. */
	for (size_t n = 0; n < COUNT(fields); n++) {
		struct fid_domain *domain = plain(FI_MR_SCALABLE, fields[n].api);
		uint64_t attr[ATTR_WORDS];

		memcpy(attr, clean, sizeof(attr));
		memcpy(attr + fields[n].at, fields[n].to, sizeof(fields[n].to));
		about("%s", fields[n].words);
		FAILS(-FI_ENOSYS, fields[n].words, fi_mr_regattr(domain, (struct fi_mr_attr *)attr, 0, &mr));
		must(fi_close(&domain->fid) == 0);
	}
}

/* --- Operations on regions --- */

static void regions(void)
{
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));
	struct fid_mr *one = region(domain, memory, PAGE, FI_ALL, 1);
	struct fid counter = { .fclass = FI_CLASS_CNTR }, eq = { .fclass = FI_CLASS_EQ }, other = { 0 };
	struct iovec iov = { memory, PAGE };
	struct rdmamr_segment segment;
	void *modify = at_the_edge(56);

	FAILS(-FI_ENOSYS, "writ", fi_mr_bind(one, &counter, FI_REMOTE_WRITE));
	FAILS(-FI_ENOSYS, "writ", fi_mr_bind(one, &eq, FI_WRITE));
	FAILS(-FI_EINVAL, "NULL", fi_mr_bind(one, NULL, FI_REMOTE_WRITE));
	FAILS(-FI_EBADFLAGS, "flag", fi_mr_bind(one, &counter, 0));
	FAILS(-FI_EINVAL, "event queue or a counter", fi_mr_bind(one, &domain->fid, FI_REMOTE_WRITE));
	EACH(bit, 0, 64, 1ULL << bit == FI_REMOTE_WRITE || 1ULL << bit == FI_WRITE, -FI_EBADFLAGS,
	     fi_mr_bind(one, &counter, 1ULL << bit));
	EACH(class, 0, 20, class == FI_CLASS_CNTR || class == FI_CLASS_EQ || class == FI_CLASS_CQ, -FI_EINVAL,
	     (other.fclass = (size_t)class, fi_mr_bind(one, &other, FI_REMOTE_WRITE)));

	gives(0, fi_mr_enable(one));
	FAILS(-FI_ENOSYS, "refresh", fi_mr_refresh(one, &iov, 1, 0));
	/* The flags, and the attributes that libfabric 1.0 has. */
	memset(modify, 0, 56);
	FAILS(-FI_ENOSYS, "refresh", fi_control(&one->fid, FI_REFRESH, modify));
	FAILS(-FI_EINVAL, "NULL", fi_control(&one->fid, FI_GET_RAW_MR, NULL));
	FAILS(-FI_EINVAL, "NULL", fi_control(&domain->fid, FI_MAP_RAW_MR, NULL));
	FAILS(-FI_EINVAL, "NULL", fi_control(&domain->fid, FI_UNMAP_KEY, NULL));
	EACH(command, -1, 40, command == FI_ENABLE || command == FI_GET_RAW_MR, -FI_ENOSYS,
	     fi_control(&one->fid, (int)command, NULL));
	EACH(command, -1, 40, command == FI_MAP_RAW_MR || command == FI_UNMAP_KEY, -FI_ENOSYS,
	     fi_control(&domain->fid, (int)command, NULL));

	/* data.c has the answers of the library's own calls. */
	FAILS(-FI_EINVAL, "the count is NULL", rdmamr_resolve(domain, 1, 0, 1, &segment, NULL));
	FAILS(-FI_EINVAL, "the count is NULL", rdmamr_mr_segments(one, &segment, NULL));
	FAILS(-FI_EBUSY, "still has regions", fi_close(&domain->fid));
	holds(fi_mr_key(one) == 1 && fi_mr_enable(one) == 0);
	gives(0, fi_close(&one->fid));
	FAILS(-FI_EINVAL, "closed", fi_close(&one->fid));
	gives(0, fi_close(&domain->fid));
}

/* A child has no part in its parent's regions. */
static void forked(void)
{
	for (int n = 0; n < KINDS; n++) {
		struct fid_domain *domain = open_kind(pd, &kinds[n]);
		struct iovec iov[2] = { { memory, PAGE }, { memory + 2 * PAGE, PAGE } };
		struct fid_mr *one = region(domain, memory + 4 * PAGE, PAGE, FI_ALL, 1), *several = NULL;
		int regions_now;
		pid_t pid;

		about("%s", kinds[n].name);
		must(fi_mr_regv(domain, iov, 2, FI_ALL, 0, 2, 0, &several, NULL) == 0);
		regions_now = kernel_regions(context);
		pid = must_fork();
		if (!pid)
			_exit((fi_close(&one->fid) != -FI_EINVAL) << 0 |
			      !strstr(rdmamr_last_reason(), "forked from") << 1 |
			      (fi_close(&several->fid) != -FI_EINVAL) << 2);
		is(child_status(pid), 0, "a child is refused to close its parent's regions");
		gives(regions_now, kernel_regions(context));
		must(fi_close(&one->fid) == 0);
		close_all(&several->fid, &domain->fid);
	}
}

/* --- Objects of others: one function in all of their slots keeps as many words as the longest call has --- */

/* The library's own function of a name, which rejects what would crash libfabric's inline function. */
static void *exported(const char *name)
{
	void *function = dlsym(RTLD_DEFAULT, name);

	must(function);
	return function;
}
#define EXPORTED(name) ((__typeof__(&name))exported(#name))

static long heard[9];

static long hears(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	const long words[] = { a, b, c, d, e, f, g, h, i };

	memcpy(heard, words, sizeof(heard));
	return -1001;
}

/* The structures of a command end with the call: their first words are heard, behind the command. */
static int heard_control(struct fid *fid, int command, void *argument)
{
	const size_t words = command == FI_GET_RAW_MR ? 4 : command == FI_MAP_RAW_MR ? 5 : command == FI_REFRESH ? 4 :
			     command == FI_UNMAP_KEY ? 1 : 0;

	hears((long)fid, command, (long)argument, 0, 0, 0, 0, 0, 0);
	if (words)
		memcpy(heard + 2, argument, words * sizeof(*heard));
	return -1001;
}

#define SLOT(name) .name = (void *)hears
static struct fi_ops fid_ops = { .size = sizeof(fid_ops), SLOT(close), SLOT(bind), .control = heard_control };
static struct fi_ops_mr mr_ops = { .size = sizeof(mr_ops), SLOT(reg), SLOT(regv), SLOT(regattr) };
static struct fi_ops_eq eq_ops = { .size = sizeof(eq_ops), SLOT(read), SLOT(readerr), SLOT(write), SLOT(sread), SLOT(strerror) };
static struct fid_domain their_domain = { .fid = { .fclass = FI_CLASS_DOMAIN, .ops = &fid_ops }, .mr = &mr_ops };
static struct fid_mr theirs = { .fid = { .fclass = FI_CLASS_MR, .ops = &fid_ops }, .mem_desc = &theirs, .key = 0x123456789abc };
static struct fid_eq their_queue = { .fid = { .fclass = FI_CLASS_EQ, .ops = &fid_ops }, .ops = &eq_ops };

/* Of a class that no call here is for, with no tables. */
static struct { struct fid fid; void *more[8]; } other = { .fid = { .fclass = FI_CLASS_AV } };

/* The words of each call behind its object: nobody looks behind one that is a pointer. */
#define W(n) (0x7000000070 + (n))

/* The library's symbols: with NULL or another class they fail; an object of another provider hears the call. */
static void objects_of_others(void)
{
	static const struct {
		const char *name;
		void *theirs;
		int refused; /* of nothing, and of an object of another class */
		size_t passed; /* so many words are heard as they are */
		unsigned ints; /* of which these, a bit each, have no upper half */
		long command[6]; /* or these are heard: a command, and the words of its structure */
	} rows[] = {
		{ "fi_mr_reg", &their_domain, 2, .passed = 8 },
		{ "fi_mr_regv", &their_domain, 2, .passed = 8 },
		{ "fi_mr_regattr", &their_domain, 2, .passed = 3 },
		{ "fi_close", &theirs, 1, .passed = 0 },
		{ "fi_mr_bind", &theirs, 2, .passed = 2 },
		{ "fi_domain_bind", &their_domain, 2, .passed = 2 },
		{ "fi_control", &theirs, 1, .passed = 2, .ints = 1 << 0 },
		{ "fi_mr_enable", &theirs, 2, .command = { FI_ENABLE } },
		{ "fi_mr_refresh", &theirs, 2, .command = { FI_REFRESH, W(2), W(0), W(1) } },
		{ "fi_mr_raw_attr", &theirs, 2, .command = { FI_GET_RAW_MR, W(3), W(0), W(1), W(2) } },
		{ "fi_mr_map_raw", &their_domain, 2, .command = { FI_MAP_RAW_MR, W(4), W(0), W(1), W(2), W(3) } },
		{ "fi_mr_unmap_key", &their_domain, 2, .command = { FI_UNMAP_KEY, W(0) } },
		{ "fi_eq_read", &their_queue, 2, .passed = 4 },
		{ "fi_eq_readerr", &their_queue, 2, .passed = 2 },
		{ "fi_eq_write", &their_queue, 2, .passed = 4, .ints = 1 << 0 },
		{ "fi_eq_sread", &their_queue, 2, .passed = 5, .ints = 1 << 3 },
		{ "fi_eq_strerror", &their_queue, 0, .passed = 4, .ints = 1 << 0 },
	};

	for (size_t n = 0; n < COUNT(rows); n++) {
		long (*call)(void *, long, long, long, long, long, long, long, long) = exported(rows[n].name);

#define OF(object) (int)call(object, W(0), W(1), W(2), W(3), W(4), W(5), W(6), W(7))
		about("%s", rows[n].name);
		for (int refused = 0; refused < rows[n].refused; refused++)
			FAILS(-FI_EINVAL, "the object is", OF(refused ? &other : NULL));
		memset(heard, 0xee, sizeof(heard));
		gives(-1001, OF(rows[n].theirs));
		holds(heard[0] == (long)rows[n].theirs);
		for (size_t k = 0; k < rows[n].passed; k++)
			holds(rows[n].ints & 1u << k ? (int)heard[k + 1] == (int)W(k) : heard[k + 1] == (long)W(k));
		for (size_t k = 0; k < COUNT(rows[n].command) && rows[n].command[k]; k++)
			holds(heard[k + 1] == rows[n].command[k]);
	}
}

/* What is read without a call of theirs; and other providers know nothing of the library's own calls. */
static void values_of_others(void)
{
	struct rdmamr_segment segment;
	size_t count = 1;

	holds(EXPORTED(fi_mr_desc)(&theirs) == &theirs && EXPORTED(fi_mr_desc)(NULL) == NULL);
	holds(EXPORTED(fi_mr_desc)((void *)&other) == NULL && EXPORTED(fi_mr_key)((void *)&other) == FI_KEY_NOTAVAIL);
	holds(EXPORTED(fi_mr_key)(&theirs) == 0x123456789abc && EXPORTED(fi_mr_key)(NULL) == FI_KEY_NOTAVAIL);
	for (int n = 0; n < 3; n++) {
		FAILS(-FI_EINVAL, n ? "object" : "NULL",
		      rdmamr_resolve(n == 0 ? NULL : n == 1 ? (void *)&other : &their_domain, 1, 0, 1, &segment, &count));
		FAILS(-FI_EINVAL, n ? "object" : "NULL",
		      rdmamr_mr_segments(n == 0 ? NULL : n == 1 ? (void *)&other : &theirs, &segment, &count));
	}
}

/* --- Queues that are bound to domains --- */

static void bound(void)
{
	struct fid_domain *domain = plain(0, FI_VERSION(1, 17));
	struct fid_eq *eq = queue_with(FI_WAIT_FD, 0), *second = queue_with(FI_WAIT_FD, 0);
	struct fid other = { .fclass = FI_CLASS_CQ };
	struct fid_mr *one;

	FAILS(-FI_EINVAL, "the queue is NULL", fi_domain_bind(domain, NULL, FI_REG_MR));
	FAILS(-FI_EINVAL, "event queue only", fi_domain_bind(domain, &other, FI_REG_MR));
	FAILS(-FI_EINVAL, "event queue only", fi_domain_bind(domain, &domain->fid, FI_REG_MR));
	FAILS(-FI_EBADFLAGS, "flag", fi_domain_bind(domain, &eq->fid, FI_REG_MR | 1));
	EACH(bit, 0, 64, 1ULL << bit == FI_REG_MR, -FI_EBADFLAGS, fi_domain_bind(domain, &eq->fid, 1ULL << bit));

	/* None of these has made the domain asynchronous. */
	one = region(domain, memory, PAGE, FI_ALL, 1);
	holds(fi_mr_key(one) == 1 && fi_mr_desc(one));
	FAILS(-FI_EOPBADSTATE, "has regions", fi_domain_bind(domain, &eq->fid, FI_REG_MR));
	must(fi_close(&one->fid) == 0);
	gives(0, fi_domain_bind(domain, &eq->fid, FI_REG_MR));
	FAILS(-FI_EBUSY, "already", fi_domain_bind(domain, &eq->fid, FI_REG_MR));
	FAILS(-FI_EBUSY, "already", fi_domain_bind(domain, &second->fid, FI_REG_MR));
	FAILS(-FI_EBUSY, "still bound", fi_close(&eq->fid));
	gives(0, fi_close(&second->fid));

	/* An error in the arguments is reported at once, and has no event. */
	for (enum reg_call call = REG; call < CALLS; call++) {
		about("asynchronous %s", calls[call]);
		FAILS(-FI_EINVAL, "access", make(call, domain, memory, PAGE, 1, 0, 1, 0));
		FAILS(-FI_EKEYREJECTED, "key", make(call, domain, memory, PAGE, FI_ALL, 0, FI_KEY_NOTAVAIL, 0));
	}
	about("asynchronous");
	must(fi_mr_reg(domain, memory, PAGE, FI_ALL, 0, 1, 0, &one, &one) == 0);
	completes(eq, &one);
	FAILS(-FI_ENOKEY, "key", make(REG, domain, memory, PAGE, FI_ALL, 0, 1, 0));
	gives(-FI_EAGAIN, wait_and_take(eq, 100, 0));
	FAILS(-FI_EBUSY, "still has regions", fi_close(&domain->fid));
	close_all(&one->fid, &domain->fid);
	gives(0, fi_close(&eq->fid));

	/* Another provider's queue is refused, and hears nothing; the domain registers at once. */
	about("another provider's queue");
	domain = plain(0, FI_VERSION(1, 17));
	memset(heard, 0, sizeof(heard));
	FAILS(-FI_EINVAL, "rdmamr_eq_open", fi_domain_bind(domain, &their_queue.fid, FI_REG_MR));
	holds(!heard[0]);
	one = region(domain, memory, PAGE, FI_ALL, 1);
	holds(fi_mr_desc(one));
	close_all(&one->fid, &domain->fid);
}

/* Without the right to pin more, for the rest of the program. */
static void limited(void)
{
	struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	/* (If remote peers count from 0, memory that both sides may use is pinned twice.) */
	struct fid_domain *domain = plain(FI_MR_VIRT_ADDR, 0);
	struct iovec iov[3] = { { memory, 6 * PAGE }, { memory + 8 * PAGE, 6 * PAGE }, { memory + 16 * PAGE, 6 * PAGE } };

	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	drop_memlock_right();
	for (enum reg_call call = REG; call < CALLS; call++)
		FAILS(-FI_ENOMEM, "RLIMIT_MEMLOCK", make(call, domain, memory, 20 * PAGE, FI_ALL, 0, 1, 0));
	FAILS(-FI_ENOMEM, " 48 KiB of the same call, and ", fi_mr_regv(domain, iov, 3, FI_ALL, 0, 1, 0, &mr, NULL));
	gives(0, fi_mr_regv(domain, iov, 2, FI_ALL, 0, 1, 0, &mr, NULL));
	close_all(&mr->fid, &domain->fid);
	domain = plain(FI_MR_SCALABLE, 0);
	if (context->device->transport_type == IBV_TRANSPORT_IWARP) {
		/* Its regions are at their own addresses: a table counts from 0. */
		gives(0, fi_mr_reg(domain, memory, 10 * PAGE, FI_ALL, 0, 1, 0, &mr, NULL));
		must(fi_close(&mr->fid) == 0);
	} else {
		/* A buffer that may be pinned once, and takes two. */
		FAILS(-FI_ENOMEM, " 40 KiB of the same call, and ",
		      fi_mr_reg(domain, memory, 10 * PAGE, FI_ALL, 0, 1, 0, &mr, NULL));
	}
	must(fi_close(&domain->fid) == 0);
}

int main(void)
{
	fabric_begin();
	memory = pages(64);
	read_only = pages(1);
	must(mprotect(read_only, PAGE, PROT_READ) == 0);
	pd = domain_of_device();
	context = pd->context;

	as_case(domains(), "domains that are opened, and refused");
	as_case(other_domains(), "domains without attributes, and of other sizes");
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
	as_case(bound(), "domains bound to queues");
	as_case(objects_of_others(), "NULL, objects of another class, objects of others");
	as_case(values_of_others(), "values of others");
	as_case(limited(), "limits");

	gives(0, stats().live);
	gives(0, ibv_dealloc_pd(pd));
	gives(0, ibv_close_device(context));
	return done_testing();
}
