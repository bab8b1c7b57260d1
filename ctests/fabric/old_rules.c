/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The rules from before libfabric 1.0, and those since. By the old rules a requested key and an
 * offset count only with their flags: otherwise both are ignored, and the library chooses a key.
 *
 * The device is the stand-in (stub_device.h).
 */
#include "../lib/fabric.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

static char *memory;

static struct fid_domain *opened(struct rdmamr_domain_attr attr)
{
	struct fid_domain *domain = NULL;

	attr.size = sizeof(attr);
	must(rdmamr_domain_open(stub_pd(), &attr, &domain, NULL) == 0 && domain);
	return domain;
}

static int reg(struct fid_domain *domain, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr)
{
	*mr = NULL;
	return fi_mr_reg(domain, memory, PAGE, FI_REMOTE_READ, offset, key, flags, mr, NULL);
}

static void close_region(struct fid_mr *mr)
{
	if (mr)
		must(fi_close(&mr->fid) == 0);
}

/* Two regions that ask for one key, and the second for an offset, without flags and with them. */
static void old_rules(const char *name, struct rdmamr_domain_attr attr)
{
	struct fid_domain *domain = opened(attr);
	struct fid_mr *first, *second, *third, *fourth;
	struct rdmamr_segment segment;
	size_t count = 1;

	about("%s", name);
	is(reg(domain, 0, 7, 0, &first), 0, "a key without its flag");
	is(reg(domain, 64 * PAGE + 1, 7, 0, &second), 0, "the same key and an offset without their flags");
	ok(fi_mr_key(first) != 7 && fi_mr_key(second) != 7 && fi_mr_key(first) != fi_mr_key(second),
	   "the library has chosen two keys");
	is(rdmamr_resolve(domain, fi_mr_key(second), 8, 8, &segment, &count), 0, "addresses begin at 0");
	is(reg(domain, 64 * PAGE, 7, RDMAMR_MR_KEY | RDMAMR_MR_OFFSET, &third), 0, "both flags");
	is((long long)fi_mr_key(third), 7, "the key is the requested one");
	count = 1;
	is(rdmamr_resolve(domain, 7, 64 * PAGE + 8, 8, &segment, &count), 0, "addresses begin at the offset");
	is(reg(domain, 0, 7, RDMAMR_MR_KEY, &fourth), -FI_ENOKEY, "a key in use, with its flag");
	close_region(first);
	close_region(second);
	close_region(third);
	must(fi_close(&domain->fid) == 0);
}

static void provider_keys(void)
{
	struct fid_domain *domain = opened((struct rdmamr_domain_attr){ .mode = RDMAMR_PROV_MR_ATTR });
	struct fid_mr *mr;

	about("the device's keys, by the old rules");
	is(reg(domain, 64 * PAGE + 1, 7, 0, &mr), 0, "a key and an offset without their flags");
	is((long long)fi_mr_key(mr), (long long)(uintptr_t)fi_mr_desc(mr), "the key is the device's");
	close_region(mr);
	is(reg(domain, 0, 7, RDMAMR_MR_KEY, &mr), -FI_EBADFLAGS, "a key with its flag");
	must(fi_close(&domain->fid) == 0);
}

static void new_rules(const char *name, struct rdmamr_domain_attr attr)
{
	struct fid_domain *domain = opened(attr);
	struct fid_mr *first, *second;

	about("%s", name);
	is(reg(domain, 0, 7, 0, &first), 0, "a key without its flag");
	is((long long)fi_mr_key(first), 7, "the key is the requested one");
	is(reg(domain, 0, 7, 0, &second), -FI_ENOKEY, "the same key again");
	is(reg(domain, PAGE, 8, 0, &second), -FI_EINVAL, "an offset without its flag");
	close_region(first);
	must(fi_close(&domain->fid) == 0);
}

/* Keys of one byte: each of the 256 is found once, and the next registration says so. */
static void short_keys(void)
{
	struct fid_domain *domain =
		opened((struct rdmamr_domain_attr){ .mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR, .mr_key_size = 1 });
	struct fid_mr *regions[256], *none;
	bool used[256] = { false };

	about("keys of one byte");
	for (int n = 0; n < 256; n++) {
		must(reg(domain, 0, 7, 0, &regions[n]) == 0);
		must(fi_mr_key(regions[n]) < 256 && !used[fi_mr_key(regions[n])]);
		used[fi_mr_key(regions[n])] = true;
	}
	ok(1, "256 regions have 256 keys");
	is(reg(domain, 0, 7, 0, &none), -FI_ENOKEY, "the next region has none");
	for (int n = 0; n < 256; n++)
		close_region(regions[n]);
	must(fi_close(&domain->fid) == 0);
}

int main(void)
{
	memory = pages(1);
	must(stub_open(STUB_NOTHING) == NULL);
	old_rules("an old mode", (struct rdmamr_domain_attr){ .mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR });
	old_rules("an old capability", (struct rdmamr_domain_attr){ .mr_mode = FI_MR_SCALABLE, .caps = RDMAMR_DYNAMIC_MR,
								     .api_version = FI_VERSION(0, 9) });
	provider_keys();
	new_rules("libfabric 1.4's mode", (struct rdmamr_domain_attr){ .mr_mode = FI_MR_SCALABLE, .mode = RDMAMR_LOCAL_MR,
									.api_version = FI_VERSION(1, 4) });
	new_rules("no version and no old name", (struct rdmamr_domain_attr){ .mr_mode = FI_MR_SCALABLE });
	short_keys();
	about("%s", "");
	is(stub_deregistered(), stub_registered(), "no region is left");
	return done_testing();
}
