/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Arguments that no program would pass, some of them good: random attributes of domains,
 * registrations and queues. Each call returns 0 or a code that is documented for it, with a reason
 * in words. A failed call writes nothing and leaves nothing behind; a registered region can be
 * closed.
 *
 * Usage: fuzz [ROUNDS [SEED]]
 */
#include "../lib/fabric.h"

static uint64_t state;
static char *memory;
enum { MEMORY = 64 };

static uint64_t any(void)
{
	/* Marsaglia's xorshift: the same for a seed everywhere. */
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Mostly values that are worth trying, now and then any value. */
static uint64_t number(void)
{
	static const uint64_t worth[] = {
		0, 1, 2, 7, 8, 16, 24, 4095, 4096, 1 << 20, 1ULL << 32, (1ULL << 47) - 1,
		SIZE_MAX / 2, SIZE_MAX - 4095, SIZE_MAX,
	};

	return any() % 8 ? worth[any() % (sizeof(worth) / sizeof(*worth))] : any();
}

static uint64_t some_bits(uint64_t of)
{
	return any() % 4 ? any() & of : any() % 2 ? of : any() & any() & any();
}

/* One of the codes that registering documents. */
static bool is_documented(int code)
{
	switch (code) {
	case 0: case -FI_EINVAL: case -FI_EBADFLAGS: case -FI_ENOKEY: case -FI_EKEYREJECTED:
	case -FI_EFAULT: case -FI_ENOMEM: case -FI_ENOSYS:
		return true;
	}
	return false;
}

static void buffer(struct iovec *iov)
{
	if (any() % 8) {
		iov->iov_base = memory + any() % (MEMORY * PAGE);
		iov->iov_len = 1 + any() % (4 * PAGE);
	} else {
		iov->iov_base = (void *)(uintptr_t)number();
		iov->iov_len = number();
	}
}

static void registrations(struct ibv_pd *pd, long rounds)
{
	static struct fid_domain *domains[KINDS];
	static struct fid_mr *open[64], *const untouched = (void *)&untouched;
	long good = 0, bad = 0, undocumented = 0, touched = 0, silent = 0, closing = 0, unkeyed = 0;
	uint64_t live = stats().live;

	for (int n = 0; n < KINDS; n++)
		must(open_with(pd, FI_VERSION(2, 0), kinds[n].mr_mode, kinds[n].flags, &domains[n]) == 0);
	for (long round = 0; round < rounds; round++) {
		struct fid_domain *domain = domains[any() % KINDS];
		struct fid_mr **slot = &open[any() % 64], *mr = untouched;
		struct iovec iov[20];
		/* As large as any version has it: fields that this header lacks follow as bytes. */
		union {
			struct fi_mr_attr attr;
			uint64_t words[16];
		} given = { .words = { 0 } };
		uint64_t flags;
		int code;

		if (*slot) {
			closing += fi_close(&(*slot)->fid) != 0;
			*slot = NULL;
		}
		for (int n = 0; n < 20; n++)
			buffer(&iov[n]);
		given.attr.mr_iov = any() % 32 ? iov : NULL;
		given.attr.iov_count = any() % 8 ? 1 + any() % 4 : any() % 20;
		given.attr.access = any() % 8 ? (1 + any() % 63) << 8 : some_bits(0x3f00);
		given.attr.offset = any() % 4 ? 0 : number();
		given.attr.requested_key = any() % 4 ? any() % 1000 : number();
		given.attr.context = &given;
		given.words[6] = any() % 16 ? 0 : any(); /* auth_key_size */
		given.words[12] = any() % 16 ? 0 : any(); /* base_mr of 2.0 */
		flags = any() % 4 ? 0 : any() % 8 ? some_bits(RDMAMR_MR_KEY | RDMAMR_MR_OFFSET) : any();
		code = fi_mr_regattr(domain, &given.attr, flags, &mr);
		undocumented += !is_documented(code);
		if (code) {
			bad++;
			touched += mr != untouched;
			silent += !strstr(rdmamr_last_reason(), "fi_mr_regattr");
		} else {
			uint8_t raw[512];
			size_t size = sizeof(raw);
			uint64_t base, key;

			good++;
			*slot = mr;
			/* Its raw key can be mapped in any domain. */
			if (fi_mr_raw_attr(mr, &base, raw, &size, 0) ||
			    fi_mr_map_raw(domains[0], base, raw, size, &key, 0) ||
			    fi_mr_unmap_key(domains[0], key))
				unkeyed++;
		}
	}
	for (int n = 0; n < 64; n++)
		closing += open[n] && fi_close(&open[n]->fid) != 0;
	ok(good > rounds / 20 && bad > rounds / 20,
	   "of %ld registrations with random attributes %ld succeeded and %ld failed", rounds, good, bad);
	none(undocumented, "each answer is documented");
	none(touched, "no failed call wrote a region");
	none(silent, "each failure has its reason");
	none(unkeyed, "each region has a raw key that is taken");
	none(closing, "each region was closed");
	for (int n = 0; n < KINDS; n++)
		is(fi_close(&domains[n]->fid), 0, "%s: closed", kinds[n].name);
	is((long long)stats().live, (long long)live, "no region is left");
}

static void domains(struct ibv_pd *pd, long rounds)
{
	long good = 0, bad = 0, wrong = 0, touched = 0;

	for (long round = 0; round < rounds; round++) {
		union {
			struct rdmamr_domain_attr attr;
			uint64_t words[600];
		} given;
		struct fid_domain *domain = (void *)&given;
		int code;

		memset(&given, 0, sizeof(given));
		given.attr.size = any() % 4 ? sizeof(given.attr) :
				  any() % 4 ? any() % sizeof(given) : number() % 4096;
		given.attr.api_version = (uint32_t)any();
		given.attr.mr_mode = (int32_t)any();
		if (any() % 2)
			given.attr.mr_mode &= FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_LOCAL | FI_MR_RAW;
		given.attr.mode = any() % 2 ? 0 : some_bits(RDMAMR_PROV_MR_ATTR | RDMAMR_LOCAL_MR);
		given.attr.caps = any() % 4 ? 0 : some_bits(RDMAMR_DYNAMIC_MR);
		given.attr.flags = any() % 2 ? 0 : some_bits(RDMAMR_DOMAIN_CACHE);
		given.attr.mr_key_size = any() % 2 ? 0 : any() % 12;
		if (!(any() % 4))
			given.words[sizeof(given.attr) / 8 + any() % 64] = any();
		code = rdmamr_domain_open(pd, &given.attr, &domain, NULL);
		if (!code) {
			good++;
			wrong += fi_close(&domain->fid) != 0;
		} else {
			bad++;
			wrong += code != -FI_EINVAL && code != -FI_ENOSYS;
			touched += domain != (void *)&given;
		}
	}
	ok(good > rounds / 20 && bad > rounds / 20,
	   "of %ld domains with random attributes %ld opened and %ld not", rounds, good, bad);
	none(wrong, "each answer is documented, and each domain closed");
	none(touched, "no failed call wrote a domain");
}

static void queues(long rounds)
{
	long good = 0, bad = 0, wrong = 0;

	for (long round = 0; round < rounds; round++) {
		struct fi_eq_attr attr = {
			.size = number(),
			.flags = any() % 2 ? 0 : some_bits(FI_WRITE),
			.wait_obj = any() % 4 ? (int)(any() % 4) : (int)any(),
			.signaling_vector = (int)any(),
		};
		struct fid_eq *eq;
		int code = rdmamr_eq_open((uint32_t)any(), &attr, &eq, NULL);

		if (code) {
			bad++;
			wrong += code != -FI_EBADFLAGS && code != -FI_ENOSYS;
			continue;
		}
		good++;
		for (int n = 0; n < 4; n++) {
			uint8_t bytes[64] = { 0 };
			uint32_t event;
			size_t size = any() % sizeof(bytes);
			ssize_t wrote = fi_eq_write(eq, (uint32_t)any(), bytes, size, any() % 4 ? 0 : any());
			ssize_t read = fi_eq_read(eq, &event, bytes, any() % sizeof(bytes),
						  any() % 4 ? 0 : some_bits(FI_PEEK));

			wrong += wrote != (ssize_t)size && wrote != -FI_EINVAL && wrote != -FI_EBADFLAGS;
			wrong += read < 0 && read != -FI_EAGAIN && read != -FI_ETOOSMALL && read != -FI_EBADFLAGS;
		}
		wrong += fi_close(&eq->fid) != 0;
	}
	ok(good > rounds / 20 && bad > rounds / 20,
	   "of %ld queues with random attributes %ld opened and %ld not", rounds, good, bad);
	none(wrong, "each answer is documented, and each queue closed");
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 20000;
	struct ibv_context *context;
	struct ibv_pd *pd;

	fabric_begin();
	state = argc > 2 ? strtoull(argv[2], NULL, 0) : 0x9e3779b97f4a7c15;
	context = open_device();
	must(context);
	pd = ibv_alloc_pd(context);
	must(pd);
	memory = pages(MEMORY);
	as_case(registrations(pd, rounds), "%ld registrations with random attributes", rounds);
	as_case(domains(pd, rounds), "%ld domains with random attributes", rounds);
	as_case(queues(rounds), "%ld queues with random attributes", rounds);
	is(ibv_dealloc_pd(pd), 0, "nothing is left in the protection domain");
	ibv_close_device(context);
	return done_testing();
}
