/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_TRIED_PODS_H
#define CONTROLLER_FLEETJOB_TRIED_PODS_H

/*
 * The pods that the API server has found valid in a dry run, by a digest of everything but the
 * names of their job. A second job with the same template, as in a sweep, needs no dry run of its
 * own; while the first one's is under way, it waits. The answer holds for ten minutes: an
 * upgraded API server may know other fields, and admission may change its mind. A pod that is
 * refused after all is reported as any other (pod_errors.h).
 */

#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/digest.h"

#define TRIED_PODS_MAX    64
#define TRIED_PODS_MS     600000.0
#define TRIED_PODS_ASK_MS 5000.0 /* a dry run without an answer: then others try, too */

enum tried_pods_answer {
    TRIED_PODS_UNKNOWN, /* it was not asked for, the answer is old, or it was an error */
    TRIED_PODS_ASKED,   /* there is no answer yet */
    TRIED_PODS_VALID,
};

/* All zero is empty. */
struct tried_pods {
    struct {
        uint8_t digest[FLEET_SHA256_SIZE];
        enum tried_pods_answer answer;
        double until_ms;
    } items[TRIED_PODS_MAX];
    size_t next; /* the oldest, which the next one replaces */
};

/* Note what is known of the pod from now on. */
void tried_pods_set(struct tried_pods *tried, const uint8_t digest[FLEET_SHA256_SIZE],
                    enum tried_pods_answer answer, double now_ms);
enum tried_pods_answer tried_pods_get(const struct tried_pods *tried,
                                      const uint8_t digest[FLEET_SHA256_SIZE], double now_ms);

#endif
