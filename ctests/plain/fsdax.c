/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A file in DAX mode is not pinned, as the reason says, and on-demand paging registers it. The machine
 * has persistent memory by its command line (memmap=).
 */
#include "../lib/device.h"
#include "../lib/program.h"
#include <fcntl.h>

#define PLACE "/run/rdmamr-fsdax"

int main(int argc, char **argv)
{
	static const char commands[] = "modprobe -a nd_e820 nd_pmem ext4 && mkdir -p " PLACE " && "
				       "mkfs.ext4 -q -F -b 4096 /dev/pmem0 && mount -o dax /dev/pmem0 " PLACE;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *memory;
	int fd;

	(void)argc;
	with_setting(argv, "RDMAMR_LOG", "warn");
	must(system(commands) == 0);
	fd = open(PLACE "/file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	must(fd >= 0 && ftruncate(fd, 16 * PAGE) == 0);
	memory = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(memory != MAP_FAILED);
	pd = domain_of_device();
	errno = 0;
	mr = ibv_reg_mr(pd, memory, 16 * PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(!mr && errno == EOPNOTSUPP, "a file in DAX mode is not pinned");
	ok(strstr(rdmamr_last_reason(), "(" PLACE "/file) is of a file in DAX mode (statx), which cannot be pinned for long: "
					"use device DAX or on-demand paging") != NULL, "%s", rdmamr_last_reason());
	mr = ibv_reg_mr(pd, memory, 16 * PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	ok(mr != NULL, "on-demand paging registers it");
	must(!mr || ibv_dereg_mr(mr) == 0);
	return done_testing();
}
