/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The C library has no memory for the library: a call fails with ENOMEM or succeeds, and the next call,
 * when there is memory again, works. The program defines malloc and its kin itself. Each round is a child,
 * in which all allocations of the library from the nth on are refused, or the nth alone.
 */
#include <link.h>
#include <stdatomic.h>
#include "../../lib/fabric.h"
#include "../../lib/stub_rows.h"

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

/* The library's code, and the number of allocations that it gets before they are refused; negative: all. */
static struct {
	uintptr_t start, end;
} library;
static atomic_long left = -1;
static atomic_bool only_one;
static atomic_long refusals;

static bool refused(const void *caller)
{
	uintptr_t at = (uintptr_t)caller;
	long now;

	if (at - library.start >= library.end - library.start || atomic_load(&left) < 0)
		return false;
	now = atomic_load(&left);
	if (now > 0) {
		atomic_store(&left, now - 1);
		return false;
	}
	if (atomic_load(&only_one))
		atomic_store(&left, -1);
	atomic_fetch_add(&refusals, 1);
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

static int find(struct dl_phdr_info *info, size_t size, void *inside)
{
	(void)size;
	for (int n = 0; n < info->dlpi_phnum; n++) {
		uintptr_t start = info->dlpi_addr + info->dlpi_phdr[n].p_vaddr, end = start + info->dlpi_phdr[n].p_memsz;

		if (info->dlpi_phdr[n].p_type == PT_LOAD && (uintptr_t)inside - start < end - start) {
			library.start = start;
			library.end = end;
		}
	}
	return 0;
}

static char *memory;

/*
 * Both kinds of registration, in turn, and then plain ones of other rights, the second of which
 * RDMAMR_CACHE serves by a new region. Returns false if one fails otherwise than by ENOMEM.
 */
static bool registers(bool must_succeed)
{
	struct ibv_mr *(*const calls[])(struct ibv_pd *, void *, size_t, int) = { ibv_reg_mr_relaxed, (ibv_reg_mr) };

	for (int n = 0; n < 7; n++) {
		int plain = n % 2 || n >= 4;
		struct ibv_mr *mr;

		errno = 0;
		mr = calls[plain](stub_pd(), memory, PAGE, n < 4 ? LOCAL_AND_REMOTE : IBV_ACCESS_REMOTE_READ);
		if (!mr && (errno != ENOMEM || must_succeed))
			return false;
		if (mr && (plain ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) != 0)
			return false;
	}
	return true;
}

/* Success, or a failure for want of memory if that may be. */
static bool fine(ssize_t result, bool must_succeed) { return result >= 0 || (result == -FI_ENOMEM && !must_succeed); }

/* A registration that a thread of the library makes, with its result as an event. */
static bool registers_later(struct fid_domain *domain, struct fid_eq *eq, bool must_succeed)
{
	struct fi_eq_err_entry error = { 0 };
	struct fid_mr *mr = NULL;
	struct fi_eq_entry entry;
	uint32_t event;
	ssize_t got;
	int ret = fi_domain_bind(domain, &eq->fid, FI_REG_MR);
	bool good;

	if (!ret)
		ret = fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 1, 0, &mr, NULL);
	if (ret)
		return fine(ret, must_succeed);
	got = fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0);
	good = got == sizeof entry;
	if (got == -FI_EAVAIL)
		good = fi_eq_readerr(eq, &error, 0) == sizeof error && error.err == FI_ENOMEM && !must_succeed;
	return fi_close(&mr->fid) == 0 && good;
}

/* libfabric's objects, keys of the application and events. */
static bool registers_for_fabric(bool must_succeed)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof attr, .api_version = FI_VERSION(1, 17), .mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED,
	};
	struct fi_eq_attr eq_attr = { .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
	struct fid_domain *domain = NULL;
	struct fid_mr *regions[64] = { NULL };
	struct fi_eq_entry entry = { 0 };
	struct fid_eq *eq = NULL;
	int ret = rdmamr_domain_open(stub_pd(), &attr, &domain, NULL);
	bool good = fine(ret, must_succeed);

	if (ret == 0) {
		for (int n = 0; n < 64; n++) {
			ret = fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 1000 + n, 0, &regions[n], NULL);
			good = fine(ret, must_succeed) && good;
			if (ret)
				regions[n] = NULL;
		}
		for (int n = 0; n < 64; n++)
			good = (!regions[n] || fi_close(&regions[n]->fid) == 0) && good;
		good = fi_close(&domain->fid) == 0 && good;
	}
	ret = rdmamr_eq_open(FI_VERSION(1, 17), &eq_attr, &eq, NULL);
	good = fine(ret, must_succeed) && good;
	if (ret)
		return good;
	domain = NULL;
	if (rdmamr_domain_open(stub_pd(), &attr, &domain, NULL) == 0) {
		good = registers_later(domain, eq, must_succeed) && good;
		good = fi_close(&domain->fid) == 0 && good;
	}
	good = fi_eq_write(eq, FI_SHUTDOWN, &entry, (size_t)-1, 0) == -FI_ENOMEM && good;
	good = fi_eq_write(eq, FI_SHUTDOWN, &entry, (size_t)1 << 60, 0) == -FI_ENOMEM && good;
	for (int n = 0; n < 64; n++)
		good = fine(fi_eq_write(eq, FI_SHUTDOWN, &entry, sizeof entry, 0), must_succeed) && good;
	return fi_close(&eq->fid) == 0 && good;
}

static bool registers_all(bool must_succeed) { return registers(must_succeed) && registers_for_fabric(must_succeed); }

enum { GOOD, WRONG, NONE_REFUSED };
static long number;

/* A round, in a child. */
static int in_round(void)
{
	bool good;

	atomic_store(&only_one, row->value);
	atomic_store(&left, number);
	good = registers_all(false);
	atomic_store(&left, -1);
	good = registers_all(true) && good;
	return !good ? WRONG : refusals == 0 ? NONE_REFUSED : GOOD;
}

static void refuses(void)
{
	int status = GOOD;

	must(dl_iterate_phdr(find, dlsym(RTLD_DEFAULT, "rdmamr_get_stats")) == 0 && library.end);
	memory = pages(1);
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
	bool good;

	must(rdmamr_domain_open(stub_pd(), NULL, &domain, NULL) == 0);
	atomic_store(&left, 0);
	for (int n = 0; n < 100000 && ret == 0; n++)
		ret = rdmamr_eq_open(FI_VERSION(1, 17), &attr, &(struct fid_eq *){ NULL }, NULL);
	good = ret == -FI_ENOMEM;
	for (int n = 0; n < 20000 && good; n++)
		good = fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == -FI_ENOMEM &&
		       fi_mr_regv(domain, &iov, 1, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == -FI_ENOMEM;
	atomic_store(&left, -1);
	good = fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 0, 0, &mr, NULL) == 0 && good;
	return good && fi_close(&mr->fid) == 0 ? GOOD : WRONG;
}

static void uses_up(void)
{
	must(dl_iterate_phdr(find, dlsym(RTLD_DEFAULT, "rdmamr_get_stats")) == 0 && library.end);
	memory = pages(1);
	is(in_forked(in_end_of_reserve), GOOD, "each call is then refused with FI_ENOMEM, and with memory none is");
}

#define BOTH(words, with) \
	{ "each allocation is refused alone" words, refuses, true, .flags = NO_PINS, .settings = with }, \
	{ "all allocations from each one on are refused" words, refuses, false, .flags = NO_PINS, .settings = with }

static const struct row rows[] = {
	{ "the reserve ends", uses_up, .flags = NO_PINS },
	BOTH("", NULL),
	BOTH(", with the cache", "RDMAMR_CACHE=all"),
	BOTH(", with the cache and a trace", "RDMAMR_CACHE=all RDMAMR_TRACE=/tmp/no_memory.trace"),
};

int main(int argc, char **argv)
{
	int failed;

	(void)argc;
	failed = run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
	unlink("/tmp/no_memory.trace");
	return failed;
}
