/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_SPARES_H
#define LIBFLEET_API_SPARES_H

#include <stdint.h>

struct fleetjob;

/*
 * How many of `workers` train: all of them, but in an elastic job whose ranks share a model only
 * those that make whole replicas. The others are spares. 0: they do not make one replica.
 */
int64_t spares_trained(const struct fleetjob *job, int64_t workers);

#endif
