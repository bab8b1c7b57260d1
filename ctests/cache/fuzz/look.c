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
static int maps_fd, smaps_fd;
static FILE *log_file;

char *page_at(int page)
{
	return page < PLACE_PAGES ? place + (page - PLACE_PAGES / 2) * (long)PAGE : heap + (page - PLACE_PAGES) * (long)PAGE;
}

/* The log. */

void note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	must(vfprintf(log_file, format, args) >= 0);
	va_end(args);
}

void note_end(void)
{
	note("\n");
	must(fflush(log_file) == 0);
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

		write(fileno(log_file), text, sizeof(text) - 1);
		_exit(99);
	}
	fault_seen = signal * 10 + (info->si_code & 7);
	siglongjmp(*probing, 1);
}

/* How an access fails; 0 if it succeeds. */
#define fault_of(access)                                \
	({                                              \
		sigjmp_buf back;                        \
                                                        \
		fault_seen = 0;                         \
		if (!sigsetjmp(back, 0)) {              \
			probing = &back;                \
			access;                         \
		}                                       \
		probing = NULL;                         \
		fault_seen;                             \
	})

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9e3779b97f4a7c15 + (hash >> 29); }

static uint64_t hash_of(const char *at, size_t length)
{
	uint64_t hash = length, word = 0;
	size_t n;

	for (n = 0; n + 8 <= length; n += 8)
		hash = mix(hash, *(const volatile uint64_t *)(at + n));
	memcpy(&word, at + n, length - n);
	return mix(hash, word);
}

uint64_t look_bytes(const void *at, size_t length, int *fault)
{
	volatile uint64_t hash = 0;

	*fault = fault_of(hash = hash_of(at, length));
	return hash;
}

int poke(char *at, uint64_t value) { return fault_of(memcpy(at, &value, sizeof(value))); }

uint64_t look_pages(bool show)
{
	uint64_t all = 0;

	for (int page = 0; page < ALL_PAGES; page++) {
		int fault;
		uint64_t content = look_bytes(page_at(page), PAGE, &fault);

		if (show) {
			note("  page %d: fault %d, content %016llx", page, fault, (unsigned long long)content);
			note_end();
		}
		all = mix(mix(all, content), (uint64_t)fault);
	}
	return all;
}

/* Mappings: each page of the windows has the rights, the file and the flags of its mapping. */

static char text[1 << 22];

static void read_all(int fd)
{
	size_t length = 0;
	ssize_t got;

	while ((got = pread(fd, text + length, sizeof(text) - 1 - length, (off_t)length)) > 0)
		length += (size_t)got;
	must(got == 0 && length > 0 && length < sizeof(text) - 1);
	text[length] = 0;
}

struct mapping {
	char *start, *end;
	unsigned long offset;
	char rights[5], file[10], flags[200];
};

/* Whether the line begins a mapping. Of its file the first letters count: some names change. */
static bool take_mapping(struct mapping *mapping, const char *at)
{
	struct mapping found = { 0 };
	const char *name = strchr(at, '/');

	if (sscanf(at, "%p-%p %4s %lx ", (void **)&found.start, (void **)&found.end, found.rights,
		   &found.offset) != 4)
		return false;
	/*
	 * Private memory of /dev/zero counts as memory of no file: its offset is derived from an
	 * address that it once had, that of its first page, or of its last move before that. A VMA
	 * that was split off has a first page of its own.
	 */
	if (name && (found.rights[3] != 'p' || strncmp(name, "/dev/zero", 9)))
		snprintf(found.file, sizeof(found.file), "%s", name);
	*mapping = found;
	return true;
}

/*
 * The flags of smaps except those of the watch (uw), of writes since the last look (sd), and two
 * that a split leaves to one part: guard pages are somewhere in the mapping (gu), and its pages are
 * charged (ac), which mprotect undoes where no page was touched.
 */
static void take_flags(struct mapping *mapping, char *flags)
{
	char *rest;

	for (char *word = strtok_r(flags, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest))
		if (strcmp(word, "uw") && strcmp(word, "sd") && strcmp(word, "gu") && strcmp(word, "ac"))
			strcat(strcat(mapping->flags, " "), word);
}

/* The pages of a mapping in a window, or grown beyond it. The heap begins with its window. */
static uint64_t look_at(const struct mapping *mapping, int first, int last, uint64_t hash,
			bool show)
{
	enum { BEYOND = 256 };
	char described[300];
	unsigned long offset;

	for (int page = first ? first : -BEYOND; page < last + BEYOND; page++) {
		char *at = page_at(first) + (page - first) * (long)PAGE;

		if (at < mapping->start || at >= mapping->end)
			continue;
		offset = mapping->file[0] ? mapping->offset + (unsigned long)(at - mapping->start) : 0;
		snprintf(described, sizeof(described), "page %d: %s %s %#lx%s", page, mapping->rights,
			 mapping->file, offset, mapping->flags);
		for (const char *letter = described; *letter; letter++)
			hash = mix(hash, (unsigned char)*letter);
		if (show) {
			note("  %s", described);
			note_end();
		}
	}
	return hash;
}

static uint64_t look_once(bool flags, bool show)
{
	struct mapping mapping = { 0 };
	uint64_t hash = 0;
	char *rest;

	read_all(flags ? smaps_fd : maps_fd);
	for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
		bool is_whole = take_mapping(&mapping, at) && !flags;

		if (flags && !strncmp(at, "VmFlags:", 8)) {
			take_flags(&mapping, at + 8);
			is_whole = true;
		}
		if (is_whole) {
			hash = look_at(&mapping, 0, PLACE_PAGES, hash, show);
			hash = look_at(&mapping, PLACE_PAGES, ALL_PAGES, hash, show);
		}
	}
	return hash;
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

	static char buffer[1 << 14];

	log_file = fdopen(fd, "w");
	must(log_file && setvbuf(log_file, buffer, _IOFBF, sizeof(buffer)) == 0);
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
