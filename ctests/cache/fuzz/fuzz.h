/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The differential fuzzer of memory calls. memory.c draws sequences and compares their runs,
 * calls.c makes the calls, look.c writes the memory as a program sees it, and regions.c registers
 * memory and lets the device read and write it.
 *
 * Most memory is in two windows. A page has a number: the first PLACE_PAGES are the place, at a
 * fixed address around a boundary of 2 MiB; the rest are the heap, above the initial break.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../lib/memory.h"
#include "../../lib/tap.h"

enum { PLACE_PAGES = 96, HEAP_PAGES = 24, ALL_PAGES = PLACE_PAGES + HEAP_PAGES, REGIONS = 6, WORDS = 8 };

/* A step of a sequence: a kind of call, where, and drawn words that the kind makes arguments of. */
struct step {
	uint8_t kind, thread;
	bool raw;               /* a raw system call, by its number */
	uint8_t first, count;   /* pages */
	uint8_t other;          /* a second page */
	uint32_t word[WORDS];
};

/* --- calls.c: one row for each kind of call. */
struct kind {
	const char *name;
	unsigned int weight; /* how often it is drawn */
	void (*run)(const struct step *step);
};
extern const struct kind kinds[];
extern const int kinds_count;

/* Prepares files, segments and windows. */
void calls_open(void);

/* Makes the call of a step, and writes its answer to the log. */
void run_step(const struct step *step);

/* The number of the running step; it is also the value that the step writes to memory. */
extern int step_number;
/* Whether the sequence drops no pages by raw system calls. */
extern bool calm_sequence;

/* --- look.c */

char *page_at(int page);
/* Adds text to the log. */
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);
/* Writes the line of a step to the log's file. */
void note_end(void);
/* Writes an argument to the log: an address of the windows relative to its window. */
void note_value(long value);
/* Writes the result of a call to the log: a number, an address of the windows, or an errno. */
void note_result(long result);

/* Opens the log. */
void look_open(int fd);
/* Sets up the windows; the heap begins at the current break. */
void look_windows(void);
/* The content of these bytes as one number. `fault`: how the first access fails, 0 if none does. */
uint64_t look_bytes(const void *at, size_t length, int *fault);
/* Writes 8 bytes. Returns how the access fails, 0 if it succeeds. */
int poke(char *at, uint64_t value);
/* The content and the faults of all pages as one number; with `show`, each page to the log. */
uint64_t look_pages(bool show);
/* The mappings of the windows, and their flags, as one number; `show` writes each page. */
uint64_t look_mappings(bool flags, bool show);

/* --- regions.c */

void regions_open(void);
void register_step(const struct step *step);
void deregister_step(const struct step *step);
void device_step(const struct step *step);
void regions_close(void);
/* Whether any of these pages was registered since it was mapped. */
bool was_registered(const void *at, size_t length);
/* These pages are new ones. */
void is_new(const void *at, size_t length);

#endif
