/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A device refuses to end a registration, as it does while a memory window is bound to it: the
 * close of its region fails. The region is as before, of one buffer or of several, and closes once
 * the device no longer refuses.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../lib/fabric.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

enum { BUFFERS = 3 };

static void closes(struct fid_domain *domain, const struct iovec *buffers, size_t count)
{
	struct rdmamr_segment segments[BUFFERS];
	size_t found = BUFFERS;
	struct fid_mr *mr;

	case_begin("a region of %zu", count);
	must(fi_mr_regv(domain, buffers, count, FI_ALL, 0, 0, 0, &mr, NULL) == 0);
	stub_fail(STUB_DEREGISTER, EBUSY, 1);
	is(fi_close(&mr->fid), -EBUSY, "its close is refused");
	is(rdmamr_mr_segments(mr, segments, &found), 0, "it is still registered");
	is((long long)found, (long long)count, "as a whole");
	is(fi_close(&mr->fid), 0, "it closes");
	case_end();
}

int main(void)
{
	struct iovec buffers[BUFFERS];
	struct fid_domain *domain;
	char *memory = pages(2 * BUFFERS);

	must(stub_open(STUB_NOTHING) == NULL);
	must(rdmamr_domain_open(stub_pd(), NULL, &domain, NULL) == 0);
	for (int n = 0; n < BUFFERS; n++)
		buffers[n] = (struct iovec){ memory + (long)n * 2 * PAGE, PAGE };
	closes(domain, buffers, 1);
	closes(domain, buffers, BUFFERS);
	is(fi_close(&domain->fid), 0, "the domain closes");
	is(stub_deregistered(), stub_registered(), "no region is left");
	return done_testing();
}
