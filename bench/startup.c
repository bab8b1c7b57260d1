/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Times how much the preloaded library adds to the start of a program that does not use it: "true"
 * runs without and with it, in turn. Usage: startup LIBRARY [ROUNDS] */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "bench.h"
#include "median.h"

static double once(char *preload)
{
	char *arguments[] = { "true", NULL }, *environment[] = { preload, NULL };
	double began = clock_of(CLOCK_MONOTONIC);
	int status;
	pid_t pid;

	if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment) || waitpid(pid, &status, 0) != pid ||
	    status) {
		fprintf(stderr, "startup: %s\n", strerror(errno));
		exit(1);
	}
	return (clock_of(CLOCK_MONOTONIC) - began) / 1e3;
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 1000;
	double *without = calloc((size_t)rounds, sizeof(double)), *with = calloc((size_t)rounds, sizeof(double));
	double before, after;
	char preload[4096];

	if (argc < 2 || rounds < 1 || !without || !with) {
		fprintf(stderr, "usage: startup LIBRARY [ROUNDS]\n");
		return 2;
	}
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", argv[1]);
	for (int round = 0; round < rounds; round++) {
		without[round] = once("NOTHING=");
		with[round] = once(preload);
	}
	before = median(without, rounds);
	after = median(with, rounds);
	printf("start of true: median %.0f us, with the library %.0f us: %.0f us more (%d runs each, in turn)\n",
	       before, after, after - before, rounds);
	return 0;
}
