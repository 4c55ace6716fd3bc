/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The invariants of program.h, checked; a number in a comment is the invariant's. Shapes and types
 * are checked by inferring every operator again.
 */
#include "libfleet/program/verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

/* (1) for one variable: may an operator read it before another has written it? */
static bool is_given(const struct program_var *var)
{
    return var->role == PROGRAM_ROLE_INPUT || var->role == PROGRAM_ROLE_PARAMETER ||
           var->role == PROGRAM_ROLE_STATE || var->role == PROGRAM_ROLE_BUFFER;
}

static int check_operator(struct program *program, int at, bool *written, struct fleet_error *err)
{
    const struct program_op *op = &program->ops[at];
    int rc;

    if (at > 0 && op->section < program->ops[at - 1].section)
        return fleet_error(err, -EINVAL, "%s stands after section %s",
                           op_definition(op->kind)->name,
                           program_section_name(program->ops[at - 1].section));
    if (at > 0 && op->section == PROGRAM_SECTION_MICRO_BATCH && !op->backward &&
        program->ops[at - 1].backward)
        return fleet_error(err, -EINVAL, "%s, a forward operator, stands after a backward one",
                           op_definition(op->kind)->name);
    if ((rc = op_infer(program, op, err)) < 0)
        return rc;
    for (int i = 0; i < op->input_count; i++)
        if (op->inputs[i] != PROGRAM_NONE && !written[op->inputs[i]])
            return fleet_error(err, -EINVAL, "%s reads %s before it is written",
                               op_definition(op->kind)->name, program->vars[op->inputs[i]].name);
    for (int i = 0; i < op->output_count; i++) {
        int var = op->outputs[i];
        if (var == PROGRAM_NONE)
            continue;
        if (program->vars[var].role == PROGRAM_ROLE_INPUT)
            return fleet_error(err, -EINVAL, "%s writes the input %s",
                               op_definition(op->kind)->name, program->vars[var].name);
        written[var] = true;
    }
    return 0;
}

/* (1), (2), (5) */
static int check_operators(struct program *program, bool *written, struct fleet_error *err)
{
    for (int i = 0; i < program->var_count; i++)
        written[i] = is_given(&program->vars[i]) || i == program->loss_scaling;
    for (int i = 0; i < program->op_count; i++) {
        int rc = check_operator(program, i, written, err);
        if (rc < 0) {
            (void)fleet_error_wrap(err, "operator %d", i);
            return rc;
        }
    }
    return 0;
}

/* (4); names within bounds; companions belong to parameters. */
static int check_vars(const struct program *program, enum verify_stage stage,
                      struct fleet_error *err)
{
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        bool companion = var->role == PROGRAM_ROLE_GRADIENT || var->role == PROGRAM_ROLE_STATE;
        bool flat =
            companion || var->role == PROGRAM_ROLE_PARAMETER || var->role == PROGRAM_ROLE_BUFFER;

        if (program_find_var(program, var->name) != i)
            return fleet_error(err, -EINVAL, "two variables are called %s", var->name);
        if (companion && (var->of < 0 || var->of >= program->var_count ||
                          program->vars[var->of].role != PROGRAM_ROLE_PARAMETER))
            return fleet_error(err, -EINVAL, "%s belongs to no parameter", var->name);
        if (flat && (var->type != PROGRAM_FP32 || var->ndim == PROGRAM_UNSHAPED))
            return fleet_error(err, -EINVAL, "%s (%s) must be fp32 and have a shape", var->name,
                               program_role_name(var->role));
    }
    if (stage >= VERIFY_FORWARD &&
        (program->loss == PROGRAM_NONE || program->loss >= program->var_count))
        return fleet_error(err, -EINVAL, "the program has no loss");
    return 0;
}

/* What an inference runs: nothing but the forward part, on one rank. */
static int check_inference(const struct program *program, struct fleet_error *err)
{
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        const struct op_definition *definition = op_definition(op->kind);
        if (op->section != PROGRAM_SECTION_MICRO_BATCH || op->backward || op->attributes.training ||
            op->attributes.space != OP_SPACE_NONE || definition->is_communication ||
            definition->is_optimizer)
            return fleet_error(err, -EINVAL, "operator %d, %s, is not of a forward part", i,
                               definition->name);
    }
    for (int i = 0; i < program->var_count; i++)
        if (program->vars[i].role == PROGRAM_ROLE_GRADIENT ||
            program->vars[i].role == PROGRAM_ROLE_STATE)
            return fleet_error(err, -EINVAL, "%s is a %s", program->vars[i].name,
                               program_role_name(program->vars[i].role));
    return 0;
}

/* (3), (6) */
static int check_gradients(const struct program *program, const bool *written,
                           struct fleet_error *err)
{
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i], *gradient;
        int index;

        if (var->role == PROGRAM_ROLE_GRADIENT && program_gradient_of(program, var->of) != i)
            return fleet_error(err, -EINVAL, "%s is not the gradient of %s", var->name,
                               program->vars[var->of].name);
        if (var->role != PROGRAM_ROLE_PARAMETER || !var->trained)
            continue;
        index = program_gradient_of(program, i);
        if (index == PROGRAM_NONE || !written[index])
            return fleet_error(err, -EINVAL, "parameter %s has no gradient", var->name);
        gradient = &program->vars[index];
        if (gradient->ndim != var->ndim ||
            memcmp(gradient->shape, var->shape, (size_t)var->ndim * sizeof(*var->shape)) != 0)
            return fleet_error(err, -EINVAL, "%s has another shape than its parameter",
                               gradient->name);
    }
    return 0;
}

static int check_updates(const struct program *program, struct fleet_error *err)
{
    FLEET_AUTO_FREE int *updates = calloc((size_t)program->var_count + 1, sizeof(*updates));

    fleet_assert(updates);
    for (int i = 0; i < program->op_count; i++)
        if (op_definition(program->ops[i].kind)->is_optimizer)
            updates[program->ops[i].inputs[0]]++;
    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        if (var->role == PROGRAM_ROLE_PARAMETER && updates[i] != (var->trained ? 1 : 0))
            return fleet_error(err, -EINVAL, "parameter %s is updated %d times", var->name,
                               updates[i]);
        if (var->role == PROGRAM_ROLE_PARAMETER && var->flat_offset < 0)
            return fleet_error(err, -EINVAL, "parameter %s has no place in the flat space",
                               var->name);
    }
    return 0;
}

int verify_program(struct program *program, enum verify_stage stage, struct fleet_error *err)
{
    FLEET_AUTO_FREE bool *written = calloc((size_t)program->var_count + 1, sizeof(*written));
    int rc;

    fleet_assert(written);
    if ((rc = check_vars(program, stage, err)) < 0 ||
        (rc = check_operators(program, written, err)) < 0)
        return rc;
    if (stage == VERIFY_INFERENCE)
        return check_inference(program, err);
    if (stage >= VERIFY_BACKWARD && (rc = check_gradients(program, written, err)) < 0)
        return rc;
    return stage >= VERIFY_COMPLETE ? check_updates(program, err) : 0;
}
