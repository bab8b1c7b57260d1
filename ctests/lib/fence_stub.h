/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for the service `rdmamr fence`, in a /run of the test's own, and for the kernel's counts: of the system
 * calls that the library makes by number in its trial, which the stand-in of a device sees. The counters are a memfd
 * and the links files of text: where the library reads what the kernel says of them, it reads what it would say.
 */
#ifndef FENCE_STUB_H
#define FENCE_STUB_H

#include <stdint.h>

/* How the stand-in differs from the service, in words of the rows of fence_client.c. */
#define FENCE_FAULTS(fault) \
	fault(NONE, "no service") \
	fault(NOT_A_SOCKET, "a file in the socket's place") \
	fault(BY_ANOTHER, "another user's process") \
	fault(DEAF, "a socket at which nothing listens") \
	fault(NEVER_ACCEPTS, "a service that hangs before it accepts") \
	fault(NEVER_ANSWERS, "a service that hangs") \
	fault(LATE, "an answer after the limit") \
	fault(CLOSES, "no answer") \
	fault(SHORT, "a short answer") \
	fault(LONG, "a long answer") \
	fault(OTHER_VERSION, "another version") \
	fault(FEW_FILES, "too few files") \
	fault(MANY_FILES, "too many files") \
	fault(VERY_MANY_FILES, "far too many files") \
	fault(UNMAPPABLE, "a file that cannot be mapped") \
	fault(WRITE_ONLY, "a file that cannot be read") \
	fault(COUNTS_NOTHING, "counters that stand still") \
	fault(COUNTS_NO_MOVES, "counters without moves") \
	fault(COUNTS_NO_UNMAPS, "counters without unmaps") \
	fault(COUNTS_ELSEWHERE, "counters on which two lines rise at each change") \
	fault(NOT_AN_ARRAY, "counters that are no array of the kernel's") \
	fault(FORGED_LINKS, "programs whose words are forged in the name of another file") \
	fault(NOT_FROZEN, "counters that are not frozen") \
	fault(OF_ANOTHER_SIZE, "counters of another size") \
	fault(NOT_A_PROGRAM, "a file that is no program") \
	fault(OTHER_PROGRAM, "a program of other counters") \
	fault(LACKS_A_PROGRAM, "a program that does not come along") \
	fault(NAMES_NO_PROGRAM, "counters that name no program") \
	fault(WITHOUT_PROC, "no /proc")
#define FENCE_FAULT(kind, words) kind,
enum fence_kind { SERVES, FENCE_FAULTS(FENCE_FAULT) };

/* The number of files that come with the right answer. */
enum { FENCE_FILES = 4 };

/* The process's counters, how many clients have asked, and how many of them have read the answer. */
struct fence_stub {
	_Atomic uint64_t *gaps, *open, *moves;
	_Atomic int *asked, *heard;
};
extern struct fence_stub fence_stub;

/* Makes a /run of its own, and the counters; the reason if it cannot. Programs that it executes inherit both. */
const char *fence_stub_open(void);
void fence_stub_inherit(void);

/* Starts a service in a child, if this kind has one. */
void fence_stub_serve(enum fence_kind kind);

/* From now on counts in the library's trial. */
void fence_stub_count(enum fence_kind kind);

#endif
