/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * filtered ACTION COMMAND...: runs a command under a seccomp filter, as a service with systemd's
 * SystemCallFilter=@system-service. ACTION is "kill", systemd's default for calls outside the list,
 * "refuse", as SystemCallErrorNumber=EPERM and containers do, "lack", as others do with ENOSYS, "allow", or
 * "prctl", which kills at that call alone.
 */
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include "../../lib/program.h"
#include "../../lib/tap.h"

int main(int count, char **arguments)
{
	static const int outside[] = { SYS_userfaultfd, SYS_kcmp, SYS_ptrace, SYS_bpf, SYS_perf_event_open, SYS_process_vm_readv,
				       SYS_keyctl, SYS_mount };
	static const int rights[] = { SYS_prctl };
	unsigned int action = SECCOMP_RET_ALLOW;

	must(count >= 3);
	if (!strcmp(arguments[1], "kill"))
		action = SECCOMP_RET_KILL_PROCESS;
	if (!strcmp(arguments[1], "refuse"))
		action = SECCOMP_RET_ERRNO | EPERM;
	if (!strcmp(arguments[1], "lack"))
		action = SECCOMP_RET_ERRNO | ENOSYS;
	must(filter_each(outside, sizeof(outside) / sizeof(*outside), action));
	if (!strcmp(arguments[1], "prctl"))
		must(filter_each(rights, 1, SECCOMP_RET_KILL_PROCESS));
	execvp(arguments[2], arguments + 2);
	must(!"execvp");
}
