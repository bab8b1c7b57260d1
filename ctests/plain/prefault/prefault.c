/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that threads populate while it is registered, with RDMAMR_PREFAULT=2; prefault_kinds.c has each kind. */
#include "../../lib/observe.h"
#include "started.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

enum { MIB = 1 << 20, SIZE = 32 * MIB, SMALL = 8 * MIB, LARGE = 256 * MIB, ROUNDS = 8 };

static struct pair pair;
/* The real domain with another number. */
static struct ibv_pd unknown;

/* Memory that was never touched, in small pages, or in huge ones if the machine has them. */
static char *fresh(size_t length, int advice)
{
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED && madvise(memory, length, advice) == 0);
	return memory;
}

/* The page faults of other threads than this one, since the last call. */
static long of_others(void)
{
	static long before;
	struct rusage process, thread;
	long faults;

	must(getrusage(RUSAGE_SELF, &process) == 0 && getrusage(RUSAGE_THREAD, &thread) == 0);
	faults = process.ru_minflt - thread.ru_minflt - before;
	before += faults;
	return faults;
}

/* Registers memory and ends the registration; returns whether other threads took part. */
static bool is_helped(struct ibv_pd *pd, void *memory, size_t length, int access)
{
	int before = started;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, access);

	must(!mr || ibv_dereg_mr(mr) == 0);
	return started != before;
}

/* Not the pages beside memory that is not aligned. */
static void exactly(void)
{
	enum { BEFORE = PAGE + 100, LENGTH = SIZE - BEFORE - 2 * PAGE + 100 };
	char *memory = fresh(SIZE, MADV_NOHUGEPAGE);

	ok(is_helped(pair.pd, memory + BEFORE, LENGTH, LOCAL_AND_REMOTE), "others take part");
	is(populated(memory + PAGE, SIZE - 2 * PAGE), SIZE / PAGE - 2, "all of it is populated");
	is(populated(memory, SIZE), SIZE / PAGE - 2, "and no more");
	ok(!is_helped(pair.pd, memory + BEFORE, LENGTH, LOCAL_AND_REMOTE), "once it is populated, no other takes part");
	munmap(memory, SIZE);
}

static void is_populated(void)
{
	/* The library's own mappings lie at 0x2d71... and 0x2d72... */
	int threads = entries("/proc/self/task"), files = entries("/proc/self/fd"), mappings = maps_from("2d7"), before;
	struct ibv_mr *mr;
	char *memory;
	long made = 0;

	as_case(exactly(), "populated: not aligned");
	/* On a busy machine the others may get no processor in time. */
	for (int round = 0; round < 50 && made < MIB / PAGE; round++) {
		memory = fresh(LARGE, MADV_NOHUGEPAGE);
		of_others();
		mr = ibv_reg_mr(pair.pd, memory, LARGE, LOCAL_AND_REMOTE);
		made = of_others();
		must(mr && ibv_dereg_mr(mr) == 0);
		munmap(memory, LARGE);
	}
	ok(made >= MIB / PAGE, "others make the pages too");

	is(entries("/proc/self/task"), threads, "no thread is left");
	is(entries("/proc/self/fd"), files, "no file");
	is(maps_from("2d7"), mappings, "no mapping");

	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	/* The first one starts the watch. */
	mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	before = started;
	mr = ibv_reg_mr_relaxed(pair.pd, memory, SIZE, LOCAL_AND_REMOTE);
	ok(mr && started != before, "a relaxed registration, whose memory is watched: others take part");
	must(ibv_dereg_mr_relaxed(mr) == 0 && ibv_flush_relaxed_mr(pair.pd) == 0);
	munmap(memory, SIZE);

	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	errno = 0;
	ok(!ibv_reg_mr(&unknown, memory, SIZE, LOCAL_AND_REMOTE) && errno == ENOENT, "an invalid domain: ENOENT");
	is(populated(memory, SIZE), 0, "and nothing was populated for it");
	ok(!is_helped(pair.pd, memory, SMALL, LOCAL_AND_REMOTE), "8 MiB, which are too little: no other takes part");
	munmap(memory, SIZE);
}

/* The limit of pinned memory. prefault_kinds.c has other errors. */
static void errors(void)
{
	char *memory = fresh(SIZE, MADV_NOHUGEPAGE);
	struct ibv_mr *mr;
	struct ibv_pd *pd;

	drop_memlock_right();
	pd = domain_of_device();
	allow_pins(SIZE / 2 / PAGE);
	started = 0;
	errno = 0;
	mr = ibv_reg_mr(pd, memory, SIZE, LOCAL_AND_REMOTE);
	ok(!mr && errno == ENOMEM, "more than may be pinned: ENOMEM");
	is(started, 0, "and no helper is started for it");
	is(populated(memory, SIZE), 0, "and nothing was populated");
	mr = ibv_reg_mr(pd, memory, SIZE / 2, LOCAL_AND_REMOTE);
	ok(mr && ibv_dereg_mr(mr) == 0, "as much as may be pinned is registered");
}

/* The device moves data into and out of untouched memory. */
static void data(const char *what, int advice)
{
	char *from = fresh(SIZE, advice), *to = fresh(SIZE, advice);
	struct ibv_mr *source = ibv_reg_mr(pair.pd, from, SIZE, LOCAL_AND_REMOTE);
	struct ibv_mr *target = ibv_reg_mr(pair.pd, to, SIZE, LOCAL_AND_REMOTE);
	uint64_t wrong = 0;

	must(source && target);
	is(populated(from, SIZE) + populated(to, SIZE), 2 * SIZE / PAGE, "%s: all of it is there", what);
	for (size_t n = 0; n < SIZE; n += MIB / 2) {
		wrong += from[n] != 0 || to[n] != 0;
		from[n] = (char)(n >> 19 | 1);
	}
	is((long long)wrong, 0, "%s: all zeros at first", what);
	wrong = 0;
	for (size_t n = 0; n < SIZE; n += 4 * MIB)
		wrong += pair_write(&pair, source, from + n, 4 * MIB, (uintptr_t)to + n, target->rkey) != IBV_WC_SUCCESS;
	is((long long)wrong, 0, "%s: all of it is written", what);
	is(memcmp(from, to, SIZE), 0, "%s: the data is there", what);
	must(ibv_dereg_mr(source) == 0 && ibv_dereg_mr(target) == 0);
	munmap(from, SIZE);
	munmap(to, SIZE);
}

/* Memory that is registered as soon as it is mapped. */
static int round_trip(struct ibv_pd *pd, size_t length)
{
	char *memory = fresh(length, MADV_NOHUGEPAGE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, LOCAL_AND_REMOTE);
	int failed = !mr || populated(memory, length) != (long)(length / PAGE) || ibv_dereg_mr(mr) != 0;

	munmap(memory, length);
	return failed;
}

static void *several(void *failures)
{
	for (int round = 0; round < 3; round++)
		*(int *)failures += round_trip(pair.pd, SIZE / 2 + (size_t)round * PAGE);
	return NULL;
}

static void threads(void)
{
	pthread_t thread[3];
	int failures[3] = { 0 };

	for (int n = 0; n < 3; n++)
		thread[n] = must_start(several, &failures[n]);
	for (int n = 0; n < 3; n++)
		must_join(thread[n]);
	is(failures[0] + failures[1] + failures[2], 0, "three threads at once");
}

static int child_registers(void)
{
	struct ibv_pd *pd = domain_of_device();

	alarm(DEADLOCK);
	return round_trip(pd, SIZE) || entries("/proc/self/task") != 3;
}

static volatile int handled, wrong, leave;
static sigjmp_buf out;
static char *of_handler;

static void alarm_in(int us)
{
	struct itimerval once = { { 0, 0 }, { 0, us } };

	setitimer(ITIMER_REAL, &once, NULL);
}

/*
 * Whether this thread is in malloc or free. A handler that calls malloc there would wait for its own
 * thread, and one that leaves it by siglongjmp would leave the lock taken, without the library too.
 */
static _Thread_local volatile int in_heap;

void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
void __libc_free(void *);

void *malloc(size_t size)
{
	void *memory;

	in_heap = 1;
	memory = __libc_malloc(size);
	in_heap = 0;
	return memory;
}

void *calloc(size_t count, size_t size)
{
	void *memory;

	in_heap = 1;
	memory = __libc_calloc(count, size);
	in_heap = 0;
	return memory;
}

void free(void *memory)
{
	in_heap = 1;
	__libc_free(memory);
	in_heap = 0;
}

static void handler(int signal)
{
	int err = errno;
	struct ibv_mr *mr;

	(void)signal;
	if (in_heap) {
		alarm_in(100);
		return;
	}
	if (leave && --leave == 0)
		siglongjmp(out, 1);
	/* Fresh memory each time. */
	madvise(of_handler, 16 * MIB, MADV_DONTNEED);
	mr = ibv_reg_mr(pair.pd, of_handler, 16 * MIB, LOCAL_AND_REMOTE);
	wrong += !mr || ibv_dereg_mr(mr) != 0;
	for (size_t at = 0; at < 16 * MIB; at += PAGE)
		wrong += of_handler[at] != 0;
	handled++;
	alarm_in(2000);
	errno = err;
}

/* A handler registers while it interrupts a registration; another never returns to it. */
static void signals(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
	static int failed, left; /* siglongjmp leaves these alone */

	of_handler = fresh(16 * MIB, MADV_NOHUGEPAGE);
	must(sigaction(SIGALRM, &action, NULL) == 0);
	alarm_in(2000);
	for (int round = 0; round < ROUNDS; round++)
		failed += round_trip(pair.pd, SIZE);
	alarm_in(0);
	ok(handled > ROUNDS / 2 && !failed && !wrong, "a handler ran %d times and registered too", handled);
	for (int round = 0; round < ROUNDS; round++) {
		static char *memory;

		memory = fresh(SIZE, MADV_NOHUGEPAGE);
		leave = 1;
		if (!sigsetjmp(out, 1)) {
			alarm_in(1000 + 200 * round);
			for (;;)
				must(!ibv_reg_mr(&unknown, memory, SIZE, LOCAL_AND_REMOTE));
		}
		left++;
		munmap(memory, SIZE);
	}
	is(left, ROUNDS, "a handler left the registration by siglongjmp each time");
	is(round_trip(pair.pd, SIZE), 0, "and registrations go on");
}

int main(void)
{
	pair_open(&pair);
	unknown = *pair.pd;
	unknown.handle = 0x00ffffff;
	/* The first registration maps the page in which the process counts. */
	must(!is_helped(pair.pd, &pair, 1, 0));
	is_populated();
	in_part(errors);
	data("small pages", MADV_NOHUGEPAGE);
	data("huge pages", MADV_HUGEPAGE);
	threads();
	is(in_forked(child_registers), 0, "a forked child");
	signals();
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
