/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A provider frees a parent domain without a call that reaches the library, and another domain gets
 * its address. A registration in the new domain must not get a region of the old one: their kernel
 * domain is another, and a queue pair of the new one would refuse their keys.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <dlfcn.h>
#include "../lib/stub_rows.h"

enum { ROUNDS = 20, SIZE = 8 * PAGE };

static struct ibv_pd domain;

/* Whether a region of the same pages, or of some of them, is reused. */
static bool is_hit(char *memory, size_t length)
{
	long before = stub_registered();
	struct ibv_mr *mr = ibv_reg_mr_relaxed(&domain, memory, length, (int)row->value);

	must(mr && mr->pd == &domain && stub_lands(mr) && ibv_dereg_mr_relaxed(mr) == 0);
	return stub_registered() == before;
}

static void next_domain(void)
{
	char *memory = idle();
	int stale = 0, missed = 0;

	for (int round = 0; round < 2 * ROUNDS; round++) {
		char *fresh = pages(SIZE / PAGE);
		size_t length = round % 2 ? PAGE : SIZE;

		if (round == ROUNDS)
			second_thread();
		domain = *stub_pd();
		is_hit(fresh, SIZE);
		missed += !is_hit(fresh, SIZE);
		/* It is freed, and the next domain has its address. */
		domain = *stub_other_pd();
		stale += is_hit(fresh, length);
		missed += !is_hit(fresh, length);
	}
	is(stale, 0, "no registration in the new domain is a region of the old one");
	is(missed, 0, "those of the same domain are reused");
	/* A number that needs all bits: the stand-in has no such domain, so the registration is no hit. */
	domain = *stub_pd();
	is_hit(memory, PAGE);
	domain.handle += 1 << 20;
	ok(!ibv_reg_mr_relaxed(&domain, memory, PAGE, (int)row->value), "nor if the number is large");
}

/*
 * The regions that a freed parent domain has left belong to the same kernel domain as those of the
 * domain that it was made from. The provider deallocates that one next.
 */
static void keeps_no_domain_busy(void)
{
	int (*deallocate)(struct ibv_pd *) = (int (*)(struct ibv_pd *))dlsym(RTLD_DEFAULT, "ibv_cmd_dealloc_pd");

	domain = *stub_other_pd();
	is_hit(pages(1), PAGE);
	domain = *stub_pd();
	is_hit(pages(1), PAGE);
	is(stub_registered() - stub_deregistered(), 2, "each domain has left a region");
	/* libibverbs asks the stand-in, which does not answer. The library looks at its own record of the device. */
	verbs_get_ctx(stub_pd()->context)->priv = calloc(1, 1 << 16);
	must(deallocate && deallocate(stub_pd()) != 0);
	is(stub_registered() - stub_deregistered(), 1, "a domain that ends ends those of its parent domains");
}

/* A hit has the access of the idle region, or less. */
static const struct row rows[] = {
	{ "another domain at the same address, local rights", next_domain, IBV_ACCESS_LOCAL_WRITE },
	{ "another domain at the same address, remote rights", next_domain, LOCAL_AND_REMOTE },
	{ "a parent domain's regions keep no domain busy", keeps_no_domain_busy, LOCAL_AND_REMOTE },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
