/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_CONTEXT_INTERNAL_H
#define LIBFLEET_AUTOPARALLEL_CONTEXT_INTERNAL_H

/* What the files behind context_strategy.h share. */

#include <stdbool.h>
#include <stdint.h>

#include "libfleet/autoparallel/context_strategy.h"

#define CONTEXT_SHARD_SIZE "parallel_optimizer_config.optimizer_weight_shard_size"

/* The arguments of context_apply(). */
struct context_apply {
    const cJSON *context;
    const char *path;
    const struct context_job *job;
    struct strategy *strategy;
    struct strategy_options *options;
    struct fleet_errors *errors;
};

/* Append an error for each key that contradicts another; the values are of the types that
 * context_check() demands. */
void context_together(const cJSON *json, const char *path, struct fleet_errors *errors);

/* The integer at `key`, or `fallback` if there is none. */
int64_t context_number(const cJSON *context, const char *key, int64_t fallback);

/* Append an error or a warning about a key; "" is the context itself. */
__attribute__((format(printf, 4, 5))) void context_report(struct fleet_errors *list,
                                                          const char *path, const char *key,
                                                          const char *format, ...);

/* `key` asks for `wanted` of a setting for which the user gave `given`. */
void context_contradict(const struct context_apply *a, const char *key, const char *setting,
                        const char *wanted, const char *given);

/*
 * Give a setting its value. If the user gave another one, this is an error that names both. `*has`
 * is the setting's has_ flag.
 */
void context_ask_int(const struct context_apply *a, const char *key, const char *setting,
                     int32_t *member, uint8_t *has, int64_t wanted);
void context_ask_bool(const struct context_apply *a, const char *key, const char *setting,
                      bool *member, uint8_t *has, bool wanted);
void context_ask_text(const struct context_apply *a, const char *key, const char *setting,
                      char **member, uint8_t *has, const char *wanted);

/* The size of the groups that divide optimizer states among `replicas` ranks; 0: all of these are
 * one group, -1: nothing is divided. */
int64_t context_shard_size(const cJSON *context, int64_t replicas);

/* enable_parallel_optimizer: false contradicts a strategy that divides states. */
void context_refuse_sharding(const struct context_apply *a);

/* ---- context_graph.c ------------------------------------------------------------------------- */

/* Ranks that share one model. */
int64_t context_unit(const struct strategy *s);

/* What only semi_auto_parallel and auto_parallel have: stages, the loss of ranks that repeat it,
 * the divided optimizer beside stages and tensor parallelism. */
void context_graph_apply(const struct context_apply *a);

/* Warnings of these modes. */
void context_graph_warn(const cJSON *context, const char *path, const struct context_outcome *job,
                        struct fleet_errors *warnings);

/* ---- context_full.c -------------------------------------------------------------------------- */

/* `search: full`: degrees, stage, schedule, recompute and micro-batch, from a search of all. */
void context_full_apply(const struct context_apply *a);

/* ---- context_operators.c --------------------------------------------------------------------- */

/* Degrees from job->training->operators, which are not none. Errors are below
 * "spec.training.operatorStrategies". */
void context_operators_apply(const struct context_apply *a);

#endif
