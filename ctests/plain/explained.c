/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A failed registration is explained, with figures; errno stays the kernel's. */
#include "../lib/observe.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct ibv_pd *pd;
static char *memory;
static int failures;

static void reasons(const char *name, void *addr, size_t length, uint64_t iova, unsigned int access, int err,
		    const char *words)
{
	struct ibv_mr *mr;
	const char *reason;

	errno = 0;
	mr = ibv_reg_mr_iova2(pd, addr, length, iova, access);
	is(mr ? 0 : errno, err, "%s: the errno", name);
	errno = 77;
	reason = rdmamr_last_reason();
	is(errno, 77, "%s: asking for the reason leaves errno alone", name);
	ok(strstr(reason, words) != NULL, "%s: %s", name, reason);
	failures++;
}

static void *other_thread(void *argument)
{
	ok(rdmamr_last_reason()[0] == '\0', "another thread has its own reason, which is empty");
	return argument;
}

static void over_the_limit(const char *name, const char *words)
{
	reasons(name, memory, 20 * PAGE, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE, ENOMEM, words);
}

/* In a user namespace a program has every capability, but the kernel checks for that of the first one. */
static void in_user_namespace(void)
{
	must(unshare(CLONE_NEWUSER) == 0);
	pd = domain_of_device();
	over_the_limit("in a user namespace", "does not count, in a user namespace");
}

/* The mapping is named, and for a device's memory the remedy. */
static void names_and_devices(void)
{
	static char path[4096];
	void *gpu = mmap((void *)0x600000000000, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	int fd = open("/proc/self/exe", O_RDONLY), device = open("/dev/mem", O_RDWR);
	void *file = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	void *mapped = device < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);

	must(file != MAP_FAILED && gpu != MAP_FAILED && realpath("/proc/self/exe", path));
	reasons("a read-only file", file, PAGE, (uintptr_t)file, IBV_ACCESS_LOCAL_WRITE, EFAULT, path);
	if (mapped == MAP_FAILED)
		skip("a device file", "/dev/mem cannot be mapped");
	else
		reasons("a device file", mapped, PAGE, (uintptr_t)mapped, IBV_ACCESS_LOCAL_WRITE, EFAULT,
			"(/dev/mem) is memory of a device, without page structures");
	reasons("ordinary memory", gpu, PAGE, (uintptr_t)gpu, IBV_ACCESS_LOCAL_WRITE, EFAULT, "PROT_NONE");
	must(dlopen(getenv("CHECK_GPU"), RTLD_NOW | RTLD_LOCAL));
	reasons("memory of a GPU", gpu, PAGE, (uintptr_t)gpu, IBV_ACCESS_LOCAL_WRITE, EFAULT,
		"it is memory of a GPU, says libcuda.so.1, and this version has no cuMemGetHandleForAddressRange to export it as a "
		"dma-buf: CUDA 11.7 and ROCm 5.6 have it. Without a dma-buf it takes nvidia_peermem, which is not loaded");
	reasons("ordinary memory beside it", file, PAGE, (uintptr_t)file, IBV_ACCESS_LOCAL_WRITE, EFAULT, "read-only");
}

int main(void)
{
	struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	char *hole = pages(64);
	char expected[128];
	bool pins_by_itself = false;
	struct ibv_mr *mr;

	memory = pages(64);
	pd = domain_of_device();
	must(munmap(hole + PAGE, 62 * PAGE) == 0);
	ok(rdmamr_last_reason()[0] == '\0', "no reason before the first failure");
	snprintf(expected, sizeof(expected), "nothing is mapped at %p", (void *)(hole + PAGE));
	reasons("a hole", hole, 64 * PAGE, (uintptr_t)hole, IBV_ACCESS_LOCAL_WRITE, EFAULT, expected);
	reasons("the access rule", memory, PAGE, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL, "need local write");
	names_and_devices();
	in_thread(other_thread, NULL);

	mr = ibv_reg_mr(pd, memory, 6 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr && setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	give_up_memlock_right(false);
	over_the_limit("CAP_IPC_LOCK permitted", "here it is permitted, but not effective");
	give_up_memlock_right(true);
	over_the_limit("the limit", "needs 80 KiB, and 24 of 64 KiB are pinned already (VmPin)");
	over_the_limit("in the bounding set", "here it is in the bounding set alone, which helps only root");
	must(prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) == 0);
	over_the_limit("in no set", "here it is not even in the bounding set");
	in_part(in_user_namespace);
	limit.rlim_cur = 0;
	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	if (pd->context->device->transport_type == IBV_TRANSPORT_IWARP) {
		must(!ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE));
		pins_by_itself = errno == ENOMEM;
		failures++;
	}
	if (pins_by_itself)
		skip("the limit of 0", "siw of Linux 6.1 pins by itself, and calls that ENOMEM too");
	else
		reasons("the limit of 0", memory, PAGE, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE, EPERM,
			"RLIMIT_MEMLOCK is 0");
	is(ibv_dereg_mr(mr), 0, "a region from before is deregistered");
	is((long long)stats().reg_failed, failures, "the failures are counted");
	return done_testing();
}
