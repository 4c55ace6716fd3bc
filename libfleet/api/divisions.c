/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/api/divisions.h"

#include <string.h>

#include "libfleet/api/divisions_internal.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy_json.h"

#define NODES_MAX FLEET_WORLD_MAX

bool divisions_are_searched(const struct fleetjob *job)
{
    struct context_files files;

    if (!job->spec.has_training || context_mode(job->spec.auto_parallel) != CONTEXT_AUTO_PARALLEL)
        return false;
    context_files_of(job->spec.auto_parallel, &files);
    return !files.load.path && job->spec.training.operators.count == 0;
}

/* ---- digests --------------------------------------------------------------------------------- */

static void digest_json(const cJSON *json, char out[DIVISIONS_DIGEST_SIZE])
{
    FLEET_AUTO_FREE char *text = fleet_json_print(json);
    uint8_t digest[FLEET_SHA256_SIZE];

    fleet_sha256(text, strlen(text), digest);
    fleet_hex_encode(digest, (DIVISIONS_DIGEST_SIZE - 1) / 2, out);
}

void divisions_digest(const struct fleetjob *job, char out[DIVISIONS_DIGEST_SIZE])
{
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();

    fleet_json_set(json, "strategy", strategy_json_encode(&job->spec.strategy));
    fleet_json_set(json, "options",
                   fleet_object_encode(&strategy_options_type, &job->spec.strategy_options));
    fleet_json_set_number(json, "microBatch", (double)job->spec.training.micro_batch_size);
    digest_json(json, out);
}

/* Of the job as given: the strategy's own digest has what was found. Fields that may change while a
 * job trains, and change nothing of its division, are left out. */
void divisions_digest_job(const struct fleetjob *job, char out[DIVISIONS_DIGEST_SIZE])
{
    static const char *const left_out[] = {"steps", "checkpoint", "log", "health", "evaluation"};
    FLEET_AUTO_JSON cJSON *json = fleet_json_new_object();
    cJSON *training = fleet_json_copy(job->spec.training_json);

    for (size_t i = 0; i < FLEET_COUNT(left_out); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(training, left_out[i]);
    fleet_json_set(json, "training", training);
    fleet_json_set(json, "autoParallel", fleet_json_copy(job->spec.auto_parallel));
    fleet_json_set(json, "strategy", fleet_json_copy(job->spec.strategy_json));
    fleet_json_set_string(json, "strategyText", job->spec.strategy_text);
    fleet_json_set_number(json, "policy", job->spec.strategy_policy);
    fleet_json_set_number(json, "processes", (double)job->spec.worker.processes_per_pod);
    if (job->spec.run_policy.elastic.replicas == 0)
        fleet_json_set_bool(json, "hasBuddies", false);
    digest_json(json, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void set_degree(cJSON *json, const char *key, int degree)
{
    if (degree > 1)
        fleet_json_set_number(json, key, degree);
}

cJSON *division_encode(const struct division *division)
{
    const struct full_choice *c = &division->choice;
    cJSON *json = fleet_json_new_object();

    fleet_json_set_number(json, "workers", (double)division->workers);
    fleet_json_set_number(json, "data", c->data);
    set_degree(json, "sharding", c->sharding);
    if (c->sharding > 1)
        fleet_json_set_number(json, "stage", c->stage);
    set_degree(json, "pipeline", c->pipeline);
    if (c->pipeline > 1)
        fleet_json_set_string(json, "schedule",
                              choices_schedule_text(c->all_forward ? CHOICES_SCHEDULE_F_THEN_B
                                                                   : CHOICES_SCHEDULE_1F1B));
    set_degree(json, "sequence", c->sequence);
    set_degree(json, "model", c->model);
    if (c->recompute)
        fleet_json_set_bool(json, "recompute", true);
    fleet_json_set_number(json, "microBatch", (double)c->micro_batch);
    if (division->seconds > 0)
        fleet_json_set_number(json, "milliseconds", divisions_round(division->seconds * 1e3));
    if (division->bytes > 0)
        fleet_json_set_number(json, "bytes", division->bytes);
    return json;
}

static int degree_at(const cJSON *json, const char *key)
{
    int64_t degree = 1;

    (void)fleet_json_opt_int(json, key, &degree, NULL);
    return degree >= 1 && degree <= NODES_MAX ? (int)degree : 0;
}

bool division_decode(const cJSON *json, struct division *out)
{
    const char *schedule = cJSON_GetStringValue(fleet_json_at(json, "schedule"));
    struct division d = {.choice = {.data = degree_at(json, "data"),
                                    .sharding = degree_at(json, "sharding"),
                                    .pipeline = degree_at(json, "pipeline"),
                                    .sequence = degree_at(json, "sequence"),
                                    .model = degree_at(json, "model"),
                                    .recompute = cJSON_IsTrue(fleet_json_at(json, "recompute")),
                                    .micro_batch = degree_at(json, "microBatch")}};
    double milliseconds = 0;

    (void)fleet_json_opt_int(json, "workers", &d.workers, NULL);
    (void)fleet_json_opt_number(json, "milliseconds", &milliseconds, NULL);
    (void)fleet_json_opt_number(json, "bytes", &d.bytes, NULL);
    d.seconds = milliseconds / 1e3;
    if (d.choice.sharding > 1)
        d.choice.stage = degree_at(json, "stage");
    d.choice.all_forward =
        schedule && strcmp(schedule, choices_schedule_text(CHOICES_SCHEDULE_F_THEN_B)) == 0;
    if (d.workers < 1 || d.choice.data < 1 || d.choice.sharding < 1 || d.choice.pipeline < 1 ||
        d.choice.sequence < 1 || d.choice.model < 1 || d.choice.micro_batch < 1 ||
        d.choice.stage > 3)
        return false;
    *out = d;
    return true;
}

bool divisions_running(const cJSON *search, struct division *out, const char **out_digest)
{
    const cJSON *running = fleet_json_at(search, "running");

    *out_digest = cJSON_GetStringValue(fleet_json_at(running, "digest"));
    return *out_digest && division_decode(running, out);
}

/* ---- the choice ------------------------------------------------------------------------------ */

static int64_t world_of(const struct fleetjob *job)
{
    return fleetjob_world_size(job, job->spec.worker.replicas);
}

/* Ranks of a replica. */
static int64_t ranks_of(const struct full_choice *c)
{
    return (int64_t)c->pipeline * c->sequence * c->model;
}

/* All ranks make whole replicas, and each of these has micro-batches for its stages. */
static bool fits(const struct fleetjob *job, const struct full_choice *c, int64_t world)
{
    int64_t replicas = world / ranks_of(c);
    int64_t batch = job->spec.training.global_batch_size;

    return replicas > 0 && world % ranks_of(c) == 0 && replicas % c->sharding == 0 &&
           batch % c->micro_batch == 0 && batch / c->micro_batch / replicas >= c->pipeline;
}

bool divisions_may_change(const struct fleetjob *job)
{
    const struct training_config *training = &job->spec.training;

    return !job->status.has_progress ||
           (training->has_checkpoint && training->checkpoint.resume != TRAINING_RESUME_NEVER);
}

/* One that was planned for this number of workers. */
static bool find_ahead(const cJSON *search, int64_t workers, struct full_choice *out)
{
    const cJSON *item;
    struct division division;

    cJSON_ArrayForEach(item, fleet_json_at(search, "ahead"))
    {
        if (!division_decode(item, &division) || division.workers != workers)
            continue;
        *out = division.choice;
        return true;
    }
    return false;
}

const cJSON *divisions_known(const struct fleetjob *job)
{
    const cJSON *search = fleet_json_at(job->status.plan, "search");
    const char *digest = cJSON_GetStringValue(fleet_json_at(search, "digest"));
    char now[DIVISIONS_DIGEST_SIZE];

    if (!digest || !divisions_are_searched(job))
        return NULL;
    divisions_digest_job(job, now);
    return strcmp(digest, now) == 0 ? search : NULL;
}

bool divisions_choose(const struct fleetjob *job, struct full_choice *out)
{
    const cJSON *search = divisions_known(job);
    int64_t workers = job->spec.worker.replicas, world = world_of(job), unit;
    struct division running;
    const char *digest;
    bool is_elastic = job->spec.worker.elastic;

    if (!search || !divisions_running(search, &running, &digest))
        return false;
    unit = running.choice.sharding * ranks_of(&running.choice);
    if (fits(job, &running.choice, world) || !divisions_may_change(job)) {
        *out = running.choice;
        return true;
    }
    if (find_ahead(search, workers, out))
        return true;
    *out = running.choice;
    return is_elastic && fits(job, &running.choice, world / unit * unit);
}

static struct full_choice choice_of(const struct strategy *s, int64_t world, int64_t micro_batch)
{
    const struct strategy_hybrid_config *h = &s->hybrid_configs;
    struct full_choice c = {.sharding =
                                s->sharding && h->sharding_degree > 1 ? h->sharding_degree : 1,
                            .pipeline = h->pp_degree > 1 ? h->pp_degree : 1,
                            .sequence = h->sep_degree > 1 ? h->sep_degree : 1,
                            .model = h->mp_degree > 1 ? h->mp_degree : 1,
                            .recompute = s->recompute,
                            .micro_batch = micro_batch};
    int64_t unit = c.sharding * ranks_of(&c);

    c.stage = c.sharding > 1 ? s->sharding_configs.stage : 0;
    c.all_forward = c.pipeline > 1 && choices_schedule(s) == CHOICES_SCHEDULE_F_THEN_B;
    c.data = (int)(world / unit > 0 ? world / unit : 1);
    return c;
}

struct full_choice divisions_of(const struct fleetjob *job)
{
    return choice_of(&job->spec.strategy, world_of(job), job->spec.training.micro_batch_size);
}

void divisions_continue(cJSON *json, const struct fleetjob *job, const struct strategy *strategy,
                        int64_t micro_batch)
{
    cJSON *search = fleet_json_new_object(), *running;
    struct division division = {.workers = job->spec.worker.replicas,
                                .choice = choice_of(strategy, world_of(job), micro_batch)};
    char digest[DIVISIONS_DIGEST_SIZE];

    divisions_digest_job(job, digest);
    fleet_json_set_string(search, "digest", digest);
    running = division_encode(&division);
    fleet_json_set_string(running, "digest", ""); /* nothing runs */
    fleet_json_set(search, "running", running);
    fleet_json_set(fleet_json_set_object(fleet_json_set_object(json, "status"), "plan"), "search",
                   search);
}
