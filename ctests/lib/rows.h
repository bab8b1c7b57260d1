/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that is a table. Each row runs in a process of its own, started anew with the row's
 * settings, and is one result: a case of all its checks. "PROGRAM NAME" runs the rows whose names
 * contain NAME.
 *
 * In a row, skip_all() skips the row, and must() fails it. The row's process, and all that it has
 * left of its process group, is killed at the end of the row, or after DEADLOCK seconds.
 */
#ifndef CTESTS_ROWS_H
#define CTESTS_ROWS_H

#include "program.h"
#include "tap.h"

enum {
	BOTH_CALLS = 1, /* two rows: by the plain calls under RDMAMR_CACHE=all, and by the relaxed calls */
	NO_PINS = 2,    /* on_stub: the stand-in pins no memory, and does not move data */
	ROOT = 4,       /* on_pair: root alone runs it */
	NO_PAIR = 8,    /* on_pair: the row opens the device itself */
	PLAIN_CALLS = 16, /* by the plain calls under RDMAMR_CACHE=all */
};

/* What a registration must be. */
enum served {
	NOTHING,
	HIT,   /* of the idle region: nothing is registered */
	FRESH, /* of a new region */
	PLAIN, /* of a new region, each time, which ends with its deregistration */
};

/* A row names only what it needs. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
struct row {
	const char *name;
	void (*act)(void);
	long value;            /* for act, as are the next two */
	const void *of;
	enum served then;
	unsigned int flags;
	const char *settings;  /* beside the table's: "NAME=VALUE NAME=VALUE"; "NAME" unsets it */
	int times;             /* so many processes; 0: one */
};

/* The row of this process. */
extern const struct row *row;

#define ROWS(rows) rows, sizeof(rows) / sizeof(*(rows))

/* Runs the rows, each by `around`, which calls row->act(), or by row->act() itself. */
int run_rows(char **argv, const struct row *rows, size_t count, const char *settings, void (*around)(void));

/* The program of the table `rows`. */
#define RUN_ROWS(settings, around)                                            \
	int main(int argc, char **argv)                                      \
	{                                                                    \
		(void)argc;                                                  \
		return run_rows(argv, ROWS(rows), settings, around);         \
	}

/* Ends the row, and the process without its destructors. */
__attribute__((noreturn)) void row_ends(void);

/* Starts the row's process anew: the race that it needs was not met. */
__attribute__((noreturn)) void row_again(void);

/* For on_stub and on_pair, whose headers are stub_rows.h and pair_rows.h. */
void on_stub(void);
void on_pair(void);

#endif
