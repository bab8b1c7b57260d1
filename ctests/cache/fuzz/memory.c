/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The cache changes nothing that a program can see of its memory: random sequences of memory calls,
 * by the C library and by raw system calls, with registrations between, run without the library and
 * with it (RDMAMR_CACHE=all and =local). After each step both runs write the call's answer and the
 * memory as the process sees it: contents, faults, mappings. The logs must be equal. After each
 * registration the device reads and writes by the region, so that a stale one shows too.
 *
 * Usage: fuzz_memory [STEPS]: sequences of that many steps in sum. The seeds are 1, 2, 3, ...
 * FIXED_SEEDS, so that a check of the same source does the same each time: a difference that a new
 * seed finds would hit the author of an unrelated change. Steps beyond those are of new seeds.
 *
 * The test prints the first difference with the shortest sequence found that shows it, and with the
 * settings that repeat it: CHECK_SEED=N for one seed, CHECK_STEPS=N for the length of a sequence,
 * CHECK_KEEP=N,N,... for only these of its steps, CHECK_CACHE=all or =local. CHECK_SHOW=N prints the
 * sequence, and all that is seen after step N.
 */
#include "../../lib/program.h"
#include "fuzz.h"
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/personality.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 2000, LOG_FD = 45, ORDER_FD, NO_DEVICE = 77, FIXED_SEEDS = 160 };

/* The settings of a run. */
struct order {
	uint64_t seed;
	int count;
	bool keep[LONGEST];
	int show; /* the step of which everything is written; 0 for none */
};

/* --- A run: the program that is started without and with the library. */

static struct {
	pthread_t thread;
	bool is_there;
	sem_t go, done;
	const struct step *step;
} second;

static void *second_thread(void *argument)
{
	while (!sem_wait(&second.go)) {
		run_step(second.step);
		sem_post(&second.done);
	}
	return argument;
}

/* A second thread takes steps in turn with the first, so that the order is the same in each run. */
static void take(const struct step *step, bool with_thread)
{
	if (!step->thread || !with_thread) {
		run_step(step);
		return;
	}
	if (!second.is_there) {
		must(sem_init(&second.go, 0, 0) == 0 && sem_init(&second.done, 0, 0) == 0);
		must(pthread_create(&second.thread, NULL, second_thread, NULL) == 0);
		second.is_there = true;
	}
	second.step = step;
	sem_post(&second.go);
	while (sem_wait(&second.done))
		;
}

static __attribute__((noreturn)) void run(void)
{
	static struct step steps[LONGEST];
	static struct order order[1];
	struct draw from;
	bool with_thread;
	int every;

	must(pread(ORDER_FD, order, sizeof(order), 0) == sizeof(order));
	from = (struct draw){ order->seed };
	with_thread = below(&from, 3) > 0;
	every = below(&from, 2) ? 1 : 5;

	/* A guard against calls that never return, far above the time of any sequence. */
	alarm(120);
	calm_sequence = below(&from, 3) > 0;
	draw_steps(order->seed, steps, order->count);
	look_open(LOG_FD);
	regions_open();
	calls_open();
	for (int n = 0; n < order->count; n++) {
		bool shown = order->show == n + 1, flags = n % 64 == 63 || shown;

		if (!order->keep[n])
			continue;
		step_number = n + 1;
		take(&steps[n], with_thread);
		if (n % every == 0 || shown)
			note(" | pages %016llx", (unsigned long long)look_pages(false));
		if (n % 4 == 3 || shown)
			note(" mappings %016llx", (unsigned long long)look_mappings(false, false));
		if (flags)
			note(" flags %016llx", (unsigned long long)look_mappings(true, false));
		note_end();
		if (shown) {
			look_pages(true);
			look_mappings(true, true);
		}
	}
	regions_close();
	note("the end");
	note_end();
	exit(0);
}

/* --- The comparison. */

static const char *preload;

bool is_linux(int major, int minor)
{
	struct utsname kernel;
	int has[2] = { 0 };

	must(uname(&kernel) == 0 && sscanf(kernel.release, "%d.%d", &has[0], &has[1]) == 2);
	return has[0] > major || (has[0] == major && has[1] >= minor);
}

static pid_t start(const struct order *order, const char *cache, int log)
{
	int file = memfd_create("order", MFD_CLOEXEC);
	pid_t pid = must_fork();

	if (pid) {
		close(file);
		return pid;
	}
	must(write(file, order, sizeof(*order)) == sizeof(*order) &&
	     dup2(file, ORDER_FD) == ORDER_FD);
	must(dup2(log, LOG_FD) == LOG_FD);
	if (cache) {
		setenv("LD_PRELOAD", preload, 1);
		setenv("RDMAMR_CACHE", cache, 1);
		setenv("RDMAMR_CACHE_LINGER", "1000000", 1);
	} else {
		unsetenv("LD_PRELOAD");
	}
	personality(ADDR_NO_RANDOMIZE);
	execl("/proc/self/exe", "fuzz_memory", "--run", NULL);
	must(!"execl");
	return -1;
}

/* The log of a run, when it has ended. Its last line is the exit status. */
static char *log_of(int fd, pid_t pid, int *status)
{
	off_t length;
	char *text;

	must(waitpid(pid, status, 0) == pid);
	length = lseek(fd, 0, SEEK_END);
	text = malloc((size_t)length + 64);
	must(text && pread(fd, text, (size_t)length, 0) == length);
	sprintf(text + length, "exit status %#x\n", (unsigned int)*status);
	close(fd);
	return text;
}

/* A difference: the lines of both runs. */
struct difference {
	char without[1 << 13], with[1 << 13];
	int step;
};

/* The cache's statistics in the runs with the library. */
static unsigned long long hits, invalidated;

/* The next line that is compared. */
static char *next_line(char **at)
{
	char *line;

	do
		line = strsep(at, "\n");
	while (line && *line == '#');
	return line ? line : "";
}

static void count_hits(const char *text)
{
	unsigned long long more[4];

	text = strstr(text, "# hits");
	if (text && sscanf(text, "# hits %llu misses %llu bypassed %llu invalidated %llu", &more[0], &more[1], &more[2],
			   &more[3]) == 4) {
		hits += more[0];
		invalidated += more[3];
	}
}

/* A kind of step that never occurs would compare nothing. */
static long kind_times[64];

static void each_has_come(bool judged)
{
	int missing = 0;

	printf("# steps:");
	for (int n = 0; n < kinds_count; n++) {
		printf(" %s %ld%s", kinds[n].name, kind_times[n], n < kinds_count - 1 ? "," : "\n");
		missing += !kind_times[n];
	}
	if (judged)
		is(missing, 0, "each kind of step has occurred");
}

/* Runs the sequence without and with the library. Returns whether the logs differ. */
static bool differs(const struct order *order, const char *cache, struct difference *difference, bool print)
{
	int fds[2] = { memfd_create("log", MFD_CLOEXEC), memfd_create("log", MFD_CLOEXEC) };
	char *logs[2], *at[2], *lines[2];
	int status[2];
	pid_t pids[2];
	bool different = false;

	must(fds[0] >= 0 && fds[1] >= 0);
	for (int n = 0; n < 2; n++)
		pids[n] = start(order, n ? cache : NULL, fds[n]);
	for (int n = 0; n < 2; n++)
		at[n] = logs[n] = log_of(fds[n], pids[n], &status[n]);
	if (WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == NO_DEVICE)
		skip_all("the kernel refuses io_uring, by which the device of this test pins memory");
	count_hits(logs[1]);
	while (!different && (at[0] || at[1])) {
		for (int n = 0; n < 2; n++)
			lines[n] = next_line(&at[n]);
		if (print && strncmp(lines[0], "  ", 2))
			printf("#   %s\n", lines[0]);
		different = strcmp(lines[0], lines[1]);
	}
	if (different) {
		snprintf(difference->without, sizeof(difference->without), "%s", lines[0]);
		snprintf(difference->with, sizeof(difference->with), "%s", lines[1]);
		difference->step = atoi(lines[0]);
	}
	/* The lines that follow a step that is shown. */
	for (int shown = 0; print && different && shown < 400; shown++) {
		for (int n = 0; n < 2; n++)
			lines[n] = next_line(&at[n]);
		if (strncmp(lines[0], "  ", 2) || strncmp(lines[1], "  ", 2))
			break;
		if (strcmp(lines[0], lines[1]))
			printf("#   without:%s\n#   with:   %s\n", lines[0], lines[1]);
	}
	free(logs[0]);
	free(logs[1]);
	return different;
}

/* Whether two differences are of one kind: the same call, and both with a stale region or without. */
static bool alike(const struct difference *one, const struct difference *two, const struct step *steps)
{
	if (!strstr(one->with, "STALE") != !strstr(two->with, "STALE") || !one->step != !two->step)
		return false;
	return !one->step || steps[one->step - 1].kind == steps[two->step - 1].kind;
}

/* Leaves out steps while the difference stays. */
static void shorten(struct order *order, const char *cache, struct difference *difference)
{
	static struct step steps[LONGEST];
	static struct difference now;
	/* A run that hangs takes as long as its guard. */
	int most = strstr(difference->with, "exit status 0xe") ? 30 : 600, tries = 0;

	draw_steps(order->seed, steps, order->count);
	for (int n = difference->step; difference->step && n < order->count; n++)
		order->keep[n] = false;
	for (int size = order->count / 2; size > 0 && tries < most; size /= 2) {
		for (int from = 0; from < order->count && tries < most; from += size) {
			struct order fewer = *order;
			bool any = false;

			for (int n = from; n < from + size && n < order->count; n++) {
				any |= fewer.keep[n];
				fewer.keep[n] = false;
			}
			if (!any)
				continue;
			tries++;
			if (differs(&fewer, cache, &now, false) && alike(&now, difference, steps)) {
				*order = fewer;
				*difference = now;
			}
		}
	}
}

static void show(struct order *order, const char *cache, struct difference *difference)
{
	int steps = 0;

	printf("# seed %llu, RDMAMR_CACHE=%s: the first difference\n#   without: %s\n#   with:    %s\n",
	       (unsigned long long)order->seed, cache, difference->without, difference->with);
	fflush(stdout);
	shorten(order, cache, difference);
	order->show = difference->step;
	printf("# the shortest sequence found:\n");
	if (!differs(order, cache, difference, true))
		printf("#   (it does not differ each time)\n");
	printf("#   without: %s\n#   with:    %s\n# to repeat it: CHECK_SEED=%llu CHECK_STEPS=%d CHECK_CACHE=%s CHECK_KEEP=",
	       difference->without, difference->with, (unsigned long long)order->seed, order->count, cache);
	for (int n = 0; n < order->count; n++)
		if (order->keep[n])
			printf("%s%d", steps++ ? "," : "", n + 1);
	printf(" LD_PRELOAD=... fuzz_memory\n");
	fflush(stdout);
}

/* Compares the runs of one seed. Returns whether they are equal. */
static bool equal(uint64_t seed, int count, const char *cache)
{
	static struct difference difference;
	static struct step steps[LONGEST];
	struct order order = { .seed = seed, .count = count };
	const char *keep = getenv("CHECK_KEEP");

	draw_steps(seed, steps, count);
	for (int n = 0; n < count; n++) {
		order.keep[n] = !keep;
		kind_times[steps[n].kind] += !keep;
	}
	for (char *at = (char *)keep; at && *at; at += *at == ',') {
		long n = strtol(at, &at, 10);

		must(n > 0 && n <= count);
		order.keep[n - 1] = true;
	}
	if (getenv("CHECK_SHOW")) {
		order.show = atoi(getenv("CHECK_SHOW"));
		return !differs(&order, cache, &difference, true);
	}
	if (!differs(&order, cache, &difference, false))
		return true;
	show(&order, cache, &difference);
	return false;
}

int main(int argc, char **argv)
{
	static const char *const caches[] = { "all", "all", "local" };
	const char *one = getenv("CHECK_SEED"), *steps = getenv("CHECK_STEPS"), *only = getenv("CHECK_CACHE");
	int count = steps ? atoi(steps) : 250, wrong = 0;
	long sum = argc > 1 ? atol(argv[1]) : FIXED_SEEDS * (long)count, done = 0;
	uint64_t fresh = (uint64_t)time(NULL) % 1000000 * 1000;

	if (argc > 1 && !strcmp(argv[1], "--run"))
		run();
	preload = getenv("LD_PRELOAD");
	must(preload && count > 0 && count <= LONGEST);
	if (!one && sum > FIXED_SEEDS * (long)count)
		printf("# seeds 1 to %d, then from %llu on, %d steps each\n", FIXED_SEEDS,
		       (unsigned long long)fresh + FIXED_SEEDS, count);
	for (uint64_t n = 0; done < sum && wrong < 5; n++, done += count) {
		uint64_t seed = one ? strtoull(one, NULL, 0) : n < FIXED_SEEDS ? n + 1 : fresh + n;

		wrong += !equal(seed, count, only ? only : caches[n % 3]);
		if (one && n == (only ? 0 : 2))
			break;
	}
	is(wrong, 0, "without and with the library: the same answers, contents, faults and mappings in %ld steps", done);
	ok(one || (hits > (unsigned long long)done / 200 && invalidated > (unsigned long long)done / 200),
	   "meanwhile regions were reused %llu times, and invalidated %llu times", hits, invalidated);
	each_has_come(!one && !getenv("CHECK_KEEP") && done >= FIXED_SEEDS * 250L);
	return done_testing();
}
