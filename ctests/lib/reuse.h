/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Relaxed registration and traffic. No translation is stale if data that the device writes arrives in the page
 * that the program sees now, and the device reads the data that the program writes there. The statistics show
 * whether the cache reused a region.
 *
 * CHECK_CALLS=plain has the tests call ibv_reg_mr and ibv_dereg_mr, which the cache serves under RDMAMR_CACHE=all.
 */
#ifndef CTESTS_REUSE_H
#define CTESTS_REUSE_H

#include <rdmamr/verbs.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "memory.h"
#include "pair.h"
#include "program.h"

/* libibverbs lacks these: without the library a program still links, and bails out. */
#pragma weak ibv_reg_mr_relaxed
#pragma weak ibv_dereg_mr_relaxed
#pragma weak ibv_flush_relaxed_mr

enum { WINDOW = 16 * PAGE };

/* The far end of every transfer, plainly registered. */
extern struct far {
	struct ibv_mr *mr;
	char *out, *in; /* data to send, and data that comes back */
	int others;     /* the open file's regions that are not relaxed */
} far;

/* The two sets of rights that most tests go through: remote and local ones, local ones. */
extern const int rights[2];
extern const char *const rights_names[2];

/* Whether the plain calls are under test: CHECK_CALLS=plain. */
bool plain_calls(void);

/* Registers by the calls under test. Plain calls take turns between ibv_reg_mr and ibv_reg_mr_iova2. */
struct ibv_mr *register_region(struct ibv_pd *pd, void *addr, size_t length, int access);
int deregister_region(struct ibv_mr *mr);

/*
 * The same, served by the cache, which does not serve a plain call about a new range, or about one that it has given
 * up: then the call is repeated. `before` has the statistics before the registration that counts.
 */
struct ibv_mr *register_by_cache(struct ibv_pd *pd, void *addr, size_t length, int access,
				struct rdmamr_stats *before);

/* Connects a pair. Skips the program if userfaultfd is refused: then the cache keeps no region. */
void relaxed_open(struct pair *pair);

/* Flushes, checks that the kernel has no relaxed region left, and closes the pair. */
void relaxed_end(struct pair *pair);

/*
 * Whether data lands both ways in the page that the program sees: by the rkey if `remote` (it needs remote write and
 * read), else by the lkey (local write). Tests all of up to 256 KiB, some pages of more. Changes the memory.
 */
int all_lands(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length, bool remote);
#define lands_in(pair, mr, memory, length) all_lands(pair, mr, memory, length, true)
#define lands_by_lkey(pair, mr, memory, length) all_lands(pair, mr, memory, length, false)

/* Whether the device reads what the program sees: by the rkey if it may read remotely, else by the lkey. */
bool is_read_by_device(struct pair *pair, const struct ibv_mr *mr, char *memory, size_t length,
		       int access);

/* Whether a transfer succeeded. Prints its status if not. */
int status_is_good(int status, const char *what);

/* Registers, moves data both ways, deregisters. Plain calls repeat until the cache serves one. */
int lands_with(struct pair *pair, void *memory, size_t length, int access);

/* The same with all remote rights, and with local rights only. */
#define lands(pair, memory, length) lands_with(pair, memory, length, LOCAL_AND_REMOTE)
#define lands_local(pair, memory, length) lands_with(pair, memory, length, IBV_ACCESS_LOCAL_WRITE)

/* The number of registrations that bypassed the cache, those of new ranges included. */
uint64_t bypassed(const struct rdmamr_stats *now);

/* Whether the one registration between the two was a hit. */
bool reused(struct rdmamr_stats before, struct rdmamr_stats after);

/* Whether it made a region in the kernel, by the cache or without it. */
bool made_anew(struct rdmamr_stats before, struct rdmamr_stats after);

/* Prints the statistics that differ. */
void show(struct rdmamr_stats before, struct rdmamr_stats after);

/*
 * Checks that the second registration of unchanged memory is a hit, which leaves an idle region. It tries for two
 * seconds: an earlier change may be on its way, and where pages were just dropped no region is kept for a second.
 */
int control_with(struct pair *pair, const char *name, void *memory, size_t length, int access);
#define control(pair, name, memory, length) control_with(pair, name, memory, length, LOCAL_AND_REMOTE)

/*
 * Checks that the cache keeps no region of memory that the watch cannot see completely. The first ends when the
 * cache asks the kernel about the memory, at the next registration or a moment later.
 */
int not_kept_with(struct pair *pair, const char *name, void *memory, size_t length, int access);

/* Checks, after a change, that data lands in the current page, by a new region. */
int anew_with(struct pair *pair, const char *name, void *memory, size_t length, int access);
#define anew(pair, name, memory, length) anew_with(pair, name, memory, length, LOCAL_AND_REMOTE)

/* Checks, after a change that leaves the pages, that data lands. A hit and a miss are both right. */
int either_with(struct pair *pair, const char *name, void *memory, size_t length, int access);
#define either(pair, name, memory, length) either_with(pair, name, memory, length, LOCAL_AND_REMOTE)

/* Checks, after a change that must not cost a registration, that data lands, and that it was a hit. */
int still_with(struct pair *pair, const char *name, void *memory, size_t length, int access);
#define still(pair, name, memory, length) still_with(pair, name, memory, length, LOCAL_AND_REMOTE)

/* Whether the device refuses a write by this key, and changes nothing. */
int write_refused(struct pair *pair, char *memory, uint32_t rkey);

#endif
