/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Many regions far apart, each registered twice in turn: the second registration reuses the first
 * one's region, for any number of regions. The library asks the kernel about the memory of each
 * (Linux 6.11). On older kernels it reads all mappings, and only so often: then the regions are
 * reused later.
 *
 * The device is the stand-in (stub_device.h).
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include "../../lib/stub_rows.h"

#define PROCMAP_QUERY 0xc0686611u

static bool kernel_answers(void)
{
	char question[0x68] = { sizeof(question) };
	int fd = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC), err;

	must(fd >= 0);
	err = ioctl(fd, PROCMAP_QUERY, question) ? errno : 0;
	must(close(fd) == 0);
	return err != ENOTTY;
}

/* Pages with a hole before each, so that each is a mapping. */
static char *scattered(size_t count)
{
	char *memory = new_place(count * 2 * PAGE);

	for (size_t n = 0; n < count; n++)
		fresh_at(memory + n * 2 * PAGE, PAGE);
	return memory;
}

/* Each is registered that often in turn. Returns the number of hits. */
static int each(char *memory, size_t count, int times)
{
	int reused = 0;

	for (size_t n = 0; n < count; n++)
		reused += hits(memory + n * 2 * PAGE, times);
	return reused;
}

static void at_once(void)
{
	idle();
	if (!kernel_answers())
		skip_all("the kernel answers no question about a mapping");
	is(each(scattered((size_t)row->value), (size_t)row->value, 2), row->value, "each is reused at once");
}

/* A page with a reused region needs no further region, even while there is no answer. */
static void later(void)
{
	size_t count = (size_t)row->value;
	char *memory = scattered(count);

	if (!refuse_calls(SYS_ioctl, 1, PROCMAP_QUERY, ENOTTY))
		skip_all("no seccomp filter can be had");
	each(memory, count, 3);
	ok(stats().idle <= count, "no page has two regions idle");
	ok(comes(each(memory, count, 1) == row->value), "after a while each is reused");
}

#define MANY_IDLE .flags = NO_PINS, .settings = "RDMAMR_CACHE_MAX_IDLE=100000 RDMAMR_CACHE_MAX_IDLE_BYTES=1G"

static const struct row rows[] = {
	{ "1000 regions far apart", at_once, 1000, MANY_IDLE },
	{ "20000 regions far apart", at_once, 20000, MANY_IDLE },
	{ "1000 regions far apart, all mappings read", later, 1000, MANY_IDLE },
};

int main(int argc, char **argv)
{
	(void)argc;
	return run_rows(argv, ROWS(rows), "RDMAMR_CACHE_LINGER=" FOREVER, on_stub);
}
