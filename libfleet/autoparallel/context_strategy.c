/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/context_strategy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"

#define AUTO_MEGABYTES 64 /* comm_fusion's mode auto */
#define SHARD_SIZE     "parallel_optimizer_config.optimizer_weight_shard_size"

struct apply {
    const cJSON *context;
    const char *path;
    const struct context_job *job;
    struct strategy *strategy;
    struct strategy_options *options;
    struct fleet_errors *errors;
};

static bool divides_data(const cJSON *context)
{
    enum context_mode mode = context_mode(context);

    return mode == CONTEXT_DATA_PARALLEL || mode == CONTEXT_HYBRID_PARALLEL;
}

static bool divides_optimizer(const cJSON *context)
{
    return context_mode(context) == CONTEXT_DATA_PARALLEL &&
           cJSON_IsTrue(fleet_json_at(context, "enable_parallel_optimizer"));
}

static int64_t number_at(const cJSON *context, const char *key, int64_t fallback)
{
    (void)fleet_json_opt_int(context, key, &fallback, NULL);
    return fallback;
}

__attribute__((format(printf, 4, 5))) static void
report(struct fleet_errors *list, const char *path, const char *key, const char *format, ...)
{
    char full[200], text[400];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    (void)snprintf(full, sizeof(full), "%s%s%s", path, *path && *key ? "." : "", key);
    fleet_errors_add(list, full, "%s", text);
}

/* `key` wants `wanted` of a setting for which the user gave `given`. */
static void contradict(const struct apply *a, const char *key, const char *setting,
                       const char *wanted, const char *given)
{
    report(a->errors, a->path, key, "asks for %s: %s, but %s.%s is %s; give one of the two",
           setting, wanted, a->job->strategy_path, setting, given);
}

static const char *text_of(bool value)
{
    return value ? "true" : "false";
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void apply_mean(const struct apply *a)
{
    static const char setting[] = "gradient_scale_configs.scale_strategy";
    struct strategy_gradient_scale_config *scale = &a->strategy->gradient_scale_configs;
    const cJSON *mean = fleet_json_at(a->context, "gradients_mean");
    const char *wanted =
        choices_scale_text(cJSON_IsTrue(mean) ? CHOICES_SCALE_AVERAGE : CHOICES_SCALE_SUM);

    if (scale->has_scale_strategy) {
        if (cJSON_IsBool(mean) && strcmp(scale->scale_strategy, wanted) != 0)
            contradict(a, "gradients_mean", setting, wanted, scale->scale_strategy);
        return;
    }
    fleet_set_text(&scale->scale_strategy, wanted);
    scale->has_scale_strategy = a->strategy->has_gradient_scale_configs = KNOB_BY_NAME;
}

static void apply_size(const struct apply *a, const char *key, int64_t megabytes)
{
    struct strategy *s = a->strategy;
    char wanted[24], given[24];

    (void)snprintf(wanted, sizeof(wanted), "%" PRId64, megabytes);
    (void)snprintf(given, sizeof(given), "%d", s->fuse_grad_size_in_MB);
    if (s->has_fuse_grad_size_in_MB) {
        if (s->fuse_grad_size_in_MB != megabytes)
            contradict(a, key, "fuse_grad_size_in_MB", wanted, given);
        return;
    }
    s->fuse_grad_size_in_MB = (int32_t)megabytes;
    s->has_fuse_grad_size_in_MB = KNOB_BY_NAME;
}

static void apply_ends(const struct apply *a, const char *key, const cJSON *list)
{
    struct strategy_ends ends = {0};
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        int64_t end;
        if (fleet_json_item_int(item, &end) < 0)
            return;
        if (ends.count == STRATEGY_ENDS_MAX) {
            report(a->errors, a->path, key, "has more than %d numbers", STRATEGY_ENDS_MAX);
            return;
        }
        ends.items[ends.count++] = end;
    }
    if (a->options->all_reduce_ends.count == 0)
        a->options->all_reduce_ends = ends;
    else if (a->options->all_reduce_ends.count != ends.count ||
             memcmp(a->options->all_reduce_ends.items, ends.items,
                    ends.count * sizeof(ends.items[0])) != 0)
        report(a->errors, a->path, key,
               "differs from the other list of ends of all-reduces (all_reduce_fusion_config, "
               "comm_fusion.allreduce or spec.strategyOptions.allReduceEnds); give one of them");
}

static void close_fusion(const struct apply *a)
{
    if (a->strategy->has_fuse_all_reduce_ops && a->strategy->fuse_all_reduce_ops)
        contradict(a, "comm_fusion.openstate", "fuse_all_reduce_ops", "false", "true");
    else
        a->strategy->fuse_all_reduce_ops = false;
    a->strategy->has_fuse_all_reduce_ops = KNOB_BY_NAME;
}

static void apply_fusion(const struct apply *a)
{
    static const char key[] = "comm_fusion.allreduce";
    const cJSON *config = fleet_json_at(a->context, "comm_fusion.allreduce.config");
    enum context_fusion mode = context_fusion(a->context);
    int64_t megabytes = number_at(a->context, "comm_fusion.allreduce.config", 0);
    const cJSON *ends = fleet_json_at(a->context, "all_reduce_fusion_config");

    if (cJSON_IsFalse(fleet_json_at(a->context, "comm_fusion.openstate"))) {
        close_fusion(a);
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

/* The size of a group that divides the states, 0 = all ranks, -1 = it divides nothing. */
static int64_t shard_size(const cJSON *context, int64_t world)
{
    int64_t size = number_at(context, SHARD_SIZE, -1);

    if (size <= 1 || size == world)
        return 0;
    return size > INT32_MAX || (world > 0 && world % size != 0) ? -1 : size;
}

static void apply_optimizer(const struct apply *a)
{
    struct strategy *s = a->strategy;
    int64_t size = shard_size(a->context, a->job->world);

    if (!divides_optimizer(a->context) || size < 0 || a->job->world == 1)
        return;
    if (s->has_sharding && !s->sharding) {
        contradict(a, "enable_parallel_optimizer", "sharding", "true", text_of(s->sharding));
        return;
    }
    s->sharding = true;
    s->has_sharding = KNOB_BY_NAME;
    if (size == 0)
        return;
    if (s->has_sharding_configs) {
        if (!s->sharding_configs.hybrid_dp || s->sharding_configs.sharding_group_size != size)
            report(a->errors, a->path, SHARD_SIZE,
                   "divides over groups of %" PRId64 " ranks, but %s.sharding_configs has its own "
                   "groups; give one of the two",
                   size, a->job->strategy_path);
        return;
    }
    s->sharding_configs.hybrid_dp = true;
    s->sharding_configs.sharding_group_size = (int32_t)size;
    s->sharding_configs.has_hybrid_dp = s->sharding_configs.has_sharding_group_size = KNOB_BY_NAME;
    s->has_sharding_configs = KNOB_BY_NAME;
}

static void apply_types(const struct apply *a)
{
    if (a->strategy->fp16_allreduce &&
        cJSON_IsTrue(fleet_json_at(a->context, "force_fp32_communication")))
        contradict(a, "force_fp32_communication", "fp16_allreduce", "false", "true");
}

void context_apply(const cJSON *context, const char *path, const struct context_job *job,
                   struct strategy *strategy, struct strategy_options *options,
                   struct fleet_errors *errors)
{
    struct apply a = {context, path, job, strategy, options, errors};

    if (!context || !divides_data(context))
        return;
    apply_mean(&a);
    apply_fusion(&a);
    apply_optimizer(&a);
    apply_types(&a);
}

/* The key, if it is given and sets a setting of that name or within it. */
static const struct {
    const char *setting, *key;
    bool acts_unset;
} sources[] = {
    {"gradient_scale_configs", "gradients_mean", true},
    {"fuse_grad_size_in_MB", "comm_fusion.allreduce", false},
    {"fuse_all_reduce_ops", "comm_fusion.openstate", false},
    {"sharding", "enable_parallel_optimizer", false},
    {"sharding_configs", SHARD_SIZE, false},
};

const char *context_key_of(const cJSON *context, const char *setting)
{
    size_t length = strcspn(setting, ".");

    if (!context || !divides_data(context))
        return NULL;
    for (size_t i = 0; i < FLEET_COUNT(sources); i++) {
        if (strlen(sources[i].setting) != length ||
            strncmp(sources[i].setting, setting, length) != 0)
            continue;
        if (fleet_json_at(context, sources[i].key))
            return sources[i].key;
        return sources[i].acts_unset ? "" : NULL;
    }
    return NULL;
}

/* ---- what a user may not expect -------------------------------------------------------------- */

/* Keys of data_parallel that need nothing, and why. */
static const struct {
    const char *key, *reason;
} needless[] = {
    {"global_rank", "has no effect: the rendezvous gives each worker its rank"},
    {"parameter_broadcast",
     "has no effect: all workers begin with the same values, from spec.training.seed"},
    {"force_fp32_communication", "has no effect: gradients travel as fp32"},
};

static void warn_of_optimizer(const cJSON *context, const char *path, const struct context_job *job,
                              struct fleet_errors *warnings)
{
    static const char *const keys[] = {"parallel_optimizer_config.parallel_optimizer_threshold",
                                       "parallel_optimizer_config.gradient_accumulation_shard",
                                       "parallel_optimizer_config.optimizer_level"};

    if (!divides_optimizer(context))
        return;
    if (job->world == 1)
        report(warnings, path, "enable_parallel_optimizer",
               "has no effect: one rank has all of the states");
    else if (shard_size(context, job->world) < 0)
        report(warnings, path, SHARD_SIZE,
               "divides nothing: %" PRId64 " does not divide the %" PRId64
               " ranks, and parameters stay whole",
               number_at(context, SHARD_SIZE, -1), job->world);
    for (size_t i = 0; i < FLEET_COUNT(keys); i++)
        if (fleet_json_at(context, keys[i]))
            report(warnings, path, keys[i],
                   "has no effect in data_parallel: whole parameters are given to ranks");
}

void context_warn(const cJSON *context, const char *path, const struct context_job *job,
                  struct fleet_errors *warnings)
{
    enum context_mode mode = context_mode(context);

    if (!divides_data(context)) {
        if (mode != CONTEXT_STAND_ALONE)
            report(warnings, path, "",
                   "is checked; the built-in trainer does not run %s yet, and divides the batch as "
                   "%s says",
                   context_mode_text(mode), job->strategy_path);
        return;
    }
    if (!fleet_json_at(context, "gradients_mean") && job->world > 1)
        report(warnings, path, "",
               "gradients_mean is false where it is not given: the gradients of %" PRId64
               " ranks are added, not averaged",
               job->world);
    for (size_t i = 0; i < FLEET_COUNT(needless); i++)
        if (fleet_json_at(context, needless[i].key) &&
            !cJSON_IsFalse(fleet_json_at(context, needless[i].key)))
            report(warnings, path, needless[i].key, "%s", needless[i].reason);
    warn_of_optimizer(context, path, job, warnings);
}
