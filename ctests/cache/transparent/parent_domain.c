/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A parent domain is a provider's object: another ibv_pd with the handle of the domain in the
 * kernel. The provider deallocates it while regions of it exist. Under RDMAMR_CACHE as well; such a
 * region serves until its release, and ends then. If the provider refuses, the regions stay cached.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

static long deallocates(void)
{
	return 0;
}

static long refuses(void)
{
	return EBUSY;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

	must(mr);
	return mr;
}

static struct ibv_mr *cached(struct ibv_pd *pd, void *memory)
{
	struct ibv_mr *mr = NULL;
	long before = stub_registered();

	for (int time = 0; time < 3; time++) {
		must(!mr || ibv_dereg_mr(mr) == 0);
		mr = reg(pd, memory);
	}
	is(stub_registered() - before, 2, "the third registration is a hit");
	return mr;
}

static void deallocate(const char *name, long (*provider)(void), int answer)
{
	struct ibv_pd parent = *stub_pd();
	char *memory = pages(2);
	struct ibv_mr *mr = cached(&parent, memory), *idle = cached(&parent, memory + PAGE);
	long registered, deregistered;

	must(ibv_dereg_mr(idle) == 0);
	deregistered = stub_deregistered();
	stub_provide(provider);
	is(ibv_dealloc_pd(&parent), answer, "%s: the result is the provider's", name);
	is(stub_deregistered() - deregistered, 1, "%s: the idle region ends, and not the region in use", name);
	is(ibv_dereg_mr(mr), 0, "%s: the region is released", name);
	is(stub_deregistered() - deregistered, answer ? 1 : 2, "%s: a region of a deallocated domain ends by its release", name);
	registered = stub_registered();
	mr = reg(&parent, memory);
	is(stub_registered() - registered, answer ? 0 : 1, "%s: only the same domain gets the region again", name);
	is(ibv_dereg_mr(mr), 0, "%s: that region is released", name);
	deregistered = stub_deregistered();
	is(ibv_dealloc_pd(&parent), answer, "%s: the result is the provider's without a region in use", name);
	is(stub_deregistered() - deregistered, 1, "%s: its idle region ends", name);
}

int main(int argc, char **argv)
{
	const char *why = stub_open(STUB_NOTHING);

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE", "all");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (why)
		skip_all(why);
	deallocate("deallocated", deallocates, 0);
	deallocate("refused", refuses, EBUSY);
	return done_testing();
}
