/* SPDX-License-Identifier: Apache-2.0 */

/* Divisions for other numbers of workers: the job is decoded again with each of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/api/divisions_internal.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/search/links_default.h"
#include "libfleet/autoparallel/search/step_time.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/topology.h"

/* Layers of all programs that are built to plan ahead: a hundred layers take half a second. */
#define LAYERS_MAX 768
#define LEAST      4 /* numbers of workers, also of deep models */

double divisions_round(double value)
{
    char text[40];

    (void)snprintf(text, sizeof(text), "%.3g", value);
    return strtod(text, NULL);
}

/* Those that the job gives, else the default. */
static struct links links_of(const struct fleetjob *job)
{
    const cJSON *given = fleet_json_at(job->spec.auto_parallel, "links");
    struct links links = links_default((int)job->spec.worker.processes_per_pod), own;
    struct fleet_errors ignored = {0};

    if (given && links_decode(given, &own, &ignored) == 0)
        links = own;
    fleet_errors_release(&ignored);
    return links;
}

/* The division of a decoded job, with time and memory. False: its plan has errors, or lacks the
 * size of the model. */
static bool predict(const struct fleetjob *job, struct division *out)
{
    const struct fleetjob_spec *spec = &job->spec;
    int64_t world = fleetjob_world_size(job, spec->worker.replicas);
    struct links links = links_of(job);
    struct fleet_errors errors = {0};
    struct plan_request request;
    struct step_profile profile;
    struct step_time time;
    struct plan plan;
    bool runs;

    if (world < 1 || world > TOPOLOGY_WORLD_MAX)
        return false;
    request = plan_request_of(&spec->training, &spec->strategy, spec->strategy_policy,
                              &spec->strategy_options, (int)world);
    request.has_buddies = spec->run_policy.elastic.replicas > 0;
    request.only_explain = request.is_draft = true;
    if (plan_build(&request, &plan, &errors) < 0) {
        fleet_errors_release(&errors);
        return false;
    }
    runs = plan.has_program && plan.cannot_run.count == 0;
    *out = (struct division){.workers = spec->worker.replicas, .choice = divisions_of(job)};
    if (runs) {
        step_profile_build(&plan.program, &links, &profile);
        step_time_of(&plan, &profile, &links, &time);
        step_profile_release(&profile);
        out->seconds = time.total;
        out->bytes = (double)plan_bytes_total(&plan);
    }
    plan_release(&plan);
    return runs;
}

/* The resource with another number of workers, as if it had no status. */
static void add_ahead(const cJSON *json, int64_t workers, cJSON *list)
{
    FLEET_AUTO_JSON cJSON *other = fleet_json_copy(json);
    cJSON *worker =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(other, "spec"), "worker");
    struct fleet_errors errors = {0};
    struct fleetjob job;
    struct division division;

    cJSON_DeleteItemFromObjectCaseSensitive(other, "status");
    fleet_json_set_number(worker, "replicas", (double)workers);
    if (fleetjob_decode(other, &job, &errors) == 0 && predict(&job, &division))
        fleet_json_add(list, division_encode(&division));
    fleet_errors_release(&errors);
    fleetjob_release(&job);
}

/* Numbers of workers that are planned ahead. */
struct numbers {
    int64_t items[DIVISIONS_AHEAD_MAX];
    int count, max;
};

static void add_number(const struct fleetjob_worker *worker, int64_t workers, struct numbers *out)
{
    int i = 0;

    while (i < out->count && out->items[i] != workers)
        i++;
    if (i == out->count && i < out->max && workers >= worker->min_replicas &&
        workers <= worker->max_replicas)
        out->items[out->count++] = workers;
}

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Between minReplicas and maxReplicas: halves and doubles of the present number, then the nearest.
 */
static void list_numbers(const struct fleetjob *job, struct numbers *out)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    int64_t layers = job->spec.training.model.layers > 1 ? job->spec.training.model.layers : 1;
    int64_t count = LAYERS_MAX / layers / (context_is_full(job->spec.auto_parallel) ? 4 : 1);
    int64_t now = worker->replicas, range = worker->max_replicas - worker->min_replicas;

    count = count < LEAST ? LEAST : count > DIVISIONS_AHEAD_MAX ? DIVISIONS_AHEAD_MAX : count;
    *out = (struct numbers){.max = (int)count};
    add_number(worker, now, out);
    for (int64_t factor = 2; factor <= FLEETJOB_REPLICAS_MAX; factor *= 2) {
        if (now % factor == 0)
            add_number(worker, now / factor, out);
        add_number(worker, now * factor, out);
    }
    for (int64_t apart = 1; apart <= range && out->count < out->max; apart++) {
        add_number(worker, now - apart, out);
        add_number(worker, now + apart, out);
    }
    qsort(out->items, (size_t)out->count, sizeof(out->items[0]), compare_numbers);
}

static cJSON *plan_ahead(const cJSON *json, const struct fleetjob *job)
{
    cJSON *list = fleet_json_new_list();
    struct numbers numbers;

    list_numbers(job, &numbers);
    for (int i = 0; i < numbers.count; i++)
        add_ahead(json, numbers.items[i], list);
    return list;
}

cJSON *divisions_plan(const cJSON *json, const struct fleetjob *job)
{
    const cJSON *known = divisions_known(job), *ahead = fleet_json_at(known, "ahead");
    char digest[DIVISIONS_DIGEST_SIZE];
    struct division division;
    cJSON *search, *running;

    if (!divisions_are_searched(job) || !predict(job, &division))
        return NULL;
    search = fleet_json_new_object();
    running = division_encode(&division);
    divisions_digest(job, digest);
    fleet_json_set_string(running, "digest", digest);
    divisions_digest_job(job, digest);
    fleet_json_set_string(search, "mode", context_search(job->spec.auto_parallel));
    fleet_json_set_string(search, "digest", digest);
    fleet_json_set(search, "running", running);
    fleet_json_set(search, "ahead", ahead ? fleet_json_copy(ahead) : plan_ahead(json, job));
    return search;
}
