/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Runs a program that cannot ask the kernel by RDMA netlink: without_netlink PROGRAM [ARGUMENT...] */
#include <linux/netlink.h>
#include <sys/syscall.h>
#include "../../lib/program.h"
#include "../../lib/tap.h"

int main(int argc, char **argv)
{
	must(argc > 1 && refuse_calls(SYS_socket, 2, NETLINK_RDMA, EACCES));
	execv(argv[1], argv + 1);
	must(!"execv");
}
