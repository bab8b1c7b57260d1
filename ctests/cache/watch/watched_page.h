/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A page that the stand-in device writes to, and a relaxed region of it: the data shows whether the
 * region has the page.
 */
#ifndef CTESTS_WATCHED_PAGE_H
#define CTESTS_WATCHED_PAGE_H

#include <errno.h>
#include <sched.h>
#include "../../lib/device.h"
#include "../../lib/stub_device.h"

static inline bool lands_at(const struct ibv_mr *mr, volatile char *memory, char value)
{
	*memory = (char)~value;
	must(stub_write(mr, (unsigned char)value) == 0);
	return *memory == value;
}

static inline struct ibv_mr *registered(void *memory)
{
	struct ibv_mr *mr;

	while (!(mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE))) {
		must(errno == EAGAIN);
		sched_yield();
	}
	return mr;
}

/* Leaves an idle region of the page that has been reused. */
static inline void idle_region(char *memory)
{
	for (int round = 0; round < 2; round++)
		must(ibv_dereg_mr_relaxed(registered(memory)) == 0);
}

static inline bool is_right(char *memory, char value)
{
	struct ibv_mr *mr = registered(memory);
	bool right = lands_at(mr, memory, value);

	must(ibv_dereg_mr_relaxed(mr) == 0);
	return right;
}

#endif
