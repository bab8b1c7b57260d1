/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "stub_rows.h"
#include <sys/syscall.h>

char *idle_page;
int row_rights = LOCAL_AND_REMOTE;

bool by_plain_calls(void)
{
	static int plain = -1;

	if (plain < 0)
		plain = getenv("CHECK_CALLS") != NULL;
	return plain;
}

struct ibv_mr *reg(void *at, size_t length)
{
	struct ibv_mr *mr = by_plain_calls() ? ibv_reg_mr(stub_pd(), at, length, row_rights) :
					       ibv_reg_mr_relaxed(stub_pd(), at, length, row_rights);

	must(mr);
	return mr;
}

void dereg(struct ibv_mr *mr) { must((by_plain_calls() ? ibv_dereg_mr(mr) : ibv_dereg_mr_relaxed(mr)) == 0); }

bool arrives(void *memory, size_t length)
{
	struct ibv_mr *mr = reg(memory, length);
	bool good = row->flags & NO_PINS || row_rights != LOCAL_AND_REMOTE || stub_lands(mr);

	dereg(mr);
	return good;
}

static void once_in(void *memory, size_t length)
{
	if (!arrives(memory, length))
		ok(false, "data lands in the current page");
}

void once(void *page) { once_in(page, PAGE); }

int hits_in(void *memory, size_t length, int times)
{
	int count = 0;

	for (; times; times--) {
		long before = stub_registered();

		once_in(memory, length);
		count += stub_registered() == before;
	}
	return count;
}

int hits(void *page, int times) { return hits_in(page, PAGE, times); }

void leave_idle_in(void *memory, size_t length)
{
	/* The cache gives a range of plain calls up for a few registrations. */
	for (int tries = 0; !hits_in(memory, length, 1); tries++) {
		if (tries == 100)
			skip_all("the cache keeps no region: userfaultfd is refused here");
		usleep(tries < 4 ? 0 : 20000);
	}
}

void leave_idle(void *page) { leave_idle_in(page, PAGE); }

char *idle(void)
{
	char *page = new_place(PAGE);

	fresh_at(page, PAGE);
	leave_idle(page);
	return page;
}

void served(void *page, enum served wanted, const char *when)
{
	static const char *const words[] = { "", "is a hit", "is of a new region, and the next a hit", "is of a new region each time" };
	long before = stub_deregistered();

	switch (wanted) {
	case HIT:
		ok(hits(page, 1) == 1, "%s: a registration %s", when, words[wanted]);
		break;
	case FRESH:
		ok(!hits(page, 1) && comes(hits(page, 1)), "%s: a registration %s", when, words[wanted]);
		break;
	case PLAIN:
		is(hits(page, 6), 0, "%s: a registration %s", when, words[wanted]);
		ok(comes(stub_deregistered() - before >= 6), "%s: which ends", when);
		break;
	default:
		break;
	}
}

static _Atomic bool held, waits;

/* The reader waits by this call, and announces an event before it reads it. */
static void hold(long number, const long argument[6])
{
	(void)argument;
	while (held && number == SYS_pselect6) {
		waits = true;
		stub_syscall(SYS_sched_yield);
	}
}

/* Whether the reader waits in the kernel: it has handled every event. */
static bool rests(void)
{
	char path[64], call[16] = "";
	pid_t reader;
	FILE *file;

	/* While a reader starts its successor there are two. */
	if (threads_named("rdmamr-uffd", &reader, 1) != 1)
		return false;
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", reader);
	if (!(file = fopen(path, "re")))
		return false;
	if (!fgets(call, sizeof(call), file))
		call[0] = '\0';
	fclose(file);
	return atoi(call) == SYS_pselect6;
}

void hold_reader(void)
{
	static char *page;

	if (page)
		leave_idle(page);
	else
		page = idle();
	/* If it were about to wait, it would be held before it reads the event below, and so would this thread. */
	must(comes(rests()));
	stub_before = hold;
	waits = false;
	held = true;
	/* It reads this event, and goes back to wait. */
	raw_remap(page, PAGE);
	must(comes(waits));
	/* The cache applies it at a registration. */
	leave_idle(page);
}

void release_reader(void) { held = false; }

static _Atomic bool unmapped;

static void *unmaps(void *page)
{
	must(raw_munmap(page, PAGE) == 0);
	unmapped = true;
	return NULL;
}

bool lands_in_race(char *page, thread_maker *make)
{
	bool first, next;
	pthread_t thread;

	unmapped = false;
	must(make(&thread, NULL, unmaps, page) == 0);
	while (!raw_map_at(page, PAGE))
		must(errno == EEXIST);
	first = arrives(page, PAGE);
	next = arrives(page, PAGE);
	release_reader();
	/* Only the C library that has made the thread could join it. */
	must(comes(unmapped) && comes(rests()));
	return arrives(page, PAGE) && first && next;
}

void race(char *page)
{
	ok(lands_in_race(page, pthread_create),
	   "data lands in the current page, before the event is read and after");
}

long in_device(void) { return stub_registered() - stub_deregistered(); }

void none_is_left(void)
{
	ok(comes(stub_deregistered() == stub_registered()), "no region is left of %ld", stub_registered());
}

void on_stub(void)
{
	const char *why = stub_open(row->flags & NO_PINS ? STUB_NOTHING : STUB_PIN);

	if (why)
		skip_all(why);
	if (row->then)
		idle_page = idle();
	row->act();
	served(idle_page, row->then, "after it");
}
