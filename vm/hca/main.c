// SPDX-License-Identifier: GPL-2.0-only
/* Devices come and go. */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/slab.h>
#include "hca.h"

static char *devices = "";
module_param(devices, charp, 0444);
MODULE_PARM_DESC(devices, "names of the devices to begin with, with commas between");

DEFINE_MUTEX(hca_slots_lock);
static LIST_HEAD(slots);

struct hca_slot *hca_find(const char *name)
{
	struct hca_slot *slot;

	list_for_each_entry(slot, &slots, entry)
		if (!strcmp(slot->name, name))
			return slot;
	return NULL;
}

/* libibverbs matches a device whose driver has no number in its table by this file. */
static ssize_t modalias_show(struct device *device, struct device_attribute *attribute, char *text)
{
	struct hca_slot *slot = container_of(device, struct hca_slot, parent);
	const struct hca_driver *driver = slot->driver;

	return sysfs_emit(text, "pci:v%08Xd%08Xsv%08Xsd%08Xbc02sc07i00\n", driver->vendor,
			  driver->device, driver->vendor, 0);
}
static DEVICE_ATTR_RO(modalias);

static struct attribute *parent_attrs[] = { &dev_attr_modalias.attr, NULL };
ATTRIBUTE_GROUPS(parent);

static void free_slot(struct device *parent)
{
	struct hca_slot *slot = container_of(parent, struct hca_slot, parent);

	hca_forget_log(slot);
	xa_destroy(&slot->keys);
	if (slot->pages)
		__free_pages(slot->pages, HCA_PAGES_ORDER);
	kfree(slot->parent.dma_parms);
	kfree(slot);
}

static const struct hca_driver *driver_of(const char *name)
{
	size_t i;

	for (i = 0; i < hca_driver_count; i++)
		if (strstarts(name, hca_drivers[i].name))
			return &hca_drivers[i];
	return NULL;
}

static struct hca_slot *make_slot(const char *name)
{
	static unsigned int number;
	const struct hca_driver *driver = driver_of(name);
	struct hca_slot *slot;
	int error;

	if (!driver)
		return ERR_PTR(-ENODEV);
	slot = kzalloc(sizeof(*slot), GFP_KERNEL);
	if (!slot)
		return ERR_PTR(-ENOMEM);
	strscpy(slot->name, name, sizeof(slot->name));
	slot->driver = driver;
	slot->number = ++number;
	slot->max_mr = driver->max_mr;
	slot->max_mr_size = driver->max_mr_size;
	mutex_init(&slot->lock);
	spin_lock_init(&slot->small_lock);
	xa_init_flags(&slot->keys, XA_FLAGS_ALLOC1);
	INIT_LIST_HEAD(&slot->log);

	/*
	 * A dma-buf wants a real device that does DMA. One without a bus has no IOMMU, so that
	 * a DMA address is the physical one.
	 */
	device_initialize(&slot->parent);
	slot->parent.release = free_slot;
	slot->parent.groups = parent_groups;
	slot->parent.dma_mask = &slot->parent.coherent_dma_mask;
	slot->parent.dma_parms = kzalloc(sizeof(*slot->parent.dma_parms), GFP_KERNEL);
	slot->pages = alloc_pages(GFP_KERNEL | __GFP_ZERO | __GFP_COMP, HCA_PAGES_ORDER);
	error = -ENOMEM;
	if (!slot->pages || !slot->parent.dma_parms)
		goto put;
	dma_set_max_seg_size(&slot->parent, UINT_MAX);
	if (driver->page)
		memcpy(page_address(slot->pages), driver->page, driver->page_size);
	error = dma_set_mask_and_coherent(&slot->parent, DMA_BIT_MASK(64)) ?:
		dev_set_name(&slot->parent, "rdmamr-hca-%s", name) ?:
		device_add(&slot->parent);
	if (error)
		goto put;
	list_add(&slot->entry, &slots);
	return slot;
put:
	put_device(&slot->parent);
	return ERR_PTR(error);
}

static int add_to(struct hca_slot *slot)
{
	const struct hca_driver *driver = slot->driver;
	struct hca_device *device = ib_alloc_device(hca_device, ib);
	int error;

	if (!device)
		return -ENOMEM;
	device->slot = slot;
	/* A device that comes back gives out the same keys: so runs can be compared. */
	slot->next_key = 0;
	device->ib.node_type = driver->node;
	device->ib.phys_port_cnt = 1;
	device->ib.num_comp_vectors = 1;
	device->ib.local_dma_lkey = 0;
	device->ib.dev.parent = &slot->parent;
	device->ib.node_guid = cpu_to_be64(0x0200dead00000000ULL + slot->number);
	device->ib.driver_def = driver->objects;

	ib_set_device_ops(&device->ib, &hca_ops);
	device->ib.ops.driver_id = driver->id;
	device->ib.ops.uverbs_abi_ver = driver->abi;
	device->ib.ops.uverbs_no_driver_id_binding = driver->no_id_binding;
	ib_set_device_ops(&device->ib, &hca_memory_ops);
	if (driver->features & HCA_QUEUES)
		ib_set_device_ops(&device->ib, &hca_queue_ops);
	if (driver->features & HCA_MW)
		ib_set_device_ops(&device->ib, &hca_mw_ops);
	if (driver->features & (HCA_REREG_IN_PLACE | HCA_REREG_MLX5))
		ib_set_device_ops(&device->ib, &hca_rereg_ops);
	if (driver->features & (HCA_DMABUF_PINNED | HCA_DMABUF_MOVES))
		ib_set_device_ops(&device->ib, &hca_dmabuf_ops);
	if (driver->features & HCA_DM)
		ib_set_device_ops(&device->ib, &hca_dm_ops);
	if (driver->features & HCA_ADVISE)
		ib_set_device_ops(&device->ib, &hca_advise_ops);

	if (driver->ops)
		ib_set_device_ops(&device->ib, driver->ops);

	error = ib_register_device(&device->ib, slot->name, &slot->parent);
	if (error) {
		ib_dealloc_device(&device->ib);
		return error;
	}
	slot->device = device;
	return 0;
}

int hca_add(const char *name)
{
	struct hca_slot *slot;
	int error;

	mutex_lock(&hca_slots_lock);
	slot = hca_find(name) ?: make_slot(name);
	if (IS_ERR(slot))
		error = PTR_ERR(slot);
	else
		error = slot->device ? -EEXIST : add_to(slot);
	mutex_unlock(&hca_slots_lock);
	return error;
}

static void remove_from(struct hca_slot *slot)
{
	ib_unregister_device(&slot->device->ib);
	ib_dealloc_device(&slot->device->ib);
	slot->device = NULL;
}

int hca_remove(const char *name)
{
	struct hca_slot *slot;
	int error = -ENODEV;

	mutex_lock(&hca_slots_lock);
	slot = hca_find(name);
	if (slot && slot->device) {
		remove_from(slot);
		error = 0;
	}
	mutex_unlock(&hca_slots_lock);
	return error;
}

static void hca_exit(void)
{
	struct hca_slot *slot, *next;

	hca_control_exit();
	list_for_each_entry_safe(slot, next, &slots, entry) {
		if (slot->device)
			remove_from(slot);
		list_del(&slot->entry);
		device_del(&slot->parent);
		put_device(&slot->parent);
	}
}

static int __init hca_init(void)
{
	char *names = kstrdup(devices, GFP_KERNEL), *rest = names, *name;
	int error = names ? hca_control_init() : -ENOMEM;

	if (error)
		goto out;
	while (!error && (name = strsep(&rest, ",")))
		if (*name)
			error = hca_add(name);
	if (error)
		hca_exit();
out:
	kfree(names);
	return error;
}

module_init(hca_init);
module_exit(hca_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Devices in the place of RDMA hardware drivers', for tests");
