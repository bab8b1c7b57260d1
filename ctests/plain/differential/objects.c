/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What providers do with a region's object, on a device of vm/hca: result, errno and fields, and data by its key. */
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include "../../lib/hca.h"
#include "../../lib/verdict.h"

/* The same in both runs: the kernel's log has addresses. */
#define PLACE ((char *)0x100000000000)

enum { COUNT = 16, LENGTH = COUNT * PAGE, SHOWN = 32 };

static const char *device;
static struct ibv_context *context;
static struct ibv_pd *pd;

/* Local and remote ones, if the device takes them. */
static int rights;

/* The object that a call makes; its line is what is there, or errno. */
#define MAKES(name, object, call, there)                                       \
	do {                                                                   \
		errno = 0;                                                     \
		object = (call);                                               \
		verdict("%s\t%s", name, object ? there : name_of(errno));      \
	} while (0)
/* The result of a call that returns 0, or an error, and errno. */
#define ENDS(name, call)                                                       \
	do {                                                                   \
		int ended;                                                     \
									       \
		errno = 0;                                                     \
		ended = (call);                                                \
		verdict("%s\t%s, errno %s", name, name_of(ended), name_of(errno)); \
	} while (0)
/* The region that a call makes: what show() has to say, and its end. */
#define REGION(name, call, iova, at)                                           \
	do {                                                                   \
		struct ibv_mr *made;                                           \
									       \
		errno = 0;                                                     \
		made = (call);                                                 \
		show(name, made, iova, at);                                    \
		end(name, made);                                               \
	} while (0)

/* By the device, at the place `iova`, which is the memory at `at`. */
static const char *data(const struct ibv_mr *mr, uint64_t iova, char *at, bool remote)
{
	static unsigned char pattern;
	unsigned char bytes[SHOWN], got[SHOWN];
	int err;

	memset(bytes, ++pattern, sizeof(bytes));
	err = hca_write(device, remote ? mr->rkey : mr->lkey, iova, bytes, sizeof(bytes), remote);
	if (err)
		return name_of(err);
	if (memcmp(at, bytes, sizeof(bytes)) != 0)
		return "no data";
	err = hca_read(device, remote ? mr->rkey : mr->lkey, iova, got, sizeof(got), remote);
	if (err)
		return name_of(err);
	return memcmp(got, bytes, sizeof(got)) == 0 ? "data" : "other data";
}

/* A region as it is, with the words of its data. */
static void show(const char *name, struct ibv_mr *mr, uint64_t iova, char *at)
{
	int err = errno;

	if (!mr) {
		verdict("%s\t%s", name, name_of(err));
		return;
	}
	verdict("%s\t%s, address %#lx, length %#zx, handle %u, lkey %#x, rkey %#x, errno %s, by lkey %s, by rkey %s", name,
		mr->context == context ? "registered" : "another context", (long)mr->addr, mr->length, mr->handle, mr->lkey,
		mr->rkey, name_of(err), at ? data(mr, iova, at, false) : "-", at && mr->rkey ? data(mr, iova, at, true) : "-");
}

static void end(const char *name, struct ibv_mr *mr)
{
	char what[80];

	snprintf(what, sizeof(what), "%s: its end", name);
	if (mr)
		ENDS(what, ibv_dereg_mr(mr));
}

static void plain(char *memory)
{
	static const struct { uint64_t addr, length, iova; } places[] = {
		{ 0, LENGTH, 0 }, { 8, 64, 8 }, { 0, PAGE, 0x10000 }, { 8, 64, 8 + PAGE }, { 0, PAGE, ~0ul << 12 },
		{ PAGE - 1, 2, PAGE - 1 }, { 0, 1, 0 }, { 0, PAGE, 1 },
	};
	char name[64];

	for (size_t n = 0; n < sizeof(places) / sizeof(*places); n++) {
		char *at = memory + places[n].addr;

		snprintf(name, sizeof(name), "region at %#lx, iova %#lx", (long)places[n].addr, (long)places[n].iova);
		REGION(name, ibv_reg_mr_iova(pd, at, places[n].length, places[n].iova, rights), places[n].iova,
		       places[n].length >= SHOWN ? at : NULL);
	}
}

/* A queue pair, if the provider gives one. */
static struct ibv_qp *queue_pair(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return cq ? ibv_create_qp(pd, &attr) : NULL;
}

static void windows(char *memory)
{
	const int binds = IBV_ACCESS_MW_BIND;
	const struct { const char *name; enum ibv_mw_type type; int access; } rows[] = {
		{ "window: type 1", IBV_MW_TYPE_1, rights | binds },
		{ "window: type 1 without the right", IBV_MW_TYPE_1, rights },
		{ "window: type 1, zero-based", IBV_MW_TYPE_1, rights | binds | IBV_ACCESS_ZERO_BASED },
		{ "window: type 2", IBV_MW_TYPE_2, rights | binds },
	};
	struct ibv_qp *qp;

	MAKES("a queue pair", qp, queue_pair(), "is there");
	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++) {
		struct ibv_mr *mr;
		struct ibv_mw *mw;

		MAKES(rows[n].name, mw, ibv_alloc_mw(pd, rows[n].type), "allocated");
		if (!mw)
			continue;
		mr = ibv_reg_mr(pd, memory, PAGE, rows[n].access);
		if (mr && qp && rows[n].type == IBV_MW_TYPE_1) {
			struct ibv_mw_bind bind = {
				.bind_info = { .mr = mr, .addr = (uintptr_t)memory, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ },
			};

			ENDS("window, bound", ibv_bind_mw(qp, mw, &bind));
		}
		end("window's region", mr);
		ENDS("window's end", ibv_dealloc_mw(mw));
	}
}

/* A dma-buf of memory that this program sees at `*seen`; -1 if the kernel has none. */
static int dmabuf(char **seen)
{
	int control = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), file, made;
	struct udmabuf_create create = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = LENGTH };

	if (control < 0)
		return -1;
	file = memfd_create("a GPU's memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	must(file >= 0 && ftruncate(file, LENGTH) == 0 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	create.memfd = (uint32_t)file;
	made = ioctl(control, UDMABUF_CREATE, &create);
	*seen = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(*seen != MAP_FAILED && close(control) == 0 && close(file) == 0);
	return made;
}

static void dmabufs(void)
{
	const struct { uint64_t offset, length, iova; int access; } places[] = {
		{ 0, LENGTH, 0, rights }, { PAGE, PAGE, 0x20000, rights }, { 64, 128, 64, rights },
		{ 64, 128, 0x1000, rights }, { 0, 2 * LENGTH, 0, rights }, { 0, 0, 0, rights },
		{ 0, PAGE, 0, 0 }, { 0, PAGE, 0, IBV_ACCESS_REMOTE_WRITE }, { 0, PAGE, 0, IBV_ACCESS_ON_DEMAND },
	};
	char *seen, name[64];
	int file = dmabuf(&seen);

	if (file < 0) {
		verdict("dma-bufs\tthis kernel has no udmabuf");
		return;
	}
	for (size_t n = 0; n < sizeof(places) / sizeof(*places); n++) {
		snprintf(name, sizeof(name), "dma-buf, place %zu", n);
		REGION(name, ibv_reg_dmabuf_mr(pd, places[n].offset, places[n].length, places[n].iova, file, places[n].access),
		       places[n].iova,
		       made && places[n].length <= LENGTH && places[n].access & IBV_ACCESS_LOCAL_WRITE ? seen + places[n].offset : NULL);
	}
	errno = 0;
	verdict("dma-buf of no file\t%s", ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, 0) ? "registered" : name_of(errno));
	must(close(file) == 0);
}

static void other_memory(char *memory)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = PAGE };
	/* The first region of this domain has a handle that the null region may seem to have. */
	struct ibv_mr *first = ibv_reg_mr(pd, memory, PAGE, rights);
	struct ibv_dm *dm;

	REGION("null region", ibv_alloc_null_mr(pd), 0, NULL);
	show("a region beside it", first, (uintptr_t)memory, memory);
	ENDS("advice", first ? ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) : 0);
	end("a region beside it", first);
	MAKES("device memory", dm, ibv_alloc_dm(context, &attr), "allocated");
	if (!dm)
		return;
	REGION("device memory", ibv_reg_dm_mr(pd, dm, 0, PAGE, IBV_ACCESS_ZERO_BASED | rights), 0, NULL);
	ENDS("device memory: its end", ibv_free_dm(dm));
}

static void parent_domain(char *memory)
{
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_pd *parent;
	struct ibv_mr *mr;

	MAKES("a parent domain", parent, ibv_alloc_parent_domain(context, &attr), "allocated");
	if (!parent)
		return;
	errno = 0;
	mr = ibv_reg_mr(parent, memory, PAGE, rights);
	show("a region of the parent domain", mr, (uintptr_t)memory, memory);
	verdict("its domain\t%s", mr && mr->pd == parent ? "the parent" : "another");
	end("a region of the parent domain", mr);
	ENDS("the parent domain's end", ibv_dealloc_pd(parent));
}

static void imported(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, rights), *again;
	struct ibv_pd *shared;
	struct ibv_context *copy;
	int file = dup(context->cmd_fd);

	MAKES("an imported device", copy, ibv_import_device(file), "is there");
	if (!copy || !mr) {
		close(file);
		end("no import", mr);
		return;
	}
	MAKES("an imported domain", shared, ibv_import_pd(copy, pd->handle), "is there");
	if (shared) {
		MAKES("an imported region", again, ibv_import_mr(shared, mr->handle), "is there");
		if (again) {
			verdict("its fields\thandle %u, lkey %#x, rkey %#x, length %#zx", again->handle, again->lkey, again->rkey,
				again->length);
			ibv_unimport_mr(again);
		}
		ibv_unimport_pd(shared);
	}
	show("the region after that", mr, (uintptr_t)memory, memory);
	end("the region after that", mr);
	ENDS("the imported device's end", ibv_close_device(copy));
}

static void by_handle(char *memory)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int) = of_libibverbs("ibv_reg_mr", "IBVERBS_1.1");
	int (*dereg)(struct ibv_mr *) = of_libibverbs("ibv_dereg_mr", "IBVERBS_1.1");

	for (int way = 0; way < 4; way++) {
		struct ibv_mr *mr;

		errno = 0;
		mr = way & 1 ? reg(pd, memory, PAGE, rights) : ibv_reg_mr(pd, memory, PAGE, rights);
		show(way & 1 ? "registered by handle" : "registered", mr, (uintptr_t)memory, memory);
		if (mr)
			verdict("its end%s\t%s", way & 2 ? " by handle" : "", name_of(way & 2 ? dereg(mr) : ibv_dereg_mr(mr)));
	}
}

/* The providers' queries of a region's object, where their libraries are there. */
static void providers_own(char *memory)
{
	static unsigned char answer[256];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, rights);
	void *efa = dlopen("libefa.so.1", RTLD_NOW);
	int (*query_mr)(struct ibv_mr *, void *, uint32_t) = efa ? dlsym(efa, "efadv_query_mr") : NULL;

	if (mr && query_mr) {
		int err = query_mr(mr, answer, 16);

		verdict("efadv_query_mr\t%s, %#x", name_of(err), *(unsigned int *)answer);
	}
	end("a region that was queried", mr);
}

static void full(char *memory)
{
	enum { KEYS = 6 };
	struct ibv_mr *regions[KEYS + 2];
	struct ibv_device_attr most;
	char words[64];
	int count = 0;

	must(ibv_query_device(context, &most) == 0);
	verdict("the device's limits\t%d regions, %#lx bytes", most.max_mr, (long)most.max_mr_size);

	must(hca_run(device, "set", "max_mr 6") == 0);
	errno = 0;
	while (count < KEYS + 2 && (regions[count] = ibv_reg_mr(pd, memory, PAGE, rights)))
		count++;
	verdict("with 6 keys\t%d regions, then %s", count, name_of(errno));
	while (count)
		end("of 6", regions[--count]);
	snprintf(words, sizeof(words), "max_mr %d", most.max_mr);
	must(hca_run(device, "set", words) == 0 && hca_run(device, "set", "max_mr_size 8192") == 0);
	REGION("at most 8192 bytes", ibv_reg_mr(pd, memory, LENGTH, rights), (uintptr_t)memory, memory);
	snprintf(words, sizeof(words), "max_mr_size %#llx", (unsigned long long)most.max_mr_size);
	must(hca_run(device, "set", words) == 0);
}

static void refused(char *memory)
{
	static const int errors[] = { EIO, ENOMEM, EFAULT, EINVAL, EPERM, EAGAIN, ENOSPC, ETIMEDOUT, EBUSY, EOPNOTSUPP };
	char words[64];

	for (size_t n = 0; n < sizeof(errors) / sizeof(*errors); n++) {
		struct ibv_mr *mr;
		int err;

		snprintf(words, sizeof(words), "reg_mr %d 1", errors[n]);
		must(hca_run(device, "fail", words) == 0);
		errno = 0;
		mr = ibv_reg_mr(pd, memory, PAGE, rights);
		verdict("refused with %s\t%s", name_of(errors[n]), mr ? "registered" : name_of(errno));
		if (mr)
			must(ibv_dereg_mr(mr) == 0);
		must(hca_run(device, "fail", "reg_mr 1 0") == 0);
		mr = ibv_reg_mr(pd, memory, PAGE, rights);
		must(mr);
		snprintf(words, sizeof(words), "dereg_mr %d 1", errors[n]);
		must(hca_run(device, "fail", words) == 0);
		errno = 0;
		err = ibv_dereg_mr(mr);
		verdict("its end refused with %s\t%s, errno %s", name_of(errors[n]), name_of(err), name_of(errno));
		must(hca_run(device, "fail", "dereg_mr 1 0") == 0);
		if (err)
			end("once more", mr);
	}
}

static void unplugged(char *memory)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, rights), *gone;

	must(mr);
	errno = hca_run(device, "remove", "");
	verdict("unplugged\t%s", name_of(errno));
	MAKES("a region of a device that is gone", gone, ibv_reg_mr(pd, memory + PAGE, PAGE, rights), "registered");
	/* The cache hears of it in a moment. */
	for (int tries = 0; tries < 50000 && (gone = ibv_reg_mr(pd, memory, PAGE, rights)); tries++) {
		ibv_dereg_mr(gone);
		usleep(100);
	}
	verdict("a region as one before\t%s", gone ? "registered" : name_of(errno));
	ENDS("its change", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	end("a region of a device that is gone", mr);
	ENDS("its domain's end", ibv_dealloc_pd(pd));
	ENDS("its end", ibv_close_device(context));
	must(hca_run(device, "add", "") == 0);
	MAKES("plugged in", context, open_named(device), "opened");
	must(context);
	pd = ibv_alloc_pd(context);
	must(pd);
	REGION("a region of the device that is back", ibv_reg_mr(pd, memory, PAGE, rights), (uintptr_t)memory, memory);
}

int main(void)
{
	char *memory = PLACE;

	device = getenv("CHECK_DEVICE");
	must(device && hca_has(device));
	fresh_at(memory, LENGTH);
	memset(memory, 0x11, LENGTH);
	pd = domain_of_device();
	context = pd->context;
	rights = taken_rights(pd, memory);
	plain(memory);
	windows(memory);
	dmabufs();
	other_memory(memory);
	parent_domain(memory);
	imported(memory);
	by_handle(memory);
	providers_own(memory);
	refused(memory);
	full(memory);
	unplugged(memory);
	return 0;
}
