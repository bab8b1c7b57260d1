/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Domains, devices and regions in the wrong order; changing regions; limits. objects.c has windows. */
#include "../../lib/observe.h"
#include "../../lib/verdict.h"

/* Local and remote rights, if the device takes them. */
static int allowed;

static void domains(struct ibv_context *context, char *memory)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_mr *mr, *second;

	must(pd && other);
	mr = ibv_reg_mr(pd, memory, PAGE, allowed);
	second = ibv_reg_mr(pd, memory, PAGE, allowed);
	must(mr && second);
	verdict("the same memory twice\t%s", mr->lkey == second->lkey ? "one key" : "two keys");
	verdict("a domain with two regions\t%s", name_of(ibv_dealloc_pd(pd)));
	verdict("first region\t%s", name_of(ibv_dereg_mr(mr)));
	verdict("a domain with one region\t%s", name_of(ibv_dealloc_pd(pd)));
	verdict("second region\t%s", name_of(ibv_dereg_mr(second)));
	verdict("a domain with none\t%s", name_of(ibv_dealloc_pd(pd)));
	verdict("the other domain\t%s", name_of(ibv_dealloc_pd(other)));
}

static void changes(struct ibv_context *context, char *memory)
{
	enum { TRANSLATION = IBV_REREG_MR_CHANGE_TRANSLATION, PD = IBV_REREG_MR_CHANGE_PD, ACCESS = IBV_REREG_MR_CHANGE_ACCESS };
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	char *to = memory + PAGE;
	const struct { const char *name; int flags; struct ibv_pd *pd; char *to; size_t length; int access; } rows[] = {
		{ "no flag", 0, NULL, NULL, 0, 0 },
		{ "unknown flags", 0x100, pd, memory, PAGE, 0 },
		{ "translation", TRANSLATION, NULL, to, PAGE, 0 },
		{ "translation to unmapped memory", TRANSLATION, NULL, (char *)PAGE, PAGE, 0 },
		{ "translation to NULL", TRANSLATION, NULL, NULL, PAGE, 0 },
		{ "translation to length 0", TRANSLATION, NULL, memory, 0, 0 },
		{ "domain", PD, other, NULL, 0, 0 },
		{ "access", ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE },
		{ "no access", ACCESS, NULL, NULL, 0, 0 },
		{ "wrong access", ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE },
		{ "access without its flag", PD, other, NULL, 0, IBV_ACCESS_LOCAL_WRITE },
		{ "domain and access", PD | ACCESS, other, NULL, 0, IBV_ACCESS_LOCAL_WRITE },
		{ "all", TRANSLATION | PD | ACCESS, other, to, PAGE, allowed },
	};

	must(pd && other);
	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, allowed);
		int code, err;

		must(mr);
		errno = 0;
		code = ibv_rereg_mr(mr, rows[n].flags, rows[n].pd, rows[n].to, rows[n].length, rows[n].access);
		err = errno;
		verdict("rereg: %s\t%d %s, domain %s, address %td, length %#zx", rows[n].name, code, code ? name_of(err) : "",
			mr->pd == pd ? "as it was" : "another", (char *)mr->addr - memory, mr->length);
		verdict("rereg: its end\t%s", name_of(ibv_dereg_mr(mr)));
	}
	verdict("rereg: the domain\t%s", name_of(ibv_dealloc_pd(pd)));
	verdict("rereg: the other domain\t%s", name_of(ibv_dealloc_pd(other)));
}

static void closing(char *memory)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, allowed);

	verdict("closing a device with a region\t%s", mr ? name_of(ibv_close_device(context)) : "no region");
}

static void limit(struct ibv_pd *pd, const char *name, rlim_t bytes, void *addr, size_t length)
{
	struct rlimit limit = { .rlim_cur = bytes, .rlim_max = RLIM_INFINITY };
	char full[96];

	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	snprintf(full, sizeof(full), "limit %zu, %s", (size_t)bytes, name);
	errno = 0;
	verdict_region(full, pd, addr, length, ibv_reg_mr(pd, addr, length, IBV_ACCESS_LOCAL_WRITE));
}

static void limits(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	char *memory = pages(64);
	struct ibv_mr *mr;

	must(pd);
	drop_memlock_right();
	limit(pd, "one page", 0, memory, PAGE);
	limit(pd, "one byte", 1, memory, 1);
	limit(pd, "two bytes on two pages", PAGE, memory + PAGE - 1, 2);
	limit(pd, "16 pages, not aligned", 16 * PAGE, memory + 1, 16 * PAGE);
	limit(pd, "17 pages", 16 * PAGE, memory, 17 * PAGE);
	limit(pd, "17 pages of which none is mapped", 16 * PAGE, NULL, 17 * PAGE);
	limit(pd, "16 pages again", 16 * PAGE, memory, 16 * PAGE);
	mr = ibv_reg_mr(pd, memory, 10 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	limit(pd, "6 pages beside 10", 16 * PAGE, memory, 6 * PAGE);
	limit(pd, "7 pages beside 10", 16 * PAGE, memory, 7 * PAGE);
	verdict("the 10 pages\t%s", name_of(ibv_dereg_mr(mr)));
	verdict("the domain of the limits\t%s", name_of(ibv_dealloc_pd(pd)));
}

int main(void)
{
	struct ibv_context *context = open_device();
	char *memory = pages(2);
	struct ibv_pd *pd = ibv_alloc_pd(context);

	must(pd);
	allowed = taken_rights(pd, memory);
	must(ibv_dealloc_pd(pd) == 0);
	domains(context, memory);
	changes(context, memory);
	closing(memory);
	limits(context);
	verdict("closing the device\t%s", name_of(ibv_close_device(context)));
	return 0;
}
