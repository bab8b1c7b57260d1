/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that was made read-only, or out of bounds, has the same pages as before, but a registration that may
 * write to it must fail as one made by the kernel does: an idle region with the right is no excuse. As a bare
 * system call the change is not seen (nothing tells of it): then what the device writes must still be where
 * the program looks.
 */
#include "relaxed.h"

enum { COUNT = 8, SIZE = COUNT * PAGE };

static struct pair pair;
static char *memory;

static int by_mprotect(void *at, size_t length, int rights)
{
	return mprotect(at, length, rights);
}

static int by_pkey_mprotect(void *at, size_t length, int rights)
{
	return pkey_mprotect(at, length, rights, -1);
}

static const struct way {
	const char *name;
	int (*protect)(void *at, size_t length, int rights);
} ways[] = { { "mprotect", by_mprotect }, { "pkey_mprotect", by_pkey_mprotect } };

static const char *named(const char *what, const struct way *way)
{
	static char name[120];

	snprintf(name, sizeof(name), "%s, %s", way->name, what);
	return name;
}

/* Does what a plain registration does. */
static void as_plain(const char *name, size_t length, int access)
{
	struct ibv_mr *plain = ibv_reg_mr(pair.pd, memory, length, access), *mr;
	int err = plain ? 0 : errno;

	if (plain)
		must(ibv_dereg_mr(plain) == 0);
	errno = 0;
	mr = ibv_reg_mr_relaxed(pair.pd, memory, length, access);
	is(mr ? 0 : errno, err, "%s: as a plain registration (%s)", name, strerrorname_np(err));
	if (mr)
		is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", name);
}

/* Fails, and as a plain registration does. */
static void refused(const char *name, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, memory, length, access);
	int err = errno, relaxed;

	must(!mr);
	errno = 0;
	mr = ibv_reg_mr_relaxed(pair.pd, memory, length, access);
	relaxed = errno;
	ok(!mr, "%s: is refused", name);
	if (mr)
		ibv_dereg_mr_relaxed(mr);
	else
		is(relaxed, err, "%s: with the errno of a plain registration (%s)", name,
		   strerrorname_np(err));
}

/* What the program wrote before is what the device reads, by a region that may not write. */
static void readable(const char *name, int access)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, access);
	int status;

	if (!ok(mr != NULL, "%s: is registered", name))
		return;
	memset(far.in, 0, SIZE);
	if (access & IBV_ACCESS_REMOTE_READ)
		status = pair_read(&pair, far.mr, far.in, SIZE, (uintptr_t)memory, mr->rkey);
	else
		status = pair_write(&pair, mr, memory, SIZE, (uintptr_t)far.in, far.mr->rkey);
	is(status, IBV_WC_SUCCESS, "%s: the device reads", name);
	if (pair.iwarp) /* what is read behind a write is answered after it */
		must(pair_read(&pair, far.mr, far.out, 8, (uintptr_t)far.in, far.mr->rkey) == IBV_WC_SUCCESS);
	ok(!memcmp(memory, far.in, SIZE), "%s: what the program wrote", name);
	is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", name);
}

static void protected(const struct way *way, int kind)
{
	char what[60];

	snprintf(what, sizeof(what), "%s", kind_names[kind]);
	control_with(&pair, named(what, way), memory, SIZE, kinds[kind]);
	must(way->protect(memory, SIZE, PROT_READ) == 0);
	snprintf(what, sizeof(what), "read-only, %s", kind_names[kind]);
	refused(named(what, way), SIZE, kinds[kind]);
	readable(named("read-only, and no right to write", way), 0);
	readable(named("read-only, and the right of others to read", way), IBV_ACCESS_REMOTE_READ);
	must(way->protect(memory, SIZE, PROT_NONE) == 0);
	snprintf(what, sizeof(what), "out of bounds, %s", kind_names[kind]);
	refused(named(what, way), SIZE, kinds[kind]);
	/* Linux before 6.2 pins such memory all the same. */
	as_plain(named("out of bounds, and no right to write", way), SIZE, 0);
	must(way->protect(memory, SIZE, PROT_READ | PROT_WRITE) == 0);
	snprintf(what, sizeof(what), "as it was, %s", kind_names[kind]);
	ok(lands_with(&pair, memory, SIZE, kinds[kind]), "%s: data lands in the page of now",
	   named(what, way));
	control_with(&pair, named(what, way), memory, SIZE, kinds[kind]);
}

/* One page of the region is enough, and a part without it is good. */
static void page_protected(const struct way *way, int kind)
{
	char what[60];

	snprintf(what, sizeof(what), "a page, %s", kind_names[kind]);
	control_with(&pair, named(what, way), memory, SIZE, kinds[kind]);
	must(way->protect(memory + 5 * PAGE, PAGE, PROT_READ) == 0);
	refused(named(what, way), SIZE, kinds[kind]);
	ok(lands_with(&pair, memory, 5 * PAGE, kinds[kind]), "%s: the pages before it are as good as ever",
	   named(what, way));
	must(way->protect(memory + 5 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
	ok(lands_with(&pair, memory, SIZE, kinds[kind]), "%s: writable again, data lands in the page of now",
	   named(what, way));
}

/* While a region is in use: it goes on, as any region does, and serves no other that wants to write. */
static void in_use(const struct way *way)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE);

	must(mr);
	must(way->protect(memory, SIZE, PROT_READ) == 0);
	refused(named("below a region in use", way), SIZE, LOCAL_AND_REMOTE);
	must(way->protect(memory, SIZE, PROT_READ | PROT_WRITE) == 0);
	ok(lands_in(&pair, mr, memory, SIZE), "%s: data lands by it", named("the region in use", way));
	is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", named("the region in use", way));
}

/* Not seen. The pages are the same, so what is written is where the program looks, if it is allowed at
 * all. */
static void by_system_call(int kind)
{
	struct ibv_mr *mr;
	int status;

	control_with(&pair, "the system call", memory, SIZE, kinds[kind]);
	must(syscall(SYS_mprotect, memory, SIZE, PROT_READ) == 0);
	mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, kinds[kind]);
	if (!mr) {
		is(errno, EFAULT, "the system call, %s: is refused", kind_names[kind]);
	} else {
		fill(far.out, SIZE);
		status = kind ? pair_read(&pair, mr, memory, SIZE, (uintptr_t)far.out, far.mr->rkey) :
				pair_write(&pair, far.mr, far.out, SIZE, (uintptr_t)memory, mr->rkey);
		if (pair.iwarp)
			must(pair_read(&pair, far.mr, far.in, 8, (uintptr_t)memory,
				       mr->rkey) == IBV_WC_SUCCESS);
		is(status, IBV_WC_SUCCESS, "the system call, %s: the device writes", kind_names[kind]);
		ok(!memcmp(memory, far.out, SIZE), "the system call, %s: into the page of now",
		   kind_names[kind]);
		is(ibv_dereg_mr_relaxed(mr), 0, "the system call, %s: deregistered", kind_names[kind]);
	}
	must(syscall(SYS_mprotect, memory, SIZE, PROT_READ | PROT_WRITE) == 0);
	ok(lands_with(&pair, memory, SIZE, kinds[kind]), "the system call, %s: writable again, data lands",
	   kind_names[kind]);
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_RELAXED_LINGER", "100");
	relaxed_open(&pair);
	memory = pages(COUNT);
	for (size_t n = 0; n < sizeof(ways) / sizeof(ways[0]); n++) {
		for (int kind = 0; kind < 2; kind++) {
			protected(&ways[n], kind);
			page_protected(&ways[n], kind);
		}
		in_use(&ways[n]);
	}
	for (int kind = 0; kind < 2; kind++)
		by_system_call(kind);
	is((long long)stats().flushed_linger, 0, "no region went for its age");
	must(munmap(memory, SIZE) == 0);
	return relaxed_close(&pair);
}
