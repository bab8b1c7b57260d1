/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program of an earlier version: kept.sh compiles it with that version's headers, links it to a
 * library with that version's symbols, and runs it on the current library. The device is a stub.
 * src/capi/rdmamr.rs and fabric/errors.c have structures of other sizes.
 */
#define RDMAMR_NO_LIBFABRIC
#include <rdmamr.h>
#include <rdmamr/fi_mr.h>
#include <stdint.h>
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

static void plain_and_relaxed(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory, 4096, IBV_ACCESS_LOCAL_WRITE);

	ok(mr && mr->addr == memory && mr->length == 4096, "ibv_reg_mr");
	is(mr ? ibv_dereg_mr(mr) : -1, 0, "ibv_dereg_mr");
	mr = ibv_reg_mr_relaxed(stub_pd(), memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	ok(mr && mr->addr == memory && mr->length == 4096, "ibv_reg_mr_relaxed");
	is(mr ? ibv_dereg_mr_relaxed(mr) : -1, 0, "ibv_dereg_mr_relaxed");
	is(ibv_flush_relaxed_mr(stub_pd()), 0, "ibv_flush_relaxed_mr");
}

static void statistics(void)
{
	struct { struct rdmamr_stats known; uint64_t behind; } now = { .behind = 0xee };

	must(rdmamr_get_stats(&now.known, sizeof(now.known)) == 0);
	is((long long)now.known.reg_kernel, 2, "the statistics count both registrations");
	is((long long)now.behind, 0xee, "and nothing behind them is touched");
}

static void domains(char *memory)
{
	struct rdmamr_domain_attr attr = { .size = sizeof(attr), .api_version = FI_VERSION(1, 15) };
	struct fid_domain *domain;
	struct fid_mr *mr;

	must(rdmamr_domain_open(stub_pd(), &attr, &domain, NULL) == 0);
	is(fi_mr_reg(domain, memory, 4096, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL), 0, "fi_mr_reg");
	is(fi_close((struct fid *)mr), 0, "the region is closed");
	is(fi_close((struct fid *)domain), 0, "the domain is closed");
}

int main(void)
{
	static char memory[3 * 4096] __attribute__((aligned(4096)));

	printf("# the library is %s, the headers are %d.%d.%d\n", rdmamr_version(), RDMAMR_VERSION_MAJOR,
	       RDMAMR_VERSION_MINOR, RDMAMR_VERSION_PATCH);
	must(stub_open(STUB_NOTHING) == NULL);
	plain_and_relaxed(memory + 4096);
	statistics();
	domains(memory + 4096);
	return done_testing();
}
