/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_OPERATOR_STRATEGY_H
#define LIBFLEET_AUTOPARALLEL_OPERATOR_STRATEGY_H

/*
 * How one operator is divided over devices: which strategies it has, the layouts of its operands,
 * the communication that follows, its cost.
 *
 * A strategy gives each axis of the operator (operators/operator_axes.h) a number of parts. The
 * device matrix is [repeated, parts of axis 0, parts of axis 1, …], without its first entry if that
 * is 1. Devices that differ in `repeated` compute the same. A product with ((a,b),(b,c)) on a·b·c
 * devices: D = [a,b,c], maps [2,1], [1,0] and [2,0].
 *
 * MindSpore writes a strategy as one tuple an input, one number a dimension: `splits`.
 */

#include <stdbool.h>
#include <stddef.h>

#include "libfleet/autoparallel/layout.h"
#include "libfleet/autoparallel/operators/operator_axes.h"

struct operator_strategy {
    int64_t parts[OPERATOR_AXES_MAX]; /* of each axis; 1: not divided */
    int64_t repeated;                 /* devices / product of the parts */
};

/* One tuple of numbers: how often each dimension of an operand is divided. */
struct operator_splits {
    int dims;
    int64_t split[PROGRAM_DIMS_MAX];
};

/*
 * All strategies on `devices` devices: every vector of parts that divide their axis, with product
 * `devices`; axis 0 is divided most in the first, so data parallelism comes first where it is
 * possible. None: the whole on every device. `fully` false: also products that divide `devices`.
 * Heap list into *out; returns its length, at least 1.
 */
size_t operator_strategy_list(const struct operator_axes *axes, int64_t devices, bool fully,
                              struct operator_strategy **out);

/*
 * The strategy that a user gave: `splits` of each input (NULL entries and absent operands say
 * nothing), and of outputs if `output_count` is not 0. -EINVAL names input, dimension and number:
 * too many or too few numbers, one that does not divide its dimension, two that disagree on an
 * axis, an axis that cannot be divided, a product that does not divide `devices`.
 */
int operator_strategy_from_splits(const struct operator_axes *axes, int64_t devices,
                                  const struct operator_splits *inputs, int input_count,
                                  const struct operator_splits *outputs, int output_count,
                                  struct operator_strategy *out, struct fleet_error *err);

/* The tuple of an operand. */
void operator_strategy_splits(const struct operator_strategy *strategy,
                              const struct operator_operand *operand, struct operator_splits *out);

/* The layout of an operand (one that is there). */
void operator_strategy_layout(const struct operator_axes *axes,
                              const struct operator_strategy *strategy,
                              const struct operator_operand *operand, struct layout *out);

/* Elements of one device's slice of it; 0 if it is absent. */
int64_t operator_strategy_slice(const struct operator_strategy *strategy,
                                const struct operator_operand *operand);

/* Is the strategy that of data parallelism: axis 0 over all devices? */
bool operator_strategy_is_data_parallel(const struct operator_axes *axes,
                                        const struct operator_strategy *strategy, int64_t devices);

/* An all-reduce (a sum) that the strategy makes necessary. */
struct operator_sum {
    bool backward; /* of the gradient of input `operand`; else of output `operand` */
    int operand;
    bool parameter;    /* backward: of a parameter, once a step; it may overlap */
    unsigned int axes; /* bits: the devices that differ in these axes */
    int64_t devices;   /* in a group: the product of their parts */
    int64_t elements;  /* of the slice that is summed */
    int64_t bytes;
};

#define OPERATOR_SUMS_MAX (OP_INPUTS_MAX + OP_OUTPUTS_MAX)

/*
 * The sums of a forward operator and of its gradient: outputs first, then inputs, each in their
 * order. Inputs of integers and of role INPUT have no gradient. Returns their number.
 */
int operator_strategy_sums(const struct program *program, const struct operator_axes *axes,
                           const struct operator_strategy *strategy,
                           struct operator_sum out[OPERATOR_SUMS_MAX]);

/*
 * Cost of MindSpore's model in bytes of local slices (costmodel, operator_costmodel.cc):
 *
 *   class      forward comm     backward comm   forward comp               backward comp
 *   general    out, if summed   parameters      inputs (+ out, if summed)  parameters
 *   softmax    0                parameters      out                        parameters
 *   reduce     out, if summed   parameters      inputs (+ out, if summed)  0
 *   batch      0                parameters      inputs                     0
 *   alone      0                0               0                          0
 *
 * out: outputs that are summed; parameters: those inputs that are parameters, if the product of
 * their parts is less than the devices (each then needs its gradient from others).
 */
struct operator_cost {
    double forward_communication, backward_communication;
    double forward_computation, backward_computation;
    double parameters; /* bytes of parameters */
    double outputs;    /* bytes of outputs */
};

void operator_strategy_cost(const struct program *program, const struct program_op *op,
                            const struct operator_axes *axes,
                            const struct operator_strategy *strategy, struct operator_cost *out);

#endif
