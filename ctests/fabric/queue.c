/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The event queue: events are read once, in their order, also by threads that wait, and errors by their own call. */
#include "common.h"

#define MANY 2000

static const uint32_t api = FI_VERSION(1, 17);

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

/* Whether the last read has got this event, with the entry of this number. */
static bool got(uint32_t which, uint64_t number) { return event == which && is_entry(&entry, number); }
static bool said(const char *words) { return strstr(rdmamr_last_reason(), words) && rdmamr_last_reason()[0]; }

static void opened(void)
{
	static const struct { int wait_obj, answer; } rows[] = {
		{ FI_WAIT_NONE, 0 }, { FI_WAIT_UNSPEC, 0 }, { FI_WAIT_FD, 0 }, { FI_WAIT_SET, -FI_ENOSYS }, { 99, -FI_ENOSYS },
	};
	struct fid_eq *const untouched = (struct fid_eq *)0x5550, *eq;
	struct fi_eq_attr attr = { .size = 1 };

	for (size_t n = 0; n < COUNT(rows); n++) {
		about("wait object %d", rows[n].wait_obj);
		attr.wait_obj = rows[n].wait_obj;
		eq = untouched;
		gives(rows[n].answer, rdmamr_eq_open(api, &attr, &eq, &attr));
		if (rows[n].answer) {
			holds(eq == untouched && said(""));
		} else {
			holds(eq->fid.fclass == FI_CLASS_EQ && eq->fid.context == &attr);
			gives(0, fi_close(&eq->fid));
		}
	}
	about("other flags");
	attr.wait_obj = FI_WAIT_FD;
	eq = untouched;
	for (int bit = 0; bit < 64; bit++) {
		attr.flags = 1ULL << bit;
		if (attr.flags != FI_WRITE)
			gives(-FI_EBADFLAGS, rdmamr_eq_open(api, &attr, &eq, NULL));
	}
	holds(said("flag"));
	attr.flags = FI_WRITE;
	gives(-FI_EINVAL, rdmamr_eq_open(api, &attr, NULL, NULL));
	holds(eq == untouched);
}

static void lengths(void)
{
	static const size_t lengths[] = { 1, 24, 300 };
	struct fid_eq *eq = queue_with(FI_WAIT_FD, FI_WRITE), *mute = queue_with(FI_WAIT_FD, 0);
	char out[400], in[400];

	for (size_t n = 0; n < COUNT(lengths); n++) {
		about("%zu bytes", lengths[n]);
		fill(out, sizeof(out));
		gives(lengths[n], fi_eq_write(eq, (uint32_t)(1000 + n), out, lengths[n], 0));
		memset(in, 0, sizeof(in));
		gives(lengths[n], fi_eq_read(eq, &event, in, sizeof(in), 0));
		holds(event == 1000 + n && !memcmp(in, out, lengths[n]) && all_zero(in + lengths[n], sizeof(in) - lengths[n]));
	}
	about("more events than the queue's size");
	for (uint64_t n = 0; n < MANY; n++)
		put(eq, (uint32_t)n, n);
	for (uint64_t n = 0; n < MANY; n++)
		holds(take(eq, 0) == sizeof(entry) && got((uint32_t)n, n));
	gives(-FI_EAGAIN, take(eq, 0));
	put(eq, 1, 1);
	gives(0, fi_close(&eq->fid));
	about("a queue without FI_WRITE");
	gives(-FI_EINVAL, fi_eq_write(mute, 1, &entry, sizeof(entry), 0));
	holds(said("FI_WRITE"));
	gives(-FI_EAGAIN, take(mute, 0));
	gives(0, fi_close(&mute->fid));
}

static void timeouts(void)
{
	static const int kind[] = { FI_WAIT_FD, FI_WAIT_UNSPEC };
	struct fid_eq *eq;

	for (int n = 0; n < 2; n++) {
		eq = queue_with(kind[n], FI_WRITE);
		for (int timeout = 0; timeout <= 200; timeout += 100) {
			double start = seconds_now();

			gives(-FI_EAGAIN, wait_and_take(eq, timeout, 0));
			ok(seconds_now() - start >= timeout / 1000.0, "that took %d ms", timeout);
		}
		put(eq, 9, 9);
		gives(sizeof(entry), wait_and_take(eq, PATIENCE, 0));
		holds(got(9, 9));
		gives(0, fi_close(&eq->fid));
	}
	about("FI_WAIT_NONE: no thread can wait");
	eq = queue_with(FI_WAIT_NONE, FI_WRITE);
	gives(-FI_EINVAL, wait_and_take(eq, 0, 0));
	holds(said(""));
	put(eq, 2, 3);
	gives(-FI_EINVAL, wait_and_take(eq, 0, 0));
	gives(sizeof(entry), take(eq, 0));
	holds(got(2, 3));
	gives(0, fi_close(&eq->fid));
}

/* --- Another thread --- */

struct waiter {
	struct fid_eq *eq;
	int fd, timeout;
	volatile int ended;
	ssize_t got;
	uint32_t event;
	struct fi_eq_entry entry;
};

/* By fi_eq_sread, or by poll if there is a descriptor. */
static void *waits(void *argument)
{
	struct waiter *waiter = argument;

	waiter->got = waiter->fd ? readable(waiter->fd, waiter->timeout) :
		fi_eq_sread(waiter->eq, &waiter->event, &waiter->entry, sizeof(waiter->entry), waiter->timeout, 0);
	waiter->ended = 1;
	return NULL;
}

/* The thread, when it has had the time to be asleep. */
static pthread_t waiting(struct waiter *waiter)
{
	pthread_t thread = must_start(waits, waiter);

	usleep(100000);
	return thread;
}

static void woken(void)
{
	struct fid_eq *eq = queue_with(FI_WAIT_FD, FI_WRITE);
	const struct waiter rows[] = {
		{ .eq = eq, .timeout = -1, .got = sizeof(entry) },
		{ .eq = eq, .timeout = PATIENCE, .got = sizeof(entry) },
		{ .eq = eq, .timeout = PATIENCE, .got = 1, .fd = wait_fd(eq) },
	};
	struct waiter both[2] = { { .eq = eq, .timeout = -1 }, { .eq = eq, .timeout = -1 } };
	pthread_t threads[2];

	for (uint64_t n = 0; n < COUNT(rows); n++) {
		struct waiter waiter = rows[n];
		pthread_t thread = waiting(&waiter);

		about("%s, timeout %d", waiter.fd ? "poll" : "fi_eq_sread", waiter.timeout);
		holds(!waiter.ended);
		put(eq, 5, 50 + n);
		must_join(thread);
		is(waiter.got, rows[n].got, "is woken by a write");
		if (waiter.fd)
			gives(sizeof(entry), fi_eq_read(eq, &waiter.event, &waiter.entry, sizeof(entry), 0));
		holds(waiter.event == 5 && is_entry(&waiter.entry, 50 + n));
	}

	about("one event for two waiting threads");
	for (int n = 0; n < 2; n++)
		threads[n] = waiting(&both[n]);
	put(eq, 7, 70);
	comes(both[0].ended || both[1].ended);
	usleep(100000);
	gives(1, both[0].ended + both[1].ended);
	put(eq, 8, 80);
	for (int n = 0; n < 2; n++)
		must_join(threads[n]);
	holds(both[0].event + both[1].event == 15);
	for (int n = 0; n < 2; n++)
		holds(is_entry(&both[n].entry, both[n].event * 10));
	gives(0, fi_close(&eq->fid));
}

static void descriptors(void)
{
	struct fid_eq *eq = queue_with(FI_WAIT_FD, FI_WRITE), *none = queue_with(FI_WAIT_NONE, FI_WRITE);
	struct fid_eq *any = queue_with(FI_WAIT_UNSPEC, FI_WRITE);
	int fd = wait_fd(eq), other = -7, obj = -1;

	gives(fd, wait_fd(eq));
	for (uint64_t round = 0; round < 1000; round++) {
		for (uint64_t n = 0; n <= round % 3; n++)
			put(eq, 1, n);
		for (uint64_t n = 0; n <= round % 3; n++)
			holds(readable(fd, 0) == 1 && take(eq, 0) == sizeof(entry));
		holds(readable(fd, 0) == 0);
	}
	gives(0, fi_control(&eq->fid, FI_GETWAITOBJ, &obj));
	gives(FI_WAIT_FD, obj);
	gives(0, fi_control(&none->fid, FI_GETWAITOBJ, &obj));
	gives(FI_WAIT_NONE, obj);
	gives(-FI_ENODATA, fi_control(&none->fid, FI_GETWAIT, &other));
	gives(-7, other);
	put(any, 1, 1);
	gives(1, readable(wait_fd(any), 10000));
	gives(-FI_EINVAL, fi_control(&eq->fid, FI_GETWAIT, NULL));
	gives(-FI_EINVAL, fi_control(&eq->fid, FI_GETWAITOBJ, NULL));
	for (int command = -1; command < 40; command++)
		if (command != FI_GETWAIT && command != FI_GETWAITOBJ)
			gives(-FI_ENOSYS, fi_control(&eq->fid, command, NULL));
	gives(0, fi_close(&eq->fid));
	gives(0, fi_close(&none->fid));
	gives(0, fi_close(&any->fid));
}

static void words(void)
{
	struct fid_eq *eq = queue_with(FI_WAIT_FD, FI_WRITE);
	char buf[200], whole[sizeof(buf)];

	snprintf(whole, sizeof(whole), "%s", fi_eq_strerror(eq, EFAULT, NULL, NULL, 0));
	holds(whole[0] && strcmp(whole, fi_eq_strerror(eq, ENOMEM, NULL, NULL, 0)));
	holds(fi_eq_strerror(eq, 12345, NULL, NULL, 0)[0] && fi_eq_strerror(eq, -1, NULL, NULL, 0)[0]);
	/* In a small buffer the words are cut. */
	for (size_t room = 1; room < sizeof(buf); room = room < 7 ? room + 1 : room * 4) {
		about("a buffer of %zu bytes", room);
		memset(buf, 0x5a, sizeof(buf));
		fi_eq_strerror(eq, EFAULT, NULL, buf, room);
		holds(memchr(buf, 0, room) && buf[room] == 0x5a && !strncmp(buf, whole, room - 1));
	}
	gives(0, fi_close(&eq->fid));
}

/* --- With a device: registrations have events too --- */

static char nowhere[40]; /* the unmapped address, in words */

static bool says(const struct fi_eq_err_entry *error, const char *words)
{
	return error->err_data && error->err_data_size < 100000 && memmem(error->err_data, error->err_data_size, words, strlen(words));
}

/*
 * Steps, each a letter and a number. w writes event N; g registers region N, in a domain of its own,
 * and i the same at an offset that the program chose; f registers memory that is not mapped, h memory
 * of which half is, o read-only memory, m three buffers of which one is not mapped; c closes the region.
 * r reads the event N, p looks at it, s and l do the same by fi_eq_sread; a region's event is its number
 * and 100. "r-": there is none, "r!": the next is an error. e reads the error of region N. t reads into
 * buffers that are too small. k: so many registrations of region 3, whose domain has the cache, were hits.
 */
static const struct { const char *name, *steps; } scripts[] = {
	{ "an empty queue", "r- p- s- e-" },
	{ "an event is read once", "w5 r5 r- s-" },
	{ "a look leaves the event in its place", "w6 w7 t0 p6 l6 p6 l6 s6 t0 r7 r-" },
	{ "an error is read by its own call", "f1 r! p! s! l! t! e1 e- r- c1 r-" },
	{ "an error among events has its turn", "w10 f1 w11 e- r10 r! s! e1 r11 r- c1" },
	{ "a failed region's key is free once it is closed", "h1 e1 c1 o1 e1 c1 m1 e1 c1 g1 r101 c1" },
	{ "the event of a region", "g1 p101 t0 s101 r- c1" },
	{ "the event of a region with an offset", "i1 r101 r- c1" },
	{ "events of regions that the cache serves", "g3 r103 c3 g3 r103 c3 g3 r103 c3 g3 r103 c3 k2" },
	{ "events of two domains", "g1 g2 w5 r101 r102 r5 c2 c1" },
	{ "closed with its event in the queue", "g1 c1 r- s-" },
	{ "one of three is closed", "g1 g2 g3 c2 r101 r103 r- c1 c3" },
	{ "closed with its error in the queue", "f1 c1 r- e-" },
	{ "closed with its error among events", "w12 f1 w13 c1 r12 r13 r-" },
};
enum { REGIONS = 4 };

static void follows(struct ibv_pd *pd, const char *steps)
{
	struct fid_eq *eq = queue_with(FI_WAIT_FD, FI_WRITE);
	struct { struct fid_domain *domain; struct fid_mr *mr; const char *words; bool queued; } regions[REGIONS];
	char *memory = pages(4), in[sizeof(entry) + 1], letter, what[8];
	const struct { char letter; struct iovec iov[3]; size_t count; uint64_t access; const char *words; } made[] = {
		{ 'g', { { memory, PAGE } }, 1, FI_ALL, NULL },
		{ 'i', { { memory, PAGE } }, 1, FI_ALL, NULL },
		{ 'f', { { NOWHERE, PAGE } }, 1, FI_ALL, nowhere },
		{ 'h', { { memory, 2 * PAGE } }, 1, FI_ALL, "nothing is mapped at" },
		{ 'o', { { memory + 3 * PAGE, PAGE } }, 1, FI_RECV, "read-only" },
		{ 'm', { { memory, PAGE }, { NOWHERE, PAGE }, { memory + 2 * PAGE, PAGE } }, 3, FI_ALL, "EFAULT" },
	};
	const uint64_t hits = stats().hits;
	struct fi_eq_err_entry error;
	struct fi_mr_attr attr;
	int fd = wait_fd(eq), queued = 0, used;

	must(munmap(memory + PAGE, PAGE) == 0 && mprotect(memory + 3 * PAGE, PAGE, PROT_READ) == 0);
	for (int n = 0; n < REGIONS; n++) {
		regions[n].domain = bound_to(eq, pd, &kinds[n == 3 ? OFFSETS + PLAIN_KINDS : OFFSETS]);
		regions[n].queued = false;
	}
	for (; sscanf(steps, " %c%7s%n", &letter, what, &used) == 2; steps += used) {
		uint32_t number = (uint32_t)atoi(what), of = number % 100 % REGIONS;
		ssize_t want = what[0] == '-' ? -FI_EAGAIN : what[0] == '!' ? -FI_EAVAIL : (ssize_t)sizeof(entry), ret;
		struct fid_mr **mr = &regions[of].mr;
		size_t kind = 0;

		about("the step %c%s", letter, what);
		switch (letter) {
		case 'w':
			put(eq, number, number);
			queued++;
			break;
		case 'k':
			ok(stats().hits >= hits + number, "hits, as soon as the cache has the region");
			break;
		case 'c':
			gives(-FI_EBUSY, fi_close(&regions[of].domain->fid));
			gives(0, fi_close(&(*mr)->fid));
			queued -= regions[of].queued;
			break;
		case 'e':
			memset(&error, 0, sizeof(error));
			ret = fi_eq_readerr(eq, &error, 0);
			is(ret, want < 0 ? want : (ssize_t)sizeof(error), "the answer");
			if (ret < 0)
				break;
			holds(error.fid == &(*mr)->fid && error.context == mr && error.data == 0);
			holds(error.err == FI_EFAULT && error.prov_errno == EFAULT && says(&error, regions[of].words));
			holds(strlen(fi_eq_strerror(eq, error.prov_errno, error.err_data, NULL, 0)) > 5);
			holds(!fi_mr_desc(*mr) && fi_mr_key(*mr) == FI_KEY_NOTAVAIL);
			regions[of].queued = false;
			queued--;
			break;
		case 't':
			for (size_t room = 0; room < sizeof(entry); room++) {
				want = what[0] == '!' ? -FI_EAVAIL : -FI_ETOOSMALL;
				memset(in, 0x5a, sizeof(in));
				gives(want, fi_eq_read(eq, &event, in, room, 0));
				gives(want, fi_eq_read(eq, &event, in, room, FI_PEEK));
				gives(want, fi_eq_sread(eq, &event, in, room, 1000, 0));
				for (size_t n = room; n < sizeof(in); n++)
					holds(in[n] == 0x5a);
			}
			break;
		case 'r': case 'p': case 's': case 'l':
			ret = letter == 'r' ? take(eq, 0) : letter == 'p' ? take(eq, FI_PEEK) :
			      wait_and_take(eq, want > 0 ? -1 : 0, letter == 'l' ? FI_PEEK : 0);
			is(ret, want, "the answer");
			if (want < 0) {
				holds(nothing_read());
			} else if (number > 100) {
				holds(is_complete(mr));
				holds(fi_mr_key(*mr) == 7 && fi_mr_desc(*mr));
			} else {
				holds(got(number, number));
			}
			if (want < 0 || letter == 'p' || letter == 'l')
				break;
			queued--;
			if (number > 100)
				regions[of].queued = false;
			break;
		default:
			while (made[kind].letter != letter)
				must(++kind < COUNT(made));
			attr = (struct fi_mr_attr){ .mr_iov = made[kind].iov, .iov_count = made[kind].count, .access = made[kind].access,
						    .offset = letter == 'i' ? 0x10000 : 0, .requested_key = 7, .context = mr };
			gives(0, fi_mr_regattr(regions[of].domain, &attr, letter == 'i' ? RDMAMR_MR_OFFSET : 0, mr));
			/* It may replace others: the caller's thread makes it. */
			if (letter == 'i')
				holds(fi_mr_key(*mr) == 7 && fi_mr_desc(*mr) && !fi_mr_enable(*mr));
			/* Behind other events its own cannot be waited for: by then it is in the queue. */
			if (queued++ == 0)
				must(readable(fd, PATIENCE) == 1);
			else
				sleep(1);
			regions[of].queued = true;
			regions[of].words = made[kind].words;
		}
		is(readable(fd, queued ? 10000 : 0), queued > 0, "the descriptor is readable as long as there is an event");
	}
	about("%s", "");
	must(!*steps);
	for (int n = 0; n < REGIONS; n++) {
		gives(-FI_EBUSY, fi_close(&eq->fid));
		holds(said(""));
		gives(0, fi_close(&regions[n].domain->fid));
	}
	gives(-FI_EAGAIN, take(eq, 0));
	gives(0, fi_close(&eq->fid));
	munmap(memory, 4 * PAGE);
}

/* Where the words of an error are: libfabric 1.5 and later copy to the caller's buffer, if it has one. */
static void places(struct ibv_pd *pd)
{
	static char room[2000];
	static const struct {
		const char *name;
		uint32_t api;
		size_t size;
		bool copied, whole;
	} rows[] = {
		{ "the queue's", FI_VERSION(1, 17), 0, false, true },
		{ "a large buffer", FI_VERSION(1, 17), sizeof(room), true, true },
		{ "a small buffer", FI_VERSION(1, 17), 10, true, false },
		{ "a buffer before libfabric 1.5", FI_VERSION(1, 4), (size_t)-1, false, true },
	};
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_FD };

	for (size_t n = 0; n < COUNT(rows); n++) {
		struct fi_eq_err_entry error;
		struct fid_domain *domain;
		struct fid_mr *mr = NULL;
		struct fid_eq *eq = NULL;

		about("%s", rows[n].name);
		must(rdmamr_eq_open(rows[n].api, &attr, &eq, NULL) == 0);
		domain = bound_to(eq, pd, &kinds[OFFSETS]);
		must(fi_mr_reg(domain, NOWHERE, PAGE, FI_ALL, 0, 2, 0, &mr, NULL) == 0 && mr);
		gives(-FI_EAVAIL, wait_and_take(eq, PATIENCE, 0));
		memset(room, 0x5a, sizeof(room));
		memset(&error, 0xff, sizeof(error));
		error.err_data = room;
		error.err_data_size = rows[n].size;
		gives(sizeof(error), fi_eq_readerr(eq, &error, 0));
		gives(rows[n].copied, error.err_data == room);
		gives(rows[n].copied, room[0] != 0x5a);
		holds(!rows[n].copied || error.err_data_size <= rows[n].size);
		holds(rows[n].size == sizeof(room) || room[rows[n].copied ? rows[n].size : 0] == 0x5a);
		holds(says(&error, nowhere) || !rows[n].whole);
		must(fi_close(&mr->fid) == 0 && fi_close(&domain->fid) == 0);
		gives(0, fi_close(&eq->fid));
	}
}

int main(void)
{
	struct ibv_context *context;
	struct ibv_pd *pd;

	fabric_begin();
	as_case(opened(), "queues opened, and refused");
	as_case(lengths(), "events of each length");
	as_case(timeouts(), "reads that wait");
	as_case(woken(), "readers woken");
	as_case(descriptors(), "descriptors to wait for");
	as_case(words(), "errors in words");
	pd = domain_of_device();
	context = pd->context;
	snprintf(nowhere, sizeof(nowhere), "%p", (void *)NOWHERE);
	for (size_t n = 0; n < COUNT(scripts); n++)
		as_case(follows(pd, scripts[n].steps), "%s", scripts[n].name);
	as_case(places(pd), "the place of an error's words");
	is(ibv_dealloc_pd(pd), 0, "the PD has no region");
	is(ibv_close_device(context), 0, "the device is closed");
	is((long long)stats().live, 0, "no region is left");
	return done_testing();
}
