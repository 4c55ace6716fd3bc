/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two ways to take a cast out. A cast to fp32, if all readers of its result load any type: they
 * read the input of the cast. A cast from fp32, if it alone reads its input and the writer of
 * that stores any type: the writer writes the result of the cast.
 */
#include "libfleet/program/passes/fuse_casts.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/amp.h"
#include "libfleet/program/program.h"

/* The readers of a variable: a list through `uses`. */
struct use {
    int op, input;
    int next; /* -1: the last */
};

struct graph {
    struct program *program;
    struct use *uses;
    int *first_use;       /* [vars] -1: none */
    int *writes, *writer; /* [vars] how many operators write it, the last of them */
    bool *removed;        /* [ops] */
};

static void graph_init(struct graph *g, struct program *program)
{
    size_t vars = (size_t)program->var_count + 1, ops = (size_t)program->op_count + 1;
    int count = 0;

    *g = (struct graph){.program = program,
                        .uses = calloc(ops * OP_INPUTS_MAX, sizeof(*g->uses)),
                        .first_use = calloc(vars, sizeof(int)),
                        .writes = calloc(vars, sizeof(int)),
                        .writer = calloc(vars, sizeof(int)),
                        .removed = calloc(ops, sizeof(bool))};
    fleet_assert(g->uses && g->first_use && g->writes && g->writer && g->removed);
    for (int i = 0; i < program->var_count; i++)
        g->first_use[i] = -1;
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] != PROGRAM_NONE) {
                g->uses[count] = (struct use){i, j, g->first_use[op->inputs[j]]};
                g->first_use[op->inputs[j]] = count++;
            }
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE) {
                g->writes[op->outputs[j]]++;
                g->writer[op->outputs[j]] = i;
            }
    }
}

static void graph_release(struct graph *g)
{
    free(g->uses);
    free(g->first_use);
    free(g->writes);
    free(g->writer);
    free(g->removed);
}

/* The operator stores output 0 in any type. */
static bool stores_any(enum op_kind kind)
{
    return kind == OP_ADD || kind == OP_LAYER_NORM || kind == OP_LAYER_NORM_GRAD ||
           kind == OP_RMS_NORM || kind == OP_RMS_NORM_GRAD || kind == OP_EMBEDDING;
}

/* The operator loads input `input` in any type. */
static bool loads_any(enum op_kind kind, int input)
{
    switch (kind) {
    case OP_ADD:
        return input <= 1;
    case OP_LAYER_NORM:
    case OP_RMS_NORM:
        return input == 0;
    case OP_LAYER_NORM_GRAD:
    case OP_RMS_NORM_GRAD:
        return input <= 1;
    default:
        return false;
    }
}

/* x, fp32, is read by this cast alone: let its producer write the narrow y. */
static bool fuse_into_producer(struct graph *g, int at)
{
    const struct program_op *cast = &g->program->ops[at];
    int x = cast->inputs[0], y = cast->outputs[0];
    struct program_op *producer = &g->program->ops[g->writer[x]];

    if (g->program->vars[x].role != PROGRAM_ROLE_ACTIVATION || g->writes[x] != 1 ||
        g->writes[y] != 1 || g->uses[g->first_use[x]].next >= 0 || !stores_any(producer->kind) ||
        producer->outputs[0] != x || producer->backward != cast->backward)
        return false;
    producer->outputs[0] = y;
    g->writer[y] = g->writer[x];
    return true;
}

/* y, fp32, is read by operators that take the narrow x as well. */
static bool fuse_into_readers(struct graph *g, int at)
{
    const struct program_op *cast = &g->program->ops[at];
    int x = cast->inputs[0], y = cast->outputs[0];

    if (g->writes[x] != 1 || g->writes[y] != 1 ||
        g->program->vars[y].role != PROGRAM_ROLE_ACTIVATION)
        return false;
    for (int use = g->first_use[y]; use >= 0; use = g->uses[use].next)
        if (!loads_any(g->program->ops[g->uses[use].op].kind, g->uses[use].input))
            return false;
    for (int use = g->first_use[y]; use >= 0; use = g->uses[use].next)
        g->program->ops[g->uses[use].op].inputs[g->uses[use].input] = x;
    return true;
}

bool fuse_casts_wanted(const struct pass_context *context)
{
    return amp_wanted(context);
}

int fuse_casts_apply(struct program *program, const struct pass_context *context,
                     struct fleet_error *err)
{
    struct graph g;
    int kept = 0;

    (void)context;
    (void)err;
    graph_init(&g, program);
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->kind != OP_CAST || op->section != PROGRAM_SECTION_MICRO_BATCH)
            continue;
        g.removed[i] = program->vars[op->inputs[0]].type == PROGRAM_FP32 ? fuse_into_producer(&g, i)
                                                                         : fuse_into_readers(&g, i);
    }
    for (int i = 0; i < program->op_count; i++)
        if (!g.removed[i])
            program->ops[kept++] = program->ops[i];
    program->op_count = kept;
    graph_release(&g);
    return 0;
}
