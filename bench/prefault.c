/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Times what RDMAMR_PREFAULT saves: a registration of memory that was never touched, and of
 * populated memory, by this library and without it, in one process and in turn. On a device the
 * other side is libibverbs' own registration. Without a device a stub registers the memory as fixed
 * buffers of io_uring (ctests/lib/stub_device.h): the kernel pins these by the same function and in
 * the same steps as for RDMA. There the other side is the raw system call that libibverbs would
 * make.
 *
 * With CUDA's runtime in place of the device, it times cudaHostRegister in the same way.
 *
 * Usage: prefault DEVICE|stub|PATH/libcudart.so ROUNDS MIB...
 */
#include <dlfcn.h>
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include "../ctests/lib/stub_device.h"
#include "device.h"
#include "median.h"
#include "memory.h"

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
enum { THEIRS, OURS, WAYS };

static struct ibv_mr *(*their_reg)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
static int (*their_dereg)(struct ibv_mr *);
static struct ibv_pd *pd;

/* The stub's registration, called as libibverbs calls the kernel's. */
static struct ibv_mr *raw_reg(struct ibv_pd *domain, void *memory, size_t length, uint64_t iova, unsigned int access)
{
	struct ib_uverbs_reg_mr command = {
		.start = (uintptr_t)memory, .length = length, .hca_va = iova, .pd_handle = domain->handle,
		.access_flags = access,
	};
	struct ib_uverbs_reg_mr_resp answer;
	struct {
		struct ib_uverbs_ioctl_hdr header;
		struct ib_uverbs_attr attrs[3];
	} call = {
		.header = {
			.length = sizeof(call), .object_id = UVERBS_OBJECT_DEVICE,
			.method_id = UVERBS_METHOD_INVOKE_WRITE, .num_attrs = 3, .driver_id = RDMA_DRIVER_RXE,
		},
		.attrs = {
			{ .attr_id = UVERBS_ATTR_WRITE_CMD, .len = 8, .data = IB_USER_VERBS_CMD_REG_MR },
			{ .attr_id = UVERBS_ATTR_CORE_IN, .len = sizeof(command), .data = (uintptr_t)&command },
			{ .attr_id = UVERBS_ATTR_CORE_OUT, .len = sizeof(answer), .data = (uintptr_t)&answer },
		},
	};
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	if (!mr || ioctl(domain->context->cmd_fd, RDMA_VERBS_IOCTL, &call))
		return NULL;
	mr->context = domain->context;
	mr->handle = answer.mr_handle;
	return mr;
}

static int raw_dereg(struct ibv_mr *mr)
{
	struct {
		struct ib_uverbs_ioctl_hdr header;
		struct ib_uverbs_attr attrs[1];
	} call = {
		.header = {
			.length = sizeof(call), .object_id = UVERBS_OBJECT_MR,
			.method_id = UVERBS_METHOD_MR_DESTROY, .num_attrs = 1, .driver_id = RDMA_DRIVER_RXE,
		},
		.attrs = { { .attr_id = UVERBS_ATTR_DESTROY_MR_HANDLE, .data = mr->handle } },
	};
	int err = ioctl(mr->context->cmd_fd, RDMA_VERBS_IOCTL, &call) ? errno : 0;

	free(mr);
	return err;
}

static int (*their_pin)(void *, size_t, unsigned int), (*our_pin)(void *, size_t, unsigned int), (*unpin)(void *);

static double time_of_pin(int way, char *memory, size_t length)
{
	double start = now(), took;
	int err = (way == OURS ? our_pin : their_pin)(memory, length, 0);

	took = now() - start;
	if (err || (unpin && unpin(memory))) {
		fprintf(stderr, "prefault: CUDA's error %d\n", err);
		exit(1);
	}
	return took;
}

/* The time of one registration, in ms. */
static double time_of(int way, char *memory, size_t length)
{
	if (their_pin)
		return time_of_pin(way, memory, length);

	double start = now(), took;
	struct ibv_mr *mr = way == OURS ? (ibv_reg_mr)(pd, memory, length, ACCESS) :
			    their_reg(pd, memory, length, (uintptr_t)memory, ACCESS);

	took = now() - start;
	if (!mr)
		die("a registration");
	errno = way == OURS ? ibv_dereg_mr(mr) : their_dereg(mr);
	if (errno)
		die("a deregistration");
	return took;
}

static void compare(size_t mib, bool huge, bool present, int rounds)
{
	size_t length = mib << 20;
	double *values[WAYS], *ratios = calloc((size_t)rounds, sizeof(double)), ratio;
	char *memory = NULL, *mapping = NULL;

	for (int way = 0; way < WAYS; way++)
		if (!ratios || !(values[way] = calloc((size_t)rounds, sizeof(double))))
			die("calloc");
	if (present) {
		memory = map(length, huge, &mapping);
		memset(memory, 1, length);
	}
	for (int round = -1; round < rounds; round++)
		/* The sides take turns to go first. */
		for (int turn = 0; turn < WAYS; turn++) {
			int way = (turn + round + 1) % WAYS;
			double time;

			if (!present) {
				back(length);
				memory = map(length, huge, &mapping);
			}
			time = time_of(way, memory, length);
			if (!present)
				munmap(mapping, length + HUGE_PAGE);
			if (round >= 0)
				values[way][round] = time;
		}
	if (present)
		munmap(mapping, length + HUGE_PAGE);
	for (int round = 0; round < rounds; round++)
		ratios[round] = values[THEIRS][round] / values[OURS][round];
	ratio = median(ratios, rounds);
	printf("%6zu MiB  %-7s %-10s %12.3f %12.3f  %7.3f  %6.3f .. %6.3f  %8.3f\n", mib, present ? "present" : "fresh",
	       huge ? "huge pages" : "4 KiB", median(values[THEIRS], rounds), median(values[OURS], rounds), ratio,
	       ratios[0], ratios[rounds - 1], median(values[OURS], rounds) / median(values[THEIRS], rounds));
	fflush(stdout);
	for (int way = 0; way < WAYS; way++)
		free(values[way]);
	free(ratios);
}

static void open_device(const char *name)
{
	void *handle = dlopen("libibverbs.so.1", RTLD_NOW);

	if (!handle)
		die("libibverbs");
	*(void **)&their_reg = dlvsym(handle, "ibv_reg_mr_iova2", "IBVERBS_1.8");
	*(void **)&their_dereg = dlvsym(handle, "ibv_dereg_mr", "IBVERBS_1.1");
	pd = domain_of(name);
	if (!pd || !their_reg || !their_dereg)
		die(name);
}

/* The symbol of the whole program is this library's. */
static void open_cuda(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

	if (handle) {
		*(void **)&their_pin = dlsym(handle, "cudaHostRegister");
		*(void **)&our_pin = dlsym(RTLD_DEFAULT, "cudaHostRegister");
		*(void **)&unpin = dlsym(handle, "cudaHostUnregister");
	}
	if (!their_pin || our_pin == their_pin) {
		fprintf(stderr, "prefault: no CUDA runtime at %s, or not librdmamr\n", path);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	bool stub = argc > 1 && !strcmp(argv[1], "stub");
	int rounds = argc > 2 ? atoi(argv[2]) : 0;
	const char *why;

	if (argc < 4 || rounds < 1) {
		fprintf(stderr, "usage: RDMAMR_PREFAULT=2 LD_PRELOAD=librdmamr.so.1 prefault DEVICE|stub ROUNDS MIB...\n");
		return 2;
	}
	if (stub) {
		why = stub_open(STUB_UMEM);
		if (why) {
			fprintf(stderr, "prefault: %s\n", why);
			return 1;
		}
		pd = stub_pd();
		their_reg = raw_reg;
		their_dereg = raw_dereg;
	} else if (strchr(argv[1], '/')) {
		open_cuda(argv[1]);
	} else {
		open_device(argv[1]);
	}
	printf("median ms                          %s       rdmamr  times faster (least .. most)  rdmamr/libibverbs\n",
	       their_pin ? "     CUDA" : "libibverbs");
	for (int n = 3; n < argc; n++)
		for (int huge = 0; huge < 2; huge++)
			for (int present = 0; present < 2; present++)
				compare((size_t)atol(argv[n]), huge, present, present ? 2 * rounds : rounds);
	return 0;
}
