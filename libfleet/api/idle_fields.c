/* SPDX-License-Identifier: Apache-2.0 */

/* One function for each field: the reason why it has no effect, or NULL. The row of a field is
 * removed once something acts on it. */
#include "libfleet/api/idle_fields.h"

#include <stddef.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/training/loss_scaling.h"

/* ---- strategyOptions ------------------------------------------------------------------------- */

static const char own_trainer[] = "only the built-in runtime reads it";

static const char *overflow_action(const struct fleetjob_spec *spec, const struct strategy *s)
{
    if (spec->strategy_options.overflow_action == STRATEGY_OVERFLOW_SKIP)
        return NULL;
    if (!spec->has_training)
        return own_trainer;
    return loss_scaling_is_on(s) ? NULL : "without amp and a loss scale no update overflows";
}

static const char *always_adapt(const struct fleetjob_spec *spec, const struct strategy *s)
{
    if (spec->strategy_options.always_adapt)
        return NULL;
    if (!spec->has_training)
        return own_trainer;
    return s->lamb || spec->training.optimizer.name == TRAINING_OPTIMIZER_LAMB
               ? NULL
               : "lamb updates no parameter";
}

static const char *adacomm_formula(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->strategy_options.adacomm_formula == STRATEGY_ADACOMM_REFERENCE ||
                   s->adaptive_localsgd
               ? NULL
               : "adaptive_localsgd is off";
}

static const char *dgc_select(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->strategy_options.dgc_select == STRATEGY_DGC_EXACT || s->dgc ? NULL : "dgc is off";
}

static const char *partition(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->strategy_options.partition == STRATEGY_PARTITION_ORDERED || s->sharding
               ? NULL
               : "sharding is off";
}

static const char *all_reduce_ends(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->strategy_options.all_reduce_ends.count > 0 && !s->fuse_all_reduce_ops
               ? "fuse_all_reduce_ops is off"
               : NULL;
}

static const char *needs_pipeline(bool is_set, const struct strategy *s)
{
    return is_set && !s->pipeline ? "pipeline is off" : NULL;
}

static const char *pipeline_schedule(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return needs_pipeline(spec->strategy_options.pipeline_schedule != STRATEGY_SCHEDULE_STRATEGY,
                          s);
}

static const char *repeated_loss(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->strategy_options.repeated_loss_adds && s->hybrid_configs.mp_degree <= 1 &&
                   s->sharding_configs.mp_degree <= 1 &&
                   s->tensor_parallel_configs.tensor_parallel_degree <= 1
               ? "no ranks share tensors"
               : NULL;
}

static const char *pipeline_chunks(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return needs_pipeline(spec->strategy_options.pipeline_chunks > 1, s);
}

static const char *pipeline_layers(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return needs_pipeline(spec->strategy_options.pipeline_layers.count > 0, s);
}

/* ---- training -------------------------------------------------------------------------------- */

static const char *deterministic(const struct fleetjob_spec *spec, const struct strategy *s)
{
    (void)s;
    return spec->has_training && !spec->training.deterministic
               ? "on CPUs sums have one fixed order; only those of NCCL on GPUs may have another"
               : NULL;
}

static const char *nesterov(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->has_training && spec->training.optimizer.nesterov && s->lars
               ? "lars does not use Nesterov momentum"
               : NULL;
}

static const char *weight_decay_on(const struct fleetjob_spec *spec, const struct strategy *s)
{
    const struct training_optimizer *o = &spec->training.optimizer;

    (void)s;
    return spec->has_training && o->weight_decay_on == TRAINING_DECAY_ON_ALL && o->weight_decay == 0
               ? "weightDecay is 0"
               : NULL;
}

static const char *regularizer(const struct fleetjob_spec *spec, const struct strategy *s)
{
    const struct training_optimizer *o = &spec->training.optimizer;

    (void)s;
    return spec->has_training && o->regularizer == TRAINING_REGULARIZER_L1 && o->weight_decay == 0
               ? "weightDecay is 0"
               : NULL;
}

static const char *watch(const struct fleetjob_spec *spec, const char *field)
{
    return spec->has_training && spec->training.health.loss_spike == TRAINING_LOSS_SPIKE_OFF &&
                   fleet_json_at(spec->training_json, field)
               ? "health.lossSpike is off"
               : NULL;
}

static const char *health_factor(const struct fleetjob_spec *spec, const struct strategy *s)
{
    (void)s;
    return watch(spec, "health.factor");
}

static const char *health_window(const struct fleetjob_spec *spec, const struct strategy *s)
{
    (void)s;
    return watch(spec, "health.window");
}

static const char *operator_strategies(const struct fleetjob_spec *spec, const struct strategy *s)
{
    enum context_mode mode = context_mode(spec->auto_parallel);

    (void)s;
    return spec->has_training && spec->training.operators.count > 0 &&
                   mode != CONTEXT_SEMI_AUTO_PARALLEL && mode != CONTEXT_AUTO_PARALLEL
               ? "spec.autoParallel.parallel_mode is neither semi_auto_parallel nor auto_parallel"
               : NULL;
}

#define BUDDIES_DEFAULT 1 /* runPolicy.elastic.replicas */

/* ---- runPolicy ------------------------------------------------------------------------------- */

static const char *buddies(const struct fleetjob_spec *spec, const struct strategy *s)
{
    return spec->run_policy.elastic.replicas != BUDDIES_DEFAULT && !s->sharding
               ? "without sharding each worker holds the whole state"
               : NULL;
}

static const struct {
    const char *path;
    const char *(*why_idle)(const struct fleetjob_spec *spec, const struct strategy *effective);
} fields[] = {
    {"spec.strategyOptions.overflowAction", overflow_action},
    {"spec.strategyOptions.alwaysAdapt", always_adapt},
    {"spec.strategyOptions.adacommFormula", adacomm_formula},
    {"spec.strategyOptions.dgcSelect", dgc_select},
    {"spec.strategyOptions.partition", partition},
    {"spec.strategyOptions.allReduceEnds", all_reduce_ends},
    {"spec.strategyOptions.pipelineSchedule", pipeline_schedule},
    {"spec.strategyOptions.pipelineChunks", pipeline_chunks},
    {"spec.strategyOptions.repeatedLossAdds", repeated_loss},
    {"spec.strategyOptions.pipelineLayers", pipeline_layers},
    {"spec.training.deterministic", deterministic},
    {"spec.training.optimizer.nesterov", nesterov},
    {"spec.training.optimizer.weightDecayOn", weight_decay_on},
    {"spec.training.optimizer.regularizer", regularizer},
    {"spec.training.health.factor", health_factor},
    {"spec.training.health.window", health_window},
    {"spec.training.operatorStrategies", operator_strategies},
    {"spec.runPolicy.elastic.replicas", buddies},
};

void idle_fields_warn(const struct fleetjob_spec *spec, const struct strategy *effective,
                      bool in_cluster, struct fleet_errors *warnings)
{
    for (size_t i = 0; i < FLEET_COUNT(fields); i++) {
        const char *why = fields[i].why_idle(spec, effective);

        if (why)
            fleet_errors_add(warnings, fields[i].path, "has no effect: %s", why);
    }
    if (in_cluster && spec->has_training && spec->training.log.curve)
        fleet_errors_add(warnings, "spec.training.log.curve",
                         "has no effect: in a cluster nothing draws it, only `fleetjob run` does");
}
