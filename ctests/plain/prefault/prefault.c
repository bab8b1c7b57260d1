/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that helper threads populate while it is registered, with RDMAMR_PREFAULT=2. The test
 * counts the helpers as they start. Memory that they must leave alone is registered in a protection
 * domain with an unknown number: the kernel refuses before it looks at the memory.
 */
#include "../../lib/pair.h"
#include "../../lib/program.h"
#include "started.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <rdmamr/verbs.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

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

/* The number of populated pages. */
static long present(const void *memory, size_t length)
{
	static uint64_t entries[PAGE];
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t at = (uintptr_t)memory / PAGE, end = at + length / PAGE;
	long count = 0;

	must(fd >= 0);
	while (at < end) {
		size_t most = end - at < PAGE ? end - at : PAGE;
		ssize_t got = pread(fd, entries, most * sizeof(*entries), (off_t)(at * sizeof(*entries)));

		must(got > 0);
		for (size_t n = 0; n < (size_t)got / sizeof(*entries); n++)
			count += entries[n] >> 63;
		at += (size_t)got / sizeof(*entries);
	}
	close(fd);
	return count;
}

/* Lines of /proc/self/maps with our own mappings: at 0x2d71... and 0x2d72... */
static int own_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];
	int count = 0;

	must(maps);
	while (fgets(line, sizeof(line), maps))
		count += !strncmp(line, "2d71", 4) || !strncmp(line, "2d72", 4);
	fclose(maps);
	return count;
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

static void is_populated(void)
{
	const int accesses[] = { LOCAL_AND_REMOTE, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, 0,
				 IBV_ACCESS_MW_BIND };
	int threads = entries("/proc/self/task"), files = entries("/proc/self/fd"), mappings = own_mappings();
	struct ibv_mr *mr;
	char *memory;
	long made = 0;
	int before;

	for (size_t n = 0; n < sizeof(accesses) / sizeof(*accesses); n++) {
		memory = fresh(SIZE, MADV_NOHUGEPAGE);
		ok(is_helped(pair.pd, memory, SIZE, accesses[n]), "access %#x: others take part", accesses[n]);
		is(present(memory, SIZE), SIZE / PAGE, "and all of it is populated");
		ok(!is_helped(pair.pd, memory, SIZE, accesses[n]), "but not once it is populated");
		munmap(memory, SIZE);
	}
	memory = fresh(SIZE, MADV_HUGEPAGE);
	ok(is_helped(pair.pd, memory, SIZE, LOCAL_AND_REMOTE), "huge pages: others take part");
	is(present(memory, SIZE), SIZE / PAGE, "and all of it is populated");
	munmap(memory, SIZE);

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

	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	ok(is_helped(pair.pd, memory + PAGE + 100, SIZE - 3 * PAGE, LOCAL_AND_REMOTE), "not aligned: others take part");
	is(present(memory, SIZE), SIZE / PAGE - 2, "the touched pages are populated, and no more");
	is(present(memory, PAGE) + present(memory + SIZE - PAGE, PAGE), 0, "not the one before, nor the one behind");
	munmap(memory, SIZE);

	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	memset(memory, 0x5a, SIZE / 4);
	must(mprotect(memory + SIZE / 2, PAGE, PROT_WRITE) == 0); /* three mappings */
	ok(is_helped(pair.pd, memory, SIZE, LOCAL_AND_REMOTE), "partly present, and three mappings: others take part");
	ok(present(memory, SIZE) == SIZE / PAGE && memory[0] == 0x5a && memory[SIZE / 4 - 1] == 0x5a &&
	   !memory[SIZE / 4] && !memory[SIZE - 1], "all of it is there, with the content that it had");
	munmap(memory, SIZE);

	is(entries("/proc/self/task"), threads, "no thread is left");
	is(entries("/proc/self/fd"), files, "no file");
	is(own_mappings(), mappings, "no mapping");

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
	is(present(memory, SIZE), 0, "and nothing was populated for it");
	munmap(memory, SIZE);

}

/*
 * In a domain that the kernel does not know, so that it looks at no memory: all present pages were
 * populated by helpers.
 */
static void left_alone(const char *what, void *memory, int access)
{
	ok(!is_helped(&unknown, memory, SIZE, access) && !present(memory, SIZE), "%s: left alone", what);
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

static void is_left_alone(void)
{
	const int read_write = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
	char *memory = fresh(SIZE, MADV_NOHUGEPAGE), name[] = "/tmp/prefault-XXXXXX";
	struct stat before, after;
	int fd, uffd, threads;

	ok(!is_helped(pair.pd, memory, SMALL, LOCAL_AND_REMOTE), "8 MiB are too little");
	munmap(memory, SIZE);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	left_alone("remote write without local write", memory, IBV_ACCESS_REMOTE_WRITE);
	left_alone("on-demand paging", fresh(SIZE, MADV_NOHUGEPAGE), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	threads = started;
	ok(!ibv_reg_mr_iova(pair.pd, memory, SIZE, 8, LOCAL_AND_REMOTE) && errno == EINVAL && started == threads &&
	   !present(memory, SIZE), "an iova at another place of the page: left alone");
	munmap(memory, SIZE);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	must(mprotect(memory + SIZE / 2, PAGE, PROT_NONE) == 0);
	left_alone("a page without rights inside", memory, LOCAL_AND_REMOTE);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	must(mprotect(memory + SIZE - PAGE, PAGE, PROT_READ) == 0);
	left_alone("a page without the right to write at the end", memory, LOCAL_AND_REMOTE);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	munmap(memory + SIZE / 2, PAGE);
	left_alone("a hole", memory, LOCAL_AND_REMOTE);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	munmap(memory + SIZE - PAGE, PAGE);
	left_alone("a hole at the end", memory, LOCAL_AND_REMOTE);
	left_alone("memory to be read only", map_with(SIZE, PROT_READ, anonymous, -1), IBV_ACCESS_REMOTE_READ);
	fd = mkstemp(name);
	must(fd >= 0 && unlink(name) == 0 && ftruncate(fd, SIZE) == 0 && fstat(fd, &before) == 0);
	usleep(20000); /* the clock of the file system */
	left_alone("a file, shared", map_with(SIZE, read_write, MAP_SHARED, fd), LOCAL_AND_REMOTE);
	must(fstat(fd, &after) == 0);
	ok(before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec &&
	   !after.st_blocks, "its time is unchanged, and it has no blocks");
	close(fd);

	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	uffd = watch(memory + SIZE - PAGE, PAGE, UFFDIO_REGISTER_MODE_MISSING);
	must(uffd >= 0);
	left_alone("the program's userfaultfd, missing pages", memory, LOCAL_AND_REMOTE);
	is(read(uffd, name, 1), -1, "and it got no event");
	close(uffd);
	memory = fresh(SIZE, MADV_NOHUGEPAGE);
	uffd = watch(memory, PAGE, UFFDIO_REGISTER_MODE_WP);
	if (uffd < 0) {
		skip("the program's userfaultfd, write protection: left alone", "this kernel has none");
		munmap(memory, SIZE);
		return;
	}
	left_alone("the program's userfaultfd, write protection", memory, LOCAL_AND_REMOTE);
	close(uffd);
}

/* The errors of a registration in the real domain. */
static void errors(void)
{
	char *memory = fresh(SIZE, MADV_NOHUGEPAGE);
	struct rlimit limit = { SIZE / 2, SIZE / 2 };
	int status;
	pid_t child;

	munmap(memory + SIZE / 2, PAGE);
	errno = 0;
	ok(!ibv_reg_mr(pair.pd, memory, SIZE, LOCAL_AND_REMOTE) && errno == EFAULT, "a hole: EFAULT");
	munmap(memory, SIZE);
	memory = map_with(SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	errno = 0;
	ok(!ibv_reg_mr(pair.pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT, "memory to be read only: EFAULT");
	munmap(memory, SIZE);

	fflush(stdout);
	child = fork();
	if (!child) {
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_mr *mr;

		memory = fresh(SIZE, MADV_NOHUGEPAGE);
		must(pd && setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
		started = 0;
		errno = 0;
		mr = ibv_reg_mr(pd, memory, SIZE, LOCAL_AND_REMOTE);
		ok(!mr && errno == ENOMEM, "more than may be pinned: ENOMEM");
		is(started, 0, "and no helper is started for it");
		/*
		 * A process that was root cannot read its own page map; mincore shows it the pages in
		 * memory.
		 */
		{
			unsigned char there[SIZE / PAGE];
			int count = 0;

			must(mincore(memory, SIZE, there) == 0);
			for (int n = 0; n < SIZE / PAGE; n++)
				count += there[n] & 1;
			is(count, 0, "and nothing was populated");
		}
		mr = ibv_reg_mr(pd, memory, SIZE / 2, LOCAL_AND_REMOTE);
		ok(mr && ibv_dereg_mr(mr) == 0, "as much as may be pinned is registered");
		_exit(tap_count);
	}
	must(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	tap_count = WEXITSTATUS(status);
}

/* The device moves data into and out of untouched memory. */
static void data(const char *what, int advice)
{
	char *from = fresh(SIZE, advice), *to = fresh(SIZE, advice);
	struct ibv_mr *source = ibv_reg_mr(pair.pd, from, SIZE, LOCAL_AND_REMOTE);
	struct ibv_mr *target = ibv_reg_mr(pair.pd, to, SIZE, LOCAL_AND_REMOTE);
	uint64_t wrong = 0;

	must(source && target);
	is(present(from, SIZE) + present(to, SIZE), 2 * SIZE / PAGE, "%s: all of it is there", what);
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
	int failed = !mr || present(memory, length) != (long)(length / PAGE) || ibv_dereg_mr(mr) != 0;

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
		must(pthread_create(&thread[n], NULL, several, &failures[n]) == 0);
	for (int n = 0; n < 3; n++)
		must(pthread_join(thread[n], NULL) == 0);
	is(failures[0] + failures[1] + failures[2], 0, "three threads at once");
}

static void child_registers(void)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		struct ibv_context *context = open_device();
		struct ibv_pd *pd = ibv_alloc_pd(context);

		alarm(DEADLOCK);
		_exit(!pd || round_trip(pd, SIZE) || entries("/proc/self/task") != 3);
	}
	must(child > 0 && waitpid(child, &status, 0) == child);
	is(status, 0, "a forked child");
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

/*
 * The lines about a registration that takes long, with RDMAMR_LOG=info, which the library reads
 * when it is loaded.
 */
static void progress(void)
{
	char said[4096] = "", name[] = "/tmp/prefault-XXXXXX", *line;
	int fd = mkstemp(name), status;
	double took, of_line;
	pid_t child;

	must(fd >= 0 && unlink(name) == 0);
	fflush(stdout);
	child = fork();
	if (!child) {
		must(dup2(fd, 2) == 2 && setenv("RDMAMR_LOG", "info", 1) == 0);
		execl("/proc/self/exe", "prefault", "long", NULL);
		_exit(127);
	}
	must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	must(pread(fd, said, sizeof(said) - 1, 0) > 0);
	close(fd);
	for (char *at = strtok(strdup(said), "\n"); at; at = strtok(NULL, "\n"))
		printf("# %s\n", at);
	line = strstr(said, "it took ");
	must(line && sscanf(line, "it took %lf s", &took) == 1);
	line = strstr(said, "registering 512 MiB took ");
	if (took < 1.1)
		skip("the end of a long registration", "512 MiB are registered in little more than a second");
	else
		ok(line && sscanf(line, "registering 512 MiB took %lf s", &of_line) == 1 && of_line > 0 &&
		   of_line < took + 0.1, "a line reports the end of a long registration: %.1f s", took);
	if (took < 2.5)
		skip("progress", "512 MiB are populated in little more than a second");
	else
		ok(strstr(said, " % of it populated, ") && strstr(said, " GiB/s, the rest in about "), "and its progress");
}

static int take_long(void)
{
	const size_t length = 512 * MIB;
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	char *memory = fresh(length, MADV_NOHUGEPAGE);
	struct timespec start, end;
	struct ibv_mr *mr;

	clock_gettime(CLOCK_MONOTONIC, &start);
	mr = ibv_reg_mr(pd, memory, length, LOCAL_AND_REMOTE);
	clock_gettime(CLOCK_MONOTONIC, &end);
	fprintf(stderr, "it took %.3f s\n",
		(double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
	return !mr;
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "long"))
		return take_long();
	pair_open(&pair);
	unknown = *pair.pd;
	unknown.handle = 0x00ffffff;
	/* The first registration maps the page in which the process counts. */
	must(!is_helped(pair.pd, &pair, 1, 0));
	is_populated();
	is_left_alone();
	errors();
	data("small pages", MADV_NOHUGEPAGE);
	data("huge pages", MADV_HUGEPAGE);
	threads();
	child_registers();
	signals();
	progress();
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
