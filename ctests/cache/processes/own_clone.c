/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program has a function `clone` of its own that copies an object, and the linker binds the
 * libraries to it. The cache must not make its threads by it.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

struct shape { int corners; };

static _Atomic int copies;

/* <sched.h> declares another function of this name. */
struct shape *clone_shape(struct shape *shape) __asm__("clone");
struct shape *clone_shape(struct shape *shape)
{
	(void)shape;
	copies++;
	/* A caller that expects the C library's function takes this for a refused thread. */
	return (struct shape *)-1;
}

static void register_once(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr && stub_lands(mr));
	must(ibv_dereg_mr_relaxed(mr) == 0);
}

int main(int argc, char **argv)
{
	const char *why;
	char *memory;
	long before;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	alarm(DEADLOCK);
	why = stub_open(STUB_PIN);
	if (why) {
		skip("a program with a function clone of its own", why);
		return done_testing();
	}
	memory = pages(1);
	register_once(memory);
	is(copies, 0, "the program's clone is not called for the library's threads");
	before = stub_registered();
	register_once(memory);
	if (copies == 0 && userfaultfds(NULL) != 1)
		skip("regions are reused", "userfaultfd is refused here");
	else
		is(stub_registered(), before, "regions are reused");
	return done_testing();
}
