/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Faults of a program with a device: it is killed, stopped, traced, its device is unplugged under
 * traffic. Nothing stays in the kernel, and the program goes on.
 *
 * CHECK_KILLS is the number of times that it is killed, and stopped (3). Runs only in the machine
 * of vm/, where the test may change devices.
 */
#include <signal.h>
#include "../../lib/observe.h"

enum { SPOTS = 8 };

static int kills = 3;

/* The counts of a working child, and its orders. */
static struct {
	_Atomic long rounds, stale, refused;
	_Atomic int end;
} *shared;

/* Starts a command of the shell, silently. */
static pid_t start(const char *command)
{
	pid_t pid = must_fork();

	if (!pid) {
		must(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	return pid;
}

static int shell(const char *command) { return child_status(start(command)); }

/* Its status stays for child_status(). */
static bool has_ended(pid_t pid)
{
	siginfo_t about = { 0 };

	must(!waitid(P_PID, (id_t)pid, &about, WEXITED | WNOHANG | WNOWAIT));
	return about.si_pid == pid;
}

/* Registers, changes memory, and checks where data lands, until it is told to end. */
static void *works(void *argument)
{
	struct pair *pair = argument;
	struct ibv_pd *pd = pair->pd;
	unsigned int seed = (unsigned int)syscall(SYS_gettid);
	char *memory = pages(2 * SPOTS);

	while (!shared->end) {
		size_t spot = (size_t)(rand_r(&seed) % SPOTS), length = (size_t)(1 + rand_r(&seed) % 2) * PAGE;
		char *at = memory + spot * 2 * PAGE;
		struct ibv_mr *mr;

		if (rand_r(&seed) % 4 == 0)
			raw_remap(at, PAGE);
		mr = rand_r(&seed) % 2 ? (ibv_reg_mr)(pd, at, length, LOCAL_AND_REMOTE) :
					 ibv_reg_mr_relaxed(pd, at, length, LOCAL_AND_REMOTE);
		if (mr && pair->qp && shared->end == 0) {
			*(volatile char *)at = 1;
			if (pair_write(pair, mr, at, 1, (uintptr_t)at + 1, mr->rkey) == IBV_WC_SUCCESS &&
			    pair_read(pair, mr, at + 8, 1, (uintptr_t)at + 1, mr->rkey) == IBV_WC_SUCCESS)
				shared->stale += *(volatile char *)(at + 1) != 1;
		}
		if (!mr || ibv_dereg_mr(mr))
			shared->refused++;
		shared->rounds += mr != NULL;
	}
	return NULL;
}

static pid_t worker(bool traffic)
{
	pid_t pid;

	memset(shared, 0, sizeof(*shared));
	pid = must_fork();
	if (!pid) {
		struct pair pair = { 0 };

		alarm(DEADLOCK);
		if (traffic) {
			pair_open(&pair);
			works(&pair);
			pair_close(&pair);
		} else {
			/* Until it is killed. */
			pair.pd = domain_of_device();
			must_start(works, &pair);
			works(&pair);
		}
		_exit(0);
	}
	return pid;
}

static void killed(void)
{
	static struct kernel_region list[MOST_REGIONS];
	struct ibv_context *context = open_device();
	int before = device_regions(context, list, MOST_REGIONS), left = 0, late = 0;
	unsigned int seed = 7;

	for (int n = 0; n < kills; n++) {
		pid_t pid = worker(false);

		/* Half of them are killed as they start, half at work. */
		if (n % 2 && !comes(shared->rounds > 0))
			late++;
		usleep((useconds_t)(rand_r(&seed) % 20000));
		must(kill(pid, SIGKILL) == 0 && child_status(pid) == 128 + SIGKILL);
		left += !comes(device_regions(context, list, MOST_REGIONS) == before);
	}
	is(late, 0, "%d processes work", kills);
	is(left, 0, "each is killed (SIGKILL) at a random moment, and the kernel has no region of it");
	must(ibv_close_device(context) == 0);
}

static bool goes_on(void)
{
	long now = shared->rounds;

	return comes(shared->rounds > now + 10);
}

static void stopped(void)
{
	unsigned int seed = 9;
	pid_t pid = worker(true);
	int stuck = 0;
	char command[64];

	snprintf(command, sizeof(command), "exec strace -f -p %d -o /dev/null", pid);
	must(comes(shared->rounds > 10));
	for (int n = 0; n < kills; n++) {
		must(kill(pid, SIGSTOP) == 0);
		usleep((useconds_t)(rand_r(&seed) % 5000));
		must(kill(pid, SIGCONT) == 0);
		stuck += !goes_on();
	}
	is(stuck, 0, "SIGSTOP and SIGCONT, %d times: registrations and traffic go on", kills);
	for (int n = 0; n < (kills < 100 ? 1 : 2); n++) {
		pid_t tracer = start(command);

		usleep(300000);
		stuck += !goes_on();
		must(kill(tracer, SIGINT) == 0);
		/*
		 * strace detaches from one thread after the other, and waits for a thread that waits for
		 * the library's reader, which strace has stopped (docs/limits.md).
		 */
		for (int left = 1000; !has_ended(tracer) && left; left--)
			usleep(10000);
		must(kill(tracer, SIGKILL) == 0);
		child_status(tracer);
		stuck += !goes_on();
	}
	is(stuck, 0, "strace attaches to all threads, and leaves or is killed: they go on");
	shared->end = 1;
	is(child_status(pid), 0, "the program ends in order");
	is(shared->stale + shared->refused, 0, "no registration was refused, none was stale");
}

static void unplugged(void)
{
	static const char *const ways[] = { "rdma link delete rxe9", "ip link delete dummy9" };

	/* Of the four, each of which takes seconds, "make check" runs the first and the last. */
	for (int n = 0; n < 4; n += kills < 100 ? 3 : 1) {
		bool at_end = n % 2, kills = n == 3;
		pid_t pid, remover;
		int status;

		must(shell("ip link add dummy9 type dummy && ip addr add 10.79.0.1/24 dev dummy9 && ip link set dummy9 up &&"
			   " rdma link add rxe9 type rxe netdev dummy9") == 0);
		setenv("CHECK_DEVICE", "rxe9", 1);
		setenv("CHECK_ADDRESS", "10.79.0.1", 1);
		pid = worker(true);
		must(comes(shared->rounds > 20));
		remover = start(ways[n / 2]);
		usleep(at_end ? 0 : 200000);
		shared->end = !kills;
		must(!kills || kill(pid, SIGKILL) == 0);
		must(waitpid(pid, &status, 0) == pid);
		ok(kills ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
		   "%s under traffic: the program %s (%x)", ways[n / 2], kills ? "is killed" : "ends in order", (unsigned)status);
		is(shared->stale, 0, "no region of it was stale");
		ok(comes(has_ended(remover)), "and the device goes: no region holds it");
		shell("ip link delete dummy9");
		ok(comes(shell("rdma link show rxe9/1") != 0), "it is gone");
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE", "all");
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (!getenv("VM"))
		skip_all("only in the machine of vm/: the devices are changed");
	if (getenv("CHECK_KILLS"))
		kills = atoi(getenv("CHECK_KILLS"));
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(shared != MAP_FAILED);
	in_part(killed);
	in_part(stopped);
	in_part(unplugged);
	return done_testing();
}
