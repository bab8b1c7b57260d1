/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that the kernel cannot pin, of each kind that can be made here: the reason is true.
 *
 * Usage: unpinned [WORD]: those of special[] whose names have this word, which must be there
 */
#include "../lib/device.h"
#include "../lib/program.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define HUGE ((size_t)2 << 20)
#define LARGE (64 * HUGE) /* more than the machine's 16 pages */
#define RW (PROT_READ | PROT_WRITE)
#define WRITE IBV_ACCESS_LOCAL_WRITE
#define READ IBV_ACCESS_REMOTE_READ
#define ON_DEMAND (WRITE | IBV_ACCESS_ON_DEMAND)
#define PLACE "/mnt/unpinned"

static struct ibv_pd *pd;

static void *anonymous(int protection, int flags, size_t length)
{
	return mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* A file of that length, which nobody has open, mapped to another length. */
static void *of_file(int fd, size_t length, size_t mapped, int protection, int flags)
{
	void *memory;

	if (fd < 0 || ftruncate(fd, (off_t)length))
		return MAP_FAILED;
	memory = mmap(NULL, mapped, protection, flags, fd, 0);
	close(fd);
	return memory;
}

static int file_at(const char *path) { return open(path, O_RDWR | O_CREAT | O_TRUNC, 0600); }

static bool has_ext4;
static int file_on_ext4(void) { return has_ext4 ? file_at(PLACE "/ext4/file") : -1; }

static void *no_access(void) { return anonymous(PROT_NONE, 0, PAGE); }
static void *executed(void) { return anonymous(PROT_EXEC, 0, PAGE); }
static void *written_only(void) { return anonymous(PROT_WRITE, 0, PAGE); }
static void *read_only(void) { return anonymous(PROT_READ, 0, PAGE); }
static void *huge_read_only(void) { return anonymous(PROT_READ, MAP_HUGETLB, HUGE); }
static void *huge(void) { return anonymous(RW, MAP_HUGETLB | MAP_NORESERVE, LARGE); }

/* A child has the same huge pages, and none is left for a copy. */
#define FORKED (4 * HUGE)
static pid_t child;

static void *huge_of_a_fork(void)
{
	char *memory = huge();

	if (memory == MAP_FAILED)
		return memory;
	/* It takes all that there are, and then fails. */
	madvise(memory, LARGE, MADV_POPULATE_WRITE);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	munmap(memory + FORKED, LARGE - FORKED);
	return child < 0 ? MAP_FAILED : memory;
}

static void *shared_read_only(void) { return of_file(memfd_create("m", 0), PAGE, PAGE, PROT_READ, MAP_SHARED); }
static void *short_memfd(void) { return of_file(memfd_create("m", 0), PAGE, 3 * PAGE, RW, MAP_SHARED); }
static void *full_tmpfs(void) { return of_file(file_at(PLACE "/tmpfs/full"), 32 * PAGE, 32 * PAGE, RW, MAP_SHARED); }
static void *on_ext4(void) { return of_file(file_on_ext4(), 2 * PAGE, 2 * PAGE, RW, MAP_SHARED); }
static void *short_on_ext4(void) { return of_file(file_on_ext4(), PAGE, 3 * PAGE, RW, MAP_SHARED); }
static void *secret(void) { return of_file((int)syscall(447, 0), PAGE, PAGE, RW, MAP_SHARED); }

/* The mount has two pages, and the pool has more. */
static void *full_huge_mount(void)
{
	return of_file(file_at(PLACE "/two/file"), 4 * HUGE, 4 * HUGE, RW, MAP_SHARED | MAP_NORESERVE);
}

static void *block_device(void)
{
	FILE *set = popen("cd " PLACE " && truncate -s 1M blocks.image && losetup -f --show blocks.image", "r");
	char name[64] = "";
	void *memory;
	int fd;

	must(set);
	if (!fgets(name, sizeof(name), set))
		name[0] = '\0';
	pclose(set);
	name[strcspn(name, "\n")] = '\0';
	fd = open(name, O_RDWR);
	memory = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 0);
	close(fd);
	return memory;
}

/* The kernel lengthens such a file to its mapping. */
static void *short_huge(void)
{
	int fd = memfd_create("h", MFD_HUGETLB);
	void *memory = of_file(dup(fd), HUGE, 2 * HUGE, RW, MAP_SHARED | MAP_NORESERVE);

	return memory == MAP_FAILED || ftruncate(fd, HUGE) || close(fd) ? MAP_FAILED : memory;
}

/* A file on a tmpfs that is no /dev/shm, and nothing behind it. */
static void *tmpfs_and_hole(void)
{
	char *memory = of_file(file_at(PLACE "/tmpfs/whole"), PAGE, 3 * PAGE, RW, MAP_SHARED);

	return memory == MAP_FAILED || munmap(memory + PAGE, 2 * PAGE) ? MAP_FAILED : memory;
}

static void returns(int signal) { (void)signal; }

static void *poisoned(void)
{
	char *memory = anonymous(RW, 0, 3 * PAGE);

	memory[PAGE] = 1;
	/* The kernel tells the process of the error. */
	signal(SIGBUS, returns);
	return madvise(memory + PAGE, PAGE, MADV_HWPOISON) ? MAP_FAILED : memory;
}

static void *watched(void)
{
	char *memory = anonymous(RW, 0, 3 * PAGE);
	struct uffdio_register range = { { (uintptr_t)memory, 3 * PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
	int fd = open_userfaultfd(0);

	memory[0] = 1;
	return fd < 0 || ioctl(fd, UFFDIO_REGISTER, &range) ? MAP_FAILED : memory;
}

/* The userfaultfd hears only of the program's own writes. */
static void *protected(void)
{
	char *memory = anonymous(RW, 0, 3 * PAGE);
	struct uffdio_register range = { { (uintptr_t)memory, 3 * PAGE }, UFFDIO_REGISTER_MODE_WP, 0 };
	struct uffdio_writeprotect one = { { (uintptr_t)memory + PAGE, PAGE }, UFFDIO_WRITEPROTECT_MODE_WP };
	int fd = open_userfaultfd(UFFD_FEATURE_PAGEFAULT_FLAG_WP);

	memset(memory, 1, 3 * PAGE);
	return fd < 0 || ioctl(fd, UFFDIO_REGISTER, &range) || ioctl(fd, UFFDIO_WRITEPROTECT, &one) ? MAP_FAILED : memory;
}

static void *closed_key(void)
{
	char *memory = anonymous(RW, 0, PAGE);
	int key = pkey_alloc(0, PKEY_DISABLE_WRITE);

	memory[0] = 1;
	return key < 0 || pkey_mprotect(memory, PAGE, RW, key) ? MAP_FAILED : memory;
}

/* The process's control group may have one huge page. */
static void *huge_in_group(void)
{
	mkdir(PLACE "/groups", 0700);
	if (mount("none", PLACE "/groups", "cgroup2", 0, NULL) || mount(PLACE "/groups", "/sys/fs/cgroup", NULL, MS_BIND, NULL) ||
	    !write_to(PLACE "/groups/cgroup.subtree_control", "+hugetlb"))
		return MAP_FAILED;
	mkdir(PLACE "/groups/unpinned", 0700);
	if (!write_to(PLACE "/groups/unpinned/hugetlb.2MB.max", "2M") || !write_to(PLACE "/groups/unpinned/cgroup.procs", "0"))
		return MAP_FAILED;
	return anonymous(RW, MAP_HUGETLB | MAP_NORESERVE, 4 * HUGE);
}

/* Persistent memory. */
static void *dax_file(void)
{
	static const char commands[] = "modprobe -a nd_e820 nd_pmem ext4 && mkdir -p " PLACE "/dax && "
				       "mkfs.ext4 -q -F -b 4096 /dev/pmem0 && mount -o dax /dev/pmem0 " PLACE "/dax";

	return system(commands) ? MAP_FAILED : of_file(file_at(PLACE "/dax/file"), 16 * PAGE, 16 * PAGE, RW, MAP_SHARED);
}

static void *dax_file_again(void)
{
	return of_file(file_at(PLACE "/dax/file"), 16 * PAGE, 16 * PAGE, RW, MAP_SHARED);
}

/* Before the kernel pins a page of a movable zone it moves the page, and cannot if a pipe holds it. */
static char *piped;
static int ends[2];

static void *in_a_pipe(void)
{
	struct iovec part = { piped = anonymous(RW, 0, 64 * PAGE), PAGE };

	memset(piped, 1, 64 * PAGE);
	return pipe2(ends, O_CLOEXEC) || vmsplice(ends[1], &part, 1, 0) != PAGE ? MAP_FAILED : piped;
}

static void *out_of_it(void) { return close(ends[0]) || close(ends[1]) ? MAP_FAILED : piped; }

#define SHORT "the file ends at byte 4096 of the 12288 that are registered ("
#define NO_HUGE "no free huge page of 2 MiB: nr_hugepages 16, free 0, reserved 0"

/* The errno of Linux 6.1, and of later kernels; 0: it is registered. src/mr/unpinned.rs has more short files, and guards. */
static const struct kind {
	const char *name;
	void *(*make)(void);
	size_t length;
	int access, old, now;
	const char *words;
} kinds[] = {
	{ "no access", no_access, PAGE, WRITE, EFAULT, EFAULT, "is not accessible (PROT_NONE)" },
	{ "execution only", executed, PAGE, WRITE, EFAULT, EFAULT, "is mapped for execution only" },
	{ "written only, for reading", written_only, PAGE, READ, 0, EFAULT, "without read access (PROT_WRITE alone)" },
	{ "read-only, for writing", read_only, PAGE, WRITE, EFAULT, EFAULT, "is mapped read-only, and the access flags" },
	{ "shared read-only, for reading", shared_read_only, PAGE, READ, EFAULT, 0, "kernels before 6.2 cannot pin even for reading" },
	{ "huge read-only, for reading", huge_read_only, HUGE, READ, EFAULT, 0, "kernels before 6.2 cannot pin even for reading" },
	{ "a memfd that is too short", short_memfd, 3 * PAGE, WRITE, EFAULT, EFAULT, SHORT "/memfd:m" },
	{ "a file on ext4 that is too short, for reading", short_on_ext4, 3 * PAGE, READ, EFAULT, EFAULT, SHORT PLACE "/ext4/" },
	{ "a file on ext4 that is too short, for writing", short_on_ext4, 3 * PAGE, WRITE, EFAULT, EFAULT, SHORT PLACE "/ext4/" },
	{ "a huge memfd that is too short", short_huge, 2 * HUGE, WRITE, EFAULT, EFAULT, "ends at byte 2097152 of the 4194304 that" },
	{ "a whole file on ext4, for writing", on_ext4, 2 * PAGE, WRITE, 0, EFAULT, ") on ext4 is a shared mapping of a file, which kernels from 6.5 do not pin" },
	{ "a tmpfs, and nothing behind its file", tmpfs_and_hole, 3 * PAGE, WRITE, EFAULT, EFAULT, "nothing is mapped at" },
	{ "a full tmpfs", full_tmpfs, 32 * PAGE, WRITE, EFAULT, EFAULT, "is full: 0 of 64 KiB are free" },
	{ "a full mount of huge pages", full_huge_mount, 4 * HUGE, WRITE, EFAULT, EFAULT, "is full: 0 of 4096 KiB are free" },
	{ "a block device, for writing", block_device, 2 * PAGE, WRITE, 0, EFAULT, "is a shared mapping of a block device" },
	{ "a block device, for reading", block_device, 2 * PAGE, READ, 0, 0, "" },
	{ "anonymous huge pages", huge, LARGE, WRITE, EFAULT, EFAULT, NO_HUGE },
	{ "huge pages of a fork", huge_of_a_fork, FORKED, WRITE, EFAULT, EFAULT, NO_HUGE },
	{ "huge pages of a group", huge_in_group, 4 * HUGE, WRITE, EFAULT, EFAULT, "a cgroup has 2048 of 2048 KiB of them (hugetlb.*.max)" },
	{ "secret memory", secret, PAGE, WRITE, EFAULT, EFAULT, "is secret memory (memfd_secret)" },
	{ "missing pages of a userfaultfd", watched, 3 * PAGE, WRITE, EFAULT, EFAULT, "likely: the page at" },
	{ "pages that a userfaultfd protects", protected, 3 * PAGE, WRITE, EFAULT, EFAULT, "is write-protected by a userfaultfd" },
	{ "a poisoned page", poisoned, 3 * PAGE, WRITE, EFAULT, EFAULT, "is poisoned: by a memory error" },
	{ "a closed protection key", closed_key, PAGE, WRITE, EFAULT, EFAULT, "has a protection key that is closed" },
};

/* Those of a machine that has such memory by its command line. */
static const struct kind special[] = {
	{ "a file in DAX mode", dax_file, 16 * PAGE, WRITE, 0, EOPNOTSUPP, "(" PLACE "/dax/file) is of a file in DAX mode (statx), "
	  "which cannot be pinned for long: use device DAX or on-demand paging" },
	{ "a file in DAX mode, on demand", dax_file_again, 16 * PAGE, ON_DEMAND, 0, 0, "" },
	{ "a page that cannot be moved", in_a_pipe, 64 * PAGE, WRITE, ENOMEM, ENOMEM, "likely a page of a movable zone" },
	{ "a page that can be moved again", out_of_it, 64 * PAGE, WRITE, 0, 0, "" },
};

/* File systems of this process's own. */
static void mount_all(void)
{
	static const char commands[] = "cd " PLACE " && modprobe -q loop; modprobe -q ext4; truncate -s 8M disk.image && "
				       "mkfs.ext4 -q disk.image && mount -o loop disk.image ext4";

	must(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	mkdir(PLACE, 0700);
	must(mount("none", PLACE, "tmpfs", 0, NULL) == 0);
	must(mkdir(PLACE "/tmpfs", 0700) == 0 && mkdir(PLACE "/ext4", 0700) == 0);
	must(mount("none", PLACE "/tmpfs", "tmpfs", 0, "size=64k") == 0);
	must(mkdir(PLACE "/two", 0700) == 0 && mount("none", PLACE "/two", "hugetlbfs", 0, "size=4M") == 0);
	has_ext4 = system(commands) == 0;
}

static void check(const struct kind *kind, bool old, bool must_be_there)
{
	int err = old ? kind->old : kind->now;
	char *memory = kind->make();
	struct ibv_mr *mr;

	if (memory == MAP_FAILED) {
		must(!must_be_there);
		skip(kind->name, "it cannot be made here");
		return;
	}
	errno = 0;
	mr = ibv_reg_mr(pd, memory, kind->length, kind->access);
	is(mr ? 0 : errno, err, "%s: the errno", kind->name);
	if (!mr)
		ok(strstr(rdmamr_last_reason(), kind->words) != NULL, "%s: %s", kind->name, rdmamr_last_reason());
	else
		must(ibv_dereg_mr(mr) == 0);
	if (kind->make != in_a_pipe)
		munmap(memory, kind->length);
	if (child > 0)
		must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	child = 0;
}

/* Soft-RoCE of Linux 7.2 makes one table for all pages of a region. */
static void more_than_a_gib(void)
{
	size_t length = ((size_t)1 << 30) + PAGE;
	char *memory = anonymous(RW, MAP_NORESERVE, length);
	struct ibv_mr *mr;

	must(memory != MAP_FAILED);
	madvise(memory, length, MADV_HUGEPAGE);
	mr = ibv_reg_mr(pd, memory, length - PAGE, WRITE);
	ok(mr && ibv_dereg_mr(mr) == 0, "1 GiB is registered");
	errno = 0;
	ok(!ibv_reg_mr(pd, memory, length, WRITE) && errno == ENOMEM, "a page more is not");
	ok(strstr(rdmamr_last_reason(), "at most 1 GiB at once") != NULL, "a page more: %s", rdmamr_last_reason());
}

int main(int argc, char **argv)
{
	const bool old = kernel_is_before(6, 2);

	if (getuid())
		skip_all("only root mounts");
	pd = domain_of_device();
	mount_all();
	for (size_t n = 0; argc > 1 && n < sizeof(special) / sizeof(*special); n++)
		if (strstr(special[n].name, argv[1]))
			check(&special[n], old, true);
	if (argc > 1)
		return done_testing();
	for (size_t n = 0; n < sizeof(kinds) / sizeof(*kinds); n++)
		check(&kinds[n], old, false);
	if (!kernel_is_before(7, 2) && kernel_is_before(7, 3))
		more_than_a_gib();
	else
		skip("more than 1 GiB", "it is Linux 7.2 that refuses it");
	return done_testing();
}
