/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "verdict.h"

void verdict(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

void verdict_region(const char *name, struct ibv_pd *pd, void *addr, size_t length,
			   struct ibv_mr *mr)
{
	int err = errno, dereg;

	if (!mr) {
		verdict("%s\t%s", name, strerrorname_np(err));
		return;
	}
	printf("%s\tregistered%s%s%s%s%s", name, mr->context == pd->context ? "" : ", another context",
	       mr->pd == pd ? "" : ", another pd", mr->addr == addr ? "" : ", another address",
	       mr->length == length ? "" : ", another length",
	       mr->rkey == mr->lkey ? ", one key" : mr->rkey ? ", two keys" : ", no rkey");
	dereg = ibv_dereg_mr(mr);
	verdict(", deregistered %s", dereg ? strerrorname_np(dereg) : "0");
}

const char *name_of(int err) { return err ? strerrorname_np(err) : "0"; }

int taken_rights(struct ibv_pd *pd, void *page)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 1, LOCAL_AND_REMOTE);

	if (!mr)
		return IBV_ACCESS_LOCAL_WRITE;
	must(ibv_dereg_mr(mr) == 0);
	return LOCAL_AND_REMOTE;
}
