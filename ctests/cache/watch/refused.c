/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * If userfaultfd is refused, as by seccomp profiles of containers, no region can be trusted: none
 * is shared, none is reused, and the library says so once, in one line, with the permission that is
 * missing. The same holds for a userfaultfd without write protection (no_write_protection.c).
 */
#include "../../lib/observe.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static struct pair pair;
static char *memory;
static int said; /* standard error */

#ifdef NO_WRITE_PROTECTION
/* The program's function is found before the C library's, so the library calls it as well. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *argument;
	int result;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	result = (int)syscall(SYS_ioctl, fd, request, argument);
	if (!result && request == UFFDIO_API)
		((struct uffdio_api *)argument)->features &= ~(uint64_t)UFFD_FEATURE_PAGEFAULT_FLAG_WP;
	return result;
}

static void refuse_userfaultfd(void)
{
	must(uffd_features() && !(uffd_features() & UFFD_FEATURE_PAGEFAULT_FLAG_WP));
}
static const char *const what = "write protection";
#else
/* EPERM for userfaultfd(2), and for the ioctl of /dev/userfaultfd that makes one. */
static void refuse_userfaultfd(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00 /* USERFAULTFD_IOC_NEW */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	must(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	must(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	must(syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY) == -1 && errno == EPERM);
}
static const char *const what = "seccomp";
#endif

/* The messages since the start. Returns the number of lines. */
static int lines(char *text, size_t size)
{
	ssize_t got = pread(said, text, size - 1, 0);
	int count = 0;

	must(got >= 0);
	text[got] = '\0';
	for (const char *at = text; *at; at++)
		count += *at == '\n';
	return count;
}

static void nothing_idle(const char *name, int access)
{
	struct rdmamr_stats before;
	struct ibv_mr *mr;

	for (int round = 0; round < 3; round++) {
		before = stats();
		mr = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, access);
		must(mr);
		ok(made_anew(before, stats()) && stats().bypassed_watch == before.bypassed_watch + 1,
		   "%s: a new region", name);
		ok(lands_by_lkey(&pair, mr, memory, PAGE), "%s: data lands by it", name);
		is(ibv_dereg_mr_relaxed(mr), 0, "%s: deregistered", name);
		is(stats().idle, 0, "%s: it is not cached", name);
		is(kernel_regions(pair.context), far.others, "%s: nor is it in the kernel", name);
	}
}

static void not_shared(const char *name, int access)
{
	struct ibv_mr *one = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, access), *other;
	struct rdmamr_stats before = stats();

	other = ibv_reg_mr_relaxed(pair.pd, memory + 100, 1000, access);
	must(one && other);
	ok(made_anew(before, stats()) && stats().shared == before.shared && other->lkey != one->lkey,
	   "%s: a region in use is not shared", name);
	is(ibv_dereg_mr_relaxed(one), 0, "%s: one ends", name);
	ok(lands_by_lkey(&pair, other, memory + 100, 1000), "%s: data lands by the other", name);
	is(ibv_dereg_mr_relaxed(other), 0, "%s: the other ends", name);
	is(stats().idle, 0, "%s: none is cached", name);
	is(kernel_regions(pair.context), far.others, "%s: nor in the kernel", name);
}

/* Memory that is mapped anew under a region in use. */
static void changed_in_use(void)
{
	struct ibv_mr *old = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);

	must(old);
	remap(memory, PAGE);
	anew(&pair, "mapped anew under a region in use", memory, PAGE);
	is(ibv_dereg_mr_relaxed(old), 0, "the old one ends");
	old = ibv_reg_mr_relaxed(pair.pd, memory, PAGE, LOCAL_AND_REMOTE);
	must(old);
	raw_remap(memory, PAGE);
	anew(&pair, "mapped anew by raw system calls under a region in use", memory, PAGE);
	is(ibv_dereg_mr_relaxed(old), 0, "the old one ends");
}

/* The same with RDMAMR_CACHE=all: the library promises nothing that it cannot do. */
static int cached(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	int err = dup(STDERR_FILENO), alike = 0;
	static char text[65536];
	uint32_t key = 0;

	must(getenv("TAP_COUNT"));
	tap_count = atoi(getenv("TAP_COUNT"));
	memory = pages(1);
	said = memfd_create("said", MFD_CLOEXEC);
	must(pd && err >= 0 && said >= 0 && dup2(said, STDERR_FILENO) == STDERR_FILENO);
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);

		must(mr);
		alike += mr->rkey == key;
		key = mr->rkey;
		must(ibv_dereg_mr(mr) == 0);
	}
	lines(text, sizeof(text));
	must(dup2(err, STDERR_FILENO) == STDERR_FILENO);
	is(alike, 0, "RDMAMR_CACHE=all: each registration has a key of its own");
	ok(strstr(text, what) && !strstr(text, "reuses regions"), "and the only line about it says that no region is reused");
	is(ibv_dealloc_pd(pd) | ibv_close_device(context), 0, "the domain and the device end");
	return done_testing();
}

int main(int argc, char **argv)
{
	static char text[65536];
	int err, count, regions = 0;

	(void)argc;
	if (getenv("RDMAMR_CACHE"))
		return cached();
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	relaxed_open(&pair);
	memory = pages(3);
	memory += PAGE;
	err = dup(STDERR_FILENO);
	said = memfd_create("said", MFD_CLOEXEC);
	must(err >= 0 && said >= 0 && dup2(said, STDERR_FILENO) == STDERR_FILENO);
	refuse_userfaultfd();
	is(lines(text, sizeof(text)), 0, "the library prints nothing before the first relaxed call");
	nothing_idle("remote rights", LOCAL_AND_REMOTE);
	nothing_idle("local rights", IBV_ACCESS_LOCAL_WRITE);
	not_shared("remote rights", LOCAL_AND_REMOTE);
	not_shared("local rights", IBV_ACCESS_LOCAL_WRITE);
	remap(memory, PAGE);
	ok(lands(&pair, memory, PAGE), "mapped anew, data lands");
	raw_remap(memory, PAGE);
	ok(lands(&pair, memory, PAGE), "also by raw system calls");
	changed_in_use();
	count = lines(text, sizeof(text));
	must(dup2(err, STDERR_FILENO) == STDERR_FILENO);
	is(count, 1, "the library prints one line");
	ok(strstr(text, "userfaultfd") && strstr(text, what), "the line names the missing permission: %.*s",
	   (int)strcspn(text, "\n"), text);
	regions = kernel_regions(pair.context);
	is(ibv_flush_relaxed_mr(pair.pd), 0, "a flush of nothing");
	is(kernel_regions(pair.context), regions, "has nothing to do");
	relaxed_end(&pair);
	must(setenv("RDMAMR_LOG", "info", 1) == 0);
	go_on_with(argv, "RDMAMR_CACHE", "all");
	return 1;
}
