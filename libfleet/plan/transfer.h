/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_TRANSFER_H
#define LIBFLEET_PLAN_TRANSFER_H

/*
 * One thing that a rank sends in an update, and its words. Code decides by the enums; the texts are
 * for people and for the plan's JSON.
 */

#include <stdbool.h>

#include "libfleet/program/op.h"

/* What is sent. */
enum transfer_what {
    TRANSFER_GRADIENTS,
    TRANSFER_GRADIENTS_FP16,
    TRANSFER_GRADIENTS_TO_OWNER,
    TRANSFER_OWNED_GRADIENTS,
    TRANSFER_LARGEST_GRADIENTS,
    TRANSFER_SMALL_GRADIENTS,
    TRANSFER_SHARED_GRADIENTS, /* of parameters that two stages have */
    TRANSFER_PARAMETERS,
    TRANSFER_PARAMETERS_OF_OWNER,
    TRANSFER_PARAMETERS_OF_INTERVAL, /* divided by the updates between two averages */
    TRANSFER_PARAMETERS_OF_STEPS,    /* the same, by k_steps */
    TRANSFER_PARAMETERS_ADAPTIVE,    /* the same, by an interval that adapts */
    TRANSFER_STATE,
    TRANSFER_STATISTICS,
    TRANSFER_VALUES,
    TRANSFER_MICRO_BATCH_VALUES,
    TRANSFER_ACTIVATIONS,
    TRANSFER_ACTIVATION_GRADIENTS,
    TRANSFER_LAYER_OUTPUTS,
    TRANSFER_OVERFLOW_AND_NORM,
};

/* When it is sent. */
enum transfer_when {
    TRANSFER_FORWARD,
    TRANSFER_BACKWARD,
    TRANSFER_BUCKETS,
    TRANSFER_BUCKETS_OF_TREE,
    TRANSFER_COMPLETE_SUMS,
    TRANSFER_BEFORE_VOTE,
    TRANSFER_BEHIND_VOTE,
    TRANSFER_AVERAGE,
    /* only in formulas */
    TRANSFER_AS_COMPLETE,
    TRANSFER_BEHIND_REDUCTION,
    TRANSFER_BEFORE_FORWARD,
    TRANSFER_EACH_SEGMENT,
    TRANSFER_AFTER_RAMP_UP,
    TRANSFER_ONCE,
    TRANSFER_BEHIND_FORWARD,
    TRANSFER_BEHIND_BACKWARD,
    TRANSFER_EACH_LAYER,
    TRANSFER_BEFORE_UPDATE,
};

struct plan_transfer {
    enum op_kind kind; /* a communication operator */
    enum transfer_what what;
    unsigned int over; /* bits 1 << enum topology_axis: the axes of the group */
    enum transfer_when when;
    int ranks;           /* of the group */
    double bytes;        /* sent by one rank; NaN: not known without a model */
    double calls;        /* operations that these are; each pays latency */
    double rounds;       /* of the calls, in which all ranks wait for all; 0: one in each */
    bool in_micro_batch; /* part of every micro-batch, else once an update */
    bool from_program;   /* else from a formula */
};

/* The texts of one transfer: "tree_sum", "gradients", "data and sharding", "once an update, …". */
const char *transfer_kind_text(const struct plan_transfer *transfer);
const char *transfer_what_text(const struct plan_transfer *transfer);
const char *transfer_over_text(const struct plan_transfer *transfer);
const char *transfer_when_text(const struct plan_transfer *transfer);

/* Two transfers that differ only in their amounts. */
bool transfer_is_like(const struct plan_transfer *a, const struct plan_transfer *b);

#endif
