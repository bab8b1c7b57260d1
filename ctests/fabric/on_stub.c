/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What no device of the machine has, on the stand-in (stub_device.h): on-demand paging, of which rxe of Linux
 * 7.2 has only that at a region's own address; a refusal to end a registration, as while a memory window is
 * bound to it. And the rules from before libfabric 1.0: without their flags a requested key and an offset are
 * ignored, and the library chooses a key.
 */
#include "../lib/fabric.h"
#include "../lib/stub_rows.h"

enum { BUFFERS = 3 };

#define ATTR(...) (&(struct rdmamr_domain_attr){ .size = sizeof(struct rdmamr_domain_attr), __VA_ARGS__ })

static struct fid_domain *opened(const struct rdmamr_domain_attr *attr)
{
	struct fid_domain *domain = NULL;

	must(rdmamr_domain_open(stub_pd(), attr, &domain, NULL) == 0 && domain);
	return domain;
}

/* Where a work request finds byte 8 of a region, in a domain with these capabilities. */
static void finds(char *memory, uint64_t caps, uint64_t flags, uint64_t offset, uint64_t place, const char *name)
{
	struct fid_domain *domain = opened(ATTR(.api_version = FI_VERSION(1, 17), .mr_mode = FI_MR_SCALABLE, .caps = caps));
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
	struct fid_domain *domain = opened(ATTR(.api_version = FI_VERSION(1, 17), .mr_mode = FI_MR_BASIC));
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

enum { BY_LIBRARY, BY_REQUEST, BY_DEVICE };

/* Regions that are asked for, each by the key 7, one after the other in a domain: each list is one of rules. */
static const struct asked {
	const char *what;
	uint64_t offset, flags;
	int want, chosen; /* how the key is */
	uint64_t base; /* where addresses begin */
} rules[][5] = {
	{ { "a key without its flag", 0, 0, 0, BY_LIBRARY, 0 },
	  { "the same key and an offset without their flags", 64 * PAGE + 1, 0, 0, BY_LIBRARY, 0 },
	  { "both flags", 64 * PAGE, RDMAMR_MR_KEY | RDMAMR_MR_OFFSET, 0, BY_REQUEST, 64 * PAGE },
	  { "a key in use, with its flag", 0, RDMAMR_MR_KEY, -FI_ENOKEY, 0, 0 } },
	{ { "a key and an offset without their flags", 64 * PAGE + 1, 0, 0, BY_DEVICE, 0 },
	  { "a key with its flag", 0, RDMAMR_MR_KEY, -FI_EBADFLAGS, 0, 0 } },
	{ { "an offset without its flag", PAGE, 0, -FI_EINVAL, 0, 0 },
	  { "a key without its flag", 0, 0, 0, BY_REQUEST, 0 },
	  { "the same key again", 0, 0, -FI_ENOKEY, 0, 0 } },
};
enum { OLD, DEVICES, NEW };

/* The rules row->value, in a domain whose attributes are row->of. */
static void keys(void)
{
	struct fid_domain *domain = opened(row->of);
	char *memory = pages(1);
	struct fid_mr *made[4] = { 0 };
	uint64_t last = 7;

	for (int n = 0; n < 4 && rules[row->value][n].what; n++) {
		const struct asked *asked = &rules[row->value][n];
		struct rdmamr_segment segment;
		size_t count = 1;
		uint64_t key;

		is(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, asked->offset, 7, asked->flags, &made[n], NULL), asked->want, "%s",
		   asked->what);
		if (!made[n])
			continue;
		key = fi_mr_key(made[n]);
		ok(asked->chosen == BY_REQUEST ? key == 7 : asked->chosen == BY_LIBRARY ? key != 7 && key != last :
		   key == (uintptr_t)fi_mr_desc(made[n]), "%s: whose key it has", asked->what);
		is(rdmamr_resolve(domain, key, asked->base + 8, 8, &segment, &count), 0, "%s: where addresses begin", asked->what);
		last = key;
	}
	for (int n = 0; n < 4; n++)
		must(!made[n] || fi_close(&made[n]->fid) == 0);
	must(fi_close(&domain->fid) == 0);
}

/* Each of the 256 is found once, and the next registration says so. */
static void keys_of_a_byte(void)
{
	struct fid_domain *domain = opened(row->of);
	struct fid_mr *regions[256], *none;
	bool used[256] = { false };
	char *memory = pages(1);

	for (int n = 0; n < 256; n++) {
		regions[n] = region(domain, memory, PAGE, FI_REMOTE_READ, 7);
		must(fi_mr_key(regions[n]) < 256 && !used[fi_mr_key(regions[n])]);
		used[fi_mr_key(regions[n])] = true;
	}
	is(fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, 0, 7, 0, &none, NULL), -FI_ENOKEY, "the next region has none");
	for (int n = 0; n < 256; n++)
		must(fi_close(&regions[n]->fid) == 0);
	must(fi_close(&domain->fid) == 0);
}

static const struct row rows[] = {
	{ "on-demand paging", on_demand, .flags = NO_PINS },
	{ "a close that is refused, of a buffer", refused_close, 1, .flags = NO_PINS },
	{ "a close that is refused, of three buffers", refused_close, BUFFERS, .flags = NO_PINS },
	{ "the old rules, by a mode", keys, OLD, ATTR(.mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR), .flags = NO_PINS },
	{ "the old rules, by a capability", keys, OLD, .flags = NO_PINS,
	  .of = ATTR(.mr_mode = FI_MR_SCALABLE, .caps = RDMAMR_DYNAMIC_MR, .api_version = FI_VERSION(0, 9)) },
	{ "the old rules, with the device's keys", keys, DEVICES, ATTR(.mode = RDMAMR_PROV_MR_ATTR), .flags = NO_PINS },
	{ "the new rules, by libfabric 1.4's mode", keys, NEW, .flags = NO_PINS,
	  .of = ATTR(.mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR, .api_version = FI_VERSION(1, 4)) },
	{ "256 regions have the keys of a byte", keys_of_a_byte, .flags = NO_PINS,
	  .of = ATTR(.mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR, .mr_key_size = 1) },
};

static void around(void)
{
	on_stub();
	is(stub_deregistered(), stub_registered(), "no region is left");
}

RUN_ROWS(NULL, around)
