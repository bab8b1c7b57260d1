/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program closes the number of a device, or gives it to another file, while the cache has regions
 * on that device: as a daemon does that closes all numbers at its start. The kernel ends the regions
 * with the file. The library deregisters nothing through the number afterwards, since it may belong
 * to another device by then, and writes nothing to the file that gets it.
 *
 * The device is the stand-in (stub_device.h), whose file is a memfd: its ioctl fails with ENOTTY
 * where the stand-in does not answer. Each part runs in a child.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../lib/device.h"
#include "../../lib/memory.h"
#include "../../lib/program.h"
#include "../../lib/stub_device.h"

static const char TEXT[] = "the program's";
enum { LENGTH = sizeof(TEXT) - 1 };

static struct ibv_mr *registered(void *memory)
{
	struct ibv_mr *mr = ibv_reg_mr_relaxed(stub_pd(), memory, PAGE, LOCAL_AND_REMOTE);

	must(mr);
	return mr;
}

/* Whether the cache has an idle region of the memory. */
static bool is_cached(void *memory)
{
	long before = stub_registered();

	must(ibv_dereg_mr_relaxed(registered(memory)) == 0);
	return stub_registered() == before;
}

static void *idle(void)
{
	void *memory = pages(1);

	for (int tries = 0; !is_cached(memory) || !is_cached(memory); tries++)
		must(tries < 100 && usleep(20000) == 0);
	return memory;
}

/* Each way leaves a file with the text at the number. */
static void now_has_the_text(int fd)
{
	int file = memfd_create("the program's file", MFD_CLOEXEC);

	must(file >= 0);
	if (file != fd) {
		must(syscall(SYS_dup3, file, fd, 0) == fd);
		must(syscall(SYS_close, file) == 0);
	}
	must(write(fd, TEXT, LENGTH) == LENGTH);
}

static void by_close(int fd) { must(close(fd) == 0); }
static void by_closefrom(int fd) { closefrom(fd); }
static void by_close_range(int fd) { must(close_range(fd, ~0U, 0) == 0); }
static void by_dup2(int fd) { must(dup2(STDOUT_FILENO, fd) == fd); }
static void by_dup3(int fd) { must(dup3(STDOUT_FILENO, fd, O_CLOEXEC) == fd); }
static void by_raw_close(int fd) { must(syscall(SYS_close, fd) == 0); }

struct seen {
	long deregistered_before;
	long deregistered_after;
	long long file;
	int err;
};

/*
 * What happens if the number goes in this way. With `is_device` the stand-in answers at the number
 * afterwards too, as another device that was opened next.
 */
static struct seen number_goes(void (*way)(int fd), bool is_device)
{
	int fd = stub_pd()->context->cmd_fd;
	struct ibv_mr *used;
	struct seen seen;
	struct stat file;
	long before;

	idle();
	used = registered(pages(1));
	before = stub_deregistered();
	way(fd);
	seen.deregistered_before = stub_deregistered() - before;
	now_has_the_text(fd);
	if (!is_device)
		stub_pd()->context->cmd_fd = -1;
	before = stub_deregistered();
	ibv_flush_relaxed_mr(stub_pd());
	seen.err = ibv_dereg_mr_relaxed(used);
	ibv_flush_relaxed_mr(stub_pd());
	seen.deregistered_after = stub_deregistered() - before;
	must(fstat(fd, &file) == 0);
	seen.file = file.st_size;
	return seen;
}

static struct seen *in_child(void part(struct seen *seen))
{
	static struct seen *seen;
	int status;
	pid_t pid;

	if (!seen)
		seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(seen != MAP_FAILED);
	*seen = (struct seen){ -1, -1, -1, -1 };
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		alarm(DEADLOCK);
		must(!stub_open(STUB_NOTHING));
		part(seen);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid);
	is(status, 0, "the process ends as it should");
	return seen;
}

static void (*way)(int fd);
static bool is_device;

static void goes(struct seen *seen)
{
	*seen = number_goes(way, is_device);
}

/*
 * A call that does not take the number from the device. `deregistered_after` counts registrations
 * that the cache did not serve.
 */
static void stays(struct seen *seen)
{
	void *memory = idle();
	long before = stub_registered();

	way(stub_pd()->context->cmd_fd);
	seen->deregistered_after = !is_cached(memory) + stub_registered() - before;
}

static void fails(int fd) { must(dup2(-1, fd) == -1 && dup3(fd, fd, 0) == -1); }
static void onto_itself(int fd) { must(dup2(fd, fd) == fd); }
static void another(int fd) { must(close(dup(fd)) == 0); }

/* The child `pid`, in which it is 0, closes the number. */
static void closes(pid_t pid, int fd)
{
	int status;

	if (!pid) {
		close(fd);
		_exit(0);
	}
	must(pid > 0 && waitpid(pid, &status, 0) == pid);
}

static void in_vfork_child(int fd) { closes(vfork(), fd); }
static void in_forked_child(int fd) { closes(fork(), fd); }

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*way)(int fd);
		bool is_seen;
	} ways[] = {
		{ "close", by_close, true },	       { "closefrom", by_closefrom, true },
		{ "close_range", by_close_range, true }, { "dup2", by_dup2, true },
		{ "dup3", by_dup3, true },	       { "raw close", by_raw_close, false },
	};
	static const struct {
		const char *name;
		void (*way)(int fd);
	} none[] = {
		{ "a call that fails", fails },
		{ "dup2 onto itself", onto_itself },
		{ "close of another number", another },
		{ "close in a child of vfork", in_vfork_child },
		{ "close in a child of fork", in_forked_child },
	};
	(void)argc;
	with_setting(argv, "RDMAMR_CACHE_LINGER", FOREVER);
	for (size_t n = 0; n < sizeof(ways) / sizeof(*ways); n++) {
		struct seen *seen;

		way = ways[n].way;
		is_device = false;
		seen = in_child(goes);
		if (ways[n].is_seen)
			is(seen->deregistered_before, 1, "%s: the idle region has ended with the call", ways[n].name);
		is(seen->file, LENGTH, "%s: the program's file has its own bytes alone", ways[n].name);
		is(seen->err, 0, "%s: a region in use is released without an error", ways[n].name);
		if (!ways[n].is_seen)
			continue;
		is_device = true;
		seen = in_child(goes);
		is(seen->deregistered_after, 0, "%s: the next device of the number keeps its regions", ways[n].name);
	}
	for (size_t n = 0; n < sizeof(none) / sizeof(*none); n++) {
		way = none[n].way;
		is(in_child(stays)->deregistered_after, 0, "%s: the idle region serves the next registration",
		   none[n].name);
	}
	return done_testing();
}
