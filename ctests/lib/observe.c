/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "observe.h"
#include <linux/capability.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

/* The list and its entries are attributes too, whose own attributes come behind the header. */
static int add_regions(const struct nlmsghdr *header, struct kernel_region *list, int count, int most)
{
	const char *at = NLMSG_DATA(header), *end = at + NLMSG_PAYLOAD(header, 0);

	while (at < end) {
		const struct nlattr *attr = (const void *)at;
		int type = attr->nla_type & NLA_TYPE_MASK;
		bool is_list = type == RDMA_NLDEV_ATTR_RES_MR || type == RDMA_NLDEV_ATTR_RES_MR_ENTRY;

		must(attr->nla_len >= NLA_HDRLEN);
		at += is_list ? NLA_HDRLEN : NLA_ALIGN(attr->nla_len);
		if (type == RDMA_NLDEV_ATTR_RES_MR_ENTRY) {
			must(count < most);
			list[count++] = (struct kernel_region){ 0 };
		}
		if (type == RDMA_NLDEV_ATTR_RES_LKEY)
			memcpy(&list[count - 1].lkey, attr + 1, 4);
		if (type == RDMA_NLDEV_ATTR_RES_PID)
			memcpy(&list[count - 1].pid, attr + 1, 4);
	}
	return count;
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
			if (more)
				count = add_regions(header, list, count, most);
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
