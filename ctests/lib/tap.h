/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Test results of C programs, in the Test Anything Protocol. A check outside a case is a result
 * line of its own. The checks between case_begin() and case_end() make one result line together:
 * the case is what a person would name, and may have many checks.
 */
#ifndef CTESTS_TAP_H
#define CTESTS_TAP_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of result lines of this report. A program that continues another's report sets it. */
extern int tap_count;

/* Whether this process runs a row of a table (rows.h). */
extern bool tap_in_row;

/* Checks that `passed` is not 0; a failure shows errno. Returns `passed`. */
__attribute__((format(printf, 2, 3)))
int ok(int passed, const char *format, ...);

/* Checks that two numbers are equal; a failure shows both. Returns whether they are. */
__attribute__((format(printf, 3, 4)))
int is(long long got, long long want, const char *format, ...);

/* Checks the result of a call, or a condition; the name of the check is its text. */
#define gives(want, ...) is((long long)(__VA_ARGS__), (long long)(want), "%s", #__VA_ARGS__)
#define holds(...) ok(!!(__VA_ARGS__), "%s", #__VA_ARGS__)

/* What the checks from here on are about: words before each name, until the case ends or by an empty text. */
__attribute__((format(printf, 1, 2)))
void about(const char *format, ...);

/* Begins a case. Until case_end() only checks that fail print. A case without a check fails. Cases do not nest. */
__attribute__((format(printf, 1, 2)))
void case_begin(const char *format, ...);

/* Ends the case, and prints its result. Returns whether each check passed. */
bool case_end(void);

/* Ends the case without a result if it has checks and all of them passed. Returns whether it did. */
bool case_drop(void);

/* Makes a case of one statement. */
#define as_case(statement, ...)                                                \
	do {                                                                   \
		case_begin(__VA_ARGS__);                                       \
		statement;                                                     \
		case_end();                                                    \
	} while (0)

/* Ends the case as skipped, with the reason; as failed if a check has failed before. */
__attribute__((format(printf, 1, 2)))
void case_skip(const char *format, ...);

/* Reports that a test is skipped, and why: in a case a comment, and the result if the case has no check. */
void skip(const char *name, const char *reason);

/* Reports that the program, or what is left of it, is skipped, and why, and ends it. */
__attribute__((noreturn))
void skip_all(const char *reason);

/* Ends the report: return done_testing(). A program that ends without it has no plan, and so fails. */
int done_testing(void);

/* Set-up without which the test means nothing. */
#define must(condition)                                                        \
	do {                                                                   \
		if (!(condition))                                              \
			bail_out(__FILE__, __LINE__, #condition);              \
	} while (0)

/* Ends the program with the place, the condition and errno. */
__attribute__((noreturn))
void bail_out(const char *file, int line, const char *condition);

#endif
