/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Raw keys, mapped here and in another process. src/fabric/raw_key.rs has each bit and size, segment.rs all ranges. */
#include "object.h"

enum { RAW_MAX = 2048 };

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

static int try_map(struct fid_domain *domain, struct raw_key *raw, uint64_t *key)
{
	*key = unwritten;
	return fi_mr_map_raw(domain, raw->base, raw->bytes, raw->size, key, 0);
}

static uint64_t map(struct fid_domain *domain, struct raw_key *raw)
{
	uint64_t key;

	must(try_map(domain, raw, &key) == 0);
	return key;
}

static bool is_mapped_key(uint64_t key) { return key > UINT32_MAX && key != FI_KEY_NOTAVAIL; }

/* The answer for a range, and its segments. */
static struct rdmamr_segment segments[LIMIT];
static size_t found;

static int resolves(struct fid_domain *domain, uint64_t key, uint64_t at, size_t length)
{
	found = LIMIT;
	memset(segments, 0, sizeof(segments));
	return rdmamr_resolve(domain, key, at, length, segments, &found);
}

/* Whether a key leads to the segments that an object's own key has led to. */
static bool leads_to(struct fid_domain *domain, uint64_t key, const struct object *object)
{
	bool right = resolves(domain, key, object->base, object->length) == 0 && found == object->pieces;

	for (size_t n = 0; right && n < found; n++)
		right = segments[n].addr == object->there[n].addr && segments[n].length == object->there[n].length &&
			segments[n].rkey == object->there[n].rkey;
	return right;
}

/* A region of `count` buffers in the arena, which do not adjoin, at an offset or, if that is 0, at `base`. */
static struct object buffers(struct fid_domain *domain, size_t count, uint64_t base, uint64_t offset)
{
	struct object object = { .domain = domain, .count = count, .pieces = count, .base = offset ? offset : base };

	for (size_t n = 0; n < count; object.length += object.iov[n++].iov_len)
		object.iov[n] = (struct iovec){ arena + 4 * n * PAGE, 2 * PAGE - (n + 1) };
	must(fi_mr_regv(domain, object.iov, count, FI_ALL, offset, 5, offset ? RDMAMR_MR_OFFSET : 0, &object.mr, NULL) == 0);
	must(has_pieces(&object));
	return object;
}

/* --- Another process, with a device of its own: what it finds behind a key, a peer of its own can reach --- */

struct order {
	int kind, answer; /* that of the mapping */
	struct object object;
	struct raw_key raw;
};

static int another_process(int file)
{
	static struct ibv_pd *volatile pd; /* for AddressSanitizer: no leak */
	struct fid_domain *domain;
	struct order order;
	uint64_t key;

	must(pread(file, &order, sizeof(order), 0) == sizeof(order));
	pd = domain_of_device();
	domain = open_kind(pd, &kinds[order.kind]);
	if (try_map(domain, &order.raw, &key) != order.answer)
		return 1;
	if (order.answer)
		return key == unwritten && fi_close(&domain->fid) == 0 ? 0 : 2;
	if (!is_mapped_key(key) || !leads_to(domain, key, &order.object))
		return 3;
	if (fi_close(&domain->fid) != -FI_EBUSY || fi_mr_unmap_key(domain, key) != 0)
		return 4;
	return resolves(domain, key, order.raw.base, 1) == -FI_ENOKEY && fi_close(&domain->fid) == 0 ? 0 : 5;
}

static void in_another_process(struct order order, int answer)
{
	int file = memfd_create("order", 0);
	char argument[16];

	order.answer = answer;
	must(file >= 0 && write(file, &order, sizeof(order)) == sizeof(order));
	snprintf(argument, sizeof(argument), "%d", file);
	is(once_more(argument, NULL), 0, "another process: %d", answer);
	close(file);
}

/* --- The raw key of a region --- */

static void sizes(struct fid_mr *mr)
{
	uint64_t base = unwritten;
	uint8_t bytes[RAW_MAX];
	size_t need = 0, size;

	gives(-FI_ETOOSMALL, fi_mr_raw_attr(mr, &base, NULL, &need, 0));
	if (!holds(need > 8 && need <= RAW_MAX))
		return;
	/* src/fabric/raw_key.rs has that a smaller buffer is left alone. A larger one is not filled. */
	size = need - 1;
	gives(-FI_ETOOSMALL, fi_mr_raw_attr(mr, &base, bytes, &size, 0));
	holds(size == need);
	memset(bytes, 0x5a, RAW_MAX);
	size = RAW_MAX;
	gives(0, fi_mr_raw_attr(mr, &base, bytes, &size, 0));
	holds(size == need && bytes[need] == 0x5a);
	for (int bit = 0; bit < 64; bit++)
		gives(-FI_EBADFLAGS, fi_mr_raw_attr(mr, &base, bytes, &size, 1ULL << bit));
	gives(-FI_EINVAL, fi_mr_raw_attr(mr, NULL, bytes, &size, 0));
	gives(-FI_EINVAL, fi_mr_raw_attr(mr, &base, bytes, NULL, 0));
}

/* --- A domain that maps it --- */

/* A domain reaches the region by a key that it has mapped. */
static void reaches(struct object *object, struct fid_domain *domain, uint64_t key)
{
	object->domain = domain;
	object->key = key;
	holds(is_mapped_key(key));
	ranges(object);
	data(object);
}

/* Unmaps a key, which leads nowhere then. */
static void unmaps(struct fid_domain *domain, uint64_t key, uint64_t base)
{
	gives(0, fi_mr_unmap_key(domain, key));
	gives(-FI_ENOKEY, resolves(domain, key, base, 1));
	gives(-FI_ENOKEY, fi_mr_unmap_key(domain, key));
}

static void maps(struct ibv_pd *other_pd, int from, int round)
{
	/* The last round has a base that the program chose. */
	static const size_t counts[] = { 1, 3, LIMIT, 1 };
	const int to = (from + 1 + round) % KINDS;
	struct fid_domain *domain = open_kind(pair.pd, &kinds[from]), *target = open_kind(pair.pd, &kinds[to]);
	struct fid_domain *far = open_kind(other_pd, &kinds[to]);
	struct object object = buffers(domain, counts[round], base_of(&kinds[from], arena), round == 3 ? 0x123456000 : 0);
	struct order order = { .kind = to, .object = object, .raw = raw_key_of(object.mr) };
	struct raw_key *raw = &order.raw;
	uint64_t key, second;

	gives(object.base, raw->base);
	sizes(object.mr);

	about("mapped by a domain of %s", kinds[to].name);
	key = map(target, raw);
	reaches(&order.object, target, key);
	second = map(target, raw);
	holds(second != key && second > UINT32_MAX);
	unmaps(target, key, raw->base);
	gives(-FI_ENOKEY, fi_mr_unmap_key(domain, second));
	gives(-FI_ENOKEY, resolves(domain, second, raw->base, 1));
	holds(leads_to(target, second, &order.object));

	about("mapped by its own domain");
	key = map(domain, raw);
	reaches(&object, domain, key);
	unmaps(domain, key, raw->base);

	about("mapped by a domain of another PD");
	key = map(far, raw);
	holds(leads_to(far, key, &order.object));
	gives(-FI_EBUSY, fi_close(&far->fid));
	unmaps(far, key, raw->base);
	gives(0, fi_close(&far->fid));

	about("mapped by another process, as it is and with a changed bit");
	in_another_process(order, 0);
	raw->bytes[raw->size / 2] ^= 1;
	in_another_process(order, -FI_EINVAL);

	/* The mapped key stays, and the device refuses it. */
	about("the region ends before the domain that has mapped its key");
	gives(0, fi_close(&object.mr->fid));
	gives(0, fi_close(&domain->fid));
	gives(-FI_EBUSY, fi_close(&target->fid));
	holds(leads_to(target, second, &order.object));
	if (!kinds[from].relaxed) {
		gives(IBV_WC_REM_ACCESS_ERR,
		      pair_read(&pair, with_desc(source), local, 8, segments[object.count - 1].addr, segments[object.count - 1].rkey));
		pair_reconnect(&pair);
	}
	gives(0, fi_mr_unmap_key(target, second));
	gives(0, fi_close(&target->fid));
}

/* --- Invalid raw keys --- */

static void refused(void)
{
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]);
	struct fid_mr *mr = buffers(domain, 3, 0, 0).mr;
	struct raw_key raw = raw_key_of(mr);
	uint64_t key = unwritten;

	for (int bit = 0; bit < 64; bit++)
		gives(-FI_EBADFLAGS, fi_mr_map_raw(domain, raw.base, raw.bytes, raw.size, &key, 1ULL << bit));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base ^ 1, raw.bytes, raw.size, &key, 0));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, raw.bytes, SIZE_MAX, &key, 0));
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, NULL, raw.size, &key, 0));
	holds(rdmamr_last_reason()[0]);
	gives(-FI_EINVAL, fi_mr_map_raw(domain, raw.base, raw.bytes, raw.size, NULL, 0));
	holds(key == unwritten);
	/* A domain that has refused them all has nothing mapped. */
	must(fi_close(&mr->fid) == 0);
	gives(0, fi_close(&domain->fid));
}

/* --- Mapped keys beside others --- */

static void handles(void)
{
	enum { MANY = 10, OWN = 3 };
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]), *provider = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	struct fid_mr *mr = buffers(domain, 3, 0, 0).mr, *plain = region(provider, local, PAGE, FI_ALL, 0), *own[OWN], *late;
	const uint64_t none_mapped[] = { 0, FI_KEY_NOTAVAIL, 5, fi_mr_key(plain), 1ULL << 32 };
	const struct { uint64_t key, at; size_t length; int want; } rkeys[] = {
		{ 0x12345678, 0xfedcba9876543210, 1000, 0 }, { UINT32_MAX, 0, 1, 0 }, { 1ULL << 32, 0, 1, -FI_ENOKEY }, { 7, 0, 0, -FI_EINVAL },
	};
	struct raw_key raw = raw_key_of(mr);
	uint64_t keys[MANY], key;

	about("no mapped key");
	for (size_t n = 0; n < COUNT(none_mapped); n++) {
		gives(-FI_ENOKEY, fi_mr_unmap_key(domain, none_mapped[n]));
		gives(-FI_ENOKEY, fi_mr_unmap_key(provider, none_mapped[n]));
	}
	holds(rdmamr_last_reason()[0] && fi_mr_key(mr) == 5 && resolves(domain, 5, 0, 1) == 0);

	about("the program's own keys and the mapped ones share one space");
	for (int n = 0; n < MANY; n++) {
		keys[n] = map(domain, &raw);
		holds(is_mapped_key(keys[n]) && (!n || keys[n] > keys[n - 1]));
	}
	gives(-FI_ENOKEY, fi_mr_reg(domain, local, PAGE, FI_ALL, 0, keys[1], 0, &late, NULL));
	for (int n = 0; n < OWN; n++)
		own[n] = region(domain, local, PAGE, FI_ALL, keys[MANY - 1] + 1 + (uint64_t)n);
	key = map(domain, &raw);
	holds(key > keys[MANY - 1] + OWN);
	/* Every second one, then the rest: the remaining ones stay valid. */
	for (int n = 0; n < MANY; n += 2)
		gives(0, fi_mr_unmap_key(domain, keys[n]));
	for (int n = 0; n < MANY; n++)
		gives(n % 2 ? 0 : -FI_ENOKEY, resolves(domain, keys[n], 1, 1));
	for (int n = 1; n < MANY; n += 2)
		gives(0, fi_mr_unmap_key(domain, keys[n]));
	for (int n = 0; n < OWN; n++)
		must(fi_close(&own[n]->fid) == 0);
	gives(-FI_EBUSY, fi_close(&domain->fid));
	gives(0, fi_mr_unmap_key(domain, key));

	about("a domain without raw keys: the key is the rkey");
	for (size_t n = 0; n < COUNT(rkeys); n++) {
		gives(rkeys[n].want, resolves(provider, rkeys[n].key, rkeys[n].at, rkeys[n].length));
		holds(rkeys[n].want || (found == 1 && segments[0].rkey == rkeys[n].key && segments[0].addr == rkeys[n].at &&
					segments[0].length == rkeys[n].length));
	}
	gives(-FI_ENOKEY, resolves(domain, fi_mr_key(plain), (uintptr_t)local, 1));
	must(fi_close(&mr->fid) == 0 && fi_close(&plain->fid) == 0);
	gives(0, fi_close(&domain->fid));
	gives(0, fi_close(&provider->fid));
}

int main(int argc, char **argv)
{
	struct ibv_pd *other_pd;

	if (argc > 1)
		return another_process(atoi(argv[1]));
	objects_begin();
	if (pair.iwarp)
		skip_all("iWARP refuses by ending the connection, not by a status");
	other_pd = ibv_alloc_pd(pair.context);
	must(other_pd);

	for (int from = 0; from < KINDS; from++)
		for (int round = 0; round < 4; round++)
			as_case(maps(other_pd, from, round), "mapped: the raw key of %s, round %d", kinds[from].name, round);
	as_case(refused(), "refused raw keys");
	as_case(handles(), "handles");

	must(ibv_dealloc_pd(other_pd) == 0);
	return objects_end();
}
