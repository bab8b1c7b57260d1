/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A domain that a second context has imported is deallocated by either, though the other has idle regions of it
 * (RDMAMR_CACHE=local). rxe imports no domain; the stand-in of vm/hca does.
 */
#include "../../lib/device.h"

/* A range is registered plainly at first, and kept once it has come back. */
static void leave_idle(struct ibv_pd *pd, char *at)
{
	for (int time = 0; time < 3; time++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, at, PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

int main(void)
{
	struct ibv_context *context = open_device(), *copy = ibv_import_device(dup(context->cmd_fd));

	must(copy);
	for (int by = 0; by < 2; by++) {
		struct ibv_pd *pds[2] = { ibv_alloc_pd(context) };
		char *memory = pages(16);

		must(pds[0] && (pds[1] = ibv_import_pd(copy, pds[0]->handle)));
		leave_idle(pds[0], memory);
		leave_idle(pds[1], memory + 8 * PAGE);
		is((long)stats().idle, 2, "each context has an idle region of the domain");
		is(ibv_dealloc_pd(pds[by]), 0, "the %s deallocates it", by ? "importer" : "owner");
		ibv_unimport_pd(pds[!by]);
	}
	is(ibv_close_device(copy), 0, "the second context is closed");
	is(ibv_close_device(context), 0, "and the first");
	return done_testing();
}
