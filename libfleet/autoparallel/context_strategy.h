/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_CONTEXT_STRATEGY_H
#define LIBFLEET_AUTOPARALLEL_CONTEXT_STRATEGY_H

/*
 * What spec.autoParallel asks of the built-in trainer, as settings of spec.strategy and
 * spec.strategyOptions. The plan, the checks and the trainer then know one description of the job.
 *
 * In data_parallel, and in hybrid_parallel, because no built-in model has layerwise_parallel
 * parameters, in semi_auto_parallel and in auto_parallel:
 *
 *   gradients_mean            true: gradient_scale_configs.scale_strategy: avg. false, or left out:
 *                             sum, as MindSpore does
 *   comm_fusion.openstate     false: fuse_all_reduce_ops: false
 *   comm_fusion.allreduce     mode auto: fuse_grad_size_in_MB: 64; mode size: that many megabytes;
 *                             mode index: strategyOptions.allReduceEnds
 *   all_reduce_fusion_config  strategyOptions.allReduceEnds
 *   enable_parallel_optimizer sharding: true (not hybrid_parallel), and with
 *   parallel_optimizer_config.optimizer_weight_shard_size below the number of ranks:
 *                             sharding_configs.hybrid_dp and sharding_group_size
 *   force_fp32_communication  nothing: gradients travel as fp32, unless fp16_allreduce is on, which
 *                             contradicts it
 *
 * In semi_auto_parallel and auto_parallel also:
 *
 *   pipeline_stages           hybrid_configs.pp_degree, and pipeline: true above 1
 *   pipeline_config           pipeline_configs.schedule_mode: 1F1B for 1f1b, F-then-B for gpipe
 *   enable_parallel_optimizer beside stages or tensor parallelism hybrid_configs.sharding_degree
 *   parallel_optimizer_config optimizer_level is sharding_configs.stage, level1 1 … level3 3;
 *                             gradient_accumulation_shard: true is stage 2 at least
 *   comm_fusion.allgather     with level3 sharding_configs.fuse_broadcast_MB
 *   loss_repeated_mean        false: strategyOptions.repeatedLossAdds, with tensor parallelism
 *   gradient_fp32_sync        nothing, as force_fp32_communication
 *
 * In auto_parallel also:
 *
 *   search_mode               hybrid_configs.mp_degree, as search/grid_search.h chooses it, for
 *                             the present number of ranks, which may change;
 *                             sharding_propagation is refused if no operator has a given strategy
 *   search: full              all degrees, the sharding stage, the schedule, recompute, and
 *                             spec.training.microBatchSize; not a key of MindSpore
 *
 * spec.training.operatorStrategies (given_operators.h) becomes hybrid_configs.mp_degree and
 * sep_degree, and tensor_parallel_configs.sequence_parallel.
 *
 * stand_alone changes nothing. Specification: MindSpore r2.3, mindspore/context.py.
 */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/strategy/select.h"

struct fleet_errors;
struct full_choice;
struct strategy;
struct strategy_options;
struct training_config;

/* The job around a context. */
struct context_job {
    const char *strategy_path; /* "spec.strategy" or "spec.strategyText" */
    int64_t world;             /* ranks; 0: not known */
    bool is_elastic;           /* their number may change */
    /* As the model's searches need it: decoded and related. NULL: it has errors, and nothing is
     * searched. */
    const struct training_config *training;
    /* What a search of auto_parallel found before, used in its place. NULL: it searches. */
    const struct full_choice *chosen;
    /* For `search: full`, whose division is the best of all that fit: */
    enum strategy_policy policy;
    double memory;        /* bytes of a rank; 0: no limit is known */
    int node_ranks;       /* ranks of a node */
    bool has_buddies;     /* runPolicy.elastic.replicas */
    int64_t *micro_batch; /* written: the size that was chosen; NULL: not wanted */
};

/* The largest jobs whose division `search: full` finds. */
#define CONTEXT_FULL_RANKS_MAX  256
#define CONTEXT_FULL_LAYERS_MAX 128

/*
 * Set in `strategy` and `options` what `context` (NULL: nothing) asks for. A setting that the user
 * gave with the same meaning stays; one that says something else is an error with both fields, and
 * stays as well. `path` precedes the context's paths. Values of wrong types are passed
 * over: context_check() reports them.
 */
void context_apply(const cJSON *context, const char *path, const struct context_job *job,
                   struct strategy *strategy, struct strategy_options *options,
                   struct fleet_errors *errors);

/* The key of `context` (NULL: none) that set `setting` ("fuse_grad_size_in_MB":
 * "comm_fusion.allreduce"), "" if the context does it without a key; static. NULL: it does not. */
const char *context_key_of(const cJSON *context, const char *setting);

/* What became of a context: context_apply() has filled the strategy. */
struct context_outcome {
    const char *strategy_path;
    int64_t world;
    const struct strategy *strategy;
    const struct strategy_options *options;
};

/* Append what a user of the built-in trainer may not expect of `context`, which has passed
 * context_check(): gradients that are added, keys that need nothing here, modes that do not run. */
void context_warn(const cJSON *context, const char *path, const struct context_outcome *outcome,
                  struct fleet_errors *warnings);

#endif
