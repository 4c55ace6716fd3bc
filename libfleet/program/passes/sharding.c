/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/sharding.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/passes/sharding_ranges.h"
#include "libfleet/program/passes/sharding_segments.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/strategy.h"
#include "libfleet/training/training.h"

bool sharding_wanted(const struct pass_context *context)
{
    return context->strategy->sharding && !context->without_sharding;
}

static void add_segment(struct program *program, int64_t first, int64_t end)
{
    (void)program_add_op(program, &(struct program_op){.kind = OP_ALL_GATHER,
                                                       .section = PROGRAM_SECTION_UPDATE,
                                                       .layer = -1,
                                                       .attributes = {.group = OP_GROUP_SHARDING,
                                                                      .space = OP_SPACE_PARAMETERS,
                                                                      .flat_first = first,
                                                                      .flat_count = end - first,
                                                                      .owned = true}});
}

/* Segments of whole parameters. */
static int share_parameters(struct program *program, const struct strategy *strategy,
                            struct fleet_error *err)
{
    struct sharding_ranges segments;
    int64_t first = 0;
    int rc = sharding_ranges_cut(program, strategy, &segments, err);

    for (int i = 0; rc == 0 && i < segments.count; i++) {
        add_segment(program, first, segments.ends[i]);
        first = segments.ends[i];
    }
    if (rc == 0)
        sharding_ranges_release(&segments);
    return rc;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static bool is_gradient_in(const struct program *program, int var,
                           const struct op_attributes *range)
{
    const struct program_var *of = var == PROGRAM_NONE ? NULL : &program->vars[var];

    return of && of->role == PROGRAM_ROLE_GRADIENT && of->flat_offset >= range->flat_first &&
           of->flat_offset < range->flat_first + range->flat_count;
}

/* A sum on its way into the micro-batch. */
struct moved_sum {
    struct program_op op;
    int place; /* behind the last operator of the micro-batch that writes a gradient of its range */
    int number;
};

/* Take the sums out of the EXCHANGE section. Returns how many there are. */
static int take_sums(struct program *program, struct moved_sum *sums)
{
    int count = 0, kept = 0;

    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->kind == OP_TREE_SUM && op->section == PROGRAM_SECTION_EXCHANGE) {
            sums[count] = (struct moved_sum){.op = *op, .number = count};
            sums[count].op.section = PROGRAM_SECTION_MICRO_BATCH;
            sums[count].op.backward = sums[count].op.attributes.owned = true;
            count++;
        } else {
            program->ops[kept++] = *op;
        }
    }
    program->op_count = kept;
    return count;
}

static void find_places(const struct program *program, struct moved_sum *sums, int count)
{
    for (int i = 0; i < program->op_count; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->section != PROGRAM_SECTION_MICRO_BATCH)
            break;
        for (int o = 0; o < op->output_count; o++)
            for (int s = 0; s < count; s++)
                if (is_gradient_in(program, op->outputs[o], &sums[s].op.attributes)) {
                    sums[s].place = i + 1;
                    sums[s].op.chunk = op->chunk; /* it runs in the same part of a stage */
                    sums[s].op.weights = op->weights;
                }
    }
}

/* By place; at one place the later bucket first. */
static int compare_places(const void *a, const void *b)
{
    const struct moved_sum *x = a, *y = b;

    return x->place != y->place ? x->place - y->place : y->number - x->number;
}

/* The sums of the EXCHANGE section, bucket by bucket, run in each micro-batch instead. */
static void sum_in_micro_batches(struct program *program)
{
    int room = program->op_count, count, next = 0, at = 0;
    struct moved_sum *sums = calloc((size_t)room + 1, sizeof(*sums));
    struct program_op *ops = calloc((size_t)room + 1, sizeof(*ops));

    fleet_assert(sums && ops);
    count = take_sums(program, sums);
    find_places(program, sums, count);
    qsort(sums, (size_t)count, sizeof(*sums), compare_places);
    fleet_assert(count == 0 || sums[0].place > 0);
    for (int i = 0; i <= program->op_count; i++) {
        while (next < count && sums[next].place == i)
            ops[at++] = sums[next++].op;
        if (i < program->op_count)
            ops[at++] = program->ops[i];
    }
    free(program->ops);
    free(sums);
    program->ops = ops;
    program->op_count = at;
    program->op_capacity = room + 1;
}

static int find_op(const struct program *program, enum op_kind kind)
{
    int at = 0;

    while (at < program->op_count && program->ops[at].kind != kind)
        at++;
    fleet_assert(at < program->op_count);
    return at;
}

static int add_squares(struct program *program, const char *name, int64_t bytes)
{
    return program_add_var(program, name, PROGRAM_UINT8, PROGRAM_ROLE_SCALAR, 1, &bytes);
}

/*
 * norms of all tensors from those that each rank holds. Squares travel as bytes of doubles. A rank
 * gives zeros for what it does not hold, and holders give equal bytes, so the greatest byte is the
 * value itself.
 */
static void join_norms(struct program *program)
{
    int at = find_op(program, OP_GRAD_NORM), norms = program->ops[at].outputs[0];
    int64_t bytes = (program_var_elements(&program->vars[norms]) - 1) * (int64_t)sizeof(double);
    int own = add_squares(program, "norms.of_shard", bytes);
    int all = add_squares(program, "norms.of_shards", bytes);
    struct program_op gather = {
        .kind = OP_ALL_REDUCE,
        .section = PROGRAM_SECTION_CHECK,
        .inputs = {own},
        .input_count = 1,
        .outputs = {all},
        .output_count = 1,
        .layer = -1,
        .attributes = {.group = OP_GROUP_REPLICAS, .reduction = OP_REDUCTION_MAX}};
    struct program_op join = {.kind = OP_JOIN_NORMS,
                              .section = PROGRAM_SECTION_CHECK,
                              .inputs = {all},
                              .input_count = 1,
                              .outputs = {norms},
                              .output_count = 1,
                              .layer = -1};

    program->ops[at].outputs[0] = own;
    program->ops[at].attributes.owned = true;
    (void)program_insert_op(program, at + 1, &gather);
    (void)program_insert_op(program, at + 2, &join);
    program->ops[find_op(program, OP_CHECK_FINITE)].attributes.owned = true;
}

/* The complete gradient of a parameter that two stages of a pipeline have: only ranks that hold it
 * send or receive it. */
static void pass_on_held(struct program *program)
{
    for (int i = 0; i < program->op_count; i++) {
        struct program_op *op = &program->ops[i];
        if (op->section == PROGRAM_SECTION_CHECK && (op->kind == OP_SEND || op->kind == OP_RECEIVE))
            op->attributes.owned = true;
    }
}

static void divide_gradients(struct program *program)
{
    struct program_op complete = {.kind = OP_TREE_SUM,
                                  .section = PROGRAM_SECTION_EXCHANGE,
                                  .layer = -1,
                                  .attributes = {.group = OP_GROUP_REPLICAS,
                                                 .space = OP_SPACE_GRADIENTS,
                                                 .flat_count = program->flat_count,
                                                 .owned = true}};
    int at = 0;

    sum_in_micro_batches(program);
    while (program->ops[at].section == PROGRAM_SECTION_MICRO_BATCH)
        at++;
    (void)program_insert_op(program, at, &complete);
    join_norms(program);
    pass_on_held(program);
}

/* Memory, not arithmetic: the same updates run over it. */
static void offload_states(struct program *program, const struct pass_context *context)
{
    const struct strategy_sharding_config *sharding = &context->strategy->sharding_configs;

    program->offloads_states = sharding->optimize_offload && program->state_count > 0;
    if (program->offloads_states && context->notes)
        select_renote(context->notes, "sharding_configs.optimize_offload",
                      "optimizer states lie in memory of the host, and updates read and write "
                      "them there; on the CPU that is the same memory, so it has no effect there");
}

/* ---- the whole ------------------------------------------------------------------------------- */

int sharding_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err)
{
    const struct strategy_sharding_config *sharding = &context->strategy->sharding_configs;
    int rc;

    if (program->state_count == 0 && sharding->stage == 1) {
        pass_idle(context, "sharding", "optimizer %s has no state to divide",
                  training_optimizer_text(context->training->optimizer.name));
        return 0;
    }
    if (sharding->stage < 3 && (rc = share_parameters(program, context->strategy, err)) < 0)
        return rc;
    offload_states(program, context);
    if (sharding->stage > 1)
        divide_gradients(program);
    return sharding->stage > 2 ? sharding_segments_apply(program, context->strategy, err) : 0;
}
