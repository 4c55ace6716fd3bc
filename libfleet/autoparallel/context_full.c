/* SPDX-License-Identifier: Apache-2.0 */

/*
 * `search: full` in auto_parallel: our own search (search/full_search.h) decides all that divides
 * the job, so neither other keys nor the strategy may say something about it.
 */
#include <inttypes.h>
#include <math.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/autoparallel/context_internal.h"
#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/autoparallel/search/links_default.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/training/training.h"

#define KEY "search"

/* ---- what must not be given beside it -------------------------------------------------------- */

static bool may_have_keys(const struct context_apply *a)
{
    static const char *const keys[] = {
        "search_mode",     "auto_parallel_search_mode", "pipeline_stages",
        "pipeline_config", "enable_parallel_optimizer", "parallel_optimizer_config"};
    struct context_files files;
    size_t before = a->errors->count;

    for (size_t i = 0; i < FLEET_COUNT(keys); i++)
        if (fleet_json_at(a->context, keys[i]))
            context_report(a->errors, a->path, keys[i],
                           "%s.search: full decides this itself; give one of the two", a->path);
    context_files_of(a->context, &files);
    if (files.load.path)
        context_report(a->errors, a->path, files.load.key,
                       "%s.search: full finds strategies itself; give one of the two", a->path);
    if (a->job->training && a->job->training->operators.count > 0)
        context_report(a->errors, "spec.training", "operatorStrategies",
                       "%s.search: full finds strategies itself; give one of the two", a->path);
    return a->errors->count == before;
}

static bool may_have_settings(const struct context_apply *a)
{
    const struct strategy *s = a->strategy;
    const struct {
        const char *name;
        bool is_given;
    } settings[] = {
        {"hybrid_configs.dp_degree", s->hybrid_configs.has_dp_degree},
        {"hybrid_configs.mp_degree", s->hybrid_configs.has_mp_degree},
        {"hybrid_configs.pp_degree", s->hybrid_configs.has_pp_degree},
        {"hybrid_configs.sharding_degree", s->hybrid_configs.has_sharding_degree},
        {"hybrid_configs.sep_degree", s->hybrid_configs.has_sep_degree},
        {"sharding", s->has_sharding},
        {"sharding_configs.stage", s->sharding_configs.has_stage},
        {"pipeline", s->has_pipeline},
        {"pipeline_configs.schedule_mode", s->pipeline_configs.has_schedule_mode},
        {"tensor_parallel", s->has_tensor_parallel},
        {"tensor_parallel_configs.tensor_parallel_degree",
         s->tensor_parallel_configs.has_tensor_parallel_degree},
        {"auto", s->has_auto_},
    };
    size_t before = a->errors->count;

    for (size_t i = 0; i < FLEET_COUNT(settings); i++)
        if (settings[i].is_given)
            context_report(a->errors, a->path, KEY,
                           "full decides %s itself, but %s.%s is given; give one of the two",
                           settings[i].name, a->job->strategy_path, settings[i].name);
    return a->errors->count == before;
}

/* ---- the search ------------------------------------------------------------------------------ */

static bool read_links(const struct context_apply *a, struct links *out)
{
    const cJSON *given = fleet_json_at(a->context, "links");
    struct fleet_errors found = {0};

    *out = links_default(a->job->node_ranks);
    if (given && links_decode(given, out, &found) < 0) {
        fleet_errors_release(&found); /* context_check() has reported them */
        return false;
    }
    return true;
}

static void refuse_memory(const struct context_apply *a, const struct full_request *request,
                          const struct full_result *result)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (result->count > 0) {
        context_report(a->errors, a->path, KEY,
                       "the built-in trainer can run none of %" PRId64 " combinations",
                       result->combinations);
        return;
    }
    fleet_strbuf_appendf(&text, "none of %" PRId64 " combinations fits into ",
                         result->combinations);
    fleet_strbuf_append_size(&text, request->memory);
    fleet_strbuf_appendf(&text, " on each of %d ranks: each needs at least ", request->devices);
    fleet_strbuf_append_size(&text, result->least_bytes);
    context_report(a->errors, a->path, KEY, "%s", text.text);
}

/* The best that the built-in trainer runs. */
static bool search(const struct context_apply *a, struct full_choice *out)
{
    struct links links;
    struct full_request request = {.training = a->job->training,
                                   .strategy = a->strategy,
                                   .policy = a->job->policy,
                                   .options = a->options,
                                   .has_buddies = a->job->has_buddies,
                                   .devices = (int)a->job->world,
                                   .links = &links};
    struct fleet_errors found = {0};
    struct full_result result;

    if (!read_links(a, &links))
        return false;
    request.memory = fmin(links.memory, a->job->memory > 0 ? a->job->memory : INFINITY);
    if (full_search(&request, &result, &found) < 0) {
        fleet_errors_append(a->errors, &found);
        fleet_errors_release(&found);
        return false;
    }
    if (!result.has_runnable) {
        refuse_memory(a, &request, &result);
        return false;
    }
    *out = result.runnable.choice;
    return true;
}

/* A full search takes seconds where layers and ranks are many, and the job waits for it. */
static bool is_small(const struct context_apply *a)
{
    int64_t layers = a->job->training->model.layers > 1 ? a->job->training->model.layers : 1;

    if (a->job->world <= CONTEXT_FULL_RANKS_MAX && layers <= CONTEXT_FULL_LAYERS_MAX)
        return true;
    context_report(a->errors, a->path, KEY,
                   "full is for at most %d ranks and %d layers, not %" PRId64 " and %" PRId64
                   ": `fleetjob plan --search --save FILE` searches larger jobs",
                   CONTEXT_FULL_RANKS_MAX, CONTEXT_FULL_LAYERS_MAX, a->job->world, layers);
    return false;
}

static bool can_search(const struct context_apply *a)
{
    if (!a->job->training || a->job->world < 1 || a->job->world > TOPOLOGY_WORLD_MAX)
        return false;
    if (!training_lacks_vocabulary(a->job->training))
        return is_small(a);
    context_report(a->errors, a->path, KEY,
                   "full needs the sizes of all tensors: give spec.training.model.vocabulary");
    return false;
}

/* All degrees but the replicas, whose number follows from that of the workers. */
static void use(const struct context_apply *a, const struct full_choice *choice)
{
    struct strategy divided;

    full_strategy(a->strategy, choice, &divided);
    divided.hybrid_configs.dp_degree = a->strategy->hybrid_configs.dp_degree;
    divided.hybrid_configs.has_dp_degree = 0;
    strategy_release(a->strategy);
    *a->strategy = divided; /* moved */
}

void context_full_apply(const struct context_apply *a)
{
    bool has_keys = may_have_keys(a), has_settings = may_have_settings(a);
    struct full_choice choice;

    if (!has_keys || !has_settings || !can_search(a))
        return;
    if (a->job->chosen)
        choice = *a->job->chosen;
    else if (!search(a, &choice))
        return;
    use(a, &choice);
    if (a->job->micro_batch)
        *a->job->micro_batch = choice.micro_batch;
}
