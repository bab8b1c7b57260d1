/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program's calls of the library, for the sweep of faults (sweep.py): one system call of the
 * library fails somewhere in it. Prints each call that failed and its errno, each wrong result, and
 * at the end the process's resources: descriptors, mappings, pinned memory, heap. A call that
 * failed is made once more, and must then succeed.
 *
 * Usage: faults_scenario calls|fabric. The device is CHECK_DEVICE, or the stand-in, whose pins are real.
 */
#include <limits.h>
#include <malloc.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include "../../lib/fabric.h"
#include "../../lib/observe.h"
#include "../../lib/stub_device.h"
#include "../../lib/verdict.h"

enum { ROUNDS = 2, PLACES = 16 };

static struct pair pair;
static struct ibv_pd *pd;
static bool real;
static unsigned char source[64];
static struct ibv_mr *source_mr;
static char *place;

#define wrong(...) (printf("wrong " __VA_ARGS__), putchar('\n'))

/* Makes a call, and once more if it fails. */
#define attempt(name, call)                                            \
	({                                                             \
		__auto_type result = (errno = 0, (call));              \
		if ((long)result == 0 || (long)result == -1) {         \
			printf("fails %s %s\n", name, name_of(errno)); \
			result = (call);                               \
			if ((long)result == 0 || (long)result == -1)   \
				wrong("%s fails again: %s", name, name_of(errno)); \
		}                                                      \
		result;                                                \
	})
/* The same for a call that returns 0, or an errno, or -1 and sets errno. */
#define succeed(name, call) attempt(name, ({ int err = (call); if (err > 0) errno = err; err < 0 ? 0 : !err; }))

/* Whether the program sees the device's writes. */
static bool sees_write(const struct ibv_mr *mr)
{
	static unsigned char value;
	volatile unsigned char *memory = mr->addr;

	if (!real)
		return stub_lands(mr);
	source[0] = ++value;
	*memory = (unsigned char)~value;
	return pair_write(&pair, source_mr, source, 1, (uintptr_t)mr->addr, mr->rkey) == IBV_WC_SUCCESS &&
	       pair_read(&pair, source_mr, source + 8, 1, (uintptr_t)mr->addr, mr->rkey) == IBV_WC_SUCCESS && *memory == value;
}

static struct ibv_mr *plain(struct ibv_pd *domain, void *at, size_t length, int access)
{
	return (ibv_reg_mr)(domain, at, length, access);
}

static void once(bool is_plain, const char *what, char *at, size_t length)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int) = is_plain ? plain : ibv_reg_mr_relaxed;
	struct ibv_mr *mr = attempt("register", reg(pd, at, length, LOCAL_AND_REMOTE));

	if (!mr)
		return;
	if (!sees_write(mr))
		wrong("a stale region after %s", what);
	succeed("deregister", is_plain ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr));
}

/* Registers by both calls, twice each, and checks where the device writes. */
static void registers(const char *what, char *at, size_t length)
{
	for (int n = 0; n < 4; n++)
		once(n % 2, what, at, length);
}

static char *fresh(size_t pages_count)
{
	return attempt("mmap", mmap(NULL, pages_count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void changes(void)
{
	char *at = place, *moved;
	int id;

	registers("nothing", at, 2 * PAGE);
	raw_remap(at, PAGE);
	registers("a raw munmap", at, 2 * PAGE);
	succeed("munmap", munmap(at, PAGE));
	attempt("mmap", mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	registers("munmap", at, 2 * PAGE);
	succeed("madvise", madvise(at, PAGE, MADV_DONTNEED));
	registers("madvise", at, 2 * PAGE);
	succeed("mprotect", mprotect(at, PAGE, PROT_READ));
	succeed("mprotect", mprotect(at, PAGE, PROT_READ | PROT_WRITE));
	registers("mprotect", at, 2 * PAGE);
	moved = fresh(4);
	registers("fresh memory", moved, 2 * PAGE);
	moved = attempt("mremap", mremap(moved, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE));
	registers("mremap", moved, 8 * PAGE);
	succeed("munmap", munmap(moved, 8 * PAGE));
	id = shmget(IPC_PRIVATE, 2 * PAGE, 0600);
	must(id >= 0);
	moved = attempt("shmat", (char *)shmat(id, NULL, 0));
	must(shmctl(id, IPC_RMID, NULL) == 0);
	registers("shmat", moved, 2 * PAGE);
	succeed("shmdt", shmdt(moved));
	/* Untouched, and large enough for RDMAMR_PREFAULT. */
	moved = fresh(2048);
	registers("large memory", moved, 2048 * PAGE);
	succeed("munmap", munmap(moved, 2048 * PAGE));
}

/* libibverbs' answers: EFAULT for unmapped memory, EINVAL for rights that do not fit. */
static void refusals(void)
{
	char *const nowhere = (char *)(uintptr_t)0x1000;
	const struct { struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int); char *at; int access, other; } rows[] = {
		{ plain, nowhere, LOCAL_AND_REMOTE, EFAULT }, { ibv_reg_mr_relaxed, nowhere, LOCAL_AND_REMOTE, EFAULT },
		{ plain, place, IBV_ACCESS_REMOTE_WRITE, EINVAL },
	};

	for (size_t n = 0; n < sizeof(rows) / sizeof(*rows); n++) {
		struct ibv_mr *mr = (errno = 0, rows[n].reg(pd, rows[n].at, PAGE, rows[n].access));

		if (mr || (errno != EINVAL && errno != rows[n].other))
			printf("fails refused %s\n", mr ? "0" : name_of(errno));
		(void)rdmamr_last_reason();
	}
}

static void *other_thread(void *argument)
{
	registers("another thread's start", place + 8 * PAGE, PAGE);
	return argument;
}

static void child(void)
{
	pid_t pid = must_fork();
	int status;

	if (!pid) {
		struct ibv_mr *mr = real ? NULL : plain(pd, place + 4 * PAGE, PAGE, LOCAL_AND_REMOTE);

		if (mr)
			ibv_dereg_mr(mr);
		munmap(place + 8 * PAGE, PAGE);
		_exit(0);
	}
	status = child_status(pid);
	if (status)
		wrong("a child ends with status %d", status);
	registers("fork", place, 2 * PAGE);
}

static void calls(void)
{
	changes();
	refusals();
	/* RDMAMR_CACHE serves the second by a region that it makes, and the third by that region. */
	for (int n = 0; n < 3; n++)
		once(true, "two plain calls", place, PAGE);
	child();
	in_thread(other_thread, NULL);
	raw_remap(place + 8 * PAGE, PAGE);
	registers("a raw munmap beside threads", place + 8 * PAGE, PAGE);
	succeed("flush", ibv_flush_relaxed_mr(pd));
}

static void fabric(void)
{
	struct rdmamr_domain_attr attr = { .size = sizeof attr, .api_version = FI_VERSION(1, 17),
					   .mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED };
	struct fi_eq_attr eq_attr = { .flags = FI_WRITE, .wait_obj = FI_WAIT_FD };
	struct fid_domain *domain = NULL;
	struct fid_mr *mr = NULL;
	struct fid_eq *eq = NULL;
	struct fi_eq_entry entry = { 0 };
	uint32_t event;

#define fabric_call(name, call) succeed(name, ({ int ret = (call); ret < 0 ? -ret : ret; }))
	if (fabric_call("domain", rdmamr_domain_open(pd, &attr, &domain, NULL)) != 1)
		return;
	if (fabric_call("register", fi_mr_reg(domain, place, PAGE, FI_REMOTE_READ, 0, 1000, 0, &mr, NULL)) == 1)
		fabric_call("close", fi_close(&mr->fid));
	if (fabric_call("queue", rdmamr_eq_open(FI_VERSION(1, 17), &eq_attr, &eq, NULL)) == 1) {
		fabric_call("bind", fi_domain_bind(domain, &eq->fid, FI_REG_MR));
		mr = NULL;
		if (fabric_call("register", fi_mr_reg(domain, place, PAGE, FI_REMOTE_READ, 0, 1, 0, &mr, NULL)) == 1) {
			struct fi_eq_err_entry err = { 0 };
			ssize_t got;

			do
				got = fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0);
			while (got == -FI_EINTR);
			if (got == -FI_EAVAIL && fi_eq_readerr(eq, &err, 0) > 0)
				printf("fails event %s\n", name_of(err.err));
			else if (got != sizeof entry)
				printf("fails sread %s\n", name_of((int)-got));
			fabric_call("close", fi_close(&mr->fid));
		}
		if (fi_eq_write(eq, FI_SHUTDOWN, &entry, sizeof entry, 0) != sizeof entry)
			printf("fails write EIO\n");
	}
	fabric_call("close", fi_close(&domain->fid));
	if (eq)
		fabric_call("close", fi_close(&eq->fid));
}

/* The least of several counts: the library's cleaner has a file open now and then. */
static int descriptors(void)
{
	int fewest = INT_MAX;

	for (int looks = 0; looks < 10; looks++) {
		int count = entries("/proc/self/fd");

		fewest = count < fewest ? count : fewest;
		usleep(1000);
	}
	return fewest;
}

int main(int argc, char **argv)
{
	bool is_fabric = argc > 1 && !strcmp(argv[1], "fabric");
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	alarm(DEADLOCK);
	real = getenv("CHECK_DEVICE") && *getenv("CHECK_DEVICE");
	if (real) {
		pair_open(&pair);
		pd = pair.pd;
		source_mr = attempt("register", plain(pd, source, sizeof(source), LOCAL_AND_REMOTE));
		must(source_mr);
	} else {
		const char *why = stub_open(STUB_PIN);

		if (why) {
			printf("skip %s\n", why);
			return 0;
		}
		pd = stub_pd();
	}
	place = fresh(PLACES);
	memset(place, 1, PLACES * PAGE);
	for (int n = 0; n < ROUNDS; n++)
		is_fabric ? fabric() : calls();
	succeed("flush", ibv_flush_relaxed_mr(pd));
	if (!real && stub_registered() != stub_deregistered())
		wrong("%ld regions are left", stub_registered() - stub_deregistered());
	printf("end ");
	if (access("/proc/self/status", R_OK) == 0)
		/* At 0x2d71... (FAR_AWAY) the library maps stacks of its threads. */
		printf("descriptors=%d own=%d pinned=%ld heap=%zu ", descriptors(), maps_from("2d71"), pinned(), mallinfo2().uordblks);
	printf("hits=%llu\n", (unsigned long long)stats().hits);
	return 0;
}
