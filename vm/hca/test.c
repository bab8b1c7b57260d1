// SPDX-License-Identifier: GPL-2.0-only
/*
 * test.c DEVICE...: does the stand-in do what README.md says, and what the rows of drivers.c say of
 * the real drivers? By rdma-core's own providers. vm/hca/test runs it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <linux/memfd.h>
#include <linux/udmabuf.h>
#include <pthread.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "init_attr.h"
#include "tap.h"

enum {
	PAGE = 4096,
	SIZE = 4 * PAGE,
};

static int kernel; /* 601, 612, 702 */
static int rights; /* that the device has */

/*
 * What a driver answers, on each kernel; 0 is success. What it and its provider have beside
 * registration: r rereg, w windows, d dma-bufs, q queues. NULL is a provider that rdma-core does not have yet.
 */
struct answers {
	int full, locked, unmapped, empty, longer, bytes, atomic;
	const char *has;
};
struct row {
	const char *name;
	int id;
	struct answers old, middle, new; /* 6.1 and rdma-core 44, 6.12 and 56, 7.2 and 65 */
};

/* On each kernel, and on the first two. */
#define ALWAYS(...) { __VA_ARGS__ }, TWICE(__VA_ARGS__)
#define TWICE(...) { __VA_ARGS__ }, { __VA_ARGS__ }
static const struct row rows[] = {
	/* clang-format off */
	{ "mlx5",       1,  ALWAYS(ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "rwdq") },
	{ "efa",        17, TWICE(ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, EINVAL, EOPNOTSUPP, "d"),
	                    { ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, EOPNOTSUPP, EOPNOTSUPP, "d" } },
	{ "irdma",      9,  { ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "wq" },
	                    { ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "rwdq" },
	                    { ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "rwdq" } },
	{ "bnxt_re",    6,  { EIO, EFAULT, EFAULT, EFAULT, ENOMEM, 0, 0, "" },
	                    { EIO, ENOMEM, EFAULT, EINVAL, ENOMEM, 0, 0, "d" },
	                    { EIO, ENOMEM, EFAULT, EINVAL, ENOMEM, EOPNOTSUPP, 0, "d" } },
	{ "mlx4",       2,  ALWAYS(ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "rwq") },
	{ "hns",        12, TWICE(ENOMEM, ENOMEM, ENOMEM, ENOMEM, EINVAL, 0, 0, "rwq"),
	                    { ENOMEM, ENOMEM, ENOMEM, ENOMEM, EINVAL, 0, 0, "rq" } },
	{ "erdma",      19, ALWAYS(ENOSPC, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "") },
	{ "mana",       20, TWICE(EPROTO, ENOMEM, EFAULT, EINVAL, EPROTO, 0, EINVAL, ""),
	                    { EPROTO, ENOMEM, EFAULT, EINVAL, EPROTO, 0, 0, "wd" } },
	{ "qedr",       11, ALWAYS(EINVAL, EFAULT, EFAULT, EFAULT, EINVAL, 0, 0, "") },
	{ "cxgb4",      4,  ALWAYS(ENOMEM, ENOMEM, ENOMEM, ENOMEM, EINVAL, 0, 0, "") },
	{ "hfi1",       15, ALWAYS(ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "") },
	{ "qib",        16, ALWAYS(ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "") },
	{ "vmw_pvrdma", 10, ALWAYS(EFAULT, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "") },
	{ "ocrdma",     7,  ALWAYS(EAGAIN, EFAULT, EFAULT, EFAULT, EINVAL, 0, 0, "") },
	{ "mthca",      5,  TWICE(ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "q"),
	                    { ENOMEM, ENOMEM, EFAULT, EINVAL, EINVAL, EOPNOTSUPP, 0, "q" } },
	{ "ionic",      21, {}, {},
	                    { ENOSPC, ENOMEM, EFAULT, EINVAL, EINVAL, 0, 0, "wd" } },
	/* clang-format on */
};
static struct answers want; /* of the device, on this kernel */

static bool has(char what)
{
	return strchr(want.has, what) != NULL;
}

/* The control file. */

static char answer[1 << 20];

/* The errno of the command; its answer is in `answer`, without the last newline. */
__attribute__((format(printf, 1, 2)))
static int control(const char *format, ...)
{
	char text[8192];
	va_list arguments;
	ssize_t got = 0;
	int fd, error = 0;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	must((fd = open("/dev/rdmamr-hca", O_RDWR)) >= 0);
	if (write(fd, text, strlen(text)) < 0)
		error = errno;
	else
		must((got = read(fd, answer, sizeof(answer) - 1)) >= 0);
	close(fd);
	answer[got] = 0;
	if (got && answer[got - 1] == '\n')
		answer[got - 1] = 0;
	return error;
}

static int keys(const char *device)
{
	must(!control("keys %s", device));
	return atoi(answer);
}

/* The errno of a registration by the kernel's own interface, with private bytes. It ends again. */

static int raw_reg(struct ibv_pd *pd, int driver, void *start, size_t length, int access,
		   const void *bytes, size_t size)
{
	struct ib_uverbs_reg_mr in = {
		.start = (uintptr_t)start, .length = length, .hca_va = (uintptr_t)start,
		.pd_handle = pd->handle, .access_flags = access,
	};
	struct ib_uverbs_reg_mr_resp out = {};
	struct {
		struct ib_uverbs_ioctl_hdr header;
		struct ib_uverbs_attr attrs[4];
	} call = {
		.header = { .object_id = UVERBS_OBJECT_DEVICE, .method_id = UVERBS_METHOD_INVOKE_WRITE,
			    .num_attrs = size ? 4 : 3, .driver_id = driver },
		.attrs = {
			{ .attr_id = UVERBS_ATTR_CORE_IN, .len = sizeof(in), .flags = 1, .data = (uintptr_t)&in },
			{ .attr_id = UVERBS_ATTR_CORE_OUT, .len = sizeof(out), .flags = 1, .data = (uintptr_t)&out },
			{ .attr_id = UVERBS_ATTR_WRITE_CMD, .len = 8, .flags = 1, .data = IB_USER_VERBS_CMD_REG_MR },
			{ .attr_id = UVERBS_ATTR_UHW_IN, .len = size, .flags = 1 },
		},
	};

	if (size > 8)
		call.attrs[3].data = (uintptr_t)bytes;
	else
		memcpy(&call.attrs[3].data, bytes, size);
	call.header.length = sizeof(call.header) + call.header.num_attrs * sizeof(call.attrs[0]);
	if (ioctl(pd->context->cmd_fd, RDMA_VERBS_IOCTL, &call))
		return errno;
	call.header.object_id = UVERBS_OBJECT_MR;
	call.header.method_id = UVERBS_METHOD_MR_DESTROY;
	call.header.num_attrs = 1;
	call.header.length = sizeof(call.header) + sizeof(call.attrs[0]);
	call.attrs[0] = (struct ib_uverbs_attr){ .attr_id = UVERBS_ATTR_DESTROY_MR_HANDLE, .flags = 1,
						 .data = out.mr_handle };
	must(!ioctl(pd->context->cmd_fd, RDMA_VERBS_IOCTL, &call));
	return 0;
}

static void *fresh(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(memory != MAP_FAILED);
	memset(memory, 0, size);
	return memory;
}

/* The errno of a registration, which ends again if it succeeds. */
static int reg_errno(struct ibv_pd *pd, void *memory, size_t size, int access)
{
	struct ibv_mr *mr;

	errno = 0;
	mr = ibv_reg_mr(pd, memory, size, access);
	if (!mr)
		return errno ?: -1;
	must(!ibv_dereg_mr(mr));
	return 0;
}

/* Cases. */

static void data(const char *device, struct ibv_pd *pd, char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory + 100, 5000, rights);
	unsigned int key;

	if (!ok(mr != NULL, "registered"))
		return;
	key = mr->lkey;
	strcpy(memory + 100, "begin");
	strcpy(memory + 4094, "across");
	is(control("read %s %#x %#lx 5", device, key, (long)(memory + 100)), 0, "read");
	ok(!strcmp(answer, "626567696e"), "the beginning: %s", answer);
	is(control("read %s %#x %#lx 6", device, key, (long)(memory + 4094)), 0, "read");
	ok(!strcmp(answer, "6163726f7373"), "across pages: %s", answer);
	is(control("write %s %#x %#lx 58595a", device, key, (long)(memory + 4095)), 0, "write");
	ok(!memcmp(memory + 4094, "aXYZss", 6), "the process sees it");
	is(control("remote-write %s %#x %#lx 41", device, key, (long)(memory + 4094)),
	   rights & IBV_ACCESS_REMOTE_WRITE ? 0 : EACCES, "remote write");
	is(control("remote-read %s %#x %#lx 1", device, key, (long)(memory + 4094)), 0, "remote read");
	is(control("read %s %#x %#lx 1", device, key, (long)(memory + 5100)), ERANGE, "behind the end");
	is(control("read %s %#x %#lx 1", device, key, (long)(memory + 99)), ERANGE, "before the beginning");
	is(control("read %s %#x %#lx 1", device, key + 1, (long)(memory + 100)), ENOENT, "another key");
	is(ibv_dereg_mr(mr), 0, "deregistered");
	is(control("read %s %#x %#lx 1", device, key, (long)(memory + 100)), ENOENT, "a dead key");

	mr = ibv_reg_mr(pd, memory, PAGE, 0);
	must(mr);
	is(control("write %s %#x %#lx 00", device, mr->lkey, (long)memory), EACCES, "no right to write");
	is(control("remote-read %s %#x %#lx 1", device, mr->lkey, (long)memory), EACCES, "nor to read");
	is(ibv_dereg_mr(mr), 0, "deregistered");

	mr = ibv_reg_mr_iova(pd, memory + 100, 5000, 0x700000000064, rights);
	must(mr);
	is(control("read %s %#x 0x700000000064 3", device, mr->lkey), 0, "at an iova");
	ok(!strcmp(answer, "626567"), "%s", answer);
	is(ibv_dereg_mr(mr), 0, "deregistered");
	is(keys(device), 0, "no key is left");
}

static void refusals(const char *device, const struct row *row, struct ibv_pd *pd, char *memory)
{
	static const char bytes[16] = { [15] = 1 }, zeros[16];
	struct rlimit old;
	struct ibv_mr *held[3];
	size_t i;
	int error;

	is(raw_reg(pd, row->id, (void *)0x10000, PAGE, 1, zeros, 16), want.unmapped, "unmapped memory");
	is(raw_reg(pd, row->id, memory, 0, 1, zeros, 16), want.empty, "length 0");
	is(raw_reg(pd, row->id, memory, PAGE, 1, zeros, 16), 0, "zeros behind");
	/* irdma's first two bytes say which memory it is; mthca's first eight have a meaning, too. */
	is(raw_reg(pd, row->id, memory, PAGE, 1, bytes, 16), want.bytes, "private bytes");
	is(raw_reg(pd, row->id, memory, PAGE, 1, NULL, 0), !strcmp(row->name, "irdma") ? EINVAL : 0,
	   "no private bytes");
	is(raw_reg(pd, row->id, memory, PAGE, 1 | IBV_ACCESS_REMOTE_ATOMIC, zeros, 16), want.atomic,
	   "remote atomics");
	is(raw_reg(pd, row->id, memory, PAGE, IBV_ACCESS_REMOTE_WRITE, zeros, 16), EINVAL,
	   "remote writes without local ones");

	must(!control("set %s max_mr_size %d", device, PAGE));
	is(reg_errno(pd, memory, PAGE, 1), 0, "as long as the maximum");
	error = reg_errno(pd, memory, 2 * PAGE, 1);
	is(error, want.longer, "longer than the maximum");
	must(!control("set %s max_mr_size 0x8000000000", device));

	must(!getrlimit(RLIMIT_MEMLOCK, &old));
	must(!setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ PAGE, old.rlim_max }));
	must(!seteuid(65534));
	is(reg_errno(pd, memory, SIZE, 1), want.locked, "over RLIMIT_MEMLOCK");
	must(!seteuid(0));
	must(!setrlimit(RLIMIT_MEMLOCK, &old));

	must(!control("set %s max_mr %d", device, keys(device) + 3));
	for (i = 0; i < 3; i++)
		must((held[i] = ibv_reg_mr(pd, memory, PAGE, 1)));
	is(reg_errno(pd, memory, PAGE, 1), want.full, "a full table of keys");
	for (i = 0; i < 3; i++)
		must(!ibv_dereg_mr(held[i]));
	is(reg_errno(pd, memory, PAGE, 1), 0, "and with room again");
	must(!control("set %s max_mr 65536", device));
}

static void injected(const char *device, struct ibv_pd *pd, char *memory)
{
	struct ibv_mr *mr;

	must(!control("fail %s reg_mr %d 2", device, ENOTTY));
	is(reg_errno(pd, memory, PAGE, 1), ENOTTY, "the first");
	is(reg_errno(pd, memory, PAGE, 1), ENOTTY, "the second");
	is(reg_errno(pd, memory, PAGE, 1), 0, "the third succeeds");
	must((mr = ibv_reg_mr(pd, memory, PAGE, 1)));
	must(!control("fail %s dereg_mr %d 1", device, EBUSY));
	is(ibv_dereg_mr(mr), EBUSY, "deregistration");
	is(ibv_dereg_mr(mr), 0, "and once more");
	must(!control("fail %s alloc_pd %d 1", device, ENOMEM));
	errno = 0;
	ok(!ibv_alloc_pd(pd->context) && errno == ENOMEM, "a domain");
	is(control("fail %s nothing 5 1", device), EINVAL, "a verb that is none");
	is(control("log no_such_device"), ENODEV, "a device that is none");

	must(!control("log %s", device));
	must((mr = ibv_reg_mr_iova(pd, memory + 8, 100, 0x1008, 5)));
	must(!ibv_dereg_mr(mr));
	must(!control("log %s", device));
	{
		char want[200];

		snprintf(want, sizeof(want), "reg_mr start=%#lx length=0x64 iova=0x1008 access=0x5 in=",
			 (long)(memory + 8));
		ok(strstr(answer, want) == answer, "the log begins with %s: %s", want, answer);
		ok(strstr(answer, "\ndereg_mr lkey=") != NULL, "and ends: %s", answer);
	}
}

static void rereg(const char *device, struct ibv_pd *pd, char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	char *other = fresh(SIZE);
	struct ibv_pd *second = ibv_alloc_pd(pd->context);
	int result;

	must(mr && second);
	result = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, rights);
	if (!has('r')) {
		ok(result == -4 && errno == EOPNOTSUPP, "is not supported: %d, errno %d", result, errno);
		must(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(second));
		return;
	}
	is(result, 0, "access");
	is(control("remote-read %s %#x %#lx 1", device, mr->lkey, (long)memory), 0, "a right more");
	strcpy(other + 2 * PAGE, "moved");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other + 2 * PAGE, PAGE, 0), 0, "memory");
	is(control("read %s %#x %#lx 5", device, mr->lkey, (long)(other + 2 * PAGE)), 0, "read");
	ok(!strcmp(answer, "6d6f766564"), "the new memory: %s", answer);
	is(control("read %s %#x %#lx 1", device, mr->lkey, (long)memory), ERANGE, "not the old one");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, SIZE, 0), 0, "more of it");
	is(control("read %s %#x %#lx 1", device, mr->lkey, (long)(other + SIZE - 1)), 0, "its end");
	is(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0), 0, "domain");
	is(ibv_dealloc_pd(second), EBUSY, "which is in use now");
	is(ibv_dereg_mr(mr), 0, "deregistered");
	is(ibv_dealloc_pd(second), 0, "and is not any more");

	/* Read-only memory gets no right to be written. */
	must((mr = ibv_reg_mr(pd, other, PAGE, 0)));
	must(!mprotect(other, SIZE, PROT_READ));
	errno = 0;
	result = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other,
			      PAGE, IBV_ACCESS_LOCAL_WRITE);
	ok(result == -4, "memory that cannot be written: %d, errno %d", result, errno);
	is(ibv_dereg_mr(mr), 0, "deregistered");
	is(keys(device), 0, "no key is left");
	munmap(other, SIZE);
}

static void windows(const char *device, struct ibv_pd *pd)
{
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two;

	if (!has('w')) {
		ok(!one && errno == EOPNOTSUPP, "are not supported: errno %d", errno);
		return;
	}
	must(one);
	two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	is(keys(device), 1 + (two != NULL), "a window has a key");
	is(ibv_dealloc_mw(one), 0, "freed");
	if (two)
		is(ibv_dealloc_mw(two), 0, "freed");
	is(keys(device), 0, "no key is left");
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				   .ah_attr = { .dlid = 1, .port_num = 1 } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS };

	is(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	   0, "INIT");
	is(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0, "RTR");
	is(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), 0, "RTS");
}

static void queues(struct ibv_pd *pd, char *memory)
{
	struct ibv_cq *cq = ibv_create_cq(pd->context, 10, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_qp *qp;

	if (!has('q')) {
		ok(!cq, "are not supported: errno %d", errno);
		return;
	}
	must(cq && (qp = ibv_create_qp(pd, &init)));
	to_rts(qp);
	if (has('w')) {
		struct ibv_mw_bind bind = { .bind_info = { .addr = (uintptr_t)memory, .length = PAGE,
							   .mw_access_flags = IBV_ACCESS_REMOTE_READ } };

		must((mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)));
		must((mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1)));
		bind.bind_info.mr = mr;
		is(ibv_bind_mw(qp, mw, &bind), 0, "a window is bound");
		is(ibv_dealloc_mw(mw), 0, "freed");
		is(ibv_dereg_mr(mr), 0, "deregistered");
	}
	is(ibv_destroy_qp(qp), 0, "destroyed");
	is(ibv_destroy_cq(cq), 0, "destroyed");
}

/* drm/drm.h and drm/drm_mode.h, which come with libdrm. */
struct dumb {
	uint32_t height, width, bpp, flags, handle, pitch;
	uint64_t size;
};
struct dumb_map {
	uint32_t handle, pad;
	uint64_t offset;
};
struct prime {
	uint32_t handle, flags;
	int32_t fd;
};

/*
 * A dma-buf of SIZE bytes, and the same memory mapped: a memfd behind /dev/udmabuf, which Debian's
 * kernels have since 6.12, else a buffer of vgem.
 */
static int export(char **mapped)
{
	struct udmabuf_create make = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = SIZE };
	struct dumb dumb = { .height = 4, .width = PAGE, .bpp = 8 };
	struct dumb_map map = {};
	struct prime prime = { .flags = O_CLOEXEC | O_RDWR };
	int device = open("/dev/udmabuf", O_RDWR), memory = -1, fd;

	if (device >= 0) {
		must((memory = memfd_create("memory", MFD_ALLOW_SEALING)) >= 0);
		must(!ftruncate(memory, SIZE) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
		make.memfd = memory;
		must((fd = ioctl(device, UDMABUF_CREATE, &make)) >= 0);
		*mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
		close(memory);
	} else {
		if (system("modprobe -q vgem") || (device = open("/dev/dri/card0", O_RDWR)) < 0)
			return -1;
		must(!ioctl(device, _IOWR('d', 0xb2, struct dumb), &dumb));
		map.handle = prime.handle = dumb.handle;
		must(!ioctl(device, _IOWR('d', 0xb3, struct dumb_map), &map));
		must(!ioctl(device, _IOWR('d', 0x2d, struct prime), &prime));
		fd = prime.fd;
		*mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, device, map.offset);
	}
	must(*mapped != MAP_FAILED);
	close(device);
	return fd;
}

static void dmabuf(const char *device, struct ibv_pd *pd)
{
	char *mapped;
	int fd = export(&mapped), file;
	struct ibv_mr *mr;

	if (fd < 0) {
		skip("dma-buf", "neither /dev/udmabuf nor vgem is there");
		return;
	}
	errno = 0;
	mr = ibv_reg_dmabuf_mr(pd, PAGE + 8, 2 * PAGE, 0x500000000008, fd, rights);
	if (!has('d')) {
		ok(!mr && errno == EOPNOTSUPP, "are not supported: errno %d", errno);
		goto out;
	}
	if (!ok(mr != NULL, "registered: errno %d", errno))
		goto out;
	strcpy(mapped + PAGE + 8, "buffer");
	is(control("read %s %#x 0x500000000008 6", device, mr->lkey), 0, "read");
	ok(!strcmp(answer, "627566666572"), "through the dma-buf: %s", answer);
	is(control("write %s %#x 0x500000000ffe 01020304", device, mr->lkey), 0, "write");
	ok(!memcmp(mapped + 2 * PAGE - 2, "\1\2\3\4", 4), "the process sees it");
	is(control("read %s %#x 0x500000002007 1", device, mr->lkey), 0, "the last byte");
	is(control("read %s %#x 0x500000002008 1", device, mr->lkey), ERANGE, "behind the end");
	errno = 0;
	ok(!ibv_reg_dmabuf_mr(pd, PAGE, SIZE, PAGE, fd, rights) && errno == EINVAL,
	   "longer than the dma-buf: errno %d", errno);
	must((file = memfd_create("no dma-buf", 0)) >= 0);
	errno = 0;
	ok(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, rights) && errno == EINVAL, "another file: errno %d", errno);
	close(file);
	errno = 0;
	ok(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, rights) && errno == EBADF, "no file: errno %d", errno);
	close(fd);
	fd = -1;
	is(control("read %s %#x 0x500000000008 6", device, mr->lkey), 0, "without its descriptor");
	ok(!strcmp(answer, "627566666572"), "%s", answer);
	is(ibv_dereg_mr(mr), 0, "deregistered");
	is(keys(device), 0, "no key is left");
out:
	if (fd >= 0)
		close(fd);
	munmap(mapped, SIZE);
}

static void mlx5(const char *device, struct ibv_pd *pd, char *memory)
{
	char *moving = fresh(SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, moving, SIZE, rights | IBV_ACCESS_ON_DEMAND);
	struct ibv_sge sge;
	struct ibv_alloc_dm_attr attr = { .length = PAGE };
	struct ibv_context *again;
	struct ibv_pd *pd_again;
	struct ibv_dm *dm;
	struct mlx5dv_devx_umem *umem;

	must(mr);
	must(mmap(moving, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == moving);
	strcpy(moving + 100, "later");
	is(control("read %s %#x %#lx 5", device, mr->lkey, (long)(moving + 100)), 0, "on demand");
	ok(!strcmp(answer, "6c61746572"), "sees other memory at its address: %s", answer);
	sge = (struct ibv_sge){ (uintptr_t)moving, SIZE, mr->lkey };
	is(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), 0, "advise");
	must(!munmap(moving + PAGE, PAGE));
	is(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), EFAULT, "with a hole");
	is(control("read %s %#x %#lx 5", device, mr->lkey, (long)(moving + PAGE)), EFAULT, "the hole");
	sge.lkey++;
	is(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), ENOENT, "another key");
	is(ibv_dereg_mr(mr), 0, "deregistered");
	must((mr = ibv_reg_mr(pd, NULL, SIZE_MAX, rights | IBV_ACCESS_ON_DEMAND)));
	is(control("read %s %#x %#lx 5", device, mr->lkey, (long)(moving + 100)), 0, "all memory");
	is(ibv_dereg_mr(mr), 0, "deregistered");

	must((mr = ibv_alloc_null_mr(pd)));
	is(mr->lkey, 0x700, "the null region's key");
	is(ibv_dereg_mr(mr), 0, "deregistered");

	dm = ibv_alloc_dm(pd->context, &attr);
	if (ok(dm != NULL, "device memory")) {
		is(ibv_memcpy_to_dm(dm, 8, "device00", 8), 0, "copied to it");
		must((mr = ibv_reg_dm_mr(pd, dm, 0, PAGE, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)));
		is(control("read %s %#x 8 6", device, mr->lkey), 0, "read");
		ok(!strcmp(answer, "646576696365"), "through its key: %s", answer);
		is(ibv_free_dm(dm), EBUSY, "in use");
		is(ibv_dereg_mr(mr), 0, "deregistered");
		is(ibv_free_dm(dm), 0, "freed");
	}

	must((mr = ibv_reg_mr(pd, memory, PAGE, rights)));
	again = ibv_import_device(dup(pd->context->cmd_fd));
	if (ok(again != NULL, "imported: errno %d", errno)) {
		struct ibv_mr *imported;

		must((pd_again = ibv_import_pd(again, pd->handle)));
		imported = ibv_import_mr(pd_again, mr->handle);
		ok(imported && imported->lkey == mr->lkey && imported->length == PAGE, "a region too");
		if (imported)
			ibv_unimport_mr(imported);
		ibv_unimport_pd(pd_again);
		ibv_close_device(again);
	}
	is(ibv_dereg_mr(mr), 0, "deregistered");

	umem = mlx5dv_devx_umem_reg(pd->context, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);
	if (ok(umem != NULL, "devx memory: errno %d", errno))
		is(mlx5dv_devx_umem_dereg(umem), 0, "and its end");
	is(keys(device), 0, "no key is left");
	munmap(moving, SIZE);
}

/* Calls that the headers of rdma-core 44 do not have. */

struct dmah_attr {
	uint32_t comp_mask, cpu_id;
	uint8_t ph, tph_mem_type;
};

static void data_direct(struct ibv_pd *pd)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int) =
		dlsym(RTLD_DEFAULT, "mlx5dv_reg_dmabuf_mr");
	struct ibv_mr *mr;
	char *mapped;
	int fd;

	if (!reg)
		return;
	must((fd = export(&mapped)) >= 0);
	mr = reg(pd, 0, SIZE, 0, fd, rights, 0);
	if (ok(mr != NULL, "mlx5dv_reg_dmabuf_mr: errno %d", errno))
		is(ibv_dereg_mr(mr), 0, "deregistered");
	ok(!reg(pd, 0, SIZE, 0, fd, rights, 1) && errno == EINVAL, "with DATA_DIRECT: errno %d", errno);
	ok(!reg(pd, 8, PAGE, 8, fd, rights, 1) && errno == EOPNOTSUPP, "and unaligned: errno %d", errno);
	close(fd);
	munmap(mapped, SIZE);
}

static void hints(struct ibv_pd *pd, char *memory)
{
	void *(*alloc)(struct ibv_context *, struct dmah_attr *) = dlsym(RTLD_DEFAULT, "ibv_alloc_dmah");
	int (*dealloc)(void *) = dlsym(RTLD_DEFAULT, "ibv_dealloc_dmah");
	struct ibv_mr *(*reg)(struct ibv_pd *, struct init_attr *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
	struct dmah_attr attr = { .comp_mask = 1 << 1, .ph = 1 };
	struct init_attr in = { .length = PAGE, .access = rights, .comp_mask = MASK_ADDR | MASK_DMAH, .addr = memory };
	struct ibv_mr *mr;

	if (!alloc || kernel < 617)
		return;
	in.dmah = alloc(pd->context, &attr);
	if (!ok(in.dmah != NULL, "a DMA handle: errno %d", errno))
		return;
	mr = reg(pd, &in);
	if (ok(mr != NULL, "a region with it: errno %d", errno)) {
		errno = 0;
		ok(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == -4 && errno == EOPNOTSUPP,
		   "which cannot change: errno %d", errno);
		is(dealloc(in.dmah), EBUSY, "in use");
		is(ibv_dereg_mr(mr), 0, "deregistered");
	}
	is(dealloc(in.dmah), 0, "freed");
	attr = (struct dmah_attr){ .comp_mask = 1 << 0, .cpu_id = 0 };
	ok(!alloc(pd->context, &attr) && errno == EINVAL, "without a hint: errno %d", errno);
}

static void efa(struct ibv_pd *pd, char *memory)
{
	struct {
		uint64_t comp_mask;
		uint16_t valid, recv, read, rdma_recv;
	} attr;
	void *library = dlopen("libefa.so.1", RTLD_NOW);
	int (*query)(struct ibv_mr *, void *, uint32_t) = library ? dlsym(library, "efadv_query_mr") : NULL;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE);

	must(library && mr);
	ok((query != NULL) == (kernel >= 612), "efadv_query_mr is there since rdma-core 55");
	if (query)
		is(query(mr, &attr, sizeof(attr)), 0, "efadv_query_mr");
	is(ibv_dereg_mr(mr), 0, "deregistered");
}

static void *turns(void *domain)
{
	char *memory = fresh(PAGE);
	long failed = 0;
	int i;

	for (i = 0; i < 200; i++) {
		struct ibv_mr *mr = ibv_reg_mr(domain, memory, PAGE, rights);

		failed += !mr || ibv_dereg_mr(mr);
	}
	munmap(memory, PAGE);
	return (void *)failed;
}

static void threads(const char *device, struct ibv_pd *pd)
{
	pthread_t thread[4];
	void *failed;
	size_t i;

	for (i = 0; i < 4; i++)
		must(!pthread_create(&thread[i], NULL, turns, pd));
	for (i = 0; i < 4; i++) {
		must(!pthread_join(thread[i], &failed));
		is((long)failed, 0, "thread %zu", i);
	}
	is(keys(device), 0, "no key is left");
	must(!control("log %s", device));
}

static struct ibv_context *open_device(const char *name)
{
	int count, i;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;

	must(list);
	for (i = 0; i < count && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	return context;
}

static void unplug(const char *device, struct ibv_pd *pd, char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, rights);
	struct ibv_context *context;
	struct ibv_pd *fresh_pd;

	must(mr);
	is(control("remove %s", device), 0, "taken away");
	is(reg_errno(pd, memory, PAGE, 1), EIO, "registration");
	is(ibv_dereg_mr(mr), 0, "deregistration: the core has done it");
	is(control("remove %s", device), ENODEV, "it is away");
	ok(!open_device(device), "and cannot be opened");
	is(control("add %s", device), 0, "back again");
	is(control("add %s", device), EEXIST, "it is there");
	is(reg_errno(pd, memory, PAGE, 1), EIO, "the old context stays dead");
	must((context = open_device(device)) && (fresh_pd = ibv_alloc_pd(context)));
	is(reg_errno(fresh_pd, memory, PAGE, 1), 0, "a new one works");
	must(!ibv_dealloc_pd(fresh_pd) && !ibv_close_device(context));
	is(keys(device), 0, "no key is left");
}

struct load {
	struct ibv_pd *pd;
	atomic_int done; /* registrations */
	atomic_int wrong; /* errnos */
};

static void *until_gone(void *argument)
{
	struct load *load = argument;
	char *memory = fresh(PAGE);
	struct ibv_mr *mr;

	while (errno = 0, (mr = ibv_reg_mr(load->pd, memory, PAGE, rights))) {
		atomic_fetch_add(&load->done, 1);
		if (ibv_dereg_mr(mr))
			atomic_fetch_add(&load->wrong, 1);
	}
	if (errno != EIO)
		atomic_fetch_add(&load->wrong, 1);
	munmap(memory, PAGE);
	return NULL;
}

static void unplug_in_use(const char *device)
{
	pthread_t thread[3];
	int round;
	size_t i;

	for (round = 0; round < 3; round++) {
		struct ibv_context *context = open_device(device);
		struct load load = {};

		must(context && (load.pd = ibv_alloc_pd(context)));
		for (i = 0; i < 3; i++)
			must(!pthread_create(&thread[i], NULL, until_gone, &load));
		while (atomic_load(&load.done) < 20)
			usleep(1000);
		is(control("remove %s", device), 0, "taken away");
		for (i = 0; i < 3; i++)
			must(!pthread_join(thread[i], NULL));
		is(atomic_load(&load.wrong), 0, "each thread hears EIO, and nothing else fails");
		is(control("add %s", device), 0, "back again");
		is(keys(device), 0, "no key is left");
		ibv_dealloc_pd(load.pd);
		ibv_close_device(context);
	}
	must(!control("log %s", device));
}

int main(int count, char **names)
{
	struct utsname system;
	char *memory = fresh(SIZE);
	int i, major, minor;
	size_t r;

	must(!uname(&system) && sscanf(system.release, "%d.%d", &major, &minor) == 2);
	kernel = 100 * major + minor;
	for (i = 1; i < count; i++) {
		const char *device = names[i];
		struct ibv_context *context = open_device(device);
		struct ibv_pd *pd;
		const struct row *row = NULL;

		for (r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
			if (!strncmp(device, rows[r].name, strlen(rows[r].name)))
				row = &rows[r];
		must(row);
		want = kernel < 612 ? row->old : kernel < 700 ? row->middle : row->new;
		rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
		/* efa writes remotely since 6.4. */
		if (strcmp(row->name, "efa") || kernel > 601)
			rights |= IBV_ACCESS_REMOTE_WRITE;
		if (!want.has) {
			ok(!context, "%s: this rdma-core has no provider for it", device);
			continue;
		}
		if (!ok(context != NULL, "%s opens: errno %d", device, errno))
			continue;
		if (!ok((pd = ibv_alloc_pd(context)) != NULL, "%s has a domain", device))
			continue;
		must(!control("log %s", device));
		as_case(data(device, pd, memory), "%s: data through a key", device);
		as_case(refusals(device, row, pd, memory), "%s: refusals", device);
		as_case(injected(device, pd, memory), "%s: failures on demand, and the log", device);
		as_case(rereg(device, pd, memory), "%s: rereg", device);
		as_case(windows(device, pd), "%s: windows", device);
		as_case(queues(pd, memory), "%s: queues", device);
		as_case(dmabuf(device, pd), "%s: dma-bufs", device);
		if (!strcmp(row->name, "mlx5"))
			as_case((mlx5(device, pd, memory), data_direct(pd), hints(pd, memory)), "%s: what mlx5 alone has", device);
		if (!strcmp(row->name, "efa"))
			as_case(efa(pd, memory), "%s: what efa alone has", device);
		as_case(threads(device, pd), "%s: threads", device);
		as_case(unplug(device, pd, memory), "%s: unplugged and back", device);
		as_case(unplug_in_use(device), "%s: unplugged while threads register", device);
		ibv_dealloc_pd(pd);
		ibv_close_device(context);
	}
	return done_testing();
}
