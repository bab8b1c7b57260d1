/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A thread announces that the program is about to filter its system calls, while another thread
 * starts the cache. The cache ends nevertheless, whichever thread comes first: no region is handed
 * out again after its memory has changed, and the library's threads make no call that the filter
 * forbids.
 *
 * The device is the stand-in (stub_device.h). It holds the start at userfaultfd(2), or where the
 * start asks for the limit of locked memory: by then the reader of events runs.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/tap.h"
#include "../../lib/stub_device.h"

enum { COUNT = 4, MOMENT = 100000, RIGHT = 42 };

static char *memory;
static long place;
static _Atomic bool begun, held, go_on;

static void hold(long number, const long argument[6])
{
	begun |= number == SYS_userfaultfd;
	if (number != place || !begun || held || (number == SYS_prlimit64 && argument[1] != RLIMIT_MEMLOCK))
		return;
	held = true;
	while (!go_on)
		usleep(1000);
}

static void *use(void *unused)
{
	for (int page = 0; page < COUNT; page++)
		for (int round = 0; round < 2; round++) {
			struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory + page * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);

			must(mr && ibv_dereg_mr_relaxed(mr) == 0);
		}
	return unused;
}

static void *let_go_on(void *unused)
{
	usleep(MOMENT);
	go_on = true;
	return unused;
}

/* The reader of userfaultfd would make this call for each event. */
static void forbid_pselect(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pselect6, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

/* `late`: the start goes on only after prctl has returned, which waits for a second at most. */
static int retire(bool late)
{
	pthread_t starts, releases, other;
	struct ibv_mr *mr;

	memory = pages(COUNT);
	stub_before = hold;
	must(pthread_create(&starts, NULL, use, NULL) == 0);
	while (!held)
		usleep(1000);
	must(pthread_create(&other, NULL, use, NULL) == 0);
	usleep(MOMENT);
	if (!late)
		must(pthread_create(&releases, NULL, let_go_on, NULL) == 0);
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	if (!late) {
		if (userfaultfds(NULL) != 0)
			return 1;
		must(pthread_join(releases, NULL) == 0);
	}
	go_on = true;
	must(pthread_join(starts, NULL) == 0 && pthread_join(other, NULL) == 0);
	if (userfaultfds(NULL) != 0 || stub_registered() != stub_deregistered())
		return 2;
	forbid_pselect();
	must(mprotect(memory, PAGE, PROT_NONE) == 0);
	mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	if (mr || errno != EFAULT)
		return 3;
	must(munmap(memory, COUNT * PAGE) == 0);
	usleep(MOMENT);
	return RIGHT;
}

int main(int argc, char **argv)
{
	static const char *const early[] = { "early", "early_reader" }, *const late[] = { "late", "late_reader" };
	static const char *const places[] = { "without a reader", "with a reader" };
	enum { PLACES = sizeof(places) / sizeof(*places) };
	const char *const settings[] = { "RDMAMR_LOG=warn", NULL };
	const char *why = stub_open(STUB_PIN);

	if (why)
		skip_all(why);
	alarm(DEADLOCK);
	if (argc > 1) {
		place = strstr(argv[1], "reader") ? SYS_prlimit64 : SYS_userfaultfd;
		return retire(!strncmp(argv[1], "late", 4));
	}
	for (int n = 0; n < PLACES; n++) {
		is(once_more(early[n], settings), RIGHT, "%s: prctl waits for the start of the cache, and ends it", places[n]);
		is(once_more(late[n], settings), RIGHT, "%s: the start goes on after prctl has returned, and ends the cache", places[n]);
	}
	return done_testing();
}
