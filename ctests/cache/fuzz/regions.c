/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Regions, and the data that the device sees by them. After each registration the device reads the
 * memory and writes to it, and the program compares: a region of other pages than the program's is
 * stale.
 */
#include "fuzz.h"
#include <sys/syscall.h>
#include "../../lib/device.h"
#include "../../lib/stub_device.h"

static struct ibv_pd *domains[2];

static struct {
	struct ibv_mr *mr;
	int access;
	bool relaxed;
} held[REGIONS];

/* The arguments of a registration. */
struct request {
	char *at;
	size_t length;
	int access, domain;
};
static bool registered[ALL_PAGES];

#define STALE " STALE: the program's memory has another content"

void regions_open(void)
{
	const char *why = stub_open(STUB_PIN);

	if (why) {
		printf("%s\n", why);
		exit(77);
	}
	domains[0] = stub_pd();
	domains[1] = stub_other_pd();
}

static bool has_library(void) { return rdmamr_get_stats != NULL; }

static struct ibv_mr *make(struct ibv_pd *pd, void *at, size_t length, int access, bool relaxed)
{
	if (!has_library())
		return stub_register(pd, at, length, access);
	if (relaxed)
		return ibv_reg_mr_relaxed(pd, at, length, access);
	/* The parentheses suppress the macro of verbs.h, which would choose the call. */
	return (ibv_reg_mr)(pd, at, length, access);
}

static int unmake(struct ibv_mr *mr, bool relaxed)
{
	if (!has_library())
		return stub_deregister(mr);
	return relaxed ? ibv_dereg_mr_relaxed(mr) : ibv_dereg_mr(mr);
}

/* The device's data: the first pages and the last one. With `compare`, the program's too. */
static void device_reads(const struct ibv_mr *mr, bool compare)
{
	static unsigned char bytes[PAGE];
	uint64_t sum = 0;
	bool stale = false;

	for (size_t piece = 0; piece < 8 && piece * PAGE < mr->length; piece++) {
		size_t at = piece < 7 ? piece * PAGE : mr->length - PAGE;
		size_t size = mr->length - at < PAGE ? mr->length - at : PAGE;
		int err = stub_get(mr, at, bytes, size), fault;
		uint64_t seen = look_bytes(bytes, size, &fault);
		uint64_t own = look_bytes((char *)mr->addr + at, size, &fault);

		if (err) {
			note(" device-get-error %d%s", err, err < 0 ? strerrorname_np(errno) : "");
			return;
		}
		stale |= compare && !fault && own != seen;
		sum = sum * 31 + seen;
	}
	note(" device reads %016llx%s", (unsigned long long)sum, stale ? STALE : "");
}

/* The device writes 8 bytes to each of the first pages. With `compare` the program must see them. */
static void device_writes(const struct ibv_mr *mr, bool compare)
{
	uint64_t value = 0xd000000000000000 | (uint64_t)step_number << 16;
	bool stale = false;

	for (size_t at = 0, n = 0; at + 8 <= mr->length && n < 8; at += PAGE, n++) {
		uint64_t written = value + n, seen;
		int err = stub_put(mr, at, &written, 8), fault;

		if (err) {
			note(" device-put-error %d%s", err, err < 0 ? strerrorname_np(errno) : "");
			return;
		}
		seen = look_bytes((char *)mr->addr + at, 8, &fault);
		stale |= compare && !fault && seen != look_bytes(&written, 8, &fault);
	}
	note(" device writes%s", stale ? STALE : "");
}

static bool has_page(const void *at, size_t length, int page)
{
	uintptr_t start = (uintptr_t)at, end = start + length < start ? UINTPTR_MAX : start + length;

	return (uintptr_t)page_at(page) + PAGE > start && (uintptr_t)page_at(page) < end;
}

static void mark(const void *at, size_t length, bool value)
{
	for (int page = 0; page < ALL_PAGES; page++)
		if (has_page(at, length, page))
			registered[page] = value;
}

bool was_registered(const void *at, size_t length)
{
	for (int page = 0; page < ALL_PAGES; page++)
		if (registered[page] && has_page(at, length, page))
			return true;
	return false;
}

void is_new(const void *at, size_t length) { mark(at, length, false); }

static void end_region(int n)
{
	int err = unmake(held[n].mr, held[n].relaxed);

	note(" dereg %d: %s", n, err ? strerrorname_np(err) : "0");
	held[n].mr = NULL;
}

static bool is_mapped(int page)
{
	unsigned char there;

	return page < ALL_PAGES && page != PLACE_PAGES && syscall(SYS_mincore, page_at(page), PAGE, &there) == 0;
}

/* From a page on the first mapped pages, at most that many. The same pages if none is mapped. */
static void find_mapped(int *first, int *count)
{
	int page = *first, more = 1;

	while (page < ALL_PAGES && !is_mapped(page))
		page++;
	if (page == ALL_PAGES)
		return;
	while (more < *count && is_mapped(page + more))
		more++;
	*first = page;
	*count = more;
}

/*
 * RDMAMR_CACHE serves a range from its second registration on, and gives one up for a while if its
 * region was never reused. So a step registers it again before, and then the step's region is the
 * cache's, or after, and then the cache has an idle one. Steps that do neither are plain.
 */
enum { NEVER_AGAIN, BEFORE, BEHIND, AGAIN };

static void register_again(int times, struct ibv_pd *pd, void *at, size_t length, int access)
{
	for (int n = 0; n < times; n++) {
		struct ibv_mr *mr = make(pd, at, length, access, false);

		if (!mr || unmake(mr, false)) {
			note(" again: failed");
			return;
		}
	}
}

/* The memory of the step, whole pages or not, or a recent request: a repeated one can be a hit. */
static struct request request_of(const struct step *step)
{
	static const int rights[] = {
		LOCAL_AND_REMOTE, LOCAL_AND_REMOTE, LOCAL_AND_REMOTE, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_LOCAL_WRITE,
		LOCAL_AND_REMOTE, IBV_ACCESS_REMOTE_WRITE,
	};
	static struct request requests[4];
	struct request *lately = &requests[step->word[1] % 4];
	int first = step->first, count = step->count;

	if (step->word[5] % 100 < 55 && lately->at)
		return *lately;
	if (step->word[7] / PAGE % 8)
		find_mapped(&first, &count);
	*lately = (struct request){
		.at = page_at(first),
		.length = (size_t)count * PAGE,
		.access = rights[step->word[2] % (sizeof(rights) / sizeof(*rights))],
		.domain = step->word[3] % 8 == 0,
	};
	if (step->word[6] % 4 == 0) {
		size_t skip = step->word[6] / 4 % PAGE;

		lately->at += skip;
		lately->length -= skip;
		lately->length -= step->word[7] % PAGE % lately->length;
	}
	return *lately;
}

void register_step(const struct step *step)
{
	struct request request = request_of(step);
	size_t length = request.length;
	char *at = request.at;
	int n = (int)(step->word[0] % REGIONS), access = request.access;
	struct ibv_pd *pd = domains[request.domain];
	bool relaxed = step->word[4] % 3 == 0, briefly = step->word[4] / 3 % 2;
	int again = relaxed ? NEVER_AGAIN : (int)(step->word[4] / 6 % AGAIN);

	note("%d: %s(", n, relaxed ? "ibv_reg_mr_relaxed" : "ibv_reg_mr");
	note_value((long)at);
	note(", %#zx, %#x, domain %d)", length, access, request.domain);
	if (held[n].mr)
		end_region(n);
	mark(at, length, true);
	if (again == BEFORE)
		register_again(1, pd, at, length, access);
	held[n].mr = make(pd, at, length, access, relaxed);
	if (!held[n].mr) {
		note_result(-1);
		return;
	}
	held[n].relaxed = relaxed;
	held[n].access = access;
	note(" = 0%s", held[n].mr->addr == at && held[n].mr->length == length && held[n].mr->pd == pd ?
	     "" : ", another region");
	device_reads(held[n].mr, true);
	if (access & IBV_ACCESS_LOCAL_WRITE)
		device_writes(held[n].mr, true);
	if (again == BEHIND)
		register_again(3, pd, at, length, access);
	if (briefly)
		end_region(n);
}

void deregister_step(const struct step *step)
{
	int n = (int)(step->word[0] % REGIONS);

	note("ibv_dereg_mr(%d)", n);
	if (held[n].mr)
		end_region(n);
}

/* By a region that is held: its pages stay those of its registration, whatever has changed since. */
void device_step(const struct step *step)
{
	int n = (int)(step->word[0] % REGIONS);

	note("device(%d)", n);
	if (!held[n].mr)
		return;
	device_reads(held[n].mr, false);
	if (held[n].access & IBV_ACCESS_LOCAL_WRITE && step->word[1] % 2)
		device_writes(held[n].mr, false);
}

void regions_close(void)
{
	struct rdmamr_stats now = stats();

	for (int n = 0; n < REGIONS; n++) {
		note("at the end:");
		if (held[n].mr)
			end_region(n);
		note_end();
	}
	/* Not compared: a comment. */
	note("# hits %llu invalidated %llu", (unsigned long long)now.hits,
	     (unsigned long long)(now.flushed_hook + now.flushed_event));
	note_end();
}
