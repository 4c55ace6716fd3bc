/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/tensor_parallel.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/program/passes/divided_rows.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

bool tensor_parallel_wanted(const struct pass_context *context)
{
    return context->cell.model_ranks > 1;
}

/* The pass at work. */
struct sharing {
    struct program *program;
    int *weights; /* [count] for each variable the parameter behind a cast of amp, or itself */
    int count;    /* variables that the pass adds come behind them */
    bool *apart;  /* [count] all that reads it in the forward part takes some of its columns */
};

/* Readers come behind what they read, so one walk from the end finds all, also behind casts. */
static void find_apart(struct sharing *s)
{
    FLEET_AUTO_FREE bool *is_read = calloc((size_t)s->count + 1, sizeof(*is_read));

    s->apart = calloc((size_t)s->count + 1, sizeof(*s->apart));
    fleet_assert(is_read && s->apart);
    for (int i = s->program->op_count - 1; i >= 0; i--) {
        const struct program_op *op = &s->program->ops[i];
        bool takes_apart =
            op->kind == OP_SPLIT || (op->kind == OP_CAST && s->apart[op->outputs[0]]);

        for (int j = 0; j < op->input_count && !op->backward; j++) {
            int var = op->inputs[j];

            if (var == PROGRAM_NONE)
                continue;
            s->apart[var] = takes_apart && (s->apart[var] || !is_read[var]);
            is_read[var] = true;
        }
    }
}

/* Casts come before what reads them, so one walk finds all. */
static void find_weights(struct sharing *s)
{
    s->count = s->program->var_count;
    s->weights = calloc((size_t)s->count + 1, sizeof(*s->weights));
    fleet_assert(s->weights != NULL);
    for (int v = 0; v < s->count; v++)
        s->weights[v] = v;
    for (int i = 0; i < s->program->op_count; i++) {
        const struct program_op *op = &s->program->ops[i];
        if (op->kind == OP_CAST && s->program->vars[op->outputs[0]].role != PROGRAM_ROLE_PARAMETER)
            s->weights[op->outputs[0]] = s->weights[op->inputs[0]];
    }
}

static const struct program_slice *slice_of(const struct sharing *s, const struct program_op *op)
{
    int weight = op->inputs[1] < s->count ? s->weights[op->inputs[1]] : op->inputs[1];

    return &s->program->vars[weight].slice;
}

/* A linear layer that each rank has, but uses only some features of. */
static bool uses_columns(const struct sharing *s, const struct program_op *op)
{
    return op->kind == OP_LINEAR && !op->backward && slice_of(s, op)->parts == 0 &&
           op->outputs[0] < s->count && s->apart[op->outputs[0]];
}

/* A linear layer with some of the features, or one that uses some. */
static bool has_columns(const struct sharing *s, const struct program_op *op)
{
    const struct program_slice *slice;

    if (op->kind != OP_LINEAR || op->backward)
        return false;
    slice = slice_of(s, op);
    return slice->parts > 0 ? slice->dimension == (op->attributes.transposed ? 0 : 1)
                            : uses_columns(s, op);
}

/* All that reads `x` in the forward part are such layers. */
static int check_readers(const struct sharing *s, int x, struct fleet_error *err)
{
    const struct program *program = s->program;

    for (int i = 0; i < program->op_count && !program->ops[i].backward; i++)
        for (int j = 0; j < program->ops[i].input_count; j++)
            if (program->ops[i].inputs[j] == x && !has_columns(s, &program->ops[i]))
                return fleet_error(
                    err, -EINVAL, "%s is read by %s beside layers that are divided by columns",
                    program->vars[x].name, op_definition(program->ops[i].kind)->name);
    return 0;
}

/* The backward operator that completes the gradient of `x`: the last that a reader of `x` left. */
static int find_last(const struct sharing *s, int x)
{
    const struct program *program = s->program;

    for (int i = program->op_count - 1; i >= 0; i--) {
        const struct program_op *op = &program->ops[i];

        if (op->section == PROGRAM_SECTION_MICRO_BATCH && op->backward &&
            (op->kind == OP_LINEAR_GRAD || op->kind == OP_ADD) && op->outputs[0] != PROGRAM_NONE &&
            program->ops[op->source].inputs[0] == x && has_columns(s, &program->ops[op->source]) &&
            program->vars[op->outputs[0]].role == PROGRAM_ROLE_ACTIVATION)
            return i;
    }
    return -1;
}

/* Sum what operator `at` gives over the model ranks; later operators read the sum. */
static int sum_behind(struct program *program, int at, struct fleet_error *err)
{
    struct program_op all_reduce = {.kind = OP_ALL_REDUCE,
                                    .section = PROGRAM_SECTION_MICRO_BATCH,
                                    .backward = true,
                                    .layer = program->ops[at].layer,
                                    .source = program->ops[at].source,
                                    .inputs = {program->ops[at].outputs[0]},
                                    .input_count = 1,
                                    .output_count = 1,
                                    .attributes = {.group = OP_GROUP_MODEL}};
    int part = all_reduce.inputs[0];
    int sum = program_add_like(program, part, ".sum", PROGRAM_ROLE_ACTIVATION);

    all_reduce.outputs[0] = sum;
    for (int i = at + 1; i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].input_count; j++)
            if (program->ops[i].inputs[j] == part)
                program->ops[i].inputs[j] = sum;
    (void)program_insert_op(program, at + 1, &all_reduce);
    return op_infer(program, &all_reduce, err);
}

/* Each rank has the gradient of the features that it uses, and zeros. */
static int sum_weights(const struct sharing *s, struct fleet_error *err)
{
    struct program *program = s->program;

    for (int i = 0; i < program->op_count; i++) {
        struct program_op op = program->ops[i];

        if (op.kind != OP_LINEAR_GRAD || op.source == PROGRAM_NONE ||
            !uses_columns(s, &program->ops[op.source]))
            continue;
        for (int j = 1; j < op.output_count; j++)
            if (op.outputs[j] != PROGRAM_NONE &&
                divided_rows_sum_gradient(program, i, j, OP_GROUP_MODEL, err) < 0)
                return -EINVAL;
    }
    return 0;
}

/* The setting that divides tensors. */
static const char *degree_of(const struct strategy *s)
{
    if (s->hybrid_configs.mp_degree > 1)
        return "hybrid_configs.mp_degree";
    return s->sharding_configs.mp_degree > 1 ? "sharding_configs.mp_degree"
                                             : "tensor_parallel_configs.tensor_parallel_degree";
}

/* What each rank keeps for itself is described for one cell only. */
static int check_private(const struct pass_context *context, struct fleet_error *err)
{
    const char *what = pass_private_knob(context);

    if (what)
        return fleet_error(err, -EINVAL,
                           "%s: %s keeps values of its own on each worker, and they are saved and "
                           "handed on only if a worker has the whole model; with tensors that "
                           "ranks share, switch it off",
                           degree_of(context->strategy), what);
    return 0;
}

/* The squares that LAMB and LARS need are those of the infinite gradient: the ranks exchange them
 * before the vote, and a zero gradient is decided behind it. */
static int check_zero(const struct pass_context *context, struct fleet_error *err)
{
    enum training_optimizer_name name = context->training->optimizer.name;
    const struct strategy *s = context->strategy;

    if (!context->options || context->options->overflow_action != STRATEGY_OVERFLOW_ZERO_GRAD ||
        !(s->lamb || s->lars || name == TRAINING_OPTIMIZER_LAMB || name == TRAINING_OPTIMIZER_LARS))
        return 0;
    return fleet_error(err, -EINVAL,
                       "strategyOptions.overflowAction zeroGrad, lamb or lars, and tensors that "
                       "ranks share do not go together yet: use skip");
}

/* What several layers read is summed once. */
static int sum_shared(const struct sharing *s, struct fleet_error *err)
{
    struct program *program = s->program;
    FLEET_AUTO_FREE bool *is_done = calloc((size_t)program->var_count + 1, sizeof(*is_done));

    fleet_assert(is_done);
    for (int i = 0; i < program->op_count && !program->ops[i].backward; i++) {
        int x = program->ops[i].inputs[0], last;

        if (!has_columns(s, &program->ops[i]) || is_done[x])
            continue;
        is_done[x] = true;
        if (divided_rows_joined(program, x, i))
            continue;
        if (check_readers(s, x, err) < 0)
            return -EINVAL;
        last = find_last(s, x);
        if (last >= 0 && sum_behind(program, last, err) < 0)
            return -EINVAL;
    }
    return 0;
}

int tensor_parallel_apply(struct program *program, const struct pass_context *context,
                          struct fleet_error *err)
{
    struct sharing s = {.program = program};
    int rc;

    if (check_private(context, err) < 0 || check_zero(context, err) < 0)
        return -EINVAL;
    find_weights(&s);
    find_apart(&s);
    rc = sum_shared(&s, err);
    if (rc == 0)
        rc = sum_weights(&s, err);
    if (rc == 0 && divided_rows_wanted(context))
        rc = divided_rows_apply(program, err);
    else if (rc == 0 && context->cell.by_operator)
        rc = divided_rows_sum(program, OP_GROUP_MODEL, err);
    free(s.weights);
    free(s.apart);
    return rc;
}
