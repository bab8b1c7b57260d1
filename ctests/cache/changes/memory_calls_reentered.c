/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Interposed memory calls at moments when the library is not ready for them: before its
 * constructor, after its destructor, inside its own calls of malloc and free, in handlers of fork
 * between its own, and in a thread whose thread-local storage is being destroyed. They must do
 * their work, and a live cache must see the change.
 */
#include <fcntl.h>
#include <sys/shm.h>
#include "../../lib/stub_rows.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void __libc_free(void *memory);

enum { VICTIMS = 64, FORKED = 3, RIGHT = 42 };

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
	struct ibv_mr *regions[VICTIMS];
	char *memory = pages(2 * VICTIMS);

	by_plain_calls();
	victims = pages(2 * VICTIMS);
	for (int n = 0; n < VICTIMS; n++)
		leave_idle(victims + n * 2 * PAGE);
	armed = 1;
	for (int n = 0; n < VICTIMS; n++)
		regions[n] = reg(memory + n * 2 * PAGE, PAGE);
	for (int n = 0; n < VICTIMS; n++)
		dereg(regions[n]);
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	armed = 0;
	ok(inside > 0, "%d pages were changed inside malloc or free", inside);
	/* Data lands in those, and in the others. */
	for (int n = 0; n < VICTIMS; n++)
		once(victims + n * 2 * PAGE);
	usleep(1200000);
	leave_idle(victims);
}

/* In a thread that is nearly gone: the destructors of pthread keys run after those of thread-local objects. */

static pthread_key_t key;
static int late_runs;

static void late(void *memory)
{
	once(memory);
	remap(memory, PAGE);
	once(memory);
	raw_remap(memory, PAGE);
	if (++late_runs % 3)
		must(pthread_setspecific(key, memory) == 0);
}

static void *ends(void *memory)
{
	must(pthread_setspecific(key, memory) == 0);
	/* Every other thread uses the library before. */
	if (late_runs % 2)
		once(memory);
	return NULL;
}

static void in_a_thread_that_ends(void)
{
	must(pthread_key_create(&key, late) == 0);
	for (int n = 0; n < 4; n++)
		in_thread(ends, idle_page);
	is(late_runs, 12, "threads that registered and unmapped in the destructors of keys");
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

static int remaps_all(void)
{
	remap(forked, FORKED * 2 * PAGE);
	return memcmp(forked, forked + PAGE, PAGE) != 0;
}

static void in_fork(void)
{
	struct ibv_mr *used;
	char *at = pages(2 * FORKED);

	for (int n = 0; n < FORKED; n++)
		leave_idle(at + n * 2 * PAGE);
	used = reg(at + 4 * PAGE, PAGE);
	forked = at;
	is(in_forked(remaps_all), 0, "a child whose handlers and whose own code unmap ends well");
	forked = NULL;
	served(at, FRESH, "mapped in the handler before the fork");
	served(at + 2 * PAGE, FRESH, "mapped in the parent's handler");
	dereg(used);
	served(at + 4 * PAGE, HIT, "mapped in the child's handler, which is not this memory");
}

/* After the destructors. This handler was set before all others: it runs after the library's own end. */

static void last(void)
{
	if (!at_exit)
		return;
	remap(at_exit, PAGE);
	raw_remap(at_exit + PAGE, PAGE);
	_exit(madvise(at_exit + 2 * PAGE, PAGE, MADV_DONTNEED) || munmap(at_exit, 4 * PAGE) ? 1 :
	      RIGHT);
}

static int exits(void)
{
	char *memory = pages(4);

	for (int n = 0; n < 4; n++)
		leave_idle(memory + n * PAGE);
	at_exit = memory;
	exit(1);
}

static void at_the_end(void)
{
	is(in_forked(exits), RIGHT, "they are made, with regions idle until then");
}

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
	{ "memory calls inside malloc and free, of the library's own calls", in_malloc,
	  .flags = PLAIN_CALLS },
	{ "memory calls in the destructors of a thread's keys", in_a_thread_that_ends,
	  .flags = BOTH_CALLS, .then = FRESH },
	{ "memory calls in handlers of fork", in_fork, .flags = BOTH_CALLS },
	{ "memory calls after all destructors", at_the_end, .flags = BOTH_CALLS },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
