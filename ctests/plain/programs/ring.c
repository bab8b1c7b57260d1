/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* MPI over short-lived memory, by malloc and by mmap: a ring of ranks, and a sum over all. All data is checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Messages above rxm's 16 KiB move by RMA, between buffers that are registered for them. */
static const int sizes[] = { 1 << 10, 64 << 10, 256 << 10 };
enum { ROUNDS = 10, SIZES = sizeof(sizes) / sizeof(*sizes), KINDS = 2, CHECKS = 2 };

static int rank, ranks;

static int *fresh(int kind, int size)
{
	int *memory = kind ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : malloc(size);

	if (!memory || memory == MAP_FAILED)
		MPI_Abort(MPI_COMM_WORLD, 2);
	return memory;
}

static void ended(int kind, int *memory, int size)
{
	if (kind)
		munmap(memory, size);
	else
		free(memory);
}

/* The value that a rank sends in a round, at an index. */
static int value(int from, int round, int n) { return from * 1000003 + round * 7919 + n; }

static int passed_on(int *out, int *in, int count, int round)
{
	int before = (rank + ranks - 1) % ranks, right = 1;

	for (int n = 0; n < count; n++)
		out[n] = value(rank, round, n), in[n] = -1;
	MPI_Sendrecv(out, count, MPI_INT, (rank + 1) % ranks, round, in, count, MPI_INT, before, round,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int n = 0; n < count; n++)
		right &= in[n] == value(before, round, n);
	return right;
}

static int summed(int *out, int *in, int count, int round)
{
	int right = 1;

	for (int n = 0; n < count; n++)
		out[n] = value(rank, round, n), in[n] = -1;
	MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	for (int n = 0; n < count; n++) {
		int sum = 0;

		for (int from = 0; from < ranks; from++)
			sum += value(from, round, n);
		right &= in[n] == sum;
	}
	return right;
}

int main(int argc, char **argv)
{
	int right = 0, all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int round = 0; round < ROUNDS; round++)
		for (int size = 0; size < SIZES; size++)
			for (int kind = 0; kind < KINDS; kind++)
				for (int check = 0; check < CHECKS; check++) {
					int *out = fresh(kind, sizes[size]), *in = fresh(kind, sizes[size]);
					int count = sizes[size] / (int)sizeof(int);

					right += (check ? summed : passed_on)(out, in, count, round);
					ended(kind, out, sizes[size]);
					ended(kind, in, sizes[size]);
				}
	MPI_Reduce(&right, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("ring: %d ranks, %d of %d buffers arrived as they were to\n", ranks, all,
		       ranks * ROUNDS * SIZES * KINDS * CHECKS);
	MPI_Finalize();
	return rank == 0 && all != ranks * ROUNDS * SIZES * KINDS * CHECKS;
}
