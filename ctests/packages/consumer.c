/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that is linked to the library and needs no device. With the argument "kill" it does not
 * end in order, with "chdir" it ends in another directory, with "reuse" a file of its own has the
 * number of standard error, with "redirect" it sends standard error to the file on purpose, with
 * "append" too.
 */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdmamr.h>
#include <signal.h>
#include <unistd.h>
#include "../lib/tap.h"

int main(int argc, char **argv)
{
	struct rdmamr_stats stats;
	char version[32], memory[64];
	struct ibv_mr *mr;

	/* A function of libibverbs alone, so that the program needs libibverbs. */
	printf("# %s\n", ibv_node_type_str(IBV_NODE_CA));

	snprintf(version, sizeof(version), "%d.%d.%d", RDMAMR_VERSION_MAJOR, RDMAMR_VERSION_MINOR,
		 RDMAMR_VERSION_PATCH);
	ok(!strcmp(rdmamr_version(), version), "the library's version is the header's");

	memset(&stats, 0xff, sizeof(stats));
	is(rdmamr_get_stats(&stats, sizeof(stats)), 0, "statistics");
	is((long long)(stats.reg_kernel + stats.reg_next + stats.live + stats.ended_elsewhere), 0, "of no calls");
	/* Structures of other versions: abi/kept.c. */
	is(rdmamr_get_stats(NULL, sizeof(stats)), EINVAL, "statistics to NULL");
	is(rdmamr_get_stats(&stats, 0), EINVAL, "statistics of no size");
	is(rdmamr_get_stats(&stats, 9), EINVAL, "statistics of an odd size");

	ok(rdmamr_last_reason()[0] == '\0', "no reason before a failure");
	errno = 0;
	mr = ibv_reg_mr(NULL, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	ok(!mr && errno == EINVAL, "registering for no domain is EINVAL: the call is the library's");
	ok(strstr(rdmamr_last_reason(), "ibv_reg_mr of 64 bytes") != NULL, "the reason: %s", rdmamr_last_reason());
	is(ibv_dereg_mr(NULL), EINVAL, "deregistering nothing is EINVAL");
	if (argc > 1 && !strcmp(argv[1], "kill"))
		raise(SIGKILL);
	if (argc > 1 && !strcmp(argv[1], "chdir") && chdir("/"))
		printf("Bail out! chdir\n");
	if (argc > 1 && !strcmp(argv[1], "reuse"))
		must(close(2) == 0 && open("own", O_WRONLY | O_CREAT | O_TRUNC, 0600) == 2);
	if (argc > 1 && !strcmp(argv[1], "redirect"))
		must(dup2(open("own", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2) == 2);
	if (argc > 1 && !strcmp(argv[1], "append"))
		must(freopen("own", "a", stderr) != NULL);
	return done_testing();
}
