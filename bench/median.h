/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef MEDIAN_H
#define MEDIAN_H

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
	double difference = *(const double *)a - *(const double *)b;

	return (difference > 0) - (difference < 0);
}

/* Returns the median, and leaves the values sorted. */
static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof(*values), ascending);
	return values[count / 2];
}

#endif
