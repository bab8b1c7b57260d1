/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A region of several buffers is one range of addresses, in the buffers' order. Adjoining buffers
 * are merged, others are a kernel region each, and either all of them are registered or none.
 */
#include "../lib/fabric.h"

enum { LIMIT = RDMAMR_MR_IOV_LIMIT, ARENA = 64 * PAGE, KEY = 7 };

static struct pair pair;
static char *arena; /* where the buffers are */
static char *flat;  /* data to send, and data that comes back */
static struct fid_domain *home; /* the domain of `flat`: provider keys and virtual addresses, plain */
static struct fid_mr *flat_mr;

/* Buffers, and the pieces that must result. */
struct layout {
	const char *name;
	size_t count, pieces;
	struct iovec iov[LIMIT + 1];
};

static size_t total(const struct layout *layout)
{
	size_t sum = 0;

	for (size_t n = 0; n < layout->count; n++)
		sum += layout->iov[n].iov_len;
	return sum;
}

/* The buffers one after the other, as a remote peer must see them. */
static void gather(const struct layout *layout, char *to)
{
	for (size_t n = 0; n < layout->count; n++) {
		memcpy(to, layout->iov[n].iov_base, layout->iov[n].iov_len);
		to += layout->iov[n].iov_len;
	}
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

/*
 * The key by which this domain reaches a region: its own, or for a composite without one, that of
 * its raw key.
 */
static uint64_t key_of(struct fid_domain *domain, struct fid_mr *mr, uint64_t *base)
{
	uint8_t raw[2048];
	size_t size = sizeof(raw);
	uint64_t key = fi_mr_key(mr);

	must(fi_mr_raw_attr(mr, base, raw, &size, 0) == 0);
	if (key != FI_KEY_NOTAVAIL)
		return key;
	must(fi_mr_map_raw(domain, *base, raw, size, &key, 0) == 0);
	return key;
}

/* Compares the answer of rdmamr_resolve() with the pieces of the region. */
static void ranges(const struct kind *kind, struct fid_domain *domain, const struct layout *layout,
		   const struct rdmamr_segment *pieces, uint64_t key, uint64_t base, uint32_t only_rkey)
{
	struct rdmamr_segment got[LIMIT + 1];
	const size_t length = total(layout);
	int wrong = 0, over = 0, small = 0, straddling = 0;
	size_t count, ends = 0, end[4 * LIMIT + 4];
	uint64_t border = 0, start[LIMIT];

	for (size_t n = 0; n < layout->pieces; n++) {
		/*
		 * The data shows that the first byte of the piece is at the right place in the device; the
		 * rest must follow from it.
		 */
		count = 1;
		must(rdmamr_resolve(domain, key, base + border, 1, got, &count) == 0 && count == 1);
		start[n] = got[0].addr;
		wrong += got[0].rkey != pieces[n].rkey;
		end[ends++] = border;
		end[ends++] = border + 1;
		end[ends++] = border + pieces[n].length / 2;
		border += pieces[n].length;
		end[ends++] = border - 1;
	}
	end[ends++] = border;
	is((long long)border, (long long)length, "%s, %s: the pieces cover all of it", kind->name, layout->name);
	/* All ranges whose ends are at a border, a byte beside one, or in the middle of a piece. */
	for (size_t pair_of_ends = 0; pair_of_ends < ends * ends; pair_of_ends++) {
		size_t from = end[pair_of_ends / ends], to = end[pair_of_ends % ends], want = 0, at = 0;
		struct rdmamr_segment expected[LIMIT];

		if (from >= to)
			continue;
		for (size_t n = 0; n < layout->pieces; at += pieces[n++].length) {
			size_t first = from > at ? from : at, behind = at + pieces[n].length;

			if (to < behind)
				behind = to;
			if (first < behind)
				expected[want++] = (struct rdmamr_segment){
					.addr = start[n] + (first - at),
					.length = behind - first,
					.rkey = pieces[n].rkey,
				};
		}
		straddling += want > 1;
		count = LIMIT;
		memset(got, 0xee, sizeof(got));
		if (rdmamr_resolve(domain, key, base + from, to - from, got, &count) || count != want) {
			wrong++;
			continue;
		}
		for (size_t n = 0; n < want; n++)
			wrong += got[n].addr != expected[n].addr || got[n].length != expected[n].length ||
				 got[n].rkey != expected[n].rkey;
		/*
		 * One entry too few: the call reports the number that it needs, and writes nothing beyond
		 * the array.
		 */
		count = want - 1;
		memset(got, 0xee, sizeof(got));
		small += rdmamr_resolve(domain, key, base + from, to - from, got, &count) != -FI_ETOOSMALL ||
			 count != want || got[want - 1].rkey != 0xeeeeeeee;
	}
	none(wrong, "%s, %s: ranges of it are the right parts of the right pieces", kind->name, layout->name);
	none(small, "%s, %s: with too little room, they are counted", kind->name, layout->name);
	ok(layout->pieces == 1 || straddling > 10, "%s, %s: %d of them over borders", kind->name, layout->name,
	   straddling);
	count = 0;
	is(rdmamr_resolve(domain, key, base, length, NULL, &count), -FI_ETOOSMALL, "%s, %s: no room at all", kind->name,
	   layout->name);
	is((long long)count, (long long)layout->pieces, "%s, %s: and their number is returned", kind->name, layout->name);

	if (key == only_rkey)
		return; /* an rkey does not name its region's bounds: the device checks them */
#define REFUSED(at, size)                                                                                            \
	do {                                                                                                         \
		count = LIMIT;                                                                                       \
		over += rdmamr_resolve(domain, key, at, size, got, &count) != -FI_EINVAL;                            \
	} while (0)
	REFUSED(base, 0);
	REFUSED(base + length, 1);
	REFUSED(base + length - 1, 2);
	REFUSED(base, length + 1);
	REFUSED(base - 1, 1);
	REFUSED(base - 1, 2);
	REFUSED(base - 1, length);
	REFUSED(base, SIZE_MAX);
	REFUSED(base + 1, SIZE_MAX);
	REFUSED(base + length - 1, SIZE_MAX - length);
	REFUSED(UINT64_MAX, 1);
	REFUSED(UINT64_MAX, 2);
	REFUSED(base ^ (1ULL << 63), 1);
	REFUSED(base + length, 0);
#undef REFUSED
	none(over, "%s, %s: outside, and of length 0, there is nothing", kind->name, layout->name);
}

/*
 * Data as a remote peer moves it, in parts of odd sizes, by single ranges over all, and around each
 * border.
 */
static void data(const struct kind *kind, struct fid_domain *domain, const struct layout *layout, struct fid_mr *mr,
		 const struct rdmamr_segment *pieces, uint64_t key, uint64_t base)
{
	const struct ibv_mr *here = with_desc(flat_mr);
	size_t length = total(layout), done = 0, border = 0, sent = 0;
	char *in = flat, *out = flat + ARENA;
	struct rdmamr_segment far;
	int wrong = 0, atomics = 0;

	memset(arena, 0, ARENA);
	fill(out, length);
	for (size_t part = 1; done < length; done += part, part = (part * 3 + 1) % 3001 + 1) {
		if (part > length - done)
			part = length - done;
		wrong += peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, base + done, here, out + done, part) !=
			 IBV_WC_SUCCESS;
	}
	if (wrong)
		pair_reconnect(&pair);
	none(wrong, "%s, %s: written in parts", kind->name, layout->name);
	gather(layout, in);
	ok(!memcmp(in, out, length), "%s, %s: the buffers have it, in their order", kind->name, layout->name);
	ok(others_zero(layout), "%s, %s: no byte between them has changed", kind->name, layout->name);

	memset(in, 0, length);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_READ, domain, key, base, here, in, length),
	   "%s, %s: read at once", kind->name, layout->name);
	ok(!memcmp(in, out, length), "%s, %s: and it is the same", kind->name, layout->name);

	for (size_t n = 0; n + 1 < layout->pieces; n++) {
		border += pieces[n].length;
		fill(out, 10);
		wrong += peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, base + border - 5, here, out, 10) !=
			 IBV_WC_SUCCESS;
		gather(layout, in);
		wrong += memcmp(in + border - 5, out, 10) != 0;
		memset(in, 0, 10);
		wrong += peer_moves(&pair, IBV_WR_RDMA_READ, domain, key, base + border - 5, here, in, 10) !=
			 IBV_WC_SUCCESS;
		wrong += memcmp(in, out, 10) != 0;
	}
	none(wrong, "%s, %s: data across a border is on both sides of it", kind->name, layout->name);

	border = 0;
	for (size_t n = 0; n < layout->pieces; border += pieces[n++].length) {
		uint64_t *counter = (uint64_t *)((pieces[n].addr + 7) & ~7ULL);
		struct rdmamr_segment at;

		if ((uintptr_t)counter + 8 > pieces[n].addr + pieces[n].length)
			continue;
		at = resolved(domain, key, base + border + ((uintptr_t)counter - pieces[n].addr), 8);
		*counter = 1000 + n;
		wrong += pair_fetch_add(&pair, here, in, n + 1, at.addr, at.rkey) != IBV_WC_SUCCESS ||
			 *(uint64_t *)in != 1000 + n || *counter != 1001 + 2 * n;
		atomics++;
	}
	ok(!wrong && atomics, "%s, %s: added to in %d pieces", kind->name, layout->name, atomics);

	/* The lkeys: the pieces as the sources of writes. */
	far = resolved(home, fi_mr_key(flat_mr), (uintptr_t)flat, ARENA);
	fill(arena, ARENA);
	memset(in, 0, length);
	wrong = 0;
	for (size_t n = 0; n < layout->pieces; sent += pieces[n++].length)
		wrong += pair_write(&pair, with_lkey(pieces[n].lkey), (char *)pieces[n].addr, pieces[n].length,
				    far.addr + sent, far.rkey) != IBV_WC_SUCCESS;
	gather(layout, out);
	if (wrong)
		pair_reconnect(&pair);
	ok(!wrong && !memcmp(in, out, length), "%s, %s: sent by the lkeys of its pieces", kind->name, layout->name);
	ok(layout->pieces == 1 ? fi_mr_desc(mr) == (void *)(uintptr_t)pieces[0].lkey : !fi_mr_desc(mr),
	   "%s, %s: its desc is %s", kind->name, layout->name, layout->pieces == 1 ? "the lkey" : "NULL");
}

/* The device's own bounds of a piece, and the keys after the close. */
static void refused(uint64_t addr, uint32_t rkey, const char *kind, const char *what)
{
	is(pair_read(&pair, with_desc(flat_mr), flat, 8, addr, rkey), IBV_WC_REM_ACCESS_ERR, "%s: %s is refused", kind,
	   what);
	pair_reconnect(&pair);
}

static void registers(const struct kind *kind, struct fid_domain *domain, const struct layout *layout, bool by_attr)
{
	const uint64_t live = stats().live;
	struct fi_mr_attr attr = {
		.mr_iov = layout->iov,
		.iov_count = layout->count,
		.access = FI_ALL,
		.requested_key = KEY,
		.context = &attr,
	};
	struct rdmamr_segment pieces[LIMIT + 1], again[LIMIT + 1], there[LIMIT];
	size_t count = LIMIT, small, border = 0;
	int regions = kernel_regions(pair.context), registrations, wrong = 0, ret;
	uint64_t base = 0, key;
	struct fid_mr *mr = NULL;

	if (by_attr)
		ret = fi_mr_regattr(domain, &attr, 0, &mr);
	else
		ret = fi_mr_regv(domain, layout->iov, layout->count, FI_ALL, 0, KEY, 0, &mr, &attr);
	if (!is(ret, 0, "%s, %s: registered by %s", kind->name, layout->name, by_attr ? "fi_mr_regattr" : "fi_mr_regv"))
		return;
	ok(mr && mr->fid.fclass == FI_CLASS_MR && mr->fid.context == &attr, "%s, %s: is one region", kind->name,
	   layout->name);
	is(rdmamr_mr_segments(mr, pieces, &count), 0, "%s, %s: has pieces", kind->name, layout->name);
	if (!is((long long)count, (long long)layout->pieces, "%s, %s: as many as there are buffers that do not touch",
		kind->name, layout->name))
		return;
	/*
	 * A device knows a byte of a registration by the same address for both sides: if remote peers
	 * count from 0, there may be one for each.
	 */
	registrations = kernel_regions(pair.context) - regions;
	if (!kind->relaxed)
		ok(registrations == (int)layout->pieces ||
		   (registrations == 2 * (int)layout->pieces && !kind->virtual_addresses),
		   "%s, %s: and as many registrations, or one for each side: %d", kind->name, layout->name,
		   registrations);
	for (size_t n = 0, k = 0; n < count; n++) {
		size_t length = 0;

		wrong += pieces[n].addr != (uintptr_t)layout->iov[k].iov_base;
		do
			length += layout->iov[k++].iov_len;
		while (length < pieces[n].length && k < layout->count);
		wrong += pieces[n].length != length || !pieces[n].rkey;
	}
	none(wrong, "%s, %s: whose memory is that of the buffers", kind->name, layout->name);
	for (small = 0; small < count; small++) {
		size_t room = small;

		memset(again, 0xee, sizeof(again));
		wrong += rdmamr_mr_segments(mr, small ? again : NULL, &room) != -FI_ETOOSMALL || room != count ||
			 again[small].lkey != 0xeeeeeeee;
	}
	none(wrong, "%s, %s: with too little room, they are counted", kind->name, layout->name);
	if (kind->provider_keys)
		ok(fi_mr_key(mr) == (count == 1 ? pieces[0].rkey : FI_KEY_NOTAVAIL), "%s, %s: its key is %s",
		   kind->name, layout->name, count == 1 ? "its rkey" : "FI_KEY_NOTAVAIL");
	else
		is((long long)fi_mr_key(mr), KEY, "%s, %s: its key is the requested one", kind->name, layout->name);

	key = key_of(domain, mr, &base);
	is((long long)base, (long long)base_of(kind, layout->iov[0].iov_base), "%s, %s: its base", kind->name,
	   layout->name);
	ranges(kind, domain, layout, pieces, key, base, count == 1 && kind->provider_keys ? pieces[0].rkey : 0);
	data(kind, domain, layout, mr, pieces, key, base);

	for (size_t n = 0; n < layout->pieces; border += pieces[n++].length)
		there[n] = resolved(domain, key, base + border, pieces[n].length);
	if (key > UINT32_MAX)
		is(fi_mr_unmap_key(domain, key), 0, "%s, %s: unmapped", kind->name, layout->name);
	/*
	 * Relaxed regions cover whole pages, and the cache keeps them. (A refusal costs a new
	 * connection, so not every layout makes one.)
	 */
	if (!kind->relaxed && (layout->pieces == 3 || layout->pieces == LIMIT)) {
		refused(there[1].addr + there[1].length - 4, there[1].rkey, kind->name,
			"a read over the end of a piece");
		refused(there[1].addr - 4, there[1].rkey, kind->name, "a read over the start of a piece");
	}
	is(fi_close(&mr->fid), 0, "%s, %s: closed", kind->name, layout->name);
	is((long long)stats().live, (long long)live, "%s, %s: none of it is live", kind->name, layout->name);
	if (!kind->relaxed) {
		is(kernel_regions(pair.context), regions, "%s, %s: nothing is left in the kernel", kind->name,
		   layout->name);
		for (size_t n = 0; n < layout->pieces && (layout->pieces == 3 || layout->pieces == LIMIT); n += 5)
			refused(there[n].addr, there[n].rkey, kind->name, "the closed key of a piece");
	}
}

/*
 * `count` buffers of `length` bytes, `step` bytes from one to the next, the first `start` into the
 * arena.
 */
static struct layout row(const char *name, size_t count, size_t pieces, ptrdiff_t start, size_t length, ptrdiff_t step)
{
	struct layout layout = { .name = name, .count = count, .pieces = pieces };

	for (size_t n = 0; n < count; n++)
		layout.iov[n] = (struct iovec){ arena + start + (ptrdiff_t)n * step, length };
	return layout;
}

static void layouts(const struct kind *kind, struct fid_domain *domain)
{
	char name[LIMIT + 1][60];
	struct layout layout;
	size_t at = 3;

	for (size_t n = 1; n <= LIMIT; n++) {
		snprintf(name[n], sizeof(name[n]), "%zu with gaps", n);
		layout = row(name[n], n, n, 0, PAGE, 3 * PAGE);
		registers(kind, domain, &layout, n % 2);
	}
	for (size_t n = 2; n <= LIMIT; n += n == 4 ? 12 : 1) {
		snprintf(name[n], sizeof(name[n]), "%zu that touch", n);
		layout = row(name[n], n, 1, 0, PAGE, PAGE);
		registers(kind, domain, &layout, n % 2);
	}
	layout = row("one, not aligned", 1, 1, 77, 5000, 0);
	registers(kind, domain, &layout, false);
	layout = row("16 that touch, of odd lengths", LIMIT, 1, 13, 777, 777);
	registers(kind, domain, &layout, false);
	layout = row("16 with gaps of a byte", LIMIT, LIMIT, 5, 776, 777);
	registers(kind, domain, &layout, true);
	/* Only adjoining successors may be merged: the order counts. */
	layout = row("4 that touch, the last first", 4, 4, 8 * PAGE, 2 * PAGE, -2 * PAGE);
	registers(kind, domain, &layout, false);

	/* Pairs, of lengths all different. */
	layout = (struct layout){ .name = "8 pairs", .count = LIMIT, .pieces = 8 };
	for (size_t n = 0; n < LIMIT; n++) {
		layout.iov[n] = (struct iovec){ arena + at, 900 + 111 * n };
		at += layout.iov[n].iov_len + (n % 2 ? 5000 : 0);
	}
	registers(kind, domain, &layout, false);

	/* Two in the middle touch; the ends do not. */
	layout = row("3 of 5 touch", 5, 3, PAGE, 2000, 4000);
	layout.iov[2].iov_base = (char *)layout.iov[1].iov_base + 2000;
	layout.iov[3].iov_base = (char *)layout.iov[2].iov_base + 2000;
	registers(kind, domain, &layout, true);

	/* Up and down again. */
	layout = row("in no order", 6, 6, 0, 1500, 0);
	for (size_t n = 0; n < 6; n++)
		layout.iov[n].iov_base = arena + ((n * 5 + 2) % 6) * 7 * PAGE + n;
	registers(kind, domain, &layout, false);
}

/*
 * The same memory twice, and memory in part: each is a piece, and a remote peer sees it in both
 * places.
 */
static void overlaps(const struct kind *kind, struct fid_domain *domain)
{
	const struct ibv_mr *here = with_desc(flat_mr);
	struct iovec same[3] = { { arena, PAGE }, { arena, PAGE }, { arena + 100, PAGE } };
	struct rdmamr_segment pieces[LIMIT];
	size_t count = LIMIT;
	struct fid_mr *mr = NULL;
	uint64_t base, key;

	is(fi_mr_regv(domain, same, 3, FI_ALL, 0, KEY, 0, &mr, NULL), 0, "%s: the same buffer twice, and a part of it",
	   kind->name);
	must(mr);
	ok(rdmamr_mr_segments(mr, pieces, &count) == 0 && count == 3, "%s: are three pieces", kind->name);
	key = key_of(domain, mr, &base);
	memset(arena, 0, 2 * PAGE);
	fill(flat, PAGE);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, base + PAGE, here, flat, PAGE),
	   "%s: written to the second", kind->name);
	ok(!memcmp(arena, flat, PAGE) && all_zero(arena + PAGE, PAGE), "%s: is in the buffer", kind->name);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_READ, domain, key, base, here, flat + ARENA, 3 * PAGE),
	   "%s: read through all three", kind->name);
	ok(!memcmp(flat + ARENA, arena, PAGE) && !memcmp(flat + ARENA + PAGE, arena, PAGE) &&
	   !memcmp(flat + ARENA + 2 * PAGE, arena + 100, PAGE), "%s: is there in all three", kind->name);
	if (key > UINT32_MAX)
		must(fi_mr_unmap_key(domain, key) == 0);
	is(fi_close(&mr->fid), 0, "%s: closed", kind->name);
}

/* A base that the program chose, and a region that replaces it, pieces and all. */
static void bases(const struct kind *kind, struct fid_domain *domain)
{
	const struct ibv_mr *here = with_desc(flat_mr);
	const uint64_t want = 0x5500000 + (kind->provider_keys ? 0 : 11);
	struct layout layout = row("at a base", 4, 4, 0, PAGE, 2 * PAGE);
	struct rdmamr_segment pieces[4];
	struct fid_mr *mr = NULL, *next = NULL;
	uint64_t base, key, border = 0;
	int regions = kernel_regions(pair.context);

	is(fi_mr_regv(domain, layout.iov, 4, FI_ALL, want, KEY, RDMAMR_MR_OFFSET, &mr, NULL), 0,
	   "%s: registered at a base", kind->name);
	must(mr);
	key = key_of(domain, mr, &base);
	is((long long)base, (long long)want, "%s: that is its base", kind->name);
	memset(arena, 0, ARENA);
	fill(flat, 4 * PAGE);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, want, here, flat, 4 * PAGE),
	   "%s: written at its base", kind->name);
	gather(&layout, flat + ARENA);
	ok(!memcmp(flat, flat + ARENA, 4 * PAGE), "%s: is in the buffers", kind->name);
	for (int n = 0; n < 4; n++, border += PAGE)
		pieces[n] = resolved(domain, key, want + border, PAGE);

	/* The last page of it. */
	is(fi_mr_reg(domain, arena + 32 * PAGE, 2 * PAGE, FI_ALL, 0x5500000 + 3 * PAGE, KEY + 1, RDMAMR_MR_OFFSET,
		     &next, NULL), 0, "%s: a region where its last page is", kind->name);
	must(next);
	ok(fi_mr_key(mr) == FI_KEY_NOTAVAIL, "%s: the composite is replaced: its key is FI_KEY_NOTAVAIL", kind->name);
	if (!kind->relaxed)
		ok(kernel_regions(pair.context) - regions == 1 || kernel_regions(pair.context) - regions == 2,
		   "%s: all its pieces are gone from the kernel", kind->name);
	for (int n = 0; n < 4; n++)
		refused(pieces[n].addr, pieces[n].rkey, kind->name, "the key of a piece that was replaced");
	if (key > UINT32_MAX)
		must(fi_mr_unmap_key(domain, key) == 0);
	is(fi_close(&mr->fid), 0, "%s: the replaced one is closed", kind->name);
	ok(fi_mr_key(next) != FI_KEY_NOTAVAIL, "%s: the other is there", kind->name);
	is(fi_close(&next->fid), 0, "%s: and is closed", kind->name);
}

/*
 * All or nothing: one bad buffer, at each place, leaves no region, no key taken, and *mr
 * unchanged.
 */
static void rollback(const struct kind *kind, struct fid_domain *domain)
{
	struct fid_mr *const untouched = (struct fid_mr *)0x5555;
	const uint64_t live = stats().live;
	char *read_only = pages(1);
	int regions = kernel_regions(pair.context), wrong = 0, left = 0, touched = 0, unnamed = 0;
	struct fid_mr *mr;

	must(mprotect(read_only, PAGE, PROT_READ) == 0);
	for (int readable = 0; readable < 2; readable++) {
		for (size_t count = 2; count <= LIMIT; count += 7) {
			for (size_t bad = 0; bad < count; bad++) {
				struct layout layout = row("", count, 0, 0, PAGE, 3 * PAGE);
				struct fi_mr_attr attr = {
					.mr_iov = layout.iov,
					.iov_count = count,
					.access = FI_ALL,
					.requested_key = KEY,
				};
				char words[32];

				layout.iov[bad].iov_base = readable ? read_only : NOWHERE;
				mr = untouched;
				wrong += fi_mr_regv(domain, layout.iov, count, FI_ALL, 0, KEY, 0, &mr,
						    NULL) != -FI_EFAULT;
				snprintf(words, sizeof(words), "%p", layout.iov[bad].iov_base);
				unnamed += !strstr(rdmamr_last_reason(), words);
				wrong += fi_mr_regattr(domain, &attr, 0, &mr) != -FI_EFAULT;
				touched += mr != untouched;
				left += stats().live != live;
				if (!kind->relaxed)
					left += kernel_regions(pair.context) != regions;
			}
		}
		none(wrong, "%s: with a buffer that is %s, none is registered", kind->name,
		   readable ? "read-only" : "not mapped");
		none(unnamed, "%s: the reason names its address", kind->name);
		none(left, "%s: nothing is left of the other buffers", kind->name);
		none(touched, "%s: *mr is unchanged", kind->name);
	}
	mr = region(domain, arena, PAGE, FI_ALL, KEY);
	ok(mr != NULL, "%s: the key was not taken", kind->name);
	must(fi_close(&mr->fid) == 0 && munmap(read_only, PAGE) == 0);
}

/* More than 16 are refused, adjoining ones too: the limit is on the caller's buffers. */
static void limit(const struct kind *kind, struct fid_domain *domain)
{
	struct fid_mr *const untouched = (struct fid_mr *)0x5555;
	const uint64_t live = stats().live;
	int regions = kernel_regions(pair.context);
	struct layout apart = row("", LIMIT + 1, 0, 0, PAGE, 3 * PAGE), touching = row("", LIMIT + 1, 0, 0, PAGE, PAGE);
	struct layout *cases[] = { &apart, &touching };

	for (int n = 0; n < 2; n++) {
		struct fi_mr_attr attr = { .mr_iov = cases[n]->iov, .iov_count = LIMIT + 1, .access = FI_ALL };
		struct fid_mr *mr = untouched;

		is(fi_mr_regv(domain, cases[n]->iov, LIMIT + 1, FI_ALL, 0, KEY, 0, &mr, NULL), -FI_EINVAL,
		   "%s: 17 buffers that %s are refused", kind->name, n ? "touch" : "do not touch");
		ok(strstr(rdmamr_last_reason(), "17") || strstr(rdmamr_last_reason(), "16"),
		   "%s: for their number: %s", kind->name, rdmamr_last_reason());
		is(fi_mr_regattr(domain, &attr, 0, &mr), -FI_EINVAL, "%s: by fi_mr_regattr too", kind->name);
		ok(mr == untouched && stats().live == live &&
		   (kind->relaxed || kernel_regions(pair.context) == regions), "%s: and nothing is left", kind->name);
	}
}

int main(void)
{
	fabric_begin();
	arena = pages(ARENA / PAGE);
	flat = pages(2 * ARENA / PAGE);
	pair_open(&pair);
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 looks at no iova, and iWARP has no atomic operations");

	home = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	flat_mr = region(home, flat, 2 * ARENA, FI_ALL, 1);
	for (int n = 0; n < KINDS; n++) {
		const struct kind *kind = &kinds[n];
		struct fid_domain *domain = open_kind(pair.pd, kind);

		as_case(layouts(kind, domain), "%s: layouts of buffers", kind->name);
		as_case(overlaps(kind, domain), "%s: buffers that overlap", kind->name);
		as_case(bases(kind, domain), "%s: addresses of remote peers", kind->name);
		as_case(rollback(kind, domain), "%s: a buffer that fails", kind->name);
		as_case(limit(kind, domain), "%s: the limit of buffers", kind->name);
		is(fi_close(&domain->fid), 0, "%s: the domain is closed", kind->name);
	}
	is(fi_close(&flat_mr->fid), 0, "the other end is closed");
	is(fi_close(&home->fid), 0, "and its domain");

	pair_close(&pair);
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
