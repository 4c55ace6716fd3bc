/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/pipeline.h"
#include "libfleet/program/program.h"

struct split {
    struct program *program;
    bool *is_sent;             /* [vars] */
    int *held;                 /* [vars] what the first part has of a gradient, or PROGRAM_NONE */
    int count;                 /* of vars; those that are held come behind them */
    struct program_op *second; /* operators of the part for weights, in order */
    int second_count;
};

static bool is_gradient(const struct split *s, int var)
{
    return var == PROGRAM_NONE || s->program->vars[var].role == PROGRAM_ROLE_GRADIENT;
}

/* All that the operator writes is gradients of parameters that no other stage waits for. */
static bool makes_gradients_alone(const struct split *s, const struct program_op *op)
{
    for (int i = 0; i < op->output_count; i++)
        if (!is_gradient(s, op->outputs[i]) ||
            (op->outputs[i] != PROGRAM_NONE && s->is_sent[op->outputs[i]]))
            return false;
    return op->output_count > 0 && op->kind != OP_RECEIVE;
}

static void add_second(struct split *s, const struct program_op *op)
{
    s->second[s->second_count] = *op;
    s->second[s->second_count++].weights = true;
}

/* linear_grad: the gradient of x stays, those of weight and bias go to the second part. */
static void halve(struct split *s, struct program_op *op)
{
    struct program_op second = *op;

    if (op->kind != OP_LINEAR_GRAD || op->outputs[0] == PROGRAM_NONE ||
        is_gradient(s, op->outputs[0]))
        return;
    second.outputs[0] = PROGRAM_NONE;
    if (!makes_gradients_alone(s, &second) ||
        (second.outputs[1] == PROGRAM_NONE &&
         (second.output_count < 3 || second.outputs[2] == PROGRAM_NONE)))
        return;
    add_second(s, &second);
    for (int i = 1; i < op->output_count; i++)
        op->outputs[i] = PROGRAM_NONE;
}

static int held_of(const struct split *s, int var)
{
    bool is_held = 0 <= var && var < s->count && s->held[var] != PROGRAM_NONE;

    return is_held ? s->held[var] : var;
}

/* In the first part a sum over ranks changes what is held. */
static void change_held(const struct split *s, struct program_op *op)
{
    for (int i = 0; i < op->input_count; i++)
        op->inputs[i] = held_of(s, op->inputs[i]);
    for (int i = 0; i < op->output_count; i++)
        op->outputs[i] = held_of(s, op->outputs[i]);
}

/* A gradient that the first part makes by the way: held, and copied in the second part. */
static void hold(struct split *s, struct program_op *op)
{
    struct program_op copy = {.kind = OP_MEMCPY,
                              .section = PROGRAM_SECTION_MICRO_BATCH,
                              .backward = true,
                              .chunk = op->chunk,
                              .layer = op->layer,
                              .source = op->source,
                              .input_count = 1,
                              .output_count = 1};

    for (int i = 0; i < op->output_count; i++) {
        int var = op->outputs[i];

        if (var == PROGRAM_NONE || s->program->vars[var].role != PROGRAM_ROLE_GRADIENT)
            continue;
        copy.outputs[0] = var;
        copy.inputs[0] = program_add_like(s->program, var, ".held", PROGRAM_ROLE_ACTIVATION);
        s->held[var] = copy.inputs[0];
        if (s->is_sent[var])
            for (int j = 0; j < s->program->op_count; j++)
                if (s->program->ops[j].kind == OP_SEND && s->program->ops[j].input_count > 0 &&
                    s->program->ops[j].inputs[0] == var)
                    s->program->ops[j].inputs[0] = copy.inputs[0];
        op->outputs[i] = copy.inputs[0];
        add_second(s, &copy);
    }
}

static void split_op(struct split *s, struct program_op op, int *kept)
{
    if (op.backward && makes_gradients_alone(s, &op)) {
        add_second(s, &op);
        return;
    }
    if (op.backward) {
        halve(s, &op);
        change_held(s, &op);
        hold(s, &op);
    }
    s->program->ops[(*kept)++] = op;
}

void pipeline_split_weights(struct program *program)
{
    size_t ops = (size_t)program->op_count + 1, vars = (size_t)program->var_count + 1;
    struct split s = {.program = program,
                      .is_sent = calloc(vars, sizeof(bool)),
                      .held = malloc(vars * sizeof(int)),
                      .count = program->var_count,
                      .second = calloc(ops * OP_OUTPUTS_MAX, sizeof(*s.second))};
    int count = program->op_count, kept = 0, rest;
    struct program_op *tail;

    fleet_assert(s.is_sent && s.held && s.second);
    for (int v = 0; v < s.count; v++)
        s.held[v] = PROGRAM_NONE;
    for (int i = 0; i < count; i++)
        if (program->ops[i].kind == OP_SEND && program->ops[i].input_count > 0)
            s.is_sent[program->ops[i].inputs[0]] = true;
    for (rest = 0; rest < count && program->ops[rest].section == PROGRAM_SECTION_MICRO_BATCH;
         rest++)
        split_op(&s, program->ops[rest], &kept);
    tail = calloc(ops, sizeof(*tail));
    fleet_assert(tail);
    for (int i = rest; i < count; i++)
        tail[i - rest] = program->ops[i];
    program->op_count = kept;
    for (int i = 0; i < s.second_count; i++)
        (void)program_add_op(program, &s.second[i]);
    for (int i = rest; i < count; i++)
        (void)program_add_op(program, &tail[i - rest]);
    free(tail);
    free(s.second);
    free(s.held);
    free(s.is_sent);
}
