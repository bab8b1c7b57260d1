/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program of this folder prints one line for each thing that it tries: a name, a tab, what came of it. It
 * is run without and with the library, and the two must be equal line by line. It asserts nothing itself:
 * libibverbs and the kernel are the reference.
 */
#ifndef VERDICT_H
#define VERDICT_H

#include "../device/device.h"

__attribute__((format(printf, 1, 2), unused))
static void verdict(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

/* What came of a registration that was just made: errno, or what the object says; then that of its deregistration. */
__attribute__((unused))
static void verdict_region(const char *name, struct ibv_pd *pd, void *addr, size_t length,
			   struct ibv_mr *mr)
{
	int err = errno, dereg;

	if (!mr) {
		verdict("%s\t%s", name, strerrorname_np(err));
		return;
	}
	printf("%s\tregistered%s%s%s%s%s", name, mr->context == pd->context ? "" : ", another context",
	       mr->pd == pd ? "" : ", another pd", mr->addr == addr ? "" : ", another address",
	       mr->length == length ? "" : ", another length",
	       mr->rkey == mr->lkey ? ", one key" : mr->rkey ? ", two keys" : ", no rkey");
	dereg = ibv_dereg_mr(mr);
	verdict(", deregistered %s", dereg ? strerrorname_np(dereg) : "0");
}

#endif
