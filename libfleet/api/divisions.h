/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_API_DIVISIONS_H
#define LIBFLEET_API_DIVISIONS_H

/*
 * The divisions of a job with autoParallel auto_parallel, whose strategy a search finds: one for
 * each number of workers that the job may have. Pure.
 *
 * They are planned ahead when the job begins, and kept in status.plan.search. So a later pass
 * or another leader looks them up, and a resize takes no search:
 *
 *     {"mode": "recursive_programming",     the search
 *      "digest": "0123456789abcdef",        of all that they depend on but worker.replicas
 *      "running": {"workers": 4, "data": 2, "model": 2, "microBatch": 2,
 *                  "milliseconds": 3.1, "bytes": 1200000, "digest": "…"},
 *      "ahead": [{"workers": 2, "data": 2, …}, …]}
 *
 * "running" is what the workers run; its digest is that of the strategy. Milliseconds of an update
 * and bytes of the rank that needs most are predicted (links_default.h). Degrees of 1 are left out,
 * except data.
 *
 * After a change of worker.replicas the job
 *   keeps its division, if all workers make whole replicas and each replica has micro-batches;
 *   else takes the one that was planned for this number;
 *   else, if it is elastic, keeps its division with spares;
 *   else searches.
 * Other degrees need other programs, so the workers save a checkpoint, stop and start again. A job
 * that has trained and has no checkpoint keeps its division.
 */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/autoparallel/search/full_search.h"

struct fleet_errors;

#define DIVISIONS_AHEAD_MAX   64 /* numbers of workers that are planned ahead */
#define DIVISIONS_DIGEST_SIZE 17 /* with the final NUL */

struct division {
    int64_t workers;
    struct full_choice choice;
    double seconds, bytes; /* predicted; 0 = not known */
};

/* Does a search find the job's strategy? Not if operators or a strategy file have given ones. */
bool divisions_are_searched(const struct fleetjob *job);

/*
 * The division that status.plan.search gives the job at its present number of workers. False: there
 * is none, and a search finds it. For fleetjob_decode(), before the context is applied.
 */
bool divisions_choose(const struct fleetjob *job, struct full_choice *out);

/* Could other workers go on from where these are? Nothing was trained, or the job resumes from a
 * checkpoint. */
bool divisions_may_change(const struct fleetjob *job);

/* The division in the strategy of a decoded job. */
struct full_choice divisions_of(const struct fleetjob *job);

/* Digest of the strategy of a decoded job: if it changes, workers need other programs. */
void divisions_digest(const struct fleetjob *job, char out[DIVISIONS_DIGEST_SIZE]);

/*
 * status.plan.search of a decoded job, owned by the caller. `json` is the resource that it was
 * decoded from. What status.plan.search has planned ahead for the same job is taken over. NULL: no
 * search finds the strategy, or the model's size is not known.
 */
cJSON *divisions_plan(const cJSON *json, const struct fleetjob *job);

/*
 * Let a resource without a status go on as a checkpoint of it was trained: sets
 * status.plan.search in `json`, from which `job` was decoded. `strategy` is the checkpoint's, for
 * the same model.
 */
void divisions_continue(cJSON *json, const struct fleetjob *job, const struct strategy *strategy,
                        int64_t micro_batch);

/* Read the "running" of a status.plan.search. False: it has none, or something else. *out_digest:
 * borrowed from it. */
bool divisions_running(const cJSON *search, struct division *out, const char **out_digest);

#endif
