/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A plug-in for linker_held.c, which names the functions that its constructor and its destructor call. */
#include <stdlib.h>

static void call(const char *variable)
{
	const char *function = getenv(variable);

	if (function)
		((void (*)(void))strtoul(function, NULL, 16))();
}

__attribute__((constructor)) static void begin(void)
{
	call("IN_CONSTRUCTOR");
}

__attribute__((destructor)) static void end(void)
{
	call("IN_DESTRUCTOR");
}
