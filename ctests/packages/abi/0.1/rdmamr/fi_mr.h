/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* include/rdmamr/fi_mr.h as of 0.1, without its comments. */
#ifndef RDMAMR_FI_MR_H
#define RDMAMR_FI_MR_H 
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#if !defined(RDMAMR_NO_LIBFABRIC) && defined(__has_include)
#if __has_include(<rdma/fi_domain.h>)
#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>
#endif
#endif
struct ibv_pd;
#if !defined(FI_DOMAIN_H) && !defined(_FI_DOMAIN_H_)
#define FI_VERSION(major,minor) (((major) << 16) | (minor))
struct fid;
struct fid_cntr;
struct fid_eq;
#define FI_READ (1ull << 8)
#define FI_WRITE (1ull << 9)
#define FI_RECV (1ull << 10)
#define FI_SEND (1ull << 11)
#define FI_REMOTE_READ (1ull << 12)
#define FI_REMOTE_WRITE (1ull << 13)
#define FI_PEEK (1ull << 19)
#define FI_REG_MR (1ull << 59)
#define FI_KEY_NOTAVAIL 18446744073709551615ull
#define FI_MR_UNSPEC 0
#define FI_MR_BASIC 1
#define FI_MR_SCALABLE 2
#define FI_MR_LOCAL (1 << 2)
#define FI_MR_RAW (1 << 3)
#define FI_MR_VIRT_ADDR (1 << 4)
#define FI_MR_ALLOCATED (1 << 5)
#define FI_MR_PROV_KEY (1 << 6)
#define FI_MR_MMU_NOTIFY (1 << 7)
#define FI_MR_RMA_EVENT (1 << 8)
#define FI_MR_ENDPOINT (1 << 9)
#define FI_MR_HMEM (1 << 10)
#define FI_MR_COLLECTIVE (1 << 11)
#define FI_CLASS_UNSPEC 0
#define FI_CLASS_FABRIC 1
#define FI_CLASS_DOMAIN 2
#define FI_CLASS_EP 3
#define FI_CLASS_SEP 4
#define FI_CLASS_RX_CTX 5
#define FI_CLASS_SRX_CTX 6
#define FI_CLASS_TX_CTX 7
#define FI_CLASS_STX_CTX 8
#define FI_CLASS_PEP 9
#define FI_CLASS_INTERFACE 10
#define FI_CLASS_AV 11
#define FI_CLASS_MR 12
#define FI_CLASS_EQ 13
#define FI_CLASS_CQ 14
#define FI_CLASS_CNTR 15
#define FI_CLASS_WAIT 16
#define FI_CLASS_POLL 17
#define FI_NOTIFY 0
#define FI_CONNREQ 1
#define FI_CONNECTED 2
#define FI_SHUTDOWN 3
#define FI_MR_COMPLETE 4
#define FI_AV_COMPLETE 5
#define FI_JOIN_COMPLETE 6
#define FI_GETFIDFLAG 0
#define FI_SETFIDFLAG 1
#define FI_GETOPSFLAG 2
#define FI_SETOPSFLAG 3
#define FI_ALIAS 4
#define FI_GETWAIT 5
#define FI_ENABLE 6
#define FI_BACKLOG 7
#define FI_GET_RAW_MR 8
#define FI_MAP_RAW_MR 9
#define FI_UNMAP_KEY 10
#define FI_QUEUE_WORK 11
#define FI_CANCEL_WORK 12
#define FI_FLUSH_WORK 13
#define FI_REFRESH 14
#define FI_DUP 15
#define FI_GETWAITOBJ 16
#define FI_ENOENT 2
#define FI_EPERM 1
#define FI_EIO 5
#define FI_EBADF 9
#define FI_EAGAIN 11
#define FI_ENOMEM 12
#define FI_EACCES 13
#define FI_EFAULT 14
#define FI_EBUSY 16
#define FI_ENODEV 19
#define FI_EINVAL 22
#define FI_ENOSYS 38
#define FI_ENODATA 61
#define FI_EOPNOTSUPP 95
#define FI_ECANCELED 125
#define FI_EKEYREJECTED 129
#define FI_EOTHER 256
#define FI_ETOOSMALL 257
#define FI_EOPBADSTATE 258
#define FI_EAVAIL 259
#define FI_EBADFLAGS 260
#define FI_ENOKEY 266
enum fi_wait_obj {
        FI_WAIT_NONE,
        FI_WAIT_UNSPEC,
        FI_WAIT_SET,
        FI_WAIT_FD,
        FI_WAIT_MUTEX_COND,
        FI_WAIT_YIELD,
        FI_WAIT_POLLFD,
};
struct fi_ops_domain;
struct fi_ops {
        size_t size;
        int (*close)(struct fid *fid);
        int (*bind)(struct fid *fid, struct fid *bfid, uint64_t flags);
        int (*control)(struct fid *fid, int command, void *arg);
        int (*ops_open)(struct fid *fid,
                        const char *name,
                        uint64_t flags,
                        void **ops,
                        void *context);
        int (*tostr)(const struct fid *fid, char *buf, size_t len);
        int (*ops_set)(struct fid *fid,
                       const char *name,
                       uint64_t flags,
                       void *ops,
                       void *context);
};
struct fid {
        size_t fclass;
        void *context;
        struct fi_ops *ops;
};
struct fid_mr {
        struct fid fid;
        void *mem_desc;
        uint64_t key;
};
struct fi_mr_attr {
        const struct iovec *mr_iov;
        size_t iov_count;
        uint64_t access;
        uint64_t offset;
        uint64_t requested_key;
        void *context;
        size_t auth_key_size;
        uint8_t *auth_key;
        int iface;
        uint64_t device;
        void *hmem_data;
        size_t page_size;
        const struct fid_mr *base_mr;
        size_t sub_mr_cnt;
};
struct fi_ops_mr {
        size_t size;
        int (*reg)(struct fid *fid,
                   const void *buf,
                   size_t len,
                   uint64_t access,
                   uint64_t offset,
                   uint64_t requested_key,
                   uint64_t flags,
                   struct fid_mr **mr,
                   void *context);
        int (*regv)(struct fid *fid,
                    const struct iovec *iov,
                    size_t count,
                    uint64_t access,
                    uint64_t offset,
                    uint64_t requested_key,
                    uint64_t flags,
                    struct fid_mr **mr,
                    void *context);
        int (*regattr)(struct fid *fid,
                       const struct fi_mr_attr *attr,
                       uint64_t flags,
                       struct fid_mr **mr);
};
struct fid_domain {
        struct fid fid;
        struct fi_ops_domain *ops;
        struct fi_ops_mr *mr;
};
struct fi_mr_raw_attr {
        uint64_t flags;
        uint64_t *base_addr;
        uint8_t *raw_key;
        size_t *key_size;
};
struct fi_mr_map_raw {
        uint64_t flags;
        uint64_t base_addr;
        uint8_t *raw_key;
        size_t key_size;
        uint64_t *key;
};
struct fi_mr_modify {
        uint64_t flags;
        struct fi_mr_attr attr;
};
typedef struct fid *fid_t;
struct fi_eq_err_entry {
        fid_t fid;
        void *context;
        uint64_t data;
        int err;
        int prov_errno;
        void *err_data;
        size_t err_data_size;
};
struct fi_ops_eq {
        size_t size;
        ssize_t (*read)(struct fid_eq *eq,
                        uint32_t *event,
                        void *buf,
                        size_t len,
                        uint64_t flags);
        ssize_t (*readerr)(struct fid_eq *eq,
                           struct fi_eq_err_entry *buf,
                           uint64_t flags);
        ssize_t (*write)(struct fid_eq *eq,
                         uint32_t event,
                         const void *buf,
                         size_t len,
                         uint64_t flags);
        ssize_t (*sread)(struct fid_eq *eq,
                         uint32_t *event,
                         void *buf,
                         size_t len,
                         int timeout,
                         uint64_t flags);
        const char *(*strerror)(struct fid_eq *eq,
                                int prov_errno,
                                const void *err_data,
                                char *buf,
                                size_t len);
};
struct fid_eq {
        struct fid fid;
        struct fi_ops_eq *ops;
};
struct fi_eq_attr {
        size_t size;
        uint64_t flags;
        int wait_obj;
        int signaling_vector;
        void *wait_set;
};
struct fi_eq_entry {
        fid_t fid;
        void *context;
        uint64_t data;
};
#ifdef __cplusplus
extern "C" {
#endif
int fi_mr_reg(struct fid_domain *domain,
              const void *buf,
              size_t len,
              uint64_t acs,
              uint64_t offset,
              uint64_t requested_key,
              uint64_t flags,
              struct fid_mr **mr,
              void *context);
int fi_mr_regv(struct fid_domain *domain,
               const struct iovec *iov,
               size_t count,
               uint64_t acs,
               uint64_t offset,
               uint64_t requested_key,
               uint64_t flags,
               struct fid_mr **mr,
               void *context);
int fi_mr_regattr(struct fid_domain *domain,
                  const struct fi_mr_attr *attr,
                  uint64_t flags,
                  struct fid_mr **mr);
int fi_close(struct fid *fid);
void *fi_mr_desc(struct fid_mr *mr);
uint64_t fi_mr_key(struct fid_mr *mr);
int fi_mr_bind(struct fid_mr *mr,
               struct fid *bfid,
               uint64_t flags);
int fi_mr_enable(struct fid_mr *mr);
int fi_mr_refresh(struct fid_mr *mr,
                  const struct iovec *iov,
                  size_t count,
                  uint64_t flags);
int fi_mr_raw_attr(struct fid_mr *mr,
                   uint64_t *base_addr,
                   uint8_t *raw_key,
                   size_t *key_size,
                   uint64_t flags);
int fi_mr_map_raw(struct fid_domain *domain,
                  uint64_t base_addr,
                  uint8_t *raw_key,
                  size_t key_size,
                  uint64_t *key,
                  uint64_t flags);
int fi_mr_unmap_key(struct fid_domain *domain,
                    uint64_t key);
int fi_domain_bind(struct fid_domain *domain,
                   struct fid *fid,
                   uint64_t flags);
int fi_control(struct fid *fid,
               int command,
               void *arg);
ssize_t fi_eq_read(struct fid_eq *eq,
                   uint32_t *event,
                   void *buf,
                   size_t len,
                   uint64_t flags);
ssize_t fi_eq_readerr(struct fid_eq *eq,
                      struct fi_eq_err_entry *buf,
                      uint64_t flags);
ssize_t fi_eq_write(struct fid_eq *eq,
                    uint32_t event,
                    const void *buf,
                    size_t len,
                    uint64_t flags);
ssize_t fi_eq_sread(struct fid_eq *eq,
                    uint32_t *event,
                    void *buf,
                    size_t len,
                    int timeout,
                    uint64_t flags);
const char *fi_eq_strerror(struct fid_eq *eq,
                           int prov_errno,
                           const void *err_data,
                           char *buf,
                           size_t len);
#ifdef __cplusplus
}
#endif
#endif
#define RDMAMR_MR_IOV_LIMIT 16
#define RDMAMR_MR_KEY (1ull << 58)
#define RDMAMR_MR_OFFSET (1ull << 59)
#define RDMAMR_PROV_MR_ATTR (1ull << 2)
#define RDMAMR_LOCAL_MR (1ull << 55)
#define RDMAMR_DYNAMIC_MR (1ull << 57)
#define RDMAMR_DOMAIN_RELAXED (1ull << 0)
struct rdmamr_domain_attr {
        size_t size;
        uint32_t api_version;
        int32_t mr_mode;
        uint64_t mode;
        uint64_t caps;
        uint64_t flags;
        size_t mr_key_size;
};
struct rdmamr_segment {
        uint64_t addr;
        uint64_t length;
        uint32_t lkey;
        uint32_t rkey;
};
#ifdef __cplusplus
extern "C" {
#endif
int rdmamr_domain_open(struct ibv_pd *pd,
                       const struct rdmamr_domain_attr *attr,
                       struct fid_domain **domain,
                       void *context);
int rdmamr_eq_open(uint32_t api_version,
                   const struct fi_eq_attr *attr,
                   struct fid_eq **eq,
                   void *context);
int rdmamr_resolve(struct fid_domain *domain,
                   uint64_t key,
                   uint64_t offset,
                   size_t length,
                   struct rdmamr_segment *segments,
                   size_t *count);
int rdmamr_mr_segments(struct fid_mr *mr,
                       struct rdmamr_segment *segments,
                       size_t *count);
#ifdef __cplusplus
}
#endif
#ifdef RDMAMR_OLD_NAMES
#define FI_MR_KEY RDMAMR_MR_KEY
#define FI_MR_OFFSET RDMAMR_MR_OFFSET
#define FI_PROV_MR_ATTR RDMAMR_PROV_MR_ATTR
#define FI_DYNAMIC_MR RDMAMR_DYNAMIC_MR
#ifndef FI_LOCAL_MR
#define FI_LOCAL_MR RDMAMR_LOCAL_MR
#endif
#endif
#endif
