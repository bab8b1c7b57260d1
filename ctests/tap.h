/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Test results of C programs, in the Test Anything Protocol. */
#ifndef TAP_H
#define TAP_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_count;

/* Reports one check; false goes to the report with the errno of now. */
__attribute__((format(printf, 2, 3), unused))
static int ok(int passed, const char *format, ...)
{
	int err = errno;
	va_list args;

	printf("%sok %d - ", passed ? "" : "not ", ++tap_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	if (!passed)
		printf("# errno %d (%s)\n", err, strerror(err));
	fflush(stdout);
	errno = err;
	return passed;
}

/* Reports that two numbers are equal, or both of them. */
__attribute__((format(printf, 3, 4), unused))
static int is(long long got, long long want, const char *format, ...)
{
	va_list args;

	printf("%sok %d - ", got == want ? "" : "not ", ++tap_count);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	if (got != want)
		printf("# got %lld, want %lld\n", got, want);
	fflush(stdout);
	return got == want;
}

__attribute__((unused))
static void skip(const char *name, const char *reason)
{
	printf("ok %d - %s # SKIP %s\n", ++tap_count, name, reason);
}

__attribute__((unused))
static void skip_all(const char *reason)
{
	printf("1..0 # SKIP %s\n", reason);
	exit(0);
}

/* Ends the report. A program that stops before has no plan, and fails for that. */
__attribute__((unused))
static int done_testing(void)
{
	printf("1..%d\n", tap_count);
	return 0;
}

/* Set-up that must work for the test to mean anything. */
#define must(condition)                                                        \
	do {                                                                   \
		if (!(condition)) {                                            \
			printf("Bail out! %s:%d: %s: %s\n", __FILE__,          \
			       __LINE__, #condition, strerror(errno));         \
			exit(1);                                               \
		}                                                              \
	} while (0)

#endif
