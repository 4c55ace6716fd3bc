/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decodes a FleetJob by its tables. Two blocks have decoders of their own: strategy and training.
 */
#include "libfleet/api/fleetjob.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/api/defaults.h"
#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob_tables.h"
#include "libfleet/api/known_elsewhere.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/yaml.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy_json.h"

/* apiVersion and kind must be exactly ours. */
static void check_type(const cJSON *json, const char *key, const char *wanted,
                       struct fleet_errors *errors)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);

    if (!cJSON_IsString(item))
        fleet_errors_add(errors, key, "required: must be \"%s\"", wanted);
    else if (strcmp(item->valuestring, wanted) != 0)
        fleet_errors_add(errors, key, "must be \"%s\", not \"%.100s\"", wanted, item->valuestring);
}

static void check_keys(const cJSON *json, struct fleet_errors *errors)
{
    static const char *const keys[] = {"apiVersion", "kind", "metadata", "spec", "status"};

    for (const cJSON *item = json->child; item; item = item->next) {
        bool known = false;
        for (size_t i = 0; i < FLEET_COUNT(keys) && !known; i++)
            known = strcmp(item->string, keys[i]) == 0;
        if (known)
            continue;
        const char *nearest = fleet_closest_word(item->string, keys, FLEET_COUNT(keys));
        if (nearest)
            fleet_errors_add_unknown(errors, item->string, "unknown field; did you mean \"%s\"?",
                                     nearest);
        else
            fleet_errors_add_unknown(errors, item->string, "unknown field of FleetJob");
    }
}

/* A strategy has two forms. A job may give either one, or both if they are equal. */
static void decode_strategy(struct fleetjob_spec *spec, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy text = {0};
    size_t before = errors->count;
    struct fleet_error err;

    if (spec->strategy_json) {
        strategy_release(&spec->strategy);
        (void)strategy_json_decode(spec->strategy_json, "spec.strategy", &spec->strategy, errors);
    }
    if (!spec->strategy_text || errors->count > before)
        return;
    strategy_init(&text);
    if (prototxt_merge(&text, "text", spec->strategy_text, strlen(spec->strategy_text), &err) < 0) {
        fleet_errors_add(errors, "spec.strategyText", "%s", err.text);
    } else if (!spec->strategy_json) {
        strategy_release(&spec->strategy);
        strategy_copy(&spec->strategy, &text);
    } else if (!strategy_means_same(&spec->strategy, &text)) {
        fleet_errors_add(errors, "spec.strategyText",
                         "says something else than spec.strategy; give one of the two");
    }
}

/* Decoding the table zeroes the spec, so the other blocks are decoded after it. */
static void decode_spec(const cJSON *json, struct fleetjob_spec *spec, struct fleet_errors *errors)
{
    (void)fleet_object_decode(&fleetjob_spec_type, json, "spec", spec, errors);
    strategy_init(&spec->strategy);
    decode_strategy(spec, errors);
    if (spec->training_json)
        (void)training_config_read(spec->training_json, "spec.training", &spec->training, errors);
}

/* Check the strategy's values one by one, even if another part of the job is wrong. */
static void check_values(const struct fleetjob_spec *spec, struct fleet_errors *errors)
{
    (void)strategy_check_values(
        &spec->strategy, spec->strategy_json ? "spec.strategy" : "spec.strategyText", errors);
}

/* The API server accepts a NUL in a string, but a container would silently lose the rest of it. */
static void check_nul(const cJSON *spec, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    fleet_strbuf_append(&path, "spec");
    if (fleet_json_find_nul(spec, &path))
        fleet_errors_add(errors, path.text,
                         "must not have a NUL character (\\u0000, or U+FFFF): leave it out");
}

/* Checks of single values: each error is about one of them. */
static void read_values(const cJSON *json, struct fleetjob *out, struct fleet_errors *errors)
{
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(json, "status");

    check_type(json, "apiVersion", WELLKNOWN_API_VERSION, errors);
    check_type(json, "kind", WELLKNOWN_KIND, errors);
    check_keys(json, errors);
    (void)fleet_object_decode(&fleetjob_metadata_type,
                              cJSON_GetObjectItemCaseSensitive(json, "metadata"), "metadata",
                              &out->metadata, errors);
    if (!cJSON_GetObjectItemCaseSensitive(json, "spec"))
        fleet_errors_add(errors, "spec", "required");
    check_nul(cJSON_GetObjectItemCaseSensitive(json, "spec"), errors);
    decode_spec(cJSON_GetObjectItemCaseSensitive(json, "spec"), &out->spec, errors);
    out->has_status = cJSON_IsObject(status);
    (void)fleetjob_status_decode(status, &out->status, errors);
    if (errors->count > 0)
        check_values(&out->spec, errors);
}

/* Is the training block without errors, so that its program can be built? */
static bool can_build(const struct fleetjob *job)
{
    struct fleet_errors wrong = {0};
    bool can =
        job->spec.has_training && job->unread.count == 0 &&
        training_config_relate(&job->spec.training, "spec.training", &job->unread, &wrong) == 0;

    fleet_errors_release(&wrong);
    return can;
}

/* Where the division of a job that needs a search comes from. */
struct source {
    bool may_search;
    const struct full_choice *found; /* NULL: nothing */
};

/* What is known of the division; *kept has place for it. False: a search is needed and left out. */
static bool choose(const struct fleetjob *job, const struct source *source,
                   struct context_job *around, struct full_choice *kept)
{
    if (divisions_choose(job, kept))
        around->chosen = kept;
    else if (!source->may_search && divisions_are_searched(job))
        around->chosen = source->found;
    else
        return true;
    return around->chosen != NULL;
}

/* The built-in trainer acts on spec.autoParallel as on settings of the strategy. */
static void apply_context(struct fleetjob *job, const struct source *source,
                          struct fleet_errors *errors)
{
    struct full_choice chosen;
    int64_t micro_batch = 0;
    struct context_job around = {.strategy_path = fleetjob_strategy_path(job),
                                 .world = fleetjob_world_size(job, job->spec.worker.replicas),
                                 .is_elastic = job->spec.worker.elastic,
                                 .policy = job->spec.strategy_policy,
                                 .node_ranks = (int)job->spec.worker.processes_per_pod,
                                 .has_buddies = job->spec.run_policy.elastic.replicas > 0,
                                 .micro_batch = &micro_batch};

    if (!job->spec.has_training || !job->spec.auto_parallel)
        return;
    if (can_build(job)) {
        job->lacks_division = !choose(job, source, &around, &chosen);
        around.training = job->lacks_division ? NULL : &job->spec.training;
    }
    around.memory = memory_limit_of_rank(job);
    context_apply(job->spec.auto_parallel, "spec.autoParallel", &around, &job->spec.strategy,
                  &job->spec.strategy_options, errors);
    if (micro_batch > 0)
        job->spec.training.micro_batch_size = micro_batch;
}

static int decode(const cJSON *json, const struct source *source, struct fleetjob *out,
                  struct fleet_errors *errors)
{
    size_t before = errors->count;

    *out = (struct fleetjob){0};
    if (!cJSON_IsObject(json)) {
        strategy_init(&out->spec.strategy);
        fleet_errors_add(&out->unread, "",
                         "a FleetJob must be an object with apiVersion, kind, "
                         "metadata and spec");
        fleet_errors_append(errors, &out->unread);
        return -EINVAL;
    }
    read_values(json, out, &out->unread);
    known_elsewhere_hint(&out->unread);
    fleet_errors_append(errors, &out->unread);
    defaults_apply(out);
    apply_context(out, source, errors);
    if (out->spec.training_json)
        (void)training_config_relate(&out->spec.training, "spec.training", &out->unread, errors);
    return errors->count > before ? -EINVAL : 0;
}

int fleetjob_decode(const cJSON *json, struct fleetjob *out, struct fleet_errors *errors)
{
    return decode(json, &(struct source){.may_search = true}, out, errors);
}

int fleetjob_decode_found(const cJSON *json, const struct full_choice *found, struct fleetjob *out,
                          struct fleet_errors *errors)
{
    return decode(json, &(struct source){.found = found}, out, errors);
}

int fleetjob_read(const char *text, size_t size, struct fleetjob *out, struct fleet_errors *errors)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_error err;

    if (fleet_yaml_to_json(text, size, &json, &err) < 0) {
        *out = (struct fleetjob){0};
        strategy_init(&out->spec.strategy);
        fleet_errors_add(&out->unread, "", "%s", err.text);
        fleet_errors_append(errors, &out->unread);
        return -EINVAL;
    }
    return fleetjob_decode(json, out, errors);
}

void fleetjob_release(struct fleetjob *job)
{
    strategy_release(&job->spec.strategy);
    training_config_release(&job->spec.training);
    fleet_object_release(&fleetjob_metadata_type, &job->metadata);
    fleet_object_release(&fleetjob_spec_type, &job->spec);
    fleetjob_status_release(&job->status);
    fleet_errors_release(&job->unread);
    *job = (struct fleetjob){0};
}

int64_t fleetjob_world_size(const struct fleetjob *job, int64_t replicas)
{
    return replicas * job->spec.worker.processes_per_pod;
}

const cJSON *fleetjob_server_template(const struct fleetjob *job)
{
    return job->spec.server.template_ ? job->spec.server.template_ : job->spec.worker.template_;
}

const char *fleetjob_strategy_path(const struct fleetjob *job)
{
    return job->spec.strategy_text ? "spec.strategyText" : "spec.strategy";
}

int64_t fleetjob_gradient_merge_k(const struct fleetjob *job)
{
    return select_merge_steps(&job->spec.strategy);
}
