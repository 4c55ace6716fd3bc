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

#define KIND(KIND, form, class) [OP_##KIND] = {operator_form_##form, OPERATOR_##class}

/* A kind without a row is OPERATOR_ALONE: communication, what is made for it, and what reads the
 * flat spaces. */
static const struct {
    void (*build)(struct operator_build *b);
    enum operator_class class;
} kinds[OP_KIND_COUNT] = {
    KIND(EMBEDDING, embedding, GENERAL),
    KIND(EMBEDDING_GRAD, embedding, GENERAL),
    KIND(LAYER_NORM, norm, GENERAL),
    KIND(LAYER_NORM_GRAD, norm, GENERAL),
    KIND(RMS_NORM, norm, GENERAL),
    KIND(RMS_NORM_GRAD, norm, GENERAL),
    KIND(LINEAR, linear, GENERAL),
    KIND(LINEAR_GRAD, linear, GENERAL),
    KIND(MATMUL, matmul, GENERAL),
    KIND(ATTENTION, attention, GENERAL),
    KIND(ATTENTION_GRAD, attention, GENERAL),
    KIND(CROSS_ENTROPY, cross_entropy, BATCH),
    KIND(CROSS_ENTROPY_GRAD, cross_entropy, BATCH),
    KIND(ADD, elementwise, GENERAL),
    KIND(ADD_GRAD_B, elementwise, REDUCE),
    KIND(SCALE, elementwise, GENERAL),
    KIND(GELU, elementwise, GENERAL),
    KIND(GELU_GRAD, elementwise, GENERAL),
    KIND(RELU, elementwise, GENERAL),
    KIND(RELU_GRAD, elementwise, GENERAL),
    KIND(SILU, elementwise, GENERAL),
    KIND(SILU_GRAD, elementwise, GENERAL),
    KIND(SWIGLU, elementwise, GENERAL),
    KIND(SWIGLU_GRAD, elementwise, GENERAL),
    KIND(ROPE, rope, GENERAL),
    KIND(DROPOUT, elementwise, GENERAL),
    KIND(SOFTMAX, leading, SOFTMAX),
    KIND(SOFTMAX_GRAD, leading, SOFTMAX),
    KIND(CAST, elementwise, GENERAL),
    KIND(RESHAPE, reshape, GENERAL),
    KIND(TRANSPOSE, transpose, GENERAL),
    KIND(REDUCE, reduce, REDUCE),
    KIND(REDUCE_GRAD, reduce, REDUCE),
    KIND(CONCAT, packed, GENERAL),
    KIND(SPLIT, packed, GENERAL),
    KIND(CONV2D, conv2d, GENERAL),
    KIND(CONV2D_GRAD, conv2d, GENERAL),
    KIND(BATCH_NORM, images, GENERAL),
    KIND(BATCH_NORM_GRAD, images, GENERAL),
    KIND(MAX_POOL2D, images, GENERAL),
    KIND(MAX_POOL2D_GRAD, images, GENERAL),
    KIND(AVG_POOL2D, images, GENERAL),
    KIND(AVG_POOL2D_GRAD, images, GENERAL),
    KIND(ADAPTIVE_AVG_POOL2D, images, GENERAL),
    KIND(ADAPTIVE_AVG_POOL2D_GRAD, images, GENERAL),
    KIND(MEMCPY, elementwise, GENERAL),
    KIND(FILL, elementwise, GENERAL),
    KIND(SGD, elementwise, GENERAL),
    KIND(MOMENTUM, elementwise, GENERAL),
    KIND(ADAM, elementwise, GENERAL),
    KIND(ADAMW, elementwise, GENERAL),
    KIND(LAMB, elementwise, GENERAL),
    KIND(LARS, elementwise, GENERAL),
};

enum operator_class operator_axes_class(enum op_kind kind)
{
    return kinds[kind].class;
}

static unsigned int axes_of(const struct operator_operand *operand)
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
        of_inputs |= axes_of(&axes->inputs[i]);
    for (int i = 0; i < axes->output_count; i++)
        if (axes->outputs[i].var != PROGRAM_NONE && !axes->outputs[i].sums)
            axes->outputs[i].sums = of_inputs & ~axes_of(&axes->outputs[i]);
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
