/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program of an earlier version: kept.sh compiles it with that version's headers, links it to a
 * library with that version's symbols, and runs it on the current library. It also stands for
 * programs with shorter and longer structures. The device is a stub.
 */
#define RDMAMR_NO_LIBFABRIC
#include <rdmamr.h>
#include <rdmamr/fi_mr.h>
#include <stddef.h>
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

/* Each size that a version may have had, from one field on, and larger ones. */
static void statistics(void)
{
	enum { KNOWN = sizeof(struct rdmamr_stats) / 8, MORE = 16 };
	union {
		struct rdmamr_stats stats;
		uint64_t words[KNOWN + MORE];
	} all, part;
	int wrong = 0;

	must(rdmamr_get_stats(&all.stats, sizeof(all)) == 0);
	is((long long)all.stats.reg_kernel, 2, "the statistics count both registrations");
	for (size_t words = 1; words < KNOWN + MORE; words++) {
		memset(&part, 0xee, sizeof(part));
		wrong += rdmamr_get_stats(&part.stats, words * 8) != 0;
		wrong += memcmp(&part, &all, words * 8) != 0;
		wrong += part.words[words] != 0xeeeeeeeeeeeeeeee;
	}
	is(wrong, 0, "statistics of %d sizes have the fields that fit, and nothing behind them is touched", KNOWN + MORE - 1);
}

static void domains(char *memory)
{
	struct { struct rdmamr_domain_attr known; uint64_t later; } attr = { 0 };
	size_t least = offsetof(struct rdmamr_domain_attr, mr_mode);
	struct fid_domain *domain;
	struct fid_mr *mr;
	int wrong = 0;

	attr.known.api_version = FI_VERSION(1, 15);
	for (size_t size = least; size <= sizeof(attr); size++) {
		attr.known.size = size;
		if (rdmamr_domain_open(stub_pd(), &attr.known, &domain, NULL) || fi_close((struct fid *)domain))
			wrong++;
	}
	is(wrong, 0, "domains by attributes of %zu to %zu bytes", least, sizeof(attr));
	attr.later = 1;
	is(rdmamr_domain_open(stub_pd(), &attr.known, &domain, NULL), -EINVAL, "attributes that no version knows are refused");
	must(rdmamr_domain_open(stub_pd(), NULL, &domain, NULL) == 0);
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
