/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interposed memory calls at moments when the library is not ready for them: before its
 * constructor, after its destructor, inside its own calls of malloc and free, in handlers of fork
 * between its own, and in a thread whose thread-local storage is being destroyed. They must do
 * their work, and a live cache must see the change.
 */
#include <sys/shm.h>
#include "../../lib/pair_rows.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void __libc_free(void *memory);

enum { VICTIMS = 64, FORKED = 3 };

static char *victims, *forked, *at_exit;
static int early_done, early_wrong;
static volatile int armed, inside;

/* Inside malloc and free. */

static void change_one(void)
{
	int n = inside;

	if (!armed || n >= VICTIMS)
		return;
	armed = 0;
	inside = n + 1;
	renew((const enum renewal[]){ BY_MUNMAP, BY_RAW_MUNMAP, BY_MADVISE }[n % 3], victims + n * 2 * PAGE, PAGE);
	armed = 1;
}

void *malloc(size_t size) { return change_one(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return change_one(), __libc_calloc(count, size); }
void free(void *memory) { change_one(), __libc_free(memory); }

static void in_malloc(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	char *memory = pages(2 * VICTIMS);
	struct ibv_mr *regions[VICTIMS];
	struct rdmamr_stats before;
	int failed = 0, stale = 0;

	must(pd);
	victims = pages(2 * VICTIMS);
	for (int n = 0; n < VICTIMS; n++)
		must(lands(&pair, victims + n * 2 * PAGE, PAGE));
	armed = 1;
	for (int n = 0; n < VICTIMS; n++)
		regions[n] = register_by_cache(pd, memory + n * 2 * PAGE, PAGE, LOCAL_AND_REMOTE, &before);
	for (int n = 0; n < VICTIMS; n++)
		failed += !regions[n] || deregister_region(regions[n]) != 0;
	failed += ibv_flush_relaxed_mr(pd) != 0;
	failed += ibv_dealloc_pd(pd) != 0;
	armed = 0;
	is(failed, 0, "registration, deregistration, flush and the end of a domain");
	for (int n = 0; n < VICTIMS; n++)
		stale += !lands(&pair, victims + n * 2 * PAGE, PAGE);
	is(stale, 0, "data lands in the %d pages that were changed inside malloc or free, and in the others", inside);
	control_later(&pair, "after that", victims, PAGE);
}

/* In a thread that is nearly gone: the destructors of pthread keys run after those of thread-local objects. */

static pthread_key_t key;
static int late_runs;

static void late(void *memory)
{
	let_go(by_cache(pair.pd, memory, PAGE, LOCAL_AND_REMOTE));
	remap(memory, PAGE);
	let_go(by_cache(pair.pd, memory, PAGE, LOCAL_AND_REMOTE));
	raw_remap(memory, PAGE);
	if (++late_runs % 3)
		must(pthread_setspecific(key, memory) == 0);
}

static void *ends(void *memory)
{
	must(pthread_setspecific(key, memory) == 0);
	/* Every other thread uses the library before. */
	if (late_runs % 2)
		must(lands(&pair, memory, PAGE));
	return NULL;
}

static void in_a_thread_that_ends(void)
{
	char *memory = pages(1);

	must(pthread_key_create(&key, late) == 0);
	for (int n = 0; n < 4; n++)
		in_thread(ends, memory);
	is(late_runs, 12, "threads that registered and unmapped in the destructors of keys");
	anew(&pair, "memory that such a destructor has mapped", memory, PAGE);
	control(&pair, "after that", memory, PAGE);
}

/* In handlers of fork. They are set before the library has set its own: they run between those. */

static void remap_forked(int page)
{
	if (forked)
		remap(forked + page * PAGE, PAGE);
}

static void fork_prepare(void) { remap_forked(0); }
static void fork_parent(void) { remap_forked(2); }
static void fork_child(void) { remap_forked(4); }

static void in_fork(void)
{
	struct ibv_mr *used;
	int status;
	pid_t pid;

	forked = pages(2 * FORKED);
	for (int n = 0; n < FORKED; n++)
		control(&pair, "before a fork", forked + n * 2 * PAGE, PAGE);
	/* A fork ends the idle regions, and leaves those in use. */
	used = register_region(pair.pd, forked + 4 * PAGE, PAGE, LOCAL_AND_REMOTE);
	must(used);
	pid = must_fork();
	if (!pid) {
		remap(forked, FORKED * 2 * PAGE);
		_exit(memcmp(forked, forked + PAGE, PAGE) ? 1 : 0);
	}
	must(waitpid(pid, &status, 0) == pid);
	is(status, 0, "a child whose handlers and whose own code unmap ends well");
	anew(&pair, "mapped in the handler before the fork", forked, PAGE);
	anew(&pair, "mapped in the parent's handler", forked + 2 * PAGE, PAGE);
	must(deregister_region(used) == 0);
	still(&pair, "mapped in the child's handler, which is not this memory", forked + 4 * PAGE, PAGE);
	forked = NULL;
}

/* After the destructors. This handler was set before all others: it runs after the library's own end. */

static void last(void)
{
	if (!at_exit)
		return;
	remap(at_exit, PAGE);
	raw_remap(at_exit + PAGE, PAGE);
	_exit(madvise(at_exit + 2 * PAGE, PAGE, MADV_DONTNEED) || munmap(at_exit, 4 * PAGE) ? 1 : 42);
}

static int goes_by_exit(void)
{
	pair_open(&pair);
	far_open(&pair);
	at_exit = pages(4);
	for (int n = 0; n < 4; n++)
		must(lands(&pair, at_exit + n * PAGE, PAGE));
	must(stats().idle == 4 || !stats().hits);
	exit(1);
}

static void at_the_end(void) { is(once_more("exit", NULL), 42, "they are made, with regions idle until then"); }

/* Before the constructors, and the handlers of above. */

static void too_early(int argc, char **argv, char **environment)
{
	void *memory = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *moved;
	int fd = memfd_create("early", MFD_CLOEXEC), segment = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600), bad = 0;

	(void)argc, (void)argv, (void)environment;
	if (memory == MAP_FAILED || fd < 0 || segment < 0)
		return;
	bad += mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory;
	*(char *)memory = 1;
	bad += madvise(memory, PAGE, MADV_DONTNEED) != 0 || *(char *)memory != 0;
	bad += mprotect(memory, PAGE, PROT_READ) != 0;
	moved = mremap(memory, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE);
	bad += moved != memory;
	bad += munmap(moved, 2 * PAGE) != 0;
	errno = 0;
	bad += munmap((char *)memory + 1, PAGE) != -1 || errno != EINVAL;
	bad += ftruncate(fd, PAGE) != 0 || fallocate(fd, 0, 0, 2 * PAGE) != 0 || close(fd) != 0;
	memory = shmat(segment, NULL, 0);
	bad += memory == (void *)-1 || shmdt(memory) != 0;
	bad += shmctl(segment, IPC_RMID, NULL) != 0;
	memory = sbrk(0);
	bad += sbrk(PAGE) != memory || sbrk(-PAGE) == (void *)-1 || sbrk(0) != memory;
	early_wrong = bad;
	early_done = pthread_atfork(fork_prepare, fork_parent, fork_child) == 0 && atexit(last) == 0;
}

__attribute__((section(".preinit_array"), used))
static void (*const preinit)(int, char **, char **) = too_early;

static void before_all(void)
{
	ok(early_done, "they are made");
	is(early_wrong, 0, "and have their usual effect");
}

static const struct row rows[] = {
	{ "memory calls before any constructor", before_all },
	{ "memory calls inside malloc and free, of the library's own calls", in_malloc },
	{ "memory calls in the destructors of a thread's keys", in_a_thread_that_ends },
	{ "memory calls in handlers of fork", in_fork },
	{ "memory calls after all destructors", at_the_end },
};

int main(int argc, char **argv)
{
	return argc == 2 && !strcmp(argv[1], "exit") ? goes_by_exit() :
	       run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
