/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the kernel or the program may take from the cache's watch.
 *
 * If userfaultfd is refused, as by seccomp profiles of containers, or has no write protection, as
 * before Linux 5.7, no region can be trusted: none is shared, none is reused, and the library says so
 * once, in one line, with the permission that is missing. If the program closes the userfaultfd, the
 * cache keeps no region from then on.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include "../../lib/pair_rows.h"

/* The program's function is found before the C library's, so the library calls it as well. */
static bool no_write_protection;

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *argument;
	int result;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	result = (int)syscall(SYS_ioctl, fd, request, argument);
	if (no_write_protection && !result && request == UFFDIO_API)
		((struct uffdio_api *)argument)->features &= ~(uint64_t)UFFD_FEATURE_PAGEFAULT_FLAG_WP;
	return result;
}

/* Refusals. */

static int said; /* standard error */
static char text[65536];

/* The lines that the library has printed; sets text. */
static int lines(void)
{
	ssize_t got = pread(said, text, sizeof(text) - 1, 0);
	int count = 0;

	must(got >= 0);
	text[got] = '\0';
	for (const char *at = text; *at; at++)
		count += *at == '\n';
	return count;
}

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

static void take_away(void)
{
	no_write_protection = row->of != NULL;
	if (!no_write_protection)
		refuse_userfaultfd();
	said = memfd_create("said", MFD_CLOEXEC);
	must(said >= 0 && dup2(said, STDERR_FILENO) == STDERR_FILENO);
}

static const char *missing(void)
{
	return row->of ? "write protection" : "seccomp";
}

/* Each registration is a region of its own, with these rights, idle or in use. */
static void alone(int access)
{
	struct rdmamr_stats before;
	struct ibv_mr *one, *other;

	for (int round = 0; round < 3; round++) {
		before = stats();
		one = reg_with(memory, PAGE, access);
		ok(made_anew(before, stats()) && stats().bypassed_watch == before.bypassed_watch + 1, "a new region");
		ok(lands_by_lkey(&pair, one, memory, PAGE), "data lands by it");
		before = stats();
		other = reg_with(memory + 100, 1000, access);
		ok(made_anew(before, stats()) && stats().shared == before.shared && other->lkey != one->lkey, "it is not shared");
		let_go(one);
		ok(lands_by_lkey(&pair, other, memory + 100, 1000), "data lands by the other");
		let_go(other);
		is(stats().idle, 0, "none is cached");
		is(kernel_regions(pair.context), far.others, "nor in the kernel");
	}
}

static void taken_away(void)
{
	void (*const changes[])(void *, size_t) = { remap, raw_remap };

	take_away();
	is(lines(), 0, "the library prints nothing before the first relaxed call");
	alone(LOCAL_AND_REMOTE);
	alone(IBV_ACCESS_LOCAL_WRITE);
	for (int n = 0; n < 2; n++) {
		struct ibv_mr *old;

		changes[n](memory, PAGE);
		ok(lands(&pair, memory, PAGE), "mapped anew, data lands");
		old = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
		changes[n](memory, PAGE);
		anew(&pair, "mapped anew under a region in use", memory, PAGE);
		let_go(old);
	}
	is(lines(), 1, "the library prints one line");
	ok(strstr(text, "userfaultfd") && strstr(text, missing()), "the line names the missing permission: %.*s",
	   (int)strcspn(text, "\n"), text);
}

/* With RDMAMR_CACHE=all the library promises nothing that it cannot do. */
static void taken_from_cache(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(open_device());
	uint32_t key = 0;

	take_away();
	for (int round = 0; round < 3; round++) {
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, LOCAL_AND_REMOTE);

		must(mr);
		ok(mr->rkey != key, "each registration has a key of its own");
		key = mr->rkey;
		must(ibv_dereg_mr(mr) == 0);
	}
	lines();
	ok(strstr(text, missing()) && !strstr(text, "reuses regions"), "the only line about it says that no region is reused");
	is(ibv_dealloc_pd(pd), 0, "the domain ends");
}

/* The watch is lost: a raw system call closes its userfaultfd. */

static void *nothing(void *argument)
{
	return argument;
}

static void watch_lost(void)
{
	struct ibv_mr *first, *second;
	int fd;

	in_thread(nothing, NULL);
	control(&pair, "while the cache watches", memory, PAGE);
	ok(userfaultfds(&fd) == 1 && syscall(SYS_close, fd) == 0, "its userfaultfd is closed");
	must(syscall(SYS_madvise, memory, PAGE, MADV_DONTNEED) == 0);
	ok(lands(&pair, memory, PAGE), "data lands in the current page");
	not_kept(&pair, "other memory", memory + 2 * PAGE, PAGE);
	first = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
	second = reg_with(memory, PAGE, LOCAL_AND_REMOTE);
	ok(lands_in(&pair, first, memory, PAGE) && lands_in(&pair, second, memory, PAGE), "registered twice, data lands by both");
	let_go(first);
	ok(lands_in(&pair, second, memory, PAGE), "one ends, data lands by the other");
	let_go(second);
}

static const struct row rows[] = {
	{ "userfaultfd is refused", taken_away },
	{ "userfaultfd is refused, RDMAMR_CACHE=all", taken_from_cache, .flags = NO_PAIR, .settings = "RDMAMR_CACHE=all RDMAMR_LOG=info" },
	{ "no write protection", taken_away, .of = "1" },
	{ "no write protection, RDMAMR_CACHE=all", taken_from_cache, .of = "1", .flags = NO_PAIR,
	  .settings = "RDMAMR_CACHE=all RDMAMR_LOG=info" },
	{ "the userfaultfd is closed by a raw system call", watch_lost },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_pair);
}
