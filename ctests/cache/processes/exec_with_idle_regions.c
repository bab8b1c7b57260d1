/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * exec in all its forms: by a child of fork, of vfork, of posix_spawn, by a daemon's parent, and by
 * the process itself with idle regions. The new program inherits no descriptor of the library, no
 * process hangs, and no region stays registered. A child of vfork, which is another process in this
 * very address space, does not take the cache for dead.
 */
#include "../../lib/observe.h"
#include <signal.h>
#include <spawn.h>

extern char **environ;

static struct pair pair;
static char *memory;

/* The descriptors that are open, as a set of those below 64; higher ones are an error. */
static uint64_t descriptors(void)
{
	uint64_t set = 0;

	for (int fd = 0; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0) {
			must(fd < 64);
			set |= 1ULL << fd;
		}
	return set;
}

static int status_of(pid_t pid)
{
	int status;

	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int regions_of(struct ibv_context *context, pid_t pid)
{
	static struct kernel_region list[MOST_REGIONS];
	int count = device_regions(context, list, MOST_REGIONS), own = 0;

	for (int n = 0; n < count; n++)
		own += list[n].pid == (uint32_t)pid;
	return own;
}

/* A started program's view: 0 if all is as it should be. */
static int started(const char *inherited)
{
	uint64_t extra = descriptors() & ~strtoull(inherited, NULL, 16);
	char link[64], name[256];

	for (int fd = 0; fd < 64; fd++) {
		ssize_t got;

		if (!(extra >> fd & 1))
			continue;
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		got = readlink(link, name, sizeof(name) - 1);
		printf("# inherited: %d, %.*s\n", fd, (int)(got < 0 ? 0 : got), name);
	}
	fflush(stdout);
	return (extra != 0) << 0 | (pinned() != 0) << 1 | (stats().idle != 0) << 2 |
	       (regions_of(open_device(), getpid()) != 0) << 3;
}

static char first[32];
static char *arguments[] = { (char *)(uintptr_t)"started", (char *)(uintptr_t)"started", first, NULL };

static void by_fork(void)
{
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		execv("/proc/self/exe", arguments);
		_exit(127);
	}
	is(status_of(pid), 0, "fork and exec: no descriptor is inherited");
	still(&pair, "after fork and exec", memory, PAGE);
}

static void by_spawn(void)
{
	pid_t pid;

	must(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
	is(status_of(pid), 0, "posix_spawn: no descriptor is inherited");
	still(&pair, "after posix_spawn", memory, PAGE);
	is(system("exit 7"), 7 << 8, "system");
	still(&pair, "after system", memory, PAGE);
}

static void by_vfork(void)
{
	pid_t pid = vfork();

	must(pid >= 0);
	if (!pid) {
		execv("/proc/self/exe", arguments);
		_exit(127);
	}
	is(status_of(pid), 0, "vfork and exec: no descriptor is inherited");
	still(&pair, "after vfork and exec", memory, PAGE);

	/* A process with another number unmaps its parent's memory. */
	pid = vfork();
	must(pid >= 0);
	if (!pid) {
		bool good = munmap(memory, PAGE) == 0 &&
			    mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
				 -1, 0) == memory;

		_exit(good ? 0 : 1);
	}
	is(status_of(pid), 0, "a child of vfork unmaps and maps");
	anew(&pair, "memory that a child of vfork has mapped", memory, PAGE);
	control(&pair, "after that", memory, PAGE);
	pid = vfork();
	must(pid >= 0);
	if (!pid)
		_exit(syscall(SYS_madvise, memory, PAGE, MADV_DONTNEED) ? 1 : 0);
	is(status_of(pid), 0, "another discards by a raw system call");
	anew(&pair, "memory that a child of vfork has discarded", memory, PAGE);
	control_later(&pair, "after that", memory, PAGE);
}

/* A daemon: the process that had the cache is gone, its child registers on a device of its own. */
static int becomes_daemon(int report)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int wrong = 0;

	alarm(DEADLOCK);
	relaxed_open(&pair);
	memory = pages(4);
	must(lands(&pair, memory, PAGE) && lands(&pair, memory + 2 * PAGE, PAGE));
	must(daemon(1, 1) == 0);
	alarm(DEADLOCK);
	wrong |= (munmap(memory, PAGE) != 0 || raw_munmap(memory + 2 * PAGE, PAGE) != 0) << 0;
	wrong |= (stats().idle != 0 || stats().hits != 0) << 1;
	context = open_device();
	pd = ibv_alloc_pd(context);
	memory = pages(1);
	for (int n = 0; n < 2; n++) {
		mr = pd ? register_region(pd, memory, PAGE, LOCAL_AND_REMOTE) : NULL;
		wrong |= (!mr || deregister_region(mr) != 0) << 2;
		wrong |= (kernel_regions(context) != 0 || stats().hits != 0) << 3;
	}
	wrong |= (ibv_flush_relaxed_mr(pd) != 0) << 4;
	wrong |= (ibv_dealloc_pd(pd) != 0 || ibv_close_device(context) != 0 || pinned() != 0) << 5;
	return write(report, &wrong, sizeof(wrong)) == sizeof(wrong) ? 0 : 1;
}

static void by_daemon(void)
{
	int report[2], wrong = -1;
	pid_t pid;

	must(pipe(report) == 0);
	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		char number[16];

		snprintf(number, sizeof(number), "%d", report[1]);
		execl("/proc/self/exe", "daemon", "daemon", number, (char *)NULL);
		_exit(127);
	}
	is(status_of(pid), 0, "the parent of a daemon is gone");
	close(report[1]);
	must(read(report[0], &wrong, sizeof(wrong)) == sizeof(wrong));
	is(wrong, 0, "the daemon unmaps and registers, plainly, on a device that it has opened");
	close(report[0]);
	still(&pair, "beside a daemon", memory, PAGE);
}

/* A process registers, and becomes another program with regions idle and in use. */
static int replaced(void)
{
	relaxed_open(&pair);
	memory = pages(4);
	must(lands(&pair, memory, PAGE) && register_region(pair.pd, memory + 2 * PAGE, PAGE, LOCAL_AND_REMOTE));
	must(stats().idle == 1 && pinned() > 0 && regions_of(pair.context, getpid()) > 2);
	execv("/proc/self/exe", arguments);
	return 127;
}

static void by_exec(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		execl("/proc/self/exe", "replaced", "replaced", first, (char *)NULL);
		_exit(127);
	}
	is(status_of(pid), 0, "exec with regions idle and in use: nothing is inherited, pinned or registered");
	still(&pair, "beside such a program", memory, PAGE);
	ok(regions_of(pair.context, getpid()) > 0, "which has regions by the same count");
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "started"))
		return started(argv[2]);
	if (argc > 2 && !strcmp(argv[1], "daemon"))
		return becomes_daemon(atoi(argv[2]));
	snprintf(first, sizeof(first), "%llx",
		 (unsigned long long)(argc > 2 ? strtoull(argv[2], NULL, 16) : descriptors()));
	alarm(DEADLOCK);
	if (argc > 2)
		return replaced();
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	as_root();
	relaxed_open(&pair);
	memory = pages(1);
	control(&pair, "before all", memory, PAGE);
	by_fork();
	by_spawn();
	by_vfork();
	by_daemon();
	by_exec();
	return relaxed_close(&pair);
}
