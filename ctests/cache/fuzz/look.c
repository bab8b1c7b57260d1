/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "fuzz.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* A multiple of 2 MiB, where neither the kernel nor the library maps anything by itself. */
static char *const place = (char *)0x200040000000;
static char *heap;
static int log_fd, maps_fd, smaps_fd;

char *page_at(int page)
{
	return page < PLACE_PAGES ? place + (page - PLACE_PAGES / 2) * (long)PAGE : heap + (page - PLACE_PAGES) * (long)PAGE;
}

/* The log. */

static char line[1 << 14];
static size_t line_length;

void note(const char *format, ...)
{
	va_list args;
	int length;

	va_start(args, format);
	length = vsnprintf(line + line_length, sizeof(line) - line_length, format, args);
	va_end(args);
	must(length >= 0 && line_length + (size_t)length < sizeof(line));
	line_length += (size_t)length;
}

void note_end(void)
{
	note("\n");
	must(write(log_fd, line, line_length) == (ssize_t)line_length);
	line_length = 0;
}

/* Writes an address of the windows, relative to its window. Returns false for any other value. */
static bool note_address(long value)
{
	long in_place = value - (long)page_at(0), in_heap = value - (long)heap;

	if (in_place >= -PAGE && in_place <= (PLACE_PAGES + 1) * (long)PAGE)
		note("place%+ld", in_place);
	else if (in_heap >= 0 && in_heap <= (HEAP_PAGES + 1) * (long)PAGE)
		note("heap%+ld", in_heap);
	else
		return false;
	return true;
}

void note_value(long value)
{
	if (!note_address(value))
		note("%#lx", value);
}

void note_result(long result)
{
	int err = errno;

	note(" = ");
	if (result == -1)
		note("%s", strerrorname_np(err));
	else if (result >= 0 && result < 1 << 20)
		note("%ld", result);
	else if (!note_address(result))
		note("elsewhere");
}

/* Accesses that may fail. */

static __thread sigjmp_buf *volatile probing;
static __thread volatile int fault_seen;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	if (!probing) {
		static const char text[] = "a fault outside of any look\n";

		write(log_fd, text, sizeof(text) - 1);
		_exit(99);
	}
	fault_seen = signal * 10 + (info->si_code & 7);
	siglongjmp(*probing, 1);
}

/* An access that may fail: a read or a write. */
struct access {
	void (*run)(struct access *access);
	volatile char *at;
	size_t length;
	uint64_t value;
};

/* Makes the access. Returns how it fails, 0 if it succeeds. */
static int try_access(struct access *access)
{
	sigjmp_buf back;

	if (sigsetjmp(back, 0)) {
		probing = NULL;
		return fault_seen;
	}
	probing = &back;
	access->run(access);
	probing = NULL;
	return 0;
}

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9e3779b97f4a7c15 + (hash >> 29); }

static void hash_page(struct access *access)
{
	const volatile uint64_t *at = (const volatile uint64_t *)access->at;
	uint64_t lanes[4] = { 1, 2, 3, 4 };

	for (int n = 0; n < PAGE / 8; n += 4)
		for (int lane = 0; lane < 4; lane++)
			lanes[lane] = (lanes[lane] ^ at[n + lane]) * 0x9e3779b97f4a7c15 + (lanes[lane] >> 31);
	access->value = mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]);
}

static void hash_bytes(struct access *access)
{
	uint64_t sum = access->length;

	for (size_t n = 0; n < access->length; n++)
		sum = (sum ^ (uint64_t)(unsigned char)access->at[n]) * 0x100000001b3;
	access->value = sum;
}

static void write_value(struct access *access) { memcpy((char *)access->at, &access->value, sizeof(access->value)); }

uint64_t look_bytes(const volatile char *at, size_t length, int *fault)
{
	struct access access = { hash_bytes, (volatile char *)at, length, 0 };

	*fault = try_access(&access);
	return access.value;
}

int poke(volatile char *at, uint64_t value)
{
	struct access access = { write_value, at, sizeof(value), value };

	return try_access(&access);
}

uint64_t look_pages(bool show)
{
	uint64_t all = 0;

	for (int page = 0; page < ALL_PAGES; page++) {
		struct access access = { hash_page, page_at(page), PAGE, 0 };
		int fault = try_access(&access);

		if (show) {
			note("  page %d: fault %d, content %016llx", page, fault, (unsigned long long)access.value);
			note_end();
		}
		all = mix(mix(all, access.value), (uint64_t)fault);
	}
	return all;
}

/* Mappings. */

struct mapping {
	unsigned long start, end, offset, inode;
	bool anonymous; /* of no file, or private of /dev/zero */
	unsigned int major, minor;
	char rights[5], flags[200];
};

static char text[1 << 22];

static size_t read_all(int fd)
{
	size_t length = 0;
	ssize_t got;

	while ((got = pread(fd, text + length, sizeof(text) - 1 - length, (off_t)length)) > 0)
		length += (size_t)got;
	must(got == 0 && length > 0 && length < sizeof(text) - 1);
	text[length] = 0;
	return length;
}

/* A file's number differs from run to run: its place in the order of first appearance counts. */
static unsigned long nth_file(const struct mapping *mapping)
{
	static struct { unsigned long inode; unsigned int major, minor; } files[4096];
	static unsigned long count;
	unsigned long n = 0;

	if (!mapping->inode && !mapping->major)
		return 0;
	while (n < count && (files[n].inode != mapping->inode || files[n].major != mapping->major ||
			     files[n].minor != mapping->minor))
		n++;
	if (n == count) {
		must(count < sizeof(files) / sizeof(*files));
		files[count].inode = mapping->inode;
		files[count].major = mapping->major;
		files[count++].minor = mapping->minor;
	}
	return n + 1;
}

static bool are_one(const struct mapping *one, const struct mapping *next)
{
	return one->end == next->start && !strcmp(one->rights, next->rights) && one->inode == next->inode &&
	       !strcmp(one->flags, next->flags) && (one->anonymous || one->offset + (one->end - one->start) == next->offset);
}

static uint64_t end_of(const struct mapping *mapping, uint64_t hash, bool show)
{
	if (mapping->start == mapping->end)
		return hash;
	if (show) {
		note("  mapping %#lx-%#lx %s offset %#lx file %lu%s", mapping->start - (unsigned long)page_at(0),
		     mapping->end - (unsigned long)page_at(0), mapping->rights, mapping->offset, mapping->inode,
		     mapping->flags);
		note_end();
	}
	hash = mix(mix(hash, mapping->start), mapping->end);
	hash = mix(mix(hash, mapping->offset), mapping->inode);
	for (const char *at = mapping->rights; *at; at++)
		hash = mix(hash, (unsigned char)*at);
	for (const char *at = mapping->flags; *at; at++)
		hash = mix(hash, (unsigned char)*at);
	return hash;
}

/*
 * The flags of smaps except those of the watch (uw), of writes since the last look (sd), and two
 * that a split leaves to one part: guard pages are somewhere in the mapping (gu), and its pages are
 * charged (ac), which mprotect undoes where no page was touched.
 */
static void take_flags(struct mapping *mapping, char *flags)
{
	char *rest;

	mapping->flags[0] = 0;
	for (char *word = strtok_r(flags, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
		if (strcmp(word, "uw") && strcmp(word, "sd") && strcmp(word, "gu") && strcmp(word, "ac"))
			strcat(strcat(mapping->flags, " "), word);
}

/* A window, and the part that has grown beyond it. */
static bool is_near(const struct mapping *mapping, int first, int last)
{
	enum { BEYOND = 256 * PAGE };

	return mapping->end > (unsigned long)page_at(first) - (first ? 0 : BEYOND) &&
	       mapping->start < (unsigned long)page_at(last) + PAGE + BEYOND;
}

static bool in_windows(const struct mapping *mapping)
{
	return is_near(mapping, 0, PLACE_PAGES - 1) || is_near(mapping, PLACE_PAGES, ALL_PAGES - 1);
}

static uint64_t look_once(bool flags, bool show)
{
	struct mapping joined = { 0 }, next = { 0 };
	uint64_t hash = 0;
	char *rest;
	bool inside = false;

	read_all(flags ? smaps_fd : maps_fd);
	for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
		struct mapping found = { 0 };

		if (sscanf(at, "%lx-%lx %4s %lx %x:%x %lu", &found.start, &found.end, found.rights, &found.offset,
			   &found.major, &found.minor, &found.inode) == 7) {
			/*
			 * The offset of private memory of /dev/zero is derived from an address that the memory
			 * once had: that of its first page, or of its last move before that. A VMA that was
			 * split off has a first page of its own.
			 */
			found.anonymous = !found.inode || (found.rights[3] == 'p' && strstr(at, " /dev/zero"));
			if (found.anonymous)
				found.offset = 0;
			/* Their inodes begin at 0, and other files of the same device have the same. */
			if (strstr(at, "/SYSV"))
				found.major |= 1U << 20;
			inside = in_windows(&found);
			/* The heap's part before the window: the same in both runs or not. */
			if (found.start < (unsigned long)heap && found.end > (unsigned long)heap)
				found.start = (unsigned long)heap;
			if (found.start >= (unsigned long)heap && found.start < (unsigned long)heap + (64 << 20)) {
				found.start -= (unsigned long)heap;
				found.end -= (unsigned long)heap;
			}
			if (inside)
				found.inode = nth_file(&found);
			next = found;
			if (!inside || flags)
				continue;
		} else if (inside && !strncmp(at, "VmFlags:", 8)) {
			take_flags(&next, at + 8);
		} else {
			continue;
		}
		if (are_one(&joined, &next)) {
			joined.end = next.end;
		} else {
			hash = end_of(&joined, hash, show);
			joined = next;
		}
	}
	return end_of(&joined, hash, show);
}

/*
 * The kernel shows the mappings in several reads. Mappings that a thread of the library joins
 * meanwhile may be seen in part.
 */
uint64_t look_mappings(bool flags, bool show)
{
	uint64_t before, now = look_once(flags, show);

	do {
		before = now;
		now = show ? now : look_once(flags, false);
	} while (now != before);
	return now;
}

void look_open(int fd)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER };

	log_fd = fd;
	must(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
	/* The process's own file would be empty after the end of its first thread. */
	maps_fd = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC);
	smaps_fd = open("/proc/thread-self/smaps", O_RDONLY | O_CLOEXEC);
	must(maps_fd >= 0 && smaps_fd >= 0);
}

void look_windows(void)
{
	uintptr_t end = (uintptr_t)sbrk(0);

	must(sbrk((intptr_t)(-end & (PAGE - 1))) != (void *)-1);
	heap = sbrk(0);
	must((uintptr_t)heap % PAGE == 0);
}
