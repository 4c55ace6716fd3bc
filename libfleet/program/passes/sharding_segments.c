/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sharding_segments.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/tensor_names.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/strategy.h"

#define MEBI 1048576.0

/* A gather has at most one element of this many that its segment does not need. */
#define SPARE_SHARE 16

/* Operators [first, end) that run without a break: the forward or the backward part of a
 * micro-batch; of a stage of a pipeline also the weights' part, each for a chunk. */
struct part {
    int first, end;
    bool goes_on; /* its first segment is the last one of the part before it */
};

/* The parameters that one segment needs; operators [first, next segment's first). */
struct segment {
    int part; /* in which it begins */
    int first;
    double bytes;
    bool *needs; /* [params] */
};

struct cutter {
    struct program *program;
    double limit;
    const struct strategy_strings *anchors; /* NULL: segments end by size */
    bool *ends_behind;                      /* [ops] an anchor is made there; NULL as above */
    enum op_wire wire;
    int *params; /* [param_count] variables, in the order of the flat space */
    int *number; /* [vars] its place in `params`, or -1 */
    int param_count;
    struct part *parts; /* [part_count] of the micro-batch section */
    int part_count;
    struct segment *segments;
    int count;
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

static bool are_of_one_part(const struct program_op *a, const struct program_op *b)
{
    return a->backward == b->backward && a->weights == b->weights && a->chunk == b->chunk;
}

static bool is_stage(const struct cutter *c)
{
    return c->program->whole_trained > 0;
}

/* A stage of a pipeline runs other micro-batches between two parts, so no segment goes on. */
static void list_parts(struct cutter *c)
{
    const struct program *program = c->program;
    const struct program_op *ops = program->ops;

    c->parts = calloc((size_t)program->op_count + 1, sizeof(*c->parts));
    fleet_assert(c->parts);
    for (int i = 0; i < program->op_count && ops[i].section == PROGRAM_SECTION_MICRO_BATCH; i++) {
        if (i == 0 || !are_of_one_part(&ops[i - 1], &ops[i]))
            c->parts[c->part_count++] = (struct part){.first = i, .goes_on = i > 0 && !is_stage(c)};
        c->parts[c->part_count - 1].end = i + 1;
    }
    fleet_assert(c->part_count > 0);
}

static int end_of(const struct cutter *c)
{
    return c->parts[c->part_count - 1].end;
}

static bool is_forward(const struct cutter *c, int part)
{
    return !c->program->ops[c->parts[part].first].backward;
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

static struct segment *add_segment(struct cutter *c, int part, int first)
{
    struct segment *segment;

    c->segments = realloc(c->segments, ((size_t)c->count + 1) * sizeof(*c->segments));
    fleet_assert(c->segments != NULL);
    segment = &c->segments[c->count++];
    *segment =
        (struct segment){.part = part,
                         .first = first,
                         .needs = calloc((size_t)c->param_count + 1, sizeof(*segment->needs))};
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

/* A segment ends between its newest operator and `op`, which is the next one forwards, or
 * backwards. */
static bool ends_here(const struct cutter *c, const struct part *part, int op, bool backwards)
{
    const struct segment *segment = &c->segments[c->count - 1];

    if (c->ends_behind && backwards)
        return op + 1 < part->end && c->ends_behind[op];
    if (c->ends_behind)
        return (op > part->first || part->goes_on) && c->ends_behind[op - 1];
    return segment->bytes >= c->limit && missing(c, segment, op) > 0;
}

/* The operator joins the newest segment, or begins a new one. */
static void take(struct cutter *c, int part, int op, bool backwards)
{
    const struct program_op *of = &c->program->ops[op];
    struct segment *segment = &c->segments[c->count - 1];

    if (ends_here(c, &c->parts[part], op, backwards))
        segment = add_segment(c, part, op);
    segment->bytes += missing(c, segment, op);
    for (int i = 0; i < of->input_count; i++)
        if (of->inputs[i] != PROGRAM_NONE && c->number[of->inputs[i]] >= 0)
            segment->needs[c->number[of->inputs[i]]] = true;
}

/* From the end to the start, so the segments come in reverse. */
static void cut_forward(struct cutter *c, int part)
{
    int before = c->count;

    (void)add_segment(c, part, c->parts[part].first);
    for (int op = c->parts[part].end - 1; op >= c->parts[part].first; op--) {
        take(c, part, op, true);
        c->segments[c->count - 1].first = op;
    }
    for (int i = before, j = c->count - 1; i < j; i++, j--) {
        struct segment swapped = c->segments[i];
        c->segments[i] = c->segments[j];
        c->segments[j] = swapped;
    }
}

static void cut_backward(struct cutter *c, int part)
{
    if (!c->parts[part].goes_on)
        (void)add_segment(c, part, c->parts[part].first);
    for (int op = c->parts[part].first; op < c->parts[part].end; op++)
        take(c, part, op, false);
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

static void shift_parts(struct cutter *c, int part)
{
    c->parts[part].end++;
    for (int p = part + 1; p < c->part_count; p++) {
        c->parts[p].first++;
        c->parts[p].end++;
    }
}

/* The forward cast at `at` once more, in front of the first operator of a later part that reads
 * it. */
static void cast_again(struct cutter *c, int at, int part)
{
    struct program *program = c->program;
    struct program_op copy = program->ops[at];
    int old = copy.outputs[0], first = c->parts[part].first, again;

    while (first < c->parts[part].end && !reads(&program->ops[first], old))
        first++;
    if (first == c->parts[part].end)
        return;
    again = program_add_like(program, old,
                             program->ops[first].weights ? ".again_for_weights" : ".again",
                             PROGRAM_ROLE_ACTIVATION);
    c->number = realloc(c->number, ((size_t)program->var_count + 1) * sizeof(*c->number));
    fleet_assert(c->number != NULL);
    c->number[again] = -1;
    for (int op = first; op < c->parts[part].end; op++)
        for (int i = 0; i < program->ops[op].input_count; i++)
            if (program->ops[op].inputs[i] == old)
                program->ops[op].inputs[i] = again;
    copy.outputs[0] = again;
    copy.backward = program->ops[first].backward;
    copy.weights = program->ops[first].weights;
    copy.chunk = program->ops[first].chunk;
    copy.layer = program->ops[first].layer;
    (void)program_insert_op(program, first, &copy);
    shift_parts(c, part);
}

/* In the backward parts, what forward operators before `end` have casted. */
static void cast_parameters_again(struct cutter *c, int end)
{
    int backward = 0;

    while (backward < c->part_count && is_forward(c, backward))
        backward++;
    for (int op = 0; op < end; op++)
        for (int part = backward; part < c->part_count; part++)
            if (c->program->ops[op].kind == OP_CAST &&
                c->number[c->program->ops[op].inputs[0]] >= 0)
                cast_again(c, op, part);
}

/* ---- gathers --------------------------------------------------------------------------------- */

/* The segment that runs right before this one; NULL: none does, or other micro-batches may run in
 * between. */
static const struct segment *before(const struct cutter *c, int segment)
{
    const struct segment *last = segment > 0 ? &c->segments[segment - 1] : NULL;
    int part = c->segments[segment].part;

    return last && (last->part == part || c->parts[part].goes_on) ? last : NULL;
}

/* The segment needs it, and the one before has not got it. */
static bool is_wanted(const struct cutter *c, int segment, int number)
{
    const struct segment *last = before(c, segment);

    return c->segments[segment].needs[number] && !(last && last->needs[number]);
}

/* Where the gathers of a segment stand: where the segment before it begins, in its own part. */
static int place_of(const struct cutter *c, int segment)
{
    const struct segment *last = before(c, segment);
    int first = c->parts[c->segments[segment].part].first;

    return last && last->first > first ? last->first : first;
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
    const struct program_op *of = &c->program->ops[c->parts[c->segments[segment].part].first];
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
            .backward = of->backward,
            .weights = of->weights,
            .chunk = of->chunk,
            .layer = -1,
            .attributes = {.group = OP_GROUP_SHARDING,
                           .space = OP_SPACE_PARAMETERS,
                           .flat_first = c->program->vars[c->params[i]].flat_offset,
                           .flat_count = elements,
                           .wire = c->wire,
                           .owned = true}};
    }
    return count;
}

/* The 16-bit type of the casts of parameters; amp has one for the whole program. */
static enum op_wire find_wire(const struct cutter *c)
{
    for (int i = 0; i < end_of(c); i++) {
        const struct program_op *op = &c->program->ops[i];
        if (op->kind == OP_CAST && op->attributes.stream == 0 && c->number[op->inputs[0]] >= 0)
            return c->program->vars[op->outputs[0]].type == PROGRAM_BF16 ? OP_WIRE_BF16
                                                                         : OP_WIRE_FP16;
    }
    return OP_WIRE_OWN;
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

/* ---- anchors --------------------------------------------------------------------------------- */

/* Behind the last operator that writes the variable, if there is one. */
static void end_behind(struct cutter *c, int var)
{
    for (int op = end_of(c) - 1; var != PROGRAM_NONE && op >= 0; op--)
        for (int o = 0; o < c->program->ops[op].output_count; o++)
            if (c->program->ops[op].outputs[o] == var) {
                c->ends_behind[op] = true;
                return;
            }
}

/* For the operators as they are now. */
static void find_anchors(struct cutter *c)
{
    if (!c->anchors)
        return;
    free(c->ends_behind);
    c->ends_behind = calloc((size_t)c->program->op_count + 1, sizeof(*c->ends_behind));
    fleet_assert(c->ends_behind);
    for (size_t i = 0; i < c->anchors->count; i++) {
        char gradient[PROGRAM_NAME_MAX + 8];

        (void)snprintf(gradient, sizeof(gradient), "%s@GRAD", c->anchors->items[i]);
        end_behind(c, program_find_var(c->program, c->anchors->items[i]));
        end_behind(c, program_find_var(c->program, gradient));
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Casted parameters do not stay from one part to the next, but in the segment that goes on. */
static void cut(struct cutter *c)
{
    int part = 0;

    if (is_stage(c))
        cast_parameters_again(c, end_of(c));
    find_anchors(c);
    for (; part < c->part_count && is_forward(c, part); part++)
        cut_forward(c, part);
    if (!is_stage(c))
        cast_parameters_again(c, c->segments[c->count - 1].first);
    find_anchors(c);
    for (; part < c->part_count; part++)
        cut_backward(c, part);
}

int sharding_segments_apply(struct program *program, const struct strategy *strategy,
                            struct fleet_error *err)
{
    const struct strategy_sharding_config *sharding = &strategy->sharding_configs;
    bool by_anchors = choices_segments(strategy) == CHOICES_SEGMENTS_BY_ANCHORS;
    struct cutter c = {.program = program,
                       .limit = (double)sharding->fuse_broadcast_MB * MEBI,
                       .anchors = by_anchors ? &sharding->segment_anchors : NULL};
    int rc;

    if (by_anchors && !is_stage(&c) &&
        (rc = tensor_names_check(program, c.anchors, "sharding_configs.segment_anchors", err)) < 0)
        return rc;
    list_params(&c);
    list_parts(&c);
    c.wire = find_wire(&c);
    cut(&c);
    insert_gathers(&c);
    forget_segments(&c);
    free(c.parts);
    free(c.ends_behind);
    free(c.params);
    free(c.number);
    return 0;
}
