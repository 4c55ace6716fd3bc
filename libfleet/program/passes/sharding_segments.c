/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sharding_segments.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/program.h"

/* A gather has at most one element of this many that its segment does not need. */
#define SPARE_SHARE 16

/* The parameters that one segment needs; operators [first, next segment's first). */
struct segment {
    int first;
    double bytes;
    bool *needs; /* [params] */
};

struct cutter {
    struct program *program;
    double limit;
    int *params; /* [param_count] variables, in the order of the flat space */
    int *number; /* [vars] its place in `params`, or -1 */
    int param_count;
    int end, forward_end; /* operators of the micro-batch section, and of its forward part */
    struct segment *segments;
    int count, forward_count; /* those before `forward_count` begin in the forward part */
};

/* ---- the program ----------------------------------------------------------------------------- */

static void list_params(struct cutter *c)
{
    const struct program *program = c->program;

    c->params = calloc((size_t)program->var_count + 1, sizeof(*c->params));
    c->number = calloc((size_t)program->var_count + 1, sizeof(*c->number));
    fleet_assert(c->params && c->number);
    for (int v = 0; v < program->var_count; v++) {
        c->number[v] = -1;
        if (program->vars[v].role != PROGRAM_ROLE_PARAMETER)
            continue;
        c->number[v] = c->param_count;
        c->params[c->param_count++] = v;
    }
}

static void find_ends(struct cutter *c)
{
    const struct program *program = c->program;

    c->end = c->forward_end = 0;
    while (c->end < program->op_count &&
           program->ops[c->end].section == PROGRAM_SECTION_MICRO_BATCH)
        c->end++;
    while (c->forward_end < c->end && !program->ops[c->forward_end].backward)
        c->forward_end++;
}

/* Elements of the flat space from the start of parameter number `at` to that of the next. */
static int64_t elements_of(const struct cutter *c, int at)
{
    const struct program *program = c->program;
    int64_t next = at + 1 < c->param_count ? program->vars[c->params[at + 1]].flat_offset
                                           : program->flat_count;

    return next - program->vars[c->params[at]].flat_offset;
}

/* ---- segments -------------------------------------------------------------------------------- */

static struct segment *add_segment(struct cutter *c, int first)
{
    struct segment *segment;

    c->segments = realloc(c->segments, ((size_t)c->count + 1) * sizeof(*c->segments));
    fleet_assert(c->segments != NULL);
    segment = &c->segments[c->count++];
    *segment = (struct segment){
        .first = first, .needs = calloc((size_t)c->param_count + 1, sizeof(*segment->needs))};
    fleet_assert(segment->needs != NULL);
    return segment;
}

/* Bytes that the segment would need more for operator `op`. */
static double missing(const struct cutter *c, const struct segment *segment, int op)
{
    const struct program_op *of = &c->program->ops[op];
    double bytes = 0;

    for (int i = 0; i < of->input_count; i++) {
        int number = of->inputs[i] == PROGRAM_NONE ? -1 : c->number[of->inputs[i]];
        if (number >= 0 && !segment->needs[number])
            bytes += (double)elements_of(c, number) * sizeof(float);
    }
    return bytes;
}

/* The operator joins the newest segment, or begins a new one. */
static void take(struct cutter *c, int op)
{
    const struct program_op *of = &c->program->ops[op];
    struct segment *segment = &c->segments[c->count - 1];

    if (segment->bytes >= c->limit && missing(c, segment, op) > 0)
        segment = add_segment(c, op);
    segment->bytes += missing(c, segment, op);
    for (int i = 0; i < of->input_count; i++)
        if (of->inputs[i] != PROGRAM_NONE && c->number[of->inputs[i]] >= 0)
            segment->needs[c->number[of->inputs[i]]] = true;
}

/* From the end to the start, so the segments come in reverse. */
static void cut_forward(struct cutter *c)
{
    (void)add_segment(c, 0);
    for (int op = c->forward_end - 1; op >= 0; op--) {
        take(c, op);
        c->segments[c->count - 1].first = op;
    }
    for (int i = 0; i < c->count / 2; i++) {
        struct segment swapped = c->segments[i];
        c->segments[i] = c->segments[c->count - 1 - i];
        c->segments[c->count - 1 - i] = swapped;
    }
    c->forward_count = c->count;
}

static void cut_backward(struct cutter *c)
{
    for (int op = c->forward_end; op < c->end; op++)
        take(c, op);
}

static void forget_segments(struct cutter *c)
{
    for (int i = 0; i < c->count; i++)
        free(c->segments[i].needs);
    free(c->segments);
    c->segments = NULL;
    c->count = 0;
}

/* ---- casts ----------------------------------------------------------------------------------- */

static bool reads(const struct program_op *op, int var)
{
    for (int i = 0; i < op->input_count; i++)
        if (op->inputs[i] == var)
            return true;
    return false;
}

/* The forward cast at `at` once more, in front of the first backward operator that reads it. */
static void cast_again(struct cutter *c, int at)
{
    struct program *program = c->program;
    struct program_op copy = program->ops[at];
    int old = copy.outputs[0], first = c->forward_end, again;

    while (first < c->end && !reads(&program->ops[first], old))
        first++;
    if (first == c->end)
        return;
    again = program_add_like(program, old, ".again", PROGRAM_ROLE_ACTIVATION);
    c->number = realloc(c->number, ((size_t)program->var_count + 1) * sizeof(*c->number));
    fleet_assert(c->number != NULL);
    c->number[again] = -1;
    for (int op = first; op < c->end; op++)
        for (int i = 0; i < program->ops[op].input_count; i++)
            if (program->ops[op].inputs[i] == old)
                program->ops[op].inputs[i] = again;
    copy.outputs[0] = again;
    copy.backward = true;
    copy.layer = program->ops[first].layer;
    (void)program_insert_op(program, first, &copy);
    c->end++;
}

/* What the last forward segment has casted stays: the backward part begins with it. */
static void cast_parameters_again(struct cutter *c)
{
    int last = c->segments[c->count - 1].first;

    for (int op = 0; op < last; op++)
        if (c->program->ops[op].kind == OP_CAST && c->number[c->program->ops[op].inputs[0]] >= 0)
            cast_again(c, op);
}

/* ---- gathers --------------------------------------------------------------------------------- */

/* The segment needs it, and the one before has not got it. */
static bool is_wanted(const struct cutter *c, int segment, int number)
{
    return c->segments[segment].needs[number] &&
           !(segment > 0 && c->segments[segment - 1].needs[number]);
}

/* Where the gathers of a segment stand: where the segment before it begins. */
static int place_of(const struct cutter *c, int segment)
{
    int at = segment > 0 ? c->segments[segment - 1].first : 0;

    return segment >= c->forward_count && at < c->forward_end ? c->forward_end : at;
}

/* The range that begins with parameter `number`; returns the parameter behind it. */
static int find_range(const struct cutter *c, int segment, int number, int64_t *out_count)
{
    int64_t spare = 0, count = 0;
    int end = number;

    for (int i = number; i < c->param_count; i++) {
        if (!is_wanted(c, segment, i)) {
            spare += elements_of(c, i);
            continue;
        }
        if (spare * SPARE_SHARE > count)
            break;
        count += spare + elements_of(c, i);
        spare = 0;
        end = i + 1;
    }
    *out_count = count;
    return end;
}

/* Append the gathers of a segment to `ops`. */
static int list_gathers(const struct cutter *c, int segment, struct program_op *ops)
{
    int count = 0, next;

    for (int i = 0; i < c->param_count; i = next) {
        int64_t elements;
        next = i + 1;
        if (!is_wanted(c, segment, i))
            continue;
        next = find_range(c, segment, i, &elements);
        ops[count++] = (struct program_op){
            .kind = OP_ALL_GATHER,
            .section = PROGRAM_SECTION_MICRO_BATCH,
            .backward = segment >= c->forward_count,
            .layer = -1,
            .attributes = {.group = OP_GROUP_SHARDING,
                           .space = OP_SPACE_PARAMETERS,
                           .flat_first = c->program->vars[c->params[i]].flat_offset,
                           .flat_count = elements,
                           .owned = true}};
    }
    return count;
}

static size_t count_needs(const struct cutter *c)
{
    size_t count = 0;

    for (int s = 0; s < c->count; s++)
        for (int i = 0; i < c->param_count; i++)
            count += c->segments[s].needs[i];
    return count;
}

static void insert_gathers(struct cutter *c)
{
    struct program *program = c->program;
    size_t room = (size_t)program->op_count + count_needs(c) + 1;
    struct program_op *ops = calloc(room, sizeof(*ops));
    int segment = 0, at = 0;

    fleet_assert(ops != NULL);
    for (int op = 0; op <= program->op_count; op++) {
        while (segment < c->count && place_of(c, segment) == op)
            at += list_gathers(c, segment++, ops + at);
        if (op < program->op_count)
            ops[at++] = program->ops[op];
    }
    fleet_assert(segment == c->count);
    free(program->ops);
    program->ops = ops;
    program->op_count = at;
    program->op_capacity = (int)room;
}

void sharding_segments_apply(struct program *program, double bytes)
{
    struct cutter c = {.program = program, .limit = bytes};

    list_params(&c);
    find_ends(&c);
    cut_forward(&c);
    cast_parameters_again(&c);
    cut_backward(&c);
    insert_gathers(&c);
    forget_segments(&c);
    free(c.params);
    free(c.number);
}
