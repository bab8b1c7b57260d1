/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that helper threads populate while it is registered, with RDMAMR_PREFAULT=2. The test
 * counts the helpers as they start. Memory that they must leave alone is registered in a protection
 * domain with an unknown number: the kernel refuses before it looks at the memory.
 */
#include "../../lib/memory.h"
#include "../../lib/pair.h"
#include "../../lib/program.h"
#include "started.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <rdmamr/verbs.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

/* libibverbs lacks these, and the library comes by preload. */
#pragma weak ibv_reg_mr_relaxed
#pragma weak ibv_dereg_mr_relaxed
#pragma weak ibv_flush_relaxed_mr

enum { MIB = 1 << 20, SIZE = 32 * MIB, SMALL = 8 * MIB, LARGE = 256 * MIB, ROUNDS = 8 };
enum { NOBODY = 65534 };

static struct pair pair;
/* The real domain with another number. */
static struct ibv_pd unknown;

static char *map_with(size_t length, int protection, int flags, int fd)
{
	char *memory = mmap(NULL, length, protection, flags, fd, 0);

	must(memory != MAP_FAILED);
	return memory;
}

/* Memory that was never touched, in small pages, or in huge ones if the machine has them. */
static char *fresh(size_t length, int advice)
{
	char *memory = map_with(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	must(madvise(memory, length, advice) == 0);
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

/* Whether all of fresh memory is registered with the help of others, and populated, the touched part alone. */
static void populates(int advice, int access, size_t before, size_t behind)
{
	char *memory = fresh(SIZE, advice);

	ok(is_helped(pair.pd, memory + before, SIZE - before - behind, access), "others take part");
	is(populated(memory, SIZE), (SIZE - before / PAGE * PAGE - behind / PAGE * PAGE) / PAGE, "all of it is populated, and no more");
	is(populated(memory, before / PAGE * PAGE) + populated(memory + SIZE - behind / PAGE * PAGE, behind / PAGE * PAGE), 0,
	   "not what lies beside it");
	ok(!is_helped(pair.pd, memory + before, SIZE - before - behind, access), "once it is populated, no other takes part");
	munmap(memory, SIZE);
}

static void is_populated(void)
{
	static const struct { const char *name; int advice, access; size_t before, behind; } rows[] = {
		{ "no rights", MADV_NOHUGEPAGE, 0, 0, 0 },
		{ "windows", MADV_NOHUGEPAGE, IBV_ACCESS_MW_BIND, 0, 0 },
		{ "huge pages", MADV_HUGEPAGE, LOCAL_AND_REMOTE, 0, 0 },
		{ "not aligned", MADV_NOHUGEPAGE, LOCAL_AND_REMOTE, PAGE + 100, PAGE + PAGE - 100 },
	};
	/* The library's own mappings lie at 0x2d71... and 0x2d72... */
	int threads = entries("/proc/self/task"), files = entries("/proc/self/fd"), mappings = maps_from("2d7"), before;
	struct ibv_mr *mr;
	char *memory;
	long made = 0;

	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++)
		as_case(populates(rows[n].advice, rows[n].access, rows[n].before, rows[n].behind), "populated: %s", rows[n].name);

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
	munmap(memory, SIZE);
}

/* -1 if the kernel cannot watch so. */
static int watch(void *memory, size_t length, uint64_t mode)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register watched = { .range = { (uintptr_t)memory, length }, .mode = mode };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	must(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
	if (!ioctl(fd, UFFDIO_REGISTER, &watched))
		return fd;
	must(errno == EINVAL);
	close(fd);
	return -1;
}

/*
 * What happens to memory before it is registered in a domain that the kernel does not know, so that it
 * looks at no memory: all present pages were populated by helpers. Returns a file to close; -1 if the
 * kernel has no such thing.
 */
static int as_it_is(char *memory)
{
	(void)memory;
	return memfd_create("nothing", MFD_CLOEXEC);
}

static int read_only_end(char *memory)
{
	must(mprotect(memory + SIZE - PAGE, PAGE, PROT_READ) == 0);
	return as_it_is(memory);
}

static int without(char *page)
{
	must(munmap(page, PAGE) == 0);
	return as_it_is(page);
}

static int hole(char *memory) { return without(memory + SIZE / 2); }
static int hole_at_end(char *memory) { return without(memory + SIZE - PAGE); }
static int watched(char *memory) { return watch(memory + SIZE - PAGE, PAGE, UFFDIO_REGISTER_MODE_MISSING); }
static int protected(char *memory) { return watch(memory, PAGE, UFFDIO_REGISTER_MODE_WP); }

/* prefault_kinds.c has other kinds of memory. */
static void is_left_alone(void)
{
	static const struct { const char *name; int (*prepare)(char *); int access; uint64_t iova; size_t size; int err; } rows[] = {
		{ "remote write without local write", as_it_is, IBV_ACCESS_REMOTE_WRITE, 0, SIZE, 0 },
		{ "on-demand paging", as_it_is, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, 0, SIZE, 0 },
		{ "an iova at another place of the page", as_it_is, LOCAL_AND_REMOTE, 8, SIZE, EINVAL },
		{ "a page without the right to write at the end", read_only_end, LOCAL_AND_REMOTE, 0, SIZE, 0 },
		{ "a hole", hole, LOCAL_AND_REMOTE, 0, SIZE, 0 },
		{ "a hole at the end", hole_at_end, LOCAL_AND_REMOTE, 0, SIZE, 0 },
		{ "the program's userfaultfd, missing pages", watched, LOCAL_AND_REMOTE, 0, SIZE, 0 },
		{ "the program's userfaultfd, write protection", protected, LOCAL_AND_REMOTE, 0, SIZE, 0 },
		{ "8 MiB, which are too little", as_it_is, LOCAL_AND_REMOTE, 0, SMALL, 0 },
	};

	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++) {
		char *memory = fresh(SIZE, MADV_NOHUGEPAGE), event;
		int file = rows[n].prepare(memory), threads = started;

		case_begin("left alone: %s", rows[n].name);
		if (file < 0) {
			case_skip("this kernel has none");
			munmap(memory, SIZE);
			continue;
		}
		errno = 0;
		ok(!(rows[n].iova ? ibv_reg_mr_iova(pair.pd, memory, rows[n].size, rows[n].iova, rows[n].access) :
		     ibv_reg_mr(&unknown, memory, rows[n].size, rows[n].access)), "refused");
		holds(!rows[n].err || errno == rows[n].err);
		gives(threads, started);
		gives(0, populated(memory, SIZE));
		holds(rows[n].prepare != watched || read(file, &event, 1) == -1);
		case_end();
		close(file);
		munmap(memory, SIZE);
	}
}

/* The limit of pinned memory. prefault_kinds.c has other errors. */
static void errors(void)
{
	struct ibv_pd *pd = domain_of_device();
	char *memory = fresh(SIZE, MADV_NOHUGEPAGE);
	struct rlimit limit = { SIZE / 2, SIZE / 2 };
	unsigned char there[SIZE / PAGE];
	struct ibv_mr *mr;
	int count = 0;

	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
	started = 0;
	errno = 0;
	mr = ibv_reg_mr(pd, memory, SIZE, LOCAL_AND_REMOTE);
	ok(!mr && errno == ENOMEM, "more than may be pinned: ENOMEM");
	is(started, 0, "and no helper is started for it");
	/* A process that was root cannot read its own page map; mincore shows it the pages in memory. */
	must(mincore(memory, SIZE, there) == 0);
	for (int n = 0; n < SIZE / PAGE; n++)
		count += there[n] & 1;
	is(count, 0, "and nothing was populated");
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

static void handler(int signal)
{
	int err = errno;
	struct ibv_mr *mr;

	(void)signal;
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
	is_left_alone();
	in_part(errors);
	data("small pages", MADV_NOHUGEPAGE);
	data("huge pages", MADV_HUGEPAGE);
	threads();
	is(in_forked(child_registers), 0, "a forked child");
	signals();
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
