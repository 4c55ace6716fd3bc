/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sync_batch_norm.h"

#include <errno.h>
#include <stdio.h>

#include "libfleet/program/passes/pass.h"
#include "libfleet/strategy/strategy.h"

/* Operands of BATCH_NORM and BATCH_NORM_GRAD (op.h). */
#define NORM_TOTAL 6
#define GRAD_TOTAL 5
#define GRAD_OWN   6

bool sync_batch_norm_wanted(const struct pass_context *context)
{
    return context->strategy->sync_batch_norm;
}

/* A new variable for the sums of operator `at`, "what.n" with the first n that is free. */
static int add_sums(struct program *program, const char *what, const struct program_op *op)
{
    char name[PROGRAM_NAME_MAX + 64];
    int channels = op->inputs[op->kind == OP_BATCH_NORM ? 1 : 2], n = 0, index;
    int64_t count = 2 * program_var_elements(&program->vars[channels]) + 1;

    do
        (void)snprintf(name, sizeof(name), "%.*s.%s.%d", PROGRAM_NAME_MAX,
                       program->vars[channels].name, what, n++);
    while (program_find_var(program, name) != PROGRAM_NONE);
    index = program_add_var(program, name, PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, 1, &count);
    program->vars[index].layer = op->layer;
    return index;
}

/* Put the sums and their exchange in front of operator `at`, which then reads both. */
static void share(struct program *program, int at)
{
    struct program_op norm = program->ops[at];
    bool is_forward = norm.kind == OP_BATCH_NORM;
    int own = add_sums(program, "own", &norm), total = add_sums(program, "total", &norm);
    struct program_op sums = {
        .kind = is_forward ? OP_BATCH_NORM_SUMS : OP_BATCH_NORM_GRAD_SUMS,
        .section = norm.section,
        .backward = norm.backward,
        .layer = norm.layer,
        .inputs = {norm.inputs[0], norm.inputs[is_forward ? 3 : 1], norm.inputs[3], norm.inputs[4]},
        .input_count = is_forward ? 2 : 4,
        .outputs = {own},
        .output_count = 1,
        .attributes = {.training = is_forward}};
    struct program_op exchange = {
        .kind = OP_ALL_REDUCE,
        .section = norm.section,
        .backward = norm.backward,
        .layer = norm.layer,
        .inputs = {own},
        .input_count = 1,
        .outputs = {total},
        .output_count = 1,
        .attributes = {.group = OP_GROUP_REPLICAS, .training = is_forward}};

    for (int i = norm.input_count; i <= NORM_TOTAL; i++)
        program->ops[at].inputs[i] = PROGRAM_NONE;
    program->ops[at].inputs[is_forward ? NORM_TOTAL : GRAD_TOTAL] = total;
    if (!is_forward)
        program->ops[at].inputs[GRAD_OWN] = own;
    program->ops[at].input_count = NORM_TOTAL + 1;
    (void)program_insert_op(program, at, &exchange);
    (void)program_insert_op(program, at, &sums);
}

int sync_batch_norm_apply(struct program *program, const struct pass_context *context,
                          struct fleet_error *err)
{
    (void)context;
    (void)err;
    for (int i = program->op_count - 1; i >= 0; i--)
        if (program->ops[i].kind == OP_BATCH_NORM || program->ops[i].kind == OP_BATCH_NORM_GRAD)
            share(program, i);
    return 0;
}
