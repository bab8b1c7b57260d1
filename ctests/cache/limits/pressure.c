/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A plain registration succeeds even if it would fail with ENOMEM because of the pins of idle
 * relaxed regions: a program must not lose pinnable memory to a cache that it does not see. Tests
 * each call that registers.
 */
#include "../../lib/observe.h"

enum { LIMIT = 16, IDLE = 12, WANTED = 10 };

static struct pair pair;
static char *memory;

static struct ibv_mr *by_reg_mr(int access)
{
	return ibv_reg_mr(pair.pd, memory + 40 * PAGE, WANTED * PAGE, access);
}

static struct ibv_mr *by_reg_mr_var(int access)
{
	return (ibv_reg_mr)(pair.pd, memory + 40 * PAGE, WANTED * PAGE, access);
}

static struct ibv_mr *by_reg_mr_iova(int access)
{
	return ibv_reg_mr_iova(pair.pd, memory + 40 * PAGE, WANTED * PAGE, (uintptr_t)memory + 40 * PAGE, access);
}

static struct ibv_mr *by_reg_mr_iova2(int access)
{
	return ibv_reg_mr_iova2(pair.pd, memory + 40 * PAGE, WANTED * PAGE, (uintptr_t)memory + 40 * PAGE,
				(unsigned int)access | IBV_ACCESS_RELAXED_ORDERING);
}

static const struct {
	const char *name;
	struct ibv_mr *(*call)(int access);
} calls[] = {
	{ "ibv_reg_mr", by_reg_mr },
	{ "ibv_reg_mr, the function", by_reg_mr_var },
	{ "ibv_reg_mr_iova", by_reg_mr_iova },
	{ "ibv_reg_mr_iova2", by_reg_mr_iova2 },
};

/* Idle regions in two domains: those of the other domain pin as much. */
static void idle_ones(struct ibv_pd *other)
{
	struct ibv_mr *regions[IDLE];
	struct rdmamr_stats before;

	for (int n = 0; n < IDLE; n++) {
		regions[n] = register_by_cache(n % 2 ? other : pair.pd, memory + n * 2 * PAGE, PAGE,
					      n % 3 ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE, &before);
		must(regions[n]);
	}
	for (int n = 0; n < IDLE; n++)
		must(deregister_region(regions[n]) == 0);
}

int main(int argc, char **argv)
{
	struct ibv_pd *other;
	struct ibv_mr *held, *mr;
	struct rdmamr_stats before;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	with_setting(argv, "RDMAMR_CACHE_MAX_IDLE_BYTES", "1G");
	as_root();
	drop_memlock_right();
	relaxed_open(&pair);
	if (pair.iwarp)
		skip_all("siw of Linux 6.1 pins by itself, and counts otherwise");
	other = ibv_alloc_pd(pair.context);
	must(other);
	memory = pages(64);
	allow_pins(LIMIT);

	for (size_t n = 0; n < sizeof(calls) / sizeof(calls[0]); n++) {
		idle_ones(other);
		is(stats().idle, IDLE, "%d of %d pages are pinned by idle regions", IDLE, LIMIT);
		before = stats();
		mr = calls[n].call(LOCAL_AND_REMOTE);
		ok(mr != NULL, "%s of %d pages succeeds", calls[n].name, WANTED);
		must(mr);
		ok(lands_in(&pair, mr, memory + 40 * PAGE, WANTED * PAGE), "%s: data lands by it", calls[n].name);
		ok(stats().flushed_pressure > before.flushed_pressure, "%s: %d idle regions ended for it",
		   calls[n].name,
		   (int)(stats().flushed_pressure - before.flushed_pressure));
		is((long long)stats().reg_failed, (long long)before.reg_failed, "%s: no failure is counted",
		   calls[n].name);
		is(ibv_dereg_mr(mr), 0, "%s: it is deregistered", calls[n].name);
	}

	/* A region in use is the program's own, however it was registered. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0 && ibv_flush_relaxed_mr(other) == 0);
	held = register_by_cache(other, memory, (LIMIT - WANTED + 1) * PAGE, LOCAL_AND_REMOTE, &before);
	must(held);
	errno = 0;
	mr = by_reg_mr(LOCAL_AND_REMOTE);
	ok(!mr && errno == ENOMEM, "with regions in use only, a registration that does not fit is ENOMEM");
	ok(kernel_has_key(pair.context, held->lkey), "the one in use is unaffected");
	is(deregister_region(held), 0, "it is deregistered, and idle");
	mr = by_reg_mr(LOCAL_AND_REMOTE);
	ok(mr != NULL, "now it does fit");
	must(mr && ibv_dereg_mr(mr) == 0);
	is(ibv_dealloc_pd(other), 0, "the other domain is deallocated");
	return relaxed_close(&pair);
}
