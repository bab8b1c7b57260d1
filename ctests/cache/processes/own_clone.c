/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program has a function `clone` of its own that copies an object, and the linker binds the
 * libraries to it. The cache must not make its threads by it.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../../lib/stub_rows.h"

static _Atomic int copies;

/* <sched.h> declares another function of this name. */
void *clone_shape(void *shape) __asm__("clone");
void *clone_shape(void *shape)
{
	(void)shape;
	copies++;
	/* A caller that expects the C library's function takes this for a refused thread. */
	return (void *)-1;
}

static void own_clone(void)
{
	char *memory = pages(1);

	once(memory);
	is(copies, 0, "the program's clone is not called for the library's threads");
	if (copies == 0 && userfaultfds(NULL) != 1)
		skip("regions are reused", "userfaultfd is refused here");
	else
		is(hits(memory, 1), 1, "regions are reused");
}

static const struct row rows[] = { { "a program with a function clone of its own", own_clone } };

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
