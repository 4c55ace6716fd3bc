/* SPDX-License-Identifier: Apache-2.0 */

/* The loss of a model, also where ranks divide the words. */
#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_internal.h"

/* Targets that count for nothing; the loaders make none today. */
#define IGNORED_TARGET (-100)

/* What every rank needs to know of the logits of all: [ranks·N,3]. */
static int share_sums(struct builder *b, int logits, int targets, const struct op_attributes *a)
{
    struct program_op sums = {.kind = OP_CROSS_ENTROPY_SUMS,
                              .inputs = {logits, targets},
                              .input_count = 2,
                              .outputs = {builder_activation(b, "loss", ".own", PROGRAM_FP32)},
                              .output_count = 1,
                              .attributes = *a};
    struct program_op gather = {
        .kind = OP_ALL_GATHER,
        .inputs = {sums.outputs[0]},
        .input_count = 1,
        .outputs = {builder_activation(b, "loss", ".sums", PROGRAM_FP32)},
        .output_count = 1,
        .attributes = {.group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks}};

    builder_add_op(b, &sums);
    builder_add_op(b, &gather);
    return gather.outputs[0];
}

/* The weight of the layer that gives the logits: the last operator. */
static const struct program_slice *slice_of_head(const struct builder *b)
{
    const struct program_op *head = &b->program->ops[b->program->op_count - 1];

    return &b->program->vars[head->inputs[1]].slice;
}

void builder_cross_entropy(struct builder *b, int logits, int targets)
{
    int64_t one = 1;
    struct program_op op = {.kind = OP_CROSS_ENTROPY,
                            .inputs = {logits, targets},
                            .input_count = 2,
                            .output_count = 2,
                            .attributes = {.ignore_index = IGNORED_TARGET}};

    if (b->rc == 0 && builder_divides(b)) {
        op.attributes.divided = true;
        op.attributes.first_word = slice_of_head(b)->first[0];
        op.inputs[op.input_count++] = share_sums(b, logits, targets, &op.attributes);
    }
    op.outputs[0] = builder_add_var(b, "loss", "", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &one);
    op.outputs[1] = builder_activation(b, "loss", ".lse", PROGRAM_FP32);
    builder_add_op(b, &op);
    b->program->loss = op.outputs[0];
}
