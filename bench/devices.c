/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times the registration of the same memory on several devices: one call after the other, and on
 * the first two devices at once, by two threads on two processors. It does so by libibverbs and by
 * this library, in one process and in turn. The stub (ctests/lib/stub_device.h) pins as the kernel
 * does for RDMA, and counts as four devices.
 *
 * Usage: devices DEVICE,DEVICE...|stub ROUNDS MIB...
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include "../ctests/lib/stub_device.h"
#include "device.h"
#include "median.h"
#include "memory.h"

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
enum { MOST = 4, AT_ONCE = MOST, TIMES };
enum { THEIRS, OURS, WAYS };

/* ibv_reg_mr of libibverbs calls it by the dynamic linker, and so would reach this library. */
static struct ibv_mr *(*their_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static struct ibv_mr *(*reg[WAYS])(struct ibv_pd *, void *, size_t, int);
static int (*dereg[WAYS])(struct ibv_mr *);
static struct ibv_pd *pds[MOST];
static int devices;

static struct ibv_mr *their_reg(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return their_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct call {
	int way, device;
	char *memory;
	size_t length;
	struct ibv_mr *mr;
	double end;
	_Atomic int processor;
};
static _Atomic bool go;

static void make(struct call *call)
{
	call->mr = reg[call->way](pds[call->device], call->memory, call->length, ACCESS);
	call->end = now();
	if (!call->mr)
		die("a registration");
}

static void *on_another(void *argument)
{
	struct call *call = argument;

	while (!go)
		call->processor = sched_getcpu();
	make(call);
	return NULL;
}

static double at_once(struct call calls[])
{
	pthread_t thread;
	double start;

	go = false;
	calls[1].processor = -1;
	if (pthread_create(&thread, NULL, on_another, &calls[1]))
		die("pthread_create");
	while (calls[1].processor < 0 || calls[1].processor == sched_getcpu())
		;
	start = now();
	go = true;
	make(&calls[0]);
	pthread_join(thread, NULL);
	return (calls[0].end > calls[1].end ? calls[0].end : calls[1].end) - start;
}

/* The times of the calls one after the other, or of two calls at once. */
static void measure(int way, bool together, char *memory, size_t length, double times[])
{
	struct call calls[MOST];
	int count = together ? 2 : devices;

	for (int n = 0; n < count; n++)
		calls[n] = (struct call){ .way = way, .device = n, .memory = memory, .length = length };
	if (together)
		times[AT_ONCE] = at_once(calls);
	else
		for (int n = 0; n < count; n++) {
			double start = now();

			make(&calls[n]);
			times[n] = calls[n].end - start;
		}
	for (int n = 0; n < count; n++) {
		errno = dereg[way](calls[n].mr);
		if (errno)
			die("a deregistration");
	}
}

static void compare(size_t mib, bool huge, bool touched, int rounds)
{
	double values[WAYS][TIMES][rounds], ratios[rounds], times[TIMES] = { 0 }, both;
	size_t length = mib << 20;
	char *memory = NULL, *mapping = NULL;

	if (touched) {
		memory = map(length, huge, &mapping);
		memset(memory, 1, length);
	}
	/* The first round is not counted, and the sides take turns to go first. */
	for (int round = -1; round < rounds; round++)
		for (int turn = 0; turn < 2 * WAYS; turn++) {
			int way = (turn + round + 1) / 2 % WAYS;
			bool together = (turn + round + 1) % 2;

			if (!touched) {
				back(length);
				memory = map(length, huge, &mapping);
			}
			measure(way, together, memory, length, times);
			if (!touched)
				munmap(mapping, length + HUGE_PAGE);
			for (int n = 0; n < TIMES && round >= 0; n++)
				if (together == (n == AT_ONCE))
					values[way][n][round] = times[n];
		}
	if (touched)
		munmap(mapping, length + HUGE_PAGE);
	for (int way = 0; way < WAYS; way++) {
		printf("%6zu MiB  %-9s  %-10s  %-10s", mib, touched ? "touched" : "untouched", huge ? "huge pages" : "4 KiB",
		       way == OURS ? "rdmamr" : "libibverbs");
		for (int round = 0; round < rounds; round++)
			ratios[round] = (values[way][0][round] + values[way][1][round]) / values[way][AT_ONCE][round];
		for (int n = 0; n < devices; n++)
			printf(" %9.3f", median(values[way][n], rounds));
		both = median(values[way][0], rounds) + median(values[way][1], rounds);
		median(ratios, rounds);
		printf("  %9.3f %9.3f  %5.2f  %5.2f .. %5.2f\n", both, median(values[way][AT_ONCE], rounds),
		       both / median(values[way][AT_ONCE], rounds), ratios[0], ratios[rounds - 1]);
		fflush(stdout);
	}
}

static void open_device(const char *name)
{
	if (devices == MOST || !(pds[devices++] = domain_of(name)))
		die(name);
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[2]) : 0;
	void *handle;
	const char *why;

	if (rounds < 1) {
		fprintf(stderr, "usage: RDMAMR_PREFAULT=2 LD_PRELOAD=librdmamr.so.1 devices DEVICE,DEVICE...|stub ROUNDS MIB...\n");
		return 2;
	}
	reg[OURS] = (ibv_reg_mr);
	dereg[OURS] = ibv_dereg_mr;
	if (!strcmp(argv[1], "stub")) {
		why = stub_open(STUB_UMEM);
		if (why) {
			fprintf(stderr, "devices: %s\n", why);
			return 1;
		}
		while (devices < MOST)
			pds[devices++] = stub_pd();
		reg[THEIRS] = stub_register;
		dereg[THEIRS] = stub_deregister;
	} else {
		for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ","))
			open_device(name);
		handle = dlopen("libibverbs.so.1", RTLD_NOW);
		if (!handle || devices < 2)
			die("two devices");
		reg[THEIRS] = their_reg;
		*(void **)&their_iova2 = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
		*(void **)&dereg[THEIRS] = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
		if (!their_iova2 || !dereg[THEIRS])
			die("libibverbs");
	}
	printf("median ms of each device's call, of two calls in turn, of two at once, and times as fast (least .. most)\n");
	for (int n = 3; n < argc; n++)
		for (int huge = 0; huge < 2; huge++)
			for (int touched = 0; touched < 2; touched++)
				compare((size_t)atol(argv[n]), huge, touched, rounds);
	return 0;
}
