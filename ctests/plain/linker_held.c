/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * No call of the library waits for the dynamic linker, or for the reader of standard error.
 *
 * The linker holds its locks while it runs the constructor of a plug-in, or a callback of dl_iterate_phdr(3),
 * and these may wait for a thread that registers memory. Here a thread stays in one of them while another
 * makes the first call of a process to each exported function. Then standard error is a full pipe, of which
 * the caller is the reader. No time decides: a thread looks at what the calling thread sleeps in.
 *
 * linker_held is linked to libibverbs, and linker_held_later loads it by dlopen, as Python does.
 */
#define RDMAMR_NO_LIBFABRIC
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/seccomp.h>
#include <rdmamr/fi_mr.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../lib/device.h"
#include "../lib/program.h"
#include "../lib/stub_device.h"

enum { RETURNED, NO_CASE = 3, WAITED_FOR_LINKER, WAITED_FOR_READER, EXEMPT, WRONG, HANGS = 128 + SIGALRM };

static const char *const words[256] = {
	[RETURNED] = "returns",
	[NO_CASE] = "has no case in this test",
	[WAITED_FOR_LINKER] = "waits for the linker's lock",
	[WAITED_FOR_READER] = "waits for the reader of standard error",
	[WRONG] = "has a wrong result",
	[HANGS] = "hangs",
};

/* The calling thread, and what it sleeps in. */

static _Atomic pid_t watched;
static uintptr_t linker;

static int sleeps_in(pid_t task)
{
	unsigned long number, first;
	char path[64];
	FILE *file;
	int fields;

	snprintf(path, sizeof(path), "/proc/%d/syscall", (int)task);
	file = fopen(path, "re");
	if (!file)
		return RETURNED;
	fields = fscanf(file, "%lu %lx", &number, &first);
	fclose(file);
	if (fields != 2)
		return RETURNED;
	/* The linker's locks are in its variable _rtld_global. */
	if (number == SYS_futex && linker && first - linker < 16384)
		return WAITED_FOR_LINKER;
	if ((number == SYS_write || number == SYS_writev) && first == STDERR_FILENO)
		return WAITED_FOR_READER;
	return RETURNED;
}

static void *watch(void *nothing)
{
	(void)nothing;
	for (;;) {
		int first = watched ? sleeps_in(watched) : RETURNED;

		usleep(20000);
		/* Twice, since a lock may be held for a moment. */
		if (first != RETURNED && sleeps_in(watched) == first && (usleep(20000), sleeps_in(watched)) == first)
			_exit(first);
	}
	return NULL;
}

static void begin_watch(void)
{
	linker = (uintptr_t)dlsym(RTLD_DEFAULT, "_rtld_global");
	alarm(DEADLOCK);
	must_start(watch, NULL);
}

/* Who holds the linker's lock. */

static sem_t held, go; /* of 0 */

static void wait_there(void)
{
	must(sem_post(&held) == 0);
	while (sem_wait(&go))
		;
}

static int in_callback(struct dl_phdr_info *info, size_t size, void *nothing)
{
	(void)info, (void)size, (void)nothing;
	wait_there();
	return 1;
}

static void *iterate(void *nothing)
{
	dl_iterate_phdr(in_callback, nothing);
	return NULL;
}

static void calls_from_plugin(const char *variable, void (*function)(void))
{
	char address[32];

	snprintf(address, sizeof(address), "%lx", (unsigned long)(uintptr_t)function);
	must(setenv(variable, address, 1) == 0);
}

static void *load(void *nothing)
{
	void *plugin = dlopen("$ORIGIN/linker_held_plugin.so", RTLD_NOW);

	(void)nothing;
	must(plugin);
	return plugin;
}

static void hold(void *(*holder)(void *))
{
	calls_from_plugin("IN_CONSTRUCTOR", wait_there);
	must_start(holder, NULL);
	while (sem_wait(&held))
		;
}

/* The device. */

static struct ibv_pd *pd;
static char *memory;
static int access_flags = LOCAL_AND_REMOTE;

/* The functions, each at `at`. The program itself is bound to none of them. */

static void *at;
static struct ibv_mr *mr;
static struct fid_domain *domain;
static struct fid_mr *region;
static struct fid_eq *queue;
static long number;

#define it(function) ((__typeof__(&function))at)
#define any ((long (*)(void *, ...))at)

static void *of_library(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	must(found);
	return found;
}

#define other(function) ((__typeof__(&function))of_library(#function))

/* The library's, which are looked up while nobody holds the linker's lock. */
static struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int);
static int (*dereg)(struct ibv_mr *);

static void registered(void)
{
	mr = reg(pd, memory, PAGE, access_flags);
	must(mr);
}

static long of_provider(void) { return 0; }

static void open_it(void)
{
	must(dlopen("libibverbs.so.1", RTLD_NOW) && stub_open(STUB_NOTHING) == NULL);
	stub_provide(of_provider);
	pd = stub_pd();
	memory = pages(16);
	reg = of_library("ibv_reg_mr");
	dereg = of_library("ibv_dereg_mr");
}

static void with_domain(void) { must(other(rdmamr_domain_open)(pd, NULL, &domain, NULL) == 0); }
static void with_queue(void) { must(other(rdmamr_eq_open)(0, NULL, &queue, NULL) == 0); }

static void with_region(void)
{
	with_domain();
	must(other(fi_mr_reg)(domain, memory, PAGE, 0x3f00, 0, 1, 0, &region, NULL) == 0);
}

static int task(void *nothing)
{
	(void)nothing;
	_exit(0);
}

/* A context that libibverbs can end. */
static struct verbs_context *fresh_context(void)
{
	struct verbs_context *context = calloc(1, sizeof(*context));

	must(context);
	context->sz = sizeof(*context);
	context->context = (struct ibv_context){ .device = calloc(1, 8192), .cmd_fd = -1, .async_fd = -1, .abi_compat = (void *)-1 };
	return context;
}

/* Prepares the call that `name` names if `before`, and makes it otherwise. */
static int call(const char *name, bool before)
{
	static struct verbs_context *context;
	struct rdmamr_stats now = { 0 };
	struct iovec part = { memory, PAGE };
	struct fi_mr_attr attr = { .mr_iov = &part, .iov_count = 1, .access = 0x3f00, .requested_key = 2 };
	uint8_t key[64];
	size_t size = sizeof(key);
	uint64_t base;
	uint32_t event;
	static char stack[65536];
	static struct ibv_cq no_queue;
	struct ibv_qp_init_attr of_queue_pair = { .send_cq = &no_queue, .recv_cq = &no_queue, .qp_type = IBV_QPT_RC };

#define CASE(function) } else if (!strcmp(name, #function)) {
#define PREPARE(...) do { if (before) { __VA_ARGS__; return 0; } } while (0)
#define CALL PREPARE()
	if (!name) {
	CASE(ibv_reg_mr) CALL; return any(pd, memory, (size_t)PAGE, access_flags) ? 0 : WRONG;
	CASE(ibv_reg_mr_iova) CALL; return any(pd, memory, (size_t)PAGE, (uint64_t)(uintptr_t)memory, access_flags) ? 0 : WRONG;
	CASE(ibv_reg_mr_iova2) CALL; return any(pd, memory, (size_t)PAGE, (uint64_t)(uintptr_t)memory, access_flags) ? 0 : WRONG;
	CASE(ibv_reg_mr_ex) PREPARE(); struct { uint64_t f[16]; } init = { { 0 } }; any(pd, &init);
	CASE(ibv_reg_mr_relaxed) CALL; return any(pd, memory, (size_t)PAGE, access_flags) ? 0 : WRONG;
	CASE(ibv_reg_dmabuf_mr) CALL; any(pd, 0UL, (size_t)PAGE, 0UL, -1, 0);
	CASE(ibv_rereg_mr) PREPARE(registered()); any(mr, 1 << 20, NULL, NULL, (size_t)0, 0);
	CASE(ibv_dereg_mr) PREPARE(registered()); return (int)any(mr) ? WRONG : 0;
	CASE(ibv_dereg_mr_relaxed) PREPARE(mr = other(ibv_reg_mr_relaxed)(pd, memory, PAGE, access_flags)); return (int)any(mr) ? WRONG : 0;
	CASE(ibv_flush_relaxed_mr) CALL; any(pd);
	CASE(ibv_fork_init) CALL; any(NULL);
	/* The completion queue is none, for the kernel to refuse. */
	CASE(ibv_create_cq) CALL; any(pd->context, 1, NULL, NULL, 0);
	CASE(ibv_create_qp) CALL; any(pd, &of_queue_pair);
	CASE(ibv_create_srq) CALL; any(pd, stack);
	CASE(ibv_dealloc_pd) CALL; any(pd);
	CASE(ibv_close_device) CALL; any(pd->context);
	CASE(ibv_unimport_mr) PREPARE(registered()); any(mr);
	CASE(ibv_unimport_pd) CALL; any(pd);
	CASE(ibv_cmd_dealloc_pd) CALL; any(pd);
	CASE(ibv_cmd_dereg_mr) PREPARE(registered()); any(mr);
	CASE(ibv_cmd_rereg_mr) PREPARE(registered()); any(mr, 0, NULL, 0UL, 0UL, 0, NULL, stack, 12UL, stack, 12UL);
	CASE(verbs_uninit_context) PREPARE(context = fresh_context()); any(context);
	CASE(mlx5dv_reg_dmabuf_mr) CALL; any(pd, 0UL, (size_t)PAGE, 0UL, -1, 0, 0);
	CASE(mlx5dv_devx_umem_reg) CALL; any(pd->context, memory, (size_t)PAGE, 0);
	CASE(mlx5dv_devx_umem_reg_ex) PREPARE(); uint64_t in[8] = { (uintptr_t)memory, PAGE }; any(pd->context, in);
	/* libmlx5's structure: a number, and the device. */
	CASE(mlx5dv_devx_umem_dereg) PREPARE(memcpy(stack + 8, &pd->context, sizeof(pd->context))); any(stack);
	CASE(cudaHostRegister) CALL; any(memory, (size_t)PAGE, 0);
	CASE(cuMemHostRegister) CALL; any(memory, (size_t)PAGE, 0);
	CASE(cuMemHostRegister_v2) CALL; any(memory, (size_t)PAGE, 0);
	CASE(hipHostRegister) CALL; any(memory, (size_t)PAGE, 0);
	CASE(rdmamr_version) CALL; any(NULL);
	CASE(rdmamr_get_stats) CALL; any(&now, sizeof(now));
	CASE(rdmamr_last_reason) PREPARE(must(!reg(pd, (void *)8, PAGE, 2))); any(NULL);
	CASE(rdmamr_set_cache_limits) CALL; any(stack, 8UL);
	CASE(rdmamr_resolve) PREPARE(with_region()); any(domain, 0UL, 0UL, 0UL, NULL, NULL);
	CASE(rdmamr_mr_segments) PREPARE(with_region()); size = 1; any(region, stack, &size);
	CASE(rdmamr_domain_open) CALL; any(pd, NULL, &domain, NULL);
	CASE(rdmamr_eq_open) CALL; any(NULL, NULL, &queue, NULL);
	CASE(fi_mr_reg) PREPARE(with_domain()); return it(fi_mr_reg)(domain, memory, PAGE, 0x3f00, 0, 1, 0, &region, NULL) ? WRONG : 0;
	CASE(fi_mr_regv) PREPARE(with_domain()); return it(fi_mr_regv)(domain, &part, 1, 0x3f00, 0, 1, 0, &region, NULL) ? WRONG : 0;
	CASE(fi_mr_regattr) PREPARE(with_domain()); it(fi_mr_regattr)(domain, &attr, 0, &region);
	CASE(fi_close) PREPARE(with_region()); return any(region) ? WRONG : 0;
	CASE(fi_mr_desc) PREPARE(with_region()); any(region);
	CASE(fi_mr_key) PREPARE(with_region()); any(region);
	CASE(fi_mr_bind) PREPARE(with_region()); any(region, NULL, 0UL);
	CASE(fi_mr_enable) PREPARE(with_region()); any(region);
	CASE(fi_mr_refresh) PREPARE(with_region()); any(region, &part, 1UL, 0UL);
	CASE(fi_mr_raw_attr) PREPARE(with_region()); any(region, &base, key, &size, 0UL);
	CASE(fi_mr_map_raw) PREPARE(with_domain()); any(domain, 0UL, key, 8UL, &base, 0UL);
	CASE(fi_mr_unmap_key) PREPARE(with_domain()); any(domain, 7UL);
	CASE(fi_domain_bind) PREPARE(with_domain(); with_queue()); any(domain, queue, 0UL);
	CASE(fi_control) PREPARE(with_region()); any(region, 0, NULL);
	CASE(fi_eq_read) PREPARE(with_queue()); any(queue, &event, stack, 64UL, 0UL);
	CASE(fi_eq_readerr) PREPARE(with_queue()); any(queue, stack, 0UL);
	CASE(fi_eq_write) PREPARE(with_queue()); any(queue, 0, stack, 16UL, 0UL);
	CASE(fi_eq_sread) PREPARE(with_queue()); any(queue, &event, stack, 64UL, 0, 0UL);
	CASE(fi_eq_strerror) PREPARE(with_queue()); any(queue, 1, NULL, stack, 64UL);
	CASE(fi_prov_ini) CALL; any(NULL);
	/* libfabric itself loads its providers by dlopen. */
	CASE(fi_getinfo) PREPARE(must(dlopen("libfabric.so.1", RTLD_NOW))); if (!getenv("FULL")) return EXEMPT; any((void *)0x10009L, NULL, NULL, 0UL, NULL, stack);
	CASE(brk) CALL; any(sbrk(0));
	CASE(sbrk) CALL; any(NULL);
	CASE(realloc) CALL; any(malloc(1 << 20), 2UL << 20);
	CASE(clone) CALL; any(task, stack + sizeof(stack), SIGCHLD, NULL, NULL, NULL, NULL);
	CASE(close) PREPARE(number = dup(0)); any((void *)number);
	CASE(close_range) CALL; any((void *)1000L, 1001, 0);
	CASE(closefrom) CALL; any((void *)1000L);
	CASE(dup2) CALL; any((void *)0, 900);
	CASE(dup3) CALL; any((void *)0, 901, 0);
	CASE(ioctl) CALL; any((void *)-1L, 0x8010aa01UL, stack);
	CASE(prctl) CALL; any((void *)(long)PR_GET_DUMPABLE, 0L, 0L, 0L, 0L);
	CASE(unshare) CALL; any(NULL);
	CASE(mmap) CALL; any(memory, (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L);
	CASE(mmap64) CALL; any(memory, (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L);
	CASE(munmap) CALL; any(memory, (size_t)PAGE);
	CASE(mremap) CALL; any(memory, 2UL * PAGE, (size_t)PAGE, 0);
	CASE(mprotect) CALL; any(memory, (size_t)PAGE, PROT_READ);
	CASE(pkey_mprotect) CALL; any(memory, (size_t)PAGE, PROT_READ, -1);
	CASE(madvise) CALL; any(memory, (size_t)PAGE, MADV_DONTNEED);
	CASE(process_madvise) CALL; any((void *)-1L, &part, 1UL, MADV_COLD, 0);
	CASE(shmat) CALL; any((void *)-1L, NULL, 0);
	} else {
		return NO_CASE;
	}
	return RETURNED;
}

/* The process of one call, which `how` prepares. */
static int one_call(const char *how, char *name)
{
	char *version = strchr(name, '@');
	int status;

	if (version)
		*version = 0;
	at = version ? dlvsym(RTLD_DEFAULT, name, version + strspn(version + 1, "@") + 1) : dlsym(RTLD_DEFAULT, name);
	must(at);
	open_it();
	status = call(name, true);
	if (status)
		return status;
	begin_watch();
	if (!strcmp(how, "constructor"))
		hold(load);
	else if (!strcmp(how, "callback"))
		hold(iterate);
	watched = (pid_t)syscall(SYS_gettid);
	return call(name, false);
}

/* The shapes in which programs meet this. */

static void *registers(void *nothing)
{
	(void)nothing;
	watched = (pid_t)syscall(SYS_gettid);
	registered();
	must(dereg(mr) == 0);
	return NULL;
}

static void waits_for_registration(void) { in_thread(registers, NULL); }

static int shape(const char *name)
{
	open_it();
	begin_watch();
	watched = (pid_t)syscall(SYS_gettid);
	if (!strcmp(name, "destructor")) {
		calls_from_plugin("IN_DESTRUCTOR", waits_for_registration);
		must(dlclose(load(NULL)) == 0);
	} else if (!strcmp(name, "forked")) {
		pid_t child;

		hold(iterate);
		child = must_fork();
		if (!child) {
			must(syscall(SYS_munmap, memory, PAGE) == 0);
			stub_fail(STUB_REGISTER, EFAULT, 9);
			mr = reg(pd, memory, PAGE, access_flags);
			_exit(mr || errno == 0 ? WRONG : RETURNED);
		}
		watched = child;
		return child_status(child);
	} else if (!strcmp(name, "userfaultfd")) {
		must(filter_each(&(int){ SYS_userfaultfd }, 1, SECCOMP_RET_ERRNO | EPERM));
		for (int n = 0; n < 3; n++) {
			mr = other(ibv_reg_mr_relaxed)(pd, memory, PAGE, access_flags);
			must(mr && other(ibv_dereg_mr_relaxed)(mr) == 0);
		}
	} else if (!strcmp(name, "told")) {
		/* Once the reader has read, the library tells what it did not. */
		static char text[1 << 17];

		must(!reg(pd, (void *)8, PAGE, 2));
		while (read(99, text, sizeof(text)) > 0)
			;
		must(!reg(pd, (void *)8, PAGE, 2));
		memset(text, 0, sizeof(text));
		must(read(99, text, sizeof(text) - 1) > 0);
		return strstr(text, " lines were dropped: standard error was full") ? RETURNED : WRONG;
	} else {
		return NO_CASE;
	}
	return RETURNED;
}

/* Standard error is a full pipe when the program starts. */
static void with_full_error(char **argv)
{
	static const char page[4096];
	int pipes[2];

	must(setenv("FULL", "1", 1) == 0 && pipe2(pipes, O_NONBLOCK) == 0);
	while (write(pipes[1], page, sizeof(page)) > 0)
		;
	must(fcntl(pipes[1], F_SETFL, 0) == 0 && dup2(pipes[1], STDERR_FILENO) == STDERR_FILENO);
	must(dup2(pipes[0], 99) == 99);
	execv("/proc/self/exe", argv);
	must(!"execv");
}

/* Two programs' settings; the first of each differs. */
typedef const char *const settings[2][4];

static settings caches = { { "RDMAMR_CACHE=off", "LD_BIND_NOW=1" }, { "RDMAMR_CACHE=all", "LD_BIND_NOW=1" } };
static settings verbose = {
	{ "RDMAMR_CACHE=off", "RDMAMR_LOG=debug", "LD_BIND_NOW=1" },
	{ "RDMAMR_CACHE=all", "RDMAMR_LOG=debug", "LD_BIND_NOW=1" },
};
static settings traced = {
	{ "RDMAMR_TRACE_STACKS=0", "RDMAMR_TRACE=/dev/null" }, { "RDMAMR_TRACE_STACKS=1", "RDMAMR_TRACE=/dev/null" },
};

static void checks(const char *how, const char *name, settings with)
{
	char argument[256];

	snprintf(argument, sizeof(argument), "%s %s", how, name);
	for (int n = 0; n < 2; n++) {
		int status = once_more(argument, with[n]);

		if (status == EXEMPT)
			skip(name, "it is exempt, for the reason in this test");
		else
			ok(status == RETURNED, "%s, %s, %s: %s", name, how, with[n][0],
			   words[status] ?: "ends the process");
	}
}

int main(int argc, char **argv)
{
	static const struct { const char *what, *how, *name; const char *const (*with)[4]; } shapes[] = {
		{ "a registration waits for nobody: destructor", "shape", "destructor", caches },
		{ "a registration waits for nobody: forked", "shape", "forked", caches },
		{ "nor does one that is traced: constructor", "constructor", "ibv_reg_mr", traced },
		{ "nor does its end: constructor", "constructor", "ibv_dereg_mr", traced },
		{ "nor does one that is traced: forked", "shape", "forked", traced },
		{ "nor does one that is traced: callback", "callback", "ibv_reg_mr", traced },
		{ "standard error is full: userfaultfd", "full-shape", "userfaultfd", verbose },
		{ "the dropped lines are counted, and told", "full-shape", "told", verbose },
	};
	char line[256];
	FILE *list;

	if (argc > 1) {
		char *name = strchr(argv[1], ' ');
		char how[32] = "";

		must(name);
		memcpy(how, argv[1], (size_t)(name - argv[1]));
		if (!strncmp(how, "full", 4) && !getenv("FULL"))
			with_full_error(argv);
		name++;
		/* exit() would wait for the linker. */
		_exit(strstr(how, "shape") ? shape(name) : one_call(how, strdup(name)));
	}
	list = fopen("ctests/packages/abi/librdmamr.symbols", "re");
	must(list);
	while (fgets(line, sizeof(line), list)) {
		line[strcspn(line, "\n")] = 0;
		if (!line[0] || line[0] == '#')
			continue;
		case_begin("%s waits for nobody", line);
		checks("constructor", line, caches);
		checks("callback", line, caches);
		checks("full", line, verbose);
		case_end();
	}
	fclose(list);
	for (size_t n = 0; n < sizeof(shapes) / sizeof(*shapes); n++)
		as_case(checks(shapes[n].how, shapes[n].name, shapes[n].with), "%s", shapes[n].what);
	return done_testing();
}
