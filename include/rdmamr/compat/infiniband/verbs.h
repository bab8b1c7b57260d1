/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * <infiniband/verbs.h> with the relaxed calls, as on Oracle Solaris, for sources that include only
 * <infiniband/verbs.h>. "pkg-config --cflags rdmamr-compat" puts this folder in front of the
 * system's headers.
 */
#ifndef RDMAMR_COMPAT_VERBS_H
#define RDMAMR_COMPAT_VERBS_H

/* Else -Wpedantic refuses #include_next. */
#pragma GCC system_header
#include_next <infiniband/verbs.h>
#include <rdmamr/verbs.h>

#endif
