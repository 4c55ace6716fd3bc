/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/observe_plan.h"

#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/projection.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/judge.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/plan.h"

/* ---- the plan -------------------------------------------------------------------------------- */

void observe_plan_release(struct observe_plan *plan)
{
    cJSON_Delete(plan->json);
    cJSON_Delete(plan->search);
    fleet_errors_release(&plan->errors);
    fleet_errors_release(&plan->warnings);
    fleet_errors_release(&plan->unread);
    free(plan->broken);
    memset(plan, 0, sizeof(*plan));
}

static void keep_plan(const struct fleetjob *job, const struct plan *plan,
                      struct observe_plan *cache)
{
    bool is_ours = job->spec.has_training; /* else only explained */

    cache->worker_bytes = is_ours && plan->has_program ? memory_limit_needed(job, plan) : 0;
    cache->json = plan_encode(plan);
    memcpy(cache->digest, plan->digest, sizeof(cache->digest));
}

/* ---- is the spec any good? ------------------------------------------------------------------- */

/* A search finds another strategy for another number of workers, and keeps it under conditions that
 * do not depend on the spec alone. */
static void note_division(const struct fleetjob *job, char out[DIVISIONS_DIGEST_SIZE])
{
    out[0] = '\0';
    if (divisions_are_searched(job))
        divisions_digest(job, out);
}

/* What a search has found for this generation stays: it depends on the spec alone. */
static void forget_verdict(struct observe_plan *cache, int64_t generation)
{
    struct observe_plan next = {.generation = generation};

    if (cache->was_searched && cache->generation == generation) {
        next.was_searched = true;
        next.has_found = cache->has_found;
        next.found = cache->found;
        next.unread = cache->unread;
        cache->unread = (struct fleet_errors){0};
    }
    observe_plan_release(cache);
    *cache = next;
}

void observe_plan_judge(const struct fleetjob *job, const cJSON *json, bool encrypts_data,
                        struct observe_plan *cache)
{
    struct judge_options options = {
        .in_cluster = true, .threads = memory_limit_threads(job), .encrypts_data = encrypts_data};
    char division[DIVISIONS_DIGEST_SIZE];
    struct plan plan;

    note_division(job, division);
    if (cache->generation == job->metadata.generation && cache->generation != 0 &&
        strcmp(cache->division, division) == 0)
        return;
    forget_verdict(cache, job->metadata.generation);
    memcpy(cache->division, division, sizeof(division));
    if (!judge_job(job, &options, &plan, &cache->errors, &cache->warnings))
        return;
    keep_plan(job, &plan, cache);
    if (cache->errors.count == 0)
        cache->search = divisions_plan(json, job);
    plan_release(&plan);
}

/* ---- searches -------------------------------------------------------------------------------- */

const struct full_choice *observe_plan_found(const struct observe_plan *plan, int64_t generation)
{
    return plan->has_found && plan->generation == generation ? &plan->found : NULL;
}

void observe_plan_search(const char *text, size_t size, bool encrypts_data,
                         struct observe_plan *out)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleetjob job;

    *out = (struct observe_plan){0};
    if (fleet_json_parse(text, size, PROJECTION_JOB_SIZE_MAX, &json, NULL) < 0)
        return;
    (void)fleetjob_decode(json, &job, &out->unread);
    out->generation = job.metadata.generation;
    out->was_searched = true;
    out->has_found = out->unread.count == 0;
    if (out->has_found)
        out->found = divisions_of(&job);
    observe_plan_judge(&job, json, encrypts_data, out);
    fleetjob_release(&job);
}
