/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registrations that complete later: many by threads, which write events of their own, while others read the
 * queue, and each event is compared with its call; then one under way, one closed then, data. queue.c has the
 * events of one registration.
 *
 * Usage: async [stress]: only the threads, three times over, for a build with -fsanitize=address or thread.
 * Neither sees inside the library: all data that threads share is atomic.
 */
#include "object.h"
#include <rdmamr/verbs.h>
#include <sched.h>
#include <stdatomic.h>

#pragma weak ibv_flush_relaxed_mr

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer does not see how the library synchronises its threads, and would report its own memory. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "called_from_lib:librdmamr"; }
#endif

enum { THREADS = 4, READERS = 4, LARGE = 64 << 20, MANY = 24 };
enum { WRITTEN = 1000 }; /* an event of the program */

static char *large, *beyond; /* much memory, and unmapped memory */

static long now_ms(void) { return (long)(seconds_now() * 1000); }

static void source_is_left(void)
{
	gives(1, stats().live);
	gives(1, kernel_regions(pair.context));
}

static void close_both(struct fid_domain *domain, struct fid_eq *queue)
{
	gives(-FI_EAGAIN, take(queue, 0));
	gives(0, fi_close(&domain->fid));
	gives(0, fi_close(&queue->fid));
	/* A domain with the cache keeps some. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	source_is_left();
}

/* Many registrations. */

/* The fate of a call, by its number. */
enum fate { KEPT, CLOSED_AFTER, CLOSED_UNDER_WAY, FAILS, FAILS_CLOSED, FATES };

struct call {
	struct fid_mr *mr;
	void *memory;
	_Atomic int events, written; /* how often they were read */
	_Atomic long closed; /* the tick at which fi_close() had returned */
};

static struct {
	struct fid_domain *domain;
	struct fid_eq *queue;
	struct call *calls;
	long each, count;
	_Atomic bool over, late;
	_Atomic long tick, wrong;
	const char *_Atomic what; /* the first that was wrong */
} many;

/* What the threads find wrong is counted. */
#define EXPECT(...) ((void)(!(__VA_ARGS__) && !many.wrong++ && (many.what = #__VA_ARGS__)))

static enum fate fate_of(long number) { return (enum fate)(number % FATES); }
static bool closed_early(long number) { return fate_of(number) == CLOSED_UNDER_WAY || fate_of(number) == FAILS_CLOSED; }
static uint64_t key_of(long number) { return 0x100000000 + (uint64_t)number; }

static void close_call(struct call *call)
{
	EXPECT(fi_close(&call->mr->fid) == 0);
	atomic_store(&call->closed, ++many.tick);
	free(call->memory);
}

static void *registers(void *argument)
{
	long first = (long)argument * many.each;
	unsigned int seed = (unsigned int)first + 1;

	for (long number = first; number < first + many.each; number++) {
		struct call *call = &many.calls[number];
		bool fails = fate_of(number) == FAILS || fate_of(number) == FAILS_CLOSED;
		size_t length = 1 + (size_t)rand_r(&seed) % (2 * PAGE);
		struct fi_eq_entry own = { .context = call, .data = (uint64_t)number };

		call->memory = malloc(length);
		must(call->memory && fi_mr_reg(many.domain, fails ? beyond : call->memory, length, FI_ALL, 0, key_of(number), 0,
					       &call->mr, call) == 0);
		must(fi_eq_write(many.queue, WRITTEN, &own, sizeof(own), 0) == sizeof(own));
		if (fate_of(number) == CLOSED_AFTER)
			/* One that never comes is waited for once. */
			for (long start = now_ms(); !call->events && !many.late; sched_yield())
				many.late = now_ms() > start + PATIENCE;
		if (closed_early(number) || fate_of(number) == CLOSED_AFTER)
			close_call(call);
	}
	return NULL;
}

/* Compares an event, or an error if `failed`, with its call. */
static void seen(struct call *call, const struct fi_eq_entry *entry, const struct fi_eq_err_entry *failed, long tick)
{
	const long number = call - many.calls;
	const enum fate fate = fate_of(number);
	struct fid_mr *mr = __atomic_load_n(&call->mr, __ATOMIC_ACQUIRE);

	EXPECT(!call->closed || call->closed > tick);
	EXPECT(!failed == (fate != FAILS && fate != FAILS_CLOSED));
	if (failed)
		EXPECT(failed->err == FI_EFAULT && failed->prov_errno == EFAULT && strstr(failed->err_data, "EFAULT"));
	EXPECT(mr && entry->fid == &mr->fid);
	/* These regions stay open until this event is counted. */
	if (mr && (fate == KEPT || fate == CLOSED_AFTER))
		EXPECT(fi_mr_key(mr) == key_of(number) && fi_mr_desc(mr) && mr->fid.context == call);
	else if (mr && fate == FAILS)
		EXPECT(fi_mr_key(mr) == FI_KEY_NOTAVAIL && !fi_mr_desc(mr));
	atomic_fetch_add(&call->events, 1);
}

/* By fi_eq_sread, or by fi_eq_read if there is no argument. */
static void *reads(void *waits)
{
	for (;;) {
		bool over = many.over, failed;
		long tick = many.tick;
		struct fi_eq_entry entry = { 0 };
		/* Of its own: the queue's words are those of the last error that any thread has read. */
		char words[1000];
		struct fi_eq_err_entry error = { .err_data = words, .err_data_size = sizeof(words) };
		uint32_t event = FI_MR_COMPLETE;
		ssize_t got = waits ? fi_eq_sread(many.queue, &event, &entry, sizeof(entry), 20, 0) :
				      fi_eq_read(many.queue, &event, &entry, sizeof(entry), 0);
		struct call *call;

		failed = got == -FI_EAVAIL;
		if (failed) {
			got = fi_eq_readerr(many.queue, &error, 0);
			entry = (struct fi_eq_entry){ .fid = error.fid, .context = error.context };
		}
		/* An error that is closed, or read by another thread, between the two calls is gone. */
		if (got == -FI_EAGAIN) {
			if (over)
				return NULL;
			usleep(100);
			continue;
		}
		call = entry.context;
		EXPECT(got == (failed ? (ssize_t)sizeof(error) : (ssize_t)sizeof(entry)));
		EXPECT(event == FI_MR_COMPLETE || event == WRITTEN);
		if (call < many.calls || call >= many.calls + many.count)
			EXPECT(!"the context is a call's");
		else if (event == WRITTEN)
			EXPECT(!entry.fid && entry.data == (uint64_t)(call - many.calls) && !call->written++);
		else
			seen(call, &entry, failed ? &error : NULL, tick);
	}
}

static long missing(void)
{
	long sum = 0;

	for (long n = 0; n < many.count; n++)
		sum += !closed_early(n) && !many.calls[n].events;
	return sum;
}

static void threads(long each)
{
	pthread_t threads[THREADS], readers[READERS];
	long unseen = 0;

	memset(&many, 0, sizeof(many));
	many.each = each;
	many.count = each * THREADS;
	many.calls = calloc((size_t)many.count, sizeof(*many.calls));
	must(many.calls);
	many.queue = queue_with(FI_WAIT_FD, FI_WRITE);
	many.domain = bound_to(many.queue, pair.pd, &kinds[OFFSETS]);
	for (long n = 0; n < READERS; n++)
		readers[n] = must_start(reads, (void *)(n % 2));
	for (long n = 0; n < THREADS; n++)
		threads[n] = must_start(registers, (void *)n);
	for (int n = 0; n < THREADS; n++)
		must_join(threads[n]);
	for (long start = now_ms(); missing() && now_ms() < start + PATIENCE;)
		usleep(1000);
	/* Some time for events that should not come. */
	usleep(50000);
	many.over = true;
	for (int n = 0; n < READERS; n++)
		must_join(readers[n]);

	is(missing(), 0, "each registration has an event, if it was not closed before");
	for (long n = 0; n < many.count; n++) {
		EXPECT(many.calls[n].events <= 1 && many.calls[n].written == 1);
		unseen += !many.calls[n].events;
	}
	ok(unseen > 0, "some regions that are closed under way are never reported");
	gives(-FI_EAGAIN, take(many.queue, 0));
	gives(0, readable(wait_fd(many.queue), 50));
	/* A late write to the place of a call would change this. */
	for (long n = 0; n < many.count; n++) {
		if (!many.calls[n].closed)
			close_call(&many.calls[n]);
		many.calls[n].mr = (struct fid_mr *)&many;
	}
	is(many.wrong, 0, "%ld registrations by %d threads, their calls and events; the first that is wrong: %s", many.count,
	   THREADS, many.what ? many.what : "none");
	close_both(many.domain, many.queue);
	about("a call's place after the call");
	for (long n = 0; n < many.count; n++)
		holds(many.calls[n].mr == (struct fid_mr *)&many);
	free(many.calls);
}

/* One aspect at a time. */

/* So much work that the last is not done when the first calls have returned. */
static void start_many(struct fid_domain *domain, struct fid_mr *mrs[MANY])
{
	for (int n = 0; n < MANY; n++)
		must(fi_mr_reg(domain, large, LARGE, FI_ALL, 0, (uint64_t)n + 1, 0, &mrs[n], &mrs[n]) == 0);
}

/* Whether a registration was seen under way: on a busy machine all may have ended by then. */
static bool try_under_way(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC, 0);
	struct fid_domain *domain = bound_to(queue, pair.pd, &kinds[OFFSETS]);
	struct fid_mr *mrs[MANY] = { 0 };
	int under_way = 0, early = 0, events = 0;
	uint8_t raw[256];
	uint64_t base;

	start_many(domain, mrs);
	gives(-FI_EBUSY, fi_close(&domain->fid));
	gives(-FI_EBUSY, fi_close(&queue->fid));
	for (int n = MANY - 1; n >= 0; n--) {
		uint64_t key = fi_mr_key(mrs[n]);
		void *desc = fi_mr_desc(mrs[n]);
		size_t size = sizeof(raw);
		int raw_ret = fi_mr_raw_attr(mrs[n], &base, raw, &size, 0);
		/* Reports the present state, and thereby that of before. */
		int state = fi_mr_enable(mrs[n]);

		if (state == -FI_EOPBADSTATE) {
			under_way++;
			early += key != FI_KEY_NOTAVAIL || desc;
			is(raw_ret, -FI_EOPBADSTATE, "under way there is no raw key");
		} else {
			is(state, 0, "completed");
		}
	}
	printf("# under way: %d of %d report it\n", under_way, MANY);
	/* Each of the library's four threads may be writing key and descriptor, and then the state. */
	ok(early <= 4, "under way: the key is FI_KEY_NOTAVAIL, the descriptor NULL, except %d that end just now", early);
	for (; events < MANY && wait_and_take(queue, PATIENCE, 0) == sizeof(entry); events++) {
		struct fid_mr **mr = entry.context;
		size_t size = sizeof(raw);

		ok(mr >= mrs && mr < mrs + MANY && fi_mr_key(*mr) == (uint64_t)(mr - mrs) + 1 && fi_mr_desc(*mr) &&
		   !fi_mr_enable(*mr) && !fi_mr_raw_attr(*mr, &base, raw, &size, 0),
		   "with the event there are key, descriptor, raw key, and fi_mr_enable returns 0");
	}
	is(events, MANY, "each has its event");
	gives(-FI_EBUSY, fi_close(&domain->fid));
	for (int n = 0; n < MANY; n++)
		must(fi_close(&mrs[n]->fid) == 0);
	gives(-FI_EBUSY, fi_close(&queue->fid));
	close_both(domain, queue);
	return under_way > 0;
}

static void under_way(void)
{
	int tries = 0;

	while (!try_under_way() && tries < 20)
		tries++;
	ok(tries < 20, "registrations report that they are under way");
}

static void closed_early_one_by_one(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_FD, 0);
	struct fid_domain *domain = bound_to(queue, pair.pd, &kinds[OFFSETS]);
	struct fid_mr *mrs[MANY] = { 0 };
	int fd = wait_fd(queue);

	about("under way");
	start_many(domain, mrs);
	for (int n = MANY - 1; n >= 0; n--)
		gives(0, fi_close(&mrs[n]->fid));
	gives(-FI_EAGAIN, take(queue, 0));
	holds(!readable(fd, 100));
	source_is_left();

	about("the key of one that was cancelled");
	gives(0, fi_mr_reg(domain, large, PAGE, FI_ALL, 0, 1, 0, &mrs[0], &mrs[0]));
	completes(queue, &mrs[0]);
	must(fi_close(&mrs[0]->fid) == 0);
	close_both(domain, queue);
}

/* A region that completed later, of one buffer or of several: all that data.c does. */
static void completed(const struct kind *kind)
{
	static const struct layout layouts[] = {
		{ .count = 1, .pieces = 1, .start = 100, .length = 5000 },
		{ .count = 3, .pieces = 3, .length = 1000, .step = 3 * PAGE },
	};
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC, 0);
	struct fid_domain *domain = bound_to(queue, pair.pd, kind);

	for (size_t n = 0; n < COUNT(layouts); n++) {
		struct object object = laid_out(&layouts[n], domain);

		about("%zu buffers", object.count);
		object.base = base_of(kind, object.iov[0].iov_base);
		gives(0, fi_mr_regv(domain, object.iov, object.count, FI_ALL, 0, 7, 0, &object.mr, &object.mr));
		completes(queue, &object.mr);
		if (has_pieces(&object))
			answers(&object);
		gives(0, fi_close(&object.mr->fid));
	}
	close_both(domain, queue);
}

int main(int argc, char **argv)
{
	bool stress = argc > 1 && !strcmp(argv[1], "stress");

	objects_begin();
	beyond = mmap(NULL, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(beyond != MAP_FAILED);
	for (int n = 0; n < (stress ? 3 : 1); n++)
		as_case(threads(stress ? 1000 : 2500), "registrations from 4 threads");
	if (!stress) {
		large = pages(LARGE / PAGE);
		as_case(under_way(), "a registration under way");
		as_case(closed_early_one_by_one(), "regions closed before they are registered");
		for (int n = 0; n < KINDS; n++)
			as_case(completed(&kinds[n]), "data, %s", kinds[n].name);
	}
	return objects_end();
}
