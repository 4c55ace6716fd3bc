/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/divided_rows.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/passes/tensor_names.h"

#define CHAIN_MAX 4 /* a gather, a new shape, casts */

bool divided_rows_wanted(const struct pass_context *context)
{
    return context->cell.model_ranks > 1 && context->cell.divides_rows;
}

/* Index of the forward operator that writes `var`, which operator `reader` reads; PROGRAM_NONE. It
 * is near: programs are long, and a search divides many. */
static int find_writer(const struct program *program, int var, int reader)
{
    for (int i = reader - 1; i >= 0; i--)
        for (int j = 0; j < program->ops[i].output_count; j++)
            if (program->ops[i].outputs[j] == var)
                return i;
    return PROGRAM_NONE;
}

/* The gather of the loss has sums of logits, which no operator divides; one that is alike has
 * columns. */
static bool joins_rows(const struct program *program, int at)
{
    const struct program_op *op = &program->ops[at];
    int writer;

    if (op->kind != OP_ALL_GATHER || op->attributes.group != OP_GROUP_MODEL || op->attributes.alike)
        return false;
    writer = find_writer(program, op->inputs[0], at);
    return writer == PROGRAM_NONE || program->ops[writer].kind != OP_CROSS_ENTROPY_SUMS;
}

bool divided_rows_joined(const struct program *program, int var, int reader)
{
    int at = find_writer(program, var, reader);

    while (at != PROGRAM_NONE &&
           (program->ops[at].kind == OP_RESHAPE || program->ops[at].kind == OP_CAST))
        at = find_writer(program, program->ops[at].inputs[0], at);
    return at != PROGRAM_NONE && joins_rows(program, at);
}

/* ---- gradients of rows ----------------------------------------------------------------------- */

/* A transpose makes columns the first dimension (builder.h). */
static bool has_columns(const struct program *program, int at)
{
    int writer = find_writer(program, program->ops[at].inputs[0], at);

    while (writer != PROGRAM_NONE && program->ops[writer].kind == OP_CAST)
        writer = find_writer(program, program->ops[writer].inputs[0], writer);
    return writer != PROGRAM_NONE && program->ops[writer].kind == OP_TRANSPOSE;
}

/* Which variables of the forward part are this rank's rows. The list is the caller's. */
static bool *find_rows(const struct program *program, unsigned int group)
{
    bool *is_rows = calloc((size_t)program->var_count + 1, sizeof(*is_rows));

    fleet_assert(is_rows);
    for (int i = 0; i < program->op_count && !program->ops[i].backward; i++) {
        const struct program_op *op = &program->ops[i];
        bool is_of_group = op->attributes.group == group;
        bool divides = is_of_group && (op->kind == OP_REDUCE_SCATTER ||
                                       (op->kind == OP_OWN_ROWS && !has_columns(program, i)));
        bool joins = is_of_group && op->kind == OP_ALL_GATHER;

        for (int j = 0; j < op->input_count; j++)
            divides |= op->inputs[j] != PROGRAM_NONE && is_rows[op->inputs[j]];
        for (int j = 0; j < op->output_count && !joins; j++)
            if (op->outputs[j] != PROGRAM_NONE)
                is_rows[op->outputs[j]] = divides;
    }
    return is_rows;
}

static bool reads_rows(const struct program_op *op, const bool *is_rows)
{
    for (int j = 0; j < op->input_count; j++)
        if (op->inputs[j] != PROGRAM_NONE && is_rows[op->inputs[j]])
            return true;
    return false;
}

/* The sum of output `output` of operator `at` goes into the list. */
static int add_sum(struct program *program, int at, int output, unsigned int group,
                   struct program_insertions *list, struct fleet_error *err)
{
    int gradient = program->ops[at].outputs[output];
    struct program_op all_reduce = {.kind = OP_ALL_REDUCE,
                                    .section = PROGRAM_SECTION_MICRO_BATCH,
                                    .backward = true,
                                    .layer = program->ops[at].layer,
                                    .source = program->ops[at].source,
                                    .inputs = {gradient},
                                    .input_count = 1,
                                    .outputs = {gradient},
                                    .output_count = 1,
                                    .attributes = {.group = group}};

    program_insertions_add(list, at + 1, &all_reduce);
    return op_infer(program, &all_reduce, err);
}

int divided_rows_sum_gradient(struct program *program, int at, int output, unsigned int group,
                              struct fleet_error *err)
{
    struct program_insertions list = {0};
    int rc = add_sum(program, at, output, group, &list, err);

    program_insert_ops(program, &list);
    return rc;
}

int divided_rows_sum(struct program *program, unsigned int group, struct fleet_error *err)
{
    FLEET_AUTO_FREE bool *is_rows = find_rows(program, group);
    struct program_insertions list = {0};
    int rc = 0;

    for (int i = tensor_names_forward(program); i < program->op_count && rc == 0; i++) {
        int source = program->ops[i].source;

        if (program->ops[i].section != PROGRAM_SECTION_MICRO_BATCH || source == PROGRAM_NONE ||
            program->ops[i].kind == OP_ALL_REDUCE || !reads_rows(&program->ops[source], is_rows))
            continue;
        for (int j = program->ops[i].output_count - 1; j >= 0 && rc == 0; j--) {
            int var = program->ops[i].outputs[j];
            if (var != PROGRAM_NONE && program->vars[var].role == PROGRAM_ROLE_GRADIENT)
                rc = add_sum(program, i, j, group, &list, err);
        }
    }
    program_insert_ops(program, &list);
    return rc;
}

/* ---- rows again ------------------------------------------------------------------------------ */

/* A gather and what only gives its rows another shape or type, in order. */
struct chain {
    int ops[CHAIN_MAX], count;
};

static bool has_output(const struct program *program, const struct chain *chain, int var)
{
    for (int i = 0; i < chain->count; i++)
        if (program->ops[chain->ops[i]].outputs[0] == var)
            return true;
    return false;
}

static struct chain find_chain(const struct program *program, int gather)
{
    struct chain chain = {.ops = {gather}, .count = 1};

    for (int i = gather + 1; i < program->op_count && !program->ops[i].backward; i++)
        if ((program->ops[i].kind == OP_RESHAPE || program->ops[i].kind == OP_CAST) &&
            has_output(program, &chain, program->ops[i].inputs[0])) {
            fleet_assert(chain.count < CHAIN_MAX);
            chain.ops[chain.count++] = i;
        }
    return chain;
}

/* First backward operator that reads what the chain gives, or PROGRAM_NONE. */
static int find_reader(const struct program *program, const struct chain *chain)
{
    for (int i = tensor_names_forward(program); i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].input_count; j++)
            if (has_output(program, chain, program->ops[i].inputs[j]))
                return i;
    return PROGRAM_NONE;
}

static void replace_reads(struct program *program, int from, int var, int copy)
{
    for (int i = from; i < program->op_count; i++)
        for (int j = 0; j < program->ops[i].input_count; j++)
            if (program->ops[i].inputs[j] == var)
                program->ops[i].inputs[j] = copy;
}

/* Copies of the chain in front of operator `at`; from there on all read the copies. */
static void repeat(struct program *program, const struct chain *chain, int at)
{
    int source = program->ops[at].source;

    for (int i = 0; i < chain->count; i++) {
        struct program_op op = program->ops[chain->ops[i]];

        op.backward = true;
        op.source = source;
        op.outputs[0] = program_add_like(program, op.outputs[0], ".again", PROGRAM_ROLE_ACTIVATION);
        (void)program_insert_op(program, at + i, &op);
    }
    for (int i = 0; i < chain->count; i++)
        replace_reads(program, at, program->ops[chain->ops[i]].outputs[0],
                      program->ops[at + i].outputs[0]);
}

/* The operators inserted here lie behind the forward part, whose indices therefore stay. */
static void join_again(struct program *program)
{
    int forward = tensor_names_forward(program);

    for (int i = 0; i < forward; i++) {
        struct chain chain;
        int reader;

        if (program->ops[i].layer < 0 || !joins_rows(program, i))
            continue;
        chain = find_chain(program, i);
        reader = find_reader(program, &chain);
        if (reader != PROGRAM_NONE)
            repeat(program, &chain, reader);
    }
}

int divided_rows_apply(struct program *program, struct fleet_error *err)
{
    int rc = divided_rows_sum(program, OP_GROUP_MODEL, err);

    if (rc == 0)
        join_again(program);
    return rc;
}
