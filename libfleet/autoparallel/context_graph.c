/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Keys of semi_auto_parallel and auto_parallel: MindSpore infers layouts there. The built-in
 * trainer has a grid instead, so a key becomes a degree of the grid, or a setting beside it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/autoparallel/context_internal.h"
#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/autoparallel/search/grid_search.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/training/training.h"

#define CONFIG          "parallel_optimizer_config."
#define AUTO_MEGABYTES  64 /* comm_fusion's mode auto */
#define STAGE_GRADIENTS 2  /* sharding_configs.stage */
#define STAGE_WEIGHTS   3

static const cJSON *at(const cJSON *context, const char *key)
{
    return fleet_json_at(context, key);
}

static bool is_word(const cJSON *context, const char *key, const char *word)
{
    const char *text = cJSON_GetStringValue(at(context, key));

    return text && strcmp(text, word) == 0;
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void apply_schedule(const struct context_apply *a)
{
    static const char scheduler[] = "pipeline_config.pipeline_scheduler";
    static const char interleave[] = "pipeline_config.pipeline_interleave";
    struct strategy_pipeline_config *config = &a->strategy->pipeline_configs;
    enum choices_schedule wanted =
        is_word(a->context, scheduler, "gpipe") ? CHOICES_SCHEDULE_F_THEN_B : CHOICES_SCHEDULE_1F1B;

    if (!at(a->context, "pipeline_config"))
        return;
    context_ask_text(a, scheduler, "pipeline_configs.schedule_mode", &config->schedule_mode,
                     &config->has_schedule_mode, choices_schedule_text(wanted));
    a->strategy->has_pipeline_configs = KNOB_BY_NAME;
    if (cJSON_IsFalse(at(a->context, interleave)) && a->options->pipeline_chunks > 1)
        context_report(a->errors, a->path, interleave,
                       "is false, but spec.strategyOptions.pipelineChunks is %" PRId64
                       " and interleaves the layers of stages; give one of the two",
                       a->options->pipeline_chunks);
}

static void apply_stages(const struct context_apply *a)
{
    static const char key[] = "pipeline_stages";
    struct strategy *s = a->strategy;
    int64_t stages = context_number(a->context, key, 0);

    if (stages < 1 || stages > INT32_MAX || (stages == 1 && s->hybrid_configs.pp_degree <= 1))
        return;
    context_ask_int(a, key, "hybrid_configs.pp_degree", &s->hybrid_configs.pp_degree,
                    &s->hybrid_configs.has_pp_degree, stages);
    s->has_hybrid_configs = KNOB_BY_NAME;
    if (stages == 1)
        return;
    context_ask_bool(a, key, "pipeline", &s->pipeline, &s->has_pipeline, true);
    apply_schedule(a);
}

/* ---- the divided optimizer ------------------------------------------------------------------- */

int64_t context_unit(const struct strategy *s)
{
    const struct strategy_hybrid_config *h = &s->hybrid_configs;

    return (int64_t)(h->pp_degree > 1 ? h->pp_degree : 1) * (h->mp_degree > 1 ? h->mp_degree : 1);
}

static int stage_of(const cJSON *context)
{
    int stage = is_word(context, CONFIG "optimizer_level", "level3")   ? STAGE_WEIGHTS
                : is_word(context, CONFIG "optimizer_level", "level2") ? STAGE_GRADIENTS
                                                                       : 1;

    return stage == 1 && cJSON_IsTrue(at(context, CONFIG "gradient_accumulation_shard"))
               ? STAGE_GRADIENTS
               : stage;
}

/* Groups of neighbours: among all ranks, or among those that differ in their samples alone. */
static void apply_groups(const struct context_apply *a, int64_t replicas, int64_t size)
{
    struct strategy *s = a->strategy;
    struct strategy_sharding_config *sharding = &s->sharding_configs;
    const char *key = size > 0 ? CONTEXT_SHARD_SIZE : "enable_parallel_optimizer";

    if (context_unit(s) > 1) {
        context_ask_int(a, key, "hybrid_configs.sharding_degree",
                        &s->hybrid_configs.sharding_degree, &s->hybrid_configs.has_sharding_degree,
                        size > 0 ? size : replicas);
        s->has_hybrid_configs = KNOB_BY_NAME;
    } else if (size > 0) {
        context_ask_bool(a, key, "sharding_configs.hybrid_dp", &sharding->hybrid_dp,
                         &sharding->has_hybrid_dp, true);
        context_ask_int(a, key, "sharding_configs.sharding_group_size",
                        &sharding->sharding_group_size, &sharding->has_sharding_group_size, size);
        s->has_sharding_configs = KNOB_BY_NAME;
    }
}

static void apply_gathers(const struct context_apply *a)
{
    static const char config[] = "comm_fusion.allgather.config";
    struct strategy_sharding_config *sharding = &a->strategy->sharding_configs;
    int64_t megabytes = context_number(a->context, config, AUTO_MEGABYTES);
    char wanted[24], given[24];

    if (!at(a->context, config) || cJSON_IsFalse(at(a->context, "comm_fusion.openstate")))
        return;
    if (sharding->has_fuse_broadcast_MB && sharding->fuse_broadcast_MB != (float)megabytes) {
        (void)snprintf(wanted, sizeof(wanted), "%" PRId64, megabytes);
        (void)snprintf(given, sizeof(given), "%g", (double)sharding->fuse_broadcast_MB);
        context_contradict(a, "comm_fusion.allgather", "sharding_configs.fuse_broadcast_MB", wanted,
                           given);
        return;
    }
    sharding->fuse_broadcast_MB = (float)megabytes;
    sharding->has_fuse_broadcast_MB = KNOB_BY_NAME;
}

static void apply_optimizer(const struct context_apply *a)
{
    static const char key[] = "enable_parallel_optimizer";
    struct strategy *s = a->strategy;
    int64_t replicas = a->job->world / context_unit(s),
            size = context_shard_size(a->context, replicas);
    int stage = stage_of(a->context);
    bool says_level = at(a->context, CONFIG "optimizer_level") ||
                      at(a->context, CONFIG "gradient_accumulation_shard");

    context_refuse_sharding(a);
    if (!cJSON_IsTrue(at(a->context, key)) || replicas == 1 || size < 0 ||
        a->job->world % context_unit(s) != 0 || (a->job->world == 0 && context_unit(s) > 1))
        return;
    context_ask_bool(a, key, "sharding", &s->sharding, &s->has_sharding, true);
    apply_groups(a, replicas, size);
    if (stage == STAGE_WEIGHTS && context_unit(s) > 1) {
        context_report(a->errors, a->path, CONFIG "optimizer_level",
                       "level3 gathers parameters as they are used, which ranks that share a model "
                       "(pipeline_stages, tensor parallelism) cannot do yet: use level2");
        return;
    }
    if (stage == 1 && (!says_level || s->sharding_configs.stage <= 1))
        return;
    context_ask_int(a,
                    at(a->context, CONFIG "optimizer_level") ? CONFIG "optimizer_level"
                                                             : CONFIG "gradient_accumulation_shard",
                    "sharding_configs.stage", &s->sharding_configs.stage,
                    &s->sharding_configs.has_stage, stage);
    s->has_sharding_configs = KNOB_BY_NAME;
    if (stage == STAGE_WEIGHTS)
        apply_gathers(a);
}

/* ---- auto_parallel --------------------------------------------------------------------------- */

static bool may_search(const struct context_apply *a, const char *key)
{
    if (a->job->training && strcmp(context_search(a->context), "sharding_propagation") == 0)
        context_report(
            a->errors, a->path, key,
            "sharding_propagation begins at operators with given strategies: give at least one in "
            "spec.training.operatorStrategies, or use recursive_programming or "
            "dynamic_programming");
    else if (a->job->training && training_lacks_vocabulary(a->job->training))
        context_report(a->errors, a->path, "parallel_mode",
                       "auto_parallel needs the sizes of all tensors: give "
                       "spec.training.model.vocabulary");
    else
        return a->job->training != NULL;
    return false;
}

/* The operators of a strategy file have not been read: they are used in place of a search. */
static bool awaits_file(const struct context_apply *a)
{
    struct context_files files;

    context_files_of(a->context, &files);
    return files.load.path != NULL;
}

static void apply_grid(const struct context_apply *a)
{
    struct strategy_hybrid_config *h = &a->strategy->hybrid_configs;
    const char *key = at(a->context, "auto_parallel_search_mode") && !at(a->context, "search_mode")
                          ? "auto_parallel_search_mode"
                          : "search_mode";
    int64_t stages = h->pp_degree > 1 ? h->pp_degree : 1;
    struct grid_request request = {
        .training = a->job->training,
        .stages = (int)stages,
        .model = h->has_mp_degree ? h->mp_degree : 0,
        .kind = strcmp(context_search(a->context), "dynamic_programming") == 0
                    ? GRID_SEARCH_DYNAMIC
                    : GRID_SEARCH_RECURSIVE};
    struct grid grid = {.model = a->job->chosen ? a->job->chosen->model : 0};
    struct fleet_error err;

    if (context_mode(a->context) != CONTEXT_AUTO_PARALLEL || awaits_file(a) ||
        !may_search(a, key) || a->job->world < 1 || a->job->world > TOPOLOGY_WORLD_MAX ||
        a->job->world % stages != 0)
        return;
    request.devices = (int)(a->job->world / stages);
    if (!a->job->chosen && grid_search(&request, &grid, &err) < 0) {
        context_report(a->errors, a->path, key, "%s", err.text);
        return;
    }
    if (grid.model == 1)
        return;
    context_ask_int(a, "parallel_mode", "hybrid_configs.mp_degree", &h->mp_degree,
                    &h->has_mp_degree, grid.model);
    a->strategy->has_hybrid_configs = KNOB_BY_NAME;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* The ranks of a tensor-parallel group compute one loss. MindSpore divides its gradient by their
 * number, unless it is asked not to. */
static void apply_loss(const struct context_apply *a)
{
    static const char key[] = "loss_repeated_mean";
    const cJSON *mean = at(a->context, key);
    struct strategy_options *options = a->options;
    bool adds = cJSON_IsFalse(mean);

    if (!cJSON_IsBool(mean) || a->strategy->hybrid_configs.mp_degree <= 1)
        return;
    if (options->has_repeated_loss_adds && options->repeated_loss_adds != adds) {
        context_report(
            a->errors, a->path, key,
            "is %s, but spec.strategyOptions.repeatedLossAdds is %s; give one of the two",
            adds ? "false" : "true", adds ? "false" : "true");
        return;
    }
    options->repeated_loss_adds = adds;
    options->has_repeated_loss_adds |= adds;
}

static void apply_type(const struct context_apply *a)
{
    if (a->strategy->fp16_allreduce && cJSON_IsTrue(at(a->context, "gradient_fp32_sync")))
        context_contradict(a, "gradient_fp32_sync", "fp16_allreduce", "false", "true");
}

static void check_load(const struct context_apply *a)
{
    struct context_files files;

    context_files_of(a->context, &files);
    if (files.load.path && a->job->is_elastic)
        context_report(a->errors, a->path, files.load.key,
                       "is for a fixed number of workers: leave out spec.worker.minReplicas and "
                       "maxReplicas");
}

void context_graph_apply(const struct context_apply *a)
{
    check_load(a);
    if (context_is_full(a->context)) {
        context_full_apply(a);
        apply_loss(a);
        apply_type(a);
        return;
    }
    apply_stages(a);
    if (a->job->training && a->job->training->operators.count > 0)
        context_operators_apply(a);
    else
        apply_grid(a);
    apply_optimizer(a);
    apply_loss(a);
    apply_type(a);
}

/* ---- what a user may not expect -------------------------------------------------------------- */

/* Keys that need nothing here, and why. */
static const struct {
    const char *key, *reason;
    bool also_false; /* its default is true */
} needless[] = {
    {"gradient_fp32_sync", "has no effect: gradients are fp32 before they are exchanged", true},
    {"enable_alltoall",
     "has no effect: no grid of the built-in trainer needs an all-to-all between layers", false},
    {"pipeline_result_broadcast",
     "has no effect: the result of an evaluation reaches every stage as it is", false},
    {"full_batch", "has no effect: each rank reads the samples of its replica and no others",
     false},
    {"dataset_strategy", "has no effect: each rank reads the samples of its replica and no others",
     false},
    {CONFIG "parallel_optimizer_threshold",
     "has no effect: ranges of the parameters are divided, those of small ones as well", true},
    {"comm_fusion.reducescatter",
     "has no effect: sums that divide gradients are cut where the all-reduces are cut", false},
};

static void warn_of_optimizer(const cJSON *context, const char *path,
                              const struct context_outcome *job, struct fleet_errors *warnings)
{
    static const char *const divided[] = {CONFIG "gradient_accumulation_shard",
                                          CONFIG "optimizer_level"};
    int64_t replicas = job->world / context_unit(job->strategy);

    if (stage_of(context) != STAGE_WEIGHTS && at(context, "comm_fusion.allgather"))
        context_report(warnings, path, "comm_fusion.allgather",
                       "has no effect: only optimizer_level level3 gathers parameters in parts of "
                       "that size");
    if (!cJSON_IsTrue(at(context, "enable_parallel_optimizer")))
        return;
    for (size_t i = 0; i < FLEET_COUNT(divided); i++)
        if (replicas == 1 && at(context, divided[i]))
            context_report(warnings, path, divided[i], "has no effect: nothing is divided");
    if (replicas == 1)
        context_report(warnings, path, "enable_parallel_optimizer",
                       "has no effect: there is one replica, and it has all of the states");
    else if (context_shard_size(context, replicas) < 0)
        context_report(warnings, path, CONTEXT_SHARD_SIZE,
                       "divides nothing: %" PRId64 " does not divide the %" PRId64
                       " replicas, and parameters stay whole",
                       context_number(context, CONTEXT_SHARD_SIZE, -1), replicas);
}

static void warn_of_stages(const cJSON *context, const char *path,
                           const struct context_outcome *job, struct fleet_errors *warnings)
{
    static const char interleave[] = "pipeline_config.pipeline_interleave";

    if (cJSON_IsTrue(at(context, interleave)) && job->options->pipeline_chunks <= 1 &&
        context_number(context, "pipeline_stages", 1) > 1)
        context_report(warnings, path, interleave,
                       "has no effect: spec.strategyOptions.pipelineChunks, the chunks of layers "
                       "on a stage, is 1");
}

static void warn_of_files(const cJSON *context, const char *path, struct fleet_errors *warnings)
{
    struct context_files files;

    context_files_of(context, &files);
    if (at(context, "strategy_ckpt_config") && !files.load.path && !files.save.path)
        context_report(warnings, path, "strategy_ckpt_config",
                       "has no effect: it names neither load_file nor save_file");
    else if (!files.only_trainable && !files.save.path)
        context_report(warnings, path, "strategy_ckpt_config.only_trainable_params",
                       "has no effect: no file is saved");
    if (files.load.path)
        context_report(warnings, path, "",
                       "%s is read where the job trains: until then its operators count for "
                       "nothing, and workers refuse a file that asks for other degrees than "
                       "spec.strategy and spec.training.operatorStrategies",
                       files.load.key);
}

void context_graph_warn(const cJSON *context, const char *path, const struct context_outcome *job,
                        struct fleet_errors *warnings)
{
    for (size_t i = 0; i < FLEET_COUNT(needless); i++) {
        const cJSON *item = at(context, needless[i].key);

        if (item && (needless[i].also_false || !cJSON_IsFalse(item)))
            context_report(warnings, path, needless[i].key, "%s", needless[i].reason);
    }
    if (cJSON_IsFalse(at(context, "loss_repeated_mean")) &&
        job->strategy->hybrid_configs.mp_degree <= 1)
        context_report(warnings, path, "loss_repeated_mean",
                       "has no effect: no two ranks compute the same loss without tensor "
                       "parallelism");
    warn_of_optimizer(context, path, job, warnings);
    warn_of_stages(context, path, job, warnings);
    warn_of_files(context, path, warnings);
}
