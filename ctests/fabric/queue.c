/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The event queue: written events are read, once, in their order. A waiting thread is woken, by the
 * queue or by its descriptor. Errors are read by their own call, in their place. A refused call
 * leaves everything unchanged. Only the last part needs a device.
 */
#include "../lib/fabric.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define MANY 2000

static const uint32_t api = FI_VERSION(1, 17);

static struct fid_eq *open_queue(int wait_obj, uint64_t flags)
{
	struct fi_eq_attr attr = { .size = 16, .flags = flags, .wait_obj = wait_obj };
	struct fid_eq *eq = NULL;

	must(rdmamr_eq_open(api, &attr, &eq, NULL) == 0 && eq);
	return eq;
}

static long long milliseconds(void)
{
	struct timespec now;

	must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int readable(int fd, int timeout)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	int count = poll(&ready, 1, timeout);

	return count == 1 && ready.revents == POLLIN ? 1 : count == 0 ? 0 : -1;
}

/* An entry whose bytes all depend on its number. */
static struct fi_eq_entry entry_of(uint64_t number)
{
	return (struct fi_eq_entry){
		.fid = (struct fid *)(uintptr_t)(number * 16 + 0x1000),
		.context = (void *)(uintptr_t)~number,
		.data = number * 0x0101010101010101,
	};
}

static bool is_entry(const struct fi_eq_entry *entry, uint64_t number)
{
	struct fi_eq_entry want = entry_of(number);

	return !memcmp(entry, &want, sizeof(want));
}

static void put(struct fid_eq *eq, uint32_t event, uint64_t number)
{
	struct fi_eq_entry entry = entry_of(number);

	must(fi_eq_write(eq, event, &entry, sizeof(entry), 0) == sizeof(entry));
}

static void opened(void)
{
	static const int good[] = { FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD };
	static const int bad[] = { FI_WAIT_SET, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD, 99 };
	struct fi_eq_attr attr = { .size = 1 };
	struct fid_eq *eq;
	int wrong = 0;

	for (int n = 0; n < 3; n++) {
		for (int writes = 0; writes < 2; writes++) {
			attr.wait_obj = good[n];
			attr.flags = writes ? FI_WRITE : 0;
			eq = NULL;
			if (!is(rdmamr_eq_open(writes ? api : 0, &attr, &eq, &wrong), 0,
				"a queue with wait object %d%s", good[n],
				writes ? ", to be written" : ""))
				continue;
			ok(eq->fid.fclass == FI_CLASS_EQ && eq->fid.context == &wrong, "is a queue, with its context");
			is(fi_close(&eq->fid), 0, "and is closed");
		}
	}
	eq = (struct fid_eq *)0x5550;
	attr.flags = 0;
	for (int n = 0; n < 5; n++) {
		attr.wait_obj = bad[n];
		is(rdmamr_eq_open(api, &attr, &eq, NULL), -FI_ENOSYS, "a queue with wait object %d", bad[n]);
		ok(rdmamr_last_reason()[0], "is refused in words: %s", rdmamr_last_reason());
	}
	attr.wait_obj = FI_WAIT_FD;
	for (int bit = 0; bit < 64; bit++) {
		attr.flags = 1ULL << bit;
		if (attr.flags != FI_WRITE)
			wrong += rdmamr_eq_open(api, &attr, &eq, NULL) != -FI_EBADFLAGS;
	}
	none(wrong, "a queue with any other flag: -FI_EBADFLAGS");
	ok(strstr(rdmamr_last_reason(), "flag") != NULL, "is refused in words: %s", rdmamr_last_reason());
	attr.flags = FI_WRITE;
	is(rdmamr_eq_open(api, &attr, NULL, NULL), -FI_EINVAL, "a queue with nowhere to put it");
	ok(eq == (struct fid_eq *)0x5550, "nothing was written");
}

static void empty(void)
{
	struct fid_eq *eq = open_queue(FI_WAIT_FD, FI_WRITE), *mute = open_queue(FI_WAIT_FD, 0);
	struct fi_eq_entry entry = entry_of(1);
	struct fi_eq_err_entry error;
	uint32_t event = 77;

	memset(&error, 0x5a, sizeof(error));
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "empty: read");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), FI_PEEK), -FI_EAGAIN, "empty: looked at");
	is(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN, "empty: read for an error");
	is(fi_eq_sread(eq, &event, &entry, sizeof(entry), 0, 0), -FI_EAGAIN, "empty: read with no time to wait");
	ok(event == 77 && is_entry(&entry, 1) && error.err == 0x5a5a5a5a, "empty: nothing was written");

	is(fi_eq_write(mute, 1, &entry, sizeof(entry), 0), -FI_EINVAL, "a queue without FI_WRITE cannot be written");
	ok(strstr(rdmamr_last_reason(), "FI_WRITE") != NULL, "and says why: %s", rdmamr_last_reason());
	is(fi_eq_read(mute, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "it is empty");
	is(fi_close(&mute->fid), 0, "closed");
	is(fi_close(&eq->fid), 0, "closed when empty");
}

static void written(void)
{
	static const size_t lengths[] = { 1, 8, 24, 40, 48, 100, 300 };
	struct fid_eq *eq = open_queue(FI_WAIT_FD, FI_WRITE);
	struct fi_eq_entry entry;
	char out[400], in[400];
	uint32_t event;
	int wrong = 0;

	put(eq, FI_MR_COMPLETE, 5);
	event = 77;
	memset(&entry, 0, sizeof(entry));
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry), "an entry is read: 24 bytes");
	ok(event == FI_MR_COMPLETE && is_entry(&entry, 5), "the event and the entry are those that were written");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "once");

	for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
		size_t length = lengths[n];

		fill(out, sizeof(out));
		is(fi_eq_write(eq, (uint32_t)(1000 + n), out, length, 0), (long long)length, "%zu bytes are written",
		   length);
		memset(in, 0, sizeof(in));
		event = 0;
		is(fi_eq_read(eq, &event, in, sizeof(in), 0), (long long)length, "%zu bytes are read, into a larger buffer",
		   length);
		ok(event == 1000 + n && !memcmp(in, out, length) && all_zero(in + length, sizeof(in) - length),
		   "%zu bytes: are the same, and nothing more", length);
	}

	/* Arrays that are too small, of every size. */
	put(eq, 3, 6);
	put(eq, 4, 7);
	for (size_t room = 0; room < sizeof(entry); room++) {
		memset(in, 0x5a, sizeof(in));
		wrong += fi_eq_read(eq, &event, in, room, 0) != -FI_ETOOSMALL;
		wrong += fi_eq_read(eq, &event, in, room, FI_PEEK) != -FI_ETOOSMALL;
		wrong += fi_eq_sread(eq, &event, in, room, 1000, 0) != -FI_ETOOSMALL;
		for (size_t n = room; n < sizeof(in); n++)
			wrong += in[n] != 0x5a;
	}
	none(wrong, "too small a buffer: -FI_ETOOSMALL, and nothing is written beyond it");
	for (int n = 0; n < 5; n++) {
		event = 0;
		memset(&entry, 0, sizeof(entry));
		wrong += n % 2 ? fi_eq_sread(eq, &event, &entry, sizeof(entry), 0, FI_PEEK) != sizeof(entry) :
				 fi_eq_read(eq, &event, &entry, sizeof(entry), FI_PEEK) != sizeof(entry);
		wrong += event != 3 || !is_entry(&entry, 6);
	}
	none(wrong, "an event that is peeked at stays in its place");
	is(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), sizeof(entry), "it is read");
	ok(event == 3 && is_entry(&entry, 6), "the same");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry), "and the next");
	ok(event == 4 && is_entry(&entry, 7), "in their order");

	for (uint64_t n = 0; n < MANY; n++)
		put(eq, (uint32_t)n, n);
	for (uint64_t n = 0; n < MANY; n++)
		wrong += fi_eq_read(eq, &event, &entry, sizeof(entry), 0) != sizeof(entry) || event != n ||
			!is_entry(&entry, n);
	none(wrong, "%d events, more than the queue's size, are read in their order", MANY);
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "and no more");
	put(eq, 1, 1);
	is(fi_close(&eq->fid), 0, "a queue with an event is closed");
}

/* ms, for events that should come at once. */
enum { AN_HOUR = 3600000 };

static void timeouts(void)
{
	static const int kind[] = { FI_WAIT_FD, FI_WAIT_UNSPEC };
	struct fi_eq_entry entry;
	uint32_t event = 77;

	for (int n = 0; n < 2; n++) {
		struct fid_eq *eq = open_queue(kind[n], FI_WRITE);
		long long start, took;

		for (int timeout = 0; timeout <= 200; timeout += 100) {
			start = milliseconds();
			is(fi_eq_sread(eq, &event, &entry, sizeof(entry), timeout, 0), -FI_EAGAIN,
			   "nothing comes in %d ms", timeout);
			took = milliseconds() - start;
			ok(took >= timeout, "that took %lld ms", took);
		}
		put(eq, 9, 9);
		is(fi_eq_sread(eq, &event, &entry, sizeof(entry), AN_HOUR, 0), sizeof(entry),
		   "an event in the queue is read at once");
		ok(event == 9 && is_entry(&entry, 9), "and is the written one");
		is(fi_close(&eq->fid), 0, "closed");
	}
	struct fid_eq *none = open_queue(FI_WAIT_NONE, FI_WRITE);

	is(fi_eq_sread(none, &event, &entry, sizeof(entry), 0, 0), -FI_EINVAL, "FI_WAIT_NONE: no thread can wait");
	ok(rdmamr_last_reason()[0], "which is reported in words: %s", rdmamr_last_reason());
	put(none, 2, 3);
	is(fi_eq_sread(none, &event, &entry, sizeof(entry), 0, 0), -FI_EINVAL,
	   "FI_WAIT_NONE: not for an event in the queue either");
	is(fi_eq_read(none, &event, &entry, sizeof(entry), 0), sizeof(entry), "FI_WAIT_NONE: but it can be read");
	ok(event == 2 && is_entry(&entry, 3), "FI_WAIT_NONE: the written event");
	is(fi_close(&none->fid), 0, "closed");
}

/* --- Another thread --- */

struct waiter {
	struct fid_eq *eq;
	int fd, timeout;
	volatile int started, ended;
	ssize_t got;
	uint32_t event;
	struct fi_eq_entry entry;
};

static void *waits_by_sread(void *argument)
{
	struct waiter *waiter = argument;

	waiter->started = 1;
	waiter->got = fi_eq_sread(waiter->eq, &waiter->event, &waiter->entry, sizeof(waiter->entry), waiter->timeout,
				  0);
	waiter->ended = 1;
	return NULL;
}

static void *waits_by_poll(void *argument)
{
	struct waiter *waiter = argument;

	waiter->started = 1;
	waiter->got = readable(waiter->fd, waiter->timeout);
	waiter->ended = 1;
	return NULL;
}

/* The thread, when it has had the time to be asleep. */
static pthread_t waiting(void *(*function)(void *), struct waiter *waiter)
{
	pthread_t thread;

	waiter->started = waiter->ended = 0;
	must(pthread_create(&thread, NULL, function, waiter) == 0);
	while (!waiter->started)
		sched_yield();
	usleep(100000);
	return thread;
}

static void woken(void)
{
	static const int timeouts_of[] = { -1, AN_HOUR };
	struct fid_eq *eq = open_queue(FI_WAIT_FD, FI_WRITE);
	struct waiter waiter = { .eq = eq };
	pthread_t thread;

	for (uint64_t n = 0; n < 2; n++) {
		waiter.timeout = timeouts_of[n];
		thread = waiting(waits_by_sread, &waiter);
		ok(!waiter.ended, "fi_eq_sread with timeout %d waits", waiter.timeout);
		put(eq, 5, 50 + n);
		must(pthread_join(thread, NULL) == 0);
		ok(waiter.got == sizeof(waiter.entry) && waiter.event == 5 &&
		   is_entry(&waiter.entry, 50 + n), "and is woken by a write, with the written event");
	}
	must(fi_control(&eq->fid, FI_GETWAIT, &waiter.fd) == 0);
	thread = waiting(waits_by_poll, &waiter);
	ok(!waiter.ended, "poll of another thread waits");
	put(eq, 6, 60);
	must(pthread_join(thread, NULL) == 0);
	is(waiter.got, 1, "and is woken by a write");
	is(fi_eq_read(eq, &waiter.event, &waiter.entry, sizeof(waiter.entry), 0), sizeof(waiter.entry),
	   "with an event to read");
	ok(waiter.event == 6 && is_entry(&waiter.entry, 60), "the written one");

	/* One event for two waiting threads: one gets it, the other goes on. */
	struct waiter first = { .eq = eq, .timeout = -1 }, second = { .eq = eq, .timeout = -1 };
	pthread_t threads[2] = { waiting(waits_by_sread, &first), waiting(waits_by_sread, &second) };

	put(eq, 7, 70);
	for (int tries = 0; tries < 3000 && !first.ended && !second.ended; tries++)
		usleep(10000);
	usleep(100000);
	is(first.ended + second.ended, 1, "two wait: one event ends one wait");
	put(eq, 8, 80);
	for (int n = 0; n < 2; n++)
		must(pthread_join(threads[n], NULL) == 0);
	ok(first.event + second.event == 15 && is_entry(&first.entry, first.event * 10) &&
	   is_entry(&second.entry, second.event * 10), "two wait: two events end both");
	is(fi_close(&eq->fid), 0, "closed");
}

static void descriptors(void)
{
	struct fid_eq *eq = open_queue(FI_WAIT_FD, FI_WRITE), *none = open_queue(FI_WAIT_NONE, FI_WRITE);
	struct fid_eq *any = open_queue(FI_WAIT_UNSPEC, FI_WRITE);
	struct fi_eq_entry entry;
	int fd = -1, again = -1, obj = -1, wrong = 0;
	uint32_t event;

	is(fi_control(&eq->fid, FI_GETWAIT, &fd), 0, "FI_GETWAIT");
	if (!ok(fd >= 0 && readable(fd, 0) == 0, "a descriptor that is not readable while the queue is empty"))
		return;
	must(fi_control(&eq->fid, FI_GETWAIT, &again) == 0);
	is(again, fd, "the same each time");
	put(eq, 1, 1);
	is(readable(fd, 10000), 1, "one event: readable");
	put(eq, 2, 2);
	is(fi_eq_read(eq, &event, &entry, 1, 0), -FI_ETOOSMALL, "read into too small a buffer");
	is(readable(fd, 0), 1, "still readable");
	must(fi_eq_read(eq, &event, &entry, sizeof(entry), FI_PEEK) == sizeof(entry));
	is(readable(fd, 0), 1, "looked at: still readable");
	must(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == sizeof(entry));
	is(readable(fd, 0), 1, "one of two read: still readable");
	must(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0) == sizeof(entry));
	is(readable(fd, 50), 0, "both read: not readable");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "and empty");
	for (uint64_t round = 0; round < 1000; round++) {
		for (uint64_t n = 0; n <= round % 3; n++)
			put(eq, 1, n);
		for (uint64_t n = 0; n <= round % 3; n++) {
			wrong += readable(fd, 0) != 1;
			wrong += fi_eq_read(eq, &event, &entry, sizeof(entry), 0) != sizeof(entry);
		}
		wrong += readable(fd, 0) != 0;
	}
	none(wrong, "1000 times: readable just as long as the queue has an event");

	is(fi_control(&eq->fid, FI_GETWAITOBJ, &obj), 0, "FI_GETWAITOBJ");
	is(obj, FI_WAIT_FD, "is FI_WAIT_FD");
	is(fi_control(&none->fid, FI_GETWAITOBJ, &obj), 0, "FI_GETWAITOBJ without one");
	is(obj, FI_WAIT_NONE, "is FI_WAIT_NONE");
	fd = -7;
	is(fi_control(&none->fid, FI_GETWAIT, &fd), -FI_ENODATA, "FI_GETWAIT without one");
	is(fd, -7, "writes nothing");
	is(fi_control(&any->fid, FI_GETWAIT, &fd), 0, "FI_GETWAIT of an unspecified one");
	put(any, 1, 1);
	is(readable(fd, 10000), 1, "is a descriptor too");
	is(fi_control(&eq->fid, FI_GETWAIT, NULL), -FI_EINVAL, "FI_GETWAIT to nowhere");
	is(fi_control(&eq->fid, FI_GETWAITOBJ, NULL), -FI_EINVAL, "FI_GETWAITOBJ to nowhere");
	for (int command = -1; command < 40; command++)
		if (command != FI_GETWAIT && command != FI_GETWAITOBJ)
			wrong += fi_control(&eq->fid, command, NULL) != -FI_ENOSYS;
	none(wrong, "every other control of a queue: -FI_ENOSYS");
	is(fi_close(&eq->fid), 0, "closed");
	is(fi_close(&none->fid), 0, "closed");
	is(fi_close(&any->fid), 0, "closed");
}

/* --- Many threads --- */

enum { WRITERS = 4, READERS = 4, EACH = 3000 };

static struct {
	struct fid_eq *eq;
	unsigned char seen[WRITERS][EACH];
	int wrong, left;
} crowd;

static void *writes(void *argument)
{
	uint64_t writer = (uintptr_t)argument;

	for (uint64_t n = 0; n < EACH; n++)
		put(crowd.eq, (uint32_t)writer, writer << 32 | n);
	return NULL;
}

static void *reads(void *argument)
{
	long long last[WRITERS] = { -1, -1, -1, -1 };
	uintptr_t how = (uintptr_t)argument;
	struct fi_eq_entry entry;
	uint32_t event;

	while (__atomic_load_n(&crowd.left, __ATOMIC_SEQ_CST) > 0) {
		ssize_t got = how % 2 ? fi_eq_read(crowd.eq, &event, &entry, sizeof(entry), 0) :
					fi_eq_sread(crowd.eq, &event, &entry, sizeof(entry), 50, 0);
		uint64_t number = (uint64_t)~(uintptr_t)entry.context;

		if (got == -FI_EAGAIN) {
			sched_yield();
			continue;
		}
		if (got != sizeof(entry) || event >= WRITERS || number >> 32 != event || (uint32_t)number >= EACH ||
		    !is_entry(&entry, number) || (long long)(uint32_t)number <= last[event] ||
		    __atomic_fetch_add(&crowd.seen[event][(uint32_t)number], 1, __ATOMIC_SEQ_CST)) {
			__atomic_fetch_add(&crowd.wrong, 1, __ATOMIC_SEQ_CST);
		} else {
			last[event] = (uint32_t)number;
		}
		__atomic_fetch_sub(&crowd.left, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void crowds(void)
{
	pthread_t threads[WRITERS + READERS];
	struct fi_eq_entry entry;
	uint32_t event;
	int fd, missing = 0;

	crowd.eq = open_queue(FI_WAIT_FD, FI_WRITE);
	crowd.left = WRITERS * EACH;
	for (uintptr_t n = 0; n < WRITERS; n++) {
		must(pthread_create(&threads[n], NULL, writes, (void *)n) == 0);
		must(pthread_create(&threads[WRITERS + n], NULL, reads, (void *)n) == 0);
	}
	for (int n = 0; n < WRITERS + READERS; n++)
		must(pthread_join(threads[n], NULL) == 0);
	for (int n = 0; n < WRITERS; n++)
		for (int k = 0; k < EACH; k++)
			missing += crowd.seen[n][k] != 1;
	is(crowd.wrong, 0, "%d threads write, %d read: each event whole, and each writer's in their order", WRITERS,
	   READERS);
	is(missing, 0, "each of them once");
	is(fi_eq_read(crowd.eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "nothing is left");
	must(fi_control(&crowd.eq->fid, FI_GETWAIT, &fd) == 0);
	is(readable(fd, 50), 0, "and nothing to wait for");
	is(fi_close(&crowd.eq->fid), 0, "closed");
}

static void words(void)
{
	static const int errnos[] = { EINVAL, EFAULT, ENOMEM, EPERM, 12345, -1, 0 };
	struct fid_eq *eq = open_queue(FI_WAIT_FD, FI_WRITE);
	const char *text, *other;
	char buf[200], small[8];
	int wrong = 0;

	for (size_t n = 0; n < sizeof(errnos) / sizeof(errnos[0]); n++) {
		text = fi_eq_strerror(eq, errnos[n], NULL, NULL, 0);
		ok(text && text[0], "error %d in words: %s", errnos[n], text ? text : "none");
		memset(buf, 0x5a, sizeof(buf));
		other = fi_eq_strerror(eq, errnos[n], NULL, buf, sizeof(buf));
		ok(other && memchr(buf, 0, sizeof(buf)) && buf[0] && !strcmp(buf, other),
		   "error %d: copied to the caller",
		   errnos[n]);
		for (size_t room = 1; room < sizeof(small); room++) {
			memset(small, 0x5a, sizeof(small));
			fi_eq_strerror(eq, errnos[n], NULL, small, room);
			wrong += !memchr(small, 0, room);
			for (size_t k = room; k < sizeof(small); k++)
				wrong += small[k] != 0x5a;
		}
	}
	none(wrong, "in a small buffer it is cut, and ends with a NUL");
	text = fi_eq_strerror(eq, EFAULT, NULL, NULL, 0);
	snprintf(buf, sizeof(buf), "%s", text);
	ok(strcmp(fi_eq_strerror(eq, ENOMEM, NULL, NULL, 0), buf), "different errors have different words");
	is(fi_close(&eq->fid), 0, "closed");
}

/* --- With a device: errors are events of registrations that failed --- */

static struct fid_domain *bound_domain(struct ibv_pd *pd, struct fid_eq *eq)
{
	struct fid_domain *domain = NULL;

	must(open_with(pd, api, 0, 0, &domain) == 0);
	must(fi_domain_bind(domain, &eq->fid, FI_REG_MR) == 0);
	return domain;
}

/* A registration that will fail, when its event is there. */
static struct fid_mr *failing(struct fid_domain *domain, struct fid_eq *eq, uint64_t key, void *context, bool first)
{
	struct fi_eq_entry entry;
	struct fid_mr *mr = NULL;
	uint32_t event;

	must(fi_mr_reg(domain, NOWHERE, PAGE, FI_ALL, 0, key, 0, &mr, context) == 0 && mr);
	/* Behind other events it cannot be waited for: by then it is in the queue. */
	if (first)
		must(fi_eq_sread(eq, &event, &entry, sizeof(entry), 10000, FI_PEEK) == -FI_EAVAIL);
	else
		sleep(1);
	return mr;
}

static void errors(struct ibv_pd *pd)
{
	struct fid_eq *eq = open_queue(FI_WAIT_FD, FI_WRITE);
	struct fid_domain *domain = bound_domain(pd, eq);
	struct fi_eq_err_entry error, next;
	struct fid_mr *first, *second;
	struct fi_eq_entry entry = entry_of(1);
	uint32_t event = 77;
	char text[400], where[40];
	int fd, context[2];

	snprintf(where, sizeof(where), "%p", (void *)NOWHERE);
	must(fi_control(&eq->fid, FI_GETWAIT, &fd) == 0);
	first = failing(domain, eq, 1, &context[0], true);
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAVAIL, "an error: read");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), FI_PEEK), -FI_EAVAIL, "an error: looked at");
	is(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), -FI_EAVAIL, "an error: waited for");
	is(fi_eq_read(eq, &event, &entry, 0, 0), -FI_EAVAIL, "an error: read into no buffer");
	ok(event == 77 && is_entry(&entry, 1), "an error: nothing was written");
	is(readable(fd, 0), 1, "an error: the descriptor is readable");
	memset(&error, 0, sizeof(error));
	is(fi_eq_readerr(eq, &error, 0), sizeof(error), "an error: is read by its own call: 48 bytes");
	ok(error.fid == &first->fid && error.context == &context[0] && error.data == 0,
	   "an error: of the region, with the context");
	is(error.err, FI_EFAULT, "an error: positive, FI_EFAULT");
	is(error.prov_errno, EFAULT, "an error: the kernel's is EFAULT");
	ok(error.err_data && error.err_data_size && memmem(error.err_data, error.err_data_size, where, strlen(where)),
	   "an error: with its reason in words, which names the address: %.*s", (int)error.err_data_size,
	   (const char *)error.err_data);
	snprintf(text, sizeof(text), "%s", fi_eq_strerror(eq, error.prov_errno, error.err_data, NULL, 0));
	ok(text[0], "an error: in words by fi_eq_strerror: %s", text);
	is(fi_eq_readerr(eq, &next, 0), -FI_EAGAIN, "an error: once");
	is(readable(fd, 50), 0, "an error: then there is nothing to wait for");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "an error: nor to read");

	/* Between other events: each has its turn. */
	put(eq, 10, 10);
	second = failing(domain, eq, 2, &context[1], false);
	put(eq, 11, 11);
	is(fi_eq_readerr(eq, &next, 0), -FI_EAGAIN, "an error behind an event is not read before it");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry), "the event before it");
	ok(event == 10 && is_entry(&entry, 10), "is the written one");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAVAIL, "then the error is at the head");
	is(fi_eq_sread(eq, &event, &entry, sizeof(entry), 0, 0), -FI_EAVAIL, "and nothing passes it");

	/* The caller's own buffer for the words, as from libfabric 1.5 on. */
	char room[2000] = { 0 };

	memset(&next, 0, sizeof(next));
	next.err_data = room;
	next.err_data_size = sizeof(room);
	is(fi_eq_readerr(eq, &next, 0), sizeof(next), "it is read");
	ok(next.fid == &second->fid && next.context == &context[1] && next.err == FI_EFAULT, "it is the second");
	ok(next.err_data == room && next.err_data_size <= sizeof(room) &&
	   memmem(room, next.err_data_size, where, strlen(where)), "its words are in the caller's buffer: %s", room);
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry), "then the event behind it");
	ok(event == 11 && is_entry(&entry, 11), "is the written one");

	/* A small buffer: gets as much as fits. */
	must(fi_close(&second->fid) == 0);
	second = failing(domain, eq, 2, &context[1], true);
	memset(room, 0x5a, sizeof(room));
	memset(&next, 0, sizeof(next));
	next.err_data = room;
	next.err_data_size = 10;
	is(fi_eq_readerr(eq, &next, 0), sizeof(next), "with a small buffer for the words it is read too");
	ok(next.err_data == room && next.err_data_size <= 10 && room[10] == 0x5a, "with as many as fit");

	/* The region of a failed registration exists until it is closed; then its error is gone. */
	is(fi_close(&domain->fid), -FI_EBUSY, "the domain has two regions that failed");
	ok(!fi_mr_desc(first) && fi_mr_key(first) == FI_KEY_NOTAVAIL, "which have neither desc nor key");
	is(fi_close(&first->fid), 0, "one is closed");
	is(fi_close(&second->fid), 0, "the other is closed");
	second = failing(domain, eq, 2, NULL, true);
	is(fi_close(&second->fid), 0, "a third is closed before its error is read");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "then there is no error");
	is(fi_eq_readerr(eq, &next, 0), -FI_EAGAIN, "nor is one read");
	is(readable(fd, 50), 0, "nor waited for");
	put(eq, 12, 12);
	second = failing(domain, eq, 2, NULL, false);
	put(eq, 13, 13);
	is(fi_close(&second->fid), 0, "a fourth, between two events, is closed");
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry), "they are read");
	ok(event == 12 && is_entry(&entry, 12) && fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == sizeof(entry) &&
	   event == 13 && is_entry(&entry, 13), "in their order");

	/* Before libfabric 1.5 the caller could not pass a buffer. */
	is(fi_close(&eq->fid), -FI_EBUSY, "the queue is not closed while the domain is bound to it");
	is(fi_close(&domain->fid), 0, "the domain is closed");
	is(fi_close(&eq->fid), 0, "then the queue is");
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };

	must(rdmamr_eq_open(FI_VERSION(1, 4), &attr, &eq, NULL) == 0);
	domain = bound_domain(pd, eq);
	first = failing(domain, eq, 1, NULL, true);
	memset(&error, 0xff, sizeof(error));
	is(fi_eq_readerr(eq, &error, 0), sizeof(error), "api 1.4: an error is read into an uninitialised entry");
	ok(error.err_data != (void *)-1 && error.err_data_size < 100000 &&
	   memmem(error.err_data, error.err_data_size, where, strlen(where)), "api 1.4: its words are the queue's own");
	must(fi_close(&first->fid) == 0 && fi_close(&domain->fid) == 0);
	is(fi_close(&eq->fid), 0, "api 1.4: closed");
}

/* Events of successful registrations, and two domains on a queue. */
static void bound(struct ibv_pd *pd)
{
	struct fid_eq *eq = open_queue(FI_WAIT_FD, 0);
	struct fid_domain *domains[2] = { bound_domain(pd, eq), bound_domain(pd, eq) };
	struct fid_mr *mrs[2] = { NULL, NULL };
	struct fi_eq_entry entry, looked;
	char *memory = pages(2);
	int context[2], fd;
	uint32_t event;

	must(fi_control(&eq->fid, FI_GETWAIT, &fd) == 0);
	for (int n = 0; n < 2; n++) {
		must(fi_mr_reg(domains[n], memory + n * PAGE, PAGE, FI_ALL, 0, 7, 0, &mrs[n], &context[n]) == 0 &&
		     mrs[n]);
		is(readable(fd, 10000), 1, "domain %d: the descriptor becomes readable for the registration", n);
		memset(&looked, 0, sizeof(looked));
		is(fi_eq_read(eq, &event, &looked, sizeof(looked), FI_PEEK), sizeof(looked),
		   "domain %d: its event is there", n);
		is(fi_eq_read(eq, &event, &entry, sizeof(entry) - 1, 0), -FI_ETOOSMALL, "domain %d: not into a smaller buffer",
		   n);
		is(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), sizeof(entry), "domain %d: is read", n);
		ok(event == FI_MR_COMPLETE && entry.fid == &mrs[n]->fid && entry.context == &context[n] &&
		   !entry.data &&
		   !memcmp(&entry, &looked, sizeof(entry)), "domain %d: of its region, with the context", n);
		ok(fi_mr_key(mrs[n]) == 7 && fi_mr_desc(mrs[n]), "domain %d: which has its key and desc", n);
	}
	for (int n = 0; n < 2; n++) {
		must(fi_close(&mrs[n]->fid) == 0);
		is(fi_close(&eq->fid), -FI_EBUSY, "the queue is not closed while %d domains are bound to it", 2 - n);
		ok(rdmamr_last_reason()[0], "which is reported in words: %s", rdmamr_last_reason());
		is(fi_close(&domains[n]->fid), 0, "domain %d is closed", n);
	}
	is(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAGAIN, "the queue works on");
	is(fi_close(&eq->fid), 0, "and is closed");
}

int main(void)
{
	struct ibv_context *context;
	struct ibv_pd *pd;

	fabric_begin();
	as_case(opened(), "queues opened, and refused");
	as_case(empty(), "an empty queue");
	as_case(written(), "events written and read");
	as_case(timeouts(), "reads that wait");
	as_case(woken(), "readers woken");
	as_case(descriptors(), "descriptors to wait for");
	as_case(crowds(), "many threads at a queue");
	as_case(words(), "errors in words");
	if (!getenv("CHECK_DEVICE")) {
		skip("errors, and bound domains", "no device is named in CHECK_DEVICE");
		return done_testing();
	}
	context = open_device();
	pd = ibv_alloc_pd(context);
	must(pd);
	as_case(errors(pd), "errors of registrations");
	as_case(bound(pd), "domains bound to queues");
	is(ibv_dealloc_pd(pd), 0, "the PD has no region");
	is(ibv_close_device(context), 0, "the device is closed");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
