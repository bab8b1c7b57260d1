/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * filtered ACTION COMMAND...: runs a command under a seccomp filter, as a service with systemd's
 * SystemCallFilter=@system-service. ACTION is "kill", systemd's default for calls outside the list,
 * "refuse", as SystemCallErrorNumber=EPERM and containers do, or "allow".
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OUTSIDE(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)

int main(int count, char **arguments)
{
	unsigned int action = SECCOMP_RET_ALLOW;

	if (count < 3)
		return 2;
	if (!strcmp(arguments[1], "kill"))
		action = SECCOMP_RET_KILL_PROCESS;
	if (!strcmp(arguments[1], "refuse"))
		action = SECCOMP_RET_ERRNO | EPERM;

	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		OUTSIDE(SYS_userfaultfd), OUTSIDE(SYS_kcmp), OUTSIDE(SYS_ptrace), OUTSIDE(SYS_bpf),
		OUTSIDE(SYS_perf_event_open), OUTSIDE(SYS_process_vm_readv), OUTSIDE(SYS_keyctl), OUTSIDE(SYS_mount),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("filtered");
		return 2;
	}
	execvp(arguments[2], arguments + 2);
	perror(arguments[2]);
	return 2;
}
