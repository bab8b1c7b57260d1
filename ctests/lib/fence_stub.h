/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A stand-in for the service `rdmamr fence`, in a /run of the test's own, and for the kernel's
 * counts: the program that has the stand-in of a device sees each system call that the library makes
 * by number, and counts those of the library's trial. It counts no change of the program's own. The
 * counters are a memfd and the links are files of text, and where the library reads what the kernel
 * says of them, it reads what the kernel would say of an array and of links.
 */
#ifndef FENCE_STUB_H
#define FENCE_STUB_H

#include <stdint.h>
#include <sys/types.h>

/* How the stand-in differs from the service. */
enum fence_kind {
	SERVES,
	NONE,            /* there is none */
	NOT_A_SOCKET,
	BY_ANOTHER,      /* the process runs as another user */
	DEAF,            /* nothing listens */
	NEVER_ACCEPTS,
	NEVER_ANSWERS,
	LATE,
	CLOSES,
	SHORT,
	LONG,
	GARBAGE,
	OTHER_VERSION,
	NO_FILES,
	FEW_FILES,
	MANY_FILES,
	VERY_MANY_FILES,
	UNMAPPABLE,
	WRITE_ONLY,
	COUNTS_NOTHING,  /* the service is right, and the kernel does not count */
	COUNTS_NO_MOVES,
	COUNTS_NO_UNMAPS,
	COUNTS_ELSEWHERE, /* the line of another process rises too at each change */
	/* What the kernel says of the files. */
	NOT_AN_ARRAY,    /* the truth: the counters are a file that the service writes as it likes */
	FORGED_LINKS,    /* files whose names have the words of a link in them, as a dma-buf's can */
	NOT_FROZEN,
	OF_ANOTHER_SIZE,
	NOT_A_PROGRAM,
	OTHER_PROGRAM,   /* a link that the counters do not name */
	LACKS_A_PROGRAM, /* one that they name does not come along */
	NAMES_NO_PROGRAM,
	WITHOUT_PROC,
};

/* The number of files that come with the right answer. */
enum { FENCE_FILES = 4 };

/* The process's counters, how many clients have asked, and how many of them have read the answer. */
struct fence_stub {
	_Atomic uint64_t *gaps, *open, *moves;
	_Atomic int *asked, *heard;
};
extern struct fence_stub fence_stub;

/*
 * Makes a /run of this process's own, and the counters. Returns NULL, or the reason if it cannot.
 * The programs that this one executes have both, and call fence_stub_inherit.
 */
const char *fence_stub_open(void);
void fence_stub_inherit(void);

/* Starts a service in a child, and returns it; 0 if this kind has no process. */
pid_t fence_stub_serve(enum fence_kind kind);

/* From now on counts in the library's trial. */
void fence_stub_count(enum fence_kind kind);

#endif
