/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program of differential/ prints a line for each attempt: a name, a tab, the outcome. It asserts nothing itself. */
#ifndef CTESTS_VERDICT_H
#define CTESTS_VERDICT_H

#include "device.h"

__attribute__((format(printf, 1, 2)))
void verdict(const char *format, ...);

/* Prints the outcome of a registration, errno or the object's fields, and of its deregistration. */
void verdict_region(const char *name, struct ibv_pd *pd, void *addr, size_t length, struct ibv_mr *mr);

/* LOCAL_AND_REMOTE, or LOCAL_WRITE on a device that takes no remote access (efa, Linux 6.1). */
int taken_rights(struct ibv_pd *pd, void *page);

/* The name of an errno; "0" for none. */
const char *name_of(int err);

#endif
