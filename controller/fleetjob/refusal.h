/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_REFUSAL_H
#define CONTROLLER_FLEETJOB_REFUSAL_H

/*
 * What the API server refused to make for one job (quota, admission), and when to ask again: after
 * REFUSAL_RETRY_MIN_MS, then twice as long each time, at most REFUSAL_RETRY_MAX_MS. An edit of the
 * spec may be the remedy, so the first attempt of a new generation of the spec does not wait.
 *
 * While a job waits, its pass still runs: the hub is hosted and the status is written; only nothing
 * is created.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/kube/api_error.h"

struct fleet_error;

#define REFUSAL_RETRY_MIN_MS 250.0
#define REFUSAL_RETRY_MAX_MS 30000.0
#define REFUSAL_WORDS_MS     15000.0 /* some messages differ every time: the text stays this long */

struct refusal {          /* all zero = nothing is refused */
    char *text;           /* heap; NULL = nothing is refused */
    enum kube_error kind; /* of that text */
    double text_until_ms;
    unsigned int count; /* in a row */
    int64_t generation; /* metadata.generation of the job then */
    double retry_at_ms;
};

/* Free what it holds; it is all zero afterwards. Call it when the API server has made what it
 * refused. */
void refusal_clear(struct refusal *refusal);

/* Count one more refusal. `random` is uniform in [0, 1). True if its words are new: log them. */
bool refusal_note(struct refusal *refusal, const struct fleet_error *err, int64_t generation,
                  double now_ms, double random);

/* Milliseconds until the next attempt for this generation of the spec; 0 = now. */
double refusal_wait_ms(const struct refusal *refusal, int64_t generation, double now_ms);

#endif
