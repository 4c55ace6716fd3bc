/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_AUTODIFF_H
#define LIBFLEET_PROGRAM_AUTODIFF_H

/*
 * Reverse-mode differentiation of a program: appends the backward part.
 *
 * autodiff_run() walks the forward operators from last to first and calls each one's gradient
 * function (op.h), which asks here for the variables to read and to write:
 *
 *     int d_y = autodiff_of(ad, op->outputs[0]);      gradient that has arrived, or PROGRAM_NONE
 *     int d_x = autodiff_slot(ad, op->inputs[0]);     where to write, PROGRAM_NONE if not needed
 *     int d_w = autodiff_slot(ad, op->inputs[1]);
 *     return autodiff_add_op(ad, &(struct program_op){…}, err);
 *
 * Contributions of several readers of one variable are summed by ADD in the order in which they
 * arise. The first contribution to a parameter is written into its gradient itself. A parameter
 * that is read through a CAST gets its gradient in fp32 at once: the cast is looked through, so
 * no gradient of a weight is ever rounded to the type of the arithmetic.
 *
 * Only variables on a way from a trained parameter to the loss get gradients. An operator whose
 * outputs got none is skipped.
 */

#include "libfleet/program/program.h"

struct fleet_error;

struct autodiff {
    struct program *program;
    int *gradients; /* [capacity] variable -> its gradient, PROGRAM_NONE: none has arrived */
    bool *needed;   /* [capacity] on a way from a trained parameter to the loss */
    int *producer;  /* [capacity] operator that writes it, PROGRAM_NONE */
    int capacity;   /* variables of the forward part */
    int layer;      /* of the operator that is being differentiated */
    int source;     /* its index */
    struct autodiff_pending {
        int var, slot;
    } pending[OP_INPUTS_MAX]; /* contributions of that operator, not summed yet */
    int pending_count;
};

/*
 * Append the backward part of `program`, whose loss is set; every trained parameter then has its
 * gradient variable. -EINVAL if an operator on the way has no gradient, or a trained parameter has
 * no way to the loss (named).
 */
int autodiff_run(struct program *program, struct fleet_error *err);

/* ---- for gradient functions ------------------------------------------------------------------ */

/* The gradient of `var` that has arrived; PROGRAM_NONE if none has. Of the loss itself: the loss
 * scale, PROGRAM_NONE without one (1). */
int autodiff_of(const struct autodiff *ad, int var);

/* The same, but the loss gets a variable filled with 1. PROGRAM_NONE with *err filled (-EINVAL) if
 * no gradient has arrived. */
int autodiff_of_filled(struct autodiff *ad, int var, struct fleet_error *err);

/* The same for an output that may be without a reader: a variable filled with 0 then. PROGRAM_NONE
 * with *err filled as of autodiff_add_op(). */
int autodiff_of_or_zero(struct autodiff *ad, int var, struct fleet_error *err);

/* A variable to write a contribution to the gradient of `var` to; PROGRAM_NONE if not needed. */
int autodiff_slot(struct autodiff *ad, int var);

/* The existing variable `gradient` is a contribution to the gradient of `var`. -EINVAL if adding it
 * to an earlier one is refused by op_infer(). */
int autodiff_pass_on(struct autodiff *ad, int var, int gradient, struct fleet_error *err);

/* Append a backward operator (section, backward, layer and source are filled in) and infer it.
 * -EINVAL with operator and operand if its shapes do not fit, which is a mistake in a gradient
 * function. */
int autodiff_add_op(struct autodiff *ad, const struct program_op *op, struct fleet_error *err);

/* Append `kind`, with op's attributes, for op's first input: it reads the gradient of op's first
 * output (autodiff_of_filled()) and `kept`, unless that is PROGRAM_NONE. -EINVAL as of both. */
int autodiff_add_unary(struct autodiff *ad, const struct program_op *op, enum op_kind kind,
                       int kept, struct fleet_error *err);

#endif
