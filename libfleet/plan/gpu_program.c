/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/gpu_program.h"

#include <string.h>

#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/program/ops/operand.h"
#include "libfleet/program/program.h"

/* The operators of a classifier, by number; PROGRAM_NONE: not found. */
struct classifier {
    int linear, loss, loss_grad, linear_grad;
};

/* The only operator of a kind whose input `input` is `var`; PROGRAM_NONE: there is none, or another
 * operator than it and `but` reads the variable. */
static int only_reader(const struct program *program, int var, enum op_kind kind, int input,
                       int but)
{
    int found = PROGRAM_NONE;

    for (int i = 0; i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].input_count; j++) {
            if (program->ops[i].inputs[j] != var || i == but)
                continue;
            if (found != PROGRAM_NONE || program->ops[i].kind != kind || j != input)
                return PROGRAM_NONE;
            found = i;
        }
    return found;
}

/* The only operator that writes `var`, as its output 0. */
static int only_writer(const struct program *program, int var)
{
    int found = PROGRAM_NONE;

    for (int i = 0; i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].output_count; j++) {
            if (program->ops[i].outputs[j] != var)
                continue;
            if (found != PROGRAM_NONE || j != 0)
                return PROGRAM_NONE;
            found = i;
        }
    return found;
}

static int find_loss(const struct program *program)
{
    int found = PROGRAM_NONE;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            continue;
        if (op_definition(op->kind)->is_communication)
            return PROGRAM_NONE;
        if (op->kind == OP_CROSS_ENTROPY)
            found = found == PROGRAM_NONE ? i : program->op_count;
    }
    return found < program->op_count ? found : PROGRAM_NONE;
}

static bool find(const struct program *program, struct classifier *out)
{
    const struct program_op *ops = program->ops;
    int logits, d_logits;

    out->loss = find_loss(program);
    if (out->loss == PROGRAM_NONE)
        return false;
    logits = ops[out->loss].inputs[0];
    out->linear = only_writer(program, logits);
    out->loss_grad = only_reader(program, logits, OP_CROSS_ENTROPY_GRAD, 0, out->loss);
    if (out->linear == PROGRAM_NONE || out->loss_grad == PROGRAM_NONE)
        return false;
    d_logits = ops[out->loss_grad].outputs[0];
    out->linear_grad = only_reader(program, d_logits, OP_LINEAR_GRAD, 0, PROGRAM_NONE);
    return out->linear_grad != PROGRAM_NONE && only_writer(program, d_logits) == out->loss_grad &&
           only_reader(program, ops[out->loss].outputs[1], OP_CROSS_ENTROPY_GRAD, 2,
                       PROGRAM_NONE) == out->loss_grad;
}

static int input_of(const struct program_op *op, int i)
{
    return i < op->input_count ? op->inputs[i] : PROGRAM_NONE;
}

static int output_of(const struct program_op *op, int i)
{
    return i < op->output_count ? op->outputs[i] : PROGRAM_NONE;
}

/* One layer without bias and activation, whose gradient reads what it read; and the gradient of the
 * loss is there before the forward part. */
static bool fits_operators(const struct program *program, const struct classifier *c)
{
    const struct program_op *linear = &program->ops[c->linear];
    const struct program_op *grad = &program->ops[c->linear_grad];
    const struct program_op *loss_grad = &program->ops[c->loss_grad];
    int d_loss = input_of(loss_grad, 3);

    return linear->kind == OP_LINEAR && !linear->backward &&
           linear->attributes.activation == OP_ACTIVATION_NONE && !linear->attributes.fp8 &&
           input_of(linear, 2) == PROGRAM_NONE && output_of(linear, 1) == PROGRAM_NONE &&
           output_of(grad, 2) == PROGRAM_NONE && grad->inputs[1] == linear->inputs[0] &&
           grad->inputs[2] == linear->inputs[1] && !grad->weights &&
           loss_grad->inputs[1] == program->ops[c->loss].inputs[1] &&
           !program->ops[c->loss].attributes.divided &&
           (d_loss == PROGRAM_NONE || d_loss == program->loss_scaling);
}

static bool fits_operands(const struct program *program, const struct classifier *c)
{
    const struct program_op *linear = &program->ops[c->linear];
    const struct program_var *vars = program->vars, *logits = &vars[linear->outputs[0]];
    int d_weight = output_of(&program->ops[c->linear_grad], 1);

    return operand_rows(logits) > GPU_CLASSIFIER_ROWS && logits->role == PROGRAM_ROLE_ACTIVATION &&
           logits->type == vars[linear->inputs[0]].type &&
           (d_weight == PROGRAM_NONE || vars[d_weight].type == PROGRAM_FP32);
}

static void fuse(struct program *program, const struct classifier *c)
{
    const struct program_op *linear = &program->ops[c->linear];
    const struct program_op *grad = &program->ops[c->linear_grad];
    struct program_op *op = &program->ops[c->loss], fused = *op;
    int kept = 0;

    fused.kind = OP_LINEAR_CROSS_ENTROPY;
    fused.inputs[0] = linear->inputs[0];
    fused.inputs[1] = linear->inputs[1];
    fused.inputs[2] = op->inputs[1];
    fused.inputs[3] = input_of(&program->ops[c->loss_grad], 3);
    fused.input_count = 4;
    fused.outputs[0] = op->outputs[0];
    fused.outputs[1] = output_of(grad, 0);
    fused.outputs[2] = output_of(grad, 1);
    fused.output_count = 3;
    fused.attributes.transposed = linear->attributes.transposed;
    *op = fused;
    for (int i = 0; i < program->op_count; i++)
        if (i != c->linear && i != c->loss_grad && i != c->linear_grad)
            program->ops[kept++] = program->ops[i];
    program->op_count = kept;
}

bool gpu_program_apply(struct program *program)
{
    struct classifier c;

    if (!find(program, &c) || !fits_operators(program, &c) || !fits_operands(program, &c))
        return false;
    fuse(program, &c);
    return true;
}
