/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Rows on the stand-in of a device, and registrations there, by plain calls if the row has them. */
#ifndef CTESTS_STUB_ROWS_H
#define CTESTS_STUB_ROWS_H

#include "device.h"
#include "memory.h"
#include "rows.h"
#include "stub_device.h"

/* on_stub() opens the device, runs the row, and checks row->then, if it is set, of a page with an idle region. */

/* Of rows: by both calls without pins; a setting that is unset. */
#define UNPINNED (BOTH_CALLS | NO_PINS)
#define NO_CACHE "RDMAMR_CACHE "

extern char *idle_page; /* of that check; another may take its place */
extern int row_rights;  /* those of reg(): LOCAL_AND_REMOTE unless the row sets others */

/* Registrations that must succeed: by plain calls or not. */
bool by_plain_calls(void);
struct ibv_mr *reg(void *at, size_t length);
void dereg(struct ibv_mr *mr);

/* Registers and deregisters. Whether the program sees the device's write, if the row has pins and remote rights. */
bool arrives(void *memory, size_t length);

/* Registers a page and deregisters it, and checks that the program sees the device's write. */
void once(void *page);

/* Registers it that often. Returns how often that registered nothing in the device. */
int hits(void *page, int times);
int hits_in(void *memory, size_t length, int times);

/* Leaves an idle region of the page, which has been reused; skips the row if the cache keeps none. */
void leave_idle(void *page);
void leave_idle_in(void *memory, size_t length);

/* The same, of a new page: no mapping of another thread lands there while the page is unmapped. */
char *idle(void);

/* Checks what the next registration of the page is. */
void served(void *page, enum served wanted, const char *when);

/*
 * The race that makes userfaultfd alone unsafe: another thread unmaps a page by a raw system call, this one maps it
 * anew before the library's reader begins to read the event, and checks that data lands. hold_reader() comes first.
 */
void hold_reader(void);
void release_reader(void);
void race(char *page);

/* The same, whose other thread this function makes. Whether the program has always seen the writes. */
typedef int thread_maker(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
bool lands_in_race(char *page, thread_maker *make);

/* The number of regions that the device has. */
long in_device(void);

/* Checks that soon no region is registered. */
void none_is_left(void);

#endif
