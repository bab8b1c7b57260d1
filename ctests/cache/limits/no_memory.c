/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The C library has no memory for the library: a call fails with ENOMEM or succeeds, and the next call,
 * when there is memory again, works. The program defines malloc and its kin itself. Each round is a child,
 * in which all allocations of the library from the nth on are refused, or the nth alone.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include "../../lib/fabric.h"
#include "../../lib/stub_rows.h"

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

/* The library's code, and the number of allocations that it gets before they are refused; negative: all. */
static struct dl_find_object library;
static atomic_long left = -1, refusals;
static atomic_bool only_one;

static bool refused(const void *caller)
{
	long now = left;

	if (caller < library.dlfo_map_start || caller >= library.dlfo_map_end || now < 0)
		return false;
	if (now > 0) {
		left = now - 1;
		return false;
	}
	if (only_one)
		left = -1;
	refusals++;
	errno = ENOMEM;
	return true;
}
#define FROM __builtin_return_address(0)

void *malloc(size_t size) { return refused(FROM) ? NULL : __libc_malloc(size); }
void *calloc(size_t number, size_t size) { return refused(FROM) ? NULL : __libc_calloc(number, size); }
void *realloc(void *memory, size_t size) { return refused(FROM) ? NULL : __libc_realloc(memory, size); }
int posix_memalign(void **memory, size_t align, size_t size)
{
	*memory = refused(FROM) ? NULL : __libc_memalign(align, size);
	return *memory ? 0 : ENOMEM;
}
void *aligned_alloc(size_t align, size_t size) { return refused(FROM) ? NULL : __libc_memalign(align, size); }

static char *memory;
static bool must_succeed;

/* Whether a call has succeeded. If it may fail, it fails for want of memory. */
static bool has(ssize_t result)
{
	must(result >= 0 || (result == -FI_ENOMEM && !must_succeed));
	return result >= 0;
}

/*
 * Both kinds of registration, in turn, and then plain ones of other rights, the second of which
 * RDMAMR_CACHE serves by a new region.
 */
static void registers(void)
{
	struct ibv_mr *(*const calls[])(struct ibv_pd *, void *, size_t, int) = { ibv_reg_mr_relaxed, (ibv_reg_mr) };

	for (int n = 0; n < 7; n++) {
		int plain = n % 2 || n >= 4;
		struct ibv_mr *mr;

		errno = 0;
		mr = calls[plain](stub_pd(), memory, PAGE, n < 4 ? LOCAL_AND_REMOTE : IBV_ACCESS_REMOTE_READ);
		if (has(mr ? 0 : -errno))
			must((plain ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) == 0);
	}
}

/* A registration that a thread of the library makes, with its result as an event. */
static void registers_later(struct fid_domain *domain, struct fid_eq *eq)
{
	struct fi_eq_err_entry error = { 0 };
	struct fid_mr *mr = NULL;
	struct fi_eq_entry entry;
	uint32_t event;
	ssize_t got;

	if (!has(fi_domain_bind(domain, &eq->fid, FI_REG_MR)) ||
	    !has(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 1, 0, &mr, NULL)))
		return;
	got = fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0);
	if (got != sizeof entry) {
		must(got == -FI_EAVAIL && !must_succeed);
		must(fi_eq_readerr(eq, &error, 0) == sizeof error && error.err == FI_ENOMEM);
	}
	must(fi_close(&mr->fid) == 0);
}

/* libfabric's objects, keys of the application and events. */
static void registers_for_fabric(void)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof attr, .api_version = FI_VERSION(1, 17), .mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED,
	};
	struct fi_eq_attr eq_attr = { .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
	struct fid_domain *domain = NULL;
	struct fid_mr *regions[64] = { NULL };
	struct fi_eq_entry entry = { 0 };
	struct fid_eq *eq = NULL;

	if (has(rdmamr_domain_open(stub_pd(), &attr, &domain, NULL))) {
		for (int n = 0; n < 64; n++)
			if (!has(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 1000 + n, 0, &regions[n], NULL)))
				regions[n] = NULL;
		for (int n = 0; n < 64; n++)
			must(!regions[n] || fi_close(&regions[n]->fid) == 0);
		must(fi_close(&domain->fid) == 0);
	}
	if (!has(rdmamr_eq_open(FI_VERSION(1, 17), &eq_attr, &eq, NULL)))
		return;
	if (has(rdmamr_domain_open(stub_pd(), &attr, &domain, NULL))) {
		registers_later(domain, eq);
		must(fi_close(&domain->fid) == 0);
	}
	must(fi_eq_write(eq, FI_SHUTDOWN, &entry, (size_t)-1, 0) == -FI_ENOMEM);
	must(fi_eq_write(eq, FI_SHUTDOWN, &entry, (size_t)1 << 60, 0) == -FI_ENOMEM);
	for (int n = 0; n < 64; n++)
		has(fi_eq_write(eq, FI_SHUTDOWN, &entry, sizeof entry, 0));
	must(fi_close(&eq->fid) == 0);
}

/* A round is a child, which must() ends with FAILED. */
enum { GOOD, FAILED, NONE_REFUSED };
static long number;

static int in_round(void)
{
	only_one = row->value;
	left = number;
	registers();
	registers_for_fabric();
	left = -1;
	must_succeed = true;
	registers();
	registers_for_fabric();
	return refusals == 0 ? NONE_REFUSED : GOOD;
}

static void refuses(void)
{
	int status = GOOD;

	for (number = 0; number < 5000 && status == GOOD; number++)
		status = in_forked(in_round);
	is(status, NONE_REFUSED, "calls fail by ENOMEM only, and work again afterwards, in %ld rounds", number);
	ok(number >= 10 && number < 5000, "there were %ld allocations to refuse", number);
}

/* Queues until the library has used up what it keeps for such a time, and then calls that are refused. */
static int in_end_of_reserve(void)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	struct iovec iov = { memory, PAGE };
	struct fid_domain *domain;
	struct fid_mr *mr = NULL;
	int ret = 0;

	must(rdmamr_domain_open(stub_pd(), NULL, &domain, NULL) == 0);
	left = 0;
	for (int n = 0; n < 100000 && ret == 0; n++)
		ret = rdmamr_eq_open(FI_VERSION(1, 17), &attr, &(struct fid_eq *){ NULL }, NULL);
	must(ret == -FI_ENOMEM);
	for (int n = 0; n < 20000; n++) {
		must(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == -FI_ENOMEM);
		must(fi_mr_regv(domain, &iov, 1, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == -FI_ENOMEM);
	}
	left = -1;
	must(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == 0 && fi_close(&mr->fid) == 0);
	return GOOD;
}

static void uses_up(void)
{
	is(in_forked(in_end_of_reserve), GOOD, "each call is then refused with FI_ENOMEM, and with memory none is");
}

#define BOTH(words, with) \
	{ "each allocation is refused alone" words, refuses, true, .flags = NO_PINS, .settings = with }, \
	{ "all allocations from each one on are refused" words, refuses, false, .flags = NO_PINS, .settings = with }

static const struct row rows[] = {
	{ "the reserve ends", uses_up, .flags = NO_PINS },
	BOTH("", NULL),
	BOTH(", with the cache", "RDMAMR_CACHE=all"),
	BOTH(", with the cache and a trace", "RDMAMR_CACHE=all RDMAMR_TRACE=/dev/null"),
};

static void around(void)
{
	must(_dl_find_object(dlsym(RTLD_DEFAULT, "rdmamr_get_stats"), &library) == 0);
	memory = pages(1);
	on_stub();
}

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, around)
