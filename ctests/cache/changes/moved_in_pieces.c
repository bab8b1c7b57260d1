/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Since Linux 6.17 one mremap(2) to a fixed address moves several mappings, and the gaps between
 * them stay holes. It stops at a mapping that a userfaultfd watches. With registered memory in the
 * range, the C library's call returns and moves the same as without the library, on older kernels
 * too.
 *
 * The device is the stand-in (stub_device.h). Each case runs at two places, one of them registered.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { PAGES = 16, APART = 64 };

/* The outcome of a case: the answer, and the first byte of each page of the source and the target. */
struct outcome {
	int err;
	unsigned char there[2 * PAGES];
};

static int file;

static void map(char *place, int first, int count, int protection, int flags)
{
	int fd = flags & MAP_ANONYMOUS ? -1 : file;
	char *at = place + first * PAGE;

	must(mmap(at, (size_t)count * PAGE, protection, flags | MAP_FIXED, fd, 0) == at);
	for (int page = 0; protection & PROT_WRITE && page < count; page++)
		at[page * PAGE] = (char)(first + page + 1);
}

enum { ANYTHING = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS, SHARED = MAP_SHARED | MAP_ANONYMOUS };

/* Registers it, if this is the place for that. */
static void use(char *place, int first, int count, bool registered)
{
	for (int round = 0; registered && round < 2; round++) {
		struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), place + first * PAGE, (size_t)count * PAGE,
						       LOCAL_AND_REMOTE);

		must(!mr || ibv_dereg_mr_relaxed(mr) == 0);
	}
}

static void others_follow(char *place, bool registered)
{
	map(place, 0, 4, ANYTHING, OWN);
	map(place, 4, 4, ANYTHING, SHARED);
	map(place, 12, 4, ANYTHING, MAP_PRIVATE);
	use(place, 0, 2, registered);
}

static void in_the_middle(char *place, bool registered)
{
	map(place, 0, 4, ANYTHING, SHARED);
	map(place, 8, 4, ANYTHING, OWN);
	use(place, 9, 1, registered);
}

static void behind_a_hole(char *place, bool registered)
{
	map(place, 0, 4, ANYTHING, OWN);
	map(place, 8, 4, ANYTHING, OWN);
	use(place, 9, 1, registered);
}

static void refused(char *place, bool registered)
{
	map(place, 0, 4, PROT_NONE, OWN);
	map(place, 4, 4, PROT_READ, MAP_PRIVATE);
	use(place, 0, 4, registered);
}

static void replaced(char *place, bool registered)
{
	map(place, 0, PAGES, ANYTHING, OWN);
	use(place, 2, 10, registered);
	map(place, 4, 4, ANYTHING, OWN);
}

static void replaced_past_library(char *place, bool registered)
{
	char *part = place + 4 * PAGE;

	map(place, 0, PAGES, ANYTHING, OWN);
	use(place, 2, 10, registered);
	must(syscall(SYS_mmap, part, 4L * PAGE, ANYTHING, OWN | MAP_FIXED, -1, 0L) == (long)part);
}

static const struct {
	const char *name;
	void (*prepare)(char *place, bool registered);
	int flags;
} cases[] = {
	{ "memory of other kinds follows", others_follow, 0 },
	{ "the registered memory is in the middle", in_the_middle, 0 },
	{ "its registration was refused", refused, 0 },
	{ "a part was replaced", replaced, 0 },
	{ "a part was replaced by a raw system call", replaced_past_library, 0 },
	{ "the old mappings are to stay", others_follow, MREMAP_DONTUNMAP },
	{ "the old mappings are to stay, and the first is not registered", behind_a_hole, MREMAP_DONTUNMAP },
};

static struct outcome run(size_t n, char *place, bool registered)
{
	char *target = place + 2 * PAGES * PAGE, *moved;
	struct outcome outcome = { 0 };
	unsigned char there;

	cases[n].prepare(place, registered);
	moved = mremap(place, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | cases[n].flags, target);
	outcome.err = moved == MAP_FAILED ? errno : 0;
	for (int page = 0; page < 2 * PAGES; page++) {
		char *at = (page < PAGES ? place : target - PAGES * PAGE) + page * PAGE;
		struct iovec from = { at, 1 }, to = { &there, 1 };

		/* 255: it cannot be read. */
		outcome.there[page] = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 ? there : 255;
	}
	must(munmap(place, 3 * PAGES * PAGE) == 0);
	return outcome;
}

int main(int argc, char **argv)
{
	const char *why;
	char *places;

	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	file = memfd_create("file", MFD_CLOEXEC);
	must(file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
	places = new_place(2 * APART * PAGE * sizeof(cases) / sizeof(*cases));
	for (size_t n = 0; n < sizeof(cases) / sizeof(*cases); n++) {
		struct outcome without = run(n, places + 2 * n * APART * PAGE, false);
		struct outcome with = run(n, places + (2 * n + 1) * APART * PAGE, true);

		is(with.err, without.err, "mremap of several mappings, %s: the same answer (%s)", cases[n].name,
		   without.err ? strerrorname_np(without.err) : "they move");
		ok(!memcmp(with.there, without.there, sizeof(with.there)), "the same memory at both places");
	}
	return done_testing();
}
