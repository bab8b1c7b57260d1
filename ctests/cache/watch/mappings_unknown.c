/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache reuses a region once the kernel has shown that its memory is private and of no file.
 * Unknown memory counts as neither: no descriptor is left for a moment, /proc is absent after a
 * chroot, a seccomp filter refuses to open or, halfway through, to read. Registrations succeed all
 * the same, and data lands in the current page.
 *
 * The device is the stand-in, whose pins are real (stub_device.h). Each case is a process of its
 * own.
 */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { SIZE = 4 * PAGE, ROUNDS = 20, BELOW = 300 };
enum { STALE = 1, LOST = 2, NOT_AGAIN = 4, SKIPPED = 77 };
#define PROCMAP_QUERY 0xc0686611u /* Linux 6.11 */

static bool plain;

static struct ibv_mr *reg(void *memory)
{
	return plain ? ibv_reg_mr(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE) :
		       ibv_reg_mr_relaxed(stub_pd(), memory, SIZE, LOCAL_AND_REMOTE);
}

/* A plain registration that bypassed the cache, since its range was new, does not count. */
static bool lands(void *memory)
{
	struct rdmamr_stats before;
	bool good = true;

	do {
		struct ibv_mr *mr;

		before = stats();
		mr = reg(memory);
		must(mr);
		good = stub_lands(mr) && good;
		must((plain ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) == 0);
	} while (good && stats().bypassed_first != before.bypassed_first);
	return good;
}

/* From now on the lowest free number, and all above it, are forbidden. */
static bool no_descriptor(void)
{
	struct rlimit limit;
	int next = dup(STDOUT_FILENO);

	must(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = (rlim_t)next;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	must(open("/proc/thread-self/maps", O_RDONLY) == -1 && errno == EMFILE);
	return true;
}

static void descriptors_again(void)
{
	struct rlimit limit;

	must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static bool no_proc(void)
{
	char path[] = "/tmp/rdmamr-root-XXXXXX";

	must(mkdtemp(path) && chdir(path) == 0 && rmdir(path) == 0);
	return chroot(".") == 0 && open("/proc/self/maps", O_RDONLY) == -1;
}

static bool install(struct sock_filter *filter, size_t count)
{
	struct sock_fprog program = { .len = (unsigned short)count, .filter = filter };

	return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#define FIELD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, name))
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)

static bool no_open(void)
{
	struct sock_filter filter[] = {
		FIELD(nr), UNLESS(SYS_openat, 1), RETURN(SECCOMP_RET_ERRNO | EACCES), RETURN(SECCOMP_RET_ALLOW),
	};

	return install(filter, sizeof(filter) / sizeof(filter[0])) &&
	       open("/proc/thread-self/maps", O_RDONLY) == -1 && errno == EACCES;
}

#ifdef __x86_64__
/* Replaces a read: past the start of a file it fails. */
static void read_or_fail(int signal, siginfo_t *info, void *context)
{
	ucontext_t *at = context;
	greg_t *registers = at->uc_mcontext.gregs;
	struct iovec whole = { (void *)registers[REG_RSI], (size_t)registers[REG_RDX] };
	int fd = (int)registers[REG_RDI];

	(void)signal;
	(void)info;
	if (lseek(fd, 0, SEEK_CUR) != 0)
		registers[REG_RAX] = -EIO;
	else
		registers[REG_RAX] = readv(fd, &whole, 1);
}

/* Nor does the kernel answer about single mappings. */
static bool no_second_page(void)
{
	struct sigaction action = { .sa_sigaction = read_or_fail, .sa_flags = SA_SIGINFO };
	struct sock_filter filter[] = {
		FIELD(nr),
		UNLESS(SYS_ioctl, 3),
		FIELD(args[1]), UNLESS(PROCMAP_QUERY, 5), RETURN(SECCOMP_RET_ERRNO | ENOTTY),
		UNLESS(SYS_read, 3),
		FIELD(args[2]), UNLESS(PAGE, 1), RETURN(SECCOMP_RET_TRAP),
		RETURN(SECCOMP_RET_ALLOW),
	};

	return sigaction(SIGSYS, &action, NULL) == 0 && install(filter, sizeof(filter) / sizeof(filter[0]));
}
#else
static bool no_second_page(void)
{
	return false;
}
#endif

static const struct way {
	const char *name;
	bool (*blind)(void);
	void (*mend)(void);
} ways[] = {
	{ "no descriptor is left", no_descriptor, descriptors_again },
	{ "a chroot without /proc", no_proc, NULL },
	{ "a seccomp filter refuses openat", no_open, NULL },
	{ "a seccomp filter fails a read in mid-file", no_second_page, NULL },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/*
 * So many mappings at low addresses that mappings above them are on a later page of
 * /proc/self/maps.
 */
static void many_below(void)
{
	char *memory = mmap(new_place(BELOW * PAGE), BELOW * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	must(memory != MAP_FAILED);
	for (int n = 0; n < BELOW; n += 2)
		must(mprotect(memory + n * PAGE, PAGE, PROT_READ) == 0);
}

static bool used_again(char *memory)
{
	struct rdmamr_stats before;

	for (int tries = 0; tries < 100; tries++) {
		before = stats();
		must(lands(memory));
		if (stats().hits > before.hits)
			return true;
		usleep(20000);
	}
	return false;
}

static int process(const struct way *way)
{
	int fd = memfd_create("memory", MFD_CLOEXEC), result = 0;
	char *private = pages(SIZE / PAGE), *shared;

	plain = getenv("RDMAMR_CACHE") != NULL;
	must(!stub_open(STUB_PIN));
	many_below();
	must(lands(pages(SIZE / PAGE)));
	must(fd >= 0 && ftruncate(fd, SIZE) == 0);
	shared = (char *)syscall(SYS_mmap, NULL, (long)SIZE, (long)(PROT_READ | PROT_WRITE), (long)MAP_SHARED, (long)fd, 0L);
	must(shared != MAP_FAILED);
	if (!way->blind())
		return SKIPPED;
	for (int round = 0; round < ROUNDS; round++) {
		bool good = lands(shared);

		good = lands(shared) && good;
		must(ftruncate(fd, 0) == 0 && ftruncate(fd, SIZE) == 0);
		good = lands(shared) && good;
		result |= good ? 0 : STALE;
		result |= lands(private) ? 0 : LOST;
	}
	if (way->mend) {
		way->mend();
		result |= used_again(private) ? 0 : NOT_AGAIN;
	}
	return result;
}

static void examine(int way, bool cache)
{
	const char *settings[] = { "RDMAMR_CACHE_LINGER=" FOREVER, cache ? "RDMAMR_CACHE=all" : NULL, NULL };
	const char *calls = cache ? "plain calls" : "relaxed calls";
	char number[4];
	int result;

	snprintf(number, sizeof(number), "%d", way);
	result = once_more(number, settings);
	if (result == SKIPPED) {
		skip(ways[way].name, "it cannot be had here");
		return;
	}
	must(result < SKIPPED);
	ok(!(result & STALE), "%s, %s: shared memory is cut, and data lands in the current page", ways[way].name, calls);
	ok(!(result & LOST), "%s, %s: and in private memory too", ways[way].name, calls);
	if (ways[way].mend)
		ok(!(result & NOT_AGAIN), "%s, %s: whose region is reused afterwards", ways[way].name, calls);
}

int main(int argc, char **argv)
{
	const char *why;

	if (argc == 2)
		_exit(process(&ways[atoi(argv[1])]));
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	must(lands(pages(SIZE / PAGE)));
	if (stats().bypassed_watch)
		skip_all("userfaultfd is refused here");
	for (int way = 0; way < WAYS; way++) {
		examine(way, false);
		examine(way, true);
	}
	return done_testing();
}
