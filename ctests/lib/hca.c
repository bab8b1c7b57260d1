/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "hca.h"
#include <fcntl.h>
#include <unistd.h>
#include "tap.h"

enum { MOST = 4096 };

static int console = -1;

static int say(const char *text)
{
	if (console < 0)
		console = open("/dev/rdmamr-hca", O_RDWR | O_CLOEXEC);
	if (console < 0)
		return errno;
	return write(console, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : errno;
}

bool hca_has(const char *device) { return hca_run(device, "keys", "") == 0; }

int hca_run(const char *device, const char *command, const char *words)
{
	char text[256];

	snprintf(text, sizeof(text), "%s %s%s%s", command, device, *words ? " " : "", words);
	return say(text);
}

int hca_read(const char *device, uint32_t key, uint64_t iova, void *to, size_t size, bool remote)
{
	char text[256], hex[2 * MOST + 2];
	unsigned char *bytes = to;
	int err;

	must(size <= MOST);
	snprintf(text, sizeof(text), "%s %s %#x %#llx %zu", remote ? "remote-read" : "read", device, key,
		 (unsigned long long)iova, size);
	err = say(text);
	if (err)
		return err;
	must(read(console, hex, sizeof(hex)) == (ssize_t)(2 * size + 1));
	for (size_t n = 0; n < size; n++) {
		unsigned int byte;

		must(sscanf(hex + 2 * n, "%2x", &byte) == 1);
		bytes[n] = (unsigned char)byte;
	}
	return 0;
}

int hca_write(const char *device, uint32_t key, uint64_t iova, const void *from, size_t size, bool remote)
{
	static char text[2 * MOST + 256];
	const unsigned char *bytes = from;
	int at = snprintf(text, sizeof(text), "%s %s %#x %#llx ", remote ? "remote-write" : "write", device, key,
			  (unsigned long long)iova);

	must(size <= MOST);
	for (size_t n = 0; n < size; n++)
		at += sprintf(text + at, "%02x", bytes[n]);
	return say(text);
}
