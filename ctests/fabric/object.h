/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Regions that are checked whole: their buffers, their pieces, and data by their keys. */
#ifndef CTESTS_FABRIC_OBJECT_H
#define CTESTS_FABRIC_OBJECT_H

#include "common.h"

enum { LIMIT = RDMAMR_MR_IOV_LIMIT, ARENA = 64 * PAGE };

static struct pair pair;
static char *arena; /* where the buffers are */
static char *local; /* data to send, and data that comes back; as large as the arena twice */
static struct fid_domain *home; /* of `local`: provider keys and virtual addresses, plain */
static struct fid_mr *source;   /* `local` */
static struct rdmamr_segment far;

/* First in main. */
static inline void objects_begin(void)
{
	fabric_begin();
	arena = pages(ARENA / PAGE);
	local = pages(2 * ARENA / PAGE);
	pair_open(&pair);
	home = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	source = region(home, local, 2 * ARENA, FI_ALL, 1);
	far = resolved(home, fi_mr_key(source), (uintptr_t)local, 2 * ARENA);
}

static inline int objects_end(void)
{
	gives(0, fi_close(&source->fid));
	gives(0, fi_close(&home->fid));
	pair_close(&pair);
	is((long long)stats().reg_next, 0, "the library made every registration");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}

/* Buffers of `length` bytes, `step` bytes from one to the next, the first `start` into the arena. */
struct layout {
	const char *name;
	size_t count, pieces; /* the number of pieces that must result */
	size_t start, length;
	ptrdiff_t step;
	bool refusals; /* a refusal costs a new connection, so not every layout makes one */
};

struct object {
	struct iovec iov[LIMIT];
	size_t count, pieces, length;
	struct fid_domain *domain;
	struct fid_mr *mr;
	uint64_t base, key; /* these lead the domain to it */
	struct rdmamr_segment own[LIMIT], there[LIMIT]; /* its pieces, for the process and for peers */
};

static inline struct object laid_out(const struct layout *layout, struct fid_domain *domain)
{
	struct object object = { .count = layout->count, .pieces = layout->pieces, .domain = domain };

	for (size_t n = 0; n < layout->count; n++)
		object.iov[n] = (struct iovec){ arena + layout->start + (ptrdiff_t)n * layout->step, layout->length };
	object.length = layout->count * layout->length;
	return object;
}

/* Copies the buffers one after the other, as a remote peer must see them. */
static inline void gather(const struct object *object, char *to)
{
	for (size_t n = 0; n < object->count; to += object->iov[n++].iov_len)
		memcpy(to, object->iov[n].iov_base, object->iov[n].iov_len);
}

/* Its pieces for the process: runs of adjoining buffers, at their own addresses. False if their number is wrong. */
static inline bool has_pieces(struct object *object)
{
	size_t count = LIMIT;

	gives(0, rdmamr_mr_segments(object->mr, object->own, &count));
	if (!gives(object->pieces, count))
		return false;
	for (size_t n = 0, k = 0; n < count; n++) {
		size_t length = 0;

		holds(object->own[n].addr == (uintptr_t)object->iov[k].iov_base);
		do
			length += object->iov[k++].iov_len;
		while (length < object->own[n].length && k < object->count);
		holds(object->own[n].length == length && object->own[n].rkey);
	}
	return true;
}

/* Finds the key by which its domain reaches it: its own, or one of its raw key. */
static inline void find_key(struct object *object)
{
	uint8_t raw[2048];
	size_t size = sizeof(raw);
	uint64_t base;

	object->key = fi_mr_key(object->mr);
	must(fi_mr_raw_attr(object->mr, &base, raw, &size, 0) == 0);
	gives(object->base, base);
	if (object->key == FI_KEY_NOTAVAIL)
		must(fi_mr_map_raw(object->domain, base, raw, size, &object->key, 0) == 0);
}

/* The answers of rdmamr_resolve() at its bounds. src/fabric/segment.rs has each range, and those outside. */
static inline void ranges(struct object *object)
{
	const size_t pieces = object->pieces, length = object->length;
	const uint64_t base = object->base, key = object->key;
	struct rdmamr_segment got[LIMIT];
	size_t count = LIMIT;

	gives(0, rdmamr_resolve(object->domain, key, base, length, object->there, &count));
	if (!gives(pieces, count))
		return;
	for (size_t n = 0; n < pieces; n++)
		holds(object->there[n].length == object->own[n].length && object->there[n].rkey == object->own[n].rkey);
	/* One entry too few: the call reports the number that it needs, and writes nothing beyond the array. */
	count = pieces - 1;
	memset(got, 0xee, sizeof(got));
	gives(-FI_ETOOSMALL, rdmamr_resolve(object->domain, key, base, length, count ? got : NULL, &count));
	holds(count == pieces && got[pieces - 1].rkey == 0xeeeeeeee);
	/* An rkey does not name its region's bounds: the device checks them. */
	if (key != object->own[0].rkey) {
		gives(-FI_EINVAL, rdmamr_resolve(object->domain, key, base - 1, 1, got, &count));
		gives(-FI_EINVAL, rdmamr_resolve(object->domain, key, base, length + 1, got, &count));
	}
}

/* On iWARP a write is complete when it is sent; a read behind it shows its arrival. */
static inline int arrived(int status)
{
	const size_t end = 2 * ARENA - 8;

	if (status != IBV_WC_SUCCESS || !pair.iwarp)
		return status;
	return pair_read(&pair, with_desc(source), local + end, 8, far.addr + end, far.rkey);
}

/* Checks that data moved, and connects the pair anew if it did not: an error ends the connection. */
#define moved(status, ...)                                                     \
	do {                                                                   \
		if (!is(status, IBV_WC_SUCCESS, __VA_ARGS__))                  \
			pair_reconnect(&pair);                                 \
	} while (0)

/* Moves a range as a remote peer does, a request for each segment. The first status that is none of success; -1. */
static inline int move(const struct object *object, enum ibv_wr_opcode opcode, uint64_t at, char *memory, size_t length)
{
	const struct ibv_mr *own = with_desc(source);
	struct rdmamr_segment to[LIMIT];
	size_t count = LIMIT, sum = 0;
	int status = -1;

	if (!gives(0, rdmamr_resolve(object->domain, object->key, object->base + at, length, to, &count)))
		return -1;
	for (size_t n = 0; n < count; sum += to[n++].length) {
		if (sum + to[n].length > length)
			return -1;
		status = opcode == IBV_WR_RDMA_READ ?
			pair_read(&pair, own, memory + sum, to[n].length, to[n].addr, to[n].rkey) :
			pair_write(&pair, own, memory + sum, to[n].length, to[n].addr, to[n].rkey);
		if (status != IBV_WC_SUCCESS)
			return status;
	}
	return sum == length ? status : -1;
}

/* Data by the lkeys of its pieces: what writes send, or where reads put it. */
static inline void by_lkeys(const struct object *object, bool sends)
{
	char *out = local + ARENA;
	size_t border = 0;

	for (size_t n = 0; n < object->pieces; border += object->own[n++].length) {
		const struct rdmamr_segment *piece = &object->own[n];
		const struct ibv_mr *own = with_lkey(piece->lkey);
		char *at = (char *)piece->addr;

		moved(sends ? arrived(pair_write(&pair, own, at, piece->length, far.addr + border, far.rkey)) :
				     pair_read(&pair, own, at, piece->length, far.addr + border, far.rkey),
		      "%s by the lkey of piece %zu", sends ? "sent" : "read into", n);
	}
	gather(object, out);
	ok(!memcmp(local, out, object->length), "%s by the lkeys of its pieces", sends ? "sent" : "read into");
}

/* The bytes of the arena that are in no buffer. */
static inline bool others_zero(const struct object *object)
{
	static char copy[ARENA];

	memcpy(copy, arena, ARENA);
	for (size_t n = 0; n < object->count; n++)
		memset(copy + ((char *)object->iov[n].iov_base - arena), 0, object->iov[n].iov_len);
	return all_zero(copy, ARENA);
}

/* Data as a remote peer moves it, in parts that cross the borders, and at once; and by the pieces' lkeys. */
static inline void data(const struct object *object)
{
	const size_t length = object->length;
	char *in = local, *out = local + ARENA;

	memset(arena, 0, ARENA);
	fill(out, length);
	for (size_t done = 0, part = 1; done < length; done += part, part = (part * 3 + 1) % 3001 + 1) {
		part = part > length - done ? length - done : part;
		moved(arrived(move(object, IBV_WR_RDMA_WRITE, done, out + done, part)), "written at %zu", done);
	}
	gather(object, in);
	ok(!memcmp(in, out, length), "the buffers have it, in their order");
	ok(others_zero(object), "no byte beside them has changed");
	memset(in, 0, length);
	moved(move(object, IBV_WR_RDMA_READ, 0, in, length), "read at once");
	ok(!memcmp(in, out, length), "and it is the same");

	fill(arena, ARENA);
	memset(in, 0, length);
	by_lkeys(object, true);
	fill(in, length);
	by_lkeys(object, false);
}

/* Its domain reaches it by its key. */
static inline void answers(struct object *object)
{
	find_key(object);
	ranges(object);
	data(object);
	/* A key of its own has 32 bits. */
	if (object->key > UINT32_MAX)
		gives(0, fi_mr_unmap_key(object->domain, object->key));
}

#endif
