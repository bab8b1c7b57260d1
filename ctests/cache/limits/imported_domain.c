/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A domain that a second context has imported is deallocated by either, though the other has idle regions of it
 * (RDMAMR_CACHE=local). rxe imports no domain; the stand-in of vm/hca does.
 */
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"

static struct ibv_context *context, *copy;

/* A range is registered plainly at first, and kept once it has come back. */
static void leave_idle(struct ibv_pd *pd, char *at)
{
	for (int time = 0; time < 3; time++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, at, PAGE, IBV_ACCESS_LOCAL_WRITE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

static void deallocated(bool by_importer)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *imported;
	char *memory = pages(16);

	must(pd);
	imported = ibv_import_pd(copy, pd->handle);
	must(imported);
	leave_idle(pd, memory);
	leave_idle(imported, memory + 8 * PAGE);
	is((long)stats().idle, 2, "each context has an idle region of the domain");
	is(ibv_dealloc_pd(by_importer ? imported : pd), 0, "the %s deallocates it", by_importer ? "importer" : "owner");
	ibv_unimport_pd(by_importer ? pd : imported);
}

int main(void)
{
	context = open_device();
	copy = ibv_import_device(dup(context->cmd_fd));
	must(copy);
	deallocated(false);
	deallocated(true);
	is(ibv_close_device(copy), 0, "the second context is closed");
	is(ibv_close_device(context), 0, "and the first");
	return done_testing();
}
