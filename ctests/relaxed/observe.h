/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the kernel says itself, past the library: its keys, pins, mappings, threads; and ways to get between. */
#ifndef OBSERVE_H
#define OBSERVE_H

#include "relaxed.h"
#include <dirent.h>
#include <linux/capability.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

/* Waits for something that another thread does in its own time. The value is whether it came. */
#define comes(seconds, condition)                                              \
	({                                                                     \
		for (int left = (seconds) * 100; !(condition) && left > 0; left--) \
			usleep(10000);                                         \
		(condition);                                                   \
	})

__attribute__((unused))
static double seconds_now(void)
{
	struct timespec now;

	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* How many userfaultfds the process has; and the number of one, if it is asked for. */
__attribute__((unused))
static int userfaultfds(int *one)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	must(directory);
	while ((entry = readdir(directory))) {
		char path[300], target[100] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "userfaultfd")) {
			if (one)
				*one = atoi(entry->d_name);
			count++;
		}
	}
	closedir(directory);
	return count;
}

/* A region as the kernel lists them, whoever has registered it. */
struct kernel_region {
	uint32_t lkey, rkey, pid;
	uint64_t length;
};

static void attribute_of(struct kernel_region *region, const struct nlattr *attr)
{
	const void *value = (const char *)attr + NLA_HDRLEN;

	switch (attr->nla_type & NLA_TYPE_MASK) {
	case RDMA_NLDEV_ATTR_RES_LKEY: memcpy(&region->lkey, value, 4); break;
	case RDMA_NLDEV_ATTR_RES_RKEY: memcpy(&region->rkey, value, 4); break;
	case RDMA_NLDEV_ATTR_RES_PID: memcpy(&region->pid, value, 4); break;
	case RDMA_NLDEV_ATTR_RES_MRLEN: memcpy(&region->length, value, 8); break;
	}
}

#define each_attribute(attr, first, bytes)                                     \
	for (const struct nlattr *attr = (first), *end_of_##attr = (const void *)((const char *)attr + (bytes)); \
	     (const char *)attr + NLA_HDRLEN <= (const char *)end_of_##attr && attr->nla_len >= NLA_HDRLEN; \
	     attr = (const void *)((const char *)attr + NLA_ALIGN(attr->nla_len)))

/*
 * The device's regions, by the kernel's list of its resources: unlike a question about one, that cannot make another
 * thread's deregistration fail with EBUSY. Only root is told the keys.
 */
static int device_regions(struct ibv_context *context, struct kernel_region *list, int most)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA), count = 0;
	struct {
		struct nlmsghdr header;
		struct nlattr attr;
		uint32_t index;
	} request = {
		.header = {
			.nlmsg_len = sizeof(request),
			.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_MR_GET),
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		},
		.attr = { .nla_len = NLA_HDRLEN + 4, .nla_type = RDMA_NLDEV_ATTR_DEV_INDEX },
		.index = (uint32_t)ibv_get_device_index(context->device),
	};

	must(fd >= 0 && send(fd, &request, sizeof(request), 0) == sizeof(request));
	for (bool more = true; more;) {
		static __thread char buffer[65536] __attribute__((aligned(8)));
		ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
		const struct nlmsghdr *header = (const void *)buffer;

		must(got > 0);
		for (size_t left = (size_t)got; more && NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
			must(header->nlmsg_type != NLMSG_ERROR);
			more = header->nlmsg_type != NLMSG_DONE;
			if (!more)
				break;
			each_attribute(table, NLMSG_DATA(header), NLMSG_PAYLOAD(header, 0)) {
				if ((table->nla_type & NLA_TYPE_MASK) != RDMA_NLDEV_ATTR_RES_MR)
					continue;
				each_attribute(entry, table + 1, table->nla_len - NLA_HDRLEN) {
					must(count < most);
					memset(&list[count], 0, sizeof(list[count]));
					each_attribute(attr, entry + 1, entry->nla_len - NLA_HDRLEN)
						attribute_of(&list[count], attr);
					count++;
				}
			}
		}
	}
	close(fd);
	return count;
}

enum { MOST_REGIONS = 4096 };

/* Whether any region of the device has this lkey: what is not registered any more has none. */
__attribute__((unused))
static bool kernel_has_key(struct ibv_context *context, uint32_t lkey)
{
	static __thread struct kernel_region list[MOST_REGIONS];
	int count = device_regions(context, list, MOST_REGIONS);

	for (int n = 0; n < count; n++)
		if (list[n].lkey == lkey)
			return true;
	return false;
}

/* The length of the longest region of this process. */
__attribute__((unused))
static uint64_t kernel_longest(struct ibv_context *context)
{
	static __thread struct kernel_region list[MOST_REGIONS];
	int count = device_regions(context, list, MOST_REGIONS);
	uint64_t longest = 0;

	for (int n = 0; n < count; n++)
		if (list[n].pid == (uint32_t)getpid() && list[n].length > longest)
			longest = list[n].length;
	return longest;
}

/* First in a test that asks for keys. */
__attribute__((unused))
static void as_root(void)
{
	if (geteuid())
		skip_all("only root is told the keys of the device's regions");
}

/* Whether a write by this key is refused as an access error, and changes nothing. It costs the connection. */
__attribute__((unused))
static int write_refused(struct pair *pair, char *memory, uint32_t rkey)
{
	char old = *memory;
	int status, good;

	memset(far.out, ~old, 8);
	status = pair_write(pair, far.mr, far.out, 8, (uintptr_t)memory, rkey);
	/* An iWARP write completes when it is sent, and the refusal is the end of the connection. */
	if (pair->iwarp && status == IBV_WC_SUCCESS)
		status = pair_read(pair, far.mr, far.in, 8, (uintptr_t)far.out, far.mr->rkey);
	good = (pair->iwarp ? status != IBV_WC_SUCCESS : status == IBV_WC_REM_ACCESS_ERR) && *memory == old;
	if (!good)
		printf("# %s, and the byte was %s\n", status < 0 ? "no answer" : ibv_wc_status_str(status),
		       *memory == old ? "left alone" : "changed");
	pair_reconnect(pair);
	return good;
}

/* A number of /proc/self/status, such as "VmPin", in KiB; -1 if it is not there. */
__attribute__((unused))
static long status_of_self(const char *name)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[256];
	long value = -1;

	must(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			value = atol(line + strlen(name) + 1);
	fclose(file);
	return value;
}

/* Pages that are pinned for devices: what the kernel charges to RLIMIT_MEMLOCK. */
__attribute__((unused))
static long pinned(void)
{
	return status_of_self("VmPin") * 1024 / PAGE;
}

/* Before a device is opened, since its file is bound to the capabilities that opened it: limits shall count. */
__attribute__((unused))
static void drop_memlock_right(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	must(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	data[0].permitted &= ~(1u << CAP_IPC_LOCK);
	must(syscall(SYS_capset, &header, data) == 0);
}

/* From now on at most so many pages more may be pinned. */
__attribute__((unused))
static void allow_pins(long more)
{
	rlim_t bytes = (rlim_t)(pinned() + more) * PAGE;
	struct rlimit limit = { bytes, bytes };

	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}

/* The mappings of the process, as vm.max_map_count counts them. Allocates nothing. */
__attribute__((unused))
static int mappings(void)
{
	char buffer[4096];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), lines = 0;
	ssize_t got;

	must(fd >= 0);
	while ((got = read(fd, buffer, sizeof(buffer))) > 0)
		for (ssize_t n = 0; n < got; n++)
			lines += buffer[n] == '\n';
	close(fd);
	return lines;
}

/* The threads of the process, by their numbers; how many. */
__attribute__((unused))
static int all_threads(pid_t *list, int most)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int count = 0;

	must(dir);
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && count < most)
			list[count++] = atoi(entry->d_name);
	closedir(dir);
	return count;
}

/* The threads that there are and were not before, which are the library's; how many. */
__attribute__((unused))
static int new_threads(const pid_t *before, int had, pid_t *list, int most)
{
	pid_t now[64];
	int have = all_threads(now, 64), count = 0;

	for (int n = 0; n < have && count < most; n++) {
		bool old = false;

		for (int m = 0; m < had; m++)
			old = old || now[n] == before[m];
		if (!old)
			list[count++] = now[n];
	}
	return count;
}

/*
 * The control case where pages of the memory were discarded by madvise just before: the word of that comes before they
 * go, so for a second (DROPPING in the library) the pool keeps nothing that is registered there.
 */
__attribute__((unused))
static int control_later(struct pair *pair, const char *name, void *memory, size_t length)
{
	usleep(1200000);
	return control(pair, name, memory, length);
}

/* Past all hooks: what only the kernel's own events can tell. */
__attribute__((unused))
static int raw_munmap(void *memory, size_t length)
{
	return (int)syscall(SYS_munmap, memory, length);
}

/* Maps new pages there, if nothing is; NULL if something is. */
__attribute__((unused))
static char *raw_map_at(void *memory, size_t length)
{
	long at = syscall(SYS_mmap, memory, length, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE, -1, 0);

	return at == -1 ? NULL : (char *)at;
}

/* New pages at the same address, by calls that the library stands in for. */
__attribute__((unused))
static void remap(void *memory, size_t length)
{
	must(munmap(memory, length) == 0);
	must(mmap(memory, length, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_POPULATE, -1, 0) == memory);
}

/* Likewise by system calls. */
__attribute__((unused))
static void raw_remap(void *memory, size_t length)
{
	must(raw_munmap(memory, length) == 0);
	must(raw_map_at(memory, length) == memory);
}

/*
 * Runs this program once more, with an argument that tells it what to do, and with settings of the library
 * ("NAME=VALUE", up to a NULL). Its exit status; 128 and more for signals.
 */
__attribute__((unused))
static int once_more(const char *what, const char *const *settings)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		for (; settings && *settings; settings++)
			if (putenv((char *)(uintptr_t)*settings))
				_exit(126);
		execl("/proc/self/exe", "once-more", what, (char *)NULL);
		_exit(127);
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
