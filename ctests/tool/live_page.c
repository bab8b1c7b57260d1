/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The live page: which processes have a file of it, where, with which rights, and until when. An
 * obstacle to it costs the program nothing. ctests/tool/top.sh reads its content.
 *
 * The device is the stand-in (stub_device.h). Each part runs in a process of its own, whose
 * XDG_RUNTIME_DIR is a folder of this test.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "../lib/device.h"
#include "../lib/memory.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

static char base[64];

static const char *folder(void)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/rdmamr", getenv("XDG_RUNTIME_DIR") ?: base);
	return path;
}

/* The number of files, unfinished ones included; -1 without the folder. Also the last one's path. */
static int files(char *last)
{
	DIR *dir = opendir(folder());
	int count = 0;

	if (!dir)
		return -1;
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		count++;
		if (last)
			snprintf(last, 512, "%s/%s", folder(), entry->d_name);
	}
	closedir(dir);
	return count;
}

/* The number of this process's mappings of a page. */
static int mapped(void) { return maps_with("/rdmamr/") + maps_with("/rdmamr-0/"); }

static void has_device(void)
{
	static bool is_open;

	must(is_open || !stub_open(STUB_NOTHING));
	is_open = true;
}

static struct ibv_mr *registered(void)
{
	static char memory[4096];
	struct ibv_mr *mr;

	has_device();
	mr = ibv_reg_mr(stub_pd(), memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	must(mr);
	return mr;
}

static int registers(void)
{
	struct stat about;
	char path[512], name[128];
	struct ibv_mr *mr;
	pid_t child;
	int before;

	must(files(NULL) <= 0 && !mapped());
	has_device();
	before = entries("/proc/self/fd");
	mr = registered();
	must(files(path) == 1 && mapped() == 1 && entries("/proc/self/fd") == before);
	must(stat(folder(), &about) == 0 && (about.st_mode & 07777) == 0700);
	must(stat(path, &about) == 0 && about.st_mode == (S_IFREG | 0600) && about.st_uid == geteuid());
	snprintf(name, sizeof(name), "-%d-", getpid());
	must(strstr(path, name));
	child = must_fork();
	if (!child) {
		/* The child has no page of its parent's; its own appears, and disappears. */
		must(!mapped() && registered() && mapped() == 1 && files(NULL) == 2);
		exit(0);
	}
	must(child_status(child) == 0);
	must(files(path) == 1 && strstr(path, name));
	must(ibv_dereg_mr(mr) == 0);
	return 0;
}

static int makes_none(void)
{
	must(registered() && !mapped() && files(NULL) <= 0);
	return 0;
}

/* In the folder of this test: other programs may have pages elsewhere. */
static int makes_none_here(void)
{
	must(registered());
	return 0;
}

static int is_killed(void)
{
	registered();
	must(files(NULL) == 1);
	raise(SIGKILL);
	return 1;
}

static int forgets_limit(void)
{
	struct rlimit limit = { 4096, 4096 };

	must(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	return makes_none();
}

static int forgets_descriptors(void)
{
	struct rlimit limit = { 0, 0 };

	has_device();
	limit.rlim_cur = limit.rlim_max = (rlim_t)dup(0);
	close((int)limit.rlim_cur);
	must(setrlimit(RLIMIT_NOFILE, &limit) == 0 && registered() && files(NULL) <= 0);
	return 0;
}

static int is_full(void)
{
	if (mkdir(folder(), 0700) || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", folder(), "tmpfs", 0, "mode=0700,size=8k"))
		return 77;
	must(registered() && files(NULL) == 0);
	return 0;
}

static int replaces_itself(void)
{
	registered();
	must(files(NULL) == 1);
	execl("/proc/self/exe", "live_page", "killed_image", NULL);
	return 1;
}

/* The process image before the exec has left its file. */
static int after_exec(void)
{
	must(files(NULL) == 1 && !mapped() && registered() && files(NULL) == 1 && mapped() == 1);
	return 0;
}

static const struct { const char *name; int (*run)(void); } parts[] = {
	{ "registers", registers }, { "none", makes_none }, { "none_here", makes_none_here }, { "killed", is_killed },
	{ "limit", forgets_limit }, { "descriptors", forgets_descriptors }, { "full", is_full }, { "exec", replaces_itself },
	{ "killed_image", after_exec },
};

static int part(const char *name, const char *setting)
{
	char runtime[96];
	const char *settings[] = { runtime, setting, NULL };

	snprintf(runtime, sizeof(runtime), "XDG_RUNTIME_DIR=%s", base);
	return once_more(name, settings);
}

static void clear(void)
{
	char path[512];

	while (files(path) > 0)
		unlink(path);
	unlink(folder());
	rmdir(folder());
}

int main(int argc, char **argv)
{
	char other[128];
	int status;

	for (size_t n = 0; argc > 1 && n < sizeof(parts) / sizeof(parts[0]); n++)
		if (!strcmp(argv[1], parts[n].name))
			return parts[n].run();
	must(argc == 1);
	unsetenv("XDG_RUNTIME_DIR");
	strcpy(base, "/dev/shm/live_page.XXXXXX");
	must(mkdtemp(base));

	is(part("none", "RDMAMR_LIVE=0"), 0, "with RDMAMR_LIVE=0 there is no page");
	is(files(NULL), -1, "and no folder");
	is(part("registers", NULL), 0,
	   "a process that registers has a file of mode 0600 in a folder of mode 0700, and a child one of its own");
	is(files(NULL), 0, "no file is left at the exit");
	is(part("killed", NULL), 128 + SIGKILL, "a process is killed");
	is(files(NULL), 1, "its file stays");
	is(part("exec", NULL), 0, "a program that replaces itself replaces its file");
	is(files(NULL), 0, "the next process has removed the killed one's file");
	is(part("limit", NULL), 0, "RLIMIT_FSIZE allows no file: the program registers, and gets no SIGXFSZ");
	is(part("descriptors", NULL), 0, "no descriptor is left: the program registers");
	clear();

	snprintf(other, sizeof(other), "%s/other", base);
	must(mkdir(other, 0700) == 0 && symlink(other, folder()) == 0);
	is(part("none_here", NULL), 0, "the folder is a link: the program registers");
	is(rmdir(other), 0, "and no file is made behind the link");
	clear();
	must(mkdir(folder(), 0700) == 0 && chmod(folder(), 0755) == 0);
	is(part("none_here", NULL), 0, "others may read the folder: the program registers");
	is(files(NULL), 0, "and no file is made there");
	clear();
	if (geteuid() == 0) {
		must(mkdir(folder(), 0700) == 0 && chown(folder(), 65534, 65534) == 0);
		is(part("none_here", NULL), 0, "the folder is another user's: the program registers");
		is(files(NULL), 0, "and no file is made there");
		clear();
		status = part("full", NULL);
		if (status == 77)
			skip("a full file system", "this process can mount nothing");
		else
			is(status, 0, "a full file system: the program registers, and no file is made");
	} else {
		skip("a folder of another user, a full file system", "needs root");
	}
	clear();
	must(rmdir(base) == 0);
	return done_testing();
}
