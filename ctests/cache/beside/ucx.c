/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * UCX watches memory too, for its own cache: it overwrites the first instructions of libc's memory
 * calls, or of the library that interposes them ("bistro"), or the tables by which they are called
 * ("reloc"). In one process with it, in either order of loading, UCX must see every change as
 * without the library, and the cache must never hand out a stale region, even if UCX has disabled
 * its hooks.
 *
 * The program starts itself anew for each mode and order of loading, with the library preloaded
 * (not linked: each is tried without the library first). The device is that of stub_device.h.
 */
#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/stub_device.h"

/* From UCX's <ucm/api/ucm.h>, so that the program compiles without it. */
enum { UCM_EVENT_VM_UNMAPPED = 1 << 17 };
union ucm_event {
	struct {
		void *address;
		size_t size;
	} vm_unmapped;
	char room[128];
};
typedef void (*ucm_callback)(int type, union ucm_event *event, void *argument);
typedef signed char (*ucm_set_handler)(int events, int priority, ucm_callback callback, void *argument);

enum { SIZE = 8 * PAGE };
static const char *const modes[] = { "bistro", "reloc" };
static const char *const orders[] = {
	"preloaded in front", "preloaded behind", "loaded before the cache's first region", "loaded after it",
};

static bool pins;
static char *watched;          /* of SIZE: UCX must see changes here */
static volatile long seen;     /* the number of changes that it saw */

static void on_unmapped(int type, union ucm_event *event, void *argument)
{
	uintptr_t start = (uintptr_t)event->vm_unmapped.address, end = start + event->vm_unmapped.size;

	(void)type, (void)argument;
	if (start < (uintptr_t)watched + SIZE && (uintptr_t)watched < end)
		seen = seen + 1;
}

/* The output of a started program goes to its starter. */
__attribute__((format(printf, 2, 3)))
static void say(bool passed, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	printf(passed ? "good " : "bad ");
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

static bool lands(char *memory, bool *anew)
{
	static unsigned char value;
	long before = stub_registered();
	struct ibv_mr *mr;
	bool good = true;

	while (!(mr = ibv_reg_mr_relaxed(stub_pd(), memory, SIZE, IBV_ACCESS_LOCAL_WRITE)))
		must(errno == EAGAIN);
	*anew = stub_registered() > before;
	value++;
	memset(memory, ~value, SIZE);
	if (pins) {
		good = stub_write(mr, value) == 0;
		for (int n = 0; n < SIZE; n++)
			good = good && (unsigned char)memory[n] == value;
	}
	must(ibv_dereg_mr_relaxed(mr) == 0);
	return good;
}

static bool used_again(char *memory)
{
	bool anew = true;

	/* The cache keeps no region for a while where pages were dropped. */
	for (int tries = 0; tries < 50 && anew; tries++) {
		if (tries > 5)
			usleep(100000);
		if (!lands(memory, &anew))
			return false;
	}
	return !anew;
}

static void *map(void *where, size_t length, int flags)
{
	void *memory = mmap(where, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}

enum change { MUNMAP, FIXED, MADVISE, MREMAP, RAW, CHANGES };

/* `memory` has a page behind it that belongs to others. */
static void change(enum change how, char *memory)
{
	switch (how) {
	case MUNMAP:
		must(munmap(memory, SIZE) == 0 && map(memory, SIZE, MAP_FIXED_NOREPLACE) == memory);
		break;
	case FIXED:
		must(map(memory + PAGE, PAGE, MAP_FIXED) == memory + PAGE);
		break;
	case MADVISE:
		must(madvise(memory, 2 * PAGE, MADV_DONTNEED) == 0);
		break;
	case MREMAP:
		/* Not to an address of ours: UCX's hook does not forward the fifth argument. */
		must(mremap(memory, SIZE, 2 * SIZE, MREMAP_MAYMOVE) != MAP_FAILED);
		must(map(memory, SIZE, MAP_FIXED_NOREPLACE) == memory);
		break;
	default:
		must(syscall(SYS_munmap, memory, SIZE) == 0 && map(memory, SIZE, MAP_FIXED_NOREPLACE) == memory);
	}
}

static void load_ucx(bool preloaded)
{
	void *ucs = dlopen("libucs.so.0", RTLD_NOW | RTLD_GLOBAL | (preloaded ? RTLD_NOLOAD : 0));
	void *ucm = dlopen("libucm.so.0", RTLD_NOW | RTLD_NOLOAD);
	ucm_set_handler set_handler;
	signed char status;

	must(ucs && ucm);
	*(void **)&set_handler = dlsym(ucm, "ucm_set_event_handler");
	must(set_handler);
	status = set_handler(UCM_EVENT_VM_UNMAPPED, 0, on_unmapped, NULL);
	say(status == 0, "UCX installs its watch (%d)", status);
}

/* The same without the library: whether UCX can do that at all. */
static int control(int order)
{
	must(!ibv_reg_mr_relaxed && dlopen("libibverbs.so.1", RTLD_NOW));
	watched = map(NULL, SIZE, 0);
	load_ucx(order < 2);
	must(munmap(watched, SIZE) == 0);
	fflush(stdout);
	_exit(seen ? 0 : 1);
}

/* The program in one order of loading. report() reads its output. */
static int in_order(int order)
{
	static const char *const names[] = {
		"munmap and mmap", "mmap with MAP_FIXED over a page", "madvise", "mremap away and mmap",
		"munmap by a raw system call",
	};
	char *memory = map(NULL, SIZE + PAGE, 0);
	bool landed, anew;

	must(mprotect(memory + SIZE, PAGE, PROT_NONE) == 0);
	/*
	 * As a program that uses UCX: a library that is loaded after UCX in mode "reloc" mixes its
	 * allocator and libc's.
	 */
	must(ibv_reg_mr_relaxed && dlopen("libibverbs.so.1", RTLD_NOW));
	pins = !stub_open(STUB_PIN);
	must(pins || !stub_open(STUB_NOTHING));
	watched = memory;
	if (order == 3)
		must(lands(memory, &anew));
	load_ucx(order < 2);
	for (int how = 0; how < CHANGES; how++) {
		struct rdmamr_stats before;

		say(used_again(memory), "%s: before it, the region is reused", names[how]);
		before = stats();
		seen = 0;
		change(how, memory);
		if (how != RAW)
			say(seen > 0, "%s: UCX saw it", names[how]);
		landed = lands(memory, &anew);
		say(landed && anew, "%s: registered anew, and data lands in the current page (seen by the library's %s)",
		    names[how], stats().stale_avoided_hook > before.stale_avoided_hook ? "stand-in" : "userfaultfd");
	}
	say(ibv_flush_relaxed_mr(stub_pd()) == 0 && stub_registered() == stub_deregistered(), "a flush leaves nothing");
	fflush(stdout);
	/*
	 * _exit instead of exit: UCX's destructors may fail on code that it has overwritten, which is
	 * not our concern.
	 */
	_exit(0);
}

/*
 * Starts the program anew, in that order of loading, with the library or without. Returns its
 * output as a stream.
 */
static pid_t start(const char *mode, int order, bool library, FILE **output)
{
	char argument[3] = { library ? 'o' : 'c', (char)('0' + order), '\0' }, value[4096];
	const char *preload = library ? getenv("LD_PRELOAD") : "";
	int ends[2];
	pid_t pid;

	preload = preload ? preload : "";
	must(pipe(ends) == 0);
	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		snprintf(value, sizeof(value), order == 0 ? "libucs.so.0 %s" : order == 1 ? "%s libucs.so.0" : "%s", preload);
		must(setenv("LD_PRELOAD", value, 1) == 0);
		must(setenv("UCX_MEM_MMAP_HOOK_MODE", mode, 1) == 0);
		must(setenv("UCX_HANDLE_ERRORS", "none", 1) == 0);
		must(dup2(ends[1], 1) == 1);
		close(ends[0]);
		close(ends[1]);
		alarm(library ? 60 : 5);
		execl("/proc/self/exe", "ucx", argument, (char *)NULL);
		must(!"execl");
	}
	close(ends[1]);
	*output = fdopen(ends[0], "r");
	must(*output);
	return pid;
}

/* Reports each line of the program's output. */
static void report(const char *mode, int order)
{
	int status, lines = 0;
	char line[1024];
	FILE *output;
	pid_t pid = start(mode, order, false, &output);

	while (fgets(line, sizeof(line), output))
		;
	fclose(output);
	must(waitpid(pid, &status, 0) == pid);
	if (status) {
		snprintf(line, sizeof(line), "%s, %s", mode, orders[order]);
		skip(line, "UCX itself fails so, without the library");
		return;
	}
	pid = start(mode, order, true, &output);
	while (fgets(line, sizeof(line), output)) {
		bool good = !strncmp(line, "good ", 5);

		line[strcspn(line, "\n")] = '\0';
		errno = 0;
		if (good || !strncmp(line, "bad ", 4))
			lines += ok(good, "%s, %s: %s", mode, orders[order], line + (good ? 5 : 4)) >= 0;
		else
			printf("# %s\n", line);
	}
	fclose(output);
	must(waitpid(pid, &status, 0) == pid);
	ok(status == 0 && lines > CHANGES, "%s, %s: ran to its end (status %#x)", mode, orders[order], status);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return argv[1][0] == 'c' ? control(argv[1][1] - '0') : in_order(argv[1][1] - '0');
	must(ibv_reg_mr_relaxed && ibv_dereg_mr_relaxed && ibv_flush_relaxed_mr);
	/* In another process: this one must not load UCX. */
	if (system("UCX_HANDLE_ERRORS=none LD_PRELOAD=libucs.so.0 true 2>&1 | grep -q . && exit 1; exit 0"))
		skip_all("UCX's libucs.so.0 is not installed");
	if (stub_open(STUB_PIN))
		skip("the device's data", "io_uring is refused to this process: registrations are counted only");
	for (size_t mode = 0; mode < sizeof(modes) / sizeof(*modes); mode++)
		for (int order = 0; order < 4; order++)
			report(modes[mode], order);
	return done_testing();
}
