/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "observe.h"
#include <linux/capability.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

#define each_attribute(attr, first, bytes)                                     \
	for (const struct nlattr *attr = (first), *end_of_##attr = (const void *)((const char *)attr + (bytes)); \
	     (const char *)attr + NLA_HDRLEN <= (const char *)end_of_##attr && attr->nla_len >= NLA_HDRLEN; \
	     attr = (const void *)((const char *)attr + NLA_ALIGN(attr->nla_len)))

static void attribute_of(struct kernel_region *region, const struct nlattr *attr)
{
	const void *value = (const char *)attr + NLA_HDRLEN;

	switch (attr->nla_type & NLA_TYPE_MASK) {
	case RDMA_NLDEV_ATTR_RES_LKEY: memcpy(&region->lkey, value, 4); break;
	case RDMA_NLDEV_ATTR_RES_PID: memcpy(&region->pid, value, 4); break;
	}
}

int device_regions(struct ibv_context *context, struct kernel_region *list, int most)
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
		char buffer[65536] __attribute__((aligned(8)));
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

bool kernel_has_key(struct ibv_context *context, uint32_t lkey)
{
	struct kernel_region list[MOST_REGIONS];
	int count = device_regions(context, list, MOST_REGIONS);

	for (int n = 0; n < count; n++)
		if (list[n].lkey == lkey)
			return true;
	return false;
}

void as_root(void)
{
	if (geteuid())
		skip_all("only root gets the keys of the device's regions");
}

long pinned(void) { return field_of("/proc/self/status", "VmPin") * 1024 / PAGE; }

void give_up_memlock_right(bool permitted)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];

	must(syscall(SYS_capget, &header, data) == 0);
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	if (permitted)
		data[0].permitted &= ~(1u << CAP_IPC_LOCK);
	must(syscall(SYS_capset, &header, data) == 0);
}

void allow_pins(long more)
{
	rlim_t bytes = (rlim_t)(pinned() + more) * PAGE;
	struct rlimit limit = { bytes, bytes };

	must(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
}
