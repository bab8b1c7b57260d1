/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * threads: allocates in two threads, one of which has a stack of SMALL_STACK bytes and uses 8600 of
 * them, and reallocates blocks of each size; runs the command of its argument. starts.sh compiles it with each allocator and
 * sanitizer, as C and as C++.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static void use_stack(void)
{
	volatile char used[8600];

	for (size_t n = 0; n < sizeof(used); n++)
		used[n] = 1;
}

static void *copy(void *text)
{
	use_stack();
	return strdup((const char *)text);
}

int main(int count, char **arguments)
{
	pthread_attr_t small;
	pthread_t thread;
	void *text, *again;
	char *block = (char *)malloc(1);

	pthread_attr_init(&small);
#ifdef SMALL_STACK
	pthread_attr_setstacksize(&small, SMALL_STACK);
#endif
	if (pthread_create(&thread, &small, copy, (void *)"allocated") || pthread_join(thread, &text))
		return 2;
	if (pthread_create(&thread, NULL, copy, text) || pthread_join(thread, &again))
		return 3;
	for (size_t size = 1; size <= 64 << 20; size *= 2) {
		block = (char *)realloc(block, size);
		if (!block)
			return 4;
		block[size - 1] = 1;
	}
	printf("%s twice: %s\n", (char *)text, (char *)again);
	fflush(stdout);
	free(block);
	free(text);
	free(again);
	pthread_attr_destroy(&small);
	return count > 1 ? system(arguments[1]) >> 8 : 7;
}
