/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A failed registration is explained, with figures; errno stays the kernel's. */
#include "../lib/device.h"
#include <linux/capability.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct ibv_pd *pd;

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
}

static void *other_thread(void *argument)
{
	(void)argument;
	ok(rdmamr_last_reason()[0] == '\0', "another thread has its own reason, which is none");
	return NULL;
}

int main(void)
{
	struct rlimit limit = { 16 * PAGE, 16 * PAGE };
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	char *memory = pages(64), *hole = pages(64);
	void *read_only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char expected[128];
	pthread_t thread;
	struct ibv_mr *mr;
	int err;

	pd = ibv_alloc_pd(open_device());
	must(pd && munmap(hole + PAGE, 62 * PAGE) == 0);
	ok(rdmamr_last_reason()[0] == '\0', "no reason before the first failure");
	reasons("read-only", read_only, PAGE, (uintptr_t)read_only, IBV_ACCESS_LOCAL_WRITE, EFAULT, "read-only");
	snprintf(expected, sizeof(expected), "nothing is mapped at %p", (void *)(hole + PAGE));
	reasons("a hole", hole, 64 * PAGE, (uintptr_t)hole, IBV_ACCESS_LOCAL_WRITE, EFAULT, expected);
	reasons("the access rule", memory, PAGE, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL, "need local write");
	reasons("the page offset", memory, PAGE, 0x10, IBV_ACCESS_LOCAL_WRITE, EINVAL, "0x10 and 0x0");
	reasons("the length", memory, 0, 0, IBV_ACCESS_LOCAL_WRITE, EINVAL, "length is 0");
	must(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);

	mr = ibv_reg_mr(pd, memory, 6 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(mr && setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	must(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	data[0].permitted &= ~(1u << CAP_IPC_LOCK);
	must(syscall(SYS_capset, &header, data) == 0);
	reasons("the limit", memory, 20 * PAGE, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE, ENOMEM,
		"needs 80 KiB, and 24 of 64 KiB are pinned already (VmPin)");
	if (pd->context->device->transport_type == IBV_TRANSPORT_IWARP) {
		skip("the limit of 0", "siw of Linux 6.1 pins by itself, and calls that ENOMEM too");
		reasons("the access rule again", memory, PAGE, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL, "need local write");
	} else {
		limit.rlim_cur = 0;
		must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
		reasons("the limit of 0", memory, PAGE, (uintptr_t)memory, IBV_ACCESS_LOCAL_WRITE, EPERM,
			"RLIMIT_MEMLOCK is 0");
	}
	err = ibv_dereg_mr(mr);
	is(err, 0, "a region from before is deregistered");
	is((long long)stats().reg_failed, 7, "the failures are counted");
	return done_testing();
}
