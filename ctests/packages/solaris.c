/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A source as for Oracle Solaris: the one include of its manual page, and the three calls. */
#include <errno.h>
#include <infiniband/verbs.h>

int main(void)
{
	char memory[64];
	struct ibv_mr *mr = ibv_reg_mr_relaxed(NULL, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);

	return mr || errno != EINVAL || ibv_dereg_mr_relaxed(NULL) != EINVAL || ibv_flush_relaxed_mr(NULL) != EINVAL;
}
