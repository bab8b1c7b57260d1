/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The changes of an address space, in one list (lib/changes.c). A row names a change, the ways to
 * make it, and the required answer of a registration cache. Three drivers go through the list:
 * cache/changes/changes.c by the relaxed calls and by the plain calls under RDMAMR_CACHE,
 * fabric/monitor/stale.c by libfabric's registration cache with RDMAMR_MONITOR.
 *
 * To add a change, add a function that makes it and a row.
 */
#ifndef CTESTS_CHANGES_H
#define CTESTS_CHANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ways to make a change: sets of memory calls. */
enum {
	LIBRARY, /* the functions of the C library, or whatever the row does */
	RAW,     /* raw system calls, which only the kernel's events report */
	SIBLING, /* a second function of the C library, which the row names */
	SELF,    /* process_madvise on the process itself */
	RING,    /* an io_uring, in the submitting thread */
	WORKER,  /* a kernel worker of an io_uring */
	WAYS,
};
#define BY(way) (1u << (way))

/* The memory calls of one way; NULL if the way lacks a call. They fail as the C library's do. */
struct way {
	void *(*map)(void *at, size_t length, int flags, int fd);
	int (*unmap)(void *at, size_t length);
	void *(*move)(void *from, size_t was, size_t wanted, int flags, void *to);
	int (*advise)(void *at, size_t length, int advice);
	int (*protect)(void *at, size_t length, int rights);
	int (*set_break)(char *end);
};
extern const struct way ways[WAYS];

/* What a registration after the change must find. */
enum expected {
	AS_STEP,     /* in a range: as the step says */
	ANEW,       /* other pages: a new region, and data lands in the current page */
	KEPT,        /* the same pages: a hit, and data lands */
	EITHER,      /* the same pages: a hit or a new region, and data lands */
	LANDS,       /* data lands, by a hit or a new region */
	READABLE,    /* a region that may write is refused as the kernel refuses it; one that may only read is good */
	OUT_OF_REACH,/* a region that may write is refused as the kernel refuses it */
	UNSEEN,      /* the same pages, fewer rights, and no event: refused, or data lands */
};

/* Memory that the test registers a region of. */
struct range {
	const char *what; /* its name, if the place has more than one range */
	char *at;
	size_t length;
	bool before; /* there before the change, and registered then */
	enum expected expected;
};

/* Where a change is made. */
struct place {
	char *at;
	size_t length;
	int fd;      /* of the mapped file; -1 without one */
	bool unkept; /* the cache keeps no region of such memory */
	struct range ranges[3];
	int count;
	void (*release)(struct place *place);
};

/* One part of a change. */
struct step {
	int (*make)(struct place *place, const struct way *way); /* 0, or -1 and errno if the kernel refuses */
	enum expected expected;
};

enum {
	ONCE = 1,         /* only with an idle region of all rights: the change depends on the state of malloc */
	NOT_BY_THREAD = 2,/* not from another thread */
	UNKNOWN_AFTER = 4,/* the kernel may take the pages at any time after the change */
};

struct change {
	const char *name;
	unsigned int by;    /* the ways to make it */
	unsigned int shown; /* the ways that the comparison with other monitors shows */
	void (*place)(struct place *place);
	struct step steps[2];
	unsigned int flags;
	unsigned int unseen;  /* the ways that no event reports: READABLE and OUT_OF_REACH become UNSEEN */
	unsigned int limits;  /* the ways after which a region may be stale, according to README's limits */
	int since;            /* the first kernel with the change, as LINUX(major, minor); 0: all */
	const char *sibling;  /* the function of SIBLING */
};
#define LINUX(major, minor) ((major) * 1000 + (minor))

extern const struct change changes[];
extern const size_t change_count;

/* The name of the change made in this way. */
const char *change_name(const struct change *change, int way);

/* The expectation for the range after the step, if it is made in this way. */
enum expected expected_of(const struct change *change, const struct step *step, const struct range *range, int way);

/* Ends the use of a place. */
void release(struct place *place);

/* Registers the memory in another domain, and deregisters it. The driver sets it. */
extern void (*another_domain_registers)(void *at, size_t length);

#endif
