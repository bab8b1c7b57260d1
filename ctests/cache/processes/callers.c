/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the library's calls and threads leave to the program (docs/limits.md has exceptions). The
 * program has a function `clone` of its own, and the linker binds the libraries to it: the cache
 * must not make its threads by it.
 */
#include <limits.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "../../lib/stub_rows.h"

/* errno, and cancellation. Each row is the first use of the library in its process. */

enum { TIMES = 4, PLACES = 40, MINE = 12345, LARGE = 32 << 20, SMALLER = 8 << 20 };

#define leaves_errno(...) \
	do { \
		errno = MINE; \
		must(__VA_ARGS__); \
		is(errno, MINE, "errno after %s", #__VA_ARGS__); \
	} while (0)

static void errno_unchanged(void)
{
	char *memory = pages(PLACES), *large = untouched(SMALLER);
	struct ibv_mr *mr;

	row_rights = IBV_ACCESS_LOCAL_WRITE;
	for (int time = 0; time < TIMES * PLACES; time++) {
		char *here = memory + time % PLACES * PAGE;

		leaves_errno(mr = reg(here, PAGE));
		leaves_errno((dereg(mr), true));
		if (time % 8 == 7)
			leaves_errno(madvise(here, PAGE, MADV_DONTNEED) == 0);
	}
	/* The watch splits this mapping, so the library repeats the mremap. */
	hits(large + PAGE, TIMES);
	leaves_errno((large = mremap(large, SMALLER, 2 * SMALLER, MREMAP_MAYMOVE)) != MAP_FAILED);
	leaves_errno(munmap(large, 2 * SMALLER) == 0 && munmap(memory, PLACES * PAGE) == 0);
}

static int provided;

/* The provider's part of a call is a cancellation point. */
static long close_nothing(void)
{
	close(-1);
	provided++;
	return 0;
}

static void call_provider(void)
{
	struct { struct ibv_mr mr; char rest[256]; } foreign = {
		.mr = { .context = stub_pd()->context, .pd = stub_pd(), .handle = 1 << 30, .lkey = 1 << 30 },
	};

	stub_provide(close_nothing);
	ibv_fork_init();
	must(!ibv_reg_dmabuf_mr(stub_pd(), 0, PAGE, 0, -1, IBV_ACCESS_LOCAL_WRITE) && provided == 1);
	must(ibv_rereg_mr(&foreign.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0 && provided == 2);
	must(ibv_dereg_mr(&foreign.mr) == 0 && provided == 3);
	must(ibv_dealloc_pd(stub_pd()) == 0 && provided == 4);
	must(ibv_close_device(stub_pd()->context) == 0 && provided == 5);
}

static void refused(void *here)
{
	must(here != MAP_FAILED);
	must(!(by_plain_calls() ? ibv_reg_mr(stub_pd(), here, PAGE, LOCAL_AND_REMOTE) :
				  ibv_reg_mr_relaxed(stub_pd(), here, PAGE, LOCAL_AND_REMOTE)));
	must(errno == EFAULT);
}

/* Their reasons take the most calls. */
static void refuse_all(void *unmapped)
{
	char *huge = mmap(NULL, LARGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);

	refused(unmapped);
	refused(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_create("empty", 0), 0));
	if (huge != MAP_FAILED && madvise(huge, PAGE, MADV_POPULATE_WRITE))
		refused(huge);
}

static volatile bool all_done;

static void *on_request_to_end(void *unused)
{
	char *memory = pages(4), *large = untouched(LARGE);

	must(pthread_cancel(pthread_self()) == 0);
	hits(memory, 3);
	for (int time = 0; time < 3; time++)
		dereg(reg(large, LARGE));
	must(madvise(memory, PAGE, MADV_DONTNEED) == 0);
	hits(memory + PAGE, 3);
	must(mprotect(memory, PAGE, PROT_READ) == 0);
	must(munmap(memory + 2 * PAGE, PAGE) == 0 && raw_munmap(memory + 3 * PAGE, PAGE) == 0);
	must(mremap(large, LARGE, LARGE / 2, 0) == large && munmap(large, LARGE / 2) == 0);
	if (!getenv("RDMAV_HUGEPAGES_SAFE"))
		refuse_all(memory + 2 * PAGE);
	if (!by_plain_calls())
		must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	call_provider();
	all_done = true;
	pthread_testcancel();
	return unused;
}

/*
 * All calls fit on the smallest stack of a thread, and none is a cancellation point: the thread
 * ends at its own, after all of them.
 */
static void cancelled(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	if (getenv("RDMAV_HUGEPAGES_SAFE"))
		ibv_fork_init();
	/* The stand-in's write to the memory is a cancellation point. */
	row_rights = IBV_ACCESS_LOCAL_WRITE;
	must(pthread_attr_init(&attributes) == 0 &&
	     pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
	must(pthread_create(&thread, &attributes, on_request_to_end, NULL) == 0);
	ok(must_join(thread) == PTHREAD_CANCELED, "the thread is cancelled");
	ok(all_done, "each call has done its work before");
}

/* The library's threads. */

static _Atomic int copies;

/* <sched.h> declares another function of this name. */
void *clone_shape(void *shape) __asm__("clone");
void *clone_shape(void *shape)
{
	(void)shape;
	copies++;
	/* A caller that expects the C library's function takes this for a refused thread. */
	return (void *)-1;
}

static void own_clone(void)
{
	idle_page = idle();
	is(copies, 0, "it is not called for the library's threads");
	served(idle_page, HIT, "then");
}

enum { MOST = 64 };
static pid_t threads[MOST];
static int count;

static void start(void)
{
	hits(pages(1), 1);
	if (!userfaultfds(NULL))
		skip_all("userfaultfd is refused here");
	ok(comes((count = threads_named("rdmamr-", threads, MOST)) >= 2),
	   "the library has %d threads", count);
}

/* A thread of the library may only just have reached its first instructions. */
#define each(condition, ...)                                                   \
	for (int n = 0; n < count; n++)                                        \
	ok(comes(condition), __VA_ARGS__)

static void processor(void)
{
	cpu_set_t all, one, its;
	int first = 0;

	must(sched_getaffinity(0, sizeof(all), &all) == 0);
	if (CPU_COUNT(&all) < 2)
		skip_all("one processor");
	while (!CPU_ISSET(first, &all))
		first++;
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	must(sched_setaffinity(0, sizeof(one), &one) == 0);
	start();
	each(sched_getaffinity(threads[n], sizeof(its), &its) == 0 && CPU_COUNT(&its) >= CPU_COUNT(&all), "thread %d has all", n);
	must(sched_getaffinity(0, sizeof(its), &its) == 0);
	ok(CPU_EQUAL(&its, &one), "the program's thread has its own");
}

/* The library's threads keep a real-time class and a negative nice value: others wait for them. */
static void scheduling(void)
{
	int class = (int)row->value, value = row->of ? *(const int *)row->of : 0;
	bool kept = class == SCHED_FIFO;
	struct sched_param param = { .sched_priority = kept ? 3 : 0 };

	/* To become less nice takes a privilege. */
	if (sched_setscheduler(0, class, &param) ||
	    (value && setpriority(PRIO_PROCESS, 0, value - 1)) || setpriority(PRIO_PROCESS, 0, value))
		skip_all("no privilege for this class or nice value");
	start();
	usleep(100000);
	each(sched_getscheduler(threads[n]) == (kept ? class : SCHED_OTHER) &&
	     sched_getparam(threads[n], &param) == 0 && param.sched_priority == (kept ? 3 : 0) &&
	     getpriority(PRIO_PROCESS, (id_t)threads[n]) == (value < 0 ? value : 0),
	     "thread %d has its own", n);
	is(getpriority(PRIO_PROCESS, 0), value, "the program's thread has its nice value");
}

/* Namespaces, and the end of the process. */

#define refused() skip_all("refused to this user")

static int enters_its_mount_namespace(void)
{
	int fd = open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC);

	must(fd >= 0);
	return setns(fd, CLONE_NEWNS);
}

static void mount_namespace(void)
{
	if (enters_its_mount_namespace())
		refused();
	idle_page = idle();
	is(enters_its_mount_namespace(), 0, "it is entered");
	served(idle_page, HIT, "then");
}

static void working_directory(void)
{
	char directory[] = "/tmp/callers.XXXXXX";
	bool gone = false;

	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(directory))
		refused();
	if (mount("none", directory, "tmpfs", 0, NULL) || chdir(directory)) {
		rmdir(directory);
		refused();
	}
	idle();
	must(chdir("/") == 0);
	/* The library's threads leave it when they start. */
	if (!ok(comes(gone = gone || umount(directory) == 0), "it is unmounted"))
		umount2(directory, MNT_DETACH);
	rmdir(directory);
}

static void user_namespace(void)
{
	if (unshare(CLONE_NEWUSER))
		refused();
	served(pages(1), FRESH, "then");
}

static void descriptors(void)
{
	int ends[2];
	char byte;

	must(pipe2(ends, O_NONBLOCK) == 0);
	idle();
	if (unshare(CLONE_FILES))
		refused();
	must(close(ends[1]) == 0);
	ok(read(ends[0], &byte, 1) == -1 && errno == EAGAIN, "files stay open");
	/* Its table is not the cleaner's any more. */
	is(hits(pages(1), 3), 0, "no region is reused");
}

/* The reason of the last failure. Its text stays as it is until the program asks again. */
static void last_reason(void)
{
	struct ibv_mr *mr = ibv_reg_mr(stub_pd(), pages(1), PAGE, IBV_ACCESS_LOCAL_WRITE);
	const char *reason;
	char *first;

	must(mr && !ibv_reg_mr(NULL, mr, 1, 0));
	must(strstr(rdmamr_last_reason(), "ibv_reg_mr of 1 bytes"));
	errno = 0;
	is(ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT, "libibverbs refuses a change");
	is(errno, EINVAL, "errno");
	reason = rdmamr_last_reason();
	ok(strstr(reason, "ibv_rereg_mr: EINVAL from libibverbs: the flags do not fit") != NULL, "the reason is its own: %s", reason);
	first = strdup(reason);
	must(first && ibv_dereg_mr(NULL) == EINVAL && !ibv_reg_mr(NULL, mr, 2, 0));
	ok(!strcmp(first, reason), "later failures leave the text as it is");
	ok(strstr(rdmamr_last_reason(), "ibv_reg_mr of 2 bytes") != NULL, "until the program asks again");
	must(ibv_dereg_mr(mr) == 0);
}

/* A trace that cannot grow: the library says so, and the program goes on. Each region is soon idle for too long. */

static void four_end(char *memory, const char *when)
{
	for (int n = 0; n < 4; n++)
		dereg(reg(memory + n * PAGE, PAGE));
	ok(comes(stub_registered() == stub_deregistered()), "a thread of the library ends idle regions %s", when);
}

static void full_trace(void)
{
	struct rlimit full = { 0, RLIM_INFINITY }, without = { RLIM_INFINITY, RLIM_INFINITY };
	char *memory = pages(4), trace[40];
	struct stat about;

	snprintf(trace, sizeof(trace), "/tmp/callers.%d.trace", getpid());
	four_end(memory, "at first");
	ok(stat(trace, &about) == 0 && about.st_size > 0, "there is a trace");
	/* Standard error goes to a file that fits the limit, which is the trace's length. */
	full.rlim_cur = (rlim_t)about.st_size;
	hear_errors();
	must(setrlimit(RLIMIT_FSIZE, &full) == 0);
	four_end(memory, "if the file cannot grow");
	usleep(50000);
	four_end(memory, "again");
	ok(comes(times_said("\n") > 0), "the library prints a message");
	hear_no_more();
	is(times_said("RDMAMR_TRACE: cannot be written, tracing stops: File too large"), 1, "which gives the reason");
	four_end(memory, "as the program goes on");
	must(setrlimit(RLIMIT_FSIZE, &without) == 0 && unlink(trace) == 0);
}

static int last_thread_ends(void)
{
	must(hits(pages(1), 2));
	pthread_exit(NULL);
}

static void *leaves_first(void *argument)
{
	usleep(50000);
	return argument;
}

static int first_thread_ends(void)
{
	pthread_t thread;

	must(hits(pages(1), 2) && pthread_create(&thread, NULL, leaves_first, NULL) == 0);
	pthread_exit(NULL);
}

static void process_ends(void) { is(in_forked((int (*)(void))(uintptr_t)row->of), 0, "the process ends"); }

#define CANCELLED(words, with) { words, cancelled, .flags = BOTH_CALLS, .settings = with }

static const struct row rows[] = {
	{ "errno after calls that succeed", errno_unchanged, .flags = UNPINNED, .settings = NO_CACHE "RDMAMR_LOG=error" },
	{ "errno, with the cache and messages", errno_unchanged, .flags = UNPINNED, .settings = "RDMAMR_CACHE=all RDMAMR_LOG=debug" },
	{ "errno, with eight idle regions at most", errno_unchanged, .flags = UNPINNED,
	  .settings = "RDMAMR_CACHE=all RDMAMR_CACHE_MAX_IDLE=8" },
	{ "errno, with a trace", errno_unchanged, .flags = UNPINNED, .settings = "RDMAMR_TRACE=/dev/null RDMAMR_CACHE=all" },
	CANCELLED("a cancelled thread with the smallest stack", NO_CACHE "RDMAMR_LOG=warn"),
	CANCELLED("the same with the cache and messages", "RDMAMR_CACHE=all RDMAMR_LOG=debug"),
	CANCELLED("the same with a trace", NO_CACHE "RDMAMR_TRACE=/dev/null RDMAMR_LOG=debug"),
	CANCELLED("the same with a trace and the cache", "RDMAMR_TRACE=/dev/null RDMAMR_CACHE=all"),
	CANCELLED("the same with threads that populate", "RDMAMR_PREFAULT=2 RDMAMR_PROGRESS=1 RDMAMR_CACHE=all"),
	/* libibverbs keeps registered memory from children, and reads the size of its pages from a file. */
	{ "the same with RDMAV_HUGEPAGES_SAFE", cancelled, .flags = UNPINNED,
	  .settings = "RDMAV_HUGEPAGES_SAFE=1 RDMAMR_CACHE=all" },
	{ "a program with a function clone of its own", own_clone },
	{ "the first to register is bound to a processor: the library's threads are not", processor, .flags = NO_PINS },
	{ "it is of the class SCHED_IDLE: they are not", scheduling, SCHED_IDLE, .flags = NO_PINS },
	{ "it is of the class SCHED_BATCH: they are not", scheduling, SCHED_BATCH, .flags = NO_PINS },
	{ "it is of a real-time class: so are they", scheduling, SCHED_FIFO, .flags = NO_PINS },
	{ "it has a nice value: they have none", scheduling, SCHED_OTHER, &(const int){ 7 }, .flags = NO_PINS },
	{ "it has a negative nice value: so have they", scheduling, SCHED_OTHER, &(const int){ -5 }, .flags = NO_PINS },
	{ "a mount namespace is entered after a registration", mount_namespace },
	{ "the directory of the first registration is unmounted", working_directory },
	{ "a user namespace is made before the first registration", user_namespace },
	{ "the only thread leaves its table of descriptors", descriptors },
	{ "the reason of the last failure", last_reason, .flags = NO_PINS, .settings = "RDMAMR_LOG=error" },
	{ "the reason of the last failure, with a trace", last_reason, .flags = NO_PINS, .settings = "RDMAMR_TRACE=/dev/null" },
	{ "a trace that cannot grow", full_trace, .flags = NO_PINS, .settings = "RDMAMR_CACHE_LINGER=0.05 RDMAMR_TRACE=/tmp/callers.%p.trace" },
	{ "the only thread ends by pthread_exit", process_ends, .of = last_thread_ends },
	{ "the last thread but the library's returns", process_ends, .of = first_thread_ends },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
