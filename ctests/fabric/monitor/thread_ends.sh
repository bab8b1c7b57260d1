#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# thread_ends.sh LIBRARY: the thread that notifies libfabric ends when there is nothing to notify,
# and another one starts for the next notification. A process whose main function calls pthread_exit
# ends with the last thread of the C library, so a thread that waits for ever keeps it for ever.
# The libfabric is a stand-in: it exports what the import of a monitor needs, and leaves the monitor
# to the program.
. "$(dirname "$0")/../../lib/script.sh"
library=$1

cat >"$work/libfabric.c" <<'C'
#include <rdma/fabric.h>
#include <rdma/fi_ext.h>

struct fid_mem_monitor *monitor;
const void *volatile notified;

static void notify(struct fid_mem_monitor *of, const void *addr, size_t len)
{
	notified = addr;
	of->export_ops->unsubscribe(of, addr, len);
}
static struct fi_ops_mem_notify import_ops = { .size = sizeof(import_ops), .notify = notify };
static int import(struct fid *cache, struct fid *bound, uint64_t flags)
{
	monitor = (void *)bound;
	monitor->import_ops = &import_ops;
	return 0;
}
static int closed(struct fid *cache) { return 0; }
static struct fi_ops ops = { .size = sizeof(ops), .bind = import, .close = closed };
static struct fid cache = { .ops = &ops };

uint32_t stub_version(void) { return FI_VERSION(2, 1); }
int stub_open(uint32_t version, const char *name, void *attr, size_t len, uint64_t flags, struct fid **fid, void *context)
{
	*fid = &cache;
	return 0;
}
int stub_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const void *hints, void **info)
{
	return -FI_ENODATA;
}
__asm__(".symver stub_version, fi_version@@FABRIC_1.0");
__asm__(".symver stub_open, fi_open@@FABRIC_1.5");
__asm__(".symver stub_getinfo, fi_getinfo@@FABRIC_1.3");
C
cat >"$work/versions" <<'V'
FABRIC_1.0 { global: fi_version; monitor; notified; local: *; };
FABRIC_1.3 { global: fi_getinfo; } FABRIC_1.0;
FABRIC_1.5 { global: fi_open; } FABRIC_1.3;
V
cat >"$work/program.c" <<'C'
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_ext.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PATIENCE = 1000 /* of 10 ms */ };
extern struct fid_mem_monitor *monitor;
extern const void *volatile notified;

static bool has_thread(void)
{
	return system("grep -qx rdmamr-monitor /proc/$PPID/task/*/comm 2>/dev/null") == 0;
}

static void *subscribed(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	page[0] = 1;
	monitor->export_ops->subscribe(monitor, page, PAGE);
	return page;
}

/* Unmaps a page that the monitor watches; libfabric is notified at the latest with the next page. */
static const char *sent(void)
{
	void *page = subscribed();

	if (!monitor->export_ops->valid(monitor, page, PAGE) || syscall(SYS_munmap, page, PAGE) ||
	    monitor->export_ops->valid(monitor, page, PAGE))
		return "missing";
	for (int n = 0; n < PATIENCE && notified != page; n++) {
		subscribed();
		usleep(10000);
	}
	return notified == page ? "sent" : "missing";
}

static const char *ends(void)
{
	for (int n = 0; n < PATIENCE && has_thread(); n++)
		usleep(10000);
	return has_thread() ? "stays" : "ended";
}

int main(void)
{
	struct fi_info *info = NULL;

	fi_getinfo(FI_VERSION(2, 1), NULL, NULL, 0, NULL, &info);
	if (!monitor || monitor->export_ops->start(monitor))
		return puts("not imported"), 1;
	for (int n = 1; n <= 2; n++) {
		printf("notification %d: %s\n", n, sent());
		printf("thread %d: %s\n", n, ends());
	}
	printf("notification 3: %s\npthread_exit\n", sent());
	fflush(stdout);
	pthread_exit(NULL);
}
C
cc=(${CC:-cc} -Wall -Werror)
check "the stand-in for libfabric compiles" "${cc[@]}" -shared -fPIC -Wl,-soname,libfabric.so.1 \
	-Wl,--version-script="$work/versions" "$work/libfabric.c" -o "$work/libfabric.so.1"
check "the program compiles" "${cc[@]}" "$work/program.c" "$work/libfabric.so.1" -Wl,-rpath,"$work" -pthread -o "$work/program"

# A process whose first thread has ended is not ended by SIGTERM if the others block it.
timeout -s KILL 120 env RDMAMR_MONITOR=libfabric LD_PRELOAD="$library" "$work/program" >"$work/output" 2>&1
echo "status $?" >>"$work/output"
check "libfabric is notified of each unmapped page, by threads that end, and so does a program that calls pthread_exit beside one" \
	diff "$work/output" - <<-'WANTED'
		notification 1: sent
		thread 1: ended
		notification 2: sent
		thread 2: ended
		notification 3: sent
		pthread_exit
		status 0
	WANTED
tap_done
