/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/order.h"

/* Bytes [first, end) of a segment. */
struct touch {
    enum memory_segment segment;
    size_t first, end;
    bool is_write;
};

#define TOUCHES_MAX (OP_INPUTS_MAX + OP_OUTPUTS_MAX + 1)

/* Where the rank holds the sum of the gradient at the range's start. */
static struct memory_place held_place(const struct program *program, const struct memory_plan *plan,
                                      const struct program_op *op)
{
    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_GRADIENT &&
            program->vars[v].flat_offset == op->attributes.flat_first)
            return memory_plan_place(plan, op->section, v);
    return (struct memory_place){MEMORY_NOWHERE, 0};
}

bool order_is_held(const struct program_op *op)
{
    return op->section == PROGRAM_SECTION_CHECK && op->attributes.owned &&
           (op->kind == OP_SEND || op->kind == OP_RECEIVE);
}

struct memory_place order_range(const struct program *program, const struct memory_plan *plan,
                                const struct program_op *op)
{
    static const enum memory_segment segments[] = {
        [OP_SPACE_NONE] = MEMORY_NOWHERE,          [OP_SPACE_GRADIENTS] = MEMORY_GRADIENTS,
        [OP_SPACE_PARAMETERS] = MEMORY_PARAMETERS, [OP_SPACE_STATE0] = MEMORY_STATE0,
        [OP_SPACE_STATE1] = MEMORY_STATE1,         [OP_SPACE_BUFFERS] = MEMORY_BUFFERS};

    if (plan->ranges && plan->ranges[op - program->ops].segment != MEMORY_NOWHERE)
        return plan->ranges[op - program->ops];
    if (order_is_held(op))
        return held_place(program, plan, op);
    return (struct memory_place){segments[op->attributes.space],
                                 (size_t)op->attributes.flat_first * sizeof(float)};
}

static void add(const struct program *program, struct memory_place place, int var, bool is_write,
                struct touch *touches, int *count)
{
    if (place.segment != MEMORY_NOWHERE)
        touches[(*count)++] =
            (struct touch){place.segment, place.offset,
                           place.offset + program_var_bytes(&program->vars[var]), is_write};
}

static int list(const struct program *program, const struct memory_plan *plan,
                const struct program_op *op, struct touch touches[TOUCHES_MAX])
{
    struct memory_place range = order_range(program, plan, op);
    int count = 0;

    for (int i = 0; i < op->input_count; i++)
        add(program, memory_plan_input(plan, program, op, i), op->inputs[i], false, touches,
            &count);
    for (int i = 0; i < op->output_count; i++)
        add(program, memory_plan_place(plan, op->section, op->outputs[i]), op->outputs[i], true,
            touches, &count);
    if (range.segment != MEMORY_NOWHERE)
        touches[count++] =
            (struct touch){range.segment, range.offset,
                           range.offset + (size_t)op->attributes.flat_count * sizeof(float), true};
    return count;
}

bool order_conflict(const struct program *program, const struct memory_plan *plan,
                    const struct program_op *a, const struct program_op *b)
{
    struct touch of_a[TOUCHES_MAX], of_b[TOUCHES_MAX];
    int a_count = list(program, plan, a, of_a), b_count = list(program, plan, b, of_b);

    for (int i = 0; i < a_count; i++)
        for (int j = 0; j < b_count; j++)
            if (of_a[i].segment == of_b[j].segment && of_a[i].first < of_b[j].end &&
                of_b[j].first < of_a[i].end && (of_a[i].is_write || of_b[j].is_write))
                return true;
    return false;
}
