/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A provider frees a parent domain without a call that reaches the library, and another domain gets
 * its address. A registration in the new domain must not get a region of the old one: their kernel
 * domain is another, and a queue pair of the new one would refuse their keys.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <dlfcn.h>
#include <stdlib.h>
#include "../lib/device.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

enum { ROUNDS = 20, SIZE = 8 * PAGE };

/* A hit has the access of the idle region, or less. */
static const int accesses[] = { IBV_ACCESS_LOCAL_WRITE, LOCAL_AND_REMOTE };

static struct ibv_pd *domain;

/* Whether a region of the same pages, or of some of them, is reused. */
static bool is_used_again(char *memory, size_t length, int access)
{
	long before = stub_registered();
	struct ibv_mr *mr = ibv_reg_mr_relaxed(domain, memory, length, access);

	must(mr && mr->pd == domain && stub_lands(mr));
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return stub_registered() == before;
}

static void each(int access, bool several_threads)
{
	static const char *const names[] = { "one thread", "threads" };
	char *memory = pages(SIZE / PAGE);
	int stale = 0, missed = 0;

	*domain = *stub_pd();
	is_used_again(memory, SIZE, access);
	missed += !is_used_again(memory, SIZE, access);
	for (int round = 0; round < ROUNDS; round++) {
		char *fresh = pages(SIZE / PAGE);

		*domain = *stub_pd();
		is_used_again(fresh, SIZE, access);
		/* It is freed, and the next domain has its address. */
		*domain = *stub_other_pd();
		stale += is_used_again(fresh, round % 2 ? PAGE : SIZE, access);
		missed += !is_used_again(fresh, round % 2 ? PAGE : SIZE, access);
	}
	is(stale, 0, "access 0x%x, %s: no registration in the new domain is a region of the old one", access,
	   names[several_threads]);
	is(missed, 0, "access 0x%x, %s: those of the new domain are reused", access, names[several_threads]);
}

/* A number that needs all bits, as in a file with very many objects. */
static void large_number(int access)
{
	char *memory = pages(1);

	*domain = *stub_pd();
	is_used_again(memory, PAGE, access);
	domain->handle += 1 << 20;
	/* The stand-in has no such domain: the registration fails there, and is no hit. */
	ok(!ibv_reg_mr_relaxed(domain, memory, PAGE, access), "access 0x%x: nor if the number is large", access);
}

/*
 * The regions that a freed parent domain has left belong to the same kernel domain as those of the
 * domain that it was made from. The provider deallocates that one next.
 */
static void keeps_no_domain_busy(void)
{
	int (*deallocate)(struct ibv_pd *) = (int (*)(struct ibv_pd *))dlsym(RTLD_DEFAULT, "ibv_cmd_dealloc_pd");
	long idle;

	*domain = *stub_other_pd();
	must(deallocate && ibv_flush_relaxed_mr(domain) == 0);
	is_used_again(pages(1), PAGE, LOCAL_AND_REMOTE);
	*domain = *stub_pd();
	is_used_again(pages(1), PAGE, LOCAL_AND_REMOTE);
	idle = stub_registered() - stub_deregistered();
	is(idle, 2, "each domain has left a region");
	/*
	 * libibverbs asks the stand-in, which does not answer that. The library looks at its own record
	 * of the device.
	 */
	verbs_get_ctx(stub_pd()->context)->priv = calloc(1, 1 << 16);
	must(deallocate(stub_pd()) != 0);
	is(stub_registered() - stub_deregistered(), 1, "a domain that ends ends those of its parent domains");
}

static void *nothing(void *argument)
{
	return argument;
}

int main(int argc, char **argv)
{
	const char *why;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	why = stub_open(STUB_PIN);
	domain = malloc(sizeof(*domain));
	must(domain);
	*domain = *stub_pd();
	if (!why)
		is_used_again(pages(1), PAGE, LOCAL_AND_REMOTE);
	if (why || userfaultfds(NULL) != 1) {
		skip("another domain at the same address", why ? why : "userfaultfd is refused here");
		return done_testing();
	}
	for (int threads = 0; threads < 2; threads++) {
		for (size_t n = 0; n < sizeof(accesses) / sizeof(*accesses); n++) {
			each(accesses[n], threads);
			large_number(accesses[n]);
		}
		in_thread(nothing, NULL);
	}
	keeps_no_domain_busy();
	return done_testing();
}
