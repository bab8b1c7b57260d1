/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Data lands where the registration says: by address, by another iova, by iova 0; every right is
 * the requested one; keys are refused after deregistration.
 */
#include "../lib/pair.h"

enum { SIZE = 3 * PAGE };
#define ALL (LOCAL_AND_REMOTE | IBV_ACCESS_REMOTE_ATOMIC)

static struct pair pair;
static struct ibv_mr *source;
static char *local, *remote;

static void fill_from(char *memory, int seed)
{
	for (int n = 0; n < SIZE; n++)
		memory[n] = (char)(n * 7 + seed);
}

/* Writes, reads and adds at an iova of a region that starts `offset` bytes into `remote`. */
static void moves(const char *name, size_t offset, uint64_t iova)
{
	size_t length = SIZE - 2 * offset;
	struct ibv_mr *mr = ibv_reg_mr_iova(pair.pd, remote + offset, length, iova, ALL);
	int status;

	about("%s", name);
	if (!ok(mr != NULL, "registered"))
		return;
	is((char *)mr->addr - remote, (long long)offset, "the region's address is the program's");
	fill_from(local, 1);
	memset(remote, 0, SIZE);
	is(pair_write(&pair, source, local, length, iova, mr->rkey), IBV_WC_SUCCESS, "written");
	ok(!memcmp(local, remote + offset, length), "the written data is there");
	ok((!offset || !remote[offset - 1]) && (!offset || !remote[offset + length]),
	   "and nothing beside it was written");
	fill_from(remote, 2);
	is(pair_read(&pair, source, local, length - 8, iova + 8, mr->rkey), IBV_WC_SUCCESS, "read");
	ok(!memcmp(local, remote + offset + 8, length - 8), "the read data equals the memory");
	if (pair.iwarp) {
		skip(name, "iWARP has no atomic operations");
	} else {
		uint64_t *counter = (uint64_t *)(remote + offset + 64), *old = (uint64_t *)local;

		*counter = 40;
		status = pair_fetch_add(&pair, source, old, 2, iova + 64, mr->rkey);
		ok(status == IBV_WC_SUCCESS && *old == 40 && *counter == 42, "added");
	}
	is(ibv_dereg_mr(mr), 0, "deregistered");
}

/* An operation that must fail breaks the connection: each gets a new one. */
static void refused(const char *name, int status)
{
	ok(status != IBV_WC_SUCCESS && (status > 0 || pair.iwarp), "%s is refused (%s)", name,
	   status < 0 ? "no answer" : ibv_wc_status_str((enum ibv_wc_status)status));
	pair_reconnect(&pair);
}

/*
 * A write that must fail, and leave the memory unchanged. An iWARP write completes when it is sent,
 * and the refusal ends the connection: a read behind it fails, or is never answered.
 */
static void refused_write(const char *name, uint32_t rkey)
{
	uint64_t valid = (uintptr_t)local + PAGE;
	int status;

	memset(local, 0x11, 64);
	memset(remote, 0x22, 64);
	status = pair_write(&pair, source, local, 64, (uintptr_t)remote, rkey);
	if (pair.iwarp && status == IBV_WC_SUCCESS)
		status = pair_read(&pair, source, local, 8, valid, source->rkey);
	refused(name, status);
	ok(remote[0] == 0x22 && remote[63] == 0x22, "%s: nothing was written", name);
}

static void rights(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, remote, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	uint64_t at = (uintptr_t)remote;

	must(mr);
	fill_from(remote, 3);
	is(pair_read(&pair, source, local, SIZE, at, mr->rkey), IBV_WC_SUCCESS, "remote read alone: read");
	ok(!memcmp(local, remote, SIZE), "remote read alone: the data");
	refused_write("a write with remote read alone", mr->rkey);
	refused("a read beyond the end", pair_read(&pair, source, local, 64, at + SIZE - 32, mr->rkey));
	refused("a read before the start", pair_read(&pair, source, local, 64, at - 8, mr->rkey));
	is(ibv_dereg_mr(mr), 0, "deregistered");
	refused("a read by a key that is deregistered", pair_read(&pair, source, local, 64, at, mr->rkey));

	mr = ibv_reg_mr(pair.pd, remote, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	must(mr);
	is(pair_write(&pair, source, local, SIZE, at, mr->rkey), IBV_WC_SUCCESS, "remote write alone: written");
	if (pair.iwarp)
		skip("a read with remote write alone", "siw of Linux 6.1 answers it, without the library too");
	else
		refused("a read with remote write alone", pair_read(&pair, source, local, 64, at, mr->rkey));
	is(ibv_dereg_mr(mr), 0, "deregistered");
	refused_write("a write by a key that is deregistered", mr->rkey);

	mr = ibv_reg_mr(pair.pd, local, SIZE, IBV_ACCESS_LOCAL_WRITE);
	must(mr && ibv_dereg_mr(mr) == 0);
	refused("a local key that is deregistered", pair_write(&pair, mr, local, 64, at, source->rkey));
}

int main(void)
{
	local = pages(3);
	remote = pages(3);
	pair_open(&pair);
	source = ibv_reg_mr(pair.pd, local, SIZE, LOCAL_AND_REMOTE);
	must(source);

	moves("by address", 0, (uintptr_t)remote);
	moves("by address, not aligned", 24, (uintptr_t)remote + 24);
	if (pair.iwarp) {
		/* siw uses the address as the iova, whatever the request says. */
		skip("iova", "siw ignores an iova that is not the address");
	} else {
		moves("by another iova", 0, 0x123456789000);
		moves("by another iova, not aligned", 40, 0x123456789000 + 40);
		moves("by iova 0", 0, 0);
		moves("by the iova that is the page offset", 56, 56);
	}
	about("%s", "");
	as_case(rights(), "rights");

	is(ibv_dereg_mr(source), 0, "the source is deregistered");
	pair_close(&pair);
	is(stats().reg_next, 0, "the library made every registration");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
