/* SPDX-License-Identifier: Apache-2.0 */

/*
 * For each relu: find the operator that writes its input, and check that nothing else reads it.
 * A fused operator takes the relu's place in the order, where all of its operands are there.
 */
#include "libfleet/program/passes/fuse_activations.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"

#define RESIDUAL 5 /* input of batch_norm */

struct fusion {
    struct program *program;
    int *reads;   /* [vars] operands that read it */
    int *writer;  /* [vars] the operator that writes it, PROGRAM_NONE: none or several */
    bool *merged; /* [ops] into a later one */
};

static void fusion_init(struct fusion *f, struct program *program)
{
    size_t vars = (size_t)program->var_count + 1;

    *f = (struct fusion){.program = program,
                         .reads = calloc(vars, sizeof(int)),
                         .writer = calloc(vars, sizeof(int)),
                         .merged = calloc((size_t)program->op_count + 1, sizeof(bool))};
    fleet_assert(f->reads && f->writer && f->merged);
    for (int i = 0; i < program->var_count; i++)
        f->writer[i] = -2; /* none yet */
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] != PROGRAM_NONE)
                f->reads[op->inputs[j]]++;
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE)
                f->writer[op->outputs[j]] = f->writer[op->outputs[j]] == -2 ? i : PROGRAM_NONE;
    }
}

static void fusion_release(struct fusion *f)
{
    free(f->reads);
    free(f->writer);
    free(f->merged);
}

/* The operator of `kind` whose output 0 is `var`, read once and by an operator of the same part;
 * PROGRAM_NONE if there is none. */
static int producer(const struct fusion *f, int var, enum op_kind kind,
                    const struct program_op *reader)
{
    int at = f->writer[var];
    const struct program_op *op;

    if (at < 0 || f->merged[at] || f->reads[var] != 1 ||
        f->program->vars[var].role != PROGRAM_ROLE_ACTIVATION)
        return PROGRAM_NONE;
    op = &f->program->ops[at];
    if (op->kind != kind || op->outputs[0] != var || op->backward != reader->backward ||
        op->attributes.activation != OP_ACTIVATION_NONE)
        return PROGRAM_NONE;
    return at;
}

/* Operator `from` moves to the relu at `to` and writes its output. */
static void move(struct fusion *f, int from, int to)
{
    struct program_op *ops = f->program->ops, op = ops[from];

    op.attributes.activation = OP_ACTIVATION_RELU;
    op.outputs[0] = ops[to].outputs[0];
    for (int j = 0; j < op.output_count; j++)
        if (op.outputs[j] != PROGRAM_NONE)
            f->writer[op.outputs[j]] = to;
    ops[to] = op;
    f->merged[from] = true;
}

/* batch_norm of one operand of the addition at `add`, the other as its residual. */
static bool fuse_residual(struct fusion *f, int add, int relu)
{
    const struct program_op *sum = &f->program->ops[add];

    for (int i = 0; i < 2; i++) {
        int other = sum->inputs[1 - i];
        int norm = producer(f, sum->inputs[i], OP_BATCH_NORM, sum);
        if (norm == PROGRAM_NONE || f->program->ops[norm].input_count > RESIDUAL ||
            f->program->vars[other].ndim != f->program->vars[sum->inputs[i]].ndim)
            continue;
        f->program->ops[norm].inputs[RESIDUAL] = other;
        f->program->ops[norm].input_count = RESIDUAL + 1;
        f->merged[add] = true;
        move(f, norm, relu);
        return true;
    }
    return false;
}

static void fuse(struct fusion *f, int relu, const struct strategy_build_strategy *knobs)
{
    const struct program_op *op = &f->program->ops[relu];
    int norm = producer(f, op->inputs[0], OP_BATCH_NORM, op);
    int add = producer(f, op->inputs[0], OP_ADD, op);

    if (norm != PROGRAM_NONE && knobs->fuse_bn_act_ops)
        move(f, norm, relu);
    else if (add != PROGRAM_NONE && knobs->fuse_bn_add_act_ops && fuse_residual(f, add, relu))
        return;
    else if (add != PROGRAM_NONE && knobs->fuse_elewise_add_act_ops)
        move(f, add, relu);
}

bool fuse_activations_wanted(const struct pass_context *context)
{
    const struct strategy_build_strategy *knobs = &context->strategy->build_strategy;

    return knobs->fuse_bn_act_ops || knobs->fuse_bn_add_act_ops || knobs->fuse_elewise_add_act_ops;
}

int fuse_activations_apply(struct program *program, const struct pass_context *context,
                           struct fleet_error *err)
{
    struct fusion f;
    int kept = 0;

    (void)err;
    fusion_init(&f, program);
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == OP_RELU)
            fuse(&f, i, &context->strategy->build_strategy);
    for (int i = 0; i < program->op_count; i++)
        if (!f.merged[i])
            program->ops[kept++] = program->ops[i];
    program->op_count = kept;
    fusion_release(&f);
    return 0;
}
