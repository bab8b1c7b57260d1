/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Data lands where a region of the fabric family says, in every kind of domain. Remote peers have
 * the rights that the program gave, and no others. Keys are refused when their region is closed or
 * replaced.
 */
#define RDMAMR_OLD_NAMES
#include "../lib/fabric.h"

enum { SIZE = 3 * PAGE };

enum call { REG, REGV, REGATTR, CALLS };
static const char *const calls[] = { "fi_mr_reg", "fi_mr_regv", "fi_mr_regattr" };

static struct pair pair;
static char *local, *remote;
static struct fid_domain *home; /* of the other end of each transfer: provider keys and virtual addresses, plain */

/*
 * One region by any of the three calls; for those that take several buffers, by two adjoining
 * ones.
 */
static int make(enum call call, struct fid_domain *domain, char *buf, size_t length, uint64_t access, uint64_t offset,
		uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	struct iovec iov[2] = { { buf, 100 }, { buf + 100, length - 100 } };
	struct fi_mr_attr attr = {
		.mr_iov = iov,
		.iov_count = 2,
		.access = access,
		.offset = offset,
		.requested_key = key,
		.context = context,
	};

	switch (call) {
	case REG: return fi_mr_reg(domain, buf, length, access, offset, key, flags, mr, context);
	case REGV: return fi_mr_regv(domain, iov, 2, access, offset, key, flags, mr, context);
	default: return fi_mr_regattr(domain, &attr, flags, mr);
	}
}

/* A request that must fail breaks the connection: each gets a new one. */
static void refused(int status, int want, const char *name)
{
	is(status, want, "%s is refused (%s)", name,
	   status < 0 ? "no answer" : ibv_wc_status_str((enum ibv_wc_status)status));
	pair_reconnect(&pair);
}

/* A write that must be refused, and leave the memory unchanged. */
static void refused_write(struct fid_mr *source, char *memory, uint64_t addr, uint32_t rkey, const char *name)
{
	char before[64];
	int status;

	memcpy(before, memory, 64);
	memset(local, ~memory[0], 64);
	status = pair_write(&pair, with_desc(source), local, 64, addr, rkey);
	refused(status, IBV_WC_REM_ACCESS_ERR, name);
	ok(!memcmp(memory, before, 64), "%s: nothing was written", name);
}

/* Registers `skew` bytes into `remote`, and writes, reads and adds as a remote peer. */
static void moves(const struct kind *kind, struct fid_domain *domain, struct fid_mr *source, enum call call,
		  size_t skew)
{
	uint64_t key = 0xfeed000000ULL + call, live = stats().live, at;
	size_t length = SIZE - 2 * skew, count = 1;
	const struct ibv_mr *here = with_desc(source);
	int regions = kernel_regions(pair.context);
	char name[100], *memory = remote + skew;
	struct rdmamr_segment segment = { 0 }, own = { 0 };
	uint64_t *counter, *old = (uint64_t *)local;
	struct fid_mr *mr = NULL;
	int status;

	snprintf(name, sizeof(name), "%s, %s, %zu into the page", kind->name, calls[call], skew);
	if (!is(make(call, domain, memory, length, FI_ALL, 0, key, 0, &mr, name), 0, "%s: registered", name))
		return;
	ok(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == name && mr->fid.ops,
	   "%s: is a region with the call's context", name);
	if (!kind->relaxed) {
		int one = kernel_regions(pair.context) - regions;

		/* A device knows a byte of a registration by the same address for both sides. */
		ok(one == 1 || (one == 2 && !kind->virtual_addresses), "%s: is one registration%s", name,
		   kind->virtual_addresses ? "" : ", or one for each side");
	}
	is(rdmamr_mr_segments(mr, &own, &count), 0, "%s: its pieces are returned", name);
	ok(count == 1 && own.addr == (uintptr_t)memory && own.length == length && own.rkey,
	   "%s: is one piece, the program's memory", name);
	ok(fi_mr_desc(mr) && (uintptr_t)fi_mr_desc(mr) == own.lkey, "%s: the desc is the lkey", name);
	is((long long)fi_mr_key(mr), kind->provider_keys ? own.rkey : (long long)key, "%s: the key is %s", name,
	   kind->provider_keys ? "the rkey" : "the requested one");

	at = base_of(kind, memory);
	segment = resolved(domain, fi_mr_key(mr), at, length);
	is(segment.rkey, own.rkey, "%s: the key leads to the region's rkey", name);
	if (kind->provider_keys)
		is((long long)segment.addr, (long long)at, "%s: by the address as it is", name);
	else if (kind->virtual_addresses || kind->relaxed)
		is((long long)segment.addr, (long long)(uintptr_t)memory, "%s: by the virtual address", name);
	else
		is((long long)segment.addr, (long long)skew, "%s: by the offset into the first page", name);
	segment = resolved(domain, fi_mr_key(mr), at + 1234, 567);
	is((long long)segment.addr, (long long)(resolved(domain, fi_mr_key(mr), at, 1).addr + 1234),
	   "%s: also in its middle", name);

	fill(local, SIZE);
	memset(remote, 0, SIZE);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, fi_mr_key(mr), at, here, local, length),
	   "%s: written", name);
	ok(!memcmp(local, memory, length), "%s: the written data is there", name);
	ok(all_zero(remote, skew) && all_zero(memory + length, skew), "%s: and nothing beside it was written", name);
	fill(remote, SIZE);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_READ, domain, fi_mr_key(mr), at + 8, here, local, length - 8),
	   "%s: read", name);
	ok(!memcmp(local, memory + 8, length - 8), "%s: the read data equals the memory", name);
	/*
	 * The region's own memory, by its desc: whatever the remote peers' addresses are, the program's
	 * are the virtual ones.
	 */
	segment = resolved(home, fi_mr_key(source), (uintptr_t)local, SIZE);
	fill(memory, length);
	memset(local, 0, length);
	moved(&pair, pair_write(&pair, with_desc(mr), memory, length, segment.addr, segment.rkey),
	      "%s: sent by its desc", name);
	ok(!memcmp(memory, local, length), "%s: arrives", name);
	fill(local, length);
	moved(&pair, pair_read(&pair, with_desc(mr), memory, length, segment.addr, segment.rkey),
	      "%s: read into by its desc", name);
	ok(!memcmp(memory, local, length), "%s: gets the memory's data", name);
	counter = (uint64_t *)(memory + 64);
	*counter = 40;
	segment = resolved(domain, fi_mr_key(mr), at + 64, 8);
	status = pair_fetch_add(&pair, here, old, 2, segment.addr, segment.rkey);
	ok(status == IBV_WC_SUCCESS && *old == 40 && *counter == 42, "%s: added", name);
	if (!skew && !kind->virtual_addresses && !kind->relaxed) {
		fill(local, SIZE);
		moved(&pair, pair_write(&pair, here, local, 1000, 500, own.rkey),
		      "%s: written with the offset as address", name);
		ok(!memcmp(local, memory + 500, 1000), "%s: and that is there", name);
		moved(&pair, pair_read(&pair, here, local, SIZE, 0, own.rkey),
		      "%s: read with the offset 0 as address", name);
		ok(!memcmp(local, memory, SIZE), "%s: and gets the memory's data", name);
		refused(pair_read(&pair, here, local, 64, SIZE - 32, own.rkey), IBV_WC_REM_ACCESS_ERR,
			"a read beyond the last offset");
	}

	segment = resolved(domain, fi_mr_key(mr), at, 64);
	is(fi_close(&mr->fid), 0, "%s: closed", name);
	is((long long)stats().live, (long long)live, "%s: is not live any more", name);
	if (!kind->provider_keys) {
		count = 1;
		is(rdmamr_resolve(domain, key, at, 64, &own, &count), -FI_ENOKEY, "%s: its key leads nowhere", name);
	}
	if (!kind->relaxed) {
		is(kernel_regions(pair.context), regions, "%s: the kernel does not have it any more", name);
		snprintf(name, sizeof(name), "%s, %s: a write by the closed key", kind->name, calls[call]);
		refused_write(source, memory, segment.addr, segment.rkey, name);
	}
}

/* One region for each of the rights; the device refuses those that were not granted. */
static void rights(const struct kind *kind, struct fid_domain *domain, struct fid_mr *source)
{
	/*
	 * If the program has opened memory to remote peers only, the documents do not say what it can
	 * do with the memory itself.
	 */
	enum { NO, YES, UNSAID };
	static const struct {
		const char *name;
		uint64_t access;
		int source, sink;
		bool read, write;
	} cases[] = {
		{ "send alone", FI_SEND, YES, NO, false, false },
		{ "write alone", FI_WRITE, YES, NO, false, false },
		{ "recv alone", FI_RECV, UNSAID, YES, false, false },
		{ "read alone", FI_READ, UNSAID, YES, false, false },
		{ "all local rights", FI_LOCAL, YES, YES, false, false },
		{ "remote read alone", FI_REMOTE_READ, UNSAID, NO, true, false },
		{ "remote write alone", FI_REMOTE_WRITE, UNSAID, UNSAID, false, true },
		{ "both remote rights", FI_REMOTE, UNSAID, UNSAID, true, true },
		{ "send and remote read", FI_SEND | FI_REMOTE_READ, YES, NO, true, false },
		{ "send and remote write", FI_SEND | FI_REMOTE_WRITE, YES, UNSAID, false, true },
		{ "recv and remote read", FI_RECV | FI_REMOTE_READ, UNSAID, YES, true, false },
		{ "read and remote write", FI_READ | FI_REMOTE_WRITE, UNSAID, YES, false, true },
		{ "all rights", FI_ALL, YES, YES, true, true },
	};

	for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
		/* Fresh memory: a relaxed region in the cache may serve for fewer local rights. */
		char *memory = pages(1), name[120];
		uint64_t key = 0x1000 + n, base = base_of(kind, memory);
		struct fid_mr *mr = region(domain, memory, PAGE, cases[n].access, key);
		struct rdmamr_segment there = resolved(domain, fi_mr_key(mr), base, PAGE);
		struct rdmamr_segment far = resolved(home, fi_mr_key(source), (uintptr_t)local, SIZE);
		int status;
#define NAME(what) (snprintf(name, sizeof(name), "%s, %s: %s", kind->name, cases[n].name, what), name)

		fill(memory, PAGE);
		memset(local, 0, PAGE);
		if (cases[n].source == YES) {
			status = pair_write(&pair, with_desc(mr), memory, PAGE, far.addr, far.rkey);
			moved(&pair, status, "%s", NAME("it is the source of a write"));
			ok(!memcmp(memory, local, PAGE), "%s", NAME("with its data"));
		}

		fill(local, PAGE);
		if (cases[n].sink == YES) {
			status = pair_read(&pair, with_desc(mr), memory, PAGE, far.addr, far.rkey);
			moved(&pair, status, "%s", NAME("it is where a read goes"));
			ok(!memcmp(memory, local, PAGE), "%s", NAME("and its data arrives"));
		} else if (cases[n].sink == NO) {
			status = pair_read(&pair, with_desc(mr), memory, PAGE, far.addr, far.rkey);
			refused(status, IBV_WC_LOC_PROT_ERR, NAME("a read into it"));
			ok(memcmp(memory, local, PAGE), "%s", NAME("nothing arrived"));
		}

		if (cases[n].read) {
			status = pair_read(&pair, with_desc(source), local, PAGE, there.addr, there.rkey);
			moved(&pair, status, "%s", NAME("a remote peer reads it"));
			ok(!memcmp(memory, local, PAGE), "%s", NAME("as it is"));
			if (!kind->relaxed)
				refused(pair_read(&pair, with_desc(source), local, 64, there.addr + PAGE - 32,
						  there.rkey), IBV_WC_REM_ACCESS_ERR, NAME("a read beyond its end"));
		} else {
			memset(local, 0, 64);
			status = pair_read(&pair, with_desc(source), local, 64, there.addr, there.rkey);
			refused(status, IBV_WC_REM_ACCESS_ERR, NAME("a remote read"));
			ok(all_zero(local, 64), "%s", NAME("nothing was read"));
		}

		if (cases[n].write) {
			uint64_t *counter = (uint64_t *)(memory + 128), *old = (uint64_t *)local;

			fill(local, PAGE);
			status = pair_write(&pair, with_desc(source), local, PAGE, there.addr, there.rkey);
			moved(&pair, status, "%s", NAME("a remote peer writes it"));
			ok(!memcmp(memory, local, PAGE), "%s", NAME("and that is there"));
			*counter = 7;
			status = pair_fetch_add(&pair, with_desc(source), old, 3, there.addr + 128, there.rkey);
			ok(status == IBV_WC_SUCCESS && *old == 7 && *counter == 10, "%s", NAME("a remote peer adds to it"));
		} else {
			uint64_t before = *(uint64_t *)memory;

			refused_write(source, memory, there.addr, there.rkey, NAME("a remote write"));
			status = pair_fetch_add(&pair, with_desc(source), local, 1, there.addr, there.rkey);
			refused(status, IBV_WC_REM_ACCESS_ERR, NAME("a remote addition"));
			ok(*(uint64_t *)memory == before, "%s", NAME("nothing was added"));
		}
		is(fi_close(&mr->fid), 0, "%s", NAME("closed"));
		must(munmap(memory, PAGE) == 0);
#undef NAME
	}
}

static const char constant[100] = "in a page of the program that cannot be written";

/* Memory that the program may only read can be sent, and read by remote peers. */
static void read_only(const struct kind *kind, struct fid_domain *domain, struct fid_mr *source)
{
	struct rdmamr_segment far = resolved(home, fi_mr_key(source), (uintptr_t)local, SIZE);
	char *memory = pages(1);
	const struct {
		const char *name;
		const char *memory;
		size_t length;
	} cases[] = { { "memory that is mapped for reading", memory, PAGE },
		      { "a constant", constant, sizeof(constant) } };

	fill(memory, PAGE);
	must(mprotect(memory, PAGE, PROT_READ) == 0);
	for (int n = 0; n < 2; n++) {
		struct fid_mr *mr = NULL;
		size_t length = cases[n].length;
		uint64_t at = base_of(kind, cases[n].memory);

		is(fi_mr_reg(domain, cases[n].memory, length, FI_SEND, 0, 9, 0, &mr, NULL), 0,
		   "%s: %s is registered to be sent", kind->name, cases[n].name);
		if (!mr)
			continue;
		memset(local, 0, PAGE);
		moved(&pair, pair_write(&pair, with_desc(mr), cases[n].memory, length, far.addr, far.rkey),
		   "%s: %s is the source of a write", kind->name, cases[n].name);
		ok(!memcmp(local, cases[n].memory, length), "%s: %s arrives", kind->name, cases[n].name);
		is(fi_close(&mr->fid), 0, "%s: %s: closed", kind->name, cases[n].name);

		mr = NULL;
		is(fi_mr_reg(domain, cases[n].memory, length, FI_REMOTE_READ, 0, 9, 0, &mr, NULL), 0,
		   "%s: %s is registered for remote peers to read", kind->name, cases[n].name);
		if (!mr)
			continue;
		memset(local, 0, PAGE);
		moved(&pair,
		      peer_moves(&pair, IBV_WR_RDMA_READ, domain, fi_mr_key(mr), at, with_desc(source), local, length),
		      "%s: a remote peer reads %s", kind->name, cases[n].name);
		ok(!memcmp(local, cases[n].memory, length), "%s: %s arrives at the remote peer", kind->name, cases[n].name);
		is(fi_close(&mr->fid), 0, "%s: %s: closed", kind->name, cases[n].name);
	}
	must(munmap(memory, PAGE) == 0);
}

/* The key of a closed region names the next one, and its lkey no region. */
static void closed(const struct kind *kind, struct fid_domain *domain, struct fid_mr *source)
{
	struct rdmamr_segment far = resolved(home, fi_mr_key(source), (uintptr_t)local, SIZE);
	char *memory = pages(2), name[100];
	struct fid_mr *mr = region(domain, memory, PAGE, FI_ALL, 5);
	struct rdmamr_segment first = resolved(domain, fi_mr_key(mr), base_of(kind, memory), 64), next;
	const struct ibv_mr *here = with_desc(mr);
	int status;

	must(fi_close(&mr->fid) == 0);
	mr = region(domain, memory + PAGE, PAGE, FI_ALL, 5);
	next = resolved(domain, fi_mr_key(mr), base_of(kind, memory + PAGE), 64);
	ok(next.rkey != first.rkey, "%s: a new region under the key of a closed one has an rkey of its own",
	   kind->name);
	moved(&pair, pair_write(&pair, with_desc(source), local, 64, next.addr, next.rkey),
	   "%s: a remote peer writes to it", kind->name);
	snprintf(name, sizeof(name), "%s: a write by the rkey of the closed one", kind->name);
	refused_write(source, memory, first.addr, first.rkey, name);
	/*
	 * The device chooses the error: for an lkey that it does not know, rxe of 6.1 has
	 * LOC_QP_OP_ERR, that of 6.12 WR_FLUSH_ERR.
	 */
	status = pair_write(&pair, here, memory, 64, far.addr, far.rkey);
	ok(status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_QP_OP_ERR || status == IBV_WC_WR_FLUSH_ERR,
	   "%s: a write from the closed one's lkey is refused (%d)", kind->name, status);
	pair_reconnect(&pair);
	must(fi_close(&mr->fid) == 0);
	must(munmap(memory, 2 * PAGE) == 0);
}

/*
 * Whether a region answers at a base: a write there lands at the start of the memory, a read gets
 * it back.
 */
static void answers(struct fid_domain *domain, struct fid_mr *source, struct fid_mr *mr, uint64_t base, char *memory,
		    const char *name)
{
	struct rdmamr_segment segment;
	size_t count = 1;

	fill(local, SIZE);
	memset(memory, 0, SIZE);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, fi_mr_key(mr), base, with_desc(source), local, SIZE),
	      "%s: written at its base", name);
	ok(!memcmp(local, memory, SIZE), "%s: and that is in its memory", name);
	memset(local, 0, SIZE);
	moved(&pair,
	      peer_moves(&pair, IBV_WR_RDMA_READ, domain, fi_mr_key(mr), base + 100, with_desc(source), local, 1000),
	      "%s: read behind its base", name);
	ok(!memcmp(local, memory + 100, 1000), "%s: and that is its memory", name);
	if (fi_mr_key(mr) != resolved(domain, fi_mr_key(mr), base, 1).rkey) {
		is(rdmamr_resolve(domain, fi_mr_key(mr), base - 1, 1, &segment, &count), -FI_EINVAL,
		   "%s: not before its base", name);
		is(rdmamr_resolve(domain, fi_mr_key(mr), base + SIZE - 1, 2, &segment, &count), -FI_EINVAL,
		   "%s: nor beyond its end", name);
	}
}

static void is_replaced(struct fid_mr *mr, struct rdmamr_segment was, struct fid_domain *domain, struct fid_mr *source,
			char *memory, uint64_t key, uint64_t base, const char *name)
{
	struct rdmamr_segment segment;
	size_t count = 1;

	ok(fi_mr_key(mr) == FI_KEY_NOTAVAIL, "%s: its key is FI_KEY_NOTAVAIL", name);
	refused_write(source, memory, was.addr, was.rkey, name);
	if (key != was.rkey)
		is(rdmamr_resolve(domain, key, base, 64, &segment, &count), -FI_ENOKEY, "%s: its key leads nowhere",
		   name);
	is(fi_close(&mr->fid), 0, "%s: it can be closed", name);
}

/* FI_MR_OFFSET: a base that the program chose; a region that lies there is replaced. */
static void bases(const struct kind *kind, struct fid_domain *domain, struct fid_mr *source)
{
	const uint64_t flags = kind->provider_keys ? FI_MR_OFFSET : FI_MR_OFFSET | FI_MR_KEY;
	const uint64_t base = 0x7654321 * (uint64_t)PAGE;
	const size_t least = kind->provider_keys ? PAGE : 1;
	char *memory = pages(12), *second = memory + 3 * PAGE, *third = memory + 6 * PAGE, *fourth = memory + 9 * PAGE;
	struct fid_mr *mr = NULL, *after = NULL, *upper = NULL, *both = NULL, *plain, *odd = NULL;
	struct rdmamr_segment was, upper_was, own;
	size_t count = 1;
	uint64_t live = stats().live, key, upper_key;
	int regions, one;
	char name[100];
#define NAME(what) (snprintf(name, sizeof(name), "%s, FI_MR_OFFSET, %s", kind->name, what), name)

	/* Its addresses conflict, but it was not made with the flag. */
	plain = region(domain, fourth, SIZE, FI_ALL, 40);
	regions = kernel_regions(pair.context);
	is(fi_mr_reg(domain, memory, SIZE, FI_ALL, base, 41, flags, &mr, NULL), 0, "%s", NAME("registered"));
	if (!mr)
		goto out;
	one = kernel_regions(pair.context) - regions;
	if (!kind->relaxed)
		ok(one == 1 || one == 2, "%s", NAME("is one registration, or one for each side"));
	if (kind->provider_keys)
		is((long long)resolved(domain, fi_mr_key(mr), base, 1).rkey, (long long)fi_mr_key(mr), "%s",
		   NAME("its key is an rkey"));
	else
		is((long long)fi_mr_key(mr), 41, "%s", NAME("its key is the requested one"));
	answers(domain, source, mr, base, memory, NAME("first"));
	must(rdmamr_mr_segments(mr, &own, &count) == 0 && count == 1);
	was = resolved(home, fi_mr_key(source), (uintptr_t)local, SIZE);
	fill(memory, SIZE);
	moved(&pair, pair_write(&pair, with_lkey(own.lkey), (char *)own.addr, SIZE, was.addr, was.rkey), "%s",
	      NAME("sent by its own piece"));
	ok(!memcmp(memory, local, SIZE), "%s", NAME("its own piece is its memory"));

	/* Neighbours do not overlap. */
	is(fi_mr_reg(domain, second, SIZE, FI_ALL, base + SIZE, 42, flags, &upper, NULL), 0, "%s",
	   NAME("a neighbour above is registered"));
	is(fi_mr_reg(domain, third, SIZE, FI_ALL, base - SIZE, 43, flags, &after, NULL), 0, "%s",
	   NAME("a neighbour below is registered"));
	must(upper && after);
	answers(domain, source, mr, base, memory, NAME("between neighbours"));
	answers(domain, source, upper, base + SIZE, second, NAME("the neighbour above"));
	answers(domain, source, after, base - SIZE, third, NAME("the neighbour below"));
	must(fi_close(&after->fid) == 0);

	/* A page of the last two overlaps with each of the others. */
	key = fi_mr_key(mr);
	upper_key = fi_mr_key(upper);
	was = resolved(domain, key, base, 64);
	upper_was = resolved(domain, upper_key, base + SIZE, 64);
	is(fi_mr_reg(domain, third, SIZE, FI_ALL, base + 2 * PAGE, 44, flags, &both, NULL), 0, "%s",
	   NAME("one that overlaps with two is registered"));
	must(both);
	answers(domain, source, both, base + 2 * PAGE, third, NAME("the one that replaced two"));
	if (!kind->relaxed)
		is(kernel_regions(pair.context), regions + one, "%s", NAME("the two are gone from the kernel"));
	is_replaced(mr, was, domain, source, memory, key, base, NAME("the first of two replaced"));
	is_replaced(upper, upper_was, domain, source, second, upper_key, base + SIZE,
		    NAME("the second of two replaced"));
	answers(domain, source, both, base + 2 * PAGE, third, NAME("when those are closed"));

	/* A failed call replaces nothing. */
	mr = NULL;
	is(fi_mr_reg(domain, NULL, SIZE, FI_ALL, base, 45, flags, &mr, NULL), -FI_EFAULT, "%s",
	   NAME("one of unmapped memory is not registered"));
	ok(!mr && fi_mr_key(both) != FI_KEY_NOTAVAIL, "%s", NAME("and the region that it overlaps with is there"));
	answers(domain, source, both, base + 2 * PAGE, third, NAME("after one that failed"));

	/* A byte is enough; and the key of the replaced region is free for the next one. */
	key = fi_mr_key(both);
	was = resolved(domain, key, base + 2 * PAGE, 64);
	is(fi_mr_reg(domain, memory, SIZE, FI_ALL, base + 5 * PAGE - least, 45, flags, &mr, NULL), 0, "%s",
	   NAME("one that overlaps as little as can be is registered"));
	is_replaced(both, was, domain, source, third, key, base + 2 * PAGE, NAME("replaced by the least overlap"));
	must(fi_close(&mr->fid) == 0);
	is(fi_mr_reg(domain, memory, SIZE, FI_ALL, base, 44, flags, &mr, NULL), 0, "%s",
	   NAME("the key of the replaced region is reused"));
	answers(domain, source, mr, base, memory, NAME("the reused key"));
	must(fi_close(&mr->fid) == 0);

	/* The region with the same addresses without the flag, and one with them in another domain. */
	if (kind->virtual_addresses) {
		is(fi_mr_reg(domain, memory, SIZE, FI_ALL, (uintptr_t)fourth, 46, flags, &mr, NULL), 0, "%s",
		   NAME("where a region without the flag is"));
		answers(domain, source, mr, (uintptr_t)fourth, memory, NAME("where a region without the flag is"));
		must(fi_close(&mr->fid) == 0);
	}
	ok(fi_mr_key(plain) != FI_KEY_NOTAVAIL, "%s", NAME("a region without the flag is not replaced"));
	answers(domain, source, plain, base_of(kind, fourth), fourth, NAME("the region without the flag"));

	/*
	 * The base and the address of the memory need not be equal, except for their offset in the
	 * page.
	 */
	is(fi_mr_reg(domain, memory + 24, SIZE, FI_ALL, base + 24, 47, flags, &odd, NULL), 0, "%s",
	   NAME("not aligned, alike"));
	must(odd);
	answers(domain, source, odd, base + 24, memory + 24, NAME("not aligned, alike"));
	must(fi_close(&odd->fid) == 0);
	odd = NULL;
	if (kind->provider_keys) {
		is(fi_mr_reg(domain, memory + 24, SIZE, FI_ALL, base + 25, 47, flags, &odd, NULL), -FI_EINVAL, "%s",
		   NAME("not alike in the page"));
		ok(!odd, "%s", NAME("not alike in the page: no region"));
	} else {
		is(fi_mr_reg(domain, memory + 24, SIZE, FI_ALL, 1000003, 47, flags, &odd, NULL), 0, "%s",
		   NAME("not alike"));
		must(odd);
		answers(domain, source, odd, 1000003, memory + 24, NAME("not alike"));
		was = resolved(domain, 47, 1000003, 64);
		is(fi_mr_reg(domain, third, SIZE, FI_ALL, 1000000, 48, flags, &mr, NULL), 0, "%s",
		   NAME("where that is, not alike either"));
		is_replaced(odd, was, domain, source, memory + 24, 47, 1000003, NAME("not alike, replaced"));
		must(fi_close(&mr->fid) == 0);
	}
out:
	must(fi_close(&plain->fid) == 0);
	is((long long)stats().live, (long long)live, "%s", NAME("nothing is left"));
	must(munmap(memory, 12 * PAGE) == 0);
#undef NAME
}

/* The same base in two domains is two places. */
static void two_domains(struct fid_mr *source)
{
	struct fid_domain *domains[2] = { open_kind(pair.pd, &kinds[OFFSETS]), open_kind(pair.pd, &kinds[OFFSETS]) };
	struct fid_mr *mrs[2];
	char *memory = pages(6);

	for (int n = 0; n < 2; n++) {
		must(fi_mr_reg(domains[n], memory + n * SIZE, SIZE, FI_ALL, 0x10000, 2, FI_MR_OFFSET | FI_MR_KEY,
			       &mrs[n], NULL) == 0);
	}
	for (int n = 0; n < 2; n++) {
		is((long long)fi_mr_key(mrs[n]), 2, "two domains: the base of one is free in the other");
		answers(domains[n], source, mrs[n], 0x10000, memory + n * SIZE, "two domains");
	}
	for (int n = 0; n < 2; n++) {
		must(fi_close(&mrs[n]->fid) == 0);
		is(fi_close(&domains[n]->fid), 0, "two domains: closed");
	}
	must(munmap(memory, 6 * PAGE) == 0);
}

int main(void)
{
	struct fid_mr *source;
	uint64_t passed_on;

	fabric_begin();
	local = pages(3);
	remote = pages(3);
	pair_open(&pair);
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 looks at no iova, and not at every right");
	passed_on = stats().reg_next;
	home = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	source = region(home, local, SIZE, FI_ALL, 1);

	for (int n = 0; n < KINDS; n++) {
		const struct kind *kind = &kinds[n];
		struct fid_domain *domain = open_kind(pair.pd, kind);

		case_begin("%s: data by each call", kind->name);
		for (int call = 0; call < CALLS; call++) {
			moves(kind, domain, source, call, 0);
			moves(kind, domain, source, call, 24);
		}
		case_end();
		as_case(rights(kind, domain, source), "%s: rights", kind->name);
		as_case(read_only(kind, domain, source), "%s: read-only memory", kind->name);
		if (!kind->relaxed)
			as_case(closed(kind, domain, source), "%s: closed regions", kind->name);
		as_case(bases(kind, domain, source), "%s: addresses of remote peers", kind->name);
		is(fi_close(&domain->fid), 0, "%s: the domain is closed", kind->name);
	}
	as_case(two_domains(source), "two domains");

	is(fi_close(&source->fid), 0, "the other end is closed");
	is(fi_close(&home->fid), 0, "and its domain");
	pair_close(&pair);
	is((long long)stats().reg_next, (long long)passed_on, "the library made every registration");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
