/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The types and prototypes of include/rdmamr/fi_mr.h as of 0.1. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
struct ibv_pd;
#define FI_VERSION(major,minor) (((major) << 16) | (minor))
struct fid;
struct fid_cntr;
struct fid_eq;
#define FI_RECV (1ull << 10)
#define FI_SEND (1ull << 11)
struct fi_ops_domain;
struct fi_ops {
	size_t size; int (*close)(struct fid *fid); int (*bind)(struct fid *fid, struct fid *bfid, uint64_t flags);
	int (*control)(struct fid *fid, int command, void *arg);
	int (*ops_open)(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
	int (*tostr)(const struct fid *fid, char *buf, size_t len);
	int (*ops_set)(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context);
};
struct fid { size_t fclass; void *context; struct fi_ops *ops; };
struct fid_mr { struct fid fid; void *mem_desc; uint64_t key; };
struct fi_mr_attr {
	const struct iovec *mr_iov; size_t iov_count; uint64_t access; uint64_t offset; uint64_t requested_key;
	void *context; size_t auth_key_size; uint8_t *auth_key; int iface; uint64_t device; void *hmem_data;
	size_t page_size; const struct fid_mr *base_mr; size_t sub_mr_cnt;
};
struct fi_ops_mr {
	size_t size;
	int (*reg)(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t requested_key,
		uint64_t flags, struct fid_mr **mr, void *context);
	int (*regv)(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset, uint64_t
		requested_key, uint64_t flags, struct fid_mr **mr, void *context);
	int (*regattr)(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr);
};
struct fid_domain { struct fid fid; struct fi_ops_domain *ops; struct fi_ops_mr *mr; };
struct fi_mr_raw_attr { uint64_t flags; uint64_t *base_addr; uint8_t *raw_key; size_t *key_size; };
struct fi_mr_map_raw { uint64_t flags; uint64_t base_addr; uint8_t *raw_key; size_t key_size; uint64_t *key; };
struct fi_mr_modify { uint64_t flags; struct fi_mr_attr attr; };
typedef struct fid *fid_t;
struct fi_eq_err_entry {
	fid_t fid; void *context; uint64_t data; int err; int prov_errno; void *err_data; size_t err_data_size;
};
struct fi_ops_eq {
	size_t size; ssize_t (*read)(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags);
	ssize_t (*readerr)(struct fid_eq *eq, struct fi_eq_err_entry *buf, uint64_t flags);
	ssize_t (*write)(struct fid_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags);
	ssize_t (*sread)(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags);
	const char *(*strerror)(struct fid_eq *eq, int prov_errno, const void *err_data, char *buf, size_t len);
};
struct fid_eq { struct fid fid; struct fi_ops_eq *ops; };
struct fi_eq_attr { size_t size; uint64_t flags; int wait_obj; int signaling_vector; void *wait_set; };
struct fi_eq_entry { fid_t fid; void *context; uint64_t data; };
int fi_mr_reg(struct fid_domain *domain, const void *buf, size_t len, uint64_t acs, uint64_t offset, uint64_t
	requested_key, uint64_t flags, struct fid_mr **mr, void *context);
int fi_mr_regv(struct fid_domain *domain, const struct iovec *iov, size_t count, uint64_t acs, uint64_t offset, uint64_t
	requested_key, uint64_t flags, struct fid_mr **mr, void *context);
int fi_mr_regattr(struct fid_domain *domain, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr);
int fi_close(struct fid *fid);
void *fi_mr_desc(struct fid_mr *mr);
uint64_t fi_mr_key(struct fid_mr *mr);
int fi_mr_bind(struct fid_mr *mr, struct fid *bfid, uint64_t flags);
int fi_mr_enable(struct fid_mr *mr);
int fi_mr_refresh(struct fid_mr *mr, const struct iovec *iov, size_t count, uint64_t flags);
int fi_mr_raw_attr(struct fid_mr *mr, uint64_t *base_addr, uint8_t *raw_key, size_t *key_size, uint64_t flags);
int fi_mr_map_raw(struct fid_domain *domain, uint64_t base_addr, uint8_t *raw_key, size_t key_size, uint64_t *key,
	uint64_t flags);
int fi_mr_unmap_key(struct fid_domain *domain, uint64_t key);
int fi_domain_bind(struct fid_domain *domain, struct fid *fid, uint64_t flags);
int fi_control(struct fid *fid, int command, void *arg);
ssize_t fi_eq_read(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags);
ssize_t fi_eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *buf, uint64_t flags);
ssize_t fi_eq_write(struct fid_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags);
ssize_t fi_eq_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, int timeout, uint64_t flags);
const char *fi_eq_strerror(struct fid_eq *eq, int prov_errno, const void *err_data, char *buf, size_t len);
struct rdmamr_domain_attr {
	size_t size; uint32_t api_version; int32_t mr_mode; uint64_t mode; uint64_t caps; uint64_t flags;
	size_t mr_key_size;
};
struct rdmamr_segment { uint64_t addr; uint64_t length; uint32_t lkey; uint32_t rkey; };
int rdmamr_domain_open(struct ibv_pd *pd, const struct rdmamr_domain_attr *attr, struct fid_domain **domain, void
	*context);
int rdmamr_eq_open(uint32_t api_version, const struct fi_eq_attr *attr, struct fid_eq **eq, void *context);
int rdmamr_resolve(struct fid_domain *domain, uint64_t key, uint64_t offset, size_t length, struct rdmamr_segment
	*segments, size_t *count);
int rdmamr_mr_segments(struct fid_mr *mr, struct rdmamr_segment *segments, size_t *count);
