/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registers the same memory twice by libfabric's calls: (a) on a domain that libfabric opens with
 * librdmamr as its provider, and (b) on a domain over the protection domain of a verbs program.
 * Then makes a registration that the library must refuse, and prints the reason.
 *
 * Usage: register [DEVICE]. examples/README.md says how to build this program, and which
 * environment variables it needs.
 */
#include <infiniband/verbs.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdmamr.h>
/* With libfabric's headers installed, this header adds only librdmamr's own calls: fi_mr_reg() and
 * the other libfabric calls are libfabric's inline functions. Without libfabric's headers, this
 * header declares all of these calls, as functions of librdmamr. */
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
	/* libfabric's calls return the negated error code; librdmamr has the reason in words. */
	fprintf(stderr, "%s: %s\n%s\n", what, fi_strerror(-err), rdmamr_last_reason());
	exit(1);
}

/* Registers the whole memory for remote reads and writes, and prints the keys of the region. */
static void show(struct fid_domain *domain, uint64_t requested_key)
{
	struct rdmamr_segment segment;
	size_t raw_size = 0, count = 1;
	uint8_t raw[512];
	struct fid_mr *mr;
	uint64_t base;

	check("fi_mr_reg",
	      fi_mr_reg(domain, memory, SIZE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, requested_key, 0, &mr, NULL));

	/* The descriptor is for local work requests: as a number, it is the lkey. The key is for
	 * the peer's work requests. */
	printf("   desc %p, key %#llx\n", fi_mr_desc(mr), (unsigned long long)fi_mr_key(mr));

	/* A raw key holds everything that a peer must know, as bytes to send to the peer. A first
	 * call with no room asks for the number of bytes. `base` is the address that the peer uses
	 * for the first byte of the region. */
	if (fi_mr_raw_attr(mr, &base, raw, &raw_size, 0) != -FI_ETOOSMALL || raw_size > sizeof(raw))
		check("the size of the raw key", -FI_EOTHER);
	check("fi_mr_raw_attr", fi_mr_raw_attr(mr, &base, raw, &raw_size, 0));
	printf("   raw key of %zu bytes, which peers use from address %#llx on\n", raw_size, (unsigned long long)base);

	/* The peer posts work requests itself, and asks rdmamr_resolve() for their address and
	 * rkey. (A peer first maps the raw key to a key by fi_mr_map_raw(). Here, in the domain of
	 * the region, the region's own key works.) */
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

	/* (a) The hints select the provider and the device, and let the application choose the
	 * keys: a region gets the requested key, here 42, and peers count its bytes from 0. */
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

	/* (b) A verbs program opens a domain over its own protection domain. Without attributes the
	 * provider chooses the keys: the key is the rkey, and peers use virtual addresses, as after
	 * ibv_reg_mr(). */
	printf("(b) by a domain over a protection domain, with keys of the device's\n");
	context = ibv_open_device(*device);
	pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd) {
		perror(ibv_get_device_name(*device));
		return 1;
	}
	check("rdmamr_domain_open", rdmamr_domain_open(pd, NULL, &domain, NULL));
	show(domain, 0);

	/* The library must refuse this: the program's code is not writable, and a peer gets no
	 * right that the process itself does not have. */
	err = fi_mr_reg(domain, (void *)show, 64, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL);
	printf("refused, as it should be: %s\n   %s\n", fi_strerror(-err), rdmamr_last_reason());

	check("fi_close of the domain", fi_close(&domain->fid));
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(devices);
	return err == -FI_EFAULT ? 0 : 1;
}
