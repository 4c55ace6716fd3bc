/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/operators/operator_axes.h"

#include "libfleet/autoparallel/operators/operator_forms.h"
#include "libfleet/base/assert.h"

int operator_axes_add(struct operator_axes *axes, int64_t size)
{
    fleet_assert(axes->count < OPERATOR_AXES_MAX);
    axes->size[axes->count] = size;
    return axes->count++;
}

/* ---- the kinds ------------------------------------------------------------------------------- */

#define operator_form_none NULL

static const struct {
    void (*build)(struct operator_build *b);
    enum operator_class class;
} kinds[OP_KIND_COUNT] = {
#define OP(kind, name, kernel, axes, class) [OP_##kind] = {operator_form_##axes, OPERATOR_##class},
#include "libfleet/program/operators.def"
};

enum operator_class operator_axes_class(enum op_kind kind)
{
    return kinds[kind].class;
}

unsigned int operator_operand_axes(const struct operator_operand *operand)
{
    unsigned int bits = 0;

    for (int i = 0; i < operand->dims; i++)
        if (operand->axis[i] != OPERATOR_WHOLE)
            bits |= 1U << operand->axis[i];
    return bits;
}

/* What its inputs have and an output has not has been summed, unless its form says otherwise. */
static void fill_sums(struct operator_axes *axes)
{
    unsigned int of_inputs = 0;

    for (int i = 0; i < axes->input_count; i++)
        of_inputs |= operator_operand_axes(&axes->inputs[i]);
    for (int i = 0; i < axes->output_count; i++)
        if (axes->outputs[i].var != PROGRAM_NONE && !axes->outputs[i].sums)
            axes->outputs[i].sums = of_inputs & ~operator_operand_axes(&axes->outputs[i]);
}

void operator_axes_build(const struct program *program, const struct program_op *op,
                         struct operator_axes *out)
{
    struct operator_build b = {.program = program, .op = op, .axes = out};

    *out = (struct operator_axes){.input_count = op->input_count, .output_count = op->output_count};
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        out->inputs[i] =
            operator_form_whole(program, i < op->input_count ? op->inputs[i] : PROGRAM_NONE);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        out->outputs[i] =
            operator_form_whole(program, i < op->output_count ? op->outputs[i] : PROGRAM_NONE);
    if (kinds[op->kind].build)
        kinds[op->kind].build(&b);
    fill_sums(out);
}
