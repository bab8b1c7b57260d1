/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Raw keys: another domain, here and in another process, maps the raw key of a region and reaches
 * the region by it. A raw key with any changed bit is refused, whatever it says.
 */
#include "../lib/fabric.h"
#include "../lib/program.h"
#include <arpa/inet.h>
#include <sys/wait.h>

enum { LIMIT = RDMAMR_MR_IOV_LIMIT, ARENA = 64 * PAGE, RAW_MAX = 2048, RANDOM = 100000 };

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

/* Numbers that are the same in each run. */
static uint32_t next_random(void)
{
	static uint64_t state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 16);
}

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

static size_t length_of(size_t count)
{
	return count == 1 ? 2 * PAGE : count * 2 * PAGE - count * (count + 1) / 2;
}

/* The bytes that were last written to the region of `count` buffers. */
static void gather(size_t count, char *to)
{
	for (size_t n = 0; n < count; n++) {
		size_t length = count == 1 ? 2 * PAGE : 2 * PAGE - (n + 1);

		memcpy(to, arena + 4 * n * PAGE, length);
		to += length;
	}
}

static void pattern(char *memory, size_t length, unsigned int seed)
{
	for (size_t n = 0; n < length; n++)
		memory[n] = (char)((seed + n * 31 + n / 251) | 1);
}

/* --- Another process, with a device of its own and a connection to this one --- */

struct order {
	int kind;
	size_t length;
	unsigned int seed;
	struct raw_key raw;
};

struct answer {
	int map, written, read, busy, unmap, close, again;
	bool same, is_key;
};

static struct {
	pid_t pid;
	int orders, answers;
	struct rdma_cm_id *listener, *id;
	struct ibv_cq *cq;
} peer;

static const struct ibv_qp_init_attr qp_attr = {
	.qp_type = IBV_QPT_RC,
	.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	.sq_sig_all = 1,
};

static struct answer obey(struct pair *mine, struct order *order, struct fid_mr *source, char *memory)
{
	struct fid_domain *domain = open_kind(mine->pd, &kinds[order->kind]);
	struct answer answer = { 0 };
	struct rdmamr_segment segments[LIMIT];
	size_t count = LIMIT;
	uint64_t key = 0;

	answer.map = fi_mr_map_raw(domain, order->raw.base, order->raw.bytes, order->raw.size, &key, 0);
	if (!answer.map) {
		answer.is_key = key > UINT32_MAX && key != FI_KEY_NOTAVAIL;
		pattern(memory, order->length, order->seed);
		answer.written = peer_moves(mine, IBV_WR_RDMA_WRITE, domain, key, order->raw.base, with_desc(source),
					    memory,
					    order->length);
		answer.read = peer_moves(mine, IBV_WR_RDMA_READ, domain, key, order->raw.base, with_desc(source),
					 memory + ARENA, order->length);
		answer.same = !memcmp(memory, memory + ARENA, order->length);
		answer.busy = fi_close(&domain->fid);
		answer.unmap = fi_mr_unmap_key(domain, key);
		answer.again = rdmamr_resolve(domain, key, order->raw.base, 1, segments, &count);
	}
	answer.close = fi_close(&domain->fid);
	return answer;
}

/* The other process: it was forked before any object was opened, and shares only the pipes. */
static int peer_main(int orders, int answers)
{
	struct sockaddr_in address;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct ibv_qp_init_attr attr = qp_attr;
	struct pair mine = { 0 };
	struct fid_domain *domain;
	struct fid_mr *source;
	struct rdma_cm_id *id;
	struct order order;
	char *memory = pages(2 * ARENA / PAGE);

	alarm(DEADLOCK);
	if (read(orders, &address, sizeof(address)) != sizeof(address))
		return 0;
	must(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	must(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
	must(rdma_resolve_route(id, 5000) == 0);
	mine.context = id->verbs;
	mine.pd = ibv_alloc_pd(id->verbs);
	mine.cq = ibv_create_cq(id->verbs, 64, NULL, NULL, 0);
	must(mine.pd && mine.cq);
	attr.send_cq = attr.recv_cq = mine.cq;
	must(rdma_create_qp(id, mine.pd, &attr) == 0);
	must(rdma_connect(id, &param) == 0);
	mine.qp = id->qp;
	domain = open_kind(mine.pd, &kinds[PROVIDER_KEYS]);
	source = region(domain, memory, 2 * ARENA, FI_ALL, 1);
	while (read(orders, &order, sizeof(order)) == sizeof(order)) {
		struct answer answer = obey(&mine, &order, source, memory);

		must(write(answers, &answer, sizeof(answer)) == sizeof(answer));
	}
	must(fi_close(&source->fid) == 0 && fi_close(&domain->fid) == 0);
	/* A disconnect would wait for the other side's, which waits for the end of this process. */
	rdma_destroy_qp(id);
	must(ibv_destroy_cq(mine.cq) == 0);
	return ibv_dealloc_pd(mine.pd) || stats().live;
}

static void peer_start(void)
{
	int orders[2], answers[2];

	must(pipe(orders) == 0 && pipe(answers) == 0);
	peer.pid = fork();
	must(peer.pid >= 0);
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

static void peer_connect(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct ibv_qp_init_attr attr = qp_attr;

	must(inet_pton(AF_INET, getenv("CHECK_ADDRESS"), &address.sin_addr) == 1);
	must(rdma_create_id(NULL, &peer.listener, NULL, RDMA_PS_TCP) == 0);
	must(rdma_bind_addr(peer.listener, (struct sockaddr *)&address) == 0);
	must(rdma_listen(peer.listener, 1) == 0);
	address.sin_port = rdma_get_src_port(peer.listener);
	must(write(peer.orders, &address, sizeof(address)) == sizeof(address));
	must(rdma_get_request(peer.listener, &peer.id) == 0);
	must(peer.id->verbs == pair.context);
	peer.cq = ibv_create_cq(pair.context, 64, NULL, NULL, 0);
	must(peer.cq);
	attr.send_cq = attr.recv_cq = peer.cq;
	must(rdma_create_qp(peer.id, pair.pd, &attr) == 0);
	must(rdma_accept(peer.id, &param) == 0);
}

static struct answer ask(int kind, const struct raw_key *raw, size_t length, unsigned int seed)
{
	struct order order = { .kind = kind, .length = length, .seed = seed, .raw = *raw };
	struct answer answer;

	must(write(peer.orders, &order, sizeof(order)) == sizeof(order));
	must(read(peer.answers, &answer, sizeof(answer)) == sizeof(answer));
	return answer;
}

static void peer_end(void)
{
	int status = -1;

	close(peer.orders);
	must(waitpid(peer.pid, &status, 0) == peer.pid);
	is(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), 0, "the other process ends well");
	rdma_destroy_qp(peer.id);
	rdma_destroy_id(peer.id);
	rdma_destroy_id(peer.listener);
	must(ibv_destroy_cq(peer.cq) == 0);
}

/* --- The raw key of a region --- */

static void sizes(struct fid_mr *mr, const char *name)
{
	uint8_t bytes[RAW_MAX], again[RAW_MAX];
	uint64_t base = unwritten, second;
	size_t need = 0, size, wrong = 0;

	is(fi_mr_raw_attr(mr, &base, NULL, &need, 0), -FI_ETOOSMALL, "%s: the size is asked for", name);
	if (!ok(need > 8 && need <= RAW_MAX, "%s: it is %zu bytes", name, need))
		return;
	for (size_t room = 0; room < need; room++) {
		memset(bytes, 0x5a, RAW_MAX);
		size = room;
		wrong += fi_mr_raw_attr(mr, &base, bytes, &size, 0) != -FI_ETOOSMALL || size != need;
		for (size_t n = 0; n < RAW_MAX; n++)
			wrong += bytes[n] != 0x5a;
	}
	none(wrong, "%s: for a smaller buffer it is returned, and nothing is written", name);
	memset(bytes, 0x5a, RAW_MAX);
	size = need;
	is(fi_mr_raw_attr(mr, &base, bytes, &size, 0), 0, "%s: a buffer of that size", name);
	ok(size == need && bytes[need] == 0x5a, "%s: is filled to its end", name);
	memset(again, 0x5a, RAW_MAX);
	size = RAW_MAX;
	is(fi_mr_raw_attr(mr, &second, again, &size, 0), 0, "%s: a larger buffer", name);
	ok(size == need && again[need] == 0x5a && second == base && !memcmp(bytes, again, RAW_MAX),
	   "%s: is not filled, and the raw key is the same", name);
	for (int bit = 0; bit < 64; bit++) {
		size = RAW_MAX;
		wrong += fi_mr_raw_attr(mr, &base, bytes, &size, 1ULL << bit) != -FI_EBADFLAGS;
	}
	none(wrong, "%s: fi_mr_raw_attr has no flags", name);
	size = RAW_MAX;
	is(fi_mr_raw_attr(mr, NULL, bytes, &size, 0), -FI_EINVAL, "%s: nowhere to put the base", name);
	is(fi_mr_raw_attr(mr, &base, bytes, NULL, 0), -FI_EINVAL, "%s: no size", name);
	size = RAW_MAX;
	is(fi_mr_raw_attr(mr, &base, NULL, &size, 0), -FI_ETOOSMALL, "%s: a NULL buffer asks for the size too",
	   name);
	is((long long)size, (long long)need, "%s: and gets it", name);
}

/* --- A domain that maps it --- */

/* Data through a mapped key, and its bounds. */
static void reaches(struct fid_domain *domain, uint64_t key, const struct raw_key *raw, size_t count, const char *name)
{
	const size_t length = length_of(count);
	struct rdmamr_segment segments[LIMIT];
	size_t room = LIMIT, wrong = 0;
	char *in = flat + ARENA;

	ok(key > UINT32_MAX && key != FI_KEY_NOTAVAIL, "%s: is mapped to a key that is no rkey", name);
	is(rdmamr_resolve(domain, key, raw->base, length, segments, &room), 0, "%s: resolves to the region", name);
	is((long long)room, (long long)count, "%s: in as many pieces as it has", name);
	memset(arena, 0, ARENA);
	fill(flat, length);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, raw->base, with_desc(local), flat, length),
	   "%s: written", name);
	gather(count, in);
	ok(!memcmp(flat, in, length), "%s: and that is there", name);
	memset(in, 0, length);
	moved(&pair, peer_moves(&pair, IBV_WR_RDMA_READ, domain, key, raw->base + 7, with_desc(local), in, length - 7),
	   "%s: read", name);
	ok(!memcmp(flat + 7, in, length - 7), "%s: as it is", name);
	room = LIMIT;
	wrong += rdmamr_resolve(domain, key, raw->base + length, 1, segments, &room) != -FI_EINVAL;
	wrong += rdmamr_resolve(domain, key, raw->base + length - 1, 2, segments, &room) != -FI_EINVAL;
	wrong += rdmamr_resolve(domain, key, raw->base - 1, 1, segments, &room) != -FI_EINVAL;
	wrong += rdmamr_resolve(domain, key, raw->base, 0, segments, &room) != -FI_EINVAL;
	wrong += rdmamr_resolve(domain, key, raw->base + 1, SIZE_MAX, segments, &room) != -FI_EINVAL;
	none(wrong, "%s: outside there is nothing", name);
}

static void maps(void)
{
	static const size_t counts[] = { 1, 3, LIMIT };
	struct ibv_pd *other_pd = ibv_alloc_pd(pair.context);

	must(other_pd);
	for (int from = 0; from < KINDS; from++) {
		for (size_t n = 0; n < 4; n++) {
			/* The last round has a base that the program chose. */
			size_t count = counts[n % 3], wrong = 0;
			uint64_t flags = n == 3 ? RDMAMR_MR_OFFSET : 0, offset = n == 3 ? 0x123456000 : 0, key, second;
			int to = (from + 1 + (int)n) % KINDS;
			struct fid_domain *domain = open_kind(pair.pd, &kinds[from]);
			struct fid_domain *target = open_kind(pair.pd, &kinds[to]),
				*far = open_kind(other_pd, &kinds[to]);
			struct fid_mr *mr = buffers(domain, count, offset, flags);
			struct raw_key raw = raw_key_of(mr);
			struct rdmamr_segment here[LIMIT], there[LIMIT];
			size_t room = LIMIT;
			struct answer answer;
			char name[120];

			snprintf(name, sizeof(name), "%s, %zu buffer%s%s", kinds[from].name, count,
				 count == 1 ? "" : "s",
				 flags ? " at a base" : "");
			is((long long)raw.base, (long long)(flags ? offset : base_of(&kinds[from], arena)),
			   "%s: the base", name);
			sizes(mr, name);

			key = unwritten;
			is(fi_mr_map_raw(target, raw.base, raw.bytes, raw.size, &key, 0), 0,
			   "%s: mapped by a domain of %s", name,
			   kinds[to].name);
			reaches(target, key, &raw, count, name);
			second = map(target, &raw);
			ok(second != key && second > UINT32_MAX, "%s: mapped twice, with two keys", name);
			is(fi_mr_unmap_key(target, key), 0, "%s: unmapped", name);
			is(rdmamr_resolve(target, key, raw.base, 1, there, &room), -FI_ENOKEY,
			   "%s: then there is no such key",
			   name);
			room = LIMIT;
			is(rdmamr_resolve(target, second, raw.base, 1, there, &room), 0, "%s: but the other one resolves", name);
			is(fi_mr_unmap_key(target, key), -FI_ENOKEY, "%s: unmapped twice", name);
			is(fi_mr_unmap_key(domain, second), -FI_ENOKEY, "%s: unmapped in another domain", name);
			room = LIMIT;
			is(rdmamr_resolve(domain, second, raw.base, 1, there, &room), -FI_ENOKEY,
			   "%s: unknown in another domain", name);

			/* In its own domain too, and in one of another PD: there the key means the same. */
			key = map(domain, &raw);
			reaches(domain, key, &raw, count, name);
			is(fi_mr_unmap_key(domain, key), 0, "%s: unmapped in its own domain", name);
			room = LIMIT;
			must(rdmamr_resolve(target, second, raw.base, length_of(count), here, &room) == 0 &&
			     room == count);
			key = map(far, &raw);
			must(rdmamr_resolve(far, key, raw.base, length_of(count), there, &room) == 0 && room == count);
			for (size_t k = 0; k < count; k++)
				wrong += here[k].addr != there[k].addr || here[k].length != there[k].length ||
					 here[k].rkey != there[k].rkey;
			none(wrong, "%s: the same in a domain of another PD", name);
			is(fi_close(&far->fid), -FI_EBUSY, "%s: a domain with a mapped key is not closed", name);
			is(fi_mr_unmap_key(far, key), 0, "%s: unmapped there", name);
			is(fi_close(&far->fid), 0, "%s: then it is closed", name);

			memset(arena, 0, ARENA);
			answer = ask(to, &raw, length_of(count), (unsigned int)(from * 100 + n));
			is(answer.map, 0, "%s: mapped in another process", name);
			ok(answer.is_key, "%s: to a key that is no rkey there", name);
			is(answer.written, IBV_WC_SUCCESS, "%s: written by it", name);
			pattern(flat, length_of(count), (unsigned int)(from * 100 + n));
			gather(count, flat + ARENA);
			ok(!memcmp(flat, flat + ARENA, length_of(count)), "%s: and that is here", name);
			ok(answer.read == IBV_WC_SUCCESS && answer.same, "%s: read by it, as it is", name);
			is(answer.busy, -FI_EBUSY, "%s: its domain is not closed before it is unmapped", name);
			ok(answer.unmap == 0 && answer.again == -FI_ENOKEY && answer.close == 0,
			   "%s: unmapped there, and closed",
			   name);
			raw.bytes[raw.size / 2] ^= 1;
			answer = ask(to, &raw, length_of(count), 0);
			ok(answer.map == -FI_EINVAL && answer.close == 0, "%s: with one changed bit it is refused there",
			   name);

			/* The region may end before the domains that have mapped its key. */
			is(fi_close(&mr->fid), 0, "%s: the region is closed", name);
			is(fi_close(&domain->fid), 0, "%s: its domain is closed", name);
			is(fi_close(&target->fid), -FI_EBUSY, "%s: the domain that has it mapped is not", name);
			room = LIMIT;
			is(rdmamr_resolve(target, second, raw.base, length_of(count), there, &room), 0,
			   "%s: its mapped key resolves as before", name);
			if (!kinds[from].relaxed) {
				is(pair_read(&pair, with_desc(local), flat, 8, there[count - 1].addr,
					     there[count - 1].rkey),
				   IBV_WC_REM_ACCESS_ERR, "%s: and the device refuses it", name);
				pair_reconnect(&pair);
			}
			is(fi_mr_unmap_key(target, second), 0, "%s: unmapped", name);
			is(fi_close(&target->fid), 0, "%s: closed", name);
		}
	}
	must(ibv_dealloc_pd(other_pd) == 0);
}

/* --- Invalid raw keys --- */

/* Whether a raw key is accepted; an accepted one must be unmapped. */
static bool taken(struct fid_domain *domain, uint64_t base, const uint8_t *bytes, size_t size)
{
	uint64_t key = unwritten;
	int ret = fi_mr_map_raw(domain, base, (uint8_t *)bytes, size, &key, 0);

	if (!ret) {
		fi_mr_unmap_key(domain, key);
		return true;
	}
	return ret != -FI_EINVAL || key != unwritten;
}

static void changed(struct fid_domain *domain, struct raw_key *raw, const char *name)
{
	char *edge = at_the_edge(RAW_MAX);
	uint8_t bytes[RAW_MAX], other;
	const size_t size = raw->size;
	int wrong = 0, tried = 0;

	ok(taken(domain, raw->base, raw->bytes, size), "%s: unchanged, it is accepted", name);
	for (size_t n = 0; n < size; n++) {
		int here = 0;

		memcpy(bytes, raw->bytes, size);
		for (int value = 0; value < 256; value++) {
			if (value == raw->bytes[n])
				continue;
			bytes[n] = (uint8_t)value;
			here += taken(domain, raw->base, bytes, size);
		}
		if (here)
			printf("# %s: byte %zu of %zu (%#x): %d other values are accepted\n", name, n, size,
			       raw->bytes[n], here);
		wrong += here;
	}
	none(wrong, "%s: every byte with every other value is refused", name);

	/* Checks that add up would not notice. */
	for (size_t n = 0; n < size; n++) {
		for (size_t k = n + 1; k < size; k++) {
			memcpy(bytes, raw->bytes, size);
			bytes[n]++;
			bytes[k]--;
			wrong += taken(domain, raw->base, bytes, size);
			memcpy(bytes, raw->bytes, size);
			if (bytes[n] == bytes[k])
				continue;
			other = bytes[n];
			bytes[n] = bytes[k];
			bytes[k] = other;
			wrong += taken(domain, raw->base, bytes, size);
			tried++;
		}
	}
	ok(!wrong && tried, "%s: two bytes exchanged, or one more and one less, are refused", name);
	for (size_t width = 4; width <= 32; width += 4) {
		for (size_t n = 0; n + 2 * width <= size; n += 4) {
			memcpy(bytes, raw->bytes, size);
			memcpy(bytes + n, raw->bytes + n + width, width);
			memcpy(bytes + n + width, raw->bytes + n, width);
			if (memcmp(bytes, raw->bytes, size))
				wrong += taken(domain, raw->base, bytes, size);
		}
	}
	none(wrong, "%s: neighbouring words exchanged are refused", name);

	/* Shorter ones: and nothing beyond the end is read. */
	for (size_t n = 0; n < size; n++) {
		memcpy(edge + RAW_MAX - n, raw->bytes, n);
		wrong += taken(domain, raw->base, (uint8_t *)edge + RAW_MAX - n, n);
		memcpy(edge + RAW_MAX - n, raw->bytes + size - n, n);
		wrong += taken(domain, raw->base, (uint8_t *)edge + RAW_MAX - n, n);
	}
	none(wrong, "%s: every part of it is refused", name);
	memcpy(edge + RAW_MAX - size, raw->bytes, size);
	ok(taken(domain, raw->base, (uint8_t *)edge + RAW_MAX - size, size),
	   "%s: whole, at an unaligned address, it is accepted", name);
	for (int with = 0; with < 3; with++) {
		memcpy(bytes, raw->bytes, size);
		for (size_t n = size; n < RAW_MAX; n++)
			bytes[n] = with == 0 ? 0 : with == 1 ? 0xff : raw->bytes[n % size];
		for (size_t n = size + 1; n <= RAW_MAX; n++)
			wrong += taken(domain, raw->base, bytes, n);
	}
	wrong += taken(domain, raw->base, raw->bytes, SIZE_MAX);
	wrong += taken(domain, raw->base, raw->bytes, SIZE_MAX / 2);
	none(wrong, "%s: with bytes behind it, it is refused", name);
	for (int bit = 0; bit < 64; bit++) {
		wrong += taken(domain, raw->base ^ 1ULL << bit, raw->bytes, size);
		wrong += taken(domain, raw->base + (1ULL << bit), raw->bytes, size);
		wrong += taken(domain, raw->base - (1ULL << bit), raw->bytes, size);
	}
	none(wrong, "%s: with another base it is refused", name);
}

static void refused(void)
{
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]), *from[3];
	struct fid_mr *mrs[3];
	struct raw_key raw[3];
	uint8_t bytes[RAW_MAX];
	uint64_t key = unwritten;
	int wrong = 0;

	for (int n = 0; n < 3; n++) {
		char name[60];

		from[n] = open_kind(pair.pd, &kinds[n]);
		mrs[n] = buffers(from[n], n == 0 ? 1 : n == 1 ? 3 : LIMIT, 0, 0);
		raw[n] = raw_key_of(mrs[n]);
		snprintf(name, sizeof(name), "the raw key of %zu bytes", raw[n].size);
		changed(domain, &raw[n], name);
	}
	/* Parts of one and of another. */
	for (int n = 0; n < 3; n++) {
		for (int k = 0; k < 3; k++) {
			if (n == k)
				continue;
			if (raw[n].base != raw[k].base)
				wrong += taken(domain, raw[n].base, raw[k].bytes, raw[k].size);
			for (size_t cut = 1; cut < raw[n].size && cut < raw[k].size; cut++) {
				memcpy(bytes, raw[n].bytes, cut);
				memcpy(bytes + cut, raw[k].bytes + cut, raw[k].size - cut);
				if (memcmp(bytes, raw[n].bytes, raw[n].size) &&
				    memcmp(bytes, raw[k].bytes, raw[k].size)) {
					wrong += taken(domain, raw[n].base, bytes, raw[k].size);
					wrong += taken(domain, raw[k].base, bytes, raw[k].size);
				}
			}
		}
	}
	none(wrong, "one's beginning with another's end, or its base, is refused");

	/* Random bytes: of all sizes, half of them like a raw key at first sight. */
	for (int n = 0; n < RANDOM; n++) {
		struct raw_key *like = &raw[n % 3];
		size_t size = n & 1 ? like->size : next_random() % 700;
		uint64_t base = n & 2 ? like->base : (uint64_t)next_random() << 32 | next_random();

		for (size_t k = 0; k < size; k++)
			bytes[k] = (uint8_t)next_random();
		if (n & 4)
			memcpy(bytes, like->bytes, size < 16 ? size : 16);
		if ((n & 9) == 9) {
			memcpy(bytes, like->bytes, size);
			for (uint32_t k = next_random() % 8; k < 8; k++)
				bytes[next_random() % size] ^= (uint8_t)(1 + next_random() % 255);
			if (!memcmp(bytes, like->bytes, size))
				bytes[0] ^= 1;
		}
		wrong += taken(domain, base, bytes, size);
	}
	none(wrong, "%d strings of random bytes are refused", RANDOM);

	for (int bit = 0; bit < 64; bit++) {
		wrong += fi_mr_map_raw(domain, raw[0].base, raw[0].bytes, raw[0].size, &key,
				       1ULL << bit) != -FI_EBADFLAGS;
		wrong += key != unwritten;
	}
	none(wrong, "fi_mr_map_raw has no flags");
	is(fi_mr_map_raw(domain, raw[0].base, NULL, raw[0].size, &key, 0), -FI_EINVAL, "no raw key");
	ok(strcmp(rdmamr_last_reason(), ""), "is refused in words: %s", rdmamr_last_reason());
	is(fi_mr_map_raw(domain, raw[0].base, raw[0].bytes, raw[0].size, NULL, 0), -FI_EINVAL,
	   "nowhere to put the key");
	bytes[0] = 0;
	is(fi_mr_map_raw(domain, 0, bytes, 0, &key, 0), -FI_EINVAL, "a raw key of no bytes");
	ok(key == unwritten, "the key is unchanged");

	is(fi_close(&domain->fid), 0, "a domain that has refused them all has nothing mapped");
	for (int n = 0; n < 3; n++)
		must(fi_close(&mrs[n]->fid) == 0 && fi_close(&from[n]->fid) == 0);
}

/* --- Mapped keys beside others --- */

static void handles(void)
{
	enum { MANY = 1000 };
	static uint64_t keys[MANY];
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]),
		*provider = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	struct fid_mr *mr = buffers(domain, 3, 0, 0), *plain = region(provider, flat, PAGE, FI_ALL, 0), *own[20], *late;
	struct raw_key raw = raw_key_of(mr);
	struct rdmamr_segment segment;
	size_t count = 1, wrong = 0, same = 0;
	int regions = 0;

	is(fi_mr_unmap_key(domain, 0), -FI_ENOKEY, "unmap: 0 is no mapped key");
	ok(strcmp(rdmamr_last_reason(), ""), "unmap: is refused in words: %s", rdmamr_last_reason());
	is(fi_mr_unmap_key(domain, FI_KEY_NOTAVAIL), -FI_ENOKEY, "unmap: nor is FI_KEY_NOTAVAIL");
	is(fi_mr_unmap_key(domain, 5), -FI_ENOKEY, "unmap: nor is the program's own key");
	is(fi_mr_unmap_key(provider, fi_mr_key(plain)), -FI_ENOKEY, "unmap: nor is an rkey");
	is(fi_mr_unmap_key(domain, (uintptr_t)mr), -FI_ENOKEY, "unmap: nor is an address");
	is(fi_mr_unmap_key(domain, 1ULL << 32), -FI_ENOKEY, "unmap: nor is the first number that is no rkey");
	for (int n = 0; n < 10000; n++)
		wrong += fi_mr_unmap_key(domain, (uint64_t)next_random() << 32 | next_random()) != -FI_ENOKEY;
	none(wrong, "unmap: nor are 10000 random numbers");
	ok(fi_mr_key(mr) == 5 && rdmamr_resolve(domain, 5, 0, 1, &segment, &count) == 0,
	   "the program's own key is there");

	for (int n = 0; n < MANY; n++) {
		keys[n] = map(domain, &raw);
		for (int k = 0; k < n; k++)
			same += keys[k] == keys[n];
		wrong += keys[n] <= UINT32_MAX || keys[n] == FI_KEY_NOTAVAIL;
	}
	none(same, "%d keys are mapped at once, no two the same", MANY);
	/* Every second one, then the rest: the remaining ones stay valid. */
	for (int n = 0; n < MANY; n += 2)
		wrong += fi_mr_unmap_key(domain, keys[n]) != 0;
	for (int n = 0; n < MANY; n++) {
		count = 1;
		wrong += rdmamr_resolve(domain, keys[n], 1, 1, &segment, &count) != (n % 2 ? 0 : -FI_ENOKEY);
	}
	none(wrong, "every second is unmapped, and the others resolve as before");
	is(fi_close(&domain->fid), -FI_EBUSY, "the domain is not closed");

	/* The program's own keys and the mapped ones share one space. */
	is(fi_mr_reg(domain, flat, PAGE, FI_ALL, 0, keys[1], 0, &late, NULL), -FI_ENOKEY,
	   "a mapped key cannot be that of a region");
	for (int n = 1; n < MANY; n += 2)
		wrong += fi_mr_unmap_key(domain, keys[n]) != 0;
	none(wrong, "all are unmapped");
	keys[0] = map(domain, &raw);
	keys[1] = map(domain, &raw);
	must(fi_mr_unmap_key(domain, keys[0]) == 0 && fi_mr_unmap_key(domain, keys[1]) == 0);
	/* Keys that were mapped, those after them, and those that would come in the same steps. */
	for (uint64_t n = 0; n < 20; n++) {
		uint64_t key = n < 10 ? keys[0] + n : keys[1] + (keys[1] - keys[0]) * (n - 10);

		regions += !fi_mr_reg(domain, flat, PAGE, FI_ALL, 0, key, 0, &own[regions], NULL);
	}
	ok(regions >= 10, "the program has %d keys like those that were mapped", regions);
	for (int n = 0; n < 100; n++) {
		uint64_t key = map(domain, &raw);

		for (int k = 0; k < regions; k++)
			same += key == fi_mr_key(own[k]);
		wrong += fi_mr_unmap_key(domain, key) != 0;
	}
	none(same, "no mapped key equals that of a region of the program");
	none(wrong, "and they are unmapped");
	for (int n = 0; n < regions; n++)
		must(fi_close(&own[n]->fid) == 0);

	/* A domain without raw keys: the key is the rkey. */
	count = 1;
	is(rdmamr_resolve(provider, 0x12345678, 0xfedcba9876543210, 1000, &segment, &count), 0,
	   "provider keys: any rkey");
	ok(count == 1 && segment.rkey == 0x12345678 && segment.addr == 0xfedcba9876543210 && segment.length == 1000,
	   "provider keys: is itself, and the address too");
	is(rdmamr_resolve(provider, 0, 0, 1, &segment, &count), 0, "provider keys: 0 too");
	is(rdmamr_resolve(provider, UINT32_MAX, 0, 1, &segment, &count), 0, "provider keys: and the largest");
	is(rdmamr_resolve(provider, 1ULL << 32, 0, 1, &segment, &count), -FI_ENOKEY, "provider keys: one more is none");
	is(rdmamr_resolve(provider, 7, 0, 0, &segment, &count), -FI_EINVAL, "provider keys: but of length 0");
	is(rdmamr_resolve(domain, fi_mr_key(plain), (uintptr_t)flat, 1, &segment, &count), -FI_ENOKEY,
	   "own keys: an rkey is none");

	must(fi_close(&mr->fid) == 0 && fi_close(&plain->fid) == 0);
	is(fi_close(&domain->fid), 0, "the domain is closed");
	is(fi_close(&provider->fid), 0, "and the other");
}

/* FI_MR_RAW: the raw key is the only one. */
static void raw_only(void)
{
	static const int32_t modes[] = { FI_MR_RAW, FI_MR_RAW | FI_MR_VIRT_ADDR,
					 FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY };

	for (size_t n = 0; n < 3; n++) {
		struct fid_domain *domain = NULL;
		struct fid_mr *mr;
		struct raw_key raw;
		uint64_t key;

		must(open_with(pair.pd, FI_VERSION(1, 17), modes[n], 0, &domain) == 0);
		mr = region(domain, arena, 2 * PAGE, FI_ALL, 5);
		ok(fi_mr_key(mr) == FI_KEY_NOTAVAIL, "FI_MR_RAW, %#x: there is no other key", (unsigned int)modes[n]);
		ok(fi_mr_desc(mr) != NULL, "FI_MR_RAW, %#x: but a desc", (unsigned int)modes[n]);
		raw = raw_key_of(mr);
		is((long long)raw.base, modes[n] & FI_MR_VIRT_ADDR ? (long long)(uintptr_t)arena : 0,
		   "FI_MR_RAW, %#x: the base",
		   (unsigned int)modes[n]);
		key = map(domain, &raw);
		reaches(domain, key, &raw, 1, "FI_MR_RAW");
		is(fi_mr_unmap_key(domain, key), 0, "FI_MR_RAW, %#x: unmapped", (unsigned int)modes[n]);
		must(fi_close(&mr->fid) == 0);
		is(fi_close(&domain->fid), 0, "FI_MR_RAW, %#x: closed", (unsigned int)modes[n]);
	}
}

int main(void)
{
	peer_start();
	fabric_begin();
	arena = pages(ARENA / PAGE);
	flat = pages(2 * ARENA / PAGE);
	pair_open(&pair);
	if (pair.iwarp)
		skip_all("iWARP refuses by ending the connection, not by a status");
	peer_connect();
	home = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	local = region(home, flat, 2 * ARENA, FI_ALL, 1);

	as_case(maps(), "mapped raw keys");
	as_case(refused(), "refused raw keys");
	as_case(handles(), "handles");
	as_case(raw_only(), "domains with raw keys only");

	peer_end();
	must(fi_close(&local->fid) == 0 && fi_close(&home->fid) == 0);
	pair_close(&pair);
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
