/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory of the process; calls that bypass the library; what /proc says of both; userfaultfd. */
#ifndef CTESTS_MEMORY_H
#define CTESTS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE = 4096 };

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* A userfaultfd with these features, or -1 if the kernel refuses. */
int open_userfaultfd(uint64_t features);

/* A thread that reads the events of a userfaultfd, and counts them: its argument, while it runs. */
struct event_count {
	int fd;
	_Atomic long events;
};
void *count_events(void *count);

/* Anonymous memory of whole pages, touched. */
char *pages(size_t count);

/* The same, untouched. */
char *untouched(size_t length);

/* Gives the heap so much spare memory that a later malloc takes. mallopt must forbid to trim or map it. */
void spare_in_heap(size_t length);

/* Fresh private memory of zeros at an address that is free. */
void fresh_at(void *address, size_t length);

/* An address range that this process has never mapped, so that the cache has no history of it. */
char *new_place(size_t length);

/* `length` bytes that end at an unreadable page. */
char *at_the_edge(size_t length);

/* Fills the memory with a pattern that no other call makes. Each byte differs from 0. */
void fill(char *memory, size_t length);
bool all_zero(const char *memory, size_t length);

/* munmap as a raw system call: only the kernel's events report it to the library. */
int raw_munmap(void *memory, size_t length);

/* Maps new pages at a free address as a raw system call; NULL if the address is in use. */
char *raw_map_at(void *memory, size_t length);

/* Maps new pages at the same address, by calls that the library interposes. */
void remap(void *memory, size_t length);

/* The same by raw system calls. */
void raw_remap(void *memory, size_t length);

/* Ways in which memory gets new pages at its address: calls that the library interposes, but one. */
enum renewal { BY_MUNMAP, BY_RAW_MUNMAP, BY_FIXED, BY_MADVISE, BY_MREMAP, RENEWALS };
void renew(enum renewal how, char *memory, size_t length);

/* The number behind a name in a file of /proc, such as "VmPin" in /proc/self/status; -1 if it is absent. */
long field_of(const char *path, const char *name);

/* The number of the process's mappings whose line in /proc/self/maps begins with this word, or has it. */
int maps_from(const char *word);
int maps_with(const char *word);

/* Whether the mapping of a page has a flag of smaps, such as "dc": its line VmFlags. */
bool vm_flag(const void *page, const char *flag);

/* The sum of a field of smaps, such as "AnonHugePages", in KiB, of the mappings that the range overlaps. */
long smaps_kib(const void *memory, size_t length, const char *field);

/* The number of populated pages of a range of whole pages, by the page map. */
long populated(const void *memory, size_t length);

/* The number of mappings of the process, as vm.max_map_count counts them. Allocates nothing. */
int mappings(void);

/* The limit on that number: vm.max_map_count. */
int most_mappings(void);

/* Makes mappings, by a hint there, until the process has that many. */
void fill_mappings(char *there, int wanted);

/* The process's minor faults: one for each page that it has touched first, however large. */
long faults(void);

/* The features of userfaultfd; 0 if this process may not have one. */
uint64_t uffd_features(void);

/* The number of the process's userfaultfds. `one`, if not NULL, receives the descriptor of one of them. */
int userfaultfds(int *one);

#endif
