/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "fence_stub.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include "stub_device.h"
#include "tap.h"

#define PATH "/run/rdmamr/fence"
#define MAGIC "RDMAMRF2"
/* What the library reads of the counters and of link N. */
#define ABOUT "/run/about"
#define FDINFO "/proc/thread-self/fdinfo/"
#define FD "/proc/thread-self/fd/"
/* Links whose texts are the names of the kernel's own files. */
#define MAP_NAME "/run/bpf-map"
#define LINK_NAME "/run/bpf-link"

enum { LINE = 64, LINES = 32768, SIZE = (1 + LINES) * LINE, INDEX = 4321, PAGE = 4096 };
/* The descriptors that programs inherit: the counters, and the number of clients. */
enum { COUNTERS = 300, ASKED = 301 };

struct fence_stub fence_stub;
static enum fence_kind kind;

static void inherit(int file, int number, off_t size)
{
	must(file >= 0 && dup2(file, number) == number && close(file) == 0 && ftruncate(number, size) == 0);
}

const char *fence_stub_open(void)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("none", "/run", "tmpfs", 0, NULL) ||
	    mkdir("/run/rdmamr", 0755) || symlink("anon_inode:bpf-map", MAP_NAME) || symlink("anon_inode:bpf_link", LINK_NAME))
		return "this needs root, for a /run of its own";
	inherit(memfd_create("counters-of-test", 0), COUNTERS, SIZE);
	inherit(memfd_create("asked-of-test", 0), ASKED, PAGE);
	fence_stub_inherit();
	return NULL;
}

static void *mapped(int file, size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	must(at != MAP_FAILED);
	return at;
}

void fence_stub_inherit(void)
{
	_Atomic uint64_t *counters = mapped(COUNTERS, SIZE), *own = counters + (1 + INDEX) * LINE / 8;
	_Atomic int *clients = mapped(ASKED, PAGE);

	fence_stub = (struct fence_stub){ counters, counters + 1, own, clients, clients + 1 };
}

static void write_text(const char *path, const char *format, ...)
{
	FILE *file = fopen(path, "w");
	va_list args;

	must(file);
	va_start(args, format);
	vfprintf(file, format, args);
	va_end(args);
	must(fclose(file) == 0);
}

/* The kernel's words, and the ids of the links in the first line. */
static void describe(void)
{
	char path[64];

	write_text(ABOUT, "pos:\t0\nflags:\t02000002\nmap_type:\t2\nkey_size:\t4\nvalue_size:\t%d\nmax_entries:\t1\nmap_flags:\t0x400\nfrozen:\t%d\n",
		   kind == OF_ANOTHER_SIZE ? SIZE - LINE : SIZE, kind != NOT_FROZEN);
	for (int n = 1; n < FENCE_FILES; n++) {
		int id = 100 + n;

		snprintf(path, sizeof(path), ABOUT "%d", n);
		write_text(path, kind == NOT_A_PROGRAM && n == 2 ? "pos:\t0\n" : "pos:\t0\nlink_type:\t%s\nlink_id:\t%d\nprog_id:\t%d\n",
			   n == 1 ? "raw_tracepoint" : "tracing", id, id);
		if (kind != NAMES_NO_PROGRAM)
			fence_stub.gaps[1 + n] = id + (kind == OTHER_PROGRAM && n == 2);
	}
	if (kind == LACKS_A_PROGRAM)
		fence_stub.gaps[1 + FENCE_FILES] = 100 + FENCE_FILES;
}

static void answer(int client)
{
	enum { MOST = 40 };
	char packet[9] = MAGIC, path[64];
	union { struct cmsghdr head; char room[CMSG_SPACE(MOST * sizeof(int))]; } control;
	struct iovec part = { packet, kind == SHORT ? 7 : kind == LONG ? 9 : 8 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	size_t count = kind == FEW_FILES ? 2 : kind == MANY_FILES ? 8 : kind == VERY_MANY_FILES ? MOST : FENCE_FILES;
	int files[MOST];

	(*fence_stub.asked)++;
	if (kind == NEVER_ANSWERS)
		pause();
	if (kind == LATE)
		usleep(100000);
	packet[7] += kind == OTHER_VERSION;
	files[0] = COUNTERS;
	if (kind == UNMAPPABLE)
		must((files[0] = open("/dev/null", O_RDONLY)) >= 0);
	if (kind == WRITE_ONLY)
		must((files[0] = open("/proc/self/fd/300", O_WRONLY)) >= 0);
	for (size_t n = 1; n < count; n++) {
		snprintf(path, sizeof(path), ABOUT "%zu", n);
		files[n] = n < FENCE_FILES ? open(path, O_RDONLY | O_CLOEXEC) : ASKED;
		must(files[n] >= 0);
	}
	message.msg_control = control.room;
	message.msg_controllen = CMSG_SPACE(count * sizeof(int));
	control.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
					.cmsg_len = CMSG_LEN(count * sizeof(int)) };
	memcpy(CMSG_DATA(&control.head), files, count * sizeof(int));
	/* A client that has closed its end without reading the answer leaves ECONNRESET. */
	if (kind != CLOSES && sendmsg(client, &message, MSG_NOSIGNAL) >= 0 && recv(client, packet, 1, 0) == 0)
		++*fence_stub.heard;
	for (size_t n = 1; n < count && n < FENCE_FILES; n++)
		close(files[n]);
}

void fence_stub_serve(enum fence_kind wanted)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = PATH };
	int ready[2], listener = -1, client;
	char byte;
	pid_t pid;

	kind = wanted;
	unlink(PATH);
	*fence_stub.asked = *fence_stub.heard = 0;
	memset((void *)fence_stub.gaps, 0, SIZE);
	describe();
	if (kind == NOT_A_SOCKET)
		must((listener = open(PATH, O_CREAT | O_RDWR, 0666)) >= 0 && close(listener) == 0);
	if (kind == NONE || kind == NOT_A_SOCKET)
		return;
	must(pipe(ready) == 0);
	must((pid = fork()) >= 0);
	if (pid) {
		close(ready[1]);
		must(read(ready[0], &byte, 1) == 1);
		close(ready[0]);
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	must((listener = socket(AF_UNIX, SOCK_SEQPACKET, 0)) >= 0);
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && chmod(PATH, 0666) == 0);
	if (kind == BY_ANOTHER)
		must(setresuid(1, 1, 1) == 0);
	must(kind == DEAF || listen(listener, 16) == 0);
	must(write(ready[1], "", 1) == 1);
	if (kind == NEVER_ACCEPTS || kind == DEAF)
		pause();
	while ((client = accept(listener, NULL, NULL)) >= 0) {
		answer(client);
		close(client);
	}
	_exit(0);
}

/* In place of the kernel's words about a descriptor, and of its name, the library reads the stand-in's. */
static void redirect(long argument[6], const char *folder, const char *of_link, const char *of_counters)
{
	static char link[64] = FD;
	struct stat about;

	/* This thread has no locale, by which printf works. */
	strcpy(link + strlen(FD), (const char *)argument[1] + strlen(folder));
	if (kind == WITHOUT_PROC)
		argument[1] = (long)"/run/none";
	else if (!stub_syscall(SYS_newfstatat, AT_FDCWD, link, &about, 0))
		/* A link's file has the words about itself. */
		argument[1] = (long)(!S_ISREG(about.st_mode) || about.st_size >= PAGE ? of_counters : of_link ? of_link : link);
}

/* Counts in place of the kernel, in the library's thread that makes the call. */
static void counts(long number, const long argument[6])
{
	if (number == SYS_openat && kind != NOT_AN_ARRAY && !strncmp((const char *)argument[1], FDINFO, strlen(FDINFO)))
		redirect((long *)argument, FDINFO, NULL, ABOUT);
	if (number == SYS_readlinkat && kind != NOT_AN_ARRAY && !strncmp((const char *)argument[1], FD, strlen(FD)))
		redirect((long *)argument, FD, kind == FORGED_LINKS ? NULL : LINK_NAME, MAP_NAME);
	if (kind == COUNTS_NOTHING)
		return;
	if ((number == SYS_mremap && kind != COUNTS_NO_MOVES) || (number == SYS_munmap && kind != COUNTS_NO_UNMAPS)) {
		atomic_fetch_add(fence_stub.moves, 1);
		if (kind == COUNTS_ELSEWHERE)
			atomic_fetch_add(fence_stub.moves + LINE / 8, 1);
	}
}

void fence_stub_count(enum fence_kind wanted)
{
	kind = wanted;
	stub_before = counts;
}
