/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/passes/localsgd.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program.h"
#include "libfleet/strategy/strategy.h"

bool localsgd_wanted(const struct pass_context *context)
{
    return context->strategy->localsgd;
}

bool adaptive_localsgd_wanted(const struct pass_context *context)
{
    return context->strategy->adaptive_localsgd;
}

/* Take the sums of gradients out; returns how many, in *out (heap). */
static int take_sums(struct program *program, struct program_op **out)
{
    struct program_op *sums = calloc((size_t)program->op_count + 1, sizeof(*sums));
    int kept = 0, count = 0;

    fleet_assert(sums);
    for (int i = 0; i < program->op_count; i++)
        if (program->ops[i].section == PROGRAM_SECTION_EXCHANGE)
            sums[count++] = program->ops[i];
        else
            program->ops[kept++] = program->ops[i];
    program->op_count = kept;
    *out = sums;
    return count;
}

static void add(struct program *program, enum op_kind kind, int a, int b, int out)
{
    (void)program_add_op(program, &(struct program_op){.kind = kind,
                                                       .section = PROGRAM_SECTION_AVERAGE,
                                                       .inputs = {a, b},
                                                       .input_count = b == PROGRAM_NONE ? 1 : 2,
                                                       .outputs = {out},
                                                       .output_count = 1,
                                                       .layer = program->vars[out].layer});
}

int localsgd_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err)
{
    struct program_op *sums;
    int sum_count = take_sums(program, &sums), slot = program->state_count;
    int *order, count = program_parameters(program, true, &order);

    (void)context, (void)err;
    for (int i = 0; i < count; i++)
        add(program, OP_SUBTRACT, program_add_state(program, order[i], slot), order[i],
            program_gradient_of(program, order[i]));
    program->state_count++;
    program_layout(program);
    for (int i = 0; i < sum_count; i++) {
        struct program_op op = sums[i];
        op.kind = OP_ALL_REDUCE;
        op.section = PROGRAM_SECTION_AVERAGE;
        op.attributes.reduction = OP_REDUCTION_AVG;
        (void)program_add_op(program, &op);
    }
    for (int i = 0; i < count; i++) {
        int snapshot = program_state_of(program, order[i], slot);
        add(program, OP_SUBTRACT, snapshot, program_gradient_of(program, order[i]), order[i]);
        add(program, OP_MEMCPY, order[i], PROGRAM_NONE, snapshot);
    }
    free(sums);
    free(order);
    return 0;
}

int localsgd_snapshot_slot(const struct program *program)
{
    for (int i = program->op_count - 1; i >= 0; i--)
        if (program->ops[i].section == PROGRAM_SECTION_AVERAGE)
            return program->state_count - 1;
    return -1;
}
