/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "memory.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "tap.h"

enum { READ_WRITE = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS };

static int opened(struct uffdio_api *api)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd >= 0 && ioctl(fd, UFFDIO_API, api)) {
		close(fd);
		return -1;
	}
	return fd;
}

int open_userfaultfd(uint64_t features)
{
	return opened(&(struct uffdio_api){ .api = UFFD_API, .features = features });
}

void *count_events(void *argument)
{
	struct event_count *count = argument;

	for (;;) {
		struct pollfd ready = { .fd = count->fd, .events = POLLIN };
		struct uffd_msg message;

		if (poll(&ready, 1, 50) == 1 && read(count->fd, &message, sizeof(message)) == sizeof(message))
			count->events++;
	}
	return NULL;
}

uint64_t uffd_features(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	int fd = opened(&api);

	return fd >= 0 && close(fd) == 0 ? api.features : 0;
}

void spare_in_heap(size_t length)
{
	/* The compiler drops an allocation that is only freed, unless it must look at the pointer. */
	void *volatile spare = malloc(length);

	must(spare);
	free(spare);
}

void fresh_at(void *address, size_t length)
{
	must(mmap(address, length, READ_WRITE, OWN | MAP_FIXED_NOREPLACE, -1, 0) == address);
}

char *new_place(size_t length)
{
	/* The address sanitizer's shadow ends below. */
	static uintptr_t next = (uintptr_t)1 << 45;
	char *place = (char *)next;

	next += (length + (4 << 20)) & ~(uintptr_t)((2 << 20) - 1);
	return place;
}

void fill(char *memory, size_t length)
{
	static unsigned int seed;

	seed = seed * 1103515245 + 12345;
	for (size_t n = 0; n < length; n++)
		memory[n] = (char)(((seed >> 16) + n * 31 + n / 251) | 1);
}

int userfaultfds(int *one)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	must(directory);
	while ((entry = readdir(directory))) {
		char path[300], target[100] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "userfaultfd")) {
			if (one)
				*one = atoi(entry->d_name);
			count++;
		}
	}
	closedir(directory);
	return count;
}

int mappings(void)
{
	char buffer[4096];
	int fd = open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC), lines = 0;
	ssize_t got;

	must(fd >= 0);
	while ((got = read(fd, buffer, sizeof(buffer))) > 0)
		for (ssize_t n = 0; n < got; n++)
			lines += buffer[n] == '\n';
	close(fd);
	return lines;
}

long faults(void)
{
	struct rusage usage;

	must(getrusage(RUSAGE_SELF, &usage) == 0);
	return usage.ru_minflt;
}

int most_mappings(void)
{
	FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
	int most = 0;

	must(file && fscanf(file, "%d", &most) == 1);
	fclose(file);
	return most;
}

/* Each second page has other rights. */
void fill_mappings(char *there, int wanted)
{
	int count = wanted - mappings();
	char *memory = mmap(there, ((size_t)count + 1) * PAGE, READ_WRITE, OWN | MAP_NORESERVE, -1, 0);

	must(count > 0 && memory != MAP_FAILED);
	for (int n = 0; n < count; n += 2)
		must(mprotect(memory + (size_t)n * PAGE, PAGE, PROT_READ) == 0);
	must(mappings() >= wanted - 16);
}

int raw_munmap(void *memory, size_t length) { return (int)syscall(SYS_munmap, memory, length); }

char *raw_map_at(void *memory, size_t length)
{
	const int flags = OWN | MAP_FIXED_NOREPLACE | MAP_POPULATE;
	long at = syscall(SYS_mmap, memory, length, READ_WRITE, flags, -1, 0);

	return at == -1 ? NULL : (char *)at;
}

void remap(void *memory, size_t length)
{
	const int flags = OWN | MAP_FIXED_NOREPLACE | MAP_POPULATE;

	must(munmap(memory, length) == 0);
	must(mmap(memory, length, READ_WRITE, flags, -1, 0) == memory);
}

void raw_remap(void *memory, size_t length)
{
	must(raw_munmap(memory, length) == 0);
	must(raw_map_at(memory, length) == memory);
}

void renew(enum renewal how, char *memory, size_t length)
{
	switch (how) {
	case BY_MUNMAP: remap(memory, length); break;
	case BY_RAW_MUNMAP: raw_remap(memory, length); break;
	case BY_FIXED: must(mmap(memory, length, READ_WRITE, OWN | MAP_FIXED, -1, 0) == memory); break;
	case BY_MADVISE: must(madvise(memory, length, MADV_DONTNEED) == 0); break;
	default:
		/* It cannot grow where it is. The kernel chooses the place, since UCX's hook does not forward one. */
		mmap(memory + length, 1, PROT_NONE, OWN | MAP_FIXED_NOREPLACE, -1, 0);
		must(mremap(memory, length, 2 * length, MREMAP_MAYMOVE) != MAP_FAILED);
		fresh_at(memory, length);
	}
}

bool all_zero(const char *memory, size_t length)
{
	for (size_t n = 0; n < length; n++) {
		if (memory[n])
			return false;
	}
	return true;
}

char *at_the_edge(size_t length)
{
	size_t count = length / PAGE + 2;
	char *memory = pages(count);

	must(mprotect(memory + (count - 1) * PAGE, PAGE, PROT_NONE) == 0);
	return memory + (count - 1) * PAGE - length;
}

static char *mapped(size_t length, int flags)
{
	char *memory = mmap(NULL, length, READ_WRITE, OWN | flags, -1, 0);

	must(memory != MAP_FAILED);
	return memory;
}

char *pages(size_t count) { return mapped(count * PAGE, MAP_POPULATE); }
char *untouched(size_t length) { return mapped(length, MAP_NORESERVE); }

long field_of(const char *path, const char *name)
{
	FILE *file = fopen(path, "re");
	size_t length = strlen(name);
	long value = -1;
	char line[512];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, name, length) && (line[length] == ':' || line[length] == ' '))
			value = atol(line + length + 1);
	must(!file || fclose(file) == 0);
	return value;
}

static int maps_where(const char *word, bool anywhere)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[4096];
	int found = 0;

	must(maps);
	while (fgets(line, sizeof(line), maps))
		found += anywhere ? strstr(line, word) != NULL : !strncmp(line, word, strlen(word));
	must(fclose(maps) == 0);
	return found;
}

int maps_from(const char *word) { return maps_where(word, false); }
int maps_with(const char *word) { return maps_where(word, true); }

/* Sums a field of smaps over the mappings that the range overlaps, or counts those whose field has a word. */
static long smaps(const void *memory, size_t length, const char *field, const char *word)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	unsigned long start, end;
	bool inside = false;
	char line[4096];
	long sum = 0;

	must(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < (uintptr_t)memory + length && end > (uintptr_t)memory;
		else if (inside && !strncmp(line, field, strlen(field)) &&
			 line[strlen(field)] == ':')
			sum += word ? strstr(line, word) != NULL : atol(line + strlen(field) + 1);
	}
	must(fclose(file) == 0);
	return sum;
}

bool vm_flag(const void *page, const char *flag)
{
	char word[8];

	snprintf(word, sizeof(word), " %s", flag);
	return smaps(page, 1, "VmFlags", word);
}

long smaps_kib(const void *memory, size_t length, const char *field)
{
	return smaps(memory, length, field, NULL);
}

long populated(const void *memory, size_t length)
{
	static uint64_t entries[PAGE];
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t at = (uintptr_t)memory / PAGE, end = at + length / PAGE;
	long count = 0;

	must(fd >= 0);
	while (at < end) {
		size_t most = end - at < PAGE ? end - at : PAGE;
		ssize_t got = pread(fd, entries, most * sizeof(*entries), (off_t)(at * sizeof(*entries)));

		must(got > 0);
		for (size_t n = 0; n < (size_t)got / sizeof(*entries); n++)
			count += entries[n] >> 63;
		at += (size_t)got / sizeof(*entries);
	}
	close(fd);
	return count;
}
