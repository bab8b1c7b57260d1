/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * matrix PROVIDER: the answers of a provider of libfabric to calls that the documents describe and
 * that providers interpret differently. Asserts nothing: each line is a question and its answer,
 * with a bar between. Ends by "done", which a crash prevents.
 *
 * The device of rdmamr is CHECK_DEVICE; verbs finds its device by the address CHECK_ADDRESS.
 */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096 };
#define ALL (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *queue;
static char memory[16 * PAGE] __attribute__((aligned(4096)));
static bool ours, verbs;

static const char *name_of(long long ret)
{
#define NAME(error) { error, "-" #error }
	static const struct { int value; const char *name; } names[] = {
		NAME(FI_ENOKEY), NAME(FI_EBADFLAGS), NAME(FI_EINVAL), NAME(FI_EFAULT), NAME(FI_ENOSYS), NAME(FI_EBUSY), NAME(FI_ENOMEM),
		NAME(FI_EOPBADSTATE), NAME(FI_ETOOSMALL), NAME(FI_EAGAIN), NAME(FI_EKEYREJECTED), NAME(FI_EAVAIL), NAME(FI_ENODATA),
		NAME(FI_EOPNOTSUPP),
	};
	static char number[40];

	for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
		if (ret == -names[n].value)
			return names[n].name;
	snprintf(number, sizeof(number), "%lld", ret);
	return number;
}

static void answer(const char *question, const char *words)
{
	printf("%s|%s\n", question, words);
	fflush(stdout);
}

static void answers(const char *question, long long ret)
{
	answer(question, name_of(ret));
}

static void need(int ret, const char *what)
{
	if (!ret)
		return;
	printf("# %s: %d (%s)\n", what, ret, fi_strerror(-ret));
	exit(1);
}

static void open_provider(const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC, .flags = verbs ? FI_WRITE : 0 };
	const char *address = getenv("CHECK_ADDRESS");

	need(hints ? 0 : -FI_ENOMEM, "fi_allocinfo");
	hints->fabric_attr->prov_name = strdup(provider);
	hints->mode = ~0ULL;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED;
	if (verbs) {
		hints->caps = FI_MSG | FI_RMA;
		hints->ep_attr->type = FI_EP_MSG;
		hints->domain_attr->mr_mode |= FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	} else if (ours && getenv("CHECK_DEVICE")) {
		hints->domain_attr->name = strdup(getenv("CHECK_DEVICE"));
	} else {
		hints->caps = FI_MSG | FI_RMA;
	}
	need(fi_getinfo(FI_VERSION(1, 17), verbs ? address : NULL, NULL, verbs && address ? FI_SOURCE : 0, hints, &info),
	     "fi_getinfo");
	/* Not one that another provider is stacked on. */
	while (info->next && strchr(info->fabric_attr->prov_name, ';'))
		info = info->next;
	fi_freeinfo(hints);
	printf("# %s, domain %s\n", info->fabric_attr->prov_name, info->domain_attr->name);
	need(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	need(fi_eq_open(fabric, &attr, &queue, NULL), "fi_eq_open");
}

/*
 * A question may leave something behind: verbs keeps the region of no buffer, and then finds all
 * memory in it.
 */
static void fresh_domain(void)
{
	if (domain)
		fi_close(&domain->fid);
	need(fi_domain(fabric, info, &domain, NULL), "fi_domain");
}

static int reg(const void *buf, size_t length, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
	       struct fid_mr **mr)
{
	*mr = NULL;
	return fi_mr_reg(domain, buf, length, access, offset, key, flags, mr, mr);
}

/* A registration that is closed at once. */
static void registers(const char *question, const void *buf, size_t length, uint64_t access, uint64_t offset, uint64_t flags)
{
	struct fid_mr *mr;
	int ret;

	fresh_domain();
	ret = reg(buf, length, access, offset, 100, flags, &mr);
	answers(question, ret);
	if (!ret && mr)
		fi_close(&mr->fid);
}

static void pieces(const char *question, const struct iovec *iov, size_t count)
{
	struct fid_mr *mr = NULL;
	int ret;

	fresh_domain();
	ret = fi_mr_regv(domain, iov, count, ALL, 0, 100, 0, &mr, NULL);
	answers(question, ret);
	if (!ret && mr)
		fi_close(&mr->fid);
}

static int refuses(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

static void counter(struct fid_mr *mr)
{
	static const char question[] = "`fi_mr_bind` of a counter, `FI_REMOTE_WRITE`";
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fi_ops ops = { .size = sizeof(ops), .bind = refuses };
	struct fid_cntr *counter = NULL, any = { .fid = { .fclass = FI_CLASS_CNTR, .ops = &ops } };
	int ret = fi_cntr_open(domain, &attr, &counter, NULL);

	if (!ret) {
		answers(question, fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE));
		fi_close(&counter->fid);
	} else if (ours) {
		/* It has none of its own, and checks only the class of another's. */
		answers(question, fi_mr_bind(mr, &any.fid, FI_REMOTE_WRITE));
	} else {
		answer(question, "has no counters");
	}
}

static void raw_keys(struct fid_mr *mr)
{
	uint8_t raw[1024] = { 0 };
	size_t size = sizeof(raw);
	uint64_t base = 0, key = 0;
	int ret = fi_mr_raw_attr(mr, &base, raw, &size, 0);

	answers("`fi_mr_raw_attr`", ret);
	ret = fi_mr_map_raw(domain, base, raw, ret ? 8 : size, &key, 0);
	answers("`fi_mr_map_raw`", ret);
	answers("`fi_mr_unmap_key`", fi_mr_unmap_key(domain, ret ? 1 : key));
}

/* Asynchronous: nine registrations of three buffers, so that a cache serves some. */
static void asynchronous(void)
{
	enum { COUNT = 9 };
	struct fid_mr *mrs[COUNT] = { 0 };
	int ret, made = 0, events = 0, fids = 0, contexts = 0;
	char words[80];

	fresh_domain();
	ret = fi_domain_bind(domain, &queue->fid, FI_REG_MR);
	answers("`fi_domain_bind` of an event queue, `FI_REG_MR`", ret);
	if (!ret) {
		for (int n = 0; n < COUNT; n++)
			made += !reg(memory + n % 3 * 2 * PAGE, PAGE, ALL, 0, (uint64_t)n + 1, 0, &mrs[n]);
		for (;;) {
			struct fi_eq_entry entry = { 0 };
			uint32_t event = 0;
			bool known = false;
			ssize_t got = fi_eq_sread(queue, &event, &entry, sizeof(entry), 500, 0);

			if (got < 0 || event != FI_MR_COMPLETE || ++events > 100)
				break;
			for (int n = 0; n < COUNT; n++)
				known = known || (mrs[n] && entry.fid == &mrs[n]->fid);
			fids += known;
			known = false;
			for (int n = 0; n < COUNT; n++)
				known = known || entry.context == &mrs[n];
			contexts += known;
		}
		for (int n = 0; n < COUNT; n++)
			if (mrs[n])
				fi_close(&mrs[n]->fid);
	}
	snprintf(words, sizeof(words), "%d of %d", events, made);
	answer("then: registrations that are reported", ret ? "no binding" : words);
	snprintf(words, sizeof(words), "%d of %d", fids, events);
	answer("reports that name the region", ret ? "no binding" : words);
	snprintf(words, sizeof(words), "%d of %d", contexts, events);
	answer("reports with the call's context", ret ? "no binding" : words);
}

int main(int argc, char **argv)
{
	char *hole = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const struct { const char *question; const void *buf; size_t length; uint64_t access, offset; } rows[] = {
		{ "length 0", memory, 0, ALL, 0 },
		{ "offset 4", memory, PAGE, ALL, 4 },
		{ "memory that is not mapped", hole, PAGE, ALL, 0 },
		{ "read-only memory, to send from", constant, PAGE, FI_SEND, 0 },
		{ "access 0", memory, PAGE, 0, 0 },
		{ "unknown access bits (`1 << 35`)", memory, PAGE, ALL | 1ULL << 35, 0 },
		{ "length `SIZE_MAX`", memory, SIZE_MAX, ALL, 0 },
		{ "past the end of the address space", (void *)(UINTPTR_MAX - PAGE), 2 * PAGE, ALL, 0 },
	};
	struct fid_mr *mr, *other;
	struct iovec apart[2];
	int ret;

	if (argc != 2 || hole == MAP_FAILED || constant == MAP_FAILED)
		return 2;
	ours = !strcmp(argv[1], "rdmamr");
	verbs = !strcmp(argv[1], "verbs");
	open_provider(argv[1]);
	munmap(hole, 2 * PAGE);
	apart[0] = (struct iovec){ memory, PAGE };
	apart[1] = (struct iovec){ memory + 4 * PAGE, PAGE };

	fresh_domain();
	need(reg(memory, PAGE, ALL, 0, 7, 0, &mr), "fi_mr_reg");
	answer("`fid.context` of a region", mr->fid.context == &mr ? "the call's" : mr->fid.context ? "another" : "`NULL`");
	other = NULL;
	ret = fi_mr_reg(domain, memory + PAGE, PAGE, ALL, 0, 7, 0, &other, &other);
	answers("a `requested_key` that is in use", ret);
	if (!ret)
		fi_close(&other->fid);
	fi_close(&mr->fid);
	registers("unknown flags (`1 << 35`)", memory, PAGE, ALL, 0, 1ULL << 35);
	pieces("`fi_mr_regv`, 2 buffers", apart, 2);
	pieces("`fi_mr_regv`, no buffer", apart, 0);
	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++)
		registers(rows[n].question, rows[n].buf, rows[n].length, rows[n].access, rows[n].offset, 0);
	fresh_domain();
	need(reg(memory, PAGE, ALL, 0, 7, 0, &mr), "fi_mr_reg");
	answers("`fi_mr_bind` of an event queue", fi_mr_bind(mr, &queue->fid, FI_REMOTE_WRITE));
	counter(mr);
	answers("`fi_mr_enable`", fi_mr_enable(mr));
	answers("`fi_mr_refresh`", fi_mr_refresh(mr, apart, 1, 0));
	raw_keys(mr);
	need(fi_close(&mr->fid), "fi_close");
	asynchronous();
	printf("done|\n");
	return 0;
}
