/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The changes of an address space, one list (lib/changes.c). A row names a change, the ways to make
 * it, and what a cache of registrations must do about it. Three drivers go through the list:
 * relaxed/changes.c by the relaxed calls and by the plain calls under RDMAMR_CACHE, monitor/stale.c
 * by libfabric's registration cache with RDMAMR_MONITOR.
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
	BARE,    /* raw system calls, which only the kernel's events tell of */
	MIXED,   /* munmap as a raw system call, all others by the C library */
	SIBLING, /* a second function of the C library, which the row names */
	SELF,    /* process_madvise on the process itself */
	RING,    /* an io_uring, in the thread that submits */
	WORKER,  /* a kernel worker of an io_uring */
	PROCESS, /* another process */
	WAYS,
};
#define BY(way) (1u << (way))

/*
 * The memory calls of one way; NULL where the way has none. -1 and errno, or MAP_FAILED, if the
 * kernel refuses.
 */
struct way {
	void *(*map)(void *at, size_t length, int flags, int fd);
	int (*unmap)(void *at, size_t length);
	void *(*move)(void *from, size_t was, size_t wanted, int flags, void *to);
	int (*advise)(void *at, size_t length, int advice);
	int (*protect)(void *at, size_t length, int rights);
	int (*set_break)(char *end);
	int (*punch)(int fd, size_t length);
	int (*resize)(int fd, size_t length);
};
extern const struct way ways[WAYS];

/* What a registration after the change must find. */
enum expected {
	AS_STEP,     /* in a range: what the step says */
	FRESH,       /* other pages: a new region, and data lands in the page of now */
	KEPT,        /* the same pages: a hit, and data lands */
	EITHER,      /* the same pages: a hit or a new region, and data lands */
	LANDS,       /* data lands; how the region was made is not looked at */
	READABLE,    /* a region that may write is refused as the kernel refuses it; one that may read is good */
	OUT_OF_REACH,/* a region that may write is refused as the kernel refuses it */
	UNSEEN,      /* the same pages, less rights, and no event: refused, or data lands */
};

/* Memory of which a region is registered. */
struct range {
	const char *what; /* its name, if the place has more than one */
	char *at;
	size_t length;
	bool before; /* there before the change, and registered then */
	enum expected expected;
};

/* Where a change is made. */
struct place {
	char *at;
	size_t length;
	char *other; /* a second mapping, where the change needs one */
	int fd;      /* of a file that is mapped here; -1 if none is */
	bool unkept; /* memory that the cache keeps no region of, by its kind */
	struct range ranges[3];
	int count;
	char *emptied; /* a byte that must be 0 after the change */
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
	IN_A_THREAD = 4,  /* the place and the change are another thread's */
	UNKNOWN_AFTER = 8,/* the kernel may take the pages at any time after the change */
};

struct change {
	const char *name;
	unsigned int by;    /* the ways to make it */
	unsigned int shown; /* those of them that the comparison with other monitors shows */
	void (*place)(struct place *place);
	struct step steps[2];
	unsigned int flags;
	unsigned int unseen;  /* the ways of which no event tells: READABLE and OUT_OF_REACH become UNSEEN */
	unsigned int limits;  /* the ways by which a stale region is possible, as README's limits say */
	int since;            /* the first kernel that has it, as LINUX(major, minor); 0: each */
	const char *sibling;  /* the function of SIBLING */
};
#define LINUX(major, minor) ((major) * 1000 + (minor))

extern const struct change changes[];
extern const size_t change_count;

/* The name of the change made in this way. */
const char *change_name(const struct change *change, int way);

/* Whether this kernel must have the change, by its version. */
bool change_is_due(const struct change *change);

/* What must hold of the range after the step, made in this way. */
enum expected expected_of(const struct change *change, const struct step *step, const struct range *range, int way);

/* Ends the use of a place. */
void release(struct place *place);

/* Registers the memory in another domain, and deregisters it. A driver sets it. */
extern void (*another_domain_registers)(void *at, size_t length);

/*
 * Submits MADV_DONTNEED to an io_uring, for a worker or not. False if there is no io_uring for this
 * user.
 */
bool ring_begin_discard(void *at, size_t length, bool worker);

/* Waits for the result of the request. */
int ring_result(void);

#endif
