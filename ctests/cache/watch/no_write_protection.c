/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * refused.c on a kernel whose userfaultfd has no write protection, as before Linux 5.7, or 6.10 on
 * arm64.
 */
#define NO_WRITE_PROTECTION
#include "refused.c"
