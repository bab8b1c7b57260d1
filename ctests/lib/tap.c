/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "tap.h"
#include <unistd.h>

int tap_count;
bool tap_in_row;

static struct {
	bool open;
	char name[300];
	long checks, failures;
	char skipped[300];  /* the reason of a skip within the case */
	char shown[4000]; /* the failures' text */
} now;

enum { MOST_SHOWN = 20 };

static char subject[300]; /* of about() */

/* Writes the text that a function's last arguments, from `format` on, are. */
#define write_text(text, format)                                               \
	do {                                                                   \
		va_list args;                                                  \
                                                                               \
		va_start(args, format);                                        \
		vsnprintf(text, sizeof(text), format, args);                   \
		va_end(args);                                                  \
	} while (0)

void about(const char *format, ...) { write_text(subject, format); }

static void result(bool passed, const char *name)
{
	printf("%sok %d - %s\n", passed ? "" : "not ", ++tap_count, name);
}

/* One check: a line of its own, or one of the case's. `detail` explains a failure. */
static void checked(bool passed, const char *words, const char *detail)
{
	size_t used = strlen(now.shown);
	char name[1200];

	snprintf(name, sizeof(name), "%s%s%s", subject, subject[0] ? ": " : "", words);
	if (!now.open) {
		result(passed, name);
		if (!passed)
			printf("# %s\n", detail);
		fflush(stdout);
		return;
	}
	now.checks++;
	if (passed)
		return;
	/* At once, for readers of a program that dies, and after the result, for readers of results only. */
	if (now.failures++ < MOST_SHOWN) {
		printf("# failed: %s: %s: %s\n", now.name, name, detail);
		snprintf(now.shown + used, sizeof(now.shown) - used, "# %s: %s\n", name, detail);
	}
	fflush(stdout);
}

int ok(int passed, const char *format, ...)
{
	char words[800], detail[100];
	int err = errno;

	write_text(words, format);
	snprintf(detail, sizeof(detail), "errno %d (%s)", err, strerror(err));
	checked(passed, words, detail);
	errno = err;
	return passed;
}

int is(long long got, long long want, const char *format, ...)
{
	char words[800], detail[100];

	write_text(words, format);
	snprintf(detail, sizeof(detail), "got %lld, want %lld", got, want);
	checked(got == want, words, detail);
	return got == want;
}

void case_begin(const char *format, ...)
{
	must(!now.open);
	memset(&now, 0, sizeof(now));
	write_text(now.name, format);
	now.open = true;
}

bool case_end(void)
{
	must(now.open);
	now.open = false;
	subject[0] = '\0';
	if (!now.checks && now.skipped[0]) {
		printf("ok %d - %s # SKIP %s\n", ++tap_count, now.name, now.skipped);
	} else if (!now.checks) {
		result(false, now.name);
		printf("# case without a check\n");
	} else {
		result(!now.failures, now.name);
		fputs(now.shown, stdout);
	}
	if (now.failures > MOST_SHOWN)
		printf("# and %ld more of its checks failed\n", now.failures - MOST_SHOWN);
	fflush(stdout);
	return (now.checks || now.skipped[0]) && !now.failures;
}

bool case_drop(void)
{
	must(now.open);
	if (!now.checks || now.failures)
		return false;
	now.open = false;
	return true;
}

void case_skip(const char *format, ...)
{
	write_text(now.skipped, format);
	if (!now.failures)
		now.checks = 0;
	case_end();
}

void skip(const char *name, const char *reason)
{
	if (now.open) {
		printf("# skipped: %s: %s: %s\n", now.name, name, reason);
		snprintf(now.skipped, sizeof(now.skipped), "%s", reason);
	} else {
		printf("ok %d - %s # SKIP %s\n", ++tap_count, name, reason);
	}
	fflush(stdout);
}

void skip_all(const char *reason)
{
	if (now.open) {
		case_skip("%s", reason);
	} else if (tap_count) {
		skip("the rest", reason);
	} else {
		printf("1..0 # SKIP %s\n", reason);
		exit(0);
	}
	if (tap_in_row)
		_exit(0);
	exit(done_testing());
}

int done_testing(void)
{
	must(!now.open);
	if (!tap_in_row)
		printf("1..%d\n", tap_count);
	return 0;
}

void bail_out(const char *file, int line, const char *condition)
{
	int err = errno;

	if (now.open)
		printf("# in the case: %s\n", now.name);
	printf("%s %s:%d: %s: %s\n", tap_in_row ? "# must:" : "Bail out!", file, line, condition, strerror(err));
	fflush(stdout);
	if (tap_in_row)
		_exit(1);
	exit(1);
}
