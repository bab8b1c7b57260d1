/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Before the kernel pins a page of a movable zone it moves the page, and ENOMEM is the answer if something
 * else holds it: here a pipe. The machine has such a zone by its command line (movablecore=).
 */
#include "../lib/device.h"
#include "../lib/program.h"
#include <fcntl.h>
#include <sys/uio.h>

enum { PAGES = 64 };

int main(int argc, char **argv)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct iovec part;
	char *memory;
	int ends[2];

	(void)argc;
	with_setting(argv, "RDMAMR_LOG", "warn");
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(memory != MAP_FAILED && pipe2(ends, O_CLOEXEC) == 0);
	memset(memory, 1, PAGES * PAGE);
	part = (struct iovec){ memory, PAGE };
	must(vmsplice(ends[1], &part, 1, 0) == PAGE);
	pd = domain_of_device();
	errno = 0;
	mr = ibv_reg_mr(pd, memory, PAGES * PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(!mr && errno == ENOMEM, "a page that cannot be moved is not pinned");
	ok(strstr(rdmamr_last_reason(), "likely a page of a movable zone") != NULL, "%s", rdmamr_last_reason());
	close(ends[0]);
	close(ends[1]);
	mr = ibv_reg_mr(pd, memory, PAGES * PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(mr != NULL, "it is once nothing else holds it");
	must(!mr || ibv_dereg_mr(mr) == 0);
	return done_testing();
}
