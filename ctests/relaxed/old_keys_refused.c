/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A remote key ends with a flush, not with the deregistration: between the two a remote peer can
 * still write, as docs/relaxed.md says. After a flush, or after the memory has changed, the device
 * refuses the key, even if the same memory is registered again. It never refuses the key of a
 * region in use.
 */
#include "../lib/observe.h"

static struct pair pair;
static char *memory, *in_use;
static struct ibv_mr *used;

static uint32_t old_key(int access)
{
	struct ibv_mr *mr = register_region(pair.pd, memory, PAGE, access);
	uint32_t key;

	must(mr);
	key = mr->rkey;
	must(deregister_region(mr) == 0);
	return key;
}

static int read_refused(uint32_t key)
{
	int status = pair_read(&pair, far.mr, far.in, 8, (uintptr_t)memory, key);

	pair_reconnect(&pair);
	return pair.iwarp ? status != IBV_WC_SUCCESS : status == IBV_WC_REM_ACCESS_ERR;
}

static int add_refused(uint32_t key)
{
	uint64_t before = *(uint64_t *)memory;
	int status = pair_fetch_add(&pair, far.mr, far.in, 1, (uintptr_t)memory, key);

	pair_reconnect(&pair);
	return status == IBV_WC_REM_ACCESS_ERR && *(uint64_t *)memory == before;
}

static void by_flush(void)
{
	uint32_t key = old_key(LOCAL_AND_REMOTE), new_key;
	struct ibv_mr *mr;

	fill(far.out, 8);
	ok(pair_write(&pair, far.mr, far.out, 8, (uintptr_t)memory, key) == IBV_WC_SUCCESS && !memcmp(memory, far.out, 8),
	   "deregistered: until a flush the old key writes");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "flushed");
	ok(write_refused(&pair, memory, key), "flushed: the old key does not write");
	ok(read_refused(key), "flushed: nor read");
	mr = register_region(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(mr);
	new_key = mr->rkey;
	ok(new_key != key, "registered again: the key is a new one");
	ok(write_refused(&pair, memory, key), "registered again: the old key does not write");
	ok(lands_in(&pair, mr, memory, PAGE), "registered again: the new one does");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "flushed while it is in use");
	ok(lands_in(&pair, mr, memory, PAGE), "which it stays");
	must(deregister_region(mr) == 0);
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	ok(write_refused(&pair, memory, new_key), "deregistered and flushed: that key does not write either");

	if (pair.iwarp) {
		skip("an atomic operation by an old key", "iWARP has none");
	} else {
		key = old_key(LOCAL_AND_REMOTE | IBV_ACCESS_REMOTE_ATOMIC);
		must(ibv_flush_relaxed_mr(pair.pd) == 0);
		ok(add_refused(key), "flushed: the old key does not add");
	}
}

/* A change of the memory ends the key too, a moment later. */
static void by_change(const char *name, void (*change)(void *, size_t))
{
	uint32_t key;

	control_later(&pair, name, memory, PAGE);
	key = old_key(LOCAL_AND_REMOTE);
	change(memory, PAGE);
	ok(comes(!kernel_has_key(pair.context, key)), "%s: the region ends, without a flush", name);
	ok(write_refused(&pair, memory, key), "%s: the old key does not write", name);
	anew(&pair, name, memory, PAGE);
}

static void discard(void *at, size_t length)
{
	must(madvise(at, length, MADV_DONTNEED) == 0);
}

static void raw_discard(void *at, size_t length)
{
	must(syscall(SYS_madvise, at, length, MADV_DONTNEED) == 0);
}

/* Two registrations of one region: the key lasts as long as the last of them. */
static void by_halves(void)
{
	struct ibv_mr *one = register_region(pair.pd, memory, 100, LOCAL_AND_REMOTE);
	struct ibv_mr *other = register_region(pair.pd, memory + 200, 100, LOCAL_AND_REMOTE);
	uint32_t key;

	must(one && other);
	key = one->rkey;
	is(other->rkey, key, "two registrations in a page have one key");
	must(deregister_region(one) == 0);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "one of them ends, and a flush");
	ok(lands_in(&pair, other, memory + 200, 100), "the other is in use");
	must(deregister_region(other) == 0);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "the other ends, and a flush");
	ok(write_refused(&pair, memory, key), "the key does not write");
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	as_root();
	relaxed_open(&pair);
	memory = pages(3);
	memory += PAGE;
	in_use = pages(1);
	used = register_region(pair.pd, in_use, PAGE, LOCAL_AND_REMOTE);
	must(used);
	by_flush();
	by_halves();
	by_change("unmapped", remap);
	by_change("unmapped by a raw system call", raw_remap);
	by_change("discarded", discard);
	by_change("discarded by a raw system call", raw_discard);
	ok(lands_in(&pair, used, in_use, PAGE), "the region that was in use all the time works");
	must(deregister_region(used) == 0);
	return relaxed_close(&pair);
}
