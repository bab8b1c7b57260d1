/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Preloaded before all others, records the commands of registrations and deregistrations, as text on descriptor 3, with
 * all their bytes. Addresses of the sender's memory differ from run to run: it shows "address", and the input there.
 */
#include <rdma/ib_user_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include "uverbs_ioctl.h"

static FILE *record(void)
{
	static FILE *file;

	if (!file)
		file = fdopen(3, "w");
	return file;
}

static void hex(const void *bytes, size_t length)
{
	for (size_t n = 0; n < length; n++)
		fprintf(record(), " %02x", ((const uint8_t *)bytes)[n]);
}

/* The command of a registration, without the address of its response. */
static void reg_mr(const struct ib_uverbs_reg_mr *command)
{
	struct ib_uverbs_reg_mr shown = *command;

	fprintf(record(), " response %s", shown.response ? "address" : "0");
	shown.response = 0;
	hex(&shown, sizeof(shown));
}

static int is_registration(const struct ib_uverbs_ioctl_hdr *header)
{
	if (header->object_id == UVERBS_OBJECT_MR)
		return header->method_id == UVERBS_METHOD_MR_DESTROY;
	if (header->object_id != UVERBS_OBJECT_DEVICE || header->method_id != UVERBS_METHOD_INVOKE_WRITE)
		return 0;
	for (int n = 0; n < header->num_attrs; n++)
		if (header->attrs[n].attr_id == UVERBS_ATTR_WRITE_CMD)
			return header->attrs[n].data == IB_USER_VERBS_CMD_REG_MR;
	return 0;
}

static void show_ioctl(const struct ib_uverbs_ioctl_hdr *header)
{
	fprintf(record(), "ioctl");
	hex(header, sizeof(*header));
	for (int n = 0; n < header->num_attrs; n++) {
		const struct ib_uverbs_attr *attr = &header->attrs[n];
		int in_place = attr->len <= 8 && attr->attr_id != UVERBS_ATTR_CORE_OUT &&
			       attr->attr_id != UVERBS_ATTR_UHW_OUT;

		fprintf(record(), "\n attr");
		hex(attr, 8);
		if (header->object_id == UVERBS_OBJECT_MR || in_place)
			hex(&attr->data, 8);
		else
			fprintf(record(), " address");
		if (header->object_id == UVERBS_OBJECT_DEVICE && attr->attr_id == UVERBS_ATTR_CORE_IN)
			reg_mr((const struct ib_uverbs_reg_mr *)(uintptr_t)attr->data);
	}
	fprintf(record(), "\n");
}

static int uverbs_ioctl(int fd, struct ib_uverbs_ioctl_hdr *header, next_ioctl next)
{
	if (is_registration(header))
		show_ioctl(header);
	return next(fd, RDMA_VERBS_IOCTL, header);
}
