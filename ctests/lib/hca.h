/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A device of the kernel module vm/hca, which stands in the place of a hardware driver's. */
#ifndef CTESTS_HCA_H
#define CTESTS_HCA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether this device is one of the module's. */
bool hca_has(const char *device);

/* Has the module run a command (vm/hca/README.md) with these words behind the device's name. 0, or an errno. */
int hca_run(const char *device, const char *command, const char *words);

/* The device reads or writes through the region that has this key, with remote rights if `remote`. */
int hca_read(const char *device, uint32_t key, uint64_t iova, void *to, size_t size, bool remote);
int hca_write(const char *device, uint32_t key, uint64_t iova, const void *from, size_t size, bool remote);

#endif
