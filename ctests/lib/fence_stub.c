/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "fence_stub.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
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
#define MAGIC "RDMAMRF1"

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
	    mkdir("/run/rdmamr", 0755))
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

	fence_stub = (struct fence_stub){ counters, counters + 1, own, mapped(ASKED, PAGE) };
}

static void answer(int client)
{
	enum { MOST = 40 };
	struct { char magic[8]; uint32_t version, index, more; } packet = { .version = 1, .index = INDEX };
	union { struct cmsghdr head; char room[CMSG_SPACE(MOST * sizeof(int))]; } control;
	struct iovec part = { &packet, kind == SHORT ? 12 : kind == LONG ? 20 : 16 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	size_t count = kind == FEW_FILES ? 2 : kind == MANY_FILES ? 10 : kind == VERY_MANY_FILES ? MOST : FENCE_FILES;
	int files[MOST], file = COUNTERS;
	char question[64];

	if (recv(client, question, sizeof(question), 0) != 8 || memcmp(question, MAGIC, 8))
		return;
	(*fence_stub.asked)++;
	if (kind == NEVER_ANSWERS)
		pause();
	if (kind == LATE)
		usleep(100000);
	memcpy(packet.magic, kind == GARBAGE ? "SOMEBODY" : MAGIC, 8);
	packet.version += kind == OTHER_VERSION;
	packet.index += kind == INDEX_TOO_LARGE ? LINES : 0;
	if (kind == UNMAPPABLE)
		must((file = open("/dev/null", O_RDONLY)) >= 0);
	if (kind == WRITE_ONLY)
		must((file = open("/proc/self/fd/300", O_WRONLY)) >= 0);
	for (size_t n = 0; n < count; n++)
		files[n] = n ? ASKED : file;
	if (kind != NO_FILES) {
		message.msg_control = control.room;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		control.head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
						.cmsg_len = CMSG_LEN(count * sizeof(int)) };
		memcpy(CMSG_DATA(&control.head), files, count * sizeof(int));
	}
	if (kind != CLOSES)
		sendmsg(client, &message, MSG_NOSIGNAL);
}

pid_t fence_stub_serve(enum fence_kind wanted)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = PATH };
	int ready[2], listener = -1, client;
	char byte;
	pid_t pid;

	kind = wanted;
	unlink(PATH);
	*fence_stub.asked = 0;
	memset((void *)fence_stub.gaps, 0, SIZE);
	if (kind == NONE)
		return 0;
	if (kind == NOT_A_SOCKET) {
		must((listener = open(PATH, O_CREAT | O_RDWR, 0666)) >= 0 && close(listener) == 0);
		return 0;
	}
	must(pipe(ready) == 0);
	must((pid = fork()) >= 0);
	if (pid) {
		close(ready[1]);
		must(read(ready[0], &byte, 1) == 1);
		close(ready[0]);
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	must((listener = socket(AF_UNIX, SOCK_SEQPACKET, 0)) >= 0);
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && chmod(PATH, 0666) == 0);
	if (kind == OF_ANOTHER)
		must(chown(PATH, 1, 1) == 0);
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

/* Counts in place of the kernel, in the library's thread that makes the call. */
static void counts(long number, const long argument[6])
{
	(void)argument;
	if (kind == COUNTS_NOTHING)
		return;
	if ((number == SYS_mremap && kind != COUNTS_NO_MOVES) || (number == SYS_munmap && kind != COUNTS_NO_UNMAPS))
		atomic_fetch_add(fence_stub.moves, 1);
}

void fence_stub_count(enum fence_kind wanted)
{
	kind = wanted;
	stub_before = counts;
}
