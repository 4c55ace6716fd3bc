/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_OPERATORS_OPERATOR_AXES_H
#define LIBFLEET_AUTOPARALLEL_OPERATORS_OPERATOR_AXES_H

/*
 * The axes of an operator: what its loops run over, each operand's dimensions as axes, and
 * which may be divided over devices. A matrix product has the axes (rows, inner, columns); its
 * operands are [rows,inner], [inner,columns] and [rows,columns]. A strategy (operator_strategy.h)
 * says into how many parts each axis is divided; all else follows from the table of axes:
 *
 *   layout        a dimension is divided as its axis is
 *   sum           an output that sums over a divided axis is a partial sum on each device
 *   gradient      that of an input is summed over the divided axes that an output has and it lacks
 *
 * Every kind of program/op.h has axes, in the order of its first operand's dimensions, then inner
 * ones, then columns. A kind and its _GRAD have the same axes in the same order, so the strategy of
 * the one is that of the other. The gradients of matmul and transpose are operators of these kinds
 * with their own order.
 *
 * kind                    axes that may be divided            not divided, why
 * linear, matmul          leading, inner, columns
 * embedding               batch, context, table rows, width   rows and indices exclude each other;
 *                                                             context, if positions are added
 *                                                             that are more than it
 * layer_norm, rms_norm    leading                             the normalized dimension
 * batch_norm              batch (statistics are summed),      height, width
 *                         channels
 * attention               batch, groups of heads              context, width of a head
 * rope                    batch, groups of heads              context (positions count from 0)
 * softmax                 all but the last
 * cross_entropy           rows                                classes: no kernel for it
 * conv2d                  batch, input and output channels    height, width: windows overlap
 * pools                   batch, channels                     height, width
 * reduce                  all
 * concat, split           all; the last as each of the variables that lie in it
 * transpose               all
 * reshape                 the first dimension of each run of dimensions that becomes another run
 * elementwise, optimizers all
 * communication,          none: they are about groups of ranks and the flat spaces
 * grad_norm, check_finite
 * batch_norm_sums,        none: a pass adds them for ranks that are placed already
 * batch_norm_grad_sums,
 * join_norms, spread_norms,
 * total_norm, trust_squares
 *
 * Packed dimensions: qkv has all heads of q, then those of k, then those of v in its last
 * dimension; so has what concat gives and split takes. A part of such a dimension is the part of
 * each of its segments, one behind the other, and so are the columns of a weight and a bias that
 * produce it. All parts of one variable are meant so: no redistribution between them is other than
 * its steps say.
 *
 * Rows [N] that a norm or a loss gives are those of the leading dimensions; the axes have them
 * apart ([B,T] for [N]), because a part of T is no range of N.
 */

#include "libfleet/program/program.h"

struct fleet_error;

#define OPERATOR_AXES_MAX 8
#define OPERATOR_WHOLE    (-1) /* as an axis: the dimension is never divided */

struct operator_operand {
    int var;  /* PROGRAM_NONE: absent */
    int dims; /* its axes may say more dimensions than the variable */
    int64_t shape[PROGRAM_DIMS_MAX];
    int axis[PROGRAM_DIMS_MAX]; /* place in operator_axes.size, or OPERATOR_WHOLE */
    unsigned int sums;          /* OUTPUT: bits of the axes that it is a sum over */
};

/* Bits of the axes that its dimensions lie on. */
unsigned int operator_operand_axes(const struct operator_operand *operand);

struct operator_axes {
    int count;
    int64_t size[OPERATOR_AXES_MAX]; /* parts divide it; groups of heads count as one */
    /* Not both an axis of the one and an axis of the other may be divided. */
    unsigned int exclusive[2];
    int input_count, output_count;
    struct operator_operand inputs[OP_INPUTS_MAX];
    struct operator_operand outputs[OP_OUTPUTS_MAX];
};

/* How section 12.1 of the cost model counts an operator (operator_strategy_cost()). */
enum operator_class {
    OPERATOR_ALONE, /* no strategy but the whole */
    OPERATOR_GENERAL,
    OPERATOR_SOFTMAX,
    OPERATOR_REDUCE,
    OPERATOR_BATCH, /* batch-parallel: losses */
};

/* The axes of `op`, whose operands have shapes (op_infer()). */
void operator_axes_build(const struct program *program, const struct program_op *op,
                         struct operator_axes *out);

enum operator_class operator_axes_class(enum op_kind kind);

/* Append an axis; returns its place. For those that build. */
int operator_axes_add(struct operator_axes *axes, int64_t size);

#endif
