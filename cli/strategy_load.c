/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/strategy_load.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/job_file.h"
#include "libfleet/api/divisions.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/autoparallel/job_strategy.h"
#include "libfleet/autoparallel/search/links_default.h"
#include "libfleet/autoparallel/search/operator_search.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

#define OPERATORS "spec.training.operatorStrategies"

static int read_file(const char *path, struct strategy_file *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    if (fleet_file_read(path, STRATEGY_FILE_SIZE_MAX, &text, &size, err) < 0)
        return err->code;
    if (strategy_file_decode(text, size, strategy_file_is_json(path), out, err) < 0)
        return fleet_error_wrap(err, "%s", path);
    return 0;
}

/* Ranks of a stage; 0: the job's numbers do not fit, which its plan reports. */
static int64_t devices_of(const struct fleetjob *job)
{
    int64_t world = fleetjob_world_size(job, job->spec.worker.replicas);
    int64_t stages = job->spec.strategy.hybrid_configs.pp_degree;

    stages = stages > 1 ? stages : 1;
    return world < 1 || world > TOPOLOGY_WORLD_MAX || world % stages != 0 ? 0 : world / stages;
}

/* *out: the entries that the file adds. */
static int make_entries(const char *path, const struct fleetjob *job, const cJSON *given,
                        cJSON **out, size_t *out_unknown, struct fleet_error *err)
{
    struct model_operators operators;
    struct strategy_file file;
    int rc = read_file(path, &file, err);

    if (rc < 0)
        return rc;
    rc = model_operators_init(&job->spec.training, &operators, err);
    if (rc == 0) {
        rc = job_strategy_entries(&file, &operators, devices_of(job), given, out, out_unknown, err);
        model_operators_release(&operators);
    }
    strategy_file_release(&file);
    return rc < 0 ? fleet_error_wrap(err, "%s", path) : 0;
}

/* Entries that come from the file are reported as the file's. */
static void report(const struct fleet_errors *found, int given_count, const char *key,
                   const char *path, struct fleet_errors *errors)
{
    static const char front[] = OPERATORS "[";

    for (size_t i = 0; i < found->count && i < FLEET_ERRORS_MAX; i++) {
        const char *at = found->items[i].path;

        if ((strcmp(at, OPERATORS) == 0 && given_count == 0) ||
            (strncmp(at, front, strlen(front)) == 0 &&
             strtol(at + strlen(front), NULL, 10) >= given_count))
            fleet_errors_add(errors, key, "%s: %s", path, found->items[i].message);
        else
            fleet_errors_add(errors, at, "%s", found->items[i].message);
    }
}

static void decode_with(cJSON *root, cJSON *entries, struct fleetjob *job,
                        struct fleet_errors *found)
{
    cJSON *training = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(root, "spec"), "training");
    cJSON *list = cJSON_GetObjectItemCaseSensitive(training, "operatorStrategies");

    if (!cJSON_IsArray(list)) {
        cJSON_DeleteItemFromObjectCaseSensitive(training, "operatorStrategies");
        list = fleet_json_set_list(training, "operatorStrategies");
    }
    while (entries->child)
        fleet_json_add(list, cJSON_DetachItemFromArray(entries, 0));
    fleetjob_release(job);
    (void)fleetjob_decode(root, job, found);
}

void strategy_load(cJSON *root, const char *file, struct fleetjob *job, struct fleet_errors *errors,
                   struct fleet_errors *warnings)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf key = {0};
    FLEET_AUTO_FREE char *folder = NULL, *path = NULL;
    FLEET_AUTO_JSON cJSON *entries = NULL;
    struct fleet_errors found = {0};
    struct context_files files;
    const cJSON *given;
    struct fleet_error err;
    int given_count;
    size_t unknown;

    context_files_of(job->spec.auto_parallel, &files);
    if (errors->count > 0 || !job->spec.has_training || !files.load.path || devices_of(job) == 0)
        return;
    folder = job_file_folder(file);
    path = fleet_file_join(folder, files.load.path);
    fleet_strbuf_appendf(&key, "spec.autoParallel.%s", files.load.key);
    given = fleet_json_at(root, OPERATORS);
    given_count = cJSON_GetArraySize(given);
    if (training_lacks_vocabulary(&job->spec.training)) {
        fleet_errors_add(errors, key.text,
                         "needs the sizes of all tensors: give spec.training.model.vocabulary");
        return;
    }
    if (make_entries(path, job, given, &entries, &unknown, &err) < 0) {
        fleet_errors_add(errors, key.text, "%s", err.text);
        return;
    }
    decode_with(root, entries, job, &found);
    report(&found, given_count, key.text, path, errors);
    fleet_errors_release(&found);
    if (unknown > 0 && warnings)
        fleet_errors_add(warnings, key.text,
                         "%zu operators of the file are none of %s, and are passed over", unknown,
                         training_model_text(job->spec.training.model.name));
}

/* ---- a search -------------------------------------------------------------------------------- */

static bool wants_ways(const struct fleetjob *job)
{
    const struct strategy *s = &job->spec.strategy;
    const cJSON *context = job->spec.auto_parallel;

    return divisions_are_searched(job) && !context_is_full(context) &&
           strcmp(context_search(context), "dynamic_programming") == 0 &&
           !job->spec.worker.elastic && s->hybrid_configs.mp_degree > 1 &&
           s->hybrid_configs.sep_degree <= 1 && !s->tensor_parallel_configs.sequence_parallel &&
           !(job->spec.strategy_options.has_operator_divisions &&
             !job->spec.strategy_options.operator_divisions);
}

void strategy_load_found(cJSON *root, struct fleetjob *job, struct fleet_errors *errors)
{
    const struct fleetjob_spec *spec = &job->spec;
    struct links links = links_default((int)spec->worker.processes_per_pod);
    struct full_request request = {.training = &spec->training,
                                   .strategy = &spec->strategy,
                                   .policy = spec->strategy_policy,
                                   .options = &spec->strategy_options,
                                   .has_buddies = spec->run_policy.elastic.replicas > 0,
                                   .memory = INFINITY,
                                   .links = &links};
    struct operator_search_result found;
    struct fleet_errors ignored = {0};
    struct full_choice grid;

    if (errors->count > 0 || !wants_ways(job))
        return;
    if (memory_limit_of_rank(job) > 0)
        request.memory = memory_limit_of_rank(job);
    request.devices = (int)fleetjob_world_size(job, spec->worker.replicas);
    grid = divisions_of(job);
    if (operator_search(&request, &grid, &found, &ignored) == 0) {
        if (found.best.entries)
            decode_with(root, found.best.entries, job, errors);
        operator_search_release(&found);
    }
    fleet_errors_release(&ignored);
}
