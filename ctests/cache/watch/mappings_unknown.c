/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the kernel says about the process's mappings. The cache reuses a region once the kernel has
 * shown that its memory is private and of no file. Unknown memory counts as neither: no descriptor is
 * left for a moment, /proc is absent after a chroot, a seccomp filter refuses to open or, halfway
 * through, to read; the first thread has ended, and /proc/self/maps, which is that thread's, is empty.
 * Registrations succeed all the same, and data lands in the current page.
 *
 * The watch splits memory into mappings, of which a process may have vm.max_map_count. The cache
 * leaves half of those that are left to the program, and reads all mappings to count them: near the
 * limit that must not happen for every few registrations.
 *
 * The device is the stand-in, whose pins are real (stub_device.h).
 */
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include "../../lib/stub_rows.h"

#define PROCMAP_QUERY 0xc0686611u /* Linux 6.11 */
enum { ROUNDS = 20 };

/* Registers it once more than the cache bypasses it since its range is new. */
static void lands(void *page)
{
	uint64_t bypassed;

	do {
		bypassed = stats().bypassed_first;
		once(page);
	} while (stats().bypassed_first != bypassed);
}

/* Unknown memory. */

static int file;

/* Shared memory of that file. */
static char *shared_memory(void)
{
	char *page = new_place(PAGE);

	file = memfd_create("memory", MFD_CLOEXEC);
	must(file >= 0 && ftruncate(file, PAGE) == 0);
	must(syscall(SYS_mmap, page, (long)PAGE, (long)(PROT_READ | PROT_WRITE), (long)(MAP_SHARED | MAP_FIXED_NOREPLACE), (long)file,
		     0L) == (long)page);
	return page;
}

/* No region of it is reused, since the file is cut. */
static void is_cut(char *page)
{
	for (int round = 0; round < ROUNDS; round++) {
		long before = stub_registered();

		lands(page);
		lands(page);
		must(ftruncate(file, 0) == 0 && ftruncate(file, PAGE) == 0);
		lands(page);
		ok(stub_registered() - before >= 3, "cut by ftruncate in round %d: no region is reused", round);
	}
}

/* From now on the lowest free number, and all above it, are forbidden. */
static bool no_descriptor(void)
{
	struct rlimit limit;
	int next = dup(STDOUT_FILENO);

	must(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = (rlim_t)next;
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	return open("/proc/thread-self/maps", O_RDONLY) == -1 && errno == EMFILE;
}

static bool no_proc(void)
{
	char path[] = "/tmp/rdmamr-root-XXXXXX";

	must(mkdtemp(path) && chdir(path) == 0 && rmdir(path) == 0);
	return chroot(".") == 0 && open("/proc/self/maps", O_RDONLY) == -1;
}

static bool no_open(void)
{
	return refuse_calls(SYS_openat, 0, (uint32_t)AT_FDCWD, EACCES) && open("/proc/self/maps", O_RDONLY) == -1;
}

#ifdef __x86_64__
/* Replaces a read: past the start of a file it fails. */
static void read_or_fail(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct iovec whole = { (void *)registers[REG_RSI], (size_t)registers[REG_RDX] };
	int fd = (int)registers[REG_RDI];

	(void)signal;
	(void)info;
	registers[REG_RAX] = lseek(fd, 0, SEEK_CUR) ? -EIO : readv(fd, &whole, 1);
}

/* Nor does the kernel answer about single mappings. */
static bool no_second_page(void)
{
	struct sigaction action = { .sa_sigaction = read_or_fail, .sa_flags = SA_SIGINFO };

	return sigaction(SIGSYS, &action, NULL) == 0 && refuse_calls(SYS_ioctl, 1, PROCMAP_QUERY, ENOTTY) &&
	       filter_calls(SYS_read, 2, PAGE, SECCOMP_RET_TRAP, 0) == 0;
}
#else
static bool no_second_page(void) { return false; }
#endif

static void unknown(void)
{
	char *shared = shared_memory(), *private = pages(1);
	struct rlimit limit;

	/* Mappings above these are on a later page of /proc/self/maps. */
	fill_mappings(new_place(2000 * PAGE), mappings() + 300);
	lands(pages(1));
	if (!((bool (*)(void))(uintptr_t)row->of)())
		skip_all("it cannot be had here");
	is_cut(shared);
	lands(private);
	if (row->of == no_descriptor) {
		must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
		limit.rlim_cur = limit.rlim_max;
		must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		ok(comes(hits(private, 1)), "private memory is reused afterwards");
	}
}

/* Many regions far apart. Before Linux 6.11 the library reads all mappings to find one, and only so often. */

/* Pages with a hole before each, so that each is a mapping. */
static char *scattered(long count)
{
	char *memory = new_place((size_t)count * 2 * PAGE);

	for (long n = 0; n < count; n++)
		fresh_at(memory + n * 2 * PAGE, PAGE);
	return memory;
}

/* Each is registered that often in turn. Returns the number of hits. */
static long each(char *memory, long count, int times)
{
	long reused = 0;

	for (long n = 0; n < count; n++)
		reused += hits(memory + n * 2 * PAGE, times);
	return reused;
}

static void at_once(void)
{
	char question[0x68] = { sizeof(question) };
	int maps = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC);

	idle();
	must(maps >= 0);
	if (ioctl(maps, PROCMAP_QUERY, question) && errno == ENOTTY)
		skip_all("the kernel answers no question about a mapping");
	is(each(scattered(row->value), row->value, 2), row->value, "each is reused at once");
}

/* A page with a reused region needs no further region, even while there is no answer. */
static void later(void)
{
	char *memory = scattered(row->value);

	if (!refuse_calls(SYS_ioctl, 1, PROCMAP_QUERY, ENOTTY))
		skip_all("no seccomp filter can be had");
	each(memory, row->value, 3);
	ok(stats().idle <= (uint64_t)row->value, "no page has two regions idle");
	ok(comes(each(memory, row->value, 1) == row->value), "after a while each is reused");
}

/* The number of mappings. */

static void limit_is_near(int left)
{
	if (most_mappings() > 300000)
		skip_all("vm.max_map_count is so large that the test would need much memory");
	fill_mappings(NULL, most_mappings() - left);
}

/* The cache counts the mappings when it starts. */
static void few_left(void)
{
	enum { LEFT = 3000, SCATTERED = 1800, WANTED = 200 };
	const size_t apart = 4 << 20; /* the watch of a region splits its 2 MiB off the mapping */
	char *memory = mmap(NULL, SCATTERED * apart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	static struct ibv_mr *regions[SCATTERED];
	static void *mapped[WANTED];
	int refused = 0, before;

	must(memory != MAP_FAILED);
	limit_is_near(LEFT);
	before = mappings();
	for (int n = 0; n < SCATTERED; n++)
		regions[n] = reg(memory + (size_t)n * apart, PAGE);
	for (int n = 0; n < WANTED; n++) {
		mapped[n] = mmap(NULL, PAGE, n % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		refused += mapped[n] == MAP_FAILED;
	}
	is(refused, 0, "of %d mappings left, beside %d registrations, the program gets %d", LEFT, SCATTERED, WANTED);
	for (int n = 0; n < SCATTERED; n++) {
		char *page = memory + (size_t)n * apart;

		dereg(regions[n]);
		if (n % 3)
			must((n % 3 == 1 ? madvise(page, PAGE, MADV_DONTNEED) : (int)syscall(SYS_madvise, page, PAGE, MADV_DONTNEED)) == 0);
		once(page);
	}
	must(ibv_flush_relaxed_mr(stub_pd()) == 0);
	for (int n = 0; n < WANTED; n++)
		must(munmap(mapped[n], PAGE) == 0);
	ok(mappings() <= before + SCATTERED / 2, "a flush gives the others back: %d before, %d after", before, mappings());
}

static long long bytes_read(void)
{
	FILE *counts = fopen("/proc/self/io", "re");
	long long bytes = -1;

	if (!counts || fscanf(counts, "rchar: %lld", &bytes) != 1)
		skip_all("the kernel does not count what a process reads (/proc/self/io)");
	must(fclose(counts) == 0);
	return bytes;
}

static void counted_seldom(void)
{
	enum { MISSES = 3000 };
	char *page = pages(1);
	long long size, before;

	limit_is_near(60);
	before = bytes_read();
	must(mappings() > 0);
	size = bytes_read() - before;
	before = bytes_read();
	for (int n = 0; n < MISSES; n++) {
		once(page);
		remap(page, PAGE);
	}
	is((bytes_read() - before) / size > MISSES / 100, 0, "of %d registrations that miss, not each hundredth reads all mappings", MISSES);
}

/* After the end of the first thread. */

static void shared_by_other(void) { is_cut(shared_memory()); }
static void private_of_other(void) { served(idle(), HIT, "private memory"); }

static pthread_t first;

static void *other(void *unused)
{
	must(pthread_join(first, NULL) == 0);
	((void (*)(void))(uintptr_t)row->of)();
	row_ends();
	return unused;
}

static void first_ends(void)
{
	pthread_t thread;

	first = pthread_self();
	must(pthread_create(&thread, NULL, other, NULL) == 0);
	pthread_exit(NULL);
}

#define MANY_IDLE .flags = NO_PINS, .settings = "RDMAMR_CACHE_MAX_IDLE=100000 RDMAMR_CACHE_MAX_IDLE_BYTES=1G"

static const struct row rows[] = {
	{ "no descriptor is left", unknown, .of = no_descriptor, .flags = BOTH_CALLS },
	{ "a chroot without /proc", unknown, .of = no_proc, .flags = BOTH_CALLS },
	{ "a seccomp filter refuses openat", unknown, .of = no_open, .flags = BOTH_CALLS },
	{ "a seccomp filter fails a read in mid-file", unknown, .of = no_second_page, .flags = BOTH_CALLS },
	{ "the first thread has ended, shared memory", first_ends, .of = shared_by_other, .flags = BOTH_CALLS },
	{ "the first thread has ended, private memory", first_ends, .of = private_of_other, .flags = BOTH_CALLS },
	{ "the first thread has ended, and few mappings are left", first_ends, .of = few_left },
	{ "few mappings are left", few_left },
	{ "near the limit the mappings are seldom counted", counted_seldom, .flags = NO_PINS },
	{ "1000 regions far apart", at_once, 1000, MANY_IDLE },
	{ "20000 regions far apart", at_once, 20000, MANY_IDLE },
	{ "1000 regions far apart, all mappings read", later, 1000, MANY_IDLE },
};

RUN_ROWS("RDMAMR_CACHE_LINGER=" FOREVER, on_stub)
