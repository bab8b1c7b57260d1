/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two threads register and close buffers through libfabric's cache while a third replaces them: none may be stale. */
#include "../../lib/program.h"
#include "cached.h"
#include <sys/syscall.h>
#include <time.h>

enum { BUFFERS = 12, LENGTH = 2 * PAGE, SECONDS = 5, PATIENCE = 200 };

static struct fid_domain *domain;
static struct pair pair;
static struct ibv_mr *seen_mr;
static char *seen;
static pthread_mutex_t pair_lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer {
	/* Threads that register share it; a thread that maps over it has it alone. */
	pthread_rwlock_t lock;
	char *memory;
	uint64_t key;
} buffers[BUFFERS];
static volatile bool stop;
static long looks, hits, stale, changes;

/* Each thread has a page of the buffer to itself. */
static void look(struct buffer *buffer, int page)
{
	struct fid_mr *mr = reg(domain, buffer->memory, LENGTH);
	uint64_t *mine = (uint64_t *)(buffer->memory + page * PAGE);
	uint64_t mark = (uint64_t)rand() << 32 | (uint64_t)rand(), got, key = fi_mr_key(mr);

	*mine = mark;
	pthread_mutex_lock(&pair_lock);
	must(pair_read(&pair, seen_mr, seen, sizeof(got), (uintptr_t)mine, (uint32_t)key) == IBV_WC_SUCCESS);
	memcpy(&got, seen, sizeof(got));
	looks++;
	hits += key == buffer->key;
	buffer->key = key;
	stale += got != mark;
	pthread_mutex_unlock(&pair_lock);
	must(fi_close(&mr->fid) == 0);
}

static void *registers(void *argument)
{
	int page = argument != NULL;

	while (!stop) {
		struct buffer *buffer = &buffers[rand() % BUFFERS];

		pthread_rwlock_rdlock(&buffer->lock);
		look(buffer, page);
		pthread_rwlock_unlock(&buffer->lock);
	}
	return NULL;
}

static void *maps_others(void *argument)
{
	while (!stop) {
		struct buffer *buffer = &buffers[rand() % BUFFERS];

		pthread_rwlock_wrlock(&buffer->lock);
		must(syscall(SYS_munmap, buffer->memory, LENGTH) == 0);
		must((char *)syscall(SYS_mmap, buffer->memory, LENGTH, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == buffer->memory);
		changes++;
		pthread_rwlock_unlock(&buffer->lock);
		usleep(2000);
	}
	return argument;
}

int main(void)
{
	pthread_t threads[3];

	open_fabric();
	domain = open_domain();
	pair_open_in(&pair, last_pd);
	seen = pages(1);
	seen_mr = ibv_reg_mr(pair.pd, seen, PAGE, IBV_ACCESS_LOCAL_WRITE);
	must(seen_mr);
	for (int n = 0; n < BUFFERS; n++) {
		must(pthread_rwlock_init(&buffers[n].lock, NULL) == 0);
		buffers[n].memory = pages(2);
	}
	threads[0] = must_start(registers, NULL);
	threads[1] = must_start(registers, buffers);
	threads[2] = must_start(maps_others, NULL);
	for (int n = 0; n < SECONDS || (n < PATIENCE && (hits == 0 || changes <= 20)); n++)
		sleep(1);
	stop = true;
	for (int n = 0; n < 3; n++)
		must_join(threads[n]);
	printf("# %ld registrations, %ld with the previous key, %ld changes\n", looks, hits, changes);
	is(stale, 0, "no registration has pages that are gone");
	ok(hits > 0, "some were served by the cache");
	ok(changes > 20, "the memory changed meanwhile");
	must(ibv_dereg_mr(seen_mr) == 0);
	pair_close(&pair);
	is(fi_close(&domain->fid), 0, "the domain closes");
	return done_testing();
}
