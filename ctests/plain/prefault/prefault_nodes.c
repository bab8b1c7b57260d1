/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The NUMA nodes of a registration's pages, with no thread of RDMAMR_PREFAULT, two and four: those of the policy of the
 * memory or the thread, else that of the registering thread. It needs two nodes of two processors: vm/run -n 2.
 */
#include "../../lib/device.h"
#include "../../lib/program.h"
#include "started.h"
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>

enum { MIB = 1 << 20, SIZE = 64 * MIB, PAGES = SIZE / PAGE, NODES = 2 };
enum { ALL = -1 };

static struct ibv_pd *pd;

static void policy_of_thread(int policy, unsigned long nodes)
{
	must(syscall(SYS_set_mempolicy, policy, nodes ? &nodes : NULL, 8 * sizeof(nodes)) == 0);
}

static void policy_of_memory(char *memory, size_t size, int policy, unsigned long nodes)
{
	must(syscall(SYS_mbind, memory, size, policy, nodes ? &nodes : NULL, 8 * sizeof(nodes), 0) == 0);
}

/* A node has two processors. */
static int this_node(void) { return sched_getcpu() / 2; }

/* May run on the processors of that node, or on all. */
static void allow(int node)
{
	cpu_set_t processors;

	CPU_ZERO(&processors);
	for (int n = 0; n < 2 * NODES; n++)
		if (node == ALL || n / 2 == node)
			CPU_SET(n, &processors);
	must(sched_setaffinity(0, sizeof(processors), &processors) == 0);
}

/* Moves to that node. */
static void go(int node)
{
	allow(node);
	must(this_node() == node);
	allow(ALL);
}

static void count_by_node(char *memory, long count[NODES])
{
	static void *pages[PAGES];
	static int nodes[PAGES];

	for (int n = 0; n < PAGES; n++)
		pages[n] = memory + (size_t)n * PAGE;
	must(syscall(SYS_move_pages, 0, (long)PAGES, pages, NULL, nodes, 0) == 0);
	memset(count, 0, NODES * sizeof(*count));
	for (int n = 0; n < PAGES; n++)
		if (nodes[n] >= 0 && nodes[n] < NODES)
			count[nodes[n]]++;
}

/* The nodes to whose processors a thread of the library was bound meanwhile, a bit each. */
static unsigned seen;
static _Atomic bool over;

static void *look_at_threads(void *unused)
{
	while (!over) {
		pid_t list[8];

		for (int n = threads_named("rdmamr-prefault", list, 8); n-- > 0;) {
			cpu_set_t at;

			if (sched_getaffinity(list[n], sizeof(at), &at))
				continue;
			for (int node = 0; node < NODES; node++)
				if (CPU_COUNT(&at) == 2 && CPU_ISSET(2 * node, &at) && CPU_ISSET(2 * node + 1, &at))
					seen |= 1U << node;
		}
	}
	return unused;
}

enum { OF_NOBODY, OF_MEMORY, OF_THREAD, OF_HALVES };
enum { PRIVATE, SHARED, HUGE, KINDS };

static const char *const kinds[KINDS] = { "private memory", "shared memory", "huge pages" };

static const struct placed {
	const char *name;
	int whose, policy;
	unsigned long nodes;
	int node;      /* of all pages; ALL: equally many on each */
	bool stays;    /* only the processors of one node are allowed */
} all[] = {
	{ "without a policy", OF_NOBODY, MPOL_DEFAULT, 0, 1, false },
	{ "without a policy, on the processors of a node", OF_NOBODY, MPOL_DEFAULT, 0, 1, true },
	{ "memory bound to the other node", OF_MEMORY, MPOL_BIND, 1, 0, false },
	{ "memory that prefers the other node", OF_MEMORY, MPOL_PREFERRED, 1, 0, false },
	{ "local memory", OF_MEMORY, MPOL_LOCAL, 0, 1, false },
	{ "memory that prefers no node", OF_MEMORY, MPOL_PREFERRED, 0, 1, false },
	{ "interleaved memory", OF_MEMORY, MPOL_INTERLEAVE, 3, ALL, false },
	{ "a thread bound to the other node", OF_THREAD, MPOL_BIND, 1, 0, false },
	{ "a thread that prefers the other node", OF_THREAD, MPOL_PREFERRED, 1, 0, false },
	{ "a local thread", OF_THREAD, MPOL_LOCAL, 0, 1, false },
	{ "halves that are bound to a node each", OF_HALVES, MPOL_BIND, 0, ALL, false },
	{ "an interleaving thread", OF_THREAD, MPOL_INTERLEAVE, 3, ALL, false },
};

/* Enough huge pages of 2 MiB for all of the memory on that node. */
static void reserve_huge_pages(int node)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages", node);
	must(write_to(path, "%d", SIZE / (2 * MIB)));
}

/* Registers memory on node 1. Returns whether the thread was there all the time, as far as is visible. */
static bool registered(const struct placed *how, int kind, long count[NODES])
{
	static const int flags[KINDS] = { MAP_PRIVATE, MAP_SHARED, MAP_PRIVATE | MAP_HUGETLB };
	char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags[kind], -1, 0);
	/* It takes a processor, and might push the registering thread from its node. */
	const bool looks = how->whose == OF_HALVES;
	pthread_t looking;
	struct ibv_mr *mr;
	bool stayed;

	must(memory != MAP_FAILED);
	must(kind == HUGE || madvise(memory, SIZE, MADV_NOHUGEPAGE) == 0);
	go(1);
	if (how->stays)
		allow(1);
	if (how->whose == OF_MEMORY)
		policy_of_memory(memory, SIZE, how->policy, how->nodes);
	for (int n = 0; how->whose == OF_HALVES && n < NODES; n++)
		policy_of_memory(memory + (size_t)n * SIZE / NODES, SIZE / NODES, how->policy, 1UL << n);
	if (how->whose == OF_THREAD)
		policy_of_thread(how->policy, how->nodes);
	started = 0;
	over = false;
	seen = 0;
	if (looks)
		looking = must_start(look_at_threads, NULL);
	mr = ibv_reg_mr(pd, memory, SIZE, LOCAL_AND_REMOTE);
	stayed = this_node() == 1;
	over = true;
	if (looks)
		must_join(looking);
	policy_of_thread(MPOL_DEFAULT, 0);
	must(mr);
	count_by_node(memory, count);
	must(ibv_dereg_mr(mr) == 0 && munmap(memory, SIZE) == 0);
	return stayed;
}

static void look(const struct placed *how, int kind, int threads)
{
	/* Each thread starts its interleaving anew. */
	enum { ROUGHLY = 64 };
	const unsigned on_both = how->whose == OF_HALVES && threads ? 3 : 0;
	long count[NODES];
	bool stayed = false;

	case_begin("%s, %d threads: %s", kinds[kind], threads, how->name);
	for (int n = 0; n < 50 && (!stayed || (seen & on_both) != on_both); n++)
		stayed = registered(how, kind, count);
	printf("# pages by node: %ld and %ld; threads started: %d\n", count[0], count[1], started);
	ok(stayed, "the thread stays on its node");
	if (on_both)
		is(seen, on_both, "the threads run on each node for its half");
	is(count[0] + count[1], PAGES, "all pages are there");
	if (how->node == ALL)
		ok(labs(count[0] - count[1]) <= ROUGHLY, "as many on each node");
	else
		is(count[!how->node], 0, "none on the other node");
	if (threads)
		ok(started > 0, "threads help");
	else
		is(started, 0, "no thread helps");
	case_end();
}

int main(int argc, char **argv)
{
	const char *setting;
	int threads;

	(void)argc;
	with_setting(argv, "RDMAMR_PREFAULT", getenv("RDMAMR_PREFAULT") ?: "0");
	setting = getenv("RDMAMR_PREFAULT");
	threads = atoi(setting);
	continue_report();
	if (access("/sys/devices/system/node/node1", F_OK))
		skip_all("this machine has one node");
	for (int node = 0; node < NODES; node++)
		reserve_huge_pages(node);
	pd = domain_of_device();
	for (size_t n = 0; n < sizeof(all) / sizeof(*all); n++)
		for (int kind = 0; kind < KINDS; kind++)
			look(&all[n], kind, threads);
	if (threads < 4)
		go_on_with(argv, "RDMAMR_PREFAULT", threads ? "4" : "2");
	return done_testing();
}
