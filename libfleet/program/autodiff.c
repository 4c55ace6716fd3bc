/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Backwards over the forward operators. A gradient that has several contributions is not kept as a
 * list: each new one is added to what has arrived, so the order of the additions, and with it the
 * bits, follows from the order of the operators alone.
 */
#include "libfleet/program/autodiff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

/* ---- which variables need one ---------------------------------------------------------------- */

static void autodiff_init(struct autodiff *ad, struct program *program)
{
    size_t count = (size_t)program->var_count + 1;

    *ad = (struct autodiff){.program = program,
                            .capacity = program->var_count,
                            .gradients = malloc(count * sizeof(*ad->gradients)),
                            .needed = calloc(count, sizeof(*ad->needed)),
                            .producer = malloc(count * sizeof(*ad->producer))};
    fleet_assert(ad->gradients && ad->needed && ad->producer);
    for (int i = 0; i < program->var_count; i++) {
        ad->gradients[i] = ad->producer[i] = PROGRAM_NONE;
        ad->needed[i] = program->vars[i].role == PROGRAM_ROLE_PARAMETER && program->vars[i].trained;
    }
}

static void autodiff_release(struct autodiff *ad)
{
    free(ad->gradients);
    free(ad->needed);
    free(ad->producer);
}

/* Forward: an output needs a gradient if an input does. */
static void mark_needed(struct autodiff *ad)
{
    const struct program *program = ad->program;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        bool needs = false;

        for (int j = 0; j < op->input_count; j++)
            needs |= op->inputs[j] != PROGRAM_NONE && ad->needed[op->inputs[j]];
        for (int j = 0; j < op->output_count; j++) {
            if (op->outputs[j] == PROGRAM_NONE)
                continue;
            ad->needed[op->outputs[j]] = needs;
            ad->producer[op->outputs[j]] = i;
        }
    }
}

/* ---- for gradient functions ------------------------------------------------------------------ */

int autodiff_of(const struct autodiff *ad, int var)
{
    if (var == ad->program->loss && ad->gradients[var] == PROGRAM_NONE)
        return ad->program->loss_scaling;
    return ad->gradients[var];
}

int autodiff_add_op(struct autodiff *ad, const struct program_op *op, struct fleet_error *err)
{
    struct program_op copy = *op;

    copy.section = PROGRAM_SECTION_MICRO_BATCH;
    copy.backward = true;
    copy.layer = ad->layer;
    copy.source = ad->source;
    (void)program_add_op(ad->program, &copy);
    return op_infer(ad->program, &copy, err);
}

int autodiff_add_unary(struct autodiff *ad, const struct program_op *op, enum op_kind kind,
                       int kept, struct fleet_error *err)
{
    int d_y = autodiff_of_filled(ad, op->outputs[0], err);
    struct program_op grad = {.kind = kind,
                              .inputs = {d_y, kept},
                              .input_count = kept == PROGRAM_NONE ? 1 : 2,
                              .output_count = 1,
                              .attributes = op->attributes};

    if (d_y == PROGRAM_NONE)
        return -EINVAL;
    grad.outputs[0] = autodiff_slot(ad, op->inputs[0]);
    return autodiff_add_op(ad, &grad, err);
}

/* A new activation "x@GRAD", or "x@GRAD.n" with the first n that is free. */
static int add_gradient_var(struct autodiff *ad, int var, enum program_type type)
{
    char name[PROGRAM_NAME_MAX + 64];
    struct program_var like = ad->program->vars[var];
    int index;

    (void)snprintf(name, sizeof(name), "%s@GRAD", like.name);
    for (int n = 1; program_find_var(ad->program, name) != PROGRAM_NONE; n++)
        (void)snprintf(name, sizeof(name), "%s@GRAD.%d", like.name, n);
    index =
        program_add_var(ad->program, name, type, PROGRAM_ROLE_ACTIVATION, like.ndim, like.shape);
    ad->program->vars[index].layer = ad->layer;
    return index;
}

int autodiff_of_filled(struct autodiff *ad, int var, struct fleet_error *err)
{
    if (autodiff_of(ad, var) == PROGRAM_NONE && var == ad->program->loss) {
        int one = add_gradient_var(ad, var, PROGRAM_FP32);
        struct program_op fill = {
            .kind = OP_FILL, .outputs = {one}, .output_count = 1, .attributes = {.scale = 1}};

        if (autodiff_add_op(ad, &fill, err) < 0)
            return PROGRAM_NONE;
        ad->gradients[var] = one;
    }
    if (autodiff_of(ad, var) == PROGRAM_NONE)
        (void)fleet_error(err, -EINVAL, "%s has no gradient", ad->program->vars[var].name);
    return autodiff_of(ad, var);
}

int autodiff_of_or_zero(struct autodiff *ad, int var, struct fleet_error *err)
{
    struct program_op fill = {.kind = OP_FILL, .output_count = 1};

    if (autodiff_of(ad, var) != PROGRAM_NONE)
        return autodiff_of(ad, var);
    fill.outputs[0] = add_gradient_var(ad, var, ad->program->vars[var].type);
    return autodiff_add_op(ad, &fill, err) < 0 ? PROGRAM_NONE : fill.outputs[0];
}

/* The parameter that `var` is a cast of, else `var` itself. */
static int looked_through(const struct autodiff *ad, int var)
{
    const struct program_op *op;

    if (ad->producer[var] == PROGRAM_NONE)
        return var;
    op = &ad->program->ops[ad->producer[var]];
    if (op->kind == OP_CAST && ad->program->vars[op->inputs[0]].role == PROGRAM_ROLE_PARAMETER)
        return op->inputs[0];
    return var;
}

static void add_pending(struct autodiff *ad, int var, int slot)
{
    fleet_assert(ad->pending_count < OP_INPUTS_MAX);
    ad->pending[ad->pending_count++] = (struct autodiff_pending){var, slot};
}

int autodiff_slot(struct autodiff *ad, int var)
{
    const struct program *program = ad->program;
    bool is_first;
    int slot;

    if (!ad->needed[var])
        return PROGRAM_NONE;
    var = looked_through(ad, var);
    is_first = ad->gradients[var] == PROGRAM_NONE;
    for (int i = 0; i < ad->pending_count; i++)
        is_first &= ad->pending[i].var != var;
    if (program->vars[var].role != PROGRAM_ROLE_PARAMETER)
        slot = add_gradient_var(ad, var, program->vars[var].type);
    else if (is_first)
        slot = program_add_gradient(ad->program, var);
    else
        slot = add_gradient_var(ad, var, PROGRAM_FP32);
    add_pending(ad, var, slot);
    return slot;
}

int autodiff_pass_on(struct autodiff *ad, int var, int gradient, struct fleet_error *err)
{
    int own;

    if (!ad->needed[var])
        return 0;
    var = looked_through(ad, var);
    if (ad->program->vars[var].role != PROGRAM_ROLE_PARAMETER) {
        add_pending(ad, var, gradient);
        return 0;
    }
    own = autodiff_slot(ad, var);
    return autodiff_add_op(ad,
                           &(struct program_op){.kind = OP_CAST,
                                                .inputs = {gradient},
                                                .input_count = 1,
                                                .outputs = {own},
                                                .output_count = 1},
                           err);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Add each contribution of the last operator to what has arrived before. */
static int settle(struct autodiff *ad, struct fleet_error *err)
{
    for (int i = 0; i < ad->pending_count; i++) {
        int var = ad->pending[i].var, slot = ad->pending[i].slot, before = ad->gradients[var], sum;

        if (before == PROGRAM_NONE) {
            ad->gradients[var] = slot;
            continue;
        }
        sum = ad->program->vars[before].role == PROGRAM_ROLE_GRADIENT
                  ? before
                  : add_gradient_var(ad, var, ad->program->vars[var].type);
        if (autodiff_add_op(ad,
                            &(struct program_op){.kind = OP_ADD,
                                                 .inputs = {before, slot},
                                                 .input_count = 2,
                                                 .outputs = {sum},
                                                 .output_count = 1},
                            err) < 0)
            return -EINVAL;
        ad->gradients[var] = sum;
    }
    ad->pending_count = 0;
    return 0;
}

static bool is_on_the_way(const struct autodiff *ad, const struct program_op *op)
{
    bool arrived = false, needed = false;

    for (int i = 0; i < op->output_count; i++)
        arrived |=
            op->outputs[i] != PROGRAM_NONE &&
            (ad->gradients[op->outputs[i]] != PROGRAM_NONE || op->outputs[i] == ad->program->loss);
    for (int i = 0; i < op->input_count; i++)
        needed |= op->inputs[i] != PROGRAM_NONE && ad->needed[op->inputs[i]];
    return arrived && needed;
}

static int walk_back(struct autodiff *ad, struct fleet_error *err)
{
    struct program *program = ad->program;

    for (int i = program->op_count - 1; i >= 0; i--) {
        struct program_op op = program->ops[i]; /* appending moves the list */
        const struct op_definition *d = op_definition(op.kind);

        if (!is_on_the_way(ad, &op))
            continue;
        if (!d->gradient)
            return fleet_error(err, -EINVAL, "%s (%s) has no gradient", d->name,
                               program->vars[op.outputs[0]].name);
        ad->layer = op.layer;
        ad->source = i;
        if (d->gradient(program, &op, ad, err) < 0 || settle(ad, err) < 0)
            return fleet_error_wrap(err, "gradient of %s (%s)", d->name,
                                    program->vars[op.outputs[0]].name);
    }
    return 0;
}

static int check_complete(const struct autodiff *ad, struct fleet_error *err)
{
    for (int i = 0; i < ad->capacity; i++) {
        const struct program_var *var = &ad->program->vars[i];
        if (var->role == PROGRAM_ROLE_PARAMETER && var->trained && ad->gradients[i] == PROGRAM_NONE)
            return fleet_error(err, -EINVAL, "parameter %s has no way to the loss", var->name);
    }
    return 0;
}

int autodiff_run(struct program *program, struct fleet_error *err)
{
    struct autodiff ad;
    int rc = 0;

    fleet_assert(program->loss != PROGRAM_NONE);
    autodiff_init(&ad, program);
    mark_needed(&ad);
    if (walk_back(&ad, err) < 0 || check_complete(&ad, err) < 0)
        rc = -EINVAL;
    autodiff_release(&ad);
    return rc;
}
