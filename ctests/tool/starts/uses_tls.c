/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * uses_tls: is linked to large_tls. Prints whether the module for LD_AUDIT is loaded if an argument
 * asks, and has a child print the tunable that it inherits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int large_tls(void);

int main(int count, char **arguments)
{
	FILE *maps = count > 1 ? fopen("/proc/self/maps", "r") : NULL;
	char line[4096];
	int module = 0;

	(void)arguments;
	while (maps && fgets(line, sizeof(line), maps))
		module |= strstr(line, "librdmamr-audit") != NULL;
	printf("%d\n", large_tls());
	if (maps)
		printf("module=%d tunable=%s\n", module, getenv("GLIBC_TUNABLES") ? getenv("GLIBC_TUNABLES") : "");
	return 0;
}
