/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* fault: uses memory after it is freed, which AddressSanitizer reports. */
#include <stdlib.h>

int main(void)
{
	char *volatile block = (char *)malloc(10);

	free(block);
	return block[5];
}
