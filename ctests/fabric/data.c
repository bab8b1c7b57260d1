/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Data lands where a region of the fabric family says, in every kind of domain. Adjoining buffers are merged, others
 * are a kernel region each, all of them or none. Remote peers have the rights that the program gave, until it is closed.
 */
#define RDMAMR_OLD_NAMES
#include "common.h"

enum { LIMIT = RDMAMR_MR_IOV_LIMIT, ARENA = 64 * PAGE, SIZE = 3 * PAGE, KEY = 7 };

static struct pair pair;
static char *arena; /* where the buffers are */
static char *local; /* data to send, and data that comes back */
static struct fid_domain *home; /* of `local`: provider keys and virtual addresses, plain */
static struct fid_mr *source;   /* `local`, as large as the arena twice */
static struct rdmamr_segment far;

/* Its context is `pair`. */
static int make(enum reg_call call, struct fid_domain *domain, const struct iovec *iov, size_t count, uint64_t offset, uint64_t key,
		uint64_t flags, struct fid_mr **mr)
{
	return make_region(call, domain, iov, count, FI_ALL, offset, key, flags, mr, &pair);
}

/* A request that must fail breaks the connection: each gets a new one. */
static void refused(int status, int want, const char *name)
{
	is(status, want, "%s is refused", name);
	pair_reconnect(&pair);
}

/* A write that must be refused, and leave the memory unchanged. */
static void refused_write(char *memory, uint64_t addr, uint32_t rkey, const char *name)
{
	char before[64];

	memcpy(before, memory, 64);
	memset(local, ~memory[0], 64);
	refused(pair_write(&pair, with_desc(source), local, 64, addr, rkey), IBV_WC_REM_ACCESS_ERR, name);
	ok(!memcmp(memory, before, 64), "%s: nothing was written", name);
}

/* --- Layouts of buffers --- */

/* Buffers, and the number of pieces that must result. */
struct layout {
	const char *name;
	size_t count, pieces;
	/* Each of `length` bytes, `step` bytes from one to the next, the first `start` into the arena. */
	size_t start, length;
	ptrdiff_t step;
	/* A refusal costs a new connection, so not every layout makes one. */
	bool refusals;
	struct iovec iov[LIMIT + 1];
};

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

static struct layout laid_out(struct layout layout)
{
	for (size_t n = 0; n < layout.count; n++)
		layout.iov[n] = (struct iovec){ arena + layout.start + (ptrdiff_t)n * layout.step, layout.length };
	return layout;
}

/* The bytes of the arena that are in no buffer. */
static bool others_zero(const struct layout *layout)
{
	static char copy[ARENA];

	memcpy(copy, arena, ARENA);
	for (size_t n = 0; n < layout->count; n++)
		memset(copy + ((char *)layout->iov[n].iov_base - arena), 0, layout->iov[n].iov_len);
	return all_zero(copy, ARENA);
}

/* A region that is being checked: its key leads this domain to it, its own or that of its raw key. */
struct object {
	const struct layout *layout;
	struct fid_domain *domain;
	struct fid_mr *mr;
	struct rdmamr_segment pieces[LIMIT];
	size_t length;
	uint64_t key, base;
};

static void find_key(struct object *object)
{
	uint8_t raw[2048];
	size_t size = sizeof(raw);

	object->key = fi_mr_key(object->mr);
	must(fi_mr_raw_attr(object->mr, &object->base, raw, &size, 0) == 0);
	if (object->key == FI_KEY_NOTAVAIL)
		must(fi_mr_map_raw(object->domain, object->base, raw, size, &object->key, 0) == 0);
}

/* Lets the key go if it is that of a raw key. */
static void forget_key(struct object *object)
{
	if (object->key > UINT32_MAX)
		gives(0, fi_mr_unmap_key(object->domain, object->key));
}

static int move(const struct object *object, enum ibv_wr_opcode opcode, uint64_t at, char *memory, size_t length)
{
	return peer_moves(&pair, opcode, object->domain, object->key, object->base + at, with_desc(source), memory, length);
}

/* The answer of rdmamr_resolve() for all of the region. src/fabric/segment.rs has each range, and those outside. */
static void ranges(const struct object *object)
{
	const size_t pieces = object->layout->pieces, length = object->length;
	const uint64_t base = object->base, key = object->key;
	struct rdmamr_segment got[LIMIT + 1];
	size_t count = LIMIT;

	gives(0, rdmamr_resolve(object->domain, key, base, length, got, &count));
	if (!gives(pieces, count))
		return;
	for (size_t n = 0; n < pieces; n++)
		holds(got[n].length == object->pieces[n].length && got[n].rkey == object->pieces[n].rkey);
	/* One entry too few: the call reports the number that it needs, and writes nothing beyond the array. */
	count = pieces - 1;
	memset(got, 0xee, sizeof(got));
	gives(-FI_ETOOSMALL, rdmamr_resolve(object->domain, key, base, length, count ? got : NULL, &count));
	holds(count == pieces && got[pieces - 1].rkey == 0xeeeeeeee);
	/* An rkey does not name its region's bounds: the device checks them. */
	if (key != object->pieces[0].rkey)
		gives(-FI_EINVAL, rdmamr_resolve(object->domain, key, base, length + 1, got, &count));
}

/* The pieces' memory by their lkeys: what writes send, or where reads put data. */
static void by_lkeys(const struct object *object, bool sends)
{
	char *out = local + ARENA;
	size_t border = 0;

	for (size_t n = 0; n < object->layout->pieces; border += object->pieces[n++].length) {
		const struct rdmamr_segment *piece = &object->pieces[n];
		const struct ibv_mr *own = with_lkey(piece->lkey);
		char *at = (char *)piece->addr;

		moved(&pair, sends ? pair_write(&pair, own, at, piece->length, far.addr + border, far.rkey) :
				     pair_read(&pair, own, at, piece->length, far.addr + border, far.rkey),
		      "%s by the lkey of piece %zu", sends ? "sent" : "read into", n);
	}
	gather(object->layout->iov, object->layout->count, out);
	ok(!memcmp(local, out, object->length), "%s by the lkeys of its pieces", sends ? "sent" : "read into");
}

/* Data as a remote peer moves it, in parts that cross the borders, and at once; and by the pieces' lkeys. */
static void data(const struct object *object)
{
	const struct layout *layout = object->layout;
	const size_t length = object->length;
	char *in = local, *out = local + ARENA;

	memset(arena, 0, ARENA);
	fill(out, length);
	for (size_t done = 0, part = 1; done < length; done += part, part = (part * 3 + 1) % 3001 + 1) {
		if (part > length - done)
			part = length - done;
		moved(&pair, move(object, IBV_WR_RDMA_WRITE, done, out + done, part), "written at %zu", done);
	}
	gather(layout->iov, layout->count, in);
	ok(!memcmp(in, out, length), "the buffers have it, in their order");
	ok(others_zero(layout), "no byte beside them has changed");
	memset(in, 0, length);
	moved(&pair, move(object, IBV_WR_RDMA_READ, 0, in, length), "read at once");
	ok(!memcmp(in, out, length), "and it is the same");

	fill(arena, ARENA);
	memset(in, 0, length);
	by_lkeys(object, true);
	fill(in, length);
	by_lkeys(object, false);
}

/* Checks a region from its registration to its end. */
static void registers(const struct kind *kind, struct fid_domain *domain, const struct layout *row, enum reg_call call)
{
	const struct layout layout = laid_out(*row);
	const uint64_t live = stats().live;
	const int regions = kernel_regions(pair.context), pieces = (int)layout.pieces;
	struct object object = { .layout = &layout, .domain = domain, .length = gather(layout.iov, layout.count, NULL) };
	struct rdmamr_segment again[LIMIT + 1], there[LIMIT];
	size_t count = LIMIT, border = 0, room;
	struct fid_mr *mr = NULL;
	int made;

	about("%s, %s", layout.name, calls[call]);
	gives(0, make(call, domain, layout.iov, layout.count, 0, KEY, 0, &mr));
	must(mr);
	object.mr = mr;
	holds(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == &pair && mr->fid.ops);
	gives(0, rdmamr_mr_segments(mr, object.pieces, &count));
	if (!gives(pieces, count))
		return;
	/* A device has one address for a byte: if peers count from 0, there may be a registration for each side. */
	made = kernel_regions(pair.context) - regions;
	holds(kind->relaxed || made == pieces || (made == 2 * pieces && !kind->virtual_addresses));
	for (size_t n = 0, k = 0; n < count; n++) {
		size_t length = 0;

		holds(object.pieces[n].addr == (uintptr_t)layout.iov[k].iov_base);
		do
			length += layout.iov[k++].iov_len;
		while (length < object.pieces[n].length && k < layout.count);
		holds(object.pieces[n].length == length && object.pieces[n].rkey);
	}
	room = count - 1;
	memset(again, 0xee, sizeof(again));
	gives(-FI_ETOOSMALL, rdmamr_mr_segments(mr, room ? again : NULL, &room));
	holds(room == count && again[count - 1].lkey == 0xeeeeeeee);
	gives(!kind->provider_keys ? KEY : count == 1 ? object.pieces[0].rkey : FI_KEY_NOTAVAIL, fi_mr_key(mr));
	gives(count == 1 ? object.pieces[0].lkey : 0, (uintptr_t)fi_mr_desc(mr));

	find_key(&object);
	gives(base_of(kind, layout.iov[0].iov_base), object.base);
	ranges(&object);
	data(&object);
	for (size_t n = 0; n < count; border += object.pieces[n++].length)
		there[n] = resolved(domain, object.key, object.base + border, object.pieces[n].length);
	if (count == 1)
		is((long long)there[0].addr, (long long)(kind->provider_keys || kind->virtual_addresses || kind->relaxed ?
		   (uintptr_t)layout.iov[0].iov_base : (uintptr_t)layout.iov[0].iov_base % PAGE),
		   "the device's address is the virtual one, or the offset into the first page");
	forget_key(&object);
	/* Relaxed regions cover whole pages, and the cache keeps them. */
	if (layout.refusals && !kind->relaxed) {
		const struct rdmamr_segment last = there[count / 2];

		refused(pair_read(&pair, with_desc(source), local, 8, last.addr + last.length - 4, last.rkey),
			IBV_WC_REM_ACCESS_ERR, "a read over the end of a piece");
		refused(pair_read(&pair, with_desc(source), local, 8, last.addr - 4, last.rkey), IBV_WC_REM_ACCESS_ERR,
			"a read over the start of a piece");
	}
	gives(0, fi_close(&mr->fid));
	gives(live, stats().live);
	if (!kind->provider_keys)
		gives(-FI_ENOKEY, rdmamr_resolve(domain, KEY, object.base, 1, again, &count));
	if (kind->relaxed)
		return;
	gives(regions, kernel_regions(pair.context));
	for (size_t n = 0; layout.refusals && n < layout.pieces; n += 5)
		refused_write(layout.iov[0].iov_base, there[n].addr, there[n].rkey, "a write by the closed key of a piece");
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
	const uint64_t live = stats().live;
	char *read_only = pages(1), words[32];
	const int regions = kernel_regions(pair.context);
	const struct { char *bad; size_t count; } rows[] = { { NOWHERE, 2 }, { NOWHERE, LIMIT }, { read_only, 9 } };
	struct fid_mr *mr = untouched;

	must(mprotect(read_only, PAGE, PROT_READ) == 0);
	for (size_t n = 0; n < COUNT(rows); n++) {
		for (size_t bad = 0; bad < rows[n].count; bad++) {
			struct layout layout = laid_out((struct layout){ .count = rows[n].count, .length = PAGE, .step = 3 * PAGE });

			about("buffer %zu of %zu is %p", bad, rows[n].count, (void *)rows[n].bad);
			layout.iov[bad].iov_base = rows[n].bad;
			snprintf(words, sizeof(words), "%p", (void *)rows[n].bad);
			for (enum reg_call call = REGV; call < CALLS; call++) {
				gives(-FI_EFAULT, make(call, domain, layout.iov, rows[n].count, 0, KEY, 0, &mr));
				holds(strstr(rdmamr_last_reason(), words) && mr == untouched && stats().live == live);
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
		moved(&pair, status, "%s", name);
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
			moved(&pair, pair_write(&pair, with_desc(mr), memory, PAGE, far.addr, far.rkey), "it is the source of a write");
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

enum { PIECES = 3, SLOT = 6 * PAGE };

/* A region of SIZE bytes in `count` pieces, each two pages behind the one before. */
struct based {
	struct fid_mr *mr;
	char *memory;
	size_t count;
	uint64_t key, base;
	struct rdmamr_segment was[PIECES];
	int registrations;
};

static int at_base(struct based *based, struct fid_domain *domain, uint64_t key, uint64_t flags)
{
	struct iovec iov[PIECES];
	int ret;

	for (size_t n = 0; n < based->count; n++)
		iov[n] = (struct iovec){ based->memory + 2 * n * PAGE, SIZE / based->count };
	ret = make(REGV, domain, iov, based->count, based->base, key, flags, &based->mr);
	based->key = ret ? 0 : fi_mr_key(based->mr);
	return ret;
}

/* A region answers at its base: a write there lands in the memory, a read gets it back. */
static void answers(struct fid_domain *domain, struct based *based)
{
	const size_t part = SIZE / based->count;
	struct object object = { .domain = domain, .mr = based->mr };
	struct rdmamr_segment segment, own[PIECES];
	size_t count = PIECES;

	find_key(&object);
	gives(based->base, object.base);
	fill(local, SIZE);
	moved(&pair, move(&object, IBV_WR_RDMA_WRITE, 0, local, SIZE), "written at its base");
	for (size_t n = 0; n < based->count; n++) {
		holds(!memcmp(local + n * part, based->memory + 2 * n * PAGE, part));
		based->was[n] = resolved(domain, object.key, based->base + n * part, 64);
	}
	memset(local + SIZE, 0, SIZE);
	moved(&pair, move(&object, IBV_WR_RDMA_READ, 100, local + SIZE, 1000), "read behind its base");
	holds(!memcmp(local + SIZE, local + 100, 1000));
	if (object.key != based->was[0].rkey) {
		gives(-FI_EINVAL, rdmamr_resolve(domain, object.key, based->base - 1, 1, &segment, &count));
		gives(-FI_EINVAL, rdmamr_resolve(domain, object.key, based->base + SIZE - 1, 2, &segment, &count));
	}
	forget_key(&object);
	/* The process itself uses the virtual addresses. */
	count = PIECES;
	must(rdmamr_mr_segments(based->mr, own, &count) == 0 && count == based->count);
	for (size_t n = 0; n < count; n++) {
		holds(own[n].addr == (uintptr_t)based->memory + 2 * n * PAGE);
		fill((char *)own[n].addr, part);
		moved(&pair, pair_write(&pair, with_lkey(own[n].lkey), (char *)own[n].addr, part, far.addr, far.rkey), "sent");
		holds(!memcmp((char *)own[n].addr, local, part));
	}
}

static void is_replaced(struct fid_domain *domain, struct based *based)
{
	struct rdmamr_segment segment;
	size_t count = 1;

	gives(FI_KEY_NOTAVAIL, fi_mr_key(based->mr));
	for (size_t n = 0; n < based->count; n++)
		refused_write(based->memory + 2 * n * PAGE, based->was[n].addr, based->was[n].rkey, "a write by its key");
	if (based->key != based->was[0].rkey && based->key != FI_KEY_NOTAVAIL)
		gives(-FI_ENOKEY, rdmamr_resolve(domain, based->key, based->base, 64, &segment, &count));
	gives(0, fi_close(&based->mr->fid));
	based->mr = NULL;
}

/* FI_MR_OFFSET: a base that the program chose; a region that lies there is replaced. */
static void bases(const struct kind *kind, struct fid_domain *domain)
{
	const uint64_t flags = kind->provider_keys ? FI_MR_OFFSET : FI_MR_OFFSET | FI_MR_KEY;
	const uint64_t base = 0x7654321 * (uint64_t)PAGE, least = kind->provider_keys ? PAGE : 1;
	char *memory = pages(5 * SLOT / PAGE), *last = memory + 4 * SLOT;
	enum { BOTH, PROVIDER, OWN, VIRTUAL };
	const struct {
		const char *name;
		char *memory;
		size_t count;
		uint64_t base, key;
		int want, of; /* the kinds of domain */
		unsigned int replaces; /* a bit for each row */
	} rows[] = {
		{ "the first", memory, 1, base, 41, 0, BOTH, 0 },
		{ "a neighbour above", memory + SLOT, PIECES, base + SIZE, 42, 0, BOTH, 0 },
		{ "a neighbour below", memory + 2 * SLOT, 1, base - SIZE, 43, 0, BOTH, 0 },
		{ "one that overlaps with two", memory + 3 * SLOT, 1, base + 2 * PAGE, 44, 0, BOTH, 1 << 0 | 1 << 1 },
		{ "unmapped memory replaces nothing", NOWHERE, 1, base, 45, -FI_EFAULT, BOTH, 0 },
		{ "the least overlap", memory, PIECES, base + 5 * PAGE - least, 45, 0, BOTH, 1 << 3 },
		{ "the key of a replaced region is free", memory + SLOT, 1, base, 44, 0, BOTH, 0 },
		{ "one in place of three pieces", memory + 3 * SLOT, 1, base + 5 * PAGE, 46, 0, BOTH, 1 << 5 },
		{ "where a region without the flag is", memory, 1, (uintptr_t)last, 47, 0, VIRTUAL, 0 },
		/* The base and the address need not be equal, except for their offset in the page. */
		{ "not aligned, alike", memory + 24, 1, base + 100 * PAGE + 24, 48, 0, BOTH, 0 },
		{ "not alike in the page", memory + 24, 1, base + 200 * PAGE + 25, 49, -FI_EINVAL, PROVIDER, 0 },
		{ "not alike", memory + 24, 1, 1000003, 49, 0, OWN, 0 },
		{ "where that is, not alike either", memory + 3 * SLOT, 1, 1000000, 50, 0, OWN, 1 << 11 },
	};
	enum { ROWS = COUNT(rows) };
	const uint64_t live = stats().live;
	struct based made[ROWS] = { 0 };
	/* Its addresses may conflict, but it was not made with the flag. */
	struct based plain = { .memory = last, .count = 1, .base = 0 };

	plain.mr = region(domain, last, SIZE, FI_ALL, 40);
	plain.base = base_of(kind, last);
	for (int n = 0; n < ROWS; n++) {
		struct based *based = &made[n];
		int regions = kernel_regions(pair.context), now;

		if ((rows[n].of == PROVIDER && !kind->provider_keys) || (rows[n].of == OWN && kind->provider_keys) ||
		    (rows[n].of == VIRTUAL && !kind->virtual_addresses))
			continue;
		about("%s", rows[n].name);
		*based = (struct based){ .memory = rows[n].memory, .count = rows[n].count, .base = rows[n].base };
		gives(rows[n].want, at_base(based, domain, rows[n].key, flags));
		if (rows[n].want) {
			holds(!based->mr);
		} else if (!kind->provider_keys) {
			gives(rows[n].key, based->key);
		}
		for (int k = 0; k < n; k++)
			if (rows[n].replaces & 1u << k)
				regions -= made[k].registrations;
		now = kernel_regions(pair.context);
		based->registrations = now - regions;
		holds(kind->relaxed || (!based->mr && now == regions) || based->registrations == (int)rows[n].count ||
		      based->registrations == 2 * (int)rows[n].count);
		for (int k = 0; k <= n; k++) {
			about("%s: %s", rows[n].name, rows[k].name);
			if (rows[n].replaces & 1u << k)
				is_replaced(domain, &made[k]);
			else if (made[k].mr)
				answers(domain, &made[k]);
		}
		about("%s: a region without the flag", rows[n].name);
		answers(domain, &plain);
	}
	for (int n = 0; n < ROWS; n++)
		must(!made[n].mr || fi_close(&made[n].mr->fid) == 0);
	must(fi_close(&plain.mr->fid) == 0);
	gives(live, stats().live);
	must(munmap(memory, 5 * SLOT) == 0);
}

int main(void)
{
	uint64_t passed_on;

	fabric_begin();
	arena = pages(ARENA / PAGE);
	local = pages(2 * ARENA / PAGE);
	pair_open(&pair);
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 looks at no iova, and not at every right; iWARP has no atomic operations");
	passed_on = stats().reg_next;
	home = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	source = region(home, local, 2 * ARENA, FI_ALL, 1);
	far = resolved(home, fi_mr_key(source), (uintptr_t)local, 2 * ARENA);

	for (int n = 0; n < KINDS; n++) {
		const struct kind *kind = &kinds[n];
		struct fid_domain *domain = open_kind(pair.pd, kind);

		as_case(all_layouts(kind, domain), "%s: layouts of buffers", kind->name);
		as_case(rollback(kind, domain), "%s: a buffer that fails", kind->name);
		as_case(rights(kind, domain), "%s: rights", kind->name);
		as_case(bases(kind, domain), "%s: addresses of remote peers", kind->name);
		is(fi_close(&domain->fid), 0, "%s: the domain is closed", kind->name);
	}

	gives(0, fi_close(&source->fid));
	gives(0, fi_close(&home->fid));
	pair_close(&pair);
	is((long long)stats().reg_next, (long long)passed_on, "the library made every registration");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
