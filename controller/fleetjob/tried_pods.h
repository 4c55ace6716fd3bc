/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_TRIED_PODS_H
#define CONTROLLER_FLEETJOB_TRIED_PODS_H

/*
 * The pods that the API server has found valid in a dry run, by a digest of everything but the
 * names of their job. A second job with the same template, as in a sweep, needs no dry run of its
 * own. The answer is believed for ten minutes: an upgraded API server may know other fields, and
 * admission may change its mind. A pod that is refused after all is reported as any
 * other (pod_errors.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/digest.h"

#define TRIED_PODS_MAX 64
#define TRIED_PODS_MS  600000.0

/* All zero is empty. */
struct tried_pods {
    struct {
        uint8_t digest[FLEET_SHA256_SIZE];
        double until_ms;
    } items[TRIED_PODS_MAX];
    size_t next; /* the oldest, which the next one replaces */
};

void tried_pods_add(struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE],
                    double now_ms);
bool tried_pods_have(const struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE],
                     double now_ms);

#endif
