/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/context_strategy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

#define AUTO_MEGABYTES 64 /* comm_fusion's mode auto */

static bool divides_data(const cJSON *context)
{
    enum context_mode mode = context_mode(context);

    return mode == CONTEXT_DATA_PARALLEL || mode == CONTEXT_HYBRID_PARALLEL;
}

static bool has_graph(const cJSON *context)
{
    return context_mode(context) == CONTEXT_SEMI_AUTO_PARALLEL ||
           context_mode(context) == CONTEXT_AUTO_PARALLEL;
}

static bool divides_optimizer(const cJSON *context)
{
    return context_mode(context) != CONTEXT_HYBRID_PARALLEL &&
           cJSON_IsTrue(fleet_json_at(context, "enable_parallel_optimizer"));
}

int64_t context_number(const cJSON *context, const char *key, int64_t fallback)
{
    (void)fleet_json_opt_int(context, key, &fallback, NULL);
    return fallback;
}

void context_report(struct fleet_errors *list, const char *path, const char *key,
                    const char *format, ...)
{
    char full[200], text[400];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    (void)snprintf(full, sizeof(full), "%s%s%s", path, *path && *key ? "." : "", key);
    fleet_errors_add(list, full, "%s", text);
}

void context_contradict(const struct context_apply *a, const char *key, const char *setting,
                        const char *wanted, const char *given)
{
    context_report(a->errors, a->path, key, "asks for %s: %s, but %s.%s is %s; give one of the two",
                   setting, wanted, a->job->strategy_path, setting, given);
}

static const char *text_of(bool value)
{
    return value ? "true" : "false";
}

static void set(uint8_t *has)
{
    if (!*has)
        *has = KNOB_BY_NAME;
}

void context_ask_int(const struct context_apply *a, const char *key, const char *setting,
                     int32_t *member, uint8_t *has, int64_t wanted)
{
    char wanted_text[24], given[24];

    if (*has && *member != wanted) {
        (void)snprintf(wanted_text, sizeof(wanted_text), "%" PRId64, wanted);
        (void)snprintf(given, sizeof(given), "%d", *member);
        context_contradict(a, key, setting, wanted_text, given);
        return;
    }
    *member = (int32_t)wanted;
    set(has);
}

void context_ask_bool(const struct context_apply *a, const char *key, const char *setting,
                      bool *member, uint8_t *has, bool wanted)
{
    if (*has && *member != wanted) {
        context_contradict(a, key, setting, text_of(wanted), text_of(*member));
        return;
    }
    *member = wanted;
    set(has);
}

void context_ask_text(const struct context_apply *a, const char *key, const char *setting,
                      char **member, uint8_t *has, const char *wanted)
{
    if (*has && strcmp(*member, wanted) != 0) {
        context_contradict(a, key, setting, wanted, *member);
        return;
    }
    fleet_set_text(member, wanted);
    set(has);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void apply_mean(const struct context_apply *a)
{
    static const char setting[] = "gradient_scale_configs.scale_strategy";
    struct strategy_gradient_scale_config *scale = &a->strategy->gradient_scale_configs;
    const cJSON *mean = fleet_json_at(a->context, "gradients_mean");
    const char *wanted =
        choices_scale_text(cJSON_IsTrue(mean) ? CHOICES_SCALE_AVERAGE : CHOICES_SCALE_SUM);

    if (scale->has_scale_strategy) {
        if (cJSON_IsBool(mean) && strcmp(scale->scale_strategy, wanted) != 0)
            context_contradict(a, "gradients_mean", setting, wanted, scale->scale_strategy);
        return;
    }
    fleet_set_text(&scale->scale_strategy, wanted);
    scale->has_scale_strategy = a->strategy->has_gradient_scale_configs = KNOB_BY_NAME;
}

static void apply_size(const struct context_apply *a, const char *key, int64_t megabytes)
{
    context_ask_int(a, key, "fuse_grad_size_in_MB", &a->strategy->fuse_grad_size_in_MB,
                    &a->strategy->has_fuse_grad_size_in_MB, megabytes);
}

static void apply_ends(const struct context_apply *a, const char *key, const cJSON *list)
{
    struct strategy_ends ends = {0};
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        int64_t end;
        if (fleet_json_item_int(item, &end) < 0)
            return;
        if (ends.count == STRATEGY_ENDS_MAX) {
            context_report(a->errors, a->path, key, "has more than %d numbers", STRATEGY_ENDS_MAX);
            return;
        }
        ends.items[ends.count++] = end;
    }
    if (a->options->all_reduce_ends.count == 0)
        a->options->all_reduce_ends = ends;
    else if (a->options->all_reduce_ends.count != ends.count ||
             memcmp(a->options->all_reduce_ends.items, ends.items,
                    ends.count * sizeof(ends.items[0])) != 0)
        context_report(
            a->errors, a->path, key,
            "differs from the other list of ends of all-reduces (all_reduce_fusion_config, "
            "comm_fusion.allreduce or spec.strategyOptions.allReduceEnds); give one of them");
}

static void apply_fusion(const struct context_apply *a)
{
    static const char key[] = "comm_fusion.allreduce";
    const cJSON *config = fleet_json_at(a->context, "comm_fusion.allreduce.config");
    enum context_fusion mode = context_fusion(a->context);
    int64_t megabytes = context_number(a->context, "comm_fusion.allreduce.config", 0);
    const cJSON *ends = fleet_json_at(a->context, "all_reduce_fusion_config");
    const struct strategy *s = a->strategy;

    if (cJSON_IsFalse(fleet_json_at(a->context, "comm_fusion.openstate"))) {
        context_ask_bool(a, "comm_fusion.openstate", "fuse_all_reduce_ops",
                         &a->strategy->fuse_all_reduce_ops, &a->strategy->has_fuse_all_reduce_ops,
                         false);
        return;
    }
    if (s->has_fuse_all_reduce_ops && !s->fuse_all_reduce_ops &&
        (mode != CONTEXT_FUSION_NONE || ends ||
         cJSON_IsTrue(fleet_json_at(a->context, "comm_fusion.openstate")))) {
        context_contradict(a,
                           mode != CONTEXT_FUSION_NONE ? key
                           : ends                      ? "all_reduce_fusion_config"
                                                       : "comm_fusion.openstate",
                           "fuse_all_reduce_ops", "true", "false");
        return;
    }
    if (ends && !divides_optimizer(a->context))
        apply_ends(a, "all_reduce_fusion_config", ends);
    if (mode == CONTEXT_FUSION_AUTO)
        apply_size(a, key, AUTO_MEGABYTES);
    else if (mode == CONTEXT_FUSION_SIZE && megabytes > 0 && megabytes <= INT32_MAX)
        apply_size(a, key, megabytes);
    else if (mode == CONTEXT_FUSION_INDEX && !divides_optimizer(a->context))
        apply_ends(a, key, config);
}

int64_t context_shard_size(const cJSON *context, int64_t replicas)
{
    int64_t size = context_number(context, CONTEXT_SHARD_SIZE, -1);

    if (size <= 1 || size == replicas)
        return 0;
    return size > INT32_MAX || (replicas > 0 && replicas % size != 0) ? -1 : size;
}

void context_refuse_sharding(const struct context_apply *a)
{
    if (cJSON_IsFalse(fleet_json_at(a->context, "enable_parallel_optimizer")) &&
        a->strategy->sharding)
        context_contradict(a, "enable_parallel_optimizer", "sharding", "false", "true");
}

/* Ranks that share a model have no part in these modes. */
static void refuse_sharers(const struct context_apply *a)
{
    const struct strategy *s = a->strategy;
    const struct {
        const char *name;
        int degree;
    } settings[] = {
        {"hybrid_configs.mp_degree", s->hybrid_configs.mp_degree},
        {"hybrid_configs.pp_degree", s->hybrid_configs.pp_degree},
        {"hybrid_configs.sep_degree", s->hybrid_configs.sep_degree},
        {"tensor_parallel_configs.tensor_parallel_degree",
         s->tensor_parallel ? s->tensor_parallel_configs.tensor_parallel_degree : 1},
    };
    const char *mode = context_mode_text(context_mode(a->context));
    size_t before = a->errors->count;

    for (size_t i = 0; i < FLEET_COUNT(settings); i++)
        if (settings[i].degree > 1)
            context_report(a->errors, a->path, "parallel_mode",
                           "%s divides samples alone, but %s.%s is %d; semi_auto_parallel has both",
                           mode, a->job->strategy_path, settings[i].name, settings[i].degree);
    if (s->pipeline && a->errors->count == before)
        context_report(a->errors, a->path, "parallel_mode",
                       "%s divides samples alone, but %s.pipeline is true; semi_auto_parallel has "
                       "both",
                       mode, a->job->strategy_path);
}

static void apply_optimizer(const struct context_apply *a)
{
    struct strategy *s = a->strategy;
    int64_t size = context_shard_size(a->context, a->job->world);

    if (!divides_optimizer(a->context) || size < 0 || a->job->world == 1)
        return;
    if (s->has_sharding && !s->sharding) {
        context_contradict(a, "enable_parallel_optimizer", "sharding", "true",
                           text_of(s->sharding));
        return;
    }
    s->sharding = true;
    s->has_sharding = KNOB_BY_NAME;
    if (size == 0)
        return;
    if (s->has_sharding_configs) {
        if (!s->sharding_configs.hybrid_dp || s->sharding_configs.sharding_group_size != size)
            context_report(a->errors, a->path, CONTEXT_SHARD_SIZE,
                           "divides over groups of %" PRId64
                           " ranks, but %s.sharding_configs has its own "
                           "groups; give one of the two",
                           size, a->job->strategy_path);
        return;
    }
    s->sharding_configs.hybrid_dp = true;
    s->sharding_configs.sharding_group_size = (int32_t)size;
    s->sharding_configs.has_hybrid_dp = s->sharding_configs.has_sharding_group_size = KNOB_BY_NAME;
    s->has_sharding_configs = KNOB_BY_NAME;
}

static void apply_data(const struct context_apply *a)
{
    refuse_sharers(a);
    if (context_mode(a->context) == CONTEXT_DATA_PARALLEL)
        context_refuse_sharding(a);
    apply_optimizer(a);
}

static void apply_types(const struct context_apply *a)
{
    if (a->strategy->fp16_allreduce &&
        cJSON_IsTrue(fleet_json_at(a->context, "force_fp32_communication")))
        context_contradict(a, "force_fp32_communication", "fp16_allreduce", "false", "true");
}

void context_apply(const cJSON *context, const char *path, const struct context_job *job,
                   struct strategy *strategy, struct strategy_options *options,
                   struct fleet_errors *errors)
{
    struct context_apply a = {context, path, job, strategy, options, errors};

    if (!context || (!divides_data(context) && !has_graph(context)))
        return;
    apply_mean(&a);
    apply_fusion(&a);
    if (has_graph(context))
        context_graph_apply(&a);
    else
        apply_data(&a);
    apply_types(&a);
}

/* The key, if it is given and sets a setting of that name or within it. The first wins. */
static const struct {
    const char *setting, *key;
    bool acts_unset, of_graph;
} sources[] = {
    {"gradient_scale_configs", "gradients_mean", true, false},
    {"fuse_grad_size_in_MB", "comm_fusion.allreduce", false, false},
    {"fuse_all_reduce_ops", "comm_fusion.openstate", false, false},
    {"sharding", "enable_parallel_optimizer", false, false},
    {"sharding_configs", CONTEXT_SHARD_SIZE, false, false},
    {"sharding_configs", "parallel_optimizer_config", false, true},
    {"hybrid_configs", "search", false, true},
    {"sharding", "search", false, true},
    {"sharding_configs", "search", false, true},
    {"pipeline", "search", false, true},
    {"pipeline_configs", "search", false, true},
    {"tensor_parallel", "search", false, true},
    {"recompute", "search", false, true},
    {"pipeline", "pipeline_stages", false, true},
    {"pipeline_configs", "pipeline_config", false, true},
    {"hybrid_configs", "pipeline_stages", false, true},
    {"hybrid_configs", "enable_parallel_optimizer", false, true},
    {"hybrid_configs", "parallel_mode", false, true},
    {"tensor_parallel", "parallel_mode", false, true},
};

const char *context_key_of(const cJSON *context, const char *setting)
{
    size_t length = strcspn(setting, ".");

    if (!context || (!divides_data(context) && !has_graph(context)))
        return NULL;
    for (size_t i = 0; i < FLEET_COUNT(sources); i++) {
        if (strlen(sources[i].setting) != length ||
            strncmp(sources[i].setting, setting, length) != 0 ||
            (sources[i].of_graph && !has_graph(context)))
            continue;
        if (fleet_json_at(context, sources[i].key))
            return sources[i].key;
        if (sources[i].acts_unset)
            return "";
    }
    return NULL;
}

/* ---- what a user may not expect -------------------------------------------------------------- */

/* Keys of all modes that need nothing, and why. */
static const struct {
    const char *key, *reason;
} needless[] = {
    {"global_rank", "has no effect: the rendezvous gives each worker its rank"},
    {"parameter_broadcast",
     "has no effect: all workers begin with the same values, from spec.training.seed"},
    {"force_fp32_communication", "has no effect: what ranks add up travels as fp32"},
};

static void warn_of_optimizer(const cJSON *context, const char *path,
                              const struct context_outcome *job, struct fleet_errors *warnings)
{
    static const char *const keys[] = {"parallel_optimizer_config.parallel_optimizer_threshold",
                                       "parallel_optimizer_config.gradient_accumulation_shard",
                                       "parallel_optimizer_config.optimizer_level"};

    if (!divides_optimizer(context))
        return;
    if (job->world == 1)
        context_report(warnings, path, "enable_parallel_optimizer",
                       "has no effect: one rank has all of the states");
    else if (context_shard_size(context, job->world) < 0)
        context_report(warnings, path, CONTEXT_SHARD_SIZE,
                       "divides nothing: %" PRId64 " does not divide the %" PRId64
                       " ranks, and parameters stay whole",
                       context_number(context, CONTEXT_SHARD_SIZE, -1), job->world);
    for (size_t i = 0; i < FLEET_COUNT(keys); i++)
        if (fleet_json_at(context, keys[i]))
            context_report(warnings, path, keys[i],
                           "has no effect in data_parallel: whole parameters are given to ranks");
}

void context_warn(const cJSON *context, const char *path, const struct context_outcome *outcome,
                  struct fleet_errors *warnings)
{
    int64_t replicas = outcome->world / (has_graph(context) ? context_unit(outcome->strategy) : 1);

    if (!divides_data(context) && !has_graph(context)) {
        if (fleet_json_at(context, needless[0].key))
            context_report(warnings, path, needless[0].key, "%s", needless[0].reason);
        return;
    }
    if (!fleet_json_at(context, "gradients_mean") && replicas > 1)
        context_report(warnings, path, "",
                       "gradients_mean is false where it is not given: the gradients of %" PRId64
                       " %s are added, not averaged",
                       replicas, has_graph(context) ? "replicas" : "ranks");
    for (size_t i = 0; i < FLEET_COUNT(needless); i++)
        if (fleet_json_at(context, needless[i].key) &&
            !cJSON_IsFalse(fleet_json_at(context, needless[i].key)))
            context_report(warnings, path, needless[i].key, "%s", needless[i].reason);
    if (has_graph(context))
        context_graph_warn(context, path, outcome, warnings);
    else
        warn_of_optimizer(context, path, outcome, warnings);
}
