/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Registrations that complete later, each with an event of its own. Four threads make 10 000 of
 * them on one domain while a thread reads the queue; each event is compared with the result of its
 * call. Then one aspect at a time: the visible state of a region under way, closing it then,
 * failures, waiting, and which objects may be closed when.
 *
 * Usage: async [stress [EACH]]: with the word, only the threads, EACH registrations by each of
 * them, three times over. This is for a build with -fsanitize=address, or -fsanitize=thread.
 * Neither sees inside the library: the one sees the memory that it allocates and frees, the other
 * this program alone. So all data that its threads share is atomic.
 */
#include "../lib/fabric.h"
#include <poll.h>
#include <pthread.h>
#include <rdmamr/verbs.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#pragma weak ibv_flush_relaxed_mr

#ifdef __SANITIZE_THREAD__
/*
 * ThreadSanitizer does not see how the library synchronises its threads: it would report a race for
 * any memory of its own that goes from one to another, and for each write to an event's descriptor.
 */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "called_from_lib:librdmamr";
}
#endif

enum { THREADS = 4, LARGE = 64 << 20, MANY = 24, PATIENCE = 300000 /* ms */ };

static struct pair pair;
static char *large, *beyond; /* much memory, and unmapped memory */

static long now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static struct fid_eq *queue_with(int wait)
{
	struct fi_eq_attr attr = { .wait_obj = wait };
	struct fid_eq *queue = NULL;

	must(rdmamr_eq_open(FI_VERSION(1, 17), &attr, &queue, NULL) == 0 && queue);
	return queue;
}

static struct fid_domain *bound_to(struct fid_eq *queue, const struct kind *kind)
{
	struct fid_domain *domain = open_kind(pair.pd, kind);

	must(fi_domain_bind(domain, &queue->fid, FI_REG_MR) == 0);
	return domain;
}

static int later(struct fid_domain *domain, const void *memory, size_t length, uint64_t access, uint64_t key,
		 struct fid_mr **mr)
{
	return fi_mr_reg(domain, memory, length, access, 0, key, 0, mr, mr);
}

/*
 * Reads an event, which must be the completion of the region that `mr` points to, and of the call
 * with that address as its context. Returns a description of a wrong event, or NULL.
 */
static const char *completion(struct fid_eq *queue, struct fid_mr **mr)
{
	struct fi_eq_entry entry = { .data = 7 };
	static char words[100];
	uint32_t event = 77;
	ssize_t got = fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0);

	if (got != sizeof(entry)) {
		snprintf(words, sizeof(words), "%zd instead of an event", got);
		return words;
	}
	if (event != FI_MR_COMPLETE)
		return "another kind of event";
	if (entry.context != mr)
		return "another context";
	if (entry.fid != &(*mr)->fid)
		return "another object";
	return entry.data ? "data" : NULL;
}

#define completes(queue, mr, name)                                             \
	do {                                                                   \
		const char *wrong = completion(queue, mr);                     \
		ok(!wrong, "%s: one event, of that object and context (%s)",   \
		   name, wrong ? wrong : "right");                             \
	} while (0)

static ssize_t read_now(struct fid_eq *queue)
{
	struct fi_eq_entry entry;
	uint32_t event;

	return fi_eq_read(queue, &event, &entry, sizeof(entry), 0);
}

static void close_both(const char *name, struct fid_domain *domain, struct fid_eq *queue)
{
	is(fi_close(&domain->fid), 0, "%s: then the domain is closed", name);
	is(fi_close(&queue->fid), 0, "%s: and the queue", name);
	is((long long)stats().live, 0, "%s: no region is live", name);
	/* A domain with the cache keeps some. */
	must(ibv_flush_relaxed_mr(pair.pd) == 0);
	is(kernel_regions(pair.context), 0, "%s: and the kernel has none", name);
}

/* Many registrations. */

/* The fate of a call, by its number. Each fate falls to a fifteenth of the calls. */
enum fate { KEPT, CLOSED_AFTER, CLOSED_UNDER_WAY, FAILS, FAILS_CLOSED };
static const enum fate fates[] = {
	KEPT, CLOSED_AFTER, CLOSED_UNDER_WAY, KEPT, FAILS,
	CLOSED_AFTER, KEPT, CLOSED_UNDER_WAY, CLOSED_AFTER, KEPT,
	FAILS_CLOSED, CLOSED_AFTER, KEPT, CLOSED_UNDER_WAY, KEPT,
};

struct call {
	struct fid_mr *mr;
	void *memory;
	int ret;
	_Atomic int events;
	_Atomic long closed; /* the tick at which fi_close() had returned */
};

static struct {
	struct fid_domain *domain;
	struct fid_eq *queue;
	struct call *calls;
	long each, count;
	_Atomic bool over, late;
	_Atomic long tick;
	/* Counts of errors, by kind. */
	_Atomic long strays, kinds, unset, others, of_closed, keys, descs, contexts, failures, closes, refusals, written;
} many;

static enum fate fate_of(long number)
{
	return fates[number % (long)(sizeof(fates) / sizeof(fates[0]))];
}

static uint64_t key_of(long number)
{
	return 0x100000000 + (uint64_t)number;
}

static void close_call(struct call *call)
{
	if (fi_close(&call->mr->fid))
		many.closes++;
	atomic_store(&call->closed, ++many.tick);
	free(call->memory);
	call->memory = NULL;
}

/* A right that fi_mr(3) does not define. */
#define UNKNOWN (1ULL << 40)

/* A call with a bad argument registers nothing and sends no event. */
static void refused_calls(struct call *call, long number)
{
	struct fid_mr *untouched = (struct fid_mr *)&untouched, *mr = untouched;

	many.refusals += later(many.domain, &number, 8, UNKNOWN, key_of(number + many.count), &mr) != -FI_EINVAL;
	if (fate_of(number) == KEPT)
		many.refusals += fi_mr_reg(many.domain, call->memory, 8, FI_RECV, 0, key_of(number), 0, &mr, &many) !=
				 -FI_ENOKEY;
	many.written += mr != untouched;
}

static void *registers(void *argument)
{
	long first = (long)argument * many.each;
	unsigned int seed = (unsigned int)first + 1;

	for (long number = first; number < first + many.each; number++) {
		struct call *call = &many.calls[number];
		enum fate fate = fate_of(number);
		bool fails = fate == FAILS || fate == FAILS_CLOSED;
		size_t length = 1 + (size_t)rand_r(&seed) % (2 * PAGE);

		call->memory = malloc(length);
		must(call->memory);
		call->ret = fi_mr_reg(many.domain, fails ? beyond : call->memory, length, FI_ALL, 0, key_of(number), 0,
				      &call->mr, call);
		if (call->ret)
			continue;
		if (number % 8 == 0)
			refused_calls(call, number);
		if (fate == CLOSED_UNDER_WAY || fate == FAILS_CLOSED) {
			close_call(call);
		} else if (fate == CLOSED_AFTER) {
			/* One that never comes is waited for once. */
			for (long start = now_ms(); !call->events && !many.late; sched_yield())
				many.late = now_ms() > start + PATIENCE;
			close_call(call);
		}
	}
	return NULL;
}

static void *reads(void *argument)
{
	(void)argument;
	for (;;) {
		bool over = many.over;
		long tick = many.tick, number;
		struct fi_eq_entry entry = { 0 };
		struct fi_eq_err_entry error = { 0 };
		uint32_t event = FI_MR_COMPLETE;
		ssize_t got = fi_eq_sread(many.queue, &event, &entry, sizeof(entry), 20, 0);
		bool failed = got == -FI_EAVAIL;
		struct call *call;
		struct fid_mr *mr;
		enum fate fate;

		if (failed) {
			got = fi_eq_readerr(many.queue, &error, 0);
			entry = (struct fi_eq_entry){ .fid = error.fid, .context = error.context };
		}
		/* An error that is closed between the two calls is gone. */
		if (got == -FI_EAGAIN) {
			if (over)
				break;
			continue;
		}
		call = entry.context;
		if (call < many.calls || call >= many.calls + many.count) {
			many.strays++;
			continue;
		}
		number = call - many.calls;
		fate = fate_of(number);
		mr = __atomic_load_n(&call->mr, __ATOMIC_ACQUIRE);
		many.unset += !mr;
		many.others += mr && entry.fid != &mr->fid;
		many.of_closed += call->closed && call->closed <= tick;
		if (got != (failed ? (ssize_t)sizeof(error) : (ssize_t)sizeof(entry)) || event != FI_MR_COMPLETE ||
		    failed != (fate == FAILS || fate == FAILS_CLOSED))
			many.kinds++;
		/* These regions stay open until this event is counted. */
		if (mr && (fate == KEPT || fate == CLOSED_AFTER)) {
			many.keys += fi_mr_key(mr) != key_of(number);
			many.descs += !fi_mr_desc(mr);
			many.contexts += mr->fid.context != call || mr->fid.fclass != FI_CLASS_MR;
		} else if (mr && fate == FAILS) {
			many.keys += fi_mr_key(mr) != FI_KEY_NOTAVAIL;
			many.descs += fi_mr_desc(mr) != NULL;
		}
		if (failed && (error.err != FI_EFAULT || error.prov_errno != EFAULT || !error.err_data ||
			       !strstr(error.err_data, "EFAULT")))
			many.failures++;
		atomic_fetch_add(&call->events, 1);
	}
	return NULL;
}

static bool closed_early(long number)
{
	return fate_of(number) == CLOSED_UNDER_WAY || fate_of(number) == FAILS_CLOSED;
}

static long missing(void)
{
	long sum = 0;

	for (long n = 0; n < many.count; n++)
		sum += !closed_early(n) && !many.calls[n].ret && !many.calls[n].events;
	return sum;
}

static void threads(long each)
{
	pthread_t threads[THREADS], reader;
	long refused = 0, absent, doubled = 0, early = 0, unseen = 0, changed = 0, start;
	struct fid_mr **seen;

	memset(&many, 0, sizeof(many));
	many.each = each;
	many.count = each * THREADS;
	many.calls = calloc((size_t)many.count, sizeof(*many.calls));
	seen = calloc((size_t)many.count, sizeof(struct fid_mr *));
	must(many.calls && seen);
	many.queue = queue_with(FI_WAIT_UNSPEC);
	many.domain = bound_to(many.queue, &kinds[OFFSETS]);
	must(pthread_create(&reader, NULL, reads, NULL) == 0);
	for (long n = 0; n < THREADS; n++)
		must(pthread_create(&threads[n], NULL, registers, (void *)n) == 0);
	for (int n = 0; n < THREADS; n++)
		must(pthread_join(threads[n], NULL) == 0);
	for (start = now_ms(); missing() && now_ms() < start + PATIENCE;)
		usleep(1000);
	/* Some time for events that should not come. */
	usleep(50000);
	many.over = true;
	must(pthread_join(reader, NULL) == 0);

	absent = missing();
	for (long n = 0; n < many.count; n++) {
		refused += many.calls[n].ret != 0;
		doubled += many.calls[n].events > 1;
		early += closed_early(n);
		unseen += closed_early(n) && !many.calls[n].events;
	}
	printf("# %ld regions closed under way: %ld never reported\n", early, unseen);
	is(refused, 0, "%ld registrations by %d threads: each returned 0", many.count, THREADS);
	is(absent, 0, "each has an event, if it was not closed before");
	is(doubled, 0, "and not two");
	is(many.strays, 0, "each event has the context of one of them");
	is(many.kinds, 0, "each has its kind and size: a completion, or an error if the memory is unmapped");
	is(many.unset, 0, "when an event is read, the region is written to the call's place");
	is(many.others, 0, "and the event is of that object");
	is(many.keys, 0, "the key is the requested one, and none if the registration failed");
	is(many.descs, 0, "the descriptor is set, and NULL if the registration failed");
	is(many.contexts, 0, "the object has its context and class");
	is(many.failures, 0, "each error is EFAULT, with the reason in words");
	ok(unseen > 0, "some regions that are closed under way are never reported");
	is(many.of_closed, 0, "no event of a region is read after fi_close has returned");
	is(many.refusals, 0, "wrong arguments and keys in use are refused at once");
	is(many.written, 0, "and then no region is written");
	is(read_now(many.queue), -FI_EAGAIN, "the queue is empty");

	/* A late write to the place of a call would change this. */
	for (long n = 0; n < many.count; n++) {
		if (!many.calls[n].ret && !many.calls[n].closed)
			close_call(&many.calls[n]);
		seen[n] = many.calls[n].mr = (struct fid_mr *)&seen[n];
	}
	is(many.closes, 0, "each region is closed, also those that failed");
	close_both("the threads", many.domain, many.queue);
	for (long n = 0; n < many.count; n++)
		changed += many.calls[n].mr != seen[n];
	is(changed, 0, "nothing is written to a call's place after the call");
	free(many.calls);
	free(seen);
}

/* One aspect at a time. */

/* So much work that the last is not done when the first calls have returned. */
static int start_many(struct fid_domain *domain, struct fid_mr *mrs[MANY])
{
	int refused = 0;

	for (int n = 0; n < MANY; n++)
		refused += later(domain, large, LARGE, FI_ALL, (uint64_t)n + 1, &mrs[n]) != 0;
	return refused;
}

/* Whether a registration was seen under way: on a busy machine all may have ended by then. */
static bool try_under_way(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC);
	struct fid_domain *domain = bound_to(queue, &kinds[OFFSETS]);
	struct fid_mr *mrs[MANY] = { 0 };
	int seen = 0, early = 0, raw_early = 0, odd = 0, events = 0, late = 0;
	uint8_t raw[256];
	uint64_t base;

	must(start_many(domain, mrs) == 0);
	is(fi_close(&domain->fid), -FI_EBUSY, "under way: the domain is busy");
	is(fi_close(&queue->fid), -FI_EBUSY, "under way: the queue is busy");
	for (int n = MANY - 1; n >= 0; n--) {
		uint64_t key = fi_mr_key(mrs[n]);
		void *desc = fi_mr_desc(mrs[n]);
		size_t size = sizeof(raw);
		int raw_ret = fi_mr_raw_attr(mrs[n], &base, raw, &size, 0);
		/* Reports the present state, and thereby that of before. */
		int state = fi_mr_enable(mrs[n]);

		if (state == -FI_EOPBADSTATE) {
			seen++;
			early += key != FI_KEY_NOTAVAIL || desc;
			raw_early += raw_ret != -FI_EOPBADSTATE;
		} else {
			odd += state != 0;
		}
	}
	printf("# under way: %d of %d report it\n", seen, MANY);
	is(odd, 0, "fi_mr_enable says so, or 0");
	/*
	 * Each of the library's four threads may be at the end of a registration: it writes key and
	 * descriptor, then the state.
	 */
	ok(early <= 4, "under way: the key is FI_KEY_NOTAVAIL, the descriptor NULL, except %d that end just now", early);
	is(raw_early, 0, "under way: there is no raw key");
	while (events < MANY) {
		struct fi_eq_entry entry;
		struct fid_mr **mr;
		size_t size = sizeof(raw);
		uint32_t event;

		if (fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0) != sizeof(entry))
			break;
		mr = entry.context;
		events++;
		if (mr < mrs || mr >= mrs + MANY || fi_mr_key(*mr) != (uint64_t)(mr - mrs) + 1 || !fi_mr_desc(*mr) ||
		    fi_mr_enable(*mr) || fi_mr_raw_attr(*mr, &base, raw, &size, 0))
			late++;
	}
	is(events, MANY, "each has its event");
	is(late, 0, "with the event there are key, descriptor, raw key, and fi_mr_enable returns 0");
	is(fi_close(&domain->fid), -FI_EBUSY, "completed and open: the domain is busy");
	for (int n = 0; n < MANY; n++)
		must(fi_close(&mrs[n]->fid) == 0);
	is(fi_close(&queue->fid), -FI_EBUSY, "the regions are closed: the queue is busy while the domain is bound");
	close_both("under way", domain, queue);
	return seen > 0;
}

static void under_way(void)
{
	int tries = 0;

	while (!try_under_way() && tries < 20)
		tries++;
	ok(tries < 20, "under way: registrations report it");
}

static bool readable(int fd, int timeout)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };

	return poll(&ready, 1, timeout) == 1 && ready.revents & POLLIN;
}

static int wait_fd(struct fid_eq *queue)
{
	int fd = -1;

	must(fi_control(&queue->fid, FI_GETWAIT, &fd) == 0 && fd >= 0);
	return fd;
}

static void closed_early_one_by_one(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_FD);
	struct fid_domain *domain = bound_to(queue, &kinds[OFFSETS]);
	struct fid_mr *mrs[MANY] = { 0 };
	int fd = wait_fd(queue), failed = 0;

	must(start_many(domain, mrs) == 0);
	for (int n = MANY - 1; n >= 0; n--)
		failed += fi_close(&mrs[n]->fid) != 0;
	is(failed, 0, "closed under way, each returns 0");
	is(read_now(queue), -FI_EAGAIN, "then there is no event");
	ok(!readable(fd, 100), "and none comes");
	is((long long)stats().live, 0, "no region is live");
	is(kernel_regions(pair.context), 0, "the kernel has none");

	is(later(domain, large, PAGE, FI_ALL, 1, &mrs[0]), 0, "a key of one that was cancelled is free");
	must(readable(fd, PATIENCE));
	is(fi_close(&mrs[0]->fid), 0, "closed with its event in the queue");
	is(read_now(queue), -FI_EAGAIN, "the event is gone");
	ok(!readable(fd, 0), "and the descriptor is not readable");

	must(later(domain, beyond, PAGE, FI_ALL, 1, &mrs[0]) == 0 && readable(fd, PATIENCE));
	is(fi_close(&mrs[0]->fid), 0, "closed with its error in the queue");
	is(read_now(queue), -FI_EAGAIN, "the error is gone");

	for (int n = 0; n < 3; n++)
		must(later(domain, large, PAGE, FI_ALL, (uint64_t)n + 1, &mrs[n]) == 0);
	for (int n = 0; n < 3; n++)
		for (long start = now_ms(); fi_mr_enable(mrs[n]) && now_ms() < start + PATIENCE;)
			usleep(100);
	is(fi_close(&mrs[1]->fid), 0, "one of three events is removed with its region");
	failed = 0;
	for (int n = 0; n < 2; n++) {
		struct fi_eq_entry entry = { 0 };
		uint32_t event;
		ssize_t got = fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0);

		failed += got != sizeof(entry) || (entry.context != &mrs[0] && entry.context != &mrs[2]);
	}
	is(failed, 0, "the other two remain");
	is(read_now(queue), -FI_EAGAIN, "and no more");
	must(fi_close(&mrs[0]->fid) == 0 && fi_close(&mrs[2]->fid) == 0);
	close_both("closed early", domain, queue);
}

static void failure(struct fid_eq *queue, struct fid_domain *domain, const char *name, void *memory, size_t length,
		    uint64_t access, const char *words)
{
	struct fi_eq_err_entry error = { 0 }, peeked = { 0 };
	struct fi_eq_entry entry = { 0 };
	struct fid_mr *mr = NULL;
	uint32_t event = 77;
	char text[200] = "";
	const char *said;

	is(later(domain, memory, length, access, 5, &mr), 0, "%s: the call returns 0", name);
	must(mr);
	is(fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0), -FI_EAVAIL, "%s: an error comes", name);
	is(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), -FI_EAVAIL, "%s: it stays until it is read", name);
	is(fi_eq_readerr(queue, &peeked, FI_PEEK), sizeof(peeked), "%s: it can be looked at", name);
	is(fi_eq_readerr(queue, &error, 0), sizeof(error), "%s: and read", name);
	ok(error.fid == &mr->fid && error.context == &mr && error.data == 0, "%s: its object and context", name);
	ok(peeked.fid == error.fid && peeked.context == error.context && peeked.err == error.err, "%s: seen before", name);
	is(error.err, FI_EFAULT, "%s: the error", name);
	is(error.prov_errno, EFAULT, "%s: the errno", name);
	if (ok(error.err_data != NULL && error.err_data_size > 0, "%s: there are words, %zu bytes", name,
	       error.err_data_size))
		ok(strnlen(error.err_data, error.err_data_size) >= strlen(words) && strstr(error.err_data, words),
		   "%s: %.*s", name, (int)error.err_data_size, (char *)error.err_data);
	said = fi_eq_strerror(queue, error.prov_errno, error.err_data, text, sizeof(text));
	ok(said && strlen(said) > 5 && !strcmp(said, text), "%s: fi_eq_strerror: %s", name, said ? said : "NULL");
	is(fi_eq_readerr(queue, &error, 0), -FI_EAGAIN, "%s: one error", name);
	is(read_now(queue), -FI_EAGAIN, "%s: no more", name);
	ok(fi_mr_key(mr) == FI_KEY_NOTAVAIL && !fi_mr_desc(mr), "%s: no key and no descriptor", name);
	is(fi_close(&domain->fid), -FI_EBUSY, "%s: the region that failed is still to be closed", name);
	is(fi_close(&mr->fid), 0, "%s: closed", name);
	mr = NULL;
	is(later(domain, large, PAGE, FI_ALL, 5, &mr), 0, "%s: the key is free", name);
	completes(queue, &mr, name);
	is(fi_close(&mr->fid), 0, "%s: closed", name);
}

static void failures(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC), *old;
	struct fid_domain *domain = bound_to(queue, &kinds[OFFSETS]);
	char *hole = pages(8), words[16] = "";
	char *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct iovec iov[] = { { large, PAGE }, { beyond, PAGE }, { large + 4 * PAGE, PAGE } };
	struct fi_eq_err_entry error = { .err_data = words, .err_data_size = sizeof(words) };
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_entry entry;
	struct fid_mr *mr = NULL;
	uint32_t event;

	must(constant != MAP_FAILED && munmap(hole + 2 * PAGE, 4 * PAGE) == 0);
	failure(queue, domain, "unmapped memory", hole + 2 * PAGE, PAGE, FI_ALL, "EFAULT");
	failure(queue, domain, "half of it", hole, 4 * PAGE, FI_ALL, "nothing is mapped at");
	failure(queue, domain, "read-only memory", constant, PAGE, FI_RECV, "read-only");

	is(fi_mr_regv(domain, iov, 3, FI_ALL, 0, 6, 0, &mr, &mr), 0, "three pieces, one of them unmapped");
	is(fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0), -FI_EAVAIL, "pieces: an error comes");
	/* libfabric 1.5 and later copy to the caller's buffer, if it has one. */
	is(fi_eq_readerr(queue, &error, 0), sizeof(error), "pieces: it is read");
	ok(error.context == &mr && error.fid == &mr->fid && error.err == FI_EFAULT, "pieces: of this call");
	ok(error.err_data == words && error.err_data_size <= sizeof(words) && strnlen(words, sizeof(words)) > 5,
	   "pieces: the caller's buffer has as much of the words as fits: %.16s", words);
	is(read_now(queue), -FI_EAGAIN, "pieces: one error");
	is(kernel_regions(pair.context), 0, "pieces: none of them is registered");
	is(fi_close(&mr->fid), 0, "pieces: closed");
	close_both("failures", domain, queue);

	must(rdmamr_eq_open(FI_VERSION(1, 4), &attr, &old, NULL) == 0);
	domain = bound_to(old, &kinds[OFFSETS]);
	must(later(domain, beyond, PAGE, FI_ALL, 1, &mr) == 0);
	is(fi_eq_sread(old, &event, &entry, sizeof(entry), PATIENCE, 0), -FI_EAVAIL, "a program of libfabric 1.4");
	memset(words, 'x', sizeof(words));
	error = (struct fi_eq_err_entry){ .err_data = words, .err_data_size = sizeof(words) };
	is(fi_eq_readerr(old, &error, 0), sizeof(error), "1.4: the error is read");
	ok(error.err_data && error.err_data != words && words[0] == 'x', "1.4: the words are the queue's");
	is(fi_close(&mr->fid), 0, "1.4: closed");
	close_both("1.4", domain, old);
	must(munmap(hole, 2 * PAGE) == 0 && munmap(hole + 6 * PAGE, 2 * PAGE) == 0 && munmap(constant, PAGE) == 0);
}

struct delayed {
	struct fid_domain *domain;
	struct fid_mr *mr;
	int ret;
};

static void *registers_late(void *argument)
{
	struct delayed *delayed = argument;

	usleep(100000);
	delayed->ret = later(delayed->domain, large, PAGE, FI_ALL, 9, &delayed->mr);
	return NULL;
}

static void waiting(void)
{
	enum { ROUNDS = 200 };
	struct fid_eq *queue = queue_with(FI_WAIT_FD), *dumb = queue_with(FI_WAIT_NONE);
	struct fid_domain *domain = bound_to(queue, &kinds[OFFSETS]);
	struct delayed delayed = { .domain = domain };
	struct fid_mr *mrs[2] = { 0 };
	struct fi_eq_entry entry;
	pthread_t thread;
	uint32_t event;
	int fd = wait_fd(queue), wrong = 0, unready = 0, left = 0, kind = -1;
	long start = now_ms();

	is(fi_control(&queue->fid, FI_GETWAITOBJ, &kind), 0, "the kind of wait object is reported");
	is(kind, FI_WAIT_FD, "a descriptor");
	ok(!readable(fd, 0), "an empty queue's descriptor is not readable");
	is(fi_eq_sread(queue, &event, &entry, sizeof(entry), 60, 0), -FI_EAGAIN, "nothing comes in 60 ms");
	ok(now_ms() - start >= 60, "after a full wait (%ld ms)", now_ms() - start);

	for (int n = 0; n < ROUNDS; n++) {
		struct fid_mr *mr = NULL;

		must(later(domain, large, PAGE, FI_ALL, 1, &mr) == 0);
		unready += !readable(fd, PATIENCE);
		wrong += fi_eq_read(queue, &event, &entry, sizeof(entry), 0) != sizeof(entry) || entry.context != &mr;
		left += readable(fd, 0);
		must(fi_close(&mr->fid) == 0);
	}
	is(unready, 0, "%d registrations: the descriptor becomes readable", ROUNDS);
	is(wrong, 0, "then the event is there");
	is(left, 0, "and when it is read, the descriptor is not readable any more");

	for (int n = 0; n < 2; n++)
		must(later(domain, large, PAGE, FI_ALL, (uint64_t)n + 1, &mrs[n]) == 0);
	for (int n = 0; n < 2; n++)
		for (start = now_ms(); fi_mr_enable(mrs[n]) && now_ms() < start + PATIENCE;)
			usleep(100);
	must(fi_eq_sread(queue, &event, &entry, sizeof(entry), PATIENCE, 0) == sizeof(entry));
	ok(readable(fd, PATIENCE), "one of two is read: readable still");
	is(fi_eq_read(queue, &event, &entry, sizeof(entry), FI_PEEK), sizeof(entry), "looked at");
	ok(readable(fd, 0), "and still");
	is(read_now(queue), sizeof(entry), "read");
	ok(!readable(fd, 0), "no more");
	must(fi_close(&mrs[0]->fid) == 0 && fi_close(&mrs[1]->fid) == 0);

	must(pthread_create(&thread, NULL, registers_late, &delayed) == 0);
	start = now_ms();
	completes(queue, &delayed.mr, "fi_eq_sread wakes up");
	ok(now_ms() - start < PATIENCE, "before its time is over (%ld ms)", now_ms() - start);
	must(pthread_join(thread, NULL) == 0);
	is(delayed.ret, 0, "the other thread's call returned 0");
	must(fi_close(&delayed.mr->fid) == 0);
	close_both("waiting", domain, queue);

	domain = bound_to(dumb, &kinds[OFFSETS]);
	is(fi_control(&dumb->fid, FI_GETWAIT, &fd), -FI_ENODATA, "a queue without a wait object has no descriptor");
	is(fi_eq_sread(dumb, &event, &entry, sizeof(entry), 10, 0), -FI_EINVAL, "and cannot be waited for");
	must(later(domain, large, PAGE, FI_ALL, 1, &mrs[0]) == 0);
	for (start = now_ms(), wrong = 0; now_ms() < start + PATIENCE; usleep(100)) {
		ssize_t got = fi_eq_read(dumb, &event, &entry, sizeof(entry), 0);

		if (got == -FI_EAGAIN)
			continue;
		wrong = got != sizeof(entry) || entry.fid != &mrs[0]->fid ? -1 : 1;
		break;
	}
	is(wrong, 1, "it is read");
	must(fi_close(&mrs[0]->fid) == 0);
	close_both("without a wait object", domain, dumb);
}

static void binding(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC), *second = queue_with(FI_WAIT_UNSPEC);
	struct fid_domain *domain = open_kind(pair.pd, &kinds[OFFSETS]), *other;
	struct fid_mr *mr = region(domain, large, PAGE, FI_ALL, 1), *late[MANY] = { 0 };
	int failed = 0;

	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), -FI_EOPBADSTATE, "no binding while a region is open");
	must(fi_close(&mr->fid) == 0);
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR | FI_WRITE), -FI_EBADFLAGS, "other flags");
	is(fi_domain_bind(domain, &queue->fid, 0), -FI_EBADFLAGS, "no flags");
	is(fi_domain_bind(domain, NULL, FI_REG_MR), -FI_EINVAL, "no queue");
	is(fi_domain_bind(domain, &domain->fid, FI_REG_MR), -FI_EINVAL, "an object that is no queue");
	mr = region(domain, large, PAGE, FI_ALL, 1);
	ok(fi_mr_key(mr) == 1 && fi_mr_desc(mr), "none of these made the domain asynchronous");
	is(read_now(queue), -FI_EAGAIN, "no event");
	must(fi_close(&mr->fid) == 0);
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), 0, "bound");
	is(fi_domain_bind(domain, &second->fid, FI_REG_MR), -FI_EBUSY, "once");
	is(fi_domain_bind(domain, &queue->fid, FI_REG_MR), -FI_EBUSY, "not twice");
	is(fi_close(&second->fid), 0, "a queue that was refused is not busy");

	other = bound_to(queue, &kinds[PROVIDER_KEYS]);
	is(later(other, large, PAGE, FI_ALL, 0, &mr), 0, "two domains, one queue");
	completes(queue, &mr, "the second domain");
	is(fi_close(&domain->fid), 0, "the first is closed");
	is(fi_close(&queue->fid), -FI_EBUSY, "the queue is busy with the second");
	must(fi_close(&mr->fid) == 0);
	close_both("binding", other, queue);

	/* All at once. */
	queue = queue_with(FI_WAIT_UNSPEC);
	domain = bound_to(queue, &kinds[OFFSETS]);
	must(start_many(domain, late) == 0);
	is(fi_close(&domain->fid), -FI_EBUSY, "under way: the domain is busy");
	is(fi_close(&queue->fid), -FI_EBUSY, "under way: the queue is busy");
	for (int n = 0; n < MANY; n++)
		failed += fi_close(&late[n]->fid) != 0;
	is(failed, 0, "under way: the regions are closed");
	close_both("under way", domain, queue);
}

/*
 * A remote peer writes. On iWARP the write is complete when it is sent, and a read behind it shows
 * that it has arrived. After a failure there is a new connection.
 */
static int peer_writes(struct fid_domain *domain, uint64_t key, uint64_t at, struct fid_mr *from, char *source,
		       size_t length, char *scratch)
{
	int status = peer_moves(&pair, IBV_WR_RDMA_WRITE, domain, key, at, with_desc(from), source, length);

	if (status == IBV_WC_SUCCESS && pair.iwarp)
		status = peer_moves(&pair, IBV_WR_RDMA_READ, domain, key, at, with_desc(from), scratch, length);
	if (status != IBV_WC_SUCCESS)
		pair_reconnect(&pair);
	return status;
}

/* The event of a hit is like any other. */
static void served_by_the_cache(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC);
	struct fid_domain *domain = bound_to(queue, &kinds[3]);
	char *memory = pages(1);

	ok(kinds[3].relaxed && kinds[3].provider_keys, "%s, bound to a queue", kinds[3].name);
	for (int n = 0; n < 5; n++) {
		uint64_t hits = stats().hits;
		struct fid_mr *mr = NULL;

		is(fi_mr_reg(domain, memory, PAGE, FI_ALL, 0, 0, 0, &mr, &mr), 0, "registered, time %d", n + 1);
		completes(queue, &mr, "and reported");
		ok(n < 2 || stats().hits > hits, "by the cache, as soon as it has the region");
		is(fi_close(&mr->fid), 0, "closed");
	}
	is(read_now(queue), -FI_EAGAIN, "no more events");
	is(fi_close(&domain->fid), 0, "the domain is closed");
	is(fi_close(&queue->fid), 0, "and the queue");
	munmap(memory, PAGE);
}

/* Data moves by a region that completed later. */
static void data(const struct kind *kind)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC);
	struct fid_domain *domain = bound_to(queue, kind), *peer = open_kind(pair.pd, &kinds[PROVIDER_KEYS]);
	char *source = pages(4), *target = pages(8);
	struct iovec iov[] = { { target, 1000 }, { target + 4 * PAGE, PAGE }, { target + 6 * PAGE, 104 } };
	struct fi_mr_attr attr = { .mr_iov = iov, .iov_count = 1, .access = FI_ALL, .requested_key = 7 };
	struct fid_mr *from = region(peer, source, 4 * PAGE, FI_ALL, 1), *to = NULL, *pieces = NULL;
	struct rdmamr_segment far = resolved(peer, fi_mr_key(from), (uintptr_t)source, PAGE);
	int status;

	attr.context = &to;
	is(fi_mr_regattr(domain, &attr, 0, &to), 0, "%s: by fi_mr_regattr", kind->name);
	completes(queue, &to, kind->name);
	fill(source, 1000);
	is(peer_writes(domain, fi_mr_key(to), base_of(kind, target), from, source, 1000, source + 2 * PAGE),
	   IBV_WC_SUCCESS, "%s: a remote peer writes", kind->name);
	ok(!memcmp(source, target, 1000) && all_zero(target + 1000, PAGE), "%s: and the data is there", kind->name);
	fill(source, 1000);
	status = pair_read(&pair, with_desc(to), target, 1000, far.addr, far.rkey);
	is(status, IBV_WC_SUCCESS, "%s: read from a remote peer, by descriptor and virtual address", kind->name);
	ok(!memcmp(source, target, 1000) && all_zero(target + 1000, PAGE), "%s: and the data is there", kind->name);
	if (status != IBV_WC_SUCCESS)
		pair_reconnect(&pair);
	is(fi_close(&to->fid), 0, "%s: closed", kind->name);
	if (!kind->provider_keys) {
		is(fi_mr_regv(domain, iov, 3, FI_ALL, 0, 8, 0, &pieces, &pieces), 0, "%s: three pieces", kind->name);
		completes(queue, &pieces, kind->name);
		ok(fi_mr_key(pieces) == 8 && !fi_mr_desc(pieces), "%s: one key, no descriptor", kind->name);
		fill(source, 1104 + PAGE);
		is(peer_writes(domain, 8, base_of(kind, target), from, source, 1104 + PAGE, source + 2 * PAGE),
		   IBV_WC_SUCCESS, "%s: a remote peer writes across them", kind->name);
		ok(!memcmp(source, target, 1000) && !memcmp(source + 1000, target + 4 * PAGE, PAGE) &&
		   !memcmp(source + 1000 + PAGE, target + 6 * PAGE, 104), "%s: and it is in each", kind->name);
		is(fi_close(&pieces->fid), 0, "%s: closed", kind->name);
	}
	is(read_now(queue), -FI_EAGAIN, "%s: no more events", kind->name);
	must(fi_close(&from->fid) == 0 && fi_close(&peer->fid) == 0);
	close_both(kind->name, domain, queue);
	must(munmap(source, 4 * PAGE) == 0 && munmap(target, 8 * PAGE) == 0);
}

/* A region with an offset of its own may replace others; the caller's thread does that. */
static void with_offset(void)
{
	struct fid_eq *queue = queue_with(FI_WAIT_UNSPEC);
	struct fid_domain *domain = bound_to(queue, &kinds[OFFSETS]);
	struct fid_mr *mr = NULL;
	struct fi_eq_entry entry = { 0 };
	uint32_t event = 77;

	is(fi_mr_reg(domain, large, PAGE, FI_ALL, 0x10000, 3, RDMAMR_MR_OFFSET, &mr, &mr), 0, "with an offset");
	must(mr);
	ok(fi_mr_key(mr) == 3 && fi_mr_desc(mr) && !fi_mr_enable(mr), "offset: it is there when the call returns");
	is(fi_eq_read(queue, &event, &entry, sizeof(entry), 0), sizeof(entry), "offset: and so is its event");
	ok(event == FI_MR_COMPLETE && entry.fid == &mr->fid && entry.context == &mr, "offset: which is its own");
	is(read_now(queue), -FI_EAGAIN, "offset: one");
	must(fi_close(&mr->fid) == 0);
	close_both("offset", domain, queue);
}

int main(int argc, char **argv)
{
	bool stress = argc > 1 && !strcmp(argv[1], "stress");

	fabric_begin();
	pair_open(&pair);
	beyond = mmap(NULL, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(beyond != MAP_FAILED);
	if (stress) {
		long each = argc > 2 ? atol(argv[2]) : 2500;

		for (int n = 0; n < 3; n++)
			as_case(threads(each), "registrations from 4 threads");
	} else {
		large = pages(LARGE / PAGE);
		as_case(threads(2500), "registrations from 4 threads");
		as_case(under_way(), "a registration under way");
		as_case(closed_early_one_by_one(), "regions closed before they are registered");
		as_case(failures(), "registrations that fail");
		as_case(waiting(), "threads that wait for events");
		as_case(binding(), "domains bound to queues");
		for (int n = 0; n < KINDS; n++)
			as_case(data(&kinds[n]), "data, %s", kinds[n].name);
		as_case(with_offset(), "an offset");
		as_case(served_by_the_cache(), "registrations that the cache serves");
		is(stats().reg_next, 0, "the library made every registration");
	}
	pair_close(&pair);
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
