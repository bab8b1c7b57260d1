/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Regions of a device by libibverbs' own calls. Each row has statistics of its own. The first word of
 * its name is that of its suite.
 */
#include "../lib/init_attr.h"
#include "../lib/reuse.h"
#include "../lib/rows.h"
#include <dlfcn.h>
#include <malloc.h>

enum { LOCAL = IBV_ACCESS_LOCAL_WRITE };
enum { MOVES_DATA = 1 }; /* of a row */

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct pair pair; /* of rows that move data */
static char *local, *remote; /* a page each */
static struct ibv_mr *source; /* `local`, of rows that move data */

static struct ibv_mr *(*handle_reg_mr)(struct ibv_pd *, void *, size_t, int);
static struct ibv_mr *(*handle_reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*handle_dereg_mr)(struct ibv_mr *);

static bool said(const char *words) { return strstr(rdmamr_last_reason(), words) != NULL; }

/* golden/compare.sh records their bytes: the addresses are the same in every run. */
static void calls(void)
{
	static const int access[] = {
		0, LOCAL, LOCAL_AND_REMOTE, LOCAL_AND_REMOTE | IBV_ACCESS_REMOTE_ATOMIC, LOCAL | IBV_ACCESS_MW_BIND,
		LOCAL | IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_WRITE /* refused */,
	};
	enum { CASES = sizeof(access) / sizeof(*access) };
	struct ibv_mr *made[3 * CASES] = { 0 };
	char *memory = (char *)0x200000000000;

	fresh_at(memory, 16 * PAGE);
	for (int n = 0; n < CASES; n++) {
		made[3 * n] = ibv_reg_mr(pd, memory + n, 100 + (size_t)n, access[n]);
		made[3 * n + 1] = ibv_reg_mr_iova(pd, memory + n, 5 * PAGE, 0x7000 + (uint64_t)n, access[n]);
		made[3 * n + 2] = ibv_reg_mr_iova2(pd, memory, PAGE, 0, (unsigned int)access[n]);
	}
	(void)!ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
	/* This one never reaches the kernel. */
	(void)!ibv_reg_mr(pd, memory, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
	for (int n = 3 * CASES - 1; n >= 0; n--)
		must(!made[n] || ibv_dereg_mr(made[n]) == 0);
}

static struct ibv_mr *reg_mr_ex(struct init_attr *attr)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, struct init_attr *);

	*(void **)&reg = dlvsym(RTLD_DEFAULT, "ibv_reg_mr_ex", "IBVERBS_1.15");
	must(reg);
	return reg(pd, attr);
}

/* What ibv_alloc_buf returns (rdma-core 64), by which ibv_reg_buf_mr registers: its private structure. */
struct buffer {
	void *addr;
	size_t size;
	struct ibv_pd *pd;
	int dmabuf_fd;
};

static void extensible(void)
{
	enum { ADDR = MASK_ADDR, BUF = MASK_ADDR | MASK_BUF, AT = 8 };
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct buffer whole = { local, PAGE, pd, -1 }, half = { local + PAGE / 2, PAGE / 2, pd, -1 };
	struct buffer of_other = { local, PAGE, other, -1 }, dmabuf = { local, PAGE, pd, 1000 };
	struct {
		const char *name;
		struct init_attr attr;
		int err; /* 0: it is registered; -1: any */
	} rows[] = {
		{ "by address", { .length = 100, .access = LOCAL_AND_REMOTE, .comp_mask = ADDR, .addr = local + AT }, 0 },
		{ "by another iova", { .length = 100, .access = LOCAL_AND_REMOTE, .comp_mask = ADDR | MASK_IOVA,
				       .iova = 0x123456789008, .addr = local + AT }, 0 },
		{ "an iova of another page offset", { .length = 100, .access = LOCAL_AND_REMOTE, .comp_mask = ADDR | MASK_IOVA,
						      .iova = 0x10, .addr = local + AT }, EINVAL },
#define OF(whose, offset, bytes)                                                                \
	{ .length = bytes, .access = LOCAL, .comp_mask = BUF, .addr = local + (offset), .buffer = &(whose) }
		{ "of a buffer", OF(whole, AT, 100), 0 },
		/* libibverbs decides about memory that is not plain. It may lack the call. */
		{ "past the buffer's end", OF(whole, AT, PAGE), -1 },
		{ "before the buffer", OF(half, 0, PAGE), -1 },
		{ "a buffer of another domain", OF(of_other, 0, PAGE), -1 },
		{ "a buffer with a dma-buf", OF(dmabuf, 0, PAGE), -1 },
		{ "an invalid DMA handle", { .length = PAGE, .access = LOCAL, .comp_mask = ADDR | MASK_DMAH, .addr = local }, -1 },
		{ "unknown attributes", { .length = PAGE, .access = LOCAL, .comp_mask = 1ull << 40, .addr = local }, -1 },
	};

	must(other);
	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++) {
		struct ibv_mr *mr;

		about("%s", rows[n].name);
		errno = 0;
		mr = reg_mr_ex(&rows[n].attr);
		gives(!rows[n].err, mr != NULL);
		holds(rows[n].err < 0 ? errno != 0 : errno == rows[n].err);
		holds(rows[n].err != EINVAL || said("must have the same offset"));
		if (mr) {
			holds(mr->addr == local + AT && mr->length == 100);
			gives(0, ibv_dereg_mr(mr));
		}
	}
	about("no attributes");
	errno = 0;
	holds(!reg_mr_ex(NULL) && errno == EINVAL);
	is((long long)stats().reg_kernel, 3, "the library made the three");
	must(ibv_dealloc_pd(other) == 0);
}

static struct ibv_mr *by_call(void) { return ibv_reg_mr(pd, local, PAGE, LOCAL); }

static struct ibv_mr *of_buffer(void)
{
	struct buffer buffer = { local, PAGE, pd, -1 };

	return reg_mr_ex(&(struct init_attr){
		.length = PAGE, .access = LOCAL, .comp_mask = MASK_ADDR | MASK_BUF, .addr = local, .buffer = &buffer,
	});
}

static void rounds(int count, struct ibv_mr *(*reg)(void))
{
	for (int round = 0; round < count; round++) {
		struct ibv_mr *mr = reg();

		must(mr && ibv_dereg_mr(mr) == 0);
	}
}

static void third_is_a_hit(struct ibv_mr *(*reg)(void))
{
	rounds(3, reg);
	gives(2, stats().reg_kernel);
	gives(1, stats().hits);
	gives(0, stats().bypassed_fork);
	gives(0, ibv_flush_relaxed_mr(pd));
}

static void buffer_served(void) { third_is_a_hit(of_buffer); }

static void foreign(void)
{
	struct ibv_mr *mr = handle_reg_mr_iova2(pd, local, PAGE, (uintptr_t)local, LOCAL);

	must(mr);
	is((long long)stats().reg_kernel, 0, "a region that libibverbs made is not the library's");
	gives(0, ibv_dereg_mr(mr));
	is((long long)stats().dereg_next, 1, "libibverbs deregistered it");

	/* objects.c has null regions and dma-bufs of devices that have them. */
	mr = ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, LOCAL);
	ok(!mr && (errno == EOPNOTSUPP || errno == EBADF), "a dma-buf is libibverbs' to refuse (%s)", strerrorname_np(errno));

	mr = ibv_reg_mr(pd, local, PAGE, LOCAL);
	must(mr);
	gives(EBUSY, ibv_dealloc_pd(pd));
	holds(said("the domain still has "));
	gives(0, ibv_dereg_mr(mr));
	gives(EINVAL, ibv_dereg_mr(NULL));
	errno = 0;
	holds(!ibv_reg_mr_iova2(NULL, local, PAGE, 0, 0) && errno == EINVAL);
	holds(said("NULL"));
	gives(EINVAL, ibv_dealloc_pd(NULL));
	gives(EINVAL, ibv_close_device(NULL));
	gives(-1, ibv_rereg_mr(NULL, 0, NULL, NULL, 0, 0));
}

/*
 * libibverbs' own ibv_reg_mr jumps through its PLT to the library's, but its ibv_dereg_mr calls the
 * provider, which frees the library's object.
 */
enum { MANY = 5000 };
static struct ibv_mr *regions[10000];

static int all(struct ibv_mr *(*reg)(void), int (*dereg)(struct ibv_mr *))
{
	int failed = 0;

	for (int n = 0; n < MANY; n++)
		failed += !(regions[n] = reg());
	for (int n = 0; n < MANY; n++)
		failed += dereg(regions[n]) != 0;
	return failed;
}

static struct ibv_mr *by_handle(void) { return handle_reg_mr(pd, remote, PAGE, LOCAL_AND_REMOTE); }

static struct ibv_mr *by_libibverbs(void)
{
	return handle_reg_mr_iova2(pd, remote, PAGE, (uintptr_t)remote, LOCAL_AND_REMOTE);
}

static void half_interception(void)
{
	uint64_t forwarded;
	size_t heap;
	int failed = 0;

	/* As NCCL does. */
	is(all(by_handle, handle_dereg_mr), 0, "registered by the library, deregistered without it");
	gives(MANY + 1, stats().reg_kernel); /* and `source` */
	gives(1, kernel_regions(context));
	heap = mallinfo2().uordblks;
	for (int round = 0; round < 3; round++)
		failed += all(by_handle, handle_dereg_mr);
	is(failed, 0, "%d at once, three times", MANY);
	ok(mallinfo2().uordblks <= heap + 65536, "and they leak no memory (%zd bytes)", (ssize_t)(mallinfo2().uordblks - heap));
	gives(1, stats().live);

	/* Foreign regions now lie where the library's regions were: none may be taken for the library's. */
	forwarded = stats().dereg_next;
	is(all(by_libibverbs, ibv_dereg_mr), 0, "foreign regions are deregistered");
	is((long long)(stats().dereg_next - forwarded), MANY, "each by libibverbs");
	gives(1, kernel_regions(context));
	gives(1, stats().live);

	/* Mixed: the library's regions at places of foreign ones must work, with data. */
	for (int n = 0; n < 200; n++) {
		struct ibv_mr *mr = (n % 2 ? ibv_reg_mr : handle_reg_mr)(pd, remote, PAGE, LOCAL_AND_REMOTE);

		must(mr);
		local[0] = (char)n;
		failed += pair_write(&pair, source, local, 8, (uintptr_t)remote, mr->rkey) != 0;
		/* On iWARP a write is complete when it is sent, and may arrive later. */
		failed += !comes(*(volatile char *)remote == (char)n);
		failed += (n % 3 ? ibv_dereg_mr : handle_dereg_mr)(mr) != 0;
	}
	is(failed, 0, "mixed with intercepted calls, data moves");
}

/* src/mr has objects at the addresses of earlier ones. */
static void reuse(void)
{
	struct ibv_context *second = open_device();
	struct ibv_pd *pds[4] = { pd, ibv_alloc_pd(context), ibv_alloc_pd(second), ibv_alloc_pd(second) };
	struct ibv_mr *mrs[4];

	for (int n = 0; n < 4; n++) {
		mrs[n] = ibv_reg_mr(pds[n], local, PAGE, LOCAL_AND_REMOTE);
		must(mrs[n]);
	}
	is((long long)stats().live, 4, "two devices, two domains each, a region each");
	ok(mrs[0]->handle == mrs[2]->handle, "the kernel's handles are the same in both devices");
	gives(0, ibv_dereg_mr(mrs[2]));
	gives(2, kernel_regions(context));
	gives(1, kernel_regions(second));
	is(ibv_close_device(second), 0, "closing the second device with a region");
	gives(2, stats().live);
	gives(1, stats().ended_elsewhere);
	gives(0, ibv_dereg_mr(mrs[0]));
	gives(0, ibv_dereg_mr(mrs[1]));
	gives(0, ibv_dealloc_pd(pds[1]));
}

enum { THREADS = 8, ROUNDS = 400, SLOTS = 16 };

static struct ibv_mr *handed_over[THREADS][ROUNDS];
static pthread_barrier_t barrier;
static _Atomic int failures;

static void *work(void *argument)
{
	long self = (long)argument;
	char *memory = pages(2);
	struct ibv_mr *slots[SLOTS] = { 0 };
	unsigned int random = (unsigned int)self;

	pthread_barrier_wait(&barrier);
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr **slot = &slots[rand_r(&random) % SLOTS];
		size_t length = 1 + (size_t)rand_r(&random) % (2 * PAGE);

		if (*slot)
			failures += ibv_dereg_mr(*slot) != 0;
		*slot = ibv_reg_mr(pd, memory, length, LOCAL_AND_REMOTE);
		failures += !*slot || (*slot)->length != length;
		handed_over[self][round] = ibv_reg_mr(pd, local, PAGE, LOCAL);
		failures += !handed_over[self][round];
	}
	for (int n = 0; n < SLOTS; n++)
		failures += slots[n] && ibv_dereg_mr(slots[n]) != 0;
	/* Regions that another thread made. */
	pthread_barrier_wait(&barrier);
	for (int round = 0; round < ROUNDS; round++)
		failures += ibv_dereg_mr(handed_over[(self + 1) % THREADS][round]) != 0;
	return NULL;
}

static void threads(void)
{
	pthread_t threads[THREADS];
	struct rdmamr_stats now;

	pthread_barrier_init(&barrier, NULL, THREADS);
	for (long n = 0; n < THREADS; n++)
		threads[n] = must_start(work, (void *)n);
	for (int n = 0; n < THREADS; n++)
		must_join(threads[n]);
	gives(0, failures);
	now = stats();
	gives(2 * THREADS * ROUNDS, now.reg_kernel);
	gives(2 * THREADS * ROUNDS, now.dereg_kernel);
	gives(0, now.live + now.live_bytes);
	gives(0, now.reg_next + now.dereg_next + now.ended_elsewhere);
}

/* A child that registers memory of its own on a device of its own. Returns a bit for each failure. */
static int child_registers(void)
{
	int wrong = (stats().reg_kernel != 0 || stats().live != 0) << 0;
	struct ibv_mr *mr;

	alarm(DEADLOCK);
	context = open_device();
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, pages(1), PAGE, LOCAL);
	wrong |= (!mr || stats().reg_kernel != 1 || stats().reg_next != 0) << 1;
	wrong |= (ibv_dereg_mr(mr) != 0 || stats().live != 0) << 2;
	return wrong | (ibv_dealloc_pd(pd) != 0 || ibv_close_device(context) != 0) << 3;
}

static int child_exits(void) { exit(0); } /* with all destructors */

/* The child shares the parent's file: this ends the parent's region, as it would without the library. */
static struct ibv_mr *target;
static int child_deregisters(void)
{
	return ibv_dereg_mr(target) != 0 || stats().dereg_kernel != 0 || stats().dereg_next != 1;
}

static void parent_works(const char *when)
{
	memset(local, when[0], 64);
	is(pair_write(&pair, source, local, 64, (uintptr_t)remote, target->rkey), IBV_WC_SUCCESS,
	   "the parent's regions work after a child that %s", when);
	ok(remote[0] == when[0] && stats().live == 2, "and its table is whole");
}

/* children.c has a parent that registers in another thread. */
static void forks(void)
{
	target = ibv_reg_mr(pd, remote, PAGE, LOCAL_AND_REMOTE);
	must(target);
	is(in_forked(child_exits), 0, "a child exits");
	parent_works("exits");
	is(in_forked(child_registers), 0, "the library registers for a child on a device of its own");
	parent_works("registers");
	is(in_forked(child_deregisters), 0, "a child deregisters its parent's region by libibverbs");
	is(ibv_dereg_mr(target), ENOENT, "then the kernel does not have it any more");
}

/*
 * On a kernel that copies registered pages for a child, ibv_fork_init returns 0 at any time and marks no
 * memory. ctests/cache/processes/children.c has the memory of a child.
 */
static void splits_nothing(void)
{
	enum { APART = 10000 };
	char *memory = pages(2 * APART);
	int before, most;

	is(ibv_fork_init(), 0, "ibv_fork_init before everything else");
	before = mappings();
	for (int n = 0; n < APART; n++)
		must((regions[n] = ibv_reg_mr(pd, memory + (size_t)n * 2 * PAGE, PAGE, LOCAL_AND_REMOTE)));
	most = mappings();
	/* The library and the C library make some mappings of their own. */
	ok(most - before < 100, "%d registrations apart split no mapping (%d mappings before, %d after)", APART,
	   before, most);
	is(ibv_fork_init(), 0, "ibv_fork_init after a registration");
	for (int n = 0; n < APART; n++)
		must(ibv_dereg_mr(regions[n]) == 0);
}

static void fork_served(void)
{
	must(getenv("RDMAV_FORK_SAFE") || ibv_fork_init() == 0);
	third_is_a_hit(by_call);
}

/* After a warm-up, between two marks that a trace of system calls shows. */
static void steady(void)
{
	rounds(10, by_call);
	(void)!write(-1, "start", 5);
	rounds(100, by_call);
	(void)!write(-1, "end", 3);
	gives(110, stats().reg_kernel);
}

static void disabled(void)
{
	struct ibv_mr *target = ibv_reg_mr_iova2(pd, remote, PAGE, (uintptr_t)remote, LOCAL_AND_REMOTE | IBV_ACCESS_RELAXED_ORDERING);

	must(target);
	strcpy(local, "forwarded");
	gives(IBV_WC_SUCCESS, pair_write(&pair, source, local, PAGE, (uintptr_t)remote, target->rkey));
	holds(!strcmp(remote, "forwarded"));
	holds(!ibv_reg_mr(pd, NULL, PAGE, LOCAL) && errno == EFAULT);
	holds(said("EFAULT from libibverbs: nothing is mapped"));
	gives(0, ibv_dereg_mr(target));
	is((long long)(stats().reg_kernel + stats().dereg_kernel + stats().live), 0, "the library registered nothing");
	is((long long)stats().reg_next, 2, "all registrations were forwarded");
	is((long long)stats().dereg_next, 1, "the deregistration was forwarded");
}

/* golden/old_kernel.c makes it a kernel before 5.9. */
static void old_kernel_regions(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, local, PAGE, LOCAL);
	int relaxed = LOCAL | IBV_ACCESS_RELAXED_ORDERING;
	uint32_t handle;

	ok(mr && stats().reg_kernel == 1, "registered by the library");
	is(ibv_dereg_mr(mr), 0, "deregistered by the library");
	mr = ibv_reg_mr(pd, local, PAGE, relaxed);
	ok(mr && stats().reg_next == 1, "optional access flags are forwarded");
	gives(0, ibv_dereg_mr(mr));
	gives(1, stats().dereg_next);

	mr = ibv_reg_mr(pd, local, PAGE, LOCAL);
	must(mr);
	handle = mr->handle;
	must(handle_dereg_mr(mr) == 0);
	holds(stats().live == 0 && stats().ended_elsewhere == 1);
	mr = ibv_reg_mr(pd, local, PAGE, relaxed);
	must(mr);
	is(mr->handle, handle, "the next gets its handle, and is forwarded");
	holds(stats().live == 0 && stats().ended_elsewhere == 1);
	gives(0, ibv_dereg_mr(mr));
}

static void on_device(void)
{
	*(void **)&handle_reg_mr = of_libibverbs("ibv_reg_mr", "IBVERBS_1.1");
	*(void **)&handle_reg_mr_iova2 = of_libibverbs("ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&handle_dereg_mr = of_libibverbs("ibv_dereg_mr", "IBVERBS_1.1");
	local = pages(1);
	remote = pages(1);
	if (row->value == MOVES_DATA) {
		pair_open(&pair);
		context = pair.context;
		pd = pair.pd;
		source = ibv_reg_mr(pd, local, PAGE, LOCAL_AND_REMOTE);
		must(source);
	} else {
		pd = domain_of_device();
		context = pd->context;
	}
	row->act();
	about("%s", "");
	if (source)
		gives(0, ibv_dereg_mr(source));
	gives(0, kernel_regions(context));
	if (row->value == MOVES_DATA) {
		pair_close(&pair);
	} else {
		gives(0, ibv_dealloc_pd(pd));
		gives(0, ibv_close_device(context));
	}
	gives(0, stats().live);
}

static const struct row rows[] = {
	{ "calls: each kind, recorded", calls },
	{ "extensible: ibv_reg_mr_ex by address, of a buffer, refused", extensible },
	{ "extensible: the cache serves a buffer", buffer_served, .settings = "RDMAMR_CACHE=local" },
	{ "foreign: a region of libibverbs, a dma-buf, NULL", foreign },
	{ "half_interception: functions by handle, and data", half_interception, MOVES_DATA },
	{ "reuse: two devices, two domains each", reuse },
	{ "threads: their own regions, and each other's", threads },
	{ "fork: children that exit, register and deregister", forks, MOVES_DATA },
	{ "fork_unneeded: ibv_fork_init at any time, and no mapping is split", splits_nothing },
	{ "fork_unneeded: the cache serves a program that calls it", fork_served,
	  .settings = "RDMAMR_CACHE=all" },
	{ "fork_unneeded: and one for which libibverbs does", fork_served,
	  .settings = "RDMAMR_CACHE=all RDMAV_FORK_SAFE=1" },
	{ "steady: a registration is a system call", steady },
	{ "disabled: libibverbs serves every call", disabled, MOVES_DATA, .settings = "RDMAMR_DISABLE=1" },
	{ "old_kernel_regions: by ioctl, and forwarded", old_kernel_regions },
};

RUN_ROWS(NULL, on_device)
