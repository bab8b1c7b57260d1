/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Endurance: two threads register, use, release, unmap, remap, fork and flush at random, in one protection
 * domain. All traffic is checked both ways. At the end there is no region in the kernel, no pinned memory, no new
 * thread and no new file. cache/fuzz/ has the other ways to change memory, at random too.
 *
 * Usage: soak [SECONDS [SEED]]: 30 s by default. The seed is printed.
 */
#include <malloc.h>
#include "../lib/observe.h"

#define FRESH PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
enum { THREADS = 2, SLOTS = 12, COMMON = 4, COMMON_LENGTH = 8 * PAGE, MAX_PAGES = 24 };

/* Memory that a thread registers, and its region while it has one. */
struct slot {
	char *memory;
	size_t length;
	bool mapped; /* by mmap; else by malloc */
	struct ibv_mr *mr;
	int access;
};

struct worker {
	pthread_t thread;
	unsigned int seed;
	struct slot slots[SLOTS];
};

/* What both threads have done; each must happen. */
enum { STEPS, REGISTERED, CHECKED, CHANGED, UNDER, FLUSHED, FORKED, DONE };
static const char *const names[DONE] = {
	"steps", "registrations", "checks of data", "changes of memory", "under a region", "flushes", "children",
};
static _Atomic long done[DONE], wrong;

static struct pair pair;
/* The queue pair, and the buffers of its far end. */
static pthread_mutex_t traffic = PTHREAD_MUTEX_INITIALIZER;
static char *common[COMMON];
static double deadline;

static unsigned int chance(struct worker *worker, unsigned int of) { return (unsigned int)rand_r(&worker->seed) % of; }

static struct ibv_mr *registered(void *memory, size_t length, int access)
{
	struct ibv_mr *mr = register_region(pair.pd, memory, length, access);

	must(mr && mr->addr == memory && mr->length == length && mr->pd == pair.pd);
	done[REGISTERED]++;
	return mr;
}

static void deregister(struct worker *worker, struct ibv_mr *mr)
{
	must((chance(worker, 4) ? deregister_region(mr) : ibv_dereg_mr(mr)) == 0);
}

/* Data moves both ways between the device and the page that the program sees. */
static void check(const struct ibv_mr *mr, int access)
{
	pthread_mutex_lock(&traffic);
	wrong += !all_lands(&pair, mr, mr->addr, mr->length, access & IBV_ACCESS_REMOTE_WRITE);
	pthread_mutex_unlock(&traffic);
	done[CHECKED]++;
}

static int some_access(struct worker *worker) { return chance(worker, 2) ? LOCAL_AND_REMOTE : IBV_ACCESS_LOCAL_WRITE; }

static void get_memory(struct worker *worker, struct slot *slot)
{
	slot->mapped = chance(worker, 3);
	if (slot->mapped) {
		slot->length = (1 + chance(worker, MAX_PAGES)) * PAGE;
		slot->memory = mmap(NULL, slot->length, FRESH, -1, 0);
		must(slot->memory != MAP_FAILED);
	} else {
		/* Within the heap, and above the size from which on malloc maps. */
		slot->length = chance(worker, 4) ? 100 + chance(worker, 60000) : 300000;
		slot->memory = malloc(slot->length);
		must(slot->memory);
		memset(slot->memory, 1, slot->length);
	}
}

static void give_back(struct worker *worker, struct slot *slot)
{
	if (!slot->mapped)
		free(slot->memory);
	else if (chance(worker, 2))
		must(munmap(slot->memory, slot->length) == 0);
	else
		must(raw_munmap(slot->memory, slot->length) == 0);
}

/* Other pages at the address of one, by calls that the library sees or by raw system calls. */
static void change_page(struct worker *worker, struct slot *slot)
{
	char *page = slot->memory + chance(worker, (unsigned int)(slot->length / PAGE)) * PAGE;

	switch (chance(worker, 4)) {
	case 0: must(mmap(page, PAGE, FRESH | MAP_FIXED, -1, 0) == page); break;
	case 1: must((char *)syscall(SYS_mmap, page, PAGE, FRESH | MAP_FIXED, -1, 0) == page); break;
	case 2: must(madvise(page, PAGE, MADV_DONTNEED) == 0); break;
	default: must(syscall(SYS_madvise, page, PAGE, MADV_DONTNEED) == 0);
	}
}

static void change(struct worker *worker, struct slot *slot)
{
	/* A region of its own whose pages are gone can be neither checked nor kept. */
	if (slot->mr && chance(worker, 8))
		return;
	done[UNDER] += slot->mr != NULL;
	if (slot->mapped && chance(worker, 6)) {
		change_page(worker, slot);
	} else {
		give_back(worker, slot);
		get_memory(worker, slot);
		if (!chance(worker, 16))
			malloc_trim(0);
	}
	done[CHANGED]++;
	if (slot->mr)
		deregister(worker, slot->mr);
	slot->mr = NULL;
}

static void use(struct worker *worker, struct slot *slot)
{
	size_t from, length;

	if (slot->mr) {
		if (chance(worker, 2))
			check(slot->mr, slot->access);
		deregister(worker, slot->mr);
		slot->mr = NULL;
		return;
	}
	from = chance(worker, 2) ? 0 : chance(worker, (unsigned int)slot->length);
	length = chance(worker, 2) ? slot->length - from : 1 + chance(worker, (unsigned int)(slot->length - from));
	slot->access = some_access(worker);
	slot->mr = registered(slot->memory + from, length, slot->access);
	if (chance(worker, 2))
		check(slot->mr, slot->access);
}

/* Memory of both threads, which never changes: hits on each other's regions. */
static void use_common(struct worker *worker)
{
	char *memory = common[chance(worker, COMMON)];

	for (int n = 0; n < 20; n++) {
		int access = some_access(worker);
		size_t from = (size_t)chance(worker, 2) * PAGE;
		struct ibv_mr *mr = registered(memory + from, COMMON_LENGTH - from, access);

		if (n == 0)
			check(mr, access);
		deregister(worker, mr);
	}
}

/* The cache must know nothing of the child, nor the child of the cache. */
static void fork_one(struct worker *worker)
{
	pid_t pid = must_fork();

	if (!pid) {
		alarm(DEADLOCK);
		for (int n = 0; n < SLOTS; n++)
			worker->slots[n].memory[0] ^= 1;
		exit(0); /* with all destructors */
	}
	must(child_status(pid) == 0);
	done[FORKED]++;
}

static void flush(void)
{
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	done[FLUSHED]++;
}

/* For "ctests/run soak" with CHECK_LEAK, which must then report it: leaks a mapping and a descriptor. */
static bool leaks;

static void leak(void)
{
	char *memory = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED && mprotect(memory, PAGE, PROT_READ | PROT_WRITE) == 0);
	memory[0] = 1;
	(void)!dup(STDIN_FILENO);
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	for (int n = 0; n < SLOTS; n++)
		get_memory(worker, &worker->slots[n]);
	while (seconds_now() < deadline) {
		struct slot *slot = &worker->slots[chance(worker, SLOTS)];
		unsigned int what = chance(worker, 1000);

		if (leaks && what % 8 == 0)
			leak();
		if (what < 500)
			use(worker, slot);
		else if (what < 700)
			change(worker, slot);
		else if (what < 980)
			use_common(worker);
		else if (what < 995)
			flush();
		else
			fork_one(worker);
		done[STEPS]++;
	}
	for (int n = 0; n < SLOTS; n++) {
		if (worker->slots[n].mr)
			deregister(worker, worker->slots[n].mr);
		give_back(worker, &worker->slots[n]);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 30;
	unsigned int seed = argc > 2 ? (unsigned int)strtoul(argv[2], NULL, 0) : (unsigned int)time(NULL);
	struct worker workers[THREADS] = { 0 };
	struct rdmamr_stats now;
	int threads, files, never = 0;
	long pins;

	leaks = getenv("CHECK_LEAK");
	relaxed_open(&pair);
	for (int n = 0; n < COMMON; n++)
		common[n] = pages(COMMON_LENGTH / PAGE);
	ok(lands(&pair, common[0], COMMON_LENGTH) && ibv_flush_relaxed_mr(pair.pd) == 0, "a region, used and flushed");
	/* From now on the library has all the resources that it needs. */
	threads = entries("/proc/self/task");
	files = entries("/proc/self/fd");
	pins = pinned();

	printf("# %g seconds, seed %u\n", seconds, seed);
	fflush(stdout);
	deadline = seconds_now() + seconds;
	for (int n = 0; n < THREADS; n++) {
		workers[n].seed = seed + (unsigned int)n * 7919;
		workers[n].thread = must_start(work, &workers[n]);
	}
	for (int n = 0; n < THREADS; n++)
		must_join(workers[n].thread);
	now = stats();
	for (int n = 0; n < DONE; n++) {
		printf("%s%ld %s", n ? ", " : "# ", done[n], names[n]);
		never += !done[n];
	}
	printf("\n");
	show((struct rdmamr_stats){ 0 }, now);
	is(wrong, 0, "data was where the program sees it, in %ld checks", done[CHECKED]);
	is(never, 0, "everything happened");
	ok(now.hits > now.misses && now.shared, "regions were reused, and shared");
	ok(now.flushed_hook && now.flushed_event && now.flushed_flush, "and ended by hooks, by events, by flushes");
	is(ibv_flush_relaxed_mr(pair.pd), 0, "flushed");
	is(pinned(), pins, "no memory is pinned but the far end's");
	/* A thread that was joined may still be visible for an instant. */
	ok(comes(entries("/proc/self/task") <= threads), "no thread is left over");
	is(entries("/proc/self/fd"), files, "no file is left over");
	relaxed_end(&pair);
	return done_testing();
}
