/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registers the same memory twice by libfabric's calls: (a) on a domain of libfabric's, which librdmamr is a
 * provider for, and (b) on a domain over a protection domain of a verbs program's own. Then asks for something
 * that cannot be, and prints why not.
 *
 * Usage: register [DEVICE]; README.md says how to build it, and what it needs in the environment.
 */
#include <infiniband/verbs.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdmamr.h>
/* Where libfabric's headers are installed this adds what is ours, and fi_mr_reg and its kin are libfabric's own
 * inline functions. Where they are not, it has all of them, as functions of the library. */
#include <rdmamr/fi_mr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 64 << 10 };
static char memory[SIZE];

static void check(const char *what, int err)
{
	if (err == 0)
		return;
	/* libfabric's calls return the error negated; the library also knows it in words. */
	fprintf(stderr, "%s: %s\n%s\n", what, fi_strerror(-err), rdmamr_last_reason());
	exit(1);
}

/* Registers all of the memory for a peer's reads and writes, and shows what the region is known by. */
static void show(struct fid_domain *domain, uint64_t requested_key)
{
	struct rdmamr_segment segment;
	size_t raw_size = 0, count = 1;
	uint8_t raw[512];
	struct fid_mr *mr;
	uint64_t base;

	check("fi_mr_reg",
	      fi_mr_reg(domain, memory, SIZE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, requested_key, 0, &mr, NULL));

	/* The desc is for our own work requests: as a number, it is the lkey. The key is for the peer's. */
	printf("   desc %p, key %#llx\n", fi_mr_desc(mr), (unsigned long long)fi_mr_key(mr));

	/* A raw key holds all that a peer has to know, in bytes to send to it. Asked with no room, the call says how
	 * many. `base` is the address that the peer gives for the first byte of the region. */
	if (fi_mr_raw_attr(mr, &base, raw, &raw_size, 0) != -FI_ETOOSMALL || raw_size > sizeof(raw))
		check("the size of the raw key", -FI_EOTHER);
	check("fi_mr_raw_attr", fi_mr_raw_attr(mr, &base, raw, &raw_size, 0));
	printf("   raw key of %zu bytes, which peers use from address %#llx on\n", raw_size, (unsigned long long)base);

	/* The peer, which posts work requests itself, asks for what to put into them. (It first makes a key of the raw
	 * key, by fi_mr_map_raw; here, in the domain of the region, the key itself will do.) */
	check("rdmamr_resolve", rdmamr_resolve(domain, fi_mr_key(mr), base + 4096, 64, &segment, &count));
	printf("   64 bytes at 4096 from there: remote_addr %#llx, rkey %#x\n", (unsigned long long)segment.addr,
	       segment.rkey);

	check("fi_close", fi_close(&mr->fid));
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct ibv_device **devices = ibv_get_device_list(NULL), **device = devices;
	struct ibv_context *context;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct ibv_pd *pd;
	struct fid_mr *mr;
	int err;

	while (device && *device && argc > 1 && strcmp(ibv_get_device_name(*device), argv[1]))
		device++;
	if (!hints || !device || !*device) {
		fprintf(stderr, "there is no RDMA device%s%s\n", argc > 1 ? " " : "", argc > 1 ? argv[1] : "");
		return 1;
	}

	/* (a) The hints choose the provider, the device, and that keys are the application's: a region has the key that
	 * was asked for, here 42, and peers count its bytes from 0. */
	printf("(a) by the provider rdmamr of libfabric, with keys of the application's\n");
	hints->fabric_attr->prov_name = strdup("rdmamr");
	hints->domain_attr->name = strdup(ibv_get_device_name(*device));
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED;
	check("fi_getinfo (is librdmamr-fi.so in a folder of FI_PROVIDER_PATH?)",
	      fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	check("fi_domain", fi_domain(fabric, info, &domain, NULL));
	show(domain, 42);
	check("fi_close of the domain", fi_close(&domain->fid));
	check("fi_close of the fabric", fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);

	/* (b) A program that works with verbs puts a domain over its own protection domain. Without attributes keys are
	 * the provider's: the key is the rkey, and peers use virtual addresses, as after ibv_reg_mr. */
	printf("(b) by a domain over a protection domain, with keys of the device's\n");
	context = ibv_open_device(*device);
	pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd) {
		perror(ibv_get_device_name(*device));
		return 1;
	}
	check("rdmamr_domain_open", rdmamr_domain_open(pd, NULL, &domain, NULL));
	show(domain, 0);

	/* What is refused: program text is not writable, and a peer is not given what the process itself has not got. */
	err = fi_mr_reg(domain, (void *)show, 64, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL);
	printf("refused, as it should be: %s\n   %s\n", fi_strerror(-err), rdmamr_last_reason());

	check("fi_close of the domain", fi_close(&domain->fid));
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(devices);
	return err == -FI_EFAULT ? 0 : 1;
}
