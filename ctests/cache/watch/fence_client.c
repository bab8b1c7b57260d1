/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache asks the service `rdmamr fence` for counters of changes. While they stand, hits make no
 * system call; after each count the next hit asks the kernel. Whatever is wrong with the service or
 * its answer, the cache works as without it.
 *
 * The service is a stand-in, at the service's path in a mount namespace of the test's own, and this
 * program counts in place of the kernel: it sees each system call that the library makes by number.
 * It also answers what the files are in place of the kernel. So this shows the client, and not that the kernel's counts come in time. The device is the
 * stand-in too. Each part is a program of its own.
 */
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/fence_stub.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"
#include "watched_page.h"

/* TOO_LATE: the machine is busy, and the stand-in's answer took longer than the library waits. */
enum { RIGHT = 0, WRONG = 1, UNTESTED = 77, TOO_LATE = 78, HITS = 200, TRIES = 1000 };

static enum fence_kind kind;

static void *nothing(void *argument)
{
	return argument;
}

/* ---- The parts: each is a process that registers ---- */

/* The number of files in the table of the library's reader. */
static int files_of_reader(void)
{
	char path[64], name[32];
	int found = -1;

	for (int pid = getpid(), thread = pid + 1; found < 0 && thread < pid + 200; thread++) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%d/comm", thread);
		if (!(file = fopen(path, "r")))
			continue;
		if (fgets(name, sizeof(name), file) && !strcmp(name, "rdmamr-uffd\n")) {
			snprintf(path, sizeof(path), "/proc/self/task/%d/fd", thread);
			found = entries(path) - 2;
		}
		fclose(file);
	}
	return found;
}

static char *page;

/* Registers the page until it is reused, in a process of two threads, and waits for the client's end. */
static void start(void)
{
	if (stub_open(STUB_PIN))
		_exit(UNTESTED);
	fence_stub_count(kind);
	page = pages(1);
	in_thread(nothing, NULL);
	idle_region(page);
	must(userfaultfds(NULL) == 1);
}

/* Whether so many registrations are hits, and ask the kernel so often. */
static bool hits(long count, unsigned long asks, void (*before_each)(void))
{
	struct rdmamr_stats before = stats(), after;
	bool right = true;

	for (long n = 0; n < count; n++) {
		if (before_each)
			before_each();
		right = is_right(page, (char)(n + 1)) && right;
	}
	after = stats();
	if (after.hits - before.hits != (unsigned long)count || after.fence_asked - before.fence_asked != asks) {
		printf("# %ld registrations: %lu hits, asked %lu times in place of %lu\n", count,
		       (unsigned long)(after.hits - before.hits), (unsigned long)(after.fence_asked - before.fence_asked),
		       asks);
		right = false;
	}
	return right;
}

static bool is_proven(void)
{
	double since = seconds_now();

	while (files_of_reader() != 1 + FENCE_FILES) {
		if (files_of_reader() <= 1 && seconds_now() - since > 0.05)
			_exit(TOO_LATE);
		usleep(1000);
	}
	/* The last hit kept the counters. */
	return comes(is_right(page, 1) && stats().fence_asked > 0) && hits(1, 0, NULL);
}

static void moves_once(void) { atomic_fetch_add(fence_stub.moves, 1); }
static void gap(void) { atomic_fetch_add(fence_stub.gaps, 1); }

/* The fence's ioctl is refused: a hit that asks is none. */
static void *asks_in_vain(void *right)
{
	bool stand, moved;

	is_right(page, 1);
	if (filter_calls(SYS_ioctl, 1, (uint32_t)UFFDIO_WRITEPROTECT, SECCOMP_RET_ERRNO | EPERM, 0))
		return NULL;
	stand = hits(HITS, 0, NULL);
	moves_once();
	moved = !hits(1, 1, NULL);
	*(bool *)right = stand && moved;
	return NULL;
}

static int counted(void)
{
	bool right, filtered = false;

	start();
	right = is_proven();
	right = hits(HITS, 0, NULL) && right;
	right = hits(HITS, HITS, moves_once) && right;
	right = hits(HITS, HITS, gap) && right;
	right = hits(HITS, 0, NULL) && right;
	/* A processor has skipped counts: nothing is kept until it counts again. */
	atomic_fetch_add(fence_stub.open, 1);
	gap();
	right = hits(HITS, HITS, NULL) && right;
	atomic_fetch_sub(fence_stub.open, 1);
	right = hits(HITS, 1, NULL) && right;
	/* A wrap. */
	atomic_store(fence_stub.moves, UINT64_MAX);
	right = hits(HITS, 1, NULL) && right;
	moves_once();
	right = hits(HITS, 1, NULL) && right;
	/* A change by a call of the C library is seen by the hooks, counted or not. */
	must(munmap(page, PAGE) == 0);
	must(mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
	right = is_right(page, 1) && is_right(page, 2) && right;
	in_thread(asks_in_vain, &filtered);
	return right && filtered ? RIGHT : WRONG;
}

/* A raw unmap has the kernel count, and then the hit asks. */
static int changes(void)
{
	bool right;

	start();
	right = is_proven();
	for (int n = 0; n < 20; n++) {
		idle_region(page);
		moves_once();
		raw_remap(page, PAGE);
		right = is_right(page, 1) && is_right(page, 2) && right;
	}
	return right ? RIGHT : WRONG;
}

/* The kernel stops to count, and the reader notices it at the next event. */
static int stops(void)
{
	bool right;

	start();
	right = is_proven();
	fence_stub_count(COUNTS_NOTHING);
	idle_region(page);
	raw_remap(page, PAGE);
	right = is_right(page, 1) && is_right(page, 2) && right;
	/* The counters are read no more. */
	return hits(HITS, 0, moves_once) && right ? RIGHT : WRONG;
}

/* While a processor skips counts, an event that was not counted proves nothing. */
static int skips(void)
{
	bool right;

	start();
	right = is_proven();
	fence_stub_count(COUNTS_NOTHING);
	atomic_fetch_add(fence_stub.open, 1);
	gap();
	idle_region(page);
	raw_remap(page, PAGE);
	right = is_right(page, 1) && is_right(page, 2) && right;
	atomic_fetch_sub(fence_stub.open, 1);
	right = hits(HITS, 1, NULL) && right;
	return hits(HITS, HITS, moves_once) && right ? RIGHT : WRONG;
}

static int uncounted(void)
{
	bool right;

	start();
	right = kind == NONE || kind == NOT_A_SOCKET || kind == OF_ANOTHER || kind == BY_ANOTHER || kind == DEAF ||
		kind == NEVER_ACCEPTS || getenv("RDMAMR_FENCE") || comes(*fence_stub.asked > 0);
	usleep(30000);
	right = comes(files_of_reader() == 1) && right;
	right = hits(HITS, 0, moves_once) && right;
	if (!right)
		printf("# the reader has %d files, asked is %d\n", files_of_reader(), *fence_stub.asked);
	return right ? RIGHT : WRONG;
}

/* By the setting the service is not asked. */
static int by_setting(void)
{
	return uncounted() == RIGHT && *fence_stub.asked == 0 ? RIGHT : WRONG;
}

static int mappings_of_counters(void)
{
	char line[PATH_MAX + 100];
	FILE *file = fopen("/proc/self/maps", "r");
	int found = 0;

	must(file);
	while (fgets(line, sizeof(line), file))
		found += strstr(line, "counters-of-test") != NULL;
	fclose(file);
	return found;
}

/* A forked child has no counters, and works as without. */
static int forks(void)
{
	int status, before;
	bool right;
	pid_t pid;

	start();
	right = is_proven();
	before = mappings_of_counters();
	must((pid = fork()) >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		right = mappings_of_counters() == before - 1 && is_right(page, 1) && stats().fence_asked == 0;
		_exit(right ? RIGHT : WRONG);
	}
	must(waitpid(pid, &status, 0) == pid);
	right = status == 0 && right;
	return hits(HITS, 0, NULL) && right ? RIGHT : WRONG;
}

/* A child that had no cache before asks for itself. */
static int forks_first(void)
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		start();
		_exit(is_proven() && hits(HITS, 0, NULL) ? RIGHT : WRONG);
	}
	must(waitpid(pid, &status, 0) == pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == TOO_LATE)
		return TOO_LATE;
	start();
	return status == 0 && is_proven() && *fence_stub.asked == 2 ? RIGHT : WRONG;
}

/* A program that replaces itself has the counters again. */
static int replaced(void)
{
	start();
	if (!is_proven())
		return WRONG;
	execl("/proc/self/exe", "once-more", "counted", (char *)NULL);
	return WRONG;
}

/* Limits of the process. */
static int locks_all(void)
{
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		return UNTESTED;
	start();
	return is_proven() && hits(HITS, 0, NULL) ? RIGHT : WRONG;
}

static int few_addresses(void)
{
	struct rlimit limit;
	FILE *file = fopen("/proc/self/statm", "r");
	long size = 0;

	must(file && fscanf(file, "%ld", &size) == 1);
	fclose(file);
	if (stub_open(STUB_PIN))
		return UNTESTED;
	/* The cache has room for its own first parts, and the counters have none. */
	limit.rlim_cur = limit.rlim_max = (rlim_t)size * PAGE + (2 << 20);
	must(setrlimit(RLIMIT_AS, &limit) == 0);
	fence_stub_count(kind);
	page = pages(1);
	idle_region(page);
	usleep(50000);
	return is_right(page, 1) && stats().fence_asked == 0 ? RIGHT : WRONG;
}

/* Another descriptor table: the counters do not make a thread there hit. */
static void *elsewhere(void *right)
{
	struct rdmamr_stats before;

	if (unshare(CLONE_FILES))
		return NULL;
	before = stats();
	is_right(page, 1);
	*(bool *)right = stats().hits == before.hits;
	return NULL;
}

static int tables_apart(void)
{
	bool right = false;

	start();
	if (!is_proven())
		return WRONG;
	in_thread(elsewhere, &right);
	return right && hits(HITS, 0, NULL) ? RIGHT : WRONG;
}

/* Threads that hit while the counters move. */
static void *hitting(void *wrong)
{
	char *memory = pages(1);

	idle_region(memory);
	for (int n = 0; n < 20000; n++)
		if (!is_right(memory, (char)(n % 100 + 1)))
			atomic_fetch_add((_Atomic int *)wrong, 1);
	return NULL;
}

static int many_threads(void)
{
	pthread_t threads[4];
	_Atomic int wrong = 0;

	start();
	if (!is_proven())
		return WRONG;
	for (int n = 0; n < 4; n++)
		must(pthread_create(threads + n, NULL, hitting, &wrong) == 0);
	for (int n = 0; n < 2000; n++) {
		moves_once();
		usleep(10);
	}
	for (int n = 0; n < 4; n++)
		must(pthread_join(threads[n], NULL) == 0);
	is_right(page, 1);
	return wrong == 0 && hits(HITS, 0, NULL) ? RIGHT : WRONG;
}

#define UNLESS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

/* A filter that also applies to the reader kills the process at calls by which the client ends. */
static int filtered(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		UNLESS(SYS_recvmsg),
		UNLESS(SYS_pselect6),
		UNLESS(SYS_userfaultfd),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	start();
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
	usleep(50000);
	return is_right(page, 1) && stats().fence_asked == 0 ? RIGHT : WRONG;
}

static const struct part { const char *name; int (*run)(void); } parts[] = {
	{ "counted", counted },       { "changes", changes },     { "uncounted", uncounted }, { "stops", stops }, { "skips", skips },
	{ "by_setting", by_setting }, { "forks", forks },	  { "forks_first", forks_first },
	{ "replaced", replaced },     { "locks_all", locks_all }, { "few_addresses", few_addresses },
	{ "filtered", filtered }, { "tables_apart", tables_apart }, { "many_threads", many_threads },
};

static const struct row { const char *what; enum fence_kind kind; const char *part, *setting; } rows[] = {
	{ "hits ask once after each count", SERVES, "counted", NULL },
	{ "RDMAMR_FENCE=auto", SERVES, "counted", "RDMAMR_FENCE=auto" },
	{ "raw changes are counted and seen", SERVES, "changes", NULL },
	{ "RDMAMR_FENCE=ioctl", SERVES, "by_setting", "RDMAMR_FENCE=ioctl" },
	{ "no service", NONE, "uncounted", NULL },
	{ "a file in the socket's place", NOT_A_SOCKET, "uncounted", NULL },
	{ "another user's socket", OF_ANOTHER, "uncounted", NULL },
	{ "another user's process", BY_ANOTHER, "uncounted", NULL },
	{ "a socket at which nothing listens", DEAF, "uncounted", NULL },
	{ "a service that hangs before it accepts", NEVER_ACCEPTS, "uncounted", NULL },
	{ "a service that hangs", NEVER_ANSWERS, "uncounted", NULL },
	{ "an answer after the limit", LATE, "uncounted", NULL },
	{ "no answer", CLOSES, "uncounted", NULL },
	{ "a short answer", SHORT, "uncounted", NULL },
	{ "a long answer", LONG, "uncounted", NULL },
	{ "garbage", GARBAGE, "uncounted", NULL },
	{ "another version", OTHER_VERSION, "uncounted", NULL },
	{ "no file", NO_FILES, "uncounted", NULL },
	{ "too few files", FEW_FILES, "uncounted", NULL },
	{ "too many files", MANY_FILES, "uncounted", NULL },
	{ "far too many files", VERY_MANY_FILES, "uncounted", NULL },
	{ "a file that cannot be mapped", UNMAPPABLE, "uncounted", NULL },
	{ "a file that cannot be read", WRITE_ONLY, "uncounted", NULL },
	{ "counters that stand still", COUNTS_NOTHING, "uncounted", NULL },
	{ "counters without moves", COUNTS_NO_MOVES, "uncounted", NULL },
	{ "counters without unmaps", COUNTS_NO_UNMAPS, "uncounted", NULL },
	{ "counters on which two lines rise at each change", COUNTS_ELSEWHERE, "uncounted", NULL },
	{ "counters that are no array of the kernel's", NOT_AN_ARRAY, "uncounted", NULL },
	{ "programs whose words are forged in the name of another file", FORGED_LINKS, "uncounted", NULL },
	{ "counters that are not frozen", NOT_FROZEN, "uncounted", NULL },
	{ "counters of another size", OF_ANOTHER_SIZE, "uncounted", NULL },
	{ "a file that is no program", NOT_A_PROGRAM, "uncounted", NULL },
	{ "a program of other counters", OTHER_PROGRAM, "uncounted", NULL },
	{ "a program that does not come along", LACKS_A_PROGRAM, "uncounted", NULL },
	{ "counters that name no program", NAMES_NO_PROGRAM, "uncounted", NULL },
	{ "no /proc", WITHOUT_PROC, "uncounted", NULL },
	{ "the kernel stops to count", SERVES, "stops", NULL },
	{ "a processor skips counts", SERVES, "skips", NULL },
	{ "a child of a process with counters", SERVES, "forks", NULL },
	{ "a child before its parent's start", SERVES, "forks_first", NULL },
	{ "execve", SERVES, "replaced", NULL },
	{ "mlockall", SERVES, "locks_all", NULL },
	{ "no room for the counters (RLIMIT_AS)", SERVES, "few_addresses", NULL },
	{ "a seccomp filter while a service hangs", NEVER_ANSWERS, "filtered", NULL },
	{ "a thread in another table of descriptors", SERVES, "tables_apart", NULL },
	{ "four threads while the counters move", SERVES, "many_threads", NULL },
};

int main(int argc, char **argv)
{
	const char *refused;
	char text[32];

	if (!rdmamr_get_stats)
		skip_all("the library is not loaded");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (argc > 1) {
		const char *of = getenv("CHECK_KIND");

		alarm(DEADLOCK);
		fence_stub_inherit();
		kind = of ? (enum fence_kind)atoi(of) : SERVES;
		for (size_t n = 0; n < sizeof(parts) / sizeof(*parts); n++)
			if (!strcmp(parts[n].name, argv[1]))
				return parts[n].run();
		return WRONG;
	}
	refused = fence_stub_open();
	if (refused)
		skip_all(refused);
	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++) {
		const char *settings[] = { text, rows[n].setting, NULL };
		int result = TOO_LATE;

		kind = rows[n].kind;
		snprintf(text, sizeof(text), "CHECK_KIND=%d", kind);
		for (int tries = 0; result == TOO_LATE && tries < TRIES; tries++) {
			pid_t service = fence_stub_serve(kind);

			result = once_more(rows[n].part, settings);
			if (service) {
				kill(service, SIGKILL);
				must(waitpid(service, NULL, 0) == service);
			}
		}
		if (result == UNTESTED)
			skip(rows[n].what, "refused here");
		else
			is(result, RIGHT, "%s", rows[n].what);
	}
	return done_testing();
}
