/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* plugin FILE: a program without libfabric loads, with RTLD_LOCAL, an object that is linked to it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *object = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*run)(int, char **) = object ? (int (*)(int, char **))dlsym(object, "main") : NULL;

	if (!run)
		return printf("Bail out! %s\n", dlerror()), 1;
	return run(1, argv);
}
