/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs a program, and makes one system call of the library fail.
 *
 * Usage: inject LIBRARY OUT [THREAD NUMBER SITE TIME ERRNO] -- COMMAND...
 *
 * Without a fault it writes to OUT each system call of the library: the thread (the first is 0, in
 * the order of their starts), the call's number, its site (the address in the library to which the
 * call returns), and how often that thread has made the call from that site before. With a fault,
 * the call of that thread, number, site and time does not reach the kernel, and returns the errno.
 * OUT then says "injected", or nothing if the program never made the call. The exit status is the
 * program's, 128 and more for a signal.
 *
 * A call is the library's if the innermost function on the stack, beyond those of the C library and
 * the linker, is the library's: elfutils unwinds the stack. `syscall`, `ioctl` and `__clone` of a
 * test program (stub_device.c) only forward.
 */
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4096, SITES = 8192, OPTIONS = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
				   PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL };

static struct {
	pid_t tid;
	bool is_new;
} threads[THREADS];
static int thread_count;
static struct site {
	int thread;
	long number, site, times;
} sites[SITES];
static int site_count;
static struct site wanted;
static int error;
static bool injected;
static const char *library;
static FILE *out;
static Dwfl *dwfl;
static pid_t attached;

__attribute__((noreturn)) static void die(const char *what)
{
	perror(what);
	exit(125);
}

static int index_of(pid_t tid)
{
	for (int n = 0; n < thread_count; n++)
		if (threads[n].tid == tid)
			return n;
	if (thread_count == THREADS)
		die("too many threads");
	threads[thread_count].tid = tid;
	threads[thread_count].is_new = true;
	return thread_count++;
}

static int no_debug_file(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base, const char *file,
			 const char *link, GElf_Word crc, char **path)
{
	(void)module, (void)data, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)path;
	return -1;
}

/* To the process of this thread. */
static void attach(pid_t tid)
{
	static const Dwfl_Callbacks callbacks = {
		.find_elf = dwfl_linux_proc_find_elf,
		.find_debuginfo = no_debug_file,
	};

	if (dwfl)
		dwfl_end(dwfl);
	dwfl = dwfl_begin(&callbacks);
	if (!dwfl || dwfl_linux_proc_report(dwfl, tid) || dwfl_report_end(dwfl, NULL, NULL) ||
	    dwfl_linux_proc_attach(dwfl, tid, true) < 0)
		die("dwfl");
	attached = tid;
}

/*
 * The result of a walk: the offset in the library, -1 if the call is not its, -2 if a module is
 * unknown.
 */
static int frame(Dwfl_Frame *state, void *found)
{
	Dwarf_Addr pc, base;
	bool activation;
	Dwfl_Module *module;
	const char *name, *file, *symbol;

	if (!dwfl_frame_pc(state, &pc, &activation))
		return DWARF_CB_ABORT;
	module = dwfl_addrmodule(dwfl, pc);
	if (!module) {
		*(long *)found = -2;
		return DWARF_CB_ABORT;
	}
	name = dwfl_module_info(module, NULL, &base, NULL, NULL, NULL, NULL, NULL);
	file = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
	if (!strcmp(file, library)) {
		*(long *)found = (long)(pc - base);
		return DWARF_CB_ABORT;
	}
	if (!strncmp(file, "libc.", 5) || !strncmp(file, "ld-linux", 8))
		return DWARF_CB_OK;
	symbol = dwfl_module_addrname(module, pc - !activation);
	if (symbol && (!strcmp(symbol, "syscall") || !strcmp(symbol, "ioctl") || !strcmp(symbol, "__clone")))
		return DWARF_CB_OK;
	return DWARF_CB_ABORT;
}

static long site_of(pid_t tid)
{
	char path[64];
	long found = -2;

	/* A forked child is a process of its own. */
	snprintf(path, sizeof(path), "/proc/%d/task/%d", attached, tid);
	for (int tries = 0; tries < 2 && found == -2; tries++) {
		if (!attached || access(path, F_OK) || tries)
			attach(tid);
		found = -1;
		dwfl_getthread_frames(dwfl, tid, frame, &found);
	}
	return found;
}

/* How often this thread has made the call from that site before. */
static long times_before(int thread, long number, long site)
{
	for (int n = 0; n < site_count; n++)
		if (sites[n].thread == thread && sites[n].number == number && sites[n].site == site)
			return sites[n].times++;
	if (site_count == SITES)
		die("too many sites");
	sites[site_count++] = (struct site){ thread, number, site, 1 };
	return 0;
}

static void set(pid_t tid, struct user_regs_struct *registers)
{
	if (ptrace(PTRACE_SETREGS, tid, 0, registers))
		die("PTRACE_SETREGS");
}

/* Lets the call that has just begun run to its end. */
static void make_it(pid_t tid, struct user_regs_struct *registers)
{
	int status;

	if (ptrace(PTRACE_SYSCALL, tid, 0, 0) || waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_GETREGS, tid, 0, registers))
		die("PTRACE_SYSCALL");
}

/*
 * Makes the call fail. A close that fails has closed the number all the same, as Linux documents,
 * so the call is made, and its answer replaced; and so is a futex wake, which fails for a wrong address
 * alone: a lost wake would let its sleeper wait for ever. A brk that fails has no errno: it returns the end
 * of the memory, as one does that requests nothing.
 */
static void fail(pid_t tid, struct user_regs_struct *registers)
{
	long long number = (long long)registers->orig_rax, first = (long long)registers->rdi;

	if (number == SYS_brk) {
		registers->rdi = 0;
		set(tid, registers);
		make_it(tid, registers);
		registers->rdi = (unsigned long long)first;
	} else {
		if (number == SYS_close ||
		    (number == SYS_futex && ((int)registers->rsi & FUTEX_CMD_MASK) == FUTEX_WAKE))
			make_it(tid, registers);
		else
			registers->orig_rax = (unsigned long long)-1;
		registers->rax = (unsigned long long)(long long)-error;
	}
	set(tid, registers);
}

static void system_call(int thread)
{
	pid_t tid = threads[thread].tid;
	struct user_regs_struct registers;
	long number, site, time;

	if (error && (injected || thread != wanted.thread))
		return;
	if (ptrace(PTRACE_GETREGS, tid, 0, &registers))
		return;
	number = (long)registers.orig_rax;
	/* These do not return, or return to another place. */
	if (number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn || number == SYS_execve ||
	    (error && number != wanted.number))
		return;
	site = site_of(tid);
	if (site < 0 || (error && site != wanted.site))
		return;
	time = times_before(thread, number, site);
	if (!error) {
		fprintf(out, "%d %ld %ld %ld\n", thread, number, site, time);
	} else if (time == wanted.times) {
		fail(tid, &registers);
		injected = true;
		fprintf(out, "injected\n");
	}
}

static pid_t start(char **command)
{
	struct sock_filter code = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	struct sock_fprog program = { 1, &code };
	pid_t pid = fork();

	if (pid)
		return pid;
	if (ptrace(PTRACE_TRACEME, 0, 0, 0) || raise(SIGSTOP))
		die("PTRACE_TRACEME");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
	execvp(command[0], command);
	die(command[0]);
}

/* Until the first process has ended and all others too. */
static int follow(pid_t first)
{
	int status, result = 125;
	pid_t tid;

	while ((tid = waitpid(-1, &status, __WALL)) > 0) {
		int thread, signal = 0, event = status >> 16;

		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (tid == first)
				result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		thread = index_of(tid);
		if (event == PTRACE_EVENT_SECCOMP) {
			system_call(thread);
		} else if (event == PTRACE_EVENT_EXEC) {
			/* Another address space. */
			attached = 0;
		} else if (!event && !(WSTOPSIG(status) == SIGSTOP && threads[thread].is_new)) {
			signal = WSTOPSIG(status);
		}
		if (!event && WSTOPSIG(status) == SIGSTOP)
			threads[thread].is_new = false;
		ptrace(PTRACE_CONT, tid, 0, signal);
	}
	return result;
}

int main(int argc, char **argv)
{
	pid_t pid;
	int status, at = 3;

	if (argc < 5)
		return 125;
	library = argv[1];
	out = fopen(argv[2], "we");
	if (!out)
		die(argv[2]);
	if (strcmp(argv[3], "--") && argc > 9) {
		wanted = (struct site){ atoi(argv[3]), atol(argv[4]), atol(argv[5]), atol(argv[6]) };
		error = atoi(argv[7]);
		at = 8;
	}
	pid = start(argv + at + 1);
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
		die("start");
	index_of(pid);
	threads[0].is_new = false;
	if (ptrace(PTRACE_SETOPTIONS, pid, 0, OPTIONS) || ptrace(PTRACE_CONT, pid, 0, 0))
		die("PTRACE_SETOPTIONS");
	status = follow(pid);
	fclose(out);
	return status;
}
