/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Each of libfabric's inline functions beside the library's symbol of the same name, on the same
 * objects: the same results, the same outputs and the same reasons, for success and for each error.
 * So a test that goes through the inline functions holds for the symbols too.
 */
#include "../lib/fabric.h"

/* The calls of one way. */
struct calls {
	__typeof__(&fi_mr_reg) mr_reg;
	__typeof__(&fi_mr_regv) mr_regv;
	__typeof__(&fi_mr_regattr) mr_regattr;
	__typeof__(&fi_close) close;
	__typeof__(&fi_mr_desc) mr_desc;
	__typeof__(&fi_mr_key) mr_key;
	__typeof__(&fi_mr_bind) mr_bind;
	__typeof__(&fi_mr_enable) mr_enable;
	__typeof__(&fi_mr_refresh) mr_refresh;
	__typeof__(&fi_mr_raw_attr) mr_raw_attr;
	__typeof__(&fi_mr_map_raw) mr_map_raw;
	__typeof__(&fi_mr_unmap_key) mr_unmap_key;
	__typeof__(&fi_domain_bind) domain_bind;
	__typeof__(&fi_control) control;
	__typeof__(&fi_eq_read) eq_read;
	__typeof__(&fi_eq_readerr) eq_readerr;
	__typeof__(&fi_eq_write) eq_write;
	__typeof__(&fi_eq_sread) eq_sread;
	__typeof__(&fi_eq_strerror) eq_strerror;
};

static const struct calls inlines = {
	fi_mr_reg, fi_mr_regv, fi_mr_regattr, fi_close, fi_mr_desc, fi_mr_key, fi_mr_bind, fi_mr_enable, fi_mr_refresh,
	fi_mr_raw_attr, fi_mr_map_raw, fi_mr_unmap_key, fi_domain_bind, fi_control, fi_eq_read, fi_eq_readerr,
	fi_eq_write, fi_eq_sread, fi_eq_strerror,
};
static struct calls symbols;
static const struct calls *const both[2] = { &inlines, &symbols };

static struct ibv_pd *pd;
static struct fid_domain *domain;
static char *memory;

static void find_symbols(void)
{
	static const char *const names[] = {
		"fi_mr_reg", "fi_mr_regv", "fi_mr_regattr", "fi_close", "fi_mr_desc", "fi_mr_key", "fi_mr_bind",
		"fi_mr_enable", "fi_mr_refresh", "fi_mr_raw_attr", "fi_mr_map_raw", "fi_mr_unmap_key", "fi_domain_bind",
		"fi_control", "fi_eq_read", "fi_eq_readerr", "fi_eq_write", "fi_eq_sread", "fi_eq_strerror",
	};
	void *found[sizeof(names) / sizeof(*names)];

	_Static_assert(sizeof(found) == sizeof(symbols), "a name for each call");
	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
		found[n] = exported(names[n]);
	memcpy(&symbols, found, sizeof(symbols));
	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++) {
		void *inlined;

		memcpy(&inlined, (const char *)&inlines + n * sizeof(void *), sizeof(inlined));
		ok(inlined != found[n], "%s: two functions", names[n]);
	}
}

/* The outcome of an attempt, by each way. */
static struct {
	long value;
	char reason[400];
} outcomes[2];

/*
 * Tries an expression of `by`, the calls of a way, by each way; their results must be `want`, and
 * the reasons equal.
 */
#define ATTEMPT(want, name, expression)                                        \
	do {                                                                   \
		for (int way = 0; way < 2; way++) {                            \
			const struct calls *by = both[way];                    \
									       \
			outcomes[way].value = (long)(expression);              \
			snprintf(outcomes[way].reason, sizeof(outcomes[way].reason), "%s", rdmamr_last_reason()); \
			is(outcomes[way].value, (want), "%s, by the %s", name, way ? "symbol" : "inline function"); \
		}                                                              \
		if (outcomes[0].value < 0)                                     \
			ok(!strcmp(outcomes[0].reason, outcomes[1].reason), "%s: the same reason: %s / %s", name, \
			   outcomes[0].reason, outcomes[1].reason);            \
	} while (0)

/* A registration that succeeded has the requested key, and the way that made it closes it. */
static long good(const struct calls *by, int ret, struct fid_mr **mr, uint64_t key)
{
	long value = ret;

	if (ret)
		return ret;
	/* A region of several buffers has no descriptor, by either way. */
	value += inlines.mr_key(*mr) == key && symbols.mr_key(*mr) == key ? 0 : 1000;
	value += inlines.mr_desc(*mr) == symbols.mr_desc(*mr) ? 0 : 2000;
	return value + by->close(&(*mr)->fid);
}

static void registers(void)
{
	struct fid_mr *taken = region(domain, memory, PAGE, FI_ALL, 7), *mr = NULL;

	case_begin("fi_mr_reg, fi_mr_key, fi_mr_desc");
	ATTEMPT(0, "a buffer", good(by, by->mr_reg(domain, memory, PAGE, FI_ALL, 0, 8, 0, &mr, NULL), &mr, 8));
	ATTEMPT(-FI_ENOKEY, "a key that is taken", by->mr_reg(domain, memory, PAGE, FI_ALL, 0, 7, 0, &mr, NULL));
	ATTEMPT(-FI_EFAULT, "unmapped memory", by->mr_reg(domain, NOWHERE, PAGE, FI_ALL, 0, 9, 0, &mr, NULL));
	ATTEMPT(-FI_EBADFLAGS, "an unknown flag", by->mr_reg(domain, memory, PAGE, FI_ALL, 0, 9, 1ULL << 62, &mr, NULL));
	ATTEMPT(-FI_EINVAL, "an unknown right", by->mr_reg(domain, memory, PAGE, 1ULL << 62, 0, 9, 0, &mr, NULL));
	ok(fi_mr_key(taken) == symbols.mr_key(taken) && fi_mr_key(taken) == 7, "one key");
	ok(fi_mr_desc(taken) == symbols.mr_desc(taken) && fi_mr_desc(taken), "one descriptor");
	case_end();
	must(fi_close(&taken->fid) == 0);
}

static void registers_vectors(void)
{
	struct iovec iov[2] = { { memory, PAGE }, { memory + 4 * PAGE, PAGE } }, nowhere = { NOWHERE, PAGE };
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 2, .access = FI_ALL, .requested_key = 8 };
	struct fi_mr_attr empty = { .mr_iov = iov, .iov_count = 0, .access = FI_ALL, .requested_key = 8 };
	struct fi_mr_attr unmapped = { .mr_iov = &nowhere, .iov_count = 1, .access = FI_ALL, .requested_key = 8 };
	struct fid_mr *mr = NULL;

	case_begin("fi_mr_regv");
	ATTEMPT(0, "two buffers", good(by, by->mr_regv(domain, iov, 2, FI_ALL, 0, 8, 0, &mr, NULL), &mr, 8));
	ATTEMPT(-FI_EINVAL, "no buffer", by->mr_regv(domain, iov, 0, FI_ALL, 0, 8, 0, &mr, NULL));
	ATTEMPT(-FI_EINVAL, "too many", by->mr_regv(domain, iov, 10000, FI_ALL, 0, 8, 0, &mr, NULL));
	ATTEMPT(-FI_EFAULT, "unmapped memory", by->mr_regv(domain, &nowhere, 1, FI_ALL, 0, 8, 0, &mr, NULL));
	ATTEMPT(-FI_EBADFLAGS, "an unknown flag", by->mr_regv(domain, iov, 2, FI_ALL, 0, 8, 1ULL << 62, &mr, NULL));
	case_end();

	case_begin("fi_mr_regattr");
	ATTEMPT(0, "two buffers", good(by, by->mr_regattr(domain, &attr, 0, &mr), &mr, 8));
	ATTEMPT(-FI_EINVAL, "no buffer", by->mr_regattr(domain, &empty, 0, &mr));
	ATTEMPT(-FI_EFAULT, "unmapped memory", by->mr_regattr(domain, &unmapped, 0, &mr));
	ATTEMPT(-FI_EBADFLAGS, "an unknown flag", by->mr_regattr(domain, &attr, 1ULL << 62, &mr));
	case_end();
}

/* The same if the two ways need only agree with each other. */
static long first;
#define SAME(name, expression)                                                 \
	do {                                                                   \
		const struct calls *by = both[0];                              \
									       \
		first = (long)(expression);                                    \
		ATTEMPT(first, name, expression);                              \
	} while (0)

static void of_a_region(void)
{
	struct fid_mr *mr = region(domain, memory, PAGE, FI_ALL, 7);
	struct fid_eq *queue = NULL;
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	struct iovec iov = { memory, PAGE };
	uint8_t raw[2][512] = { { 0 } };
	size_t size;
	uint64_t base = 0, key = 0, found[2] = { 0 };

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &queue, NULL) == 0);
	case_begin("fi_mr_bind, fi_mr_enable, fi_mr_refresh, fi_control of a region");
	SAME("bind to a queue", by->mr_bind(mr, &queue->fid, 0));
	SAME("bind with a flag", by->mr_bind(mr, &queue->fid, 1ULL << 62));
	SAME("enable", by->mr_enable(mr));
	SAME("refresh", by->mr_refresh(mr, &iov, 1, 0));
	SAME("refresh with a flag", by->mr_refresh(mr, &iov, 1, 1ULL << 62));
	SAME("an unknown command", by->control(&mr->fid, 12345, NULL));
	case_end();

	case_begin("fi_mr_raw_attr");
	for (int way = 0; way < 2; way++) {
		size = sizeof(raw[way]);
		is(both[way]->mr_raw_attr(mr, &base, raw[way], &size, 0), 0, "a raw key");
		is((long long)base, 0, "the base of offsets");
		found[way] = size;
	}
	ok(found[0] == found[1] && found[0] && !memcmp(raw[0], raw[1], found[0]), "the same bytes");
	ATTEMPT(-FI_ETOOSMALL, "no room", (size = 1, by->mr_raw_attr(mr, &base, raw[0], &size, 0)));
	is((long long)size, (long long)found[0], "the size that it takes");
	memcpy(raw[0], raw[1], sizeof(raw[0]));
	SAME("an unknown flag", (size = sizeof(raw[0]), by->mr_raw_attr(mr, &base, raw[0], &size, 1ULL << 62)));
	case_end();

	case_begin("fi_mr_map_raw, fi_mr_unmap_key");
	for (int way = 0; way < 2; way++) {
		is(both[way]->mr_map_raw(domain, base, raw[1], found[0], &key, 0), 0, "mapped");
		is(both[way]->mr_unmap_key(domain, key), 0, "unmapped");
	}
	ATTEMPT(-FI_EINVAL, "a wrong size", by->mr_map_raw(domain, base, raw[1], found[0] - 1, &key, 0));
	SAME("an unknown flag", by->mr_map_raw(domain, base, raw[1], found[0], &key, 1ULL << 62));
	SAME("a key that is not mapped", by->mr_unmap_key(domain, 99999));
	case_end();

	case_begin("fi_close of a domain with a region");
	ATTEMPT(-FI_EBUSY, "a domain in use", by->close(&domain->fid));
	case_end();
	must(fi_close(&mr->fid) == 0 && fi_close(&queue->fid) == 0);
}

static void of_a_domain(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	struct fid_domain *domains[2];
	struct fid_eq *queue = NULL;

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &queue, NULL) == 0);
	case_begin("fi_domain_bind, fi_control of a domain");
	for (int way = 0; way < 2; way++)
		domains[way] = open_kind(pd, &kinds[OFFSETS]);
	ATTEMPT(0, "bind to a queue", by->domain_bind(domains[by == &symbols], &queue->fid, FI_REG_MR));
	ATTEMPT(-FI_EBUSY, "close a queue in use", by->close(&queue->fid));
	SAME("bind with an unknown flag", by->domain_bind(domains[0], &queue->fid, 1ULL << 62));
	SAME("bind once more", by->domain_bind(domains[0], &queue->fid, FI_REG_MR));
	SAME("bind to a domain", by->domain_bind(domains[0], &domains[1]->fid, 0));
	SAME("an unknown command", by->control(&domains[0]->fid, 12345, NULL));
	ATTEMPT(0, "close", by->close(&domains[by == &symbols]->fid));
	case_end();
	must(fi_close(&queue->fid) == 0);
}

static void of_a_queue(void)
{
	struct fi_eq_attr attr = { .flags = FI_WRITE, .wait_obj = FI_WAIT_UNSPEC };
	struct fid_eq *queue = NULL;
	struct fi_eq_err_entry failure = { 0 };
	char sent[8] = "1234567", back[8] = "";
	uint32_t event = 0;

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &queue, NULL) == 0);
	case_begin("fi_eq_write, fi_eq_read, fi_eq_sread, fi_eq_readerr, fi_eq_strerror, fi_control of a queue");
	ATTEMPT(-FI_EAGAIN, "read of nothing", by->eq_read(queue, &event, back, 8, 0));
	ATTEMPT(-FI_EAGAIN, "sread of nothing", by->eq_sread(queue, &event, back, 8, 0, 0));
	ATTEMPT(-FI_EAGAIN, "readerr of nothing", by->eq_readerr(queue, &failure, 0));
	ATTEMPT(8, "write", by->eq_write(queue, 77, sent, 8, 0));
	ATTEMPT(-FI_ETOOSMALL, "read into too little", by->eq_read(queue, &event, back, 1, 0));
	ATTEMPT(8, "peek", by->eq_read(queue, &event, back, 8, FI_PEEK));
	ATTEMPT(8, "read", (event = 0, by->eq_read(queue, &event, back, 8, 0)));
	ok(event == 77 && !memcmp(sent, back, 8), "the event that was written");
	ATTEMPT(8, "write and sread", (by->eq_write(queue, 78, sent, 8, 0), by->eq_sread(queue, &event, back, 8, 0, 0)));
	is(event, 78, "its event");
	SAME("write with an unknown flag", by->eq_write(queue, 77, sent, 8, 1ULL << 62));
	SAME("read with an unknown flag", by->eq_read(queue, &event, back, 8, 1ULL << 62));
	for (int code = -1; code < 40; code++) {
		char text[2][100] = { "", "" };

		for (int way = 0; way < 2; way++) {
			const char *said = both[way]->eq_strerror(queue, code, NULL, text[way], sizeof(text[way]));

			must(said);
			snprintf(text[way], sizeof(text[way]), "%s", said == text[way] ? text[way] : said);
		}
		ok(!strcmp(text[0], text[1]) && text[0][0], "code %d: %s / %s", code, text[0], text[1]);
	}
	SAME("an unknown command", by->control(&queue->fid, 12345, NULL));
	case_end();
	must(fi_close(&queue->fid) == 0);
}

int main(void)
{
	struct ibv_context *context;

	fabric_begin();
#ifdef RDMAMR_NO_LIBFABRIC
	skip_all("without libfabric's headers there is no inline function");
#endif
	case_begin("each call is two functions");
	find_symbols();
	case_end();
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	memory = pages(8);
	domain = open_kind(pd, &kinds[OFFSETS]);
	registers();
	registers_vectors();
	of_a_region();
	of_a_domain();
	of_a_queue();
	is(fi_close(&domain->fid), 0, "the domain is closed");
	is(ibv_dealloc_pd(pd), 0, "and the PD has no region");
	is(ibv_close_device(context), 0, "the device is closed");
	return done_testing();
}
