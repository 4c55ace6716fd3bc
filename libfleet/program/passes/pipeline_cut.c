/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Where a program is cut: the virtual stage of each operator, the variables that cross the borders
 * between virtual stages, and the stages that hold each parameter.
 */
#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/passes/pipeline.h"
#include "libfleet/program/passes/pipeline_internal.h"
#include "libfleet/program/program.h"

/* ---- whose operators ------------------------------------------------------------------------- */

static bool casts_parameter(const struct program *program, const struct program_op *op)
{
    return op->kind == OP_CAST && !op->backward &&
           program->vars[op->inputs[0]].role == PROGRAM_ROLE_PARAMETER;
}

/* The last forward, and the last backward operator that belongs to a layer. */
static void find_layered(const struct pipeline_cut *cut, int *out_forward, int *out_backward)
{
    *out_forward = *out_backward = -1;
    for (int i = 0; i < cut->micro_ops; i++)
        if (cut->whole->ops[i].layer >= 0)
            *(cut->whole->ops[i].backward ? out_backward : out_forward) = i;
}

/* Operators without a layer stand with those around them: at both ends of a direction with the
 * first or the last stage, else with the operator in front. */
void pipeline_place_ops(struct pipeline_cut *cut)
{
    int last = cut->stages.count - 1, stage = 0, last_forward, last_backward;
    bool was_backward = false;

    find_layered(cut, &last_forward, &last_backward);
    for (int i = 0; i < cut->micro_ops; i++) {
        const struct program_op *op = &cut->whole->ops[i];

        if (op->backward && !was_backward)
            stage = last;
        was_backward = op->backward;
        if (op->layer >= 0)
            stage = stages_of_layer(&cut->stages, op->layer);
        else if (i > (op->backward ? last_backward : last_forward))
            stage = op->backward ? 0 : last;
        cut->stage[i] = casts_parameter(cut->whole, op) ? PIPELINE_ANY : stage;
    }
}

/* ---- what crosses ---------------------------------------------------------------------------- */

/* `var` crosses the border between the virtual stages `border` and border + 1. */
static void mark(struct pipeline_cut *cut, int var, int border, bool backward)
{
    for (int chunk = 0; chunk < pipeline_chunks(&cut->cell); chunk++) {
        unsigned char *at =
            &cut->crossings[(size_t)chunk * (size_t)cut->whole->var_count + (size_t)var];
        if (pipeline_virtual_stage(cut, chunk) == border)
            *at |= backward ? PIPELINE_BACKWARD_IN : PIPELINE_FORWARD_OUT;
        if (pipeline_virtual_stage(cut, chunk) == border + 1)
            *at |= backward ? PIPELINE_BACKWARD_OUT : PIPELINE_FORWARD_IN;
    }
}

/* Operator `at` reads `var`, which operator `writer` has written. */
static int cross(struct pipeline_cut *cut, int at, int writer, int var, struct fleet_error *err)
{
    const struct program *whole = cut->whole;
    bool backward = whole->ops[writer].backward;
    int from = cut->stage[writer], to = cut->stage[at];

    if (backward ? to > from : to < from)
        return fleet_error(
            err, -EINVAL, "%s of stage %d reads %s of stage %d: the model cannot be cut there",
            op_definition(whole->ops[at].kind)->name, to, whole->vars[var].name, from);
    for (int border = backward ? to : from; border < (backward ? from : to); border++)
        mark(cut, var, border, backward);
    return 0;
}

int pipeline_find_crossings(struct pipeline_cut *cut, struct fleet_error *err)
{
    const struct program *whole = cut->whole;
    int *writers = malloc(((size_t)whole->var_count + 1) * sizeof(*writers)), rc = 0;

    fleet_assert(writers);
    for (int v = 0; v < whole->var_count; v++)
        writers[v] = PROGRAM_NONE;
    for (int i = 0; i < cut->micro_ops && rc == 0; i++) {
        const struct program_op *op = &whole->ops[i];

        for (int j = 0; j < op->input_count && cut->stage[i] != PIPELINE_ANY && rc == 0; j++) {
            int v = op->inputs[j];
            if (v != PROGRAM_NONE && writers[v] != PROGRAM_NONE &&
                cut->stage[writers[v]] != PIPELINE_ANY)
                rc = cross(cut, i, writers[v], v, err);
        }
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE)
                writers[op->outputs[j]] = i;
    }
    free(writers);
    return rc;
}

/* The parameter that `var` is or is a cast of, else PROGRAM_NONE. */
static int parameter_behind(const struct pipeline_cut *cut, int var)
{
    const struct program *whole = cut->whole;

    if (whole->vars[var].role == PROGRAM_ROLE_PARAMETER)
        return var;
    for (int i = 0; i < cut->micro_ops; i++)
        if (cut->stage[i] == PIPELINE_ANY && whole->ops[i].outputs[0] == var)
            return whole->ops[i].inputs[0];
    return PROGRAM_NONE;
}

void pipeline_find_holders(struct pipeline_cut *cut)
{
    const struct program *whole = cut->whole;

    for (int v = 0; v < whole->var_count; v++)
        cut->first_stage[v] = cut->last_stage[v] = PIPELINE_NOBODY;
    for (int i = 0; i < cut->micro_ops; i++) {
        const struct program_op *op = &whole->ops[i];

        for (int j = 0; j < op->input_count && cut->stage[i] != PIPELINE_ANY && !op->backward;
             j++) {
            int p =
                op->inputs[j] == PROGRAM_NONE ? PROGRAM_NONE : parameter_behind(cut, op->inputs[j]);
            if (p == PROGRAM_NONE)
                continue;
            if (cut->first_stage[p] == PIPELINE_NOBODY)
                cut->first_stage[p] = cut->stage[i];
            cut->last_stage[p] = cut->stage[i];
        }
    }
}
