/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Idle regions in a cgroup: they leave room for other objects of the device, and for memory. And the
 * threads of RDMAMR_PREFAULT: one fewer than the processors whose time the group has.
 *
 * Runs only in the machine of vm/, where the test may change the cgroups.
 */
#include <sys/mount.h>
#include <sys/stat.h>
#include "../../lib/pair_rows.h"
#include "../../plain/prefault/started.h"

#define ROOT_GROUP "/sys/fs/cgroup"
#define GROUP ROOT_GROUP "/limits"
enum { OBJECTS = 10, REGIONS = OBJECTS - 1, BUFFER = 100 << 20, ROUNDS = 10 };

static void enter(void) { must(write_to(GROUP "/cgroup.procs", "0")); }

/* In a group that allows the device ten objects: the domain, and nine others. */
static void objects(void)
{
	const char *device = getenv("CHECK_DEVICE");
	struct ibv_mr *regions[REGIONS];
	struct ibv_context *context;
	struct rdmamr_stats before;
	struct ibv_pd *pd, *other;
	struct ibv_cq *cq;
	char limit[128];

	must(write_to(GROUP "/rdma.max", "%s hca_object=%d", device, OBJECTS));
	enter();
	pd = domain_of_device();
	context = pd->context;
	for (int n = 0; n < REGIONS; n++) {
		regions[n] = register_by_cache(pd, memory + n * PAGE, PAGE, LOCAL_AND_REMOTE, &before);
		must(regions[n] && (row->value || ibv_dereg_mr(regions[n]) == 0));
	}
	for (int n = 0; row->value && n < REGIONS; n++)
		must(ibv_dereg_mr(regions[n]) == 0);
	cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	ok(!!cq, "after nine registrations a completion queue");
	other = ibv_alloc_pd(context);
	ok(!!other, "and a protection domain");
	must((!cq || ibv_destroy_cq(cq) == 0) && (!other || ibv_dealloc_pd(other) == 0));
	ok(comes(stats().idle <= 1), "at most an eighth of the rest is idle: %d", (int)stats().idle);
	for (int n = 0; n < REGIONS; n++)
		must(regions[n] = ibv_reg_mr(pd, memory + n * PAGE, PAGE, LOCAL_AND_REMOTE));
	errno = 0;
	ok(!ibv_reg_mr(pd, memory + REGIONS * PAGE, PAGE, LOCAL_AND_REMOTE) && errno == EAGAIN, "a tenth region: EAGAIN");
	snprintf(limit, sizeof(limit), "; /limits: %s hca_handle=max hca_object=%d", device, OBJECTS);
	ok(strstr(rdmamr_last_reason(), "kernel: the limit of the rdma cgroup") && strstr(rdmamr_last_reason(), limit), "with the limit: %s",
	   rdmamr_last_reason());
	for (int n = 0; n < REGIONS; n++)
		must(ibv_dereg_mr(regions[n]) == 0);
	is(ibv_dealloc_pd(pd), 0, "the domain ends");
	is(ibv_close_device(context), 0, "the device is closed");
}

/*
 * In 300 MiB, rounds of a buffer that is mapped, filled, registered, deregistered and unmapped: at
 * most 1.2 times the memory of one buffer and what the process has.
 */
static void much_memory(void)
{
	struct ibv_pd *pd = domain_of_device();
	long long bytes = 0;
	FILE *peak;

	must(write_to(GROUP "/memory.max", "314572800"));
	write_to(GROUP "/memory.swap.max", "0");
	enter();
	for (int n = 0; n < ROUNDS; n++) {
		char *at = untouched(BUFFER);
		struct ibv_mr *mr;

		memset(at, n, BUFFER);
		mr = ibv_reg_mr(pd, at, BUFFER, IBV_ACCESS_LOCAL_WRITE);
		must(mr && ibv_dereg_mr(mr) == 0 && munmap(at, BUFFER) == 0);
	}
	peak = fopen(GROUP "/memory.peak", "re");
	must(peak && fscanf(peak, "%lld", &bytes) == 1 && bytes > BUFFER);
	ok(bytes <= BUFFER / 10 * 12, "at most 1.2 times the memory of a buffer: %lld MiB", bytes >> 20);
}

static void with_threads(void)
{
	static const char *const times[] = { "100000 100000", "150000 100000", "max 100000" };
	struct ibv_pd *pd = domain_of_device();

	if (!write_to(ROOT_GROUP "/cgroup.subtree_control", "+cpu") || sysconf(_SC_NPROCESSORS_ONLN) < 2)
		skip_all("no controller of processors, or one processor");
	enter();
	for (int n = 0; n < 3; n++) {
		const int before = started;
		struct ibv_mr *mr;

		must(write_to(GROUP "/cpu.max", "%s", times[n]));
		mr = ibv_reg_mr(pd, untouched(BUFFER), BUFFER, IBV_ACCESS_LOCAL_WRITE);
		is(started - before, n > 0, "threads with cpu.max %s", times[n]);
		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

/* A new group for each row. */
static void in_group(void)
{
	if (!getenv("VM"))
		skip_all("only in the machine of vm/: the cgroups are changed");
	if (access(ROOT_GROUP "/cgroup.controllers", R_OK) && mount("none", ROOT_GROUP, "cgroup2", 0, NULL))
		skip_all("no cgroup2");
	if (!write_to(ROOT_GROUP "/cgroup.subtree_control", "+rdma +memory"))
		skip_all("no controller of rdma or memory");
	rmdir(GROUP);
	must(mkdir(GROUP, 0755) == 0);
	on_pair();
	must(write_to(ROOT_GROUP "/cgroup.procs", "0") && rmdir(GROUP) == 0);
}

#define BY(calls) .flags = NO_PAIR | (calls)

static const struct row rows[] = {
	{ "nine registrations of ten objects in turn", objects, false, BY(BOTH_CALLS) },
	{ "nine registrations of ten objects at once", objects, true, BY(BOTH_CALLS) },
	{ "rounds of a third of the memory", much_memory, BY(PLAIN_CALLS) },
	{ "untouched memory, and threads that populate it", with_threads, BY(PLAIN_CALLS), .settings = "RDMAMR_PREFAULT=2" },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, in_group)
