/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE costs nothing until a range is registered again: the second registration of a range
 * makes a region that the cache keeps, the third one reuses it, and the data lands each time. Each
 * registration that the cache does not serve is counted with the reason. A provider may deallocate
 * a parent domain while regions of it exist.
 */
#include <dlfcn.h>
#include "../../lib/observe.h"
#include "../../lib/stub_rows.h"

enum { RANGES = 500, APART = 2 * PAGE, BUFFER = 16 * PAGE, TIMES = 4 };

static struct rdmamr_stats before;

/* The registrations since the last call: first ones, new cached regions, hits. */
static bool were(int first, int made, int hits)
{
	struct rdmamr_stats after = stats();
	bool as_said = after.bypassed_first - before.bypassed_first == (unsigned)first &&
		       after.misses - before.misses == (unsigned)made && after.hits - before.hits == (unsigned)hits;

	if (!as_said)
		show(before, after);
	before = after;
	return as_said;
}

static bool put(struct ibv_pd *pd, void *at, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, at, length, access);
	bool landed;

	must(mr);
	landed = row->flags & NO_PINS || stub_lands(mr);
	must(ibv_dereg_mr(mr) == 0);
	return landed;
}

/* What it costs. */

static _Atomic long calls; /* of the system, by number, as the library makes them */

static void count(long number, const long argument[6])
{
	(void)number, (void)argument;
	calls++;
}

/* The first registration of a process sets up what all have. */
static void costs_nothing(void)
{
	char *memory = pages((size_t)RANGES * APART / PAGE);
	int threads, descriptors, before_mappings;
	long address_space;

	put(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	threads = entries("/proc/self/task");
	descriptors = entries("/proc/self/fd");
	before_mappings = mappings();
	address_space = field_of("/proc/self/status", "VmSize");
	stub_before = count;
	for (int n = 1; n < RANGES; n++)
		put(stub_pd(), memory + n * APART, PAGE, LOCAL_AND_REMOTE);
	stub_before = NULL;
	is(calls, RANGES - 1, "system calls, one of the stand-in for each registration");
	is(entries("/proc/self/task"), threads, "threads");
	is(entries("/proc/self/fd"), descriptors, "descriptors");
	is(mappings(), before_mappings, "mappings");
	is(field_of("/proc/self/status", "VmSize"), address_space, "KiB of address space");
}

/* Which registration is cached. */

static bool no_cache(void) { return userfaultfds(NULL) == 0 && entries("/proc/self/task") == 3; }

static void comes_back(void)
{
	struct ibv_pd *pd = stub_pd();
	char *memory = pages(8);
	struct ibv_mr *held;

	before = stats();
	ok(put(pd, memory, PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0) && no_cache(), "the first registration is plain");
	ok(put(stub_other_pd(), memory, PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0), "another domain is another range");
	ok(put(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE) && were(1, 0, 0), "other access is another range");
	ok(put(pd, memory, 2 * PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0), "another length is another range");
	ok(put(pd, memory + PAGE, PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0) && no_cache(), "another page is another range");
	held = ibv_reg_mr(pd, memory + 4 * PAGE, PAGE, LOCAL_AND_REMOTE);
	ok(held && put(pd, memory + 4 * PAGE, PAGE, LOCAL_AND_REMOTE) && were(2, 0, 0) && no_cache(),
	   "a range that was never released is not registered again");
	must(ibv_dereg_mr(held) == 0);
	ok(put(pd, memory + 100, PAGE - 200, LOCAL_AND_REMOTE) && were(0, 1, 0), "the second, of the same page: it is cached");
	ok(put(pd, memory, PAGE, LOCAL_AND_REMOTE) && were(0, 0, 1), "the third: a hit");
}

/* Each buffer is mapped, registered, released and unmapped, as a rule at the address of the one before. */
static void mapped_anew(void)
{
	bool again = false;
	char *last = NULL;

	before = stats();
	for (int n = 0; n < 100; n++) {
		char *buffer = untouched(BUFFER);

		again = again || buffer == last;
		last = buffer;
		must(put(stub_pd(), buffer, BUFFER, LOCAL_AND_REMOTE) && munmap(buffer, BUFFER) == 0);
	}
	ok(again && were(100, 0, 0) && no_cache(), "it counts as new each time");
}

/* A relaxed registration may use the region of a plain one, which may not change it then. */
static void shared_with_relaxed(void)
{
	struct ibv_mr *plain, *relaxed;
	char *page = pages(1);
	int code;

	for (int n = 0; n < 2; n++)
		must(put(stub_pd(), page, PAGE, LOCAL_AND_REMOTE));
	plain = ibv_reg_mr(stub_pd(), page, PAGE, LOCAL_AND_REMOTE);
	relaxed = reg(page, PAGE);
	must(plain && plain->lkey == relaxed->lkey);
	errno = 0;
	code = ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	ok(code == IBV_REREG_MR_ERR_INPUT && errno == EINVAL, "it is not changed: %d", code);
	ok(stub_lands(plain) && stub_lands(relaxed), "both can be used");
	is(ibv_dereg_mr(plain), 0, "the plain one ends");
	ok(stub_lands(relaxed), "the relaxed one can be used");
	is(ibv_dereg_mr_relaxed(relaxed), 0, "it ends");
	is(in_device(), (long long)stats().idle, "no region is left but idle ones");
}

/* What is counted and said. */

static void registers(char *page, int access, uint64_t iova)
{
	for (int n = 0; n < TIMES; n++) {
		struct ibv_mr *mr = ibv_reg_mr_iova(stub_pd(), page, PAGE, iova, access);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

static void not_served(void)
{
	char *page = pages(1);
	struct rdmamr_stats after;

	before = stats();
	registers(page, LOCAL_AND_REMOTE, (uintptr_t)page);
	ok(were(1, 1, TIMES - 2), "the cache serves a plain registration whose range was registered before");
	is(times_said("the cache reuses regions, remotely accessible ones included: a key stays valid after ibv_dereg_mr for 600 s"),
	   1, "RDMAMR_LOG=info says once what the program gives up");
	registers(page, LOCAL_AND_REMOTE, (uintptr_t)page + PAGE);
	registers(page, LOCAL_AND_REMOTE | IBV_ACCESS_MW_BIND, (uintptr_t)page);
	after = stats();
	is((long long)(after.bypassed_address - before.bypassed_address), TIMES, "counted: an iova of its own");
	is((long long)(after.bypassed_access - before.bypassed_access), TIMES, "counted: access for windows");
	ok(!after.bypassed_fork && were(0, 0, 0), "and nothing else");
	is(times_said("RDMAMR_CACHE=all is without effect"), 0, "and not that RDMAMR_CACHE is without effect");
}

/* Where the kernel's RDMA is loaded, it says that it copies registered memory for children. */
static void with_fork(void)
{
	char *page = pages(1);

	must(ibv_fork_init() == 0);
	if (ibv_is_fork_initialized() == IBV_FORK_UNNEEDED) {
		not_served();
		return;
	}
	registers(page, LOCAL_AND_REMOTE, (uintptr_t)page);
	is((long long)stats().bypassed_fork, TIMES - 1, "counted: ibv_fork_init was called, once the range is registered again");
	is(times_said("RDMAMR_CACHE=all is without effect"), 1, "RDMAMR_LOG=info says once that RDMAMR_CACHE is without effect");
	for (int n = 0; n < TIMES; n++)
		dereg(reg(page, PAGE));
	is((long long)stats().bypassed_fork, 2 * TIMES - 1, "counted: relaxed calls get regions of their own");
	is((long long)(stats().hits + stats().misses), 0, "the cache serves neither");
	is(stub_registered(), stub_deregistered(), "each region has ended with its user");
	is(userfaultfds(NULL), 0, "and the cache has not started");
}

/*
 * A parent domain is a provider's object: another ibv_pd with the handle of the domain in the
 * kernel. A region of it serves until its release, and ends then. If the provider refuses to
 * deallocate, the regions stay cached.
 */

static long provider_answers(void) { return row->value; }

static struct ibv_mr *cached(struct ibv_pd *pd, void *page)
{
	long registered = stub_registered();
	struct ibv_mr *mr;

	for (int n = 0; n < 2; n++)
		must(put(pd, page, PAGE, IBV_ACCESS_LOCAL_WRITE));
	mr = ibv_reg_mr(pd, page, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	is(stub_registered() - registered, 2, "the third registration is a hit");
	return mr;
}

static void parent_domain(void)
{
	struct ibv_pd parent = *stub_pd();
	char *memory = pages(2);
	struct ibv_mr *mr = cached(&parent, memory), *idle = cached(&parent, memory + PAGE);
	int answer = (int)row->value;
	long count;

	must(ibv_dereg_mr(idle) == 0);
	count = stub_deregistered();
	stub_provide(provider_answers);
	is(ibv_dealloc_pd(&parent), answer, "the result is the provider's");
	is(stub_deregistered() - count, 1, "the idle region ends, and not the region in use");
	is(ibv_dereg_mr(mr), 0, "the region is released");
	is(stub_deregistered() - count, answer ? 1 : 2, "a region of a deallocated domain ends by its release");
	count = stub_registered();
	mr = ibv_reg_mr(&parent, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	is(stub_registered() - count, answer ? 0 : 1, "only the same domain gets the region again");
	is(ibv_dereg_mr(mr), 0, "that region is released");
	count = stub_deregistered();
	is(ibv_dealloc_pd(&parent), answer, "the result is the provider's without a region in use");
	is(stub_deregistered() - count, 1, "its idle region ends");
}

/*
 * A provider frees a parent domain without a call that reaches the library, and another domain gets
 * its address. A registration in the new domain must not get a region of the old one: a queue pair of
 * the new one would refuse its keys.
 */

static struct ibv_pd domain;

static bool is_hit(char *page)
{
	long registered = stub_registered();
	struct ibv_mr *mr = ibv_reg_mr_relaxed(&domain, page, PAGE, (int)row->value);

	must(mr && mr->pd == &domain && stub_lands(mr) && ibv_dereg_mr_relaxed(mr) == 0);
	return stub_registered() == registered;
}

/*
 * The regions that a freed parent domain has left belong to the same kernel domain as those of the
 * domain that it was made from. The provider deallocates that one next.
 */
static void keeps_no_domain_busy(void)
{
	int (*deallocate)(struct ibv_pd *) = (int (*)(struct ibv_pd *))dlsym(RTLD_DEFAULT, "ibv_cmd_dealloc_pd");
	char *page = pages(1);

	domain = *stub_other_pd();
	is_hit(page);
	ok(is_hit(page), "a region of the same domain is reused");
	domain = *stub_pd();
	ok(!is_hit(page), "one of the domain that had the address is not");
	is(in_device(), 2, "each domain has left a region");
	/* libibverbs asks the stand-in, which does not answer. The library looks at its own record of the device. */
	verbs_get_ctx(stub_pd()->context)->priv = calloc(1, 1 << 16);
	must(deallocate && deallocate(stub_pd()) != 0);
	is(in_device(), 1, "a domain that ends ends those of its parent domains");
}

#define LOUD .settings = "RDMAMR_LOG=info RDMAMR_CACHE_LINGER=600"
static const struct row rows[] = {
	{ "RDMAMR_CACHE=all, 500 ranges once: as with the cache off", costs_nothing, .flags = NO_PINS },
	{ "RDMAMR_CACHE=local, the same", costs_nothing, .flags = NO_PINS, .settings = "RDMAMR_CACHE=local" },
	{ "RDMAMR_CACHE=off, the same", costs_nothing, .flags = NO_PINS, .settings = "RDMAMR_CACHE=off" },
	{ "memory that is mapped anew", mapped_anew },
	{ "which registration comes again", comes_back },
	{ "a region that a relaxed registration uses too", shared_with_relaxed },
	{ "what is not served, and what is said", not_served, .flags = NO_PINS, LOUD },
	{ "after ibv_fork_init", with_fork, .flags = NO_PINS, LOUD },
	{ "a parent domain that the provider deallocates", parent_domain, .flags = NO_PINS },
	{ "a parent domain that the provider refuses to deallocate", parent_domain, EBUSY, .flags = NO_PINS },
	{ "another domain at the same address, local rights", keeps_no_domain_busy, IBV_ACCESS_LOCAL_WRITE },
	{ "another domain at the same address, remote rights", keeps_no_domain_busy, LOCAL_AND_REMOTE },
};

static void around(void)
{
	hear_errors();
	on_stub();
}

RUN_ROWS("RDMAMR_CACHE=all RDMAMR_CACHE_LINGER=" FOREVER, around)
