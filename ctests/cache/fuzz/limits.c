/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Limits of the process, which steps lower for a while. A limit that is reached refuses the same
 * calls with the library and without: the library's own need is never the program's failure.
 *
 * Not compared: how much fits just below a limit of the address space, some of which the library
 * takes itself (docs/limits.md). So such a limit leaves nothing, or more than the steps need, of
 * which the library may take half. A limit of pinned memory is exact: idle regions end to make
 * room. While it is low no region is held beyond its step, since the cache pins memory once for
 * several.
 */
#include "fuzz.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AS, DATA, MEMLOCK, NPROC, NOFILE, LIMITS };
static const struct {
	const char *name;
	int resource;
	enum event refused;
} limits[LIMITS] = {
	{ "RLIMIT_AS", RLIMIT_AS, NO_ADDRESSES },
	{ "RLIMIT_DATA", RLIMIT_DATA, NO_DATA },
	{ "RLIMIT_MEMLOCK", RLIMIT_MEMLOCK, NO_PINS },
	{ "RLIMIT_NPROC", RLIMIT_NPROC, NO_PROCESSES },
	{ "RLIMIT_NOFILE", RLIMIT_NOFILE, NO_FILES },
};

static struct {
	int until; /* the last step with the lower limit; 0 if it is not lower */
	size_t left; /* the address space or data that a limit left when it was set */
	struct rlimit before;
} lowered[LIMITS];

bool are_files_refused(void)
{
	return lowered[NOFILE].until;
}

bool are_pins_limited(void)
{
	return lowered[MEMLOCK].until;
}

/* Pages of address space (0) or of private writable memory (5) that the process has. */
static rlim_t pages_now(int nth)
{
	unsigned long pages[6] = { 0 };
	FILE *file = fopen("/proc/self/statm", "re");

	must(file && fscanf(file, "%lu %lu %lu %lu %lu %lu", &pages[0], &pages[1], &pages[2], &pages[3], &pages[4],
			    &pages[5]) == 6);
	fclose(file);
	return pages[nth];
}

/* A call that the limit refuses. 0, or -1 with an errno. */
static long asks_for_it(int n, size_t length)
{
	pid_t pid;
	void *memory;
	int fd;

	switch (n) {
	case AS:
	case DATA:
		memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		return memory == MAP_FAILED ? -1 : munmap(memory, length);
	case MEMLOCK:
		return pins_too_much(length);
	case NPROC:
		forks++;
		pid = fork();
		if (pid == 0)
			_exit(0);
		return pid < 0 ? -1 : waitpid(pid, NULL, 0) == pid ? 0 : -1;
	default:
		fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		return fd < 0 ? -1 : close(fd);
	}
}

static void raise_limit(int n)
{
	if (lowered[n].left) { /* half of it is the program's, whatever the library has taken since */
		errno = 0;
		note("%s leaves", limits[n].name);
		note_result(asks_for_it(n, lowered[n].left / 2));
		note(" ");
	}
	must(setrlimit(limits[n].resource, &lowered[n].before) == 0);
	lowered[n].until = 0;
}

void raise_old_limits(void)
{
	for (int n = 0; n < LIMITS; n++)
		if (lowered[n].until && step_number > lowered[n].until)
			raise_limit(n);
}

/*
 * The number of pages that the user has pinned: the lowest limit that allows one more. Leaves the
 * limit at any value.
 */
static rlim_t pinned_now(const struct rlimit *before)
{
	struct rlimit limit = *before;
	rlim_t least = 0, most = before->rlim_cur / PAGE;

	while (least < most) {
		rlim_t middle = (least + most) / 2;

		limit.rlim_cur = (middle + 1) * PAGE;
		must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
		if (can_pin_page())
			most = middle;
		else
			least = middle + 1;
	}
	return least;
}

static void lower(int n, bool to_nothing, uint32_t word)
{
	/* Twice the need of all steps that may succeed. */
	enum { ENOUGH = 24 << 20 };
	struct rlimit limit;
	size_t length = PAGE;
	long result;

	note("setrlimit(%s, %s)", limits[n].name, to_nothing ? "nothing" : "some");
	if (n == MEMLOCK && geteuid() < FIRST_USER) {
		note(" not for a user whose pins others count, too");
		return;
	}
	if (n == MEMLOCK) /* held and idle regions count alike, and only the idle can end */
		end_regions();
	if (!lowered[n].until)
		must(getrlimit(limits[n].resource, &lowered[n].before) == 0);
	limit = lowered[n].before;
	if (n == AS || n == DATA) {
		rlim_t now;

		if (are_files_refused()) {
			note(" not while no file can be opened");
			return;
		}
		now = pages_now(n == AS ? 0 : 5) * PAGE;
		limit.rlim_cur = to_nothing ? PAGE : now + ENOUGH;
		length = to_nothing ? PAGE : ENOUGH / 2;
		lowered[n].left = to_nothing ? 0 : ENOUGH;
	} else if (n == MEMLOCK) {
		rlim_t pages = word % 4 ? 2 + word / 4 % 16 : 0;

		rlim_t pinned = pinned_now(&lowered[n].before);

		note(", %llu pinned, %llu more", (unsigned long long)pinned, (unsigned long long)pages);
		limit.rlim_cur = (pinned + pages) * PAGE;
		length = (pages + 1) * PAGE;
	} else {
		limit.rlim_cur = 0;
	}
	if (limit.rlim_cur > limit.rlim_max)
		limit.rlim_cur = limit.rlim_max;
	must(setrlimit(limits[n].resource, &limit) == 0);
	lowered[n].until = step_number + (int)(word / 16 % 20);
	errno = 0;
	result = asks_for_it(n, length);
	note_result(result);
	if (result)
		happened(limits[n].refused);
	/* All that the limit allows: idle regions end to make room. */
	if (n == MEMLOCK && length > PAGE)
		pins_in_turn(length - PAGE, word / 512);
}

void limit_step(const struct step *step)
{
	int n = (int)(step->word[0] % LIMITS);

	if (lowered[n].until && step->word[1] % 2) {
		note("setrlimit(%s) as before", limits[n].name);
		raise_limit(n);
	} else {
		lower(n, step->word[2] % 3 > 0, step->word[3]);
	}
}

void no_files_step(const struct step *step)
{
	lower(NOFILE, true, step->word[0]);
}
