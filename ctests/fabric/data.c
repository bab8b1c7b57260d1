/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Data lands where a region of the fabric family says, in every kind of domain. Adjoining buffers are merged, others
 * are a kernel region each, all of them or none. Remote peers have the rights that the program gave, until it is closed.
 */
#define RDMAMR_OLD_NAMES
#include "object.h"

enum { SIZE = 3 * PAGE, KEY = 7 };

/* Its context is `pair`. */
static int make(enum reg_call call, struct object *object, uint64_t key, uint64_t flags)
{
	return make_region(call, object->domain, object->iov, object->count, FI_ALL, flags & FI_MR_OFFSET ? object->base : 0, key,
			   flags, &object->mr, &pair);
}

/* A request that must fail breaks the connection: each gets a new one. */
static void refused(int status, int want, const char *name)
{
	is(status, want, "%s is refused", name);
	pair_reconnect(&pair);
}

/* A write that must be refused, and leave the memory unchanged. */
static void refused_write(char *memory, const struct rdmamr_segment *there, const char *name)
{
	char before[64];

	memcpy(before, memory, 64);
	memset(local, ~memory[0], 64);
	refused(pair_write(&pair, with_desc(source), local, 64, there->addr, there->rkey), IBV_WC_REM_ACCESS_ERR, name);
	ok(!memcmp(memory, before, 64), "%s: nothing was written", name);
}

/* --- Layouts of buffers --- */

/* src/fabric/attributes.rs has which adjoining buffers are merged. */
static const struct layout layouts[] = {
	{ .name = "3 pages", .count = 1, .pieces = 1, .start = PAGE, .length = SIZE, .refusals = true },
	{ .name = "not aligned, odd", .count = 1, .pieces = 1, .start = 77, .length = 5000 },
	{ .name = "3 with gaps", .count = 3, .pieces = 3, .length = PAGE, .step = 3 * PAGE, .refusals = true },
	{ .name = "16 that touch, of odd lengths", .count = 16, .pieces = 1, .start = 13, .length = 777, .step = 777 },
	{ .name = "16 with gaps of a byte", .count = 16, .pieces = 16, .start = 5, .length = 776, .step = 777, .refusals = true },
	/* Only adjoining successors may be merged: the order counts. */
	{ .name = "4 that touch, the last first", .count = 4, .pieces = 4, .start = 8 * PAGE, .length = 2 * PAGE,
	  .step = -2 * PAGE },
};

/* Checks a region from its registration to its end. */
static void registers(const struct kind *kind, struct fid_domain *domain, const struct layout *layout, enum reg_call call)
{
	struct object object = laid_out(layout, domain);
	const uint64_t live = stats().live, first = (uintptr_t)object.iov[0].iov_base;
	const int regions = kernel_regions(pair.context), pieces = (int)layout->pieces;
	struct rdmamr_segment again[LIMIT];
	size_t count = layout->pieces - 1;
	int made;

	about("%s, %s", layout->name, calls[call]);
	object.base = base_of(kind, object.iov[0].iov_base);
	gives(0, make(call, &object, KEY, 0));
	must(object.mr);
	holds(object.mr->fid.fclass == FI_CLASS_MR && object.mr->fid.context == &pair && object.mr->fid.ops);
	if (!has_pieces(&object))
		return;
	/* A device has one address for a byte: if peers count from 0, there may be a registration for each side. */
	made = kernel_regions(pair.context) - regions;
	holds(kind->relaxed || made == pieces || (made == 2 * pieces && !kind->virtual_addresses));
	memset(again, 0xee, sizeof(again));
	gives(-FI_ETOOSMALL, rdmamr_mr_segments(object.mr, count ? again : NULL, &count));
	holds(count == object.pieces && again[count - 1].lkey == 0xeeeeeeee);
	gives(!kind->provider_keys ? KEY : count == 1 ? object.own[0].rkey : FI_KEY_NOTAVAIL, fi_mr_key(object.mr));
	gives(count == 1 ? object.own[0].lkey : 0, (uintptr_t)fi_mr_desc(object.mr));

	answers(&object);
	if (count == 1)
		is((long long)object.there[0].addr,
		   (long long)(kind->provider_keys || kind->virtual_addresses || kind->relaxed ? first : first % PAGE),
		   "the device's address is the virtual one, or the offset into the first page");
	/* Relaxed regions cover whole pages, and the cache keeps them. */
	if (layout->refusals && !kind->relaxed) {
		const struct rdmamr_segment last = object.there[count / 2];

		refused(pair_read(&pair, with_desc(source), local, 8, last.addr + last.length - 4, last.rkey),
			IBV_WC_REM_ACCESS_ERR, "a read over the end of a piece");
		refused(pair_read(&pair, with_desc(source), local, 8, last.addr - 4, last.rkey), IBV_WC_REM_ACCESS_ERR,
			"a read over the start of a piece");
	}
	gives(0, fi_close(&object.mr->fid));
	gives(live, stats().live);
	if (!kind->provider_keys)
		gives(-FI_ENOKEY, rdmamr_resolve(domain, KEY, object.base, 1, again, &count));
	if (kind->relaxed)
		return;
	gives(regions, kernel_regions(pair.context));
	for (size_t n = 0; layout->refusals && n < layout->pieces; n += 5)
		refused_write(object.iov[0].iov_base, &object.there[n], "a write by the closed key of a piece");
}

static void all_layouts(const struct kind *kind, struct fid_domain *domain)
{
	for (size_t n = 0; n < COUNT(layouts); n++)
		for (int call = layouts[n].count == 1 ? REG : REGV; call < CALLS; call++)
			registers(kind, domain, &layouts[n], call);
}

/* One bad buffer, at each place, leaves no region, no key taken, and *mr unchanged. */
static void rollback(const struct kind *kind, struct fid_domain *domain)
{
	struct fid_mr *const untouched = (struct fid_mr *)0x5555;
	struct layout layout = { .length = PAGE, .step = 3 * PAGE };
	const uint64_t live = stats().live;
	char *read_only = pages(1), words[32];
	const int regions = kernel_regions(pair.context);
	const struct { char *bad; size_t count; } rows[] = { { NOWHERE, 2 }, { NOWHERE, LIMIT }, { read_only, 9 } };

	must(mprotect(read_only, PAGE, PROT_READ) == 0);
	for (size_t n = 0; n < COUNT(rows); n++) {
		layout.count = rows[n].count;
		for (size_t bad = 0; bad < rows[n].count; bad++) {
			struct object object = laid_out(&layout, domain);

			about("buffer %zu of %zu is %p", bad, rows[n].count, (void *)rows[n].bad);
			object.iov[bad].iov_base = rows[n].bad;
			object.mr = untouched;
			snprintf(words, sizeof(words), "%p", (void *)rows[n].bad);
			for (enum reg_call call = REGV; call < CALLS; call++) {
				gives(-FI_EFAULT, make(call, &object, KEY, 0));
				holds(strstr(rdmamr_last_reason(), words) && object.mr == untouched && stats().live == live);
			}
			holds(kind->relaxed || kernel_regions(pair.context) == regions);
		}
	}
	/* The key was not taken. */
	must(fi_close(&region(domain, arena, PAGE, FI_ALL, KEY)->fid) == 0 && munmap(read_only, PAGE) == 0);
}

/* --- Rights --- */

/* A transfer that the region's rights allow, or that is refused. */
static void may(bool allowed, int status, int refusal, const char *name)
{
	if (allowed)
		moved(status, "%s", name);
	else
		refused(status, refusal, name);
}

/* The device refuses the rights that were not granted; src/fabric/access.rs has each of them. */
static void rights(const struct kind *kind, struct fid_domain *domain)
{
	/* The documents do not say what the program can do with memory that it has opened to remote peers only. */
	enum { NO, YES, UNSAID };
	static const struct {
		const char *name;
		uint64_t access;
		int source, sink;
		bool read, write;
	} rows[] = {
		{ "no rights", 0, YES, NO, false, false },
		{ "send alone", FI_SEND, YES, NO, false, false },
		{ "recv alone", FI_RECV, UNSAID, YES, false, false },
		{ "all local rights", FI_LOCAL, YES, YES, false, false },
		{ "remote read alone", FI_REMOTE_READ, UNSAID, NO, true, false },
		{ "remote write alone", FI_REMOTE_WRITE, UNSAID, UNSAID, false, true },
		{ "send and remote read", FI_SEND | FI_REMOTE_READ, YES, NO, true, false },
		{ "send and remote write", FI_SEND | FI_REMOTE_WRITE, YES, UNSAID, false, true },
		{ "read and remote write", FI_READ | FI_REMOTE_WRITE, UNSAID, YES, false, true },
		{ "all rights", FI_ALL, YES, YES, true, true },
	};
	for (size_t n = 0; n < COUNT(rows); n++) {
		/* Fresh memory: a relaxed region in the cache may serve for fewer local rights. */
		char *memory = pages(1), *before = local + PAGE;
		uint64_t *counter = (uint64_t *)(memory + 128), *old = (uint64_t *)local, was;
		struct rdmamr_segment there;
		const struct ibv_mr *here = with_desc(source);
		struct fid_mr *mr;

		about("%s", rows[n].name);
		fill(memory, PAGE);
		/* Memory that the program may only read can be sent, and read by remote peers. */
		if (rows[n].sink == NO && !rows[n].write)
			must(mprotect(memory, PAGE, PROT_READ) == 0);
		mr = region(domain, memory, PAGE, rows[n].access, 0x1000 + n);
		there = resolved(domain, fi_mr_key(mr), base_of(kind, memory), PAGE);
		memset(local, 0, PAGE);
		if (rows[n].source == YES) {
			moved(pair_write(&pair, with_desc(mr), memory, PAGE, far.addr, far.rkey), "it is the source of a write");
			ok(!memcmp(memory, local, PAGE), "with its data");
		}
		fill(local, PAGE);
		if (rows[n].sink != UNSAID) {
			may(rows[n].sink == YES, pair_read(&pair, with_desc(mr), memory, PAGE, far.addr, far.rkey),
			    IBV_WC_LOC_PROT_ERR, "a read into it");
			gives(rows[n].sink == YES, !memcmp(memory, local, PAGE));
		}
		memset(local, 0, PAGE);
		may(rows[n].read, pair_read(&pair, here, local, PAGE, there.addr, there.rkey), IBV_WC_REM_ACCESS_ERR, "a remote read");
		holds(rows[n].read ? !memcmp(memory, local, PAGE) : all_zero(local, PAGE));
		if (rows[n].read && !kind->relaxed)
			refused(pair_read(&pair, here, local, 64, there.addr + PAGE - 32, there.rkey), IBV_WC_REM_ACCESS_ERR,
				"a read beyond its end");
		was = *counter;
		may(rows[n].write, pair_fetch_add(&pair, here, old, 3, there.addr + 128, there.rkey), IBV_WC_REM_ACCESS_ERR,
		    "a remote addition");
		holds(rows[n].write ? *old == was && *counter == was + 3 : *counter == was);
		memcpy(before, memory, PAGE);
		fill(local, PAGE);
		may(rows[n].write, pair_write(&pair, here, local, PAGE, there.addr, there.rkey), IBV_WC_REM_ACCESS_ERR,
		    "a remote write");
		holds(!memcmp(memory, rows[n].write ? local : before, PAGE));
		gives(0, fi_close(&mr->fid));
		must(munmap(memory, PAGE) == 0);
	}
}

/* --- Bases that the program chose --- */

static void is_replaced(struct object *object)
{
	struct rdmamr_segment segment;
	size_t count = 1;

	gives(FI_KEY_NOTAVAIL, fi_mr_key(object->mr));
	for (size_t n = 0; n < object->count; n++)
		refused_write(object->iov[n].iov_base, &object->there[n], "a write by its key");
	if (object->key <= UINT32_MAX && object->key != object->there[0].rkey)
		gives(-FI_ENOKEY, rdmamr_resolve(object->domain, object->key, object->base, 64, &segment, &count));
	gives(0, fi_close(&object->mr->fid));
	object->mr = NULL;
}

/* FI_MR_OFFSET: a base that the program chose; a region that lies there is replaced. */
static void bases(const struct kind *kind, struct fid_domain *domain)
{
	const uint64_t flags = kind->provider_keys ? FI_MR_OFFSET : FI_MR_OFFSET | FI_MR_KEY;
	const uint64_t base = 0x7654321 * (uint64_t)PAGE, least = kind->provider_keys ? PAGE : 1;
	enum { SLOT = 6 * PAGE, LAST = 4 * SLOT };
	enum { BOTH, PROVIDER, OWN, VIRTUAL };
	const struct {
		const char *name;
		size_t start, count; /* in the arena; buffers, each two pages behind the one before, SIZE bytes in all */
		uint64_t base, key;
		int want, of; /* the kinds of domain */
		unsigned int replaces; /* a bit for each row */
	} rows[] = {
		{ "the first", 0, 1, base, 41, 0, BOTH, 0 },
		{ "a neighbour above", SLOT, 3, base + SIZE, 42, 0, BOTH, 0 },
		{ "a neighbour below", 2 * SLOT, 1, base - SIZE, 43, 0, BOTH, 0 },
		{ "one that overlaps with two", 3 * SLOT, 1, base + 2 * PAGE, 44, 0, BOTH, 1 << 0 | 1 << 1 },
		{ "unmapped memory replaces nothing", (size_t)(NOWHERE - arena), 1, base, 45, -FI_EFAULT, BOTH, 0 },
		{ "the least overlap", 0, 3, base + 5 * PAGE - least, 45, 0, BOTH, 1 << 3 },
		{ "the key of a replaced region is free", SLOT, 1, base, 44, 0, BOTH, 0 },
		{ "one in place of three pieces", 3 * SLOT, 1, base + 5 * PAGE, 46, 0, BOTH, 1 << 5 },
		{ "where a region without the flag is", 0, 1, (uintptr_t)arena + LAST, 47, 0, VIRTUAL, 0 },
		/* The base and the address need not be equal, except for their offset in the page. */
		{ "not aligned, alike", 24, 1, base + 100 * PAGE + 24, 48, 0, BOTH, 0 },
		{ "not alike in the page", 24, 1, base + 200 * PAGE + 25, 49, -FI_EINVAL, PROVIDER, 0 },
		{ "not alike", 24, 1, 1000003, 49, 0, OWN, 0 },
		{ "where that is, not alike either", 3 * SLOT, 1, 1000000, 50, 0, OWN, 1 << 11 },
	};
	enum { ROWS = COUNT(rows) };
	const uint64_t live = stats().live;
	struct object made[ROWS] = { 0 };
	/* Its addresses may conflict, but it was not made with the flag. */
	struct object plain = laid_out(&(struct layout){ .count = 1, .pieces = 1, .start = LAST, .length = SIZE }, domain);
	int registrations[ROWS];

	plain.base = base_of(kind, plain.iov[0].iov_base);
	must(make(REGV, &plain, 40, 0) == 0 && has_pieces(&plain));
	for (int n = 0; n < ROWS; n++) {
		const struct layout layout = { .count = rows[n].count, .pieces = rows[n].count, .start = rows[n].start,
					       .length = SIZE / rows[n].count, .step = 2 * PAGE };
		struct object *object = &made[n];
		int regions = kernel_regions(pair.context), now;

		if ((rows[n].of == PROVIDER && !kind->provider_keys) || (rows[n].of == OWN && kind->provider_keys) ||
		    (rows[n].of == VIRTUAL && !kind->virtual_addresses))
			continue;
		about("%s", rows[n].name);
		*object = laid_out(&layout, domain);
		object->base = rows[n].base;
		gives(rows[n].want, make(REGV, object, rows[n].key, flags));
		if (rows[n].want)
			holds(!object->mr);
		else
			holds(has_pieces(object) && (kind->provider_keys || fi_mr_key(object->mr) == rows[n].key));
		for (int k = 0; k < n; k++)
			if (rows[n].replaces & 1u << k)
				regions -= registrations[k];
		now = kernel_regions(pair.context);
		registrations[n] = now - regions;
		holds(kind->relaxed || (!object->mr && now == regions) || registrations[n] == (int)rows[n].count ||
		      registrations[n] == 2 * (int)rows[n].count);
		for (int k = 0; k <= n; k++) {
			about("%s: %s", rows[n].name, rows[k].name);
			if (rows[n].replaces & 1u << k)
				is_replaced(&made[k]);
			else if (made[k].mr)
				answers(&made[k]);
		}
		about("%s: a region without the flag", rows[n].name);
		answers(&plain);
	}
	for (int n = 0; n < ROWS; n++)
		must(!made[n].mr || fi_close(&made[n].mr->fid) == 0);
	must(fi_close(&plain.mr->fid) == 0);
	gives(live, stats().live);
}

int main(void)
{
	objects_begin();
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 looks at no iova, and not at every right; iWARP has no atomic operations");
	for (int n = 0; n < KINDS; n++) {
		const struct kind *kind = &kinds[n];
		struct fid_domain *domain = open_kind(pair.pd, kind);

		as_case(all_layouts(kind, domain), "%s: layouts of buffers", kind->name);
		as_case(rollback(kind, domain), "%s: a buffer that fails", kind->name);
		as_case(rights(kind, domain), "%s: rights", kind->name);
		as_case(bases(kind, domain), "%s: addresses of remote peers", kind->name);
		is(fi_close(&domain->fid), 0, "%s: the domain is closed", kind->name);
	}
	return objects_end();
}
