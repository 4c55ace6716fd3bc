/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_OBSERVE_PLAN_H
#define CONTROLLER_FLEETJOB_OBSERVE_PLAN_H

/*
 * The last verdict about the spec of a job, and the plan of the job: both are too expensive for
 * every pass. A job whose strategy a search finds gets them from observe_plan_search(), which may
 * take seconds and runs away from the loop (job_search.h). Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/api/divisions.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/errors.h"

struct fleetjob;

/* All zero is none. */
struct observe_plan {
    int64_t generation; /* of the FleetJob; 0 = never judged */
    cJSON *json;        /* status.plan; NULL if it cannot be built, or there is no training block */
    char digest[FLEET_SHA256_HEX_SIZE]; /* "" likewise */
    int64_t worker_bytes;               /* that a worker needs, see memory_limit.h; 0 = not known */
    struct fleet_errors errors, warnings; /* errors of the spec or its plan; warnings */
    /* status.plan.search, and the digest of the strategy that it is about; NULL: no search finds
     * the job's strategy */
    cJSON *search;
    char division[DIVISIONS_DIGEST_SIZE];
    /* A search was made for this generation of the spec; its result, or else what is wrong. */
    bool was_searched, has_found;
    struct full_choice found;
    struct fleet_errors unread;
    char *broken; /* heap: an invariant broke in it (job_search.c); nothing else is set */
};

/* Free what it holds; it is none afterwards. */
void observe_plan_release(struct observe_plan *plan);

/* What a search has found for this generation of the spec, for fleetjob_decode_found(); or NULL. */
const struct full_choice *observe_plan_found(const struct observe_plan *plan, int64_t generation);

/* Bring the cached plan of a decoded job up to date. `json` is the resource; its division is
 * known. */
void observe_plan_judge(const struct fleetjob *job, const cJSON *json, bool encrypts_data,
                        struct observe_plan *cache);

/* The whole verdict about the resource in `text` [size], with the searches that it needs. Reads
 * and writes nothing else, so any thread may call it. A text that is no FleetJob leaves *out
 * zero. */
void observe_plan_search(const char *text, size_t size, bool encrypts_data,
                         struct observe_plan *out);

#endif
