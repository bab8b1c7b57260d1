/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A device of this module stands in the place of a hardware driver's: rdma-core's provider library
 * of that driver opens it, and registrations succeed and fail as the driver lets them.
 *
 *   main.c     devices come and go
 *   drivers.c  one row for each driver: what its provider matches, what it is answered, what the
 *              driver refuses
 *   verbs.c    contexts, protection domains, queues, mappings
 *   memory.c   regions and windows: checks, pins, keys, data through a key
 *   objects.c  the ioctl objects that mlx5's and efa's providers have of their own
 *   control.c  /dev/rdmamr-hca
 */
#ifndef RDMAMR_HCA_H
#define RDMAMR_HCA_H

#include <linux/device.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/xarray.h>
#include "compat.h"

/* The calls that the log names and that can be made to fail. */
#define HCA_VERBS(X)                                                                              \
	X(alloc_ucontext) X(alloc_pd) X(dealloc_pd) X(query_device) X(query_port) X(mmap)          \
	X(reg_mr) X(reg_dmabuf_mr) X(rereg_mr) X(dereg_mr) X(alloc_mw) X(dealloc_mw) X(alloc_dm)   \
	X(dealloc_dm) X(reg_dm_mr) X(advise_mr) X(create_cq) X(create_qp) X(create_srq)            \
	X(devx_umem_reg)

enum hca_verb {
#define X(name) HCA_##name,
	HCA_VERBS(X)
#undef X
	HCA_VERB_COUNT
};
extern const char *const hca_verb_names[HCA_VERB_COUNT];

enum {
	HCA_PAGES_ORDER = 4,
	HCA_PAGES = 1 << HCA_PAGES_ORDER,
	/* Device memory lies behind the doorbells. */
	HCA_DM_PAGE = HCA_PAGES / 2,
	HCA_DM_SIZE = HCA_DM_PAGE << PAGE_SHIFT,
};

/* What a driver has beside registration, and how. */
enum hca_feature {
	HCA_MW = 1 << 0,
	HCA_REREG_IN_PLACE = 1 << 1,
	HCA_REREG_MLX5 = 1 << 2,
	HCA_DMABUF_PINNED = 1 << 3,
	HCA_DMABUF_MOVES = 1 << 4,
	HCA_ODP = 1 << 5,
	HCA_DM = 1 << 6,
	HCA_ADVISE = 1 << 7,
	HCA_QUEUES = 1 << 8,
	HCA_TAKES_DMAH = 1 << 9,
	/* The key is allocated before memory is pinned. */
	HCA_KEY_FIRST = 1 << 10,
	/* A region without remote rights has the rkey 0. */
	HCA_RKEY_IF_REMOTE = 1 << 11,
	/* The driver looks at the length before memory is pinned; else the firmware refuses it. */
	HCA_LENGTH_FIRST = 1 << 12,
	/* Registration keeps to itself which iova and length a dma-buf region has. */
	HCA_HIDES_IOVA = 1 << 13,
	HCA_HIDES_LENGTH = 1 << 14,
};

struct hca_request {
	enum hca_verb verb;
	u64 start, length, iova;
	int access;
	int fd; /* of a dma-buf, or -1 */
	u32 key; /* of the region that a rereg changes */
	int flags; /* of the rereg */
	bool dmah;
	int refused; /* what the driver's own attributes lead to */
	bool is_queue; /* irdma: memory of a queue, which has no key */
	struct ib_udata *udata;
};

struct hca_slot;

/* A hardware driver, on the kernel that this module is built for. All errnos are negative. */
struct hca_driver {
	const char *name; /* the beginning of its devices' names */
	u32 id;
	u32 abi;
	bool no_id_binding; /* the provider finds the device by its PCI id alone */
	u16 vendor, device;
	u8 node;
	u32 features;

	/* Answers to the provider. */
	const void *context;
	size_t context_size;
	const void *query;
	size_t query_size;
	const void *page; /* the beginning of the page that mmap maps */
	size_t page_size;
	const struct uapi_definition *objects;
	const struct ib_device_ops *ops; /* beside those of its features */
	u32 hw_ver;
	u32 max_mr;
	u64 max_mr_size;

	/* What registration refuses, in the order of the checks. */
	int (*check)(struct hca_request *request);
	int pin_errno; /* instead of what pinning says */
	unsigned long page_sizes;
	int page_size_errno; /* no page size fits */
	u64 max_pages;
	int max_pages_errno;
	int length_errno; /* longer than max_mr_size */
	int full_errno; /* no key is left */
};

extern const struct hca_driver hca_drivers[];
extern const size_t hca_driver_count;

struct hca_failure {
	int error;
	unsigned int left;
};

/* The place of a device: stays when the device is taken away, with its settings and its log. */
struct hca_slot {
	struct list_head entry;
	char name[IB_DEVICE_NAME_MAX];
	const struct hca_driver *driver;
	struct device parent;
	struct page *pages; /* what user space maps */
	unsigned int number;
	struct hca_device *device; /* NULL while it is away; under hca_slots_lock */

	u32 max_mr;
	u64 max_mr_size;
	atomic_t next_number; /* of domains and queues */

	/* Held while memory is pinned, so nothing that mmap() calls may take it. */
	struct mutex lock;
	struct xarray keys; /* index: the region, or HCA_KEY_WINDOW */
	u32 next_key, live_keys;
	bool dm_taken;

	spinlock_t small_lock; /* of the rest */
	struct hca_failure failures[HCA_VERB_COUNT];
	struct list_head log;
	size_t log_lines, log_lost;
};

struct hca_device {
	struct ib_device ib;
	struct hca_slot *slot;
};

#define HCA_KEY_WINDOW xa_mk_value(1)

struct hca_mr {
	struct ib_mr ib;
	u32 index; /* of its key */
	bool is_dm;
	bool has_dmah;
	bool disabled; /* by a rereg that failed halfway */
	u64 start, length, iova;
	int access;
	struct ib_umem *umem;
	struct pid *process; /* of an on-demand region, which has no umem */
	size_t fits_pages; /* so many pages a rereg can put under the same key */
};

struct hca_pd {
	struct ib_pd ib;
	u32 number;
};

static inline struct hca_slot *hca_slot_of(struct ib_device *device)
{
	return container_of(device, struct hca_device, ib)->slot;
}

static inline struct hca_mr *hca_mr_of(struct ib_mr *mr)
{
	return container_of(mr, struct hca_mr, ib);
}

/* main.c */
extern struct mutex hca_slots_lock;
struct hca_slot *hca_find(const char *name); /* under hca_slots_lock */
int hca_add(const char *name);
int hca_remove(const char *name);

/* verbs.c */
extern const struct ib_device_ops hca_ops, hca_mw_ops, hca_queue_ops;
int hca_answer(struct ib_udata *udata, const void *bytes, size_t size);

/* memory.c */
extern const struct ib_device_ops hca_rereg_ops, hca_dmabuf_ops, hca_dm_ops, hca_advise_ops;
extern const struct ib_device_ops hca_memory_ops;
struct ib_umem *hca_pin(struct ib_device *device, const struct hca_request *request);
int hca_take_key(struct hca_slot *slot, void *what, u32 *index);
void hca_give_key(struct hca_slot *slot, u32 index);
u32 hca_key(u32 index);
int hca_through(struct hca_slot *slot, u32 key, u64 iova, void *data, size_t size, bool write,
		int needs);

/* objects.c */
extern const struct uapi_definition hca_mlx5_objects[], hca_efa_objects[];
extern const struct ib_device_ops hca_mlx5_ops;
int hca_mlx5_answer_dm(struct uverbs_attr_bundle *attrs);
int hca_mlx5_check_dmabuf(struct uverbs_attr_bundle *attrs, u64 iova); /* since 6.12 */

/* control.c */
int hca_injected(struct hca_slot *slot, enum hca_verb verb);
__printf(2, 3) void hca_say(struct hca_slot *slot, const char *format, ...);
void hca_say_udata(struct hca_slot *slot, enum hca_verb verb, struct ib_udata *udata, int error);
void hca_say_request(struct hca_slot *slot, const struct hca_request *request, int error, u32 lkey,
		     u32 rkey);
int hca_control_init(void);
void hca_control_exit(void);
void hca_forget_log(struct hca_slot *slot);

#endif
