/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Each kind of memory with RDMAMR_PREFAULT=2 and without: the same pages, contents, blocks and end (docs/large.md). */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"
#include "started.h"
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MIB = 1 << 20, SIZE = 18 * MIB, HUGE = 2 * MIB, ROUNDS = 10 };
enum { READ_ONLY = IBV_ACCESS_REMOTE_READ, BOTH = PROT_READ | PROT_WRITE };
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static int fd = -1;

static char folder[32]; /* of a mounted tmpfs */

/* What happens to fresh memory before it is registered. Returns false if this machine lacks that. */
typedef bool prepare(char *memory);

static bool every_other_page(char *memory)
{
	for (size_t at = 0; at < SIZE; at += 2 * PAGE)
		memory[at] = (char)(at >> 13 | 1);
	return true;
}

static bool every_fourth_page(char *memory)
{
	for (size_t at = 0; at < SIZE; at += 4 * PAGE)
		memset(memory + at, 0x5a, PAGE);
	usleep(20000); /* the clock of the file system */
	return true;
}

static bool reads(char *memory)
{
	for (size_t at = 0; at < SIZE; at += PAGE)
		(void)*(volatile char *)(memory + at);
	return true;
}

static bool unreadable_inside(char *memory) { return mprotect(memory + SIZE / 2, PAGE, PROT_NONE) == 0; }

static bool guarded(char *memory) { return madvise(memory + SIZE / 2, PAGE, MADV_GUARD_INSTALL) == 0; }

static bool read_only_end(char *memory) { return mprotect(memory + SIZE - 2 * PAGE, PAGE, PROT_READ) == 0; }
static bool hole_at_end(char *memory) { return munmap(memory + SIZE - 2 * PAGE, PAGE) == 0; }

/* A userfaultfd of the program's own, which no thread may wait for. */
static bool watched(char *memory)
{
	struct uffdio_register range = {
		.range = { (uintptr_t)memory + SIZE - 2 * PAGE, PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	fd = open_userfaultfd(0);
	return fd >= 0 && ioctl(fd, UFFDIO_REGISTER, &range) == 0;
}

static bool half_a_memfd(char *memory)
{
	fd = memfd_create("kinds", MFD_CLOEXEC);
	must(ftruncate(fd, SIZE / 2) == 0);
	return mmap(memory + SIZE / 2, SIZE / 2, BOTH, MAP_SHARED | MAP_FIXED, fd, 0) == memory + SIZE / 2;
}

/* EITHER: a file that is in memory is present for mincore(2). */
enum { ALONE, HELPED, EITHER };
enum from { SMALL, UNDECIDED, HUGE_WANTED, MEMFD, SYSTEM_V, TMPFS, IN_FILE };
enum { PRIVATE = MAP_PRIVATE, SHARED = MAP_SHARED, BLANK = MAP_ANONYMOUS, LARGE_PAGES = MAP_HUGETLB };

static const struct kind {
	const char *name;
	enum from from;
	int flags, protection;
	long size; /* of the file, or the MiB of the tmpfs */
	prepare *prepare;
	int access, helped;
} kinds[] = {
	{ "private anonymous memory", SMALL, PRIVATE | BLANK, BOTH, 0, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "memfd", MEMFD, SHARED, BOTH, SIZE, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "memfd, for reading", MEMFD, SHARED, BOTH, SIZE, NULL, READ_ONLY, HELPED },
	{ "private anonymous memory, for reading", SMALL, PRIVATE | BLANK, BOTH, 0, NULL, READ_ONLY, HELPED },
	{ "anonymous memory without advice", UNDECIDED, PRIVATE | BLANK, BOTH, 0, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "huge pages where the kernel finds them", HUGE_WANTED, PRIVATE | BLANK, BOTH, 0, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "every other page touched", SMALL, PRIVATE | BLANK, BOTH, 0, every_other_page, LOCAL_AND_REMOTE, HELPED },
	{ "pages that were only read", SMALL, PRIVATE | BLANK, BOTH, 0, reads, LOCAL_AND_REMOTE, ALONE },
	{ "a page without rights inside", SMALL, PRIVATE | BLANK, BOTH, 0, unreadable_inside, LOCAL_AND_REMOTE, ALONE },
	{ "a guard page inside", SMALL, PRIVATE | BLANK, BOTH, 0, guarded, LOCAL_AND_REMOTE, HELPED },
	{ "anonymous memory that cannot be written", UNDECIDED, PRIVATE | BLANK, PROT_READ, 0, NULL, READ_ONLY, ALONE },
	{ "memfd, mapped for reading, registered for writing", MEMFD, SHARED, PROT_READ, SIZE, NULL, LOCAL_AND_REMOTE, ALONE },
	{ "memfd, private", MEMFD, PRIVATE, BOTH, SIZE, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "memfd, shorter than its mapping", MEMFD, SHARED, BOTH, SIZE / 2, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "memfd, every fourth page touched", MEMFD, SHARED, BOTH, SIZE, every_fourth_page, LOCAL_AND_REMOTE, HELPED },
	{ "shared anonymous memory", UNDECIDED, SHARED | BLANK, BOTH, 0, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "System V shared memory", SYSTEM_V, SHARED, BOTH, 0, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "tmpfs", TMPFS, SHARED, BOTH, 256, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "tmpfs with just enough room", TMPFS, SHARED, BOTH, 19, NULL, LOCAL_AND_REMOTE, ALONE },
	{ "tmpfs with too little room", TMPFS, SHARED, BOTH, 8, NULL, LOCAL_AND_REMOTE, ALONE },
	{ "a file, private", IN_FILE, PRIVATE, BOTH, SIZE, NULL, LOCAL_AND_REMOTE, EITHER },
	{ "a file, private, mapped for reading", IN_FILE, PRIVATE, PROT_READ, SIZE, NULL, READ_ONLY, EITHER },
	{ "a file, shared", IN_FILE, SHARED, BOTH, SIZE, NULL, LOCAL_AND_REMOTE, ALONE },
	{ "a file, shared, mapped for reading", IN_FILE, SHARED, PROT_READ, SIZE, NULL, READ_ONLY, EITHER },
	{ "huge pages, private", UNDECIDED, PRIVATE | BLANK | LARGE_PAGES, BOTH, 0, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "huge pages, memfd", MEMFD, SHARED | LARGE_PAGES, BOTH, SIZE, NULL, LOCAL_AND_REMOTE, HELPED },
	{ "memory of two kinds", SMALL, PRIVATE | BLANK, BOTH, 0, half_a_memfd, LOCAL_AND_REMOTE, ALONE },
	{ "a page without the right to write at the end", SMALL, PRIVATE | BLANK, BOTH, 0, read_only_end, LOCAL_AND_REMOTE, ALONE },
	{ "a hole at the end", SMALL, PRIVATE | BLANK, BOTH, 0, hole_at_end, LOCAL_AND_REMOTE, ALONE },
	{ "the program's userfaultfd, missing pages", SMALL, PRIVATE | BLANK, BOTH, 0, watched, LOCAL_AND_REMOTE, ALONE },
	{ "the right of windows", SMALL, PRIVATE | BLANK, BOTH, 0, NULL, IBV_ACCESS_MW_BIND, HELPED },
	{ "remote write without local write", SMALL, PRIVATE | BLANK, BOTH, 0, NULL, IBV_ACCESS_REMOTE_WRITE, ALONE },
	{ "on-demand paging", SMALL, PRIVATE | BLANK, BOTH, 0, NULL, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND, ALONE },
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

/* The kinds that other tests than each_kind() use. */
static const struct kind *const anonymous = &kinds[0], *const memfd = &kinds[1];

/* A file with content, which must be read again: it is dropped from the page cache. */
static int file(void)
{
	char name[] = "/var/tmp/prefault-XXXXXX", *block = malloc(MIB);
	int made = mkstemp(name);

	must(made >= 0 && unlink(name) == 0 && block);
	for (int n = 0; n < SIZE / MIB; n++) {
		memset(block, 'a' + n % 26, MIB);
		must(write(made, block, MIB) == MIB);
	}
	must(fsync(made) == 0);
	free(block);
	posix_fadvise(made, 0, 0, POSIX_FADV_DONTNEED);
	return made;
}

static int in_tmpfs(long mib)
{
	char path[64], size[32];

	strcpy(folder, "/tmp/prefault-XXXXXX");
	must(mkdtemp(folder));
	snprintf(size, sizeof(size), "size=%ldm", mib);
	if (mount("tmpfs", folder, "tmpfs", 0, size)) {
		must(rmdir(folder) == 0);
		folder[0] = 0;
		return -1;
	}
	snprintf(path, sizeof(path), "%s/file", folder);
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static char *system_v(void)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	char *memory = id < 0 ? MAP_FAILED : shmat(id, NULL, 0);

	must(id < 0 || shmctl(id, IPC_RMID, NULL) == 0);
	return memory;
}

/* Memory of that kind; NULL if this machine lacks such memory. */
static char *make(const struct kind *kind)
{
	const int advice = kind->from == SMALL ? MADV_NOHUGEPAGE : kind->from == HUGE_WANTED ? MADV_HUGEPAGE : MADV_NORMAL;
	char *memory;

	switch (kind->from) {
	case MEMFD: fd = memfd_create("kinds", MFD_CLOEXEC | (kind->flags & LARGE_PAGES ? MFD_HUGETLB : 0)); break;
	case TMPFS: fd = in_tmpfs(kind->size); break;
	case IN_FILE: fd = file(); break;
	default: break;
	}
	if (!(kind->flags & BLANK) && kind->from != SYSTEM_V) {
		if (fd < 0 || ftruncate(fd, kind->from == TMPFS ? SIZE : kind->size))
			return NULL;
		usleep(20000); /* the clock of the file system */
	}
	memory = kind->from == SYSTEM_V ? system_v() :
		 kind->flags & BLANK ? mmap(NULL, SIZE, kind->protection, kind->flags, -1, 0) :
		 mmap(NULL, SIZE, kind->protection, kind->flags & ~LARGE_PAGES, fd, 0);
	if (memory == MAP_FAILED)
		return NULL;
	/* A kernel without huge pages knows no advice about them. */
	must(advice == MADV_NORMAL || madvise(memory, SIZE, advice) == 0 || advice == MADV_HUGEPAGE);
	return kind->prepare && !kind->prepare(memory) ? NULL : memory;
}

/* Ends the memory, and the file of its kind. */
static void unmake(char *memory)
{
	if (memory && munmap(memory, SIZE))
		must(shmdt(memory) == 0);
	if (fd >= 0)
		must(close(fd) == 0);
	fd = -1;
	if (folder[0])
		must(umount(folder) == 0 && rmdir(folder) == 0);
	folder[0] = 0;
}

static struct ibv_pd *open_pd(void)
{
	const char *why;

	if (getenv("CHECK_DEVICE"))
		return domain_of_device();
	why = stub_open(STUB_UMEM);
	if (why)
		skip_all(why);
	return stub_pd();
}

static struct stat status(void)
{
	struct stat of = { 0 };

	if (fd >= 0)
		must(fstat(fd, &of) == 0);
	return of;
}

#define NONE "this machine has none\n"

/* Registers all but the first and last page. Tells the number of threads, and what is the same without them. */
static void look(struct ibv_pd *pd, const struct kind *kind, char *memory)
{
	bool of_copies = kind->from == MEMFD && kind->flags == PRIVATE;
	struct stat before = status(), after;
	long pages = populated(memory, SIZE), outside;
	uint64_t sum = 0;
	struct ibv_mr *mr;

	started = 0;
	errno = 0;
	mr = ibv_reg_mr(pd, memory + PAGE, SIZE - 2 * PAGE, kind->access);
	dprintf(3, "%d %s, %ld pages before", started, mr ? "registered" : strerrorname_np(errno), pages);
	after = status();
	outside = populated(memory, PAGE) + populated(memory + SIZE - PAGE, PAGE);
	/* Nothing reports a guard page before the pin reaches it. */
	if (kind->prepare != guarded)
		dprintf(3, ", %ld afterwards", populated(memory, SIZE) - outside);
	/* A transparent huge page covers the pages beside the memory too, and whether one is free is chance. */
	if ((kind->from != HUGE_WANTED && kind->from != UNDECIDED) || kind->flags & LARGE_PAGES)
		dprintf(3, ", %ld beside it", outside);
	/* Pages of the file that were only copied are not mapped, and the kernel may drop them. */
	dprintf(3, ", blocks of the file: %ld",
		of_copies ? after.st_blocks > (SIZE - 2 * PAGE) / 512 : (long)after.st_blocks);
	dprintf(3, ", its time %s",
		memcmp(&before.st_mtim, &after.st_mtim, sizeof(after.st_mtim)) ? "changes" : "stays");
	if (mr)
		must(ibv_dereg_mr(mr) == 0);
	for (size_t at = 0; mr && at < SIZE; at += 1024)
		sum = sum * 31 + (unsigned char)memory[at];
	dprintf(3, ", contents %#lx\n", sum);
}

static int measure(void)
{
	struct ibv_pd *pd = open_pd();

	for (int n = 0; n < KINDS; n++) {
		char *memory = make(&kinds[n]);

		if (memory)
			look(pd, &kinds[n], memory);
		else
			dprintf(3, NONE);
		unmake(memory);
	}
	return 0;
}

/* What a program with this setting wrote, a line for each kind. */
static FILE *measured(const char *setting)
{
	int results = memfd_create("results", 0);

	must(dup2(results, 3) == 3);
	is(once_more("measure", (const char *[]){ setting, NULL }), 0, "with %s the program ends by itself", setting);
	must(lseek(results, 0, SEEK_SET) == 0);
	return fdopen(dup(results), "r");
}

static void each_kind(void)
{
	FILE *without = measured("RDMAMR_PREFAULT=0"), *with = measured("RDMAMR_PREFAULT=2");

	for (int n = 0; n < KINDS; n++) {
		char alone[256] = "", helped[256] = "";

		case_begin("%s", kinds[n].name);
		ok(fgets(alone, sizeof(alone), without) && fgets(helped, sizeof(helped), with), "it has a result");
		if (!strcmp(alone, NONE)) {
			case_skip("this machine has none");
			continue;
		}
		if (!ok(!strcmp(strchrnul(alone, ' '), strchrnul(helped, ' ')), "it ends as without threads"))
			printf("# without: %s# with: %s", alone, helped);
		is(atoi(alone), 0, "no thread without the setting");
		if (kinds[n].helped != EITHER)
			is(atoi(helped), kinds[n].helped == HELPED, "threads that help");
		case_end();
	}
}

/* Another thread changes the memory while it is registered. */
static char *shaken;
static _Atomic bool stop;

static void *unmaps(void *argument)
{
	usleep(500);
	munmap(shaken + SIZE / 2, SIZE / 4);
	return argument;
}

static void *truncates(void *argument)
{
	while (!stop)
		must(ftruncate(fd, SIZE / 2) == 0 && ftruncate(fd, SIZE) == 0);
	return argument;
}

static void shaken_memory(const char *what, const struct kind *kind, void *(*change)(void *))
{
	struct ibv_pd *pd = open_pd();
	int other = 0, err = 0;

	for (int round = 0; round < ROUNDS; round++) {
		pthread_t thread;
		struct ibv_mr *mr;

		stop = false;
		shaken = make(kind);
		must(shaken);
		thread = must_start(change, NULL);
		errno = 0;
		mr = ibv_reg_mr(pd, shaken, SIZE, LOCAL_AND_REMOTE);
		if (!mr && errno != EFAULT)
			other++, err = errno;
		stop = true;
		must_join(thread);
		must(!mr || ibv_dereg_mr(mr) == 0);
		unmake(shaken);
	}
	errno = err;
	ok(!other, "%s meanwhile: registered or EFAULT, and no signal", what);
}

/* The folder in which memory cgroups are made, in each version of the interface. */
static const struct {
	const char *folder, *limit;
} groups[] = {
	{ "/sys/fs/cgroup/memory/prefault-kinds", "memory.limit_in_bytes" },
	{ "/sys/fs/cgroup/prefault-kinds", "memory.max" },
};

/* Registers memory in a new group with that limit. The program's status (limited), or -1 without such groups. */
static int in_group(long limit, const char *setting)
{
	const char *folder = NULL;
	char group[64], path[128];
	bool gone = false;
	int status;

	for (size_t n = 0; n < sizeof(groups) / sizeof(*groups) && !folder; n++) {
		if (mkdir(groups[n].folder, 0700))
			continue;
		snprintf(path, sizeof(path), "%s/%s", groups[n].folder, groups[n].limit);
		if (write_to(path, "%ld\n", limit))
			folder = groups[n].folder;
		else
			rmdir(groups[n].folder);
	}
	if (!folder)
		return -1;
	snprintf(group, sizeof(group), "CHECK_GROUP=%s/cgroup.procs", folder);
	status = once_more("limited", (const char *[]){ setting, group, NULL });
	/* A process that has ended leaves its group a moment later. */
	must(comes(gone || (gone = rmdir(folder) == 0)));
	return status;
}

static int limited(void)
{
	struct ibv_pd *pd = write_to(getenv("CHECK_GROUP"), "%d\n", getpid()) ? open_pd() : NULL;
	char *memory = make(anonymous);
	struct ibv_mr *mr;

	must(pd);
	mr = ibv_reg_mr(pd, memory, SIZE, LOCAL_AND_REMOTE);
	return (mr ? 1 : 0) | (started ? 2 : 0);
}

static void cgroup(void)
{
	static const char without[] = "RDMAMR_PREFAULT=0", with[] = "RDMAMR_PREFAULT=2";
	int alone = in_group(1024L * MIB, without);

	if (alone < 0) {
		skip("a memory cgroup", "no group can be made here");
		return;
	}
	is(alone, 1, "a memory cgroup with room: registered");
	is(in_group(1024L * MIB, with), 3, "and with help");
	is(in_group(3L * SIZE, with), 1, "with little room: registered without helpers");
	alone = in_group(SIZE / 2, without);
	is(in_group(SIZE / 2, with), alone, "with too little room: it ends as without help, %d", alone);
}

/* The kinds need some huge pages, which are given back at the end. */
#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"

static void give_back(void) { write_to(NR_HUGEPAGES, "0"); }

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "measure"))
		return measure();
	if (argc > 1 && !strcmp(argv[1], "limited"))
		return limited();
	if (field_of("/proc/meminfo", "HugePages_Total") == 0) {
		write_to(NR_HUGEPAGES, "%d", SIZE / HUGE + 1);
		atexit(give_back);
	}
	each_kind();
	shaken_memory("another thread unmaps memory", anonymous, unmaps);
	shaken_memory("another thread truncates the file", memfd, truncates);
	cgroup();
	return done_testing();
}
