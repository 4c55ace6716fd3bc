/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_STRATEGY_OPTIONS_H
#define LIBFLEET_STRATEGY_STRATEGY_OPTIONS_H

/*
 * spec.strategyOptions: FleetJob's own choices, for which Paddle has no knob. strategy_spec.h reads
 * them and the plan uses them. strategy_options_init() gives the defaults.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_object;

enum strategy_overflow {
    STRATEGY_OVERFLOW_SKIP,
    STRATEGY_OVERFLOW_ZERO_GRAD
};
enum strategy_adacomm {
    STRATEGY_ADACOMM_REFERENCE,
    STRATEGY_ADACOMM_PAPER
};
enum strategy_dgc_select {
    STRATEGY_DGC_EXACT,
    STRATEGY_DGC_SAMPLED
};
enum strategy_partition {
    STRATEGY_PARTITION_ORDERED,
    STRATEGY_PARTITION_GREEDY
};
enum strategy_schedule {
    STRATEGY_SCHEDULE_STRATEGY, /* pipeline_configs.schedule_mode */
    STRATEGY_SCHEDULE_ZERO_BUBBLE
};

#define STRATEGY_CHUNKS_MAX 64
#define STRATEGY_ENDS_MAX   256

struct strategy_ends {
    int64_t items[STRATEGY_ENDS_MAX];
    size_t count;
};

struct strategy_options {
    enum strategy_overflow overflow_action;
    bool always_adapt; /* LAMB: trust ratio for tensors without decay too */
    enum strategy_adacomm adacomm_formula;
    enum strategy_dgc_select dgc_select;
    enum strategy_partition partition;
    enum strategy_schedule pipeline_schedule;
    int64_t pipeline_chunks; /* of layers, on each stage */
    struct strategy_ends
        pipeline_layers; /* of each stage, with chunks of each chunk; none: by cost */
    /* The last gradient of each all-reduce, by the parameter's number from 0; numbers ascend. Those
     * beyond the parameters are passed over, and the last all-reduce takes what is left. None: by
     * size. */
    struct strategy_ends all_reduce_ends;
    /* Ranks that share tensors compute one loss; its gradient counts once for each of them. */
    bool repeated_loss_adds;
    bool has_repeated_loss_adds; /* it was given */
    /* Ranks that share tensors divide each operator as spec.training.operatorStrategies says. */
    bool operator_divisions;
    bool has_operator_divisions; /* it was given */
};

extern const struct fleet_object strategy_options_type;

/* Set the defaults. There is nothing to release. */
void strategy_options_init(struct strategy_options *options);

#endif
