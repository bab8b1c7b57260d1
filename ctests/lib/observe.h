/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The process and its regions as the kernel reports them, without the library. */
#ifndef CTESTS_OBSERVE_H
#define CTESTS_OBSERVE_H

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include "reuse.h"

enum { MOST_REGIONS = 4096 };

/*
 * Lists the device's regions, of any process, by a dump of its resources: a query of a single one would hold it,
 * and another thread's deregistration could fail with EBUSY. The kernel reports the keys to root only.
 */
struct kernel_region {
	uint32_t lkey, pid;
};
int device_regions(struct ibv_context *context, struct kernel_region *list, int most);

/* Whether any region of the device has this lkey. A deregistered region has none. */
bool kernel_has_key(struct ibv_context *context, uint32_t lkey);

/* Skips the program unless root runs it. First in a test that asks for keys. */
void as_root(void);

/* The number of pages that are pinned for devices: the kernel charges them to RLIMIT_MEMLOCK. */
long pinned(void);

/* Gives up the right to pin without limit; unless `permitted`, its effect only. The file of an open device keeps it. */
void give_up_memlock_right(bool permitted);
#define drop_memlock_right() give_up_memlock_right(true)

/* Lowers RLIMIT_MEMLOCK: from now on at most `more` pages more can be pinned. */
void allow_pins(long more);

#endif
