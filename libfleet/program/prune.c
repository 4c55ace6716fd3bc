/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/prune.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/program/verify.h"

struct pruning {
    const struct program *program;
    bool *is_feed, *is_fetch; /* [var_count] */
    bool *is_read;            /* [var_count] by an operator that is kept */
    bool *is_named;           /* [var_count] by an operator that is kept */
    bool *is_kept;            /* [op_count] */
};

static bool is_forward(const struct program_op *op)
{
    return op->section == PROGRAM_SECTION_MICRO_BATCH && !op->backward && !op->attributes.training;
}

static bool is_given(const struct program_var *var)
{
    return var->role == PROGRAM_ROLE_PARAMETER || var->role == PROGRAM_ROLE_BUFFER;
}

static bool writes(const struct program_op *op, int var)
{
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] == var)
            return true;
    return false;
}

static int mark_fetches(const struct prune_request *request, struct pruning *p,
                        struct fleet_error *err)
{
    fleet_assert(request->fetch_count > 0);
    for (int i = 0; i < request->fetch_count; i++) {
        int var = request->fetches[i];
        bool is_written = false;
        for (int j = 0; j < p->program->op_count && !is_written; j++)
            is_written = is_forward(&p->program->ops[j]) && writes(&p->program->ops[j], var);
        if (!is_written)
            return fleet_error(err, -EINVAL, "%s is no result of the forward program",
                               p->program->vars[var].name);
        if (p->is_feed[var])
            return fleet_error(err, -EINVAL, "%s is fed and fetched", p->program->vars[var].name);
        p->is_fetch[var] = true;
    }
    return 0;
}

/* From the last operator to the first. What is fed ends the walk. */
static int walk(struct pruning *p, struct fleet_error *err)
{
    for (int i = p->program->op_count - 1; i >= 0; i--) {
        const struct program_op *op = &p->program->ops[i];
        for (int j = 0; is_forward(op) && j < op->output_count; j++) {
            int var = op->outputs[j];
            p->is_kept[i] |=
                var != PROGRAM_NONE && !p->is_feed[var] && (p->is_read[var] || p->is_fetch[var]);
        }
        if (!p->is_kept[i])
            continue;
        if (op_definition(op->kind)->is_communication)
            return fleet_error(err, -EINVAL, "operator %s needs other ranks",
                               op_definition(op->kind)->name);
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] != PROGRAM_NONE)
                p->is_read[op->inputs[j]] = p->is_named[op->inputs[j]] = true;
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE)
                p->is_named[op->outputs[j]] = true;
    }
    return 0;
}

static int check_feeds(const struct prune_request *request, const struct pruning *p,
                       struct fleet_error *err)
{
    const struct program_var *vars = p->program->vars;

    for (int i = 0; i < request->feed_count; i++) {
        int var = request->feeds[i];
        if (is_given(&vars[var]))
            return fleet_error(err, -EINVAL, "%s cannot be fed: it is a %s", vars[var].name,
                               program_role_name(vars[var].role));
        if (!p->is_read[var])
            return fleet_error(err, -EINVAL, "%s is fed, but nothing that is fetched needs it",
                               vars[var].name);
    }
    for (int v = 0; v < p->program->var_count && request->feed_count; v++)
        if (p->is_read[v] && vars[v].role == PROGRAM_ROLE_INPUT && !p->is_feed[v])
            return fleet_error(err, -EINVAL, "what is fetched needs %s, which is not fed",
                               vars[v].name);
    return 0;
}

/* The variables that are left; places[old] is the new index. */
static void copy_vars(const struct pruning *p, int *places, struct program *out)
{
    for (int v = 0; v < p->program->var_count; v++) {
        const struct program_var *var = &p->program->vars[v];
        enum program_role role = p->is_feed[v]    ? PROGRAM_ROLE_INPUT
                                 : p->is_fetch[v] ? PROGRAM_ROLE_SCALAR
                                                  : var->role;
        struct program_var *added;
        places[v] = PROGRAM_NONE;
        if (!p->is_named[v])
            continue;
        places[v] = program_add_var(out, var->name, var->type, role, var->ndim, var->shape);
        added = &out->vars[places[v]];
        added->initial = var->initial;
        added->deviation = var->deviation;
        added->layer = var->layer;
    }
}

static void copy_ops(const struct pruning *p, const int *places, struct program *out)
{
    for (int i = 0; i < p->program->op_count; i++) {
        struct program_op op = p->program->ops[i];
        if (!p->is_kept[i])
            continue;
        for (int j = 0; j < op.input_count; j++)
            if (op.inputs[j] != PROGRAM_NONE)
                op.inputs[j] = places[op.inputs[j]];
        for (int j = 0; j < op.output_count; j++)
            if (op.outputs[j] != PROGRAM_NONE)
                op.outputs[j] = places[op.outputs[j]];
        (void)program_add_op(out, &op);
    }
}

static int copy(const struct pruning *p, struct program *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE int *places = calloc((size_t)p->program->var_count + 1, sizeof(*places));
    int rc;

    fleet_assert(places);
    program_init(out, p->program->name);
    out->micro_batch_size = p->program->micro_batch_size;
    out->tokens_per_sample = p->program->tokens_per_sample;
    out->merge_steps = 1;
    out->loss = out->loss_scaling = PROGRAM_NONE;
    copy_vars(p, places, out);
    copy_ops(p, places, out);
    program_layout(out);
    rc = verify_program(out, VERIFY_INFERENCE, err);
    if (rc < 0)
        program_release(out);
    return rc;
}

int prune_forward(const struct program *program, const struct prune_request *request,
                  struct program *out, struct fleet_error *err)
{
    size_t vars = (size_t)program->var_count, ops = (size_t)program->op_count;
    FLEET_AUTO_FREE bool *marks = calloc(4 * vars + ops + 1, sizeof(*marks));
    struct pruning p = {.program = program,
                        .is_feed = marks,
                        .is_fetch = marks + vars,
                        .is_read = marks + 2 * vars,
                        .is_named = marks + 3 * vars,
                        .is_kept = marks + 4 * vars};
    int rc;

    fleet_assert(marks);
    for (int i = 0; i < request->feed_count; i++)
        p.is_feed[request->feeds[i]] = true;
    rc = mark_fetches(request, &p, err);
    if (rc == 0)
        rc = walk(&p, err);
    if (rc == 0)
        rc = check_feeds(request, &p, err);
    return rc < 0 ? rc : copy(&p, out, err);
}
