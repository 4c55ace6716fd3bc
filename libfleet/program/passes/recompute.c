/* SPDX-License-Identifier: Apache-2.0 */

/*
 *   forward    |—— segment 0 ——|c0|—— segment 1 ——|c1|—— kept ——| loss
 *   backward   of the kept part, repeat segment 1, backward of it, repeat segment 0, backward of it
 *
 * Inside a segment everything is made again, except what is held: checkpoints, and tensors that
 * operators behind the segment read. Repeated tensors get the names x.subprog_k, k counted from the
 * last segment; backward operators then read those, so that the originals die in the forward part
 * and the memory plan reuses their places. The same kernels on the same operands give the same
 * bits; dropout masks are functions of their key. What a batch_norm hands to the host is not handed
 * over a second time.
 *
 * Chen et al., 1604.06174.
 */
#include "libfleet/program/passes/recompute.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/passes/offload.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/passes/tensor_names.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy.h"

struct segment {
    int first, end; /* forward operators [first, end) */
};

struct recompute {
    struct program *program;
    int forward_count;
    int *first_read, *last_write; /* [vars] forward operators; forward_count, -1: none */
    int *checkpoints;             /* ascending by last_write, each once */
    int checkpoint_count;
    struct segment *segments;
    int segment_count;
    bool *held; /* [vars] */
};

static void recompute_init(struct recompute *r, struct program *program)
{
    size_t vars = (size_t)program->var_count + 1;

    *r = (struct recompute){.program = program,
                            .first_read = calloc(vars, sizeof(int)),
                            .last_write = calloc(vars, sizeof(int)),
                            .held = calloc(vars, sizeof(bool))};
    fleet_assert(r->first_read && r->last_write && r->held);
    r->forward_count = tensor_names_forward(program);
    for (int i = 0; i < program->var_count; i++) {
        r->first_read[i] = r->forward_count;
        r->last_write[i] = -1;
    }
    for (int i = r->forward_count - 1; i >= 0; i--) {
        const struct program_op *op = &program->ops[i];
        for (int j = 0; j < op->input_count; j++)
            if (op->inputs[j] != PROGRAM_NONE)
                r->first_read[op->inputs[j]] = i;
        for (int j = 0; j < op->output_count; j++)
            if (op->outputs[j] != PROGRAM_NONE && r->last_write[op->outputs[j]] < 0)
                r->last_write[op->outputs[j]] = i;
    }
}

static void recompute_release(struct recompute *r)
{
    free(r->first_read);
    free(r->last_write);
    free(r->held);
    free(r->checkpoints);
    free(r->segments);
}

/* ---- segments -------------------------------------------------------------------------------- */

static bool is_checkpoint(const struct recompute *r, int var)
{
    for (int i = 0; i < r->checkpoint_count; i++)
        if (r->checkpoints[i] == var)
            return true;
    return false;
}

/* Rules 1 and 2: by producer, each once. Insertion sort; there are few. */
static void sort_checkpoints(struct recompute *r, const int *given, int count)
{
    r->checkpoints = calloc((size_t)count + 1, sizeof(int));
    fleet_assert(r->checkpoints);
    for (int i = 0; i < count; i++) {
        int at = r->checkpoint_count, key = r->last_write[given[i]];

        if (is_checkpoint(r, given[i]))
            continue;
        while (at > 0 && r->last_write[r->checkpoints[at - 1]] > key)
            at--;
        memmove(&r->checkpoints[at + 1], &r->checkpoints[at],
                (size_t)(r->checkpoint_count - at) * sizeof(int));
        r->checkpoints[at] = given[i];
        r->checkpoint_count++;
    }
}

static bool casts_parameter(const struct program *program, int at)
{
    const struct program_op *op = &program->ops[at];

    return op->kind == OP_CAST && program->vars[op->inputs[0]].role == PROGRAM_ROLE_PARAMETER;
}

/* Rule 4: from the first reader of a to the producer of b; no segment if they do not follow. */
static void add_between(struct recompute *r, int a, int b)
{
    int first = r->first_read[a], last = r->last_write[b];

    if (first >= last)
        return;
    while (first > 0 && casts_parameter(r->program, first - 1))
        first--;
    r->segments[r->segment_count++] = (struct segment){first, last + 1};
}

/* A segment ends where the next chunk of a pipeline's stage begins. */
static void split_at_chunks(struct recompute *r)
{
    const struct program_op *ops = r->program->ops;

    for (int i = 0; i < r->segment_count; i++)
        for (int at = r->segments[i].first + 1; at < r->segments[i].end; at++) {
            if (ops[at].chunk == ops[at - 1].chunk)
                continue;
            memmove(&r->segments[i + 1], &r->segments[i],
                    (size_t)(r->segment_count - i) * sizeof(*r->segments));
            r->segments[i].end = r->segments[i + 1].first = at;
            r->segment_count++;
            break;
        }
}

static void find_segments(struct recompute *r)
{
    int count = r->checkpoint_count;

    r->segments = calloc((size_t)count + 1 + (size_t)r->forward_count, sizeof(*r->segments));
    fleet_assert(r->segments);
    if (count == 1 && r->last_write[r->checkpoints[0]] > 0) /* rule 3 */
        r->segments[r->segment_count++] = (struct segment){0, r->last_write[r->checkpoints[0]] + 1};
    for (int i = 0; i + 1 < count; i++)
        add_between(r, r->checkpoints[i], r->checkpoints[i + 1]);
    if (r->segment_count && r->segments[0].first > 0) { /* rule 5 */
        memmove(&r->segments[1], &r->segments[0], (size_t)r->segment_count * sizeof(*r->segments));
        r->segments[0] = (struct segment){0, r->segments[1].first};
        r->segment_count++;
    }
    split_at_chunks(r);
}

/* Number of the segment that operator `at` lies in, -1 for none. */
static int segment_of(const struct recompute *r, int at)
{
    for (int i = 0; i < r->segment_count; i++)
        if (at >= r->segments[i].first && at < r->segments[i].end)
            return i;
    return -1;
}

/* Everything but what a segment makes for itself alone. */
static void find_held(struct recompute *r)
{
    const struct program *p = r->program;

    for (int i = 0; i < p->var_count; i++)
        r->held[i] = r->last_write[i] < 0 || segment_of(r, r->last_write[i]) < 0 ||
                     p->vars[i].role != PROGRAM_ROLE_ACTIVATION;
    for (int i = 0; i < r->checkpoint_count; i++)
        r->held[r->checkpoints[i]] = true;
    for (int i = 0; i < r->forward_count; i++) {
        if (p->ops[i].kind == OP_RECEIVE)
            r->held[p->ops[i].outputs[0]] = true;
        for (int j = 0; j < p->ops[i].input_count; j++) {
            int var = p->ops[i].inputs[j];
            if (var != PROGRAM_NONE && segment_of(r, i) != segment_of(r, r->last_write[var]))
                r->held[var] = true;
        }
    }
}

/* ---- repeating ------------------------------------------------------------------------------- */

static bool all_held(const struct recompute *r, const struct program_op *op)
{
    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] != PROGRAM_NONE && !r->held[op->outputs[i]])
            return false;
    return true;
}

static int add_copy(struct program *p, int var, int number)
{
    char suffix[32];

    (void)snprintf(suffix, sizeof(suffix), ".subprog_%d", number);
    return program_add_like(p, var, suffix, PROGRAM_ROLE_ACTIVATION);
}

/* Insert copies of the segment's operators at `at`; copies[var] = what stands for var from here on.
 * Returns their number. */
static int repeat(struct recompute *r, const struct segment *segment, int number, int at,
                  int *copies)
{
    struct program_insertions list = {0};
    int inserted;

    for (int i = segment->first; i < segment->end; i++) {
        struct program_op op = r->program->ops[i];

        if (all_held(r, &op))
            continue;
        for (int j = 0; j < op.input_count; j++)
            if (op.inputs[j] != PROGRAM_NONE && copies[op.inputs[j]] != PROGRAM_NONE)
                op.inputs[j] = copies[op.inputs[j]];
        for (int j = 0; j < op.output_count; j++) {
            int var = op.outputs[j], copy;
            if (var == PROGRAM_NONE)
                continue;
            if (r->program->vars[var].role != PROGRAM_ROLE_ACTIVATION) {
                op.outputs[j] = PROGRAM_NONE;
                continue;
            }
            copy = add_copy(r->program, var, number);
            op.outputs[j] = copy;
            if (!r->held[var])
                copies[var] = copy;
        }
        op.backward = true;
        op.source = PROGRAM_NONE;
        program_insertions_add(&list, at, &op);
    }
    inserted = list.count;
    program_insert_ops(r->program, &list);
    return inserted;
}

/* First backward operator of the segment's operators, or PROGRAM_NONE. */
static int backward_start(const struct recompute *r, const struct segment *segment)
{
    for (int i = r->forward_count; i < r->program->op_count; i++) {
        const struct program_op *op = &r->program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        if (op->backward && op->source >= segment->first && op->source < segment->end)
            return i;
    }
    return PROGRAM_NONE;
}

/* Returns the number of operators that are repeated. */
static int rewrite_segment(struct recompute *r, const struct segment *segment, int number)
{
    struct program *p = r->program;
    int vars = p->var_count, at = backward_start(r, segment), inserted;
    FLEET_AUTO_FREE int *copies = malloc(((size_t)vars + 1) * sizeof(int));

    fleet_assert(copies);
    if (at == PROGRAM_NONE)
        return 0;
    for (int i = 0; i < vars; i++)
        copies[i] = PROGRAM_NONE;
    inserted = repeat(r, segment, number, at, copies);
    for (int i = at + inserted; i < p->op_count; i++)
        for (int j = 0; j < p->ops[i].input_count; j++) {
            int var = p->ops[i].inputs[j];
            if (var != PROGRAM_NONE && var < vars && copies[var] != PROGRAM_NONE)
                p->ops[i].inputs[j] = copies[var];
        }
    return inserted;
}

static int rewrite(struct recompute *r, const int *checkpoints, int count)
{
    int repeated = 0;

    sort_checkpoints(r, checkpoints, count);
    find_segments(r);
    find_held(r);
    for (int i = 0; i < r->segment_count; i++)
        repeated += rewrite_segment(r, &r->segments[r->segment_count - 1 - i], i);
    return repeated;
}

static const char *why_nothing_moves(const struct recompute *r)
{
    return r->checkpoint_count == 0   ? "there is no checkpoint"
           : r->checkpoint_count == 1 ? "the last checkpoint is never moved, and there is only one"
                                      : "the backward part reads no checkpoint but the last";
}

static int offload(struct recompute *r, const struct pass_context *context, struct fleet_error *err)
{
    int moved = offload_apply(r->program, r->checkpoints, r->checkpoint_count,
                              &context->strategy->recompute_configs.checkpoint_shape, err);

    if (moved == 0)
        pass_idle(context, "recompute_configs.enable_offload", "%s", why_nothing_moves(r));
    return moved < 0 ? moved : 0;
}

/* ---- which checkpoints ----------------------------------------------------------------------- */

static int find_named(const struct recompute *r, const struct strategy_strings *names, int *out,
                      struct fleet_error *err)
{
    bool is_stage = r->program->whole_trained > 0;
    int count = 0;

    for (size_t i = 0; i < names->count; i++) {
        bool is_here = tensor_names_has(r->program, names->items[i]);

        if (!is_here && !is_stage)
            return tensor_names_check(r->program, names, "recompute_configs.checkpoints", err);
        if (is_here)
            out[count++] = program_find_var(r->program, names->items[i]);
    }
    return count;
}

int recompute_check(const struct program *program, const struct pass_context *context,
                    struct fleet_error *err)
{
    return recompute_wanted(context)
               ? tensor_names_check(program, &context->strategy->recompute_configs.checkpoints,
                                    "recompute_configs.checkpoints", err)
               : 0;
}

/* Blocks fall into about √blocks segments; what follows the last checkpoint is kept. */
static int choose(const struct recompute *r, int *out)
{
    int blocks = tensor_names_blocks(r->program), segments, count = 0;

    segments = (int)lround(sqrt((double)blocks));
    if (segments < 2)
        segments = 2;
    for (int i = 1; i < segments && blocks > 1; i++) {
        int var = tensor_names_block_output(r->program, (blocks * i + segments - 1) / segments - 1);
        if (var != PROGRAM_NONE)
            out[count++] = var;
    }
    return count;
}

/* Which they are, for the plan. */
static void report_choice(const struct recompute *r, const int *chosen, int count,
                          const struct pass_context *context)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf names = {0};

    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(&names, "%s%s", i > 0 ? ", " : "", r->program->vars[chosen[i]].name);
    if (context->notes && count > 0)
        select_renote(context->notes, "recompute",
                      "checkpoints chosen: %s (about √layers segments)", names.text);
}

bool recompute_wanted(const struct pass_context *context)
{
    return context->strategy->recompute;
}

int recompute_apply(struct program *program, const struct pass_context *context,
                    struct fleet_error *err)
{
    const struct strategy *s = context->strategy;
    FLEET_AUTO_FREE int *found = calloc(
        (size_t)program->var_count + s->recompute_configs.checkpoints.count + 1, sizeof(*found));
    struct recompute r;
    int rc = 0, count;

    fleet_assert(found);
    recompute_init(&r, program);
    count = s->recompute_configs.checkpoints.count
                ? find_named(&r, &s->recompute_configs.checkpoints, found, err)
                : choose(&r, found);
    if (s->recompute_configs.checkpoints.count == 0)
        report_choice(&r, found, count, context);
    if (count < 0) {
        rc = count;
    } else {
        if (rewrite(&r, found, count) == 0)
            pass_idle(context, "recompute", "%s",
                      count == 0 ? "a model of less than two layers has no place for a checkpoint"
                                 : "nothing lies between these checkpoints");
        if (s->recompute_configs.enable_offload)
            rc = offload(&r, context, err);
    }
    recompute_release(&r);
    return rc;
}
