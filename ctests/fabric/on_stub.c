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

/* In a domain whose attributes are row->of. */
static struct fid_domain *domain;

static int ask(uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr)
{
	static char *memory;

	memory = memory ? memory : pages(1);
	domain = domain ? domain : opened(row->of);
	*mr = NULL;
	return fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, offset, key, flags, mr, NULL);
}

static void end(struct fid_mr *mr)
{
	if (mr)
		must(fi_close(&mr->fid) == 0);
}

/* Two regions that ask for one key, and the second for an offset, without flags and with them. */
static void old_rules(void)
{
	struct fid_mr *first, *second, *third, *fourth;
	struct rdmamr_segment segment;
	size_t count = 1;

	is(ask(0, 7, 0, &first), 0, "a key without its flag");
	is(ask(64 * PAGE + 1, 7, 0, &second), 0, "the same key and an offset without their flags");
	ok(fi_mr_key(first) != 7 && fi_mr_key(second) != 7 && fi_mr_key(first) != fi_mr_key(second),
	   "the library has chosen two keys");
	is(rdmamr_resolve(domain, fi_mr_key(second), 8, 8, &segment, &count), 0, "addresses begin at 0");
	is(ask(64 * PAGE, 7, RDMAMR_MR_KEY | RDMAMR_MR_OFFSET, &third), 0, "both flags");
	is((long long)fi_mr_key(third), 7, "the key is the requested one");
	count = 1;
	is(rdmamr_resolve(domain, 7, 64 * PAGE + 8, 8, &segment, &count), 0, "addresses begin at the offset");
	is(ask(0, 7, RDMAMR_MR_KEY, &fourth), -FI_ENOKEY, "a key in use, with its flag");
	end(first);
	end(second);
	end(third);
}

static void provider_keys(void)
{
	struct fid_mr *mr;

	is(ask(64 * PAGE + 1, 7, 0, &mr), 0, "a key and an offset without their flags");
	is((long long)fi_mr_key(mr), (long long)(uintptr_t)fi_mr_desc(mr), "the key is the device's");
	end(mr);
	is(ask(0, 7, RDMAMR_MR_KEY, &mr), -FI_EBADFLAGS, "a key with its flag");
}

static void new_rules(void)
{
	struct fid_mr *first, *second;

	is(ask(0, 7, 0, &first), 0, "a key without its flag");
	is((long long)fi_mr_key(first), 7, "the key is the requested one");
	is(ask(0, 7, 0, &second), -FI_ENOKEY, "the same key again");
	is(ask(PAGE, 8, 0, &second), -FI_EINVAL, "an offset without its flag");
	end(first);
}

/* Each of the 256 is found once, and the next registration says so. */
static void keys_of_a_byte(void)
{
	struct fid_mr *regions[256], *none;
	bool used[256] = { false };

	for (int n = 0; n < 256; n++) {
		must(ask(0, 7, 0, &regions[n]) == 0);
		must(fi_mr_key(regions[n]) < 256 && !used[fi_mr_key(regions[n])]);
		used[fi_mr_key(regions[n])] = true;
	}
	is(ask(0, 7, 0, &none), -FI_ENOKEY, "the next region has none");
	for (int n = 0; n < 256; n++)
		end(regions[n]);
}

static const struct row rows[] = {
	{ "on-demand paging", on_demand, .flags = NO_PINS },
	{ "a close that is refused, of a buffer", refused_close, 1, .flags = NO_PINS },
	{ "a close that is refused, of three buffers", refused_close, BUFFERS, .flags = NO_PINS },
	{ "the old rules, by a mode", old_rules, .of = ATTR(.mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR), .flags = NO_PINS },
	{ "the old rules, by a capability", old_rules, .flags = NO_PINS,
	  .of = ATTR(.mr_mode = FI_MR_SCALABLE, .caps = RDMAMR_DYNAMIC_MR, .api_version = FI_VERSION(0, 9)) },
	{ "the old rules, with the device's keys", provider_keys, .of = ATTR(.mode = RDMAMR_PROV_MR_ATTR), .flags = NO_PINS },
	{ "the new rules, by libfabric 1.4's mode", new_rules, .flags = NO_PINS,
	  .of = ATTR(.mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR, .api_version = FI_VERSION(1, 4)) },
	{ "256 regions have the keys of a byte", keys_of_a_byte, .flags = NO_PINS,
	  .of = ATTR(.mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR, .mr_key_size = 1) },
};

static void around(void)
{
	on_stub();
	must(!domain || fi_close(&domain->fid) == 0);
	is(stub_deregistered(), stub_registered(), "no region is left");
}

RUN_ROWS(NULL, around)
