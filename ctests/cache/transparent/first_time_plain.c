/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * RDMAMR_CACHE costs nothing until a range is registered again. A program that registers and
 * releases 500 ranges once makes the same system calls as with the cache off, and has the same
 * threads, descriptors, mappings and address space. The second registration of a range makes a
 * region that the cache keeps, the third one reuses it, and the data lands each time.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include "../../lib/device.h"
#include "../../lib/observe.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

enum { RANGES = 500, APART = 2 * PAGE, BUFFER = 16 * PAGE };

/* A process's resources and system calls. */
struct cost {
	long threads, descriptors, mappings, address_space, system_calls;
};

/* Registers each range once, and writes the process's resources to standard output. */
static int once(void)
{
	char *memory = pages((size_t)RANGES * APART / PAGE);
	struct cost cost;

	must(stub_open(STUB_NOTHING) == NULL);
	for (int n = 0; n < RANGES; n++) {
		struct ibv_mr *mr = ibv_reg_mr(stub_pd(), memory + (size_t)n * APART, PAGE, LOCAL_AND_REMOTE);

		must(mr && ibv_dereg_mr(mr) == 0);
	}
	cost = (struct cost){ entries("/proc/self/task"), entries("/proc/self/fd"), mappings(), status_of_self("VmSize"), 0 };
	must(write(STDOUT_FILENO, &cost, sizeof(cost)) == sizeof(cost));
	return 0;
}

/* Runs `once` under this setting, and counts the system calls of all its threads. */
static struct cost cost_with(const char *cache)
{
	struct cost cost;
	int ends[2], status, calls = 0;
	pid_t child, task;

	must(pipe(ends) == 0);
	child = fork();
	must(child >= 0);
	if (!child) {
		/* The same addresses in each run. */
		if (personality(ADDR_NO_RANDOMIZE) == -1 || dup2(ends[1], STDOUT_FILENO) < 0 || setenv("RDMAMR_CACHE", cache, 1) ||
		    ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(1);
		close(ends[0]);
		close(ends[1]);
		execl("/proc/self/exe", "first_time_plain", "once", NULL);
		_exit(1);
	}
	close(ends[1]);
	must(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
	must(ptrace(PTRACE_SETOPTIONS, child, NULL,
		    (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL)) == 0);
	must(ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0);
	while ((task = waitpid(-1, &status, __WALL)) > 0) {
		int number = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;

		if (WIFEXITED(status) && task == child)
			must(WEXITSTATUS(status) == 0);
		if (!WIFSTOPPED(status))
			continue;
		calls += number == (SIGTRAP | 0x80);
		if (number == (SIGTRAP | 0x80) || number == SIGTRAP || number == SIGSTOP)
			number = 0;
		ptrace(PTRACE_SYSCALL, task, NULL, (void *)(long)number);
	}
	must(read(ends[0], &cost, sizeof(cost)) == sizeof(cost));
	close(ends[0]);
	/* Each call stops twice. */
	cost.system_calls = calls / 2;
	return cost;
}

static void costs_nothing(void)
{
	struct cost off = cost_with("off"), all = cost_with("all"), local = cost_with("local");

	for (int n = 0; n < 2; n++) {
		struct cost *on = n ? &local : &all;

		case_begin("RDMAMR_CACHE=%s, %d ranges once: as with the cache off", n ? "local" : "all", RANGES);
		ok(labs(on->system_calls - off.system_calls) <= 2, "%ld system calls, off %ld", on->system_calls, off.system_calls);
		is(on->threads, off.threads, "threads");
		is(on->descriptors, off.descriptors, "descriptors");
		is(on->mappings, off.mappings, "mappings");
		is(on->address_space, off.address_space, "KiB of address space");
		case_end();
	}
}

/* One registration and its release. Returns whether the data has landed. */
static bool put_lands(struct ibv_pd *pd, void *memory, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, access);
	bool landed;

	must(mr);
	landed = stub_lands(mr);
	must(ibv_dereg_mr(mr) == 0);
	return landed;
}

static struct rdmamr_stats before;

/* The registrations since the last call: first ones, new cached regions, hits. */
static bool were(int first, int made, int hits)
{
	struct rdmamr_stats after = stats();
	bool as_said = after.bypassed_first - before.bypassed_first == (unsigned)first &&
		       after.misses - before.misses == (unsigned)made && after.hits - before.hits == (unsigned)hits;

	if (!as_said)
		printf("# first %d, made %d, hits %d\n", (int)(after.bypassed_first - before.bypassed_first),
		       (int)(after.misses - before.misses), (int)(after.hits - before.hits));
	before = after;
	return as_said;
}

static bool no_cache(void)
{
	return userfaultfds(NULL) == 0 && entries("/proc/self/task") == 3;
}

static void comes_back(void)
{
	char *memory = pages(8);
	struct ibv_mr *held;

	before = stats();
	ok(put_lands(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0) && no_cache(), "the first registration is plain");
	ok(put_lands(stub_other_pd(), memory, PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0), "another domain is another range");
	ok(put_lands(stub_pd(), memory, PAGE, IBV_ACCESS_LOCAL_WRITE) && were(1, 0, 0), "other access is another range");
	ok(put_lands(stub_pd(), memory, 2 * PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0), "another length is another range");
	ok(put_lands(stub_pd(), memory + PAGE, PAGE, LOCAL_AND_REMOTE) && were(1, 0, 0) && no_cache(), "another page is another range");
	held = ibv_reg_mr(stub_pd(), memory + 4 * PAGE, PAGE, LOCAL_AND_REMOTE);
	ok(held && put_lands(stub_pd(), memory + 4 * PAGE, PAGE, LOCAL_AND_REMOTE) && were(2, 0, 0) && no_cache(),
	   "a range that was never released is not registered again");
	must(ibv_dereg_mr(held) == 0);
	ok(put_lands(stub_pd(), memory + 100, PAGE - 200, LOCAL_AND_REMOTE) && were(0, 1, 0), "the second, of the same page: it is cached");
	ok(put_lands(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) && were(0, 0, 1), "the third: a hit");
	munmap(memory, 8 * PAGE);
}

/*
 * Each buffer is mapped, registered, released and unmapped, as a rule at the address of the one
 * before.
 */
static void mapped_anew(void)
{
	bool all = true, again = false;
	char *last = NULL;

	for (int n = 0; n < 100; n++) {
		char *buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		must(buffer != MAP_FAILED);
		again = again || buffer == last;
		last = buffer;
		all = put_lands(stub_pd(), buffer, BUFFER, LOCAL_AND_REMOTE) && all;
		must(munmap(buffer, BUFFER) == 0);
	}
	ok(all && again && were(100, 0, 0) && no_cache(), "memory that is mapped anew counts as new each time");
}

/* The cache does not try each time to serve memory that cannot be watched. */
static void shared(void)
{
	char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct rdmamr_stats after;
	bool all = true;

	must(memory != MAP_FAILED);
	before = stats();
	for (int n = 0; n < 160; n++)
		all = put_lands(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE) && all;
	after = stats();
	ok(all && after.hits == before.hits, "shared memory is never reused");
	ok(after.bypassed_first - before.bypassed_first >= 140, "and 15 of 16 of its registrations are plain at once (%d of 160)",
	   (int)(after.bypassed_first - before.bypassed_first));
	is(stub_registered() - stub_deregistered(), (long long)after.idle, "of which none stays registered");
	munmap(memory, PAGE);
}

static void relaxed_at_once(void)
{
	char *memory = new_place(PAGE);
	struct ibv_mr *mr;

	fresh_at(memory, PAGE);
	before = stats();
	for (int n = 0; n < 2; n++) {
		mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
		must(mr && ibv_dereg_mr_relaxed(mr) == 0);
	}
	ok(were(0, 1, 1), "a relaxed registration is cached from the first time on");
}

/* A relaxed registration may use the region of a plain one, which may not change it then. */
static void shared_with_relaxed(void)
{
	char *memory = new_place(PAGE);
	struct ibv_mr *plain, *relaxed;
	int code;

	fresh_at(memory, PAGE);
	for (int n = 0; n < 2; n++)
		must(put_lands(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE));
	plain = ibv_reg_mr(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	relaxed = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);
	must(plain && relaxed && plain->lkey == relaxed->lkey);
	errno = 0;
	code = ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE);
	ok(code == IBV_REREG_MR_ERR_INPUT && errno == EINVAL, "a region that a relaxed registration uses is not changed: %d", code);
	ok(stub_lands(plain) && stub_lands(relaxed), "both can be used");
	is(ibv_dereg_mr(plain), 0, "the plain one ends");
	ok(stub_lands(relaxed), "the relaxed one can be used");
	is(ibv_dereg_mr_relaxed(relaxed), 0, "it ends");
	is(stub_registered() - stub_deregistered(), (long long)stats().idle, "no region is left but idle ones");
}

int main(int argc, char **argv)
{
	const char *why;

	if (argc > 1)
		return once();
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	if (!getenv("RDMAMR_CACHE"))
		costs_nothing();
	else
		continue_report();
	if (!getenv("RDMAMR_CACHE"))
		go_on_with(argv, "RDMAMR_CACHE", "all");
	why = stub_open(STUB_PIN);
	if (why)
		skip_all(why);
	mapped_anew();
	comes_back();
	shared();
	relaxed_at_once();
	shared_with_relaxed();
	return done_testing();
}
