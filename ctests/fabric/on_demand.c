/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * On-demand paging with the application's keys and addresses from 0. rxe of Linux 7.2 pages a region
 * at the region's own address only: the library registers it there, and rdmamr_resolve() translates.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../lib/fabric.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

/* Where a work request finds byte 8 of a region, in a domain with these capabilities. */
static uint64_t place_of(char *memory, uint64_t caps, uint64_t flags, uint64_t offset)
{
	struct rdmamr_domain_attr attr = {
		.size = sizeof(attr), .api_version = FI_VERSION(1, 17), .mr_mode = FI_MR_SCALABLE, .caps = caps,
	};
	struct rdmamr_segment segment = { 0 };
	struct fid_domain *domain;
	struct fid_mr *mr;
	size_t count = 1;

	must(rdmamr_domain_open(stub_pd(), &attr, &domain, NULL) == 0);
	must(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, offset, 7, flags, &mr, NULL) == 0);
	must(rdmamr_resolve(domain, 7, offset + 8, 8, &segment, &count) == 0 && count == 1);
	must(fi_close(&mr->fid) == 0 && fi_close(&domain->fid) == 0);
	return segment.addr;
}

int main(void)
{
	char *memory = pages(1);
	uint64_t own = (uintptr_t)memory + 8;

	must(stub_open(STUB_NOTHING) == NULL);
	is((long long)place_of(memory, 0, 0, 0), 8, "a pinned region is at the address that peers use");
	is((long long)place_of(memory, RDMAMR_DYNAMIC_MR, 0, 0), (long long)own, "one that pages on demand at its own");
	is((long long)place_of(memory, RDMAMR_DYNAMIC_MR, RDMAMR_MR_OFFSET, PAGE), (long long)own,
	   "also with an offset that the application chose");
	is(stub_deregistered(), stub_registered(), "no region is left");
	return done_testing();
}
