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
 * CHECK_KEEP=N,N,... for only these of its steps, CHECK_CACHE=all or =local.
 */
#include "../../lib/program.h"
#include "fuzz.h"
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 2000, LOG_FD = 45, ORDER_FD, NO_DEVICE = 77, FIXED_SEEDS = 160 };

/* --- The sequence of a seed. */

/* A generator of random numbers (splitmix64). */
static uint64_t draw(uint64_t *state)
{
	uint64_t value = *state += 0x9e3779b97f4a7c15;

	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
	value = (value ^ value >> 27) * 0x94d049bb133111eb;
	return value ^ value >> 31;
}

static uint32_t below(uint64_t *from, uint32_t limit) { return (uint32_t)((draw(from) >> 32) * limit >> 32); }

static int draw_kind(uint64_t *from)
{
	uint32_t sum = 0, at;
	int n = 0;

	for (int kind = 0; kind < kinds_count; kind++)
		sum += kinds[kind].weight;
	for (at = below(from, sum); at >= kinds[n].weight; n++)
		at -= kinds[n].weight;
	return n;
}

/* Recently drawn pages, for ranges that meet. */
struct range {
	int first, count;
};

static struct range draw_range(uint64_t *from, const struct range *lately)
{
	struct range range = lately[below(from, 6)];
	uint32_t how = below(from, 100);
	int window, pages;

	if (how < 45 && range.count) {
		if (how < 25)
			return range;
		if (how < 35) { /* a part */
			int skip = (int)below(from, (uint32_t)range.count);

			range.first += skip;
			range.count = 1 + (int)below(from, (uint32_t)(range.count - skip));
			return range;
		}
		/* an adjoining or overlapping range */
		range.first += (int)below(from, (uint32_t)range.count + 1);
	} else {
		range.first = (int)below(from, below(from, 5) ? PLACE_PAGES : ALL_PAGES);
	}
	if (range.first >= ALL_PAGES)
		range.first = ALL_PAGES - 1;
	pages = how % 10 < 5 ? 4 : how % 10 < 9 ? 16 : PLACE_PAGES;
	range.count = 1 + (int)below(from, (uint32_t)pages);
	window = range.first < PLACE_PAGES ? PLACE_PAGES : ALL_PAGES;
	if (range.first + range.count > window)
		range.count = window - range.first;
	return range;
}

static void draw_steps(uint64_t seed, struct step *steps, int count)
{
	uint64_t from = seed * 0x2545f4914f6cdd1d + 1;
	struct range lately[6] = { 0 };

	for (int n = 0; n < count; n++) {
		struct step *step = &steps[n];
		struct range range = draw_range(&from, lately);

		*step = (struct step){
			.kind = (uint8_t)(n ? draw_kind(&from) : 0),
			.thread = below(&from, 4) == 0,
			.raw = below(&from, 100) < 45,
			.first = (uint8_t)range.first,
			.count = (uint8_t)range.count,
			.other = (uint8_t)below(&from, below(&from, 8) ? PLACE_PAGES : ALL_PAGES),
		};
		for (int word = 0; word < WORDS; word++)
			step->word[word] = (uint32_t)draw(&from);
		if (n == 0) { /* memory to begin with: plain, or of a drawn kind */
			step->first = 0;
			step->count = PLACE_PAGES;
			memset(step->word, 0, below(&from, 4) ? sizeof(step->word) : 0);
		}
		lately[below(&from, 6)] = range;
	}
}

/* --- A run: the program that is started without and with the library. */

struct order {
	uint64_t seed;
	int count;
	bool keep[LONGEST];
	int show; /* the step of which everything is written; 0 for none */
};

/* A second thread takes steps in turn with the first, so that the order is the same in each run. */
static const struct step *step_of_second;
static pthread_barrier_t turn;

static void *second_thread(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&turn);
		run_step(step_of_second);
		pthread_barrier_wait(&turn);
	}
	return unused;
}

static void take(const struct step *step, bool with_thread)
{
	if (!step->thread || !with_thread) {
		run_step(step);
		return;
	}
	if (!step_of_second) {
		must(pthread_barrier_init(&turn, NULL, 2) == 0);
		must_start(second_thread, NULL);
	}
	step_of_second = step;
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);
}

static __attribute__((noreturn)) void run(void)
{
	static struct step steps[LONGEST];
	static struct order order[1];
	bool with_thread;
	uint64_t from;
	int every;

	must(pread(ORDER_FD, order, sizeof(order), 0) == sizeof(order));
	from = order->seed;
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

/* The next line of a log that is compared. */
static char *next_line(char **at)
{
	char *line;

	do
		line = strsep(at, "\n");
	while (line && *line == '#');
	return line ? line : "";
}

/* The cache's statistics in the runs with the library. */
static unsigned long long hits, invalidated;

static void count_hits(const char *text)
{
	unsigned long long more[2];

	text = strstr(text, "# hits");
	if (text && sscanf(text, "# hits %llu invalidated %llu", &more[0], &more[1]) == 2) {
		hits += more[0];
		invalidated += more[1];
	}
}

/* Where two logs differ: the lines of the run without the library and of the one with it. */
struct difference {
	char lines[2][1 << 13];
	int step;
};

/* Runs the sequence without and with the library. Returns whether the logs differ. */
static bool differs(const struct order *order, const char *cache, struct difference *difference, bool print)
{
	int fds[2] = { memfd_create("log", MFD_CLOEXEC), memfd_create("log", MFD_CLOEXEC) };
	char *logs[2], *at[2], *lines[2];
	int status[2];
	bool different = false;
	pid_t pids[2];

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
	for (int n = 0; different && n < 2; n++)
		snprintf(difference->lines[n], sizeof(difference->lines[n]), "%s", lines[n]);
	if (different)
		difference->step = atoi(lines[0]);
	/* The lines that follow a step that is shown. */
	while (print && different) {
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

/* Leaves out steps while a difference stays, for ten minutes at most. */
static void shorten(struct order *order, const char *cache, struct difference *difference)
{
	static struct difference now;
	double until = seconds_now() + 600;

	for (int n = difference->step; difference->step && n < order->count; n++)
		order->keep[n] = false;
	for (int size = order->count / 2; size > 0; size /= 2) {
		for (int from = 0; from < order->count && seconds_now() < until; from += size) {
			struct order fewer = *order;

			for (int n = from; n < from + size && n < order->count; n++)
				fewer.keep[n] = false;
			if (memcmp(&fewer, order, sizeof(fewer)) && differs(&fewer, cache, &now, false)) {
				*order = fewer;
				*difference = now;
			}
		}
	}
}

static void print_lines(const struct difference *difference)
{
	printf("#   without: %s\n#   with:    %s\n", difference->lines[0], difference->lines[1]);
	fflush(stdout);
}

static void show(struct order *order, const char *cache, struct difference *difference)
{
	const char *comma = "";

	printf("# seed %llu, RDMAMR_CACHE=%s: the first difference\n",
	       (unsigned long long)order->seed, cache);
	print_lines(difference);
	shorten(order, cache, difference);
	order->show = difference->step;
	printf("# the shortest sequence found:\n");
	if (!differs(order, cache, difference, true))
		printf("#   (it does not differ each time)\n");
	print_lines(difference);
	printf("# to repeat it: CHECK_SEED=%llu CHECK_STEPS=%d CHECK_CACHE=%s CHECK_KEEP=",
	       (unsigned long long)order->seed, order->count, cache);
	for (int n = 0; n < order->count; n++) {
		if (order->keep[n]) {
			printf("%s%d", comma, n + 1);
			comma = ",";
		}
	}
	printf(" LD_PRELOAD=... fuzz_memory\n");
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
