/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Raw keys: another domain, here and in another process, maps the raw key of a region and reaches
 * the region by it. A raw key with a changed byte is refused; src/fabric/raw_key.rs has all bits, sizes and
 * random bytes, errors.c the domains that have no other keys.
 */
#include "common.h"

enum { LIMIT = RDMAMR_MR_IOV_LIMIT, ARENA = 64 * PAGE, RAW_MAX = 2048 };

static struct pair pair;
static char *arena, *flat;
static struct fid_domain *home; /* of the other end of each transfer: provider keys and virtual addresses, plain */
static struct fid_mr *local;
static const uint64_t unwritten = 0xabcdef0123456789;

struct raw_key {
	uint64_t base;
	size_t size;
	uint8_t bytes[RAW_MAX];
};

static struct raw_key raw_key_of(struct fid_mr *mr)
{
	struct raw_key raw = { .size = RAW_MAX };

	must(fi_mr_raw_attr(mr, &raw.base, raw.bytes, &raw.size, 0) == 0);
	return raw;
}

static uint64_t map(struct fid_domain *domain, struct raw_key *raw)
{
	uint64_t key = unwritten;

	must(fi_mr_map_raw(domain, raw->base, raw->bytes, raw->size, &key, 0) == 0);
	return key;
}

/* A region of `count` buffers in the arena, which do not adjoin. */
static struct fid_mr *buffers(struct fid_domain *domain, size_t count, uint64_t offset, uint64_t flags)
{
	struct iovec iov[LIMIT];
	struct fid_mr *mr = NULL;

	for (size_t n = 0; n < count; n++)
		iov[n] = (struct iovec){ arena + 4 * n * PAGE, 2 * PAGE - (n + 1) };
	if (count == 1)
		iov[0].iov_len = 2 * PAGE;
	must(fi_mr_regv(domain, iov, count, FI_ALL, offset, 5, flags, &mr, NULL) == 0);
	return mr;
}

static size_t length_of(size_t count) { return count == 1 ? 2 * PAGE : count * 2 * PAGE - count * (count + 1) / 2; }

/* The bytes that were last written to the region of `count` buffers. */
static void gather(size_t count, char *to)
{
	for (size_t n = 0; n < count; n++) {
		size_t length = count == 1 ? 2 * PAGE : 2 * PAGE - (n + 1);

		memcpy(to, arena + 4 * n * PAGE, length);
		to += length;
	}
}

/* --- Another process, with a device of its own: what it finds behind a key, a peer of its own can reach --- */

struct order {
	int kind;
	size_t length;
	struct raw_key raw;
};

struct answer {
	int map, resolve, busy, unmap, again, close;
	bool is_key;
	size_t count;
	struct rdmamr_segment segments[LIMIT];
};

static struct {
	pid_t pid;
	int orders, answers;
} peer;

static bool is_mapped_key(uint64_t key) { return key > UINT32_MAX && key != FI_KEY_NOTAVAIL; }

static int peer_main(int orders, int answers)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct order order;

	alarm(DEADLOCK);
	must(pd);
	while (read(orders, &order, sizeof(order)) == sizeof(order)) {
		struct fid_domain *domain = open_kind(pd, &kinds[order.kind]);
		struct answer answer = { .count = LIMIT };
		size_t count = 1;
		uint64_t key = 0;

		answer.map = fi_mr_map_raw(domain, order.raw.base, order.raw.bytes, order.raw.size, &key, 0);
		if (!answer.map) {
			answer.is_key = is_mapped_key(key);
			answer.resolve = rdmamr_resolve(domain, key, order.raw.base, order.length, answer.segments, &answer.count);
			answer.busy = fi_close(&domain->fid);
			answer.unmap = fi_mr_unmap_key(domain, key);
			answer.again = rdmamr_resolve(domain, key, order.raw.base, 1, answer.segments + LIMIT - 1, &count);
		}
		answer.close = fi_close(&domain->fid);
		must(write(answers, &answer, sizeof(answer)) == sizeof(answer));
	}
	return ibv_dealloc_pd(pd) || stats().live;
}

/* It is forked before any object is opened, and shares only the pipes. */
static void peer_start(void)
{
	int orders[2], answers[2];

	must(pipe(orders) == 0 && pipe(answers) == 0);
	peer.pid = must_fork();
	if (!peer.pid) {
		close(orders[1]);
		close(answers[0]);
		/* The parent prints the report. */
		must(freopen("/dev/null", "w", stdout));
		_exit(peer_main(orders[0], answers[1]));
	}
	close(orders[0]);
	close(answers[1]);
	peer.orders = orders[1];
	peer.answers = answers[0];
}

static struct answer ask(int kind, const struct raw_key *raw, size_t length)
{
	struct order order = { .kind = kind, .length = length, .raw = *raw };
	struct answer answer;

	must(write(peer.orders, &order, sizeof(order)) == sizeof(order));
	must(read(peer.answers, &answer, sizeof(answer)) == sizeof(answer));
	return answer;
}

static void peer_end(void)
{
	close(peer.orders);
	is(child_status(peer.pid), 0, "the other process ends well");
}

/* --- The raw key of a region --- */

static void sizes(struct fid_mr *mr)
{
	uint8_t bytes[RAW_MAX], again[RAW_MAX];
	uint64_t base = unwritten, second;
	size_t need = 0, size;

	gives(-FI_ETOOSMALL, fi_mr_raw_attr(mr, &base, NULL, &need, 0));
	if (!holds(need > 8 && need <= RAW_MAX))
		return;
	/* In a smaller buffer nothing is written; a larger one is not filled. */
	for (size_t room = 0; room < need; room += need - 1) {
		memset(bytes, 0x5a, RAW_MAX);
		memset(again, 0x5a, RAW_MAX);
		size = room;
		gives(-FI_ETOOSMALL, fi_mr_raw_attr(mr, &base, bytes, &size, 0));
		holds(size == need && !memcmp(bytes, again, RAW_MAX));
	}
	size = need;
	gives(0, fi_mr_raw_attr(mr, &base, bytes, &size, 0));
	holds(size == need && bytes[need] == 0x5a);
	size = RAW_MAX;
	gives(0, fi_mr_raw_attr(mr, &second, again, &size, 0));
	holds(size == need && again[need] == 0x5a && second == base && !memcmp(bytes, again, RAW_MAX));
	for (int bit = 0; bit < 64; bit++)
		gives(-FI_EBADFLAGS, (size = RAW_MAX, fi_mr_raw_attr(mr, &base, bytes, &size, 1ULL << bit)));
	gives(-FI_EINVAL, (size = RAW_MAX, fi_mr_raw_attr(mr, NULL, bytes, &size, 0)));
	gives(-FI_EINVAL, fi_mr_raw_attr(mr, &base, bytes, NULL, 0));
	gives(-FI_ETOOSMALL, (size = RAW_MAX, fi_mr_raw_attr(mr, &base, NULL, &size, 0)));
	gives(need, size);
}

/* --- A domain that maps it --- */

/* The answer for a range; its segments are in `segments`. */
static struct rdmamr_segment segments[LIMIT];

static int resolves(struct fid_domain *domain, uint64_t key, uint64_t at, size_t length, size_t *count)
{
	*count = LIMIT;
	memset(segments, 0, sizeof(segments));
	return rdmamr_resolve(domain, key, at, length, segments, count);
}

static void same_places(const struct rdmamr_segment *some, const struct rdmamr_segment *others, size_t count)
{
	for (size_t n = 0; n < count; n++)
		holds(some[n].addr == others[n].addr && some[n].length == others[n].length && some[n].rkey == others[n].rkey);
}

/* Data through a mapped key, and its bounds. */
static void reaches(struct fid_domain *domain, uint64_t key, const struct raw_key *raw, size_t count)
{
	const size_t length = length_of(count);
	const struct { uint64_t at; size_t length; } outside[] = {
		{ length, 1 }, { length - 1, 2 }, { (uint64_t)-1, 1 }, { 0, 0 }, { 1, SIZE_MAX },
	};
	char *in = flat + ARENA;
	size_t found;

	holds(is_mapped_key(key));
	gives(0, resolves(domain, key, raw->base, length, &found));
	gives(count, found);
	memset(arena, 0, ARENA);
	fill(flat, length);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, raw->base, with_desc(local), flat, length), "written");
	gather(count, in);
	holds(!memcmp(flat, in, length));
	memset(in, 0, length);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_READ, domain, key, raw->base + 7, with_desc(local), in, length - 7), "read");
	holds(!memcmp(flat + 7, in, length - 7));
	for (size_t n = 0; n < COUNT(outside); n++)
		gives(-FI_EINVAL, resolves(domain, key, raw->base + outside[n].at, outside[n].length, &found));
}

/* Another process maps the key to the same places, and a changed key is refused there. */
static void reached_there(int kind, struct raw_key *raw, size_t length, const struct rdmamr_segment *here, size_t count)
{
	struct answer answer = ask(kind, raw, length);

	holds(answer.map == 0 && answer.is_key && answer.resolve == 0);
	if (gives(count, answer.count))
		same_places(answer.segments, here, count);
	holds(answer.busy == -FI_EBUSY && answer.unmap == 0 && answer.again == -FI_ENOKEY && answer.close == 0);
	raw->bytes[raw->size / 2] ^= 1;
	answer = ask(kind, raw, length);
	holds(answer.map == -FI_EINVAL && answer.close == 0);
	raw->bytes[raw->size / 2] ^= 1;
}

static void maps(struct ibv_pd *other_pd, int from, int round)
{
	/* The last round has a base that the program chose. */
	static const size_t counts[] = { 1, 3, LIMIT, 1 };
	const size_t count = counts[round], length = length_of(count);
	const uint64_t flags = round == 3 ? RDMAMR_MR_OFFSET : 0, offset = round == 3 ? 0x123456000 : 0;
	const int to = (from + 1 + round) % KINDS;
	struct fid_domain *domain = open_kind(pair.pd, &kinds[from]), *target = open_kind(pair.pd, &kinds[to]);
	struct fid_domain *far = open_kind(other_pd, &kinds[to]);
	struct fid_mr *mr = buffers(domain, count, offset, flags);
	struct raw_key raw = raw_key_of(mr);
	struct rdmamr_segment here[LIMIT];
	uint64_t key, second;
	size_t found;

	gives(flags ? offset : base_of(&kinds[from], arena), raw.base);
	sizes(mr);

	about("mapped by a domain of %s", kinds[to].name);
	key = map(target, &raw);
	reaches(target, key, &raw, count);
	second = map(target, &raw);
	holds(second != key && second > UINT32_MAX);
	gives(0, fi_mr_unmap_key(target, key));
	gives(-FI_ENOKEY, resolves(target, key, raw.base, 1, &found));
	gives(-FI_ENOKEY, fi_mr_unmap_key(target, key));
	gives(-FI_ENOKEY, fi_mr_unmap_key(domain, second));
	gives(-FI_ENOKEY, resolves(domain, second, raw.base, 1, &found));
	gives(0, resolves(target, second, raw.base, length, &found));
	gives(count, found);
	memcpy(here, segments, sizeof(here));

	about("mapped by its own domain");
	key = map(domain, &raw);
	reaches(domain, key, &raw, count);
	gives(0, fi_mr_unmap_key(domain, key));

	about("mapped by a domain of another PD");
	key = map(far, &raw);
	gives(0, resolves(far, key, raw.base, length, &found));
	gives(count, found);
	same_places(segments, here, count);
	gives(-FI_EBUSY, fi_close(&far->fid));
	gives(0, fi_mr_unmap_key(far, key));
	gives(0, fi_close(&far->fid));

	about("mapped by another process");
	reached_there(to, &raw, length, here, count);

	/* The mapped key stays, and the device refuses it. */
	about("the region ends before the domain that has mapped its key");
	gives(0, fi_close(&mr->fid));
	gives(0, fi_close(&domain->fid));
	gives(-FI_EBUSY, fi_close(&target->fid));
	gives(0, resolves(target, second, raw.base, length, &found));
	if (!kinds[from].relaxed) {
		gives(IBV_WC_REM_ACCESS_ERR,
		      pair_read(&pair, with_desc(local), flat, 8, segments[count - 1].addr, segments[count - 1].rkey));
		pair_reconnect(&pair);
	}
	gives(0, fi_mr_unmap_key(target, second));
	gives(0, fi_close(&target->fid));
}

/* --- Invalid raw keys --- */

static void refused(void)
{
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]);
	struct fid_mr *mr = buffers(domain, 3, 0, 0);
	struct raw_key raw = raw_key_of(mr);
	uint64_t key = unwritten;

	for (int bit = 0; bit < 64; bit++) {
		gives(-FI_EBADFLAGS, fi_mr_map_raw(domain, raw.base, raw.bytes, raw.size, &key, 1ULL << bit));
		gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base ^ 1ULL << bit, raw.bytes, raw.size, &key, 0));
	}
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, raw.bytes, raw.size - 1, &key, 0));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, raw.bytes, raw.size + 1, &key, 0));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, raw.bytes, SIZE_MAX, &key, 0));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, NULL, raw.size, &key, 0));
	holds(rdmamr_last_reason()[0]);
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, raw.bytes, raw.size, NULL, 0));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, 0, raw.bytes, 0, &key, 0));
	holds(key == unwritten);
	/* A domain that has refused them all has nothing mapped. */
	must(fi_close(&mr->fid) == 0);
	gives(0, fi_close(&domain->fid));
}

/* --- Mapped keys beside others --- */

static void handles(void)
{
	enum { MANY = 1000 };
	static uint64_t keys[MANY];
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]), *provider = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	struct fid_mr *mr = buffers(domain, 3, 0, 0), *plain = region(provider, flat, PAGE, FI_ALL, 0), *own[20], *late;
	const uint64_t none_mapped[] = { 0, FI_KEY_NOTAVAIL, 5, fi_mr_key(plain), (uintptr_t)mr, 1ULL << 32 };
	const struct { uint64_t key, at; size_t length; int want; } rkeys[] = {
		{ 0x12345678, 0xfedcba9876543210, 1000, 0 }, { 0, 0, 1, 0 }, { UINT32_MAX, 0, 1, 0 }, { 1ULL << 32, 0, 1, -FI_ENOKEY },
		{ 7, 0, 0, -FI_EINVAL },
	};
	struct raw_key raw = raw_key_of(mr);
	int regions = 0;
	size_t found;

	about("no mapped key");
	for (size_t n = 0; n < COUNT(none_mapped); n++) {
		gives(-FI_ENOKEY, fi_mr_unmap_key(domain, none_mapped[n]));
		gives(-FI_ENOKEY, fi_mr_unmap_key(provider, none_mapped[n]));
		holds(rdmamr_last_reason()[0]);
	}
	holds(fi_mr_key(mr) == 5 && resolves(domain, 5, 0, 1, &found) == 0);

	about("%d keys, no two the same", MANY);
	for (int n = 0; n < MANY; n++) {
		keys[n] = map(domain, &raw);
		holds(is_mapped_key(keys[n]));
		for (int k = 0; k < n; k++)
			if (keys[k] == keys[n])
				ok(false, "%d and %d are the same", n, k);
	}
	/* Every second one, then the rest: the remaining ones stay valid. */
	for (int n = 0; n < MANY; n += 2)
		gives(0, fi_mr_unmap_key(domain, keys[n]));
	for (int n = 0; n < MANY; n++)
		gives(n % 2 ? 0 : -FI_ENOKEY, resolves(domain, keys[n], 1, 1, &found));
	gives(-FI_EBUSY, fi_close(&domain->fid));
	/* The program's own keys and the mapped ones share one space. */
	gives(-FI_ENOKEY, fi_mr_reg(domain, flat, PAGE, FI_ALL, 0, keys[1], 0, &late, NULL));
	for (int n = 1; n < MANY; n += 2)
		gives(0, fi_mr_unmap_key(domain, keys[n]));

	about("own keys: those that were mapped, those after them, and those that would come in the same steps");
	keys[0] = map(domain, &raw);
	keys[1] = map(domain, &raw);
	must(fi_mr_unmap_key(domain, keys[0]) == 0 && fi_mr_unmap_key(domain, keys[1]) == 0);
	for (uint64_t n = 0; n < 20; n++) {
		uint64_t key = n < 10 ? keys[0] + n : keys[1] + (keys[1] - keys[0]) * (n - 10);

		regions += !fi_mr_reg(domain, flat, PAGE, FI_ALL, 0, key, 0, &own[regions], NULL);
	}
	holds(regions >= 10);
	for (int n = 0; n < 100; n++) {
		uint64_t key = map(domain, &raw);

		for (int k = 0; k < regions; k++)
			holds(key != fi_mr_key(own[k]));
		gives(0, fi_mr_unmap_key(domain, key));
	}
	for (int n = 0; n < regions; n++)
		must(fi_close(&own[n]->fid) == 0);

	about("a domain without raw keys: the key is the rkey");
	for (size_t n = 0; n < COUNT(rkeys); n++) {
		gives(rkeys[n].want, resolves(provider, rkeys[n].key, rkeys[n].at, rkeys[n].length, &found));
		holds(rkeys[n].want || (found == 1 && segments[0].rkey == rkeys[n].key && segments[0].addr == rkeys[n].at &&
					segments[0].length == rkeys[n].length));
	}
	gives(-FI_ENOKEY, resolves(domain, fi_mr_key(plain), (uintptr_t)flat, 1, &found));
	must(fi_close(&mr->fid) == 0 && fi_close(&plain->fid) == 0);
	gives(0, fi_close(&domain->fid));
	gives(0, fi_close(&provider->fid));
}

int main(void)
{
	struct ibv_pd *other_pd;

	peer_start();
	fabric_begin();
	arena = pages(ARENA / PAGE);
	flat = pages(2 * ARENA / PAGE);
	pair_open(&pair);
	if (pair.iwarp)
		skip_all("iWARP refuses by ending the connection, not by a status");
	home = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	local = region(home, flat, 2 * ARENA, FI_ALL, 1);
	other_pd = ibv_alloc_pd(pair.context);
	must(other_pd);

	for (int from = 0; from < KINDS; from++)
		for (int round = 0; round < 4; round++)
			as_case(maps(other_pd, from, round), "mapped: the raw key of %s, round %d", kinds[from].name, round);
	as_case(refused(), "refused raw keys");
	as_case(handles(), "handles");

	peer_end();
	must(ibv_dealloc_pd(other_pd) == 0 && fi_close(&local->fid) == 0 && fi_close(&home->fid) == 0);
	pair_close(&pair);
	gives(0, stats().live);
	return done_testing();
}
