// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions and windows. The checks are the real drivers', in their order: the row of the driver
 * (drivers.c) says which; here is how.
 */
#include <linux/dma-resv.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include "hca.h"

/* Keys. The low byte is the part that drivers change from use to use. */

u32 hca_key(u32 index)
{
	return index << 8;
}

/* An index that was given back comes last, so that a dead key stays dead for long. */
int hca_take_key(struct hca_slot *slot, void *what, u32 *index)
{
	int error;

	mutex_lock(&slot->lock);
	error = slot->live_keys < slot->max_mr ? 0 : slot->driver->full_errno;
	if (!error)
		error = xa_alloc_cyclic(&slot->keys, index, what, XA_LIMIT(1, 0xfffff),
					&slot->next_key, GFP_KERNEL);
	/* 1: the counter wrapped around. */
	if (error >= 0) {
		slot->live_keys++;
		error = 0;
	}
	mutex_unlock(&slot->lock);
	return error;
}

void hca_give_key(struct hca_slot *slot, u32 index)
{
	mutex_lock(&slot->lock);
	xa_erase(&slot->keys, index);
	slot->live_keys--;
	mutex_unlock(&slot->lock);
}

/* Pages. */

static void unmap_moving(struct dma_buf_attachment *attach)
{
	ib_umem_dmabuf_unmap_pages(attach->importer_priv);
}

static struct dma_buf_attach_ops moving_ops = {
	.allow_peer2peer = true,
	.HCA_MOVE_NOTIFY = unmap_moving,
};

static int map_moving(struct ib_umem *umem)
{
	struct ib_umem_dmabuf *dmabuf = to_ib_umem_dmabuf(umem);

	dma_resv_assert_held(dmabuf->attach->dmabuf->resv);
	return ib_umem_dmabuf_map_pages(dmabuf);
}

static struct ib_umem *pin_dmabuf(struct ib_device *device, const struct hca_request *request)
{
	struct hca_slot *slot = hca_slot_of(device);
	struct ib_umem_dmabuf *dmabuf;
	int error;

	if ((slot->driver->features & HCA_DMABUF_PINNED) || request->verb == HCA_devx_umem_reg) {
		dmabuf = ib_umem_dmabuf_get_pinned(device, request->start, request->length,
						   request->fd, request->access);
		return IS_ERR(dmabuf) ? ERR_CAST(dmabuf) : &dmabuf->umem;
	}
	/* mlx5_ib_init_dmabuf_mr(), hw/mlx5/odp.c: the exporter may move it; map it all now. */
	dmabuf = ib_umem_dmabuf_get(device, request->start, request->length, request->fd,
				    request->access, &moving_ops);
	if (IS_ERR(dmabuf))
		return ERR_CAST(dmabuf);
	dma_resv_lock(dmabuf->attach->dmabuf->resv, NULL);
	error = map_moving(&dmabuf->umem);
	dma_resv_unlock(dmabuf->attach->dmabuf->resv);
	if (error) {
		ib_umem_release(&dmabuf->umem);
		return ERR_PTR(error);
	}
	return &dmabuf->umem;
}

/*
 * mlx4_get_umem_mr(), hw/mlx4/mr.c, all kernels: memory that is writable is pinned so, whatever
 * the access, unless several VMAs hold it, which are taken for writable.
 */
static int mlx4_access(u64 start, u64 length, int access)
{
	unsigned long from = untagged_addr(start);
	struct vm_area_struct *vma;

	if (ib_access_writable(access))
		return access;
	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, from);
	if (!vma || vma->vm_end < from + length || vma->vm_start > from ||
	    (vma->vm_flags & VM_WRITE))
		access |= IB_ACCESS_LOCAL_WRITE;
	mmap_read_unlock(current->mm);
	return access;
}

struct ib_umem *hca_pin(struct ib_device *device, const struct hca_request *request)
{
	const struct hca_driver *driver = hca_slot_of(device)->driver;
	int access = request->access;
	struct ib_umem *umem;

	if (driver->id == RDMA_DRIVER_MLX4)
		access = mlx4_access(request->start, request->length, access);
	umem = request->fd >= 0 ? pin_dmabuf(device, request) :
				  ib_umem_get_va(device, request->start, request->length, access);
	if (IS_ERR(umem) && request->fd < 0 && driver->pin_errno)
		return ERR_PTR(driver->pin_errno);
	return umem;
}

/* Is there a page size for it, and is it short enough? What firmware refuses comes here too. */
static int check_pages(struct hca_slot *slot, struct ib_umem *umem, const struct hca_request *request)
{
	const struct hca_driver *driver = slot->driver;
	size_t pages;

	if (driver->page_sizes && !ib_umem_find_best_pgsz(umem, driver->page_sizes, request->iova))
		return driver->page_size_errno;
	umem->iova = request->iova;
	pages = ib_umem_num_pages(umem);
	if (driver->max_pages && pages > driver->max_pages)
		return driver->max_pages_errno;
	if (!(driver->features & HCA_LENGTH_FIRST) && request->length > slot->max_mr_size)
		return driver->length_errno;
	return 0;
}

/*
 * ib_init_umem_odp(), core/umem_odp.c, all kernels, and create_user_odp_mr(), hw/mlx5/mr.c. No
 * page is pinned, and none is mapped either: what goes through the key goes through the process.
 */
static int check_on_demand(const struct hca_request *request)
{
	unsigned long size = request->access & IB_ACCESS_HUGETLB ? HPAGE_SIZE : PAGE_SIZE;
	unsigned long end;

	if (!request->start && request->length == U64_MAX)
		return request->iova ? -EINVAL : 0;
	if (check_add_overflow((unsigned long)request->start, (unsigned long)request->length, &end))
		return -EOVERFLOW;
	end = ALIGN(end, size);
	if (end < size)
		return -EOVERFLOW;
	return end == ALIGN_DOWN(request->start, size) ? -EINVAL : 0;
}

static void drop_pages(struct hca_mr *mr)
{
	if (mr->umem)
		ib_umem_release(mr->umem);
	mr->umem = NULL;
	put_pid(mr->process);
	mr->process = NULL;
}

static int take_pages(struct hca_slot *slot, struct ib_device *device, struct hca_mr *mr,
		      const struct hca_request *request)
{
	struct ib_umem *umem;
	int error;

	if (request->access & IB_ACCESS_ON_DEMAND) {
		error = check_on_demand(request);
		if (error)
			return error;
		mr->process = get_task_pid(current, PIDTYPE_TGID);
	} else {
		umem = hca_pin(device, request);
		if (IS_ERR(umem))
			return PTR_ERR(umem);
		error = check_pages(slot, umem, request);
		if (error) {
			ib_umem_release(umem);
			return error;
		}
		mr->umem = umem;
	}
	mr->start = request->start;
	mr->length = request->length;
	mr->iova = request->iova;
	return 0;
}

/* Registration. */

static int check_request(struct hca_slot *slot, struct hca_request *request)
{
	const struct hca_driver *driver = slot->driver;
	int error = hca_injected(slot, request->verb) ?: request->refused;

	if (error)
		return error;
	/* Each driver of 7.2, in the first line of its reg_user_mr; mlx5 with ON_DEMAND only. */
	if (request->dmah && (!(driver->features & HCA_TAKES_DMAH) ||
			      (request->access & IB_ACCESS_ON_DEMAND)))
		return -EOPNOTSUPP;
	if (driver->check) {
		error = driver->check(request);
		if (error)
			return error;
	}
	if ((driver->features & HCA_LENGTH_FIRST) && request->length > slot->max_mr_size)
		return driver->length_errno;
	return 0;
}

static void set_keys(struct hca_mr *mr, const struct hca_driver *driver)
{
	int remote = IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ;

	/* qedr_reg_user_mr(): atomics too; ocrdma_reg_user_mr(): not. */
	if (driver->id == RDMA_DRIVER_QEDR)
		remote |= IB_ACCESS_REMOTE_ATOMIC;
	mr->ib.lkey = hca_key(mr->index);
	mr->ib.rkey = mr->ib.lkey;
	if ((driver->features & HCA_RKEY_IF_REMOTE) && !(mr->access & remote))
		mr->ib.rkey = 0;
}

/* With pages that another region had, umem is not NULL. */
static struct hca_mr *make(struct ib_device *device, const struct hca_request *request,
			   struct ib_umem *umem)
{
	struct hca_slot *slot = hca_slot_of(device);
	bool key_first = slot->driver->features & HCA_KEY_FIRST;
	struct hca_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	int error = 0;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->access = request->access;
	mr->has_dmah = request->dmah;
	if (key_first)
		error = hca_take_key(slot, mr, &mr->index);
	if (error)
		goto free;
	if (umem) {
		mr->umem = umem;
		mr->start = request->start;
		mr->length = request->length;
		mr->iova = request->iova;
	} else {
		error = take_pages(slot, device, mr, request);
	}
	if (error)
		goto key;
	if (!key_first && !request->is_queue)
		error = hca_take_key(slot, mr, &mr->index);
	if (error) {
		if (umem)
			mr->umem = NULL;
		goto pages;
	}
	if (mr->umem)
		mr->fits_pages = roundup_pow_of_two(ib_umem_num_pages(mr->umem));
	set_keys(mr, slot->driver);
	/* The core sets both for memory of a process, and none for a dma-buf. */
	if (request->fd < 0 || !(slot->driver->features & HCA_HIDES_IOVA))
		mr->ib.iova = request->iova;
	if (request->fd < 0 || !(slot->driver->features & HCA_HIDES_LENGTH))
		mr->ib.length = request->length;
	return mr;
pages:
	drop_pages(mr);
key:
	if (key_first)
		hca_give_key(slot, mr->index);
free:
	kfree(mr);
	return ERR_PTR(error);
}

static struct ib_mr *reg(struct ib_pd *pd, struct hca_request *request)
{
	struct hca_slot *slot = hca_slot_of(pd->device);
	int error = check_request(slot, request);
	struct hca_mr *mr = error ? ERR_PTR(error) : make(pd->device, request, NULL);

	if (IS_ERR(mr)) {
		hca_say_request(slot, request, PTR_ERR(mr), 0, 0);
		return ERR_CAST(mr);
	}
	hca_say_request(slot, request, 0, mr->ib.lkey, mr->ib.rkey);
	return &mr->ib;
}

static struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
				     HCA_DMAH struct ib_udata *udata)
{
	struct hca_request request = {
		.verb = HCA_reg_mr, .start = start, .length = length, .iova = iova,
		.access = access, .fd = -1, .dmah = HCA_HAS_DMAH, .udata = udata,
	};

	return reg(pd, &request);
}

static struct ib_mr *hca_reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 iova,
					    int fd, int access, HCA_DMAH HCA_ATTRS)
{
	struct hca_request request = {
		.verb = HCA_reg_dmabuf_mr, .start = offset, .length = length, .iova = iova,
		.access = access, .fd = fd, .dmah = HCA_HAS_DMAH, .udata = HCA_UDATA,
	};

	/* A bad descriptor is the core's to refuse (dma_buf_get); here negative means none. */
	if (fd < 0)
		request.fd = INT_MAX;
	HCA_SINCE_6_12(
		if (hca_slot_of(pd->device)->driver->id == RDMA_DRIVER_MLX5)
			request.refused = hca_mlx5_check_dmabuf(attrs, iova);
	)
	return reg(pd, &request);
}

static int hca_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct hca_mr *mr = hca_mr_of(ib);
	struct hca_slot *slot = hca_slot_of(ib->device);
	int error = hca_injected(slot, HCA_dereg_mr);

	hca_say(slot, "dereg_mr lkey=%#x = %d", ib->lkey, error);
	if (error)
		return error;
	if (mr->index)
		hca_give_key(slot, mr->index);
	drop_pages(mr);
	kfree(mr);
	return 0;
}

const struct ib_device_ops hca_memory_ops = {
	.reg_user_mr = hca_reg_user_mr,
	.dereg_mr = hca_dereg_mr,
};

const struct ib_device_ops hca_dmabuf_ops = {
	.reg_user_mr_dmabuf = hca_reg_user_mr_dmabuf,
};

/* Rereg. */

/*
 * mlx4_ib_rereg_user_mr(), hw/mlx4/mr.c; hns_roce_rereg_user_mr(), hw/hns/hns_roce_mr.c;
 * irdma_rereg_user_mr(), hw/irdma/verbs.c (6.12 and later). The key stays. When the new memory
 * cannot be had the old one is gone already; hns refuses every later rereg of such a region.
 */
static int rereg_in_place(struct hca_slot *slot, struct hca_mr *mr, int flags,
			  struct hca_request *request)
{
	u32 driver = slot->driver->id;
	int error;

	if (driver == RDMA_DRIVER_IRDMA && request->length > slot->max_mr_size)
		return -EINVAL;
	if (mr->disabled)
		return -EINVAL;
	/* Before 6.12 nobody calls it, and compat.h lets all pass. */
	error = ib_umem_check_rereg(mr->umem, flags, request->access);
	if (error)
		return error;
	if (driver == RDMA_DRIVER_MLX4 && (flags & IB_MR_REREG_ACCESS) &&
	    ib_access_writable(request->access) && mr->umem && !mr->umem->writable)
		return -EPERM;
	if (!(flags & IB_MR_REREG_ACCESS))
		request->access = mr->access;
	mutex_lock(&slot->lock);
	mr->access = request->access;
	if (flags & IB_MR_REREG_TRANS) {
		drop_pages(mr);
		error = take_pages(slot, mr->ib.device, mr, request);
		mr->disabled = error && driver == RDMA_DRIVER_HNS;
	}
	mutex_unlock(&slot->lock);
	return error;
}

/*
 * mlx5_ib_rereg_user_mr(), hw/mlx5/mr.c: in place where the device can change it, else a new
 * region with another key. NULL is in place.
 */
static struct hca_mr *rereg_mlx5(struct hca_slot *slot, struct hca_mr *mr, int flags,
				 struct hca_request *request)
{
	/* can_use_umr_rereg_access() */
	const int changeable = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
			       IB_ACCESS_REMOTE_READ | IB_ACCESS_RELAXED_ORDERING |
			       IB_ACCESS_REMOTE_ATOMIC;
	struct ib_device *device = mr->ib.device;
	bool implicit = mr->process && !mr->start && mr->length == U64_MAX;
	bool plain = mr->umem && !mr->umem->is_dmabuf;
	bool same_kind;
	struct ib_umem *umem;
	struct hca_mr *made;
	int error;

	/* 7.2. */
	if (mr->has_dmah)
		return ERR_PTR(-EOPNOTSUPP);
	/* 6.12 and later. */
	error = ib_umem_check_rereg(mr->umem, flags, request->access);
	if (error)
		return ERR_PTR(error);
	if (!(flags & IB_MR_REREG_ACCESS))
		request->access = mr->access;
	if (implicit && !(flags & IB_MR_REREG_TRANS)) {
		if (!(request->access & IB_ACCESS_ON_DEMAND))
			return ERR_PTR(-EOPNOTSUPP);
		request->start = 0;
		request->iova = 0;
		request->length = U64_MAX;
		flags |= IB_MR_REREG_TRANS;
	}
	same_kind = !((mr->access ^ request->access) & ~changeable);

	if (!(flags & IB_MR_REREG_TRANS)) {
		if (same_kind) {
			mr->access = request->access;
			return NULL;
		}
		if (!plain)
			return ERR_PTR(-EOPNOTSUPP);
		request->start = mr->start;
		request->length = mr->length;
		request->iova = mr->iova;
		/* The pages go to the new region, or end: create_real_mr(). */
		mutex_lock(&slot->lock);
		umem = mr->umem;
		mr->umem = NULL;
		mutex_unlock(&slot->lock);
		made = make(device, request, umem);
		if (IS_ERR(made))
			ib_umem_release(umem);
		return made;
	}
	if (!plain || !same_kind || (request->access & IB_ACCESS_ON_DEMAND))
		return make(device, request, NULL);

	umem = hca_pin(device, request);
	if (IS_ERR(umem))
		return ERR_CAST(umem);
	umem->iova = request->iova;
	/* can_use_umr_rereg_pas() */
	if (ib_umem_num_pages(umem) > mr->fits_pages) {
		made = make(device, request, umem);
		if (IS_ERR(made))
			ib_umem_release(umem);
		return made;
	}
	mutex_lock(&slot->lock);
	ib_umem_release(mr->umem);
	mr->umem = umem;
	mr->start = request->start;
	mr->length = request->length;
	mr->iova = request->iova;
	mr->access = request->access;
	mutex_unlock(&slot->lock);
	return NULL;
}

static struct ib_mr *hca_rereg_user_mr(struct ib_mr *ib, int flags, u64 start, u64 length, u64 iova,
				       int access, struct ib_pd *pd, struct ib_udata *udata)
{
	struct hca_slot *slot = hca_slot_of(ib->device);
	struct hca_mr *mr = hca_mr_of(ib), *made = NULL;
	struct hca_request request = {
		.verb = HCA_rereg_mr, .start = start, .length = length, .iova = iova,
		.access = access, .fd = -1, .udata = udata, .key = ib->lkey, .flags = flags,
	};
	struct hca_request asked = request;
	int error = hca_injected(slot, HCA_rereg_mr);

	if (!error && (slot->driver->features & HCA_REREG_MLX5)) {
		made = rereg_mlx5(slot, mr, flags, &request);
		error = PTR_ERR_OR_ZERO(made);
	} else if (!error) {
		error = rereg_in_place(slot, mr, flags, &request);
	}
	if (error) {
		hca_say_request(slot, &asked, error, 0, 0);
		return ERR_PTR(error);
	}
	if (made) {
		hca_say_request(slot, &asked, 0, made->ib.lkey, made->ib.rkey);
		return &made->ib;
	}
	set_keys(mr, slot->driver);
	hca_say_request(slot, &asked, 0, ib->lkey, ib->rkey);
	return NULL;
}

const struct ib_device_ops hca_rereg_ops = {
	.rereg_user_mr = hca_rereg_user_mr,
};

/* Windows. */

struct hca_mw {
	struct ib_mw ib;
	u32 index;
};

/* mlx5_ib_alloc_mw(), hw/mlx5/mr.c: the other drivers look at no private bytes. */
static int check_mlx5_window(struct ib_udata *udata)
{
	struct {
		u32 comp_mask;
		u8 num_klms, reserved1;
		u16 reserved2;
	} in = {};

	if (ib_copy_from_udata(&in, udata, min(udata->inlen, sizeof(in))))
		return -EFAULT;
	if (in.comp_mask || in.reserved1 || in.reserved2)
		return -EOPNOTSUPP;
	if (udata->inlen > sizeof(in) &&
	    !ib_is_udata_cleared(udata, sizeof(in), udata->inlen - sizeof(in)))
		return -EOPNOTSUPP;
	return 0;
}

static int hca_alloc_mw(struct ib_mw *ib, struct ib_udata *udata)
{
	struct hca_mw *mw = container_of(ib, struct hca_mw, ib);
	struct hca_slot *slot = hca_slot_of(ib->device);
	int error = hca_injected(slot, HCA_alloc_mw);

	if (!error && slot->driver->id == RDMA_DRIVER_MLX5)
		error = check_mlx5_window(udata);
	error = error ?: hca_take_key(slot, HCA_KEY_WINDOW, &mw->index);
	if (!error) {
		ib->rkey = hca_key(mw->index);
		error = hca_answer(udata, NULL, 0);
		if (error)
			hca_give_key(slot, mw->index);
	}
	hca_say(slot, "alloc_mw type=%d = %d rkey=%#x", ib->type, error, error ? 0 : ib->rkey);
	return error;
}

static int hca_dealloc_mw(struct ib_mw *ib)
{
	struct hca_mw *mw = container_of(ib, struct hca_mw, ib);
	struct hca_slot *slot = hca_slot_of(ib->device);
	int error = hca_injected(slot, HCA_dealloc_mw);

	hca_say(slot, "dealloc_mw rkey=%#x = %d", ib->rkey, error);
	if (!error)
		hca_give_key(slot, mw->index);
	return error;
}

const struct ib_device_ops hca_mw_ops = {
	.alloc_mw = hca_alloc_mw,
	.dealloc_mw = hca_dealloc_mw,
	INIT_RDMA_OBJ_SIZE(ib_mw, hca_mw, ib),
};

/* Device memory: one piece at a time, in the pages that the process maps. */

static struct ib_dm *hca_alloc_dm(struct ib_device *device, struct ib_ucontext *context,
				  struct ib_dm_alloc_attr *attr, struct uverbs_attr_bundle *attrs)
{
	struct hca_slot *slot = hca_slot_of(device);
	int error = hca_injected(slot, HCA_alloc_dm);
	struct ib_dm *dm = kzalloc(sizeof(*dm), GFP_KERNEL);

	/* mlx5_cmd_alloc_memic(), hw/mlx5/dm.c */
	if (!error && (!attr->length || attr->length > HCA_DM_SIZE))
		error = attr->length ? -ENOMEM : -EINVAL;
	if (!error && !dm)
		error = -ENOMEM;
	mutex_lock(&slot->lock);
	if (!error && slot->dm_taken)
		error = -ENOMEM;
	if (!error)
		slot->dm_taken = true;
	mutex_unlock(&slot->lock);
	hca_say(slot, "alloc_dm length=%#llx = %d", attr->length, error);
	if (error) {
		kfree(dm);
		return ERR_PTR(error);
	}
	if (slot->driver->id == RDMA_DRIVER_MLX5) {
		error = hca_mlx5_answer_dm(attrs);
		if (error) {
			slot->dm_taken = false;
			kfree(dm);
			return ERR_PTR(error);
		}
	}
	return dm;
}

static int hca_dealloc_dm(struct ib_dm *dm, struct uverbs_attr_bundle *attrs)
{
	struct hca_slot *slot = hca_slot_of(dm->device);
	int error = hca_injected(slot, HCA_dealloc_dm);

	hca_say(slot, "dealloc_dm = %d", error);
	if (error)
		return error;
	slot->dm_taken = false;
	kfree(dm);
	return 0;
}

/*
 * mlx5_ib_reg_dm_mr(), hw/mlx5/mr.c; mana_ib_reg_dm_mr(), hw/mana/mr.c (7.2): each has its own
 * rights and its own errno.
 */
static struct ib_mr *hca_reg_dm_mr(struct ib_pd *pd, struct ib_dm *dm, struct ib_dm_mr_attr *attr,
				   struct uverbs_attr_bundle *attrs)
{
	const int mlx5_rights = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
				IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC | IB_ZERO_BASED;
	const int mana_rights = mlx5_rights | IB_ACCESS_MW_BIND | IB_ACCESS_OPTIONAL;
	struct hca_slot *slot = hca_slot_of(pd->device);
	bool mlx5 = slot->driver->id == RDMA_DRIVER_MLX5;
	int error = hca_injected(slot, HCA_reg_dm_mr);
	struct hca_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	if (!error && (attr->access_flags & ~(mlx5 ? mlx5_rights : mana_rights)))
		error = mlx5 ? -EINVAL : -EOPNOTSUPP;
	if (!error && !mr)
		error = -ENOMEM;
	error = error ?: hca_take_key(slot, mr, &mr->index);
	if (!error) {
		mr->is_dm = true;
		mr->start = attr->offset;
		mr->length = attr->length;
		mr->access = attr->access_flags;
		set_keys(mr, slot->driver);
	}
	hca_say(slot, "reg_dm_mr offset=%#llx length=%#llx access=%#x = %d lkey=%#x", attr->offset,
		attr->length, attr->access_flags, error, error ? 0 : mr->ib.lkey);
	if (error) {
		kfree(mr);
		return ERR_PTR(error);
	}
	return &mr->ib;
}

const struct ib_device_ops hca_dm_ops = {
	.alloc_dm = hca_alloc_dm,
	.dealloc_dm = hca_dealloc_dm,
	.reg_dm_mr = hca_reg_dm_mr,
};

/* Data through a key. */

static int through_process(struct hca_mr *mr, u64 offset, void *data, size_t size, bool write)
{
	struct task_struct *task = get_pid_task(mr->process, PIDTYPE_TGID);
	int moved;

	if (!task)
		return -ESRCH;
	moved = access_process_vm(task, mr->start + offset, data, size, write ? FOLL_WRITE : 0);
	put_task_struct(task);
	return moved == size ? 0 : -EFAULT;
}

static int through_pages(struct hca_mr *mr, u64 offset, void *data, size_t size, bool write)
{
	struct ib_umem *umem = mr->umem;
	struct ib_block_iter block;

	offset += ib_umem_offset(umem);
	rdma_umem_for_each_dma_block(umem, &block, PAGE_SIZE) {
		size_t part;
		void *at;

		if (!size)
			break;
		if (offset >= PAGE_SIZE) {
			offset -= PAGE_SIZE;
			continue;
		}
		part = min_t(size_t, size, PAGE_SIZE - offset);
		at = phys_to_virt(rdma_block_iter_dma_address(&block)) + offset;
		if (write)
			memcpy(at, data, part);
		else
			memcpy(data, at, part);
		data += part;
		size -= part;
		offset = 0;
	}
	return size ? -EFAULT : 0;
}

static int through_umem(struct hca_mr *mr, u64 offset, void *data, size_t size, bool write)
{
	struct dma_resv *resv;
	int error;

	if (!mr->umem->is_dmabuf)
		return through_pages(mr, offset, data, size, write);
	/* The exporter may have moved it. */
	resv = to_ib_umem_dmabuf(mr->umem)->attach->dmabuf->resv;
	dma_resv_lock(resv, NULL);
	error = map_moving(mr->umem) ?: through_pages(mr, offset, data, size, write);
	dma_resv_unlock(resv);
	return error;
}

/*
 * As the device would: ENOENT is a key that no region has, ERANGE an address outside of it,
 * EACCES a right that it has not.
 */
int hca_through(struct hca_slot *slot, u32 key, u64 iova, void *data, size_t size, bool write,
		int needs)
{
	struct hca_mr *mr;
	u64 offset;
	int error;

	mutex_lock(&slot->lock);
	mr = xa_load(&slot->keys, key >> 8);
	offset = mr && !xa_is_value(mr) ? iova - mr->iova : 0;
	if (!mr || xa_is_value(mr) || hca_key(mr->index) != key)
		error = -ENOENT;
	else if ((mr->access & needs) != needs)
		error = -EACCES;
	else if (iova < mr->iova || offset > mr->length || size > mr->length - offset)
		error = -ERANGE;
	else if (mr->is_dm)
		error = 0;
	else if (mr->process)
		error = through_process(mr, offset, data, size, write);
	else if (mr->umem)
		error = through_umem(mr, offset, data, size, write);
	else
		error = -ENOENT;
	if (!error && mr->is_dm) {
		void *at = page_address(slot->pages) + (HCA_DM_PAGE << PAGE_SHIFT) + mr->start + offset;

		if (write)
			memcpy(at, data, size);
		else
			memcpy(data, at, size);
	}
	mutex_unlock(&slot->lock);
	return error;
}

/*
 * mlx5_ib_advise_mr(), hw/mlx5/mr.c, get_prefetchable_mr() and pagefault_mr(), hw/mlx5/odp.c: for
 * on-demand and dma-buf regions only. Without FLUSH the real device pages in later, and nobody
 * hears of a failure.
 */
static int advise(struct hca_slot *slot, struct ib_pd *pd, u32 advice, u32 flags, struct ib_sge *sge)
{
	struct hca_mr *mr;
	u64 at, end;
	u8 byte;
	int error = 0;

	mutex_lock(&slot->lock);
	mr = xa_load(&slot->keys, sge->lkey >> 8);
	if (!mr)
		error = -ENOENT;
	else if (xa_is_value(mr))
		error = -EINVAL;
	else if (mr->ib.lkey != sge->lkey || (!mr->process && !(mr->umem && mr->umem->is_dmabuf)))
		error = -ENOENT;
	else if (mr->ib.pd != pd)
		error = -EPERM;
	else if (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE && !ib_access_writable(mr->access))
		error = -EPERM;
	else if (flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH) {
		end = sge->addr + sge->length;
		if (sge->addr < mr->iova || end - mr->iova > mr->length)
			error = -EFAULT;
		for (at = sge->addr; !error && mr->process && at < end; at = ALIGN_DOWN(at, PAGE_SIZE) + PAGE_SIZE)
			if (advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
				error = through_process(mr, at - mr->iova, &byte, 1, false);
	}
	mutex_unlock(&slot->lock);
	return error;
}

static int hca_advise_mr(struct ib_pd *pd, enum ib_uverbs_advise_mr_advice advice, u32 flags,
			 struct ib_sge *sges, u32 count, struct uverbs_attr_bundle *attrs)
{
	struct hca_slot *slot = hca_slot_of(pd->device);
	int error = hca_injected(slot, HCA_advise_mr);
	u32 i;

	if (!error && advice > IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		error = -EOPNOTSUPP;
	for (i = 0; !error && i < count; i++)
		error = advise(slot, pd, advice, flags, &sges[i]);
	hca_say(slot, "advise_mr advice=%d flags=%#x count=%u = %d", advice, flags, count, error);
	return error;
}

const struct ib_device_ops hca_advise_ops = {
	.advise_mr = hca_advise_mr,
};
