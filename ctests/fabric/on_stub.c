/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What no device of the machine has, on the stand-in (stub_device.h).
 *
 * On-demand paging with the application's keys and addresses from 0: rxe of Linux 7.2 pages a region
 * at the region's own address only. The library registers it there, and rdmamr_resolve() translates.
 *
 * A device refuses to end a registration, as it does while a memory window is bound to it: the close of
 * its region fails. The region is as before, and closes once the device no longer refuses.
 */
#include "../lib/fabric.h"
#include "../lib/stub_rows.h"

enum { BUFFERS = 3 };

static struct fid_domain *domain_with(int32_t mr_mode, uint64_t caps)
{
	struct rdmamr_domain_attr attr = { .size = sizeof(attr), .api_version = FI_VERSION(1, 17), .mr_mode = mr_mode, .caps = caps };
	struct fid_domain *domain;

	must(rdmamr_domain_open(stub_pd(), &attr, &domain, NULL) == 0);
	return domain;
}

/* Where a work request finds byte 8 of a region, in a domain with these capabilities. */
static void finds(char *memory, uint64_t caps, uint64_t flags, uint64_t offset, uint64_t place, const char *name)
{
	struct fid_domain *domain = domain_with(FI_MR_SCALABLE, caps);
	struct fid_mr *mr;

	must(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, offset, 7, flags, &mr, NULL) == 0);
	is((long long)resolved(domain, 7, offset + 8, 8).addr, (long long)place, "%s", name);
	must(fi_close(&mr->fid) == 0 && fi_close(&domain->fid) == 0);
}

static void on_demand(void)
{
	char *memory = pages(1);
	uint64_t own = (uintptr_t)memory + 8;

	finds(memory, 0, 0, 0, 8, "a pinned region is at the address that peers use");
	finds(memory, RDMAMR_DYNAMIC_MR, 0, 0, own, "one that pages on demand at its own");
	finds(memory, RDMAMR_DYNAMIC_MR, RDMAMR_MR_OFFSET, PAGE, own, "also with an offset that the application chose");
}

/* Of row->value buffers. */
static void refused_close(void)
{
	struct fid_domain *domain = domain_with(FI_MR_BASIC, 0);
	struct rdmamr_segment segments[BUFFERS];
	struct iovec buffers[BUFFERS];
	size_t found = BUFFERS;
	struct fid_mr *mr;

	for (int n = 0; n < BUFFERS; n++)
		buffers[n] = (struct iovec){ pages(2), PAGE };
	must(fi_mr_regv(domain, buffers, (size_t)row->value, FI_ALL, 0, 0, 0, &mr, NULL) == 0);
	stub_fail(STUB_DEREGISTER, EBUSY, 1);
	is(fi_close(&mr->fid), -EBUSY, "its close is refused");
	is(rdmamr_mr_segments(mr, segments, &found), 0, "it is still registered");
	is((long long)found, row->value, "as a whole");
	is(fi_close(&mr->fid), 0, "it closes");
	is(fi_close(&domain->fid), 0, "the domain closes");
}

static const struct row rows[] = {
	{ "on-demand paging", on_demand, .flags = NO_PINS },
	{ "a close that is refused, of a buffer", refused_close, 1, .flags = NO_PINS },
	{ "a close that is refused, of three buffers", refused_close, BUFFERS, .flags = NO_PINS },
};

static void around(void)
{
	on_stub();
	is(stub_deregistered(), stub_registered(), "no region is left");
}

RUN_ROWS(NULL, around)
