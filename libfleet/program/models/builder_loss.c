/* SPDX-License-Identifier: Apache-2.0 */

/* The loss of a model, also where ranks divide the words or the tokens. */
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

/* The words that this rank has, by the weight of the layer that gives the logits: the last one.
 * NULL: all of them. */
static const struct program_slice *slice_of_head(const struct builder *b)
{
    const struct program_slice *slice;
    int at = b->program->op_count - 1;

    while (b->program->ops[at].kind != OP_LINEAR)
        at--;
    slice = &b->program->vars[b->program->ops[at].inputs[1]].slice;
    return slice->parts > 0 &&
                   slice->dimension == (b->program->ops[at].attributes.transposed ? 0 : 1)
               ? slice
               : NULL;
}

static int add_loss(struct builder *b)
{
    int64_t one = 1;

    b->program->loss = builder_add_var(b, "loss", "", PROGRAM_FP32, PROGRAM_ROLE_SCALAR, 1, &one);
    return b->program->loss;
}

/* The mean over all tokens, from the means of `ranks` ranks that have as many tokens each: the sum,
 * then divided, so that a kernel gives the loss. */
static void average(struct builder *b, int own, unsigned int group, int ranks)
{
    struct program_op sum = {.kind = OP_ALL_REDUCE,
                             .inputs = {own},
                             .input_count = 1,
                             .outputs = {builder_activation(b, "loss", ".total", PROGRAM_FP32)},
                             .output_count = 1,
                             .attributes = {.group = group, .alike = true}};
    struct program_op scale = {.kind = OP_SCALE,
                               .inputs = {sum.outputs[0]},
                               .input_count = 1,
                               .output_count = 1,
                               .attributes = {.scale = 1.0 / ranks}};

    builder_add_op(b, &sum);
    scale.outputs[0] = add_loss(b);
    builder_add_op(b, &scale);
}

void builder_cross_entropy(struct builder *b, int logits, int targets)
{
    const struct program_slice *words;
    enum builder_rows rows = BUILDER_ALL_ROWS;
    bool is_part;
    struct program_op op = {.kind = OP_CROSS_ENTROPY,
                            .input_count = 2,
                            .output_count = 2,
                            .attributes = {.ignore_index = IGNORED_TARGET}};

    if (b->rc < 0)
        return;
    words = builder_divides(b) ? slice_of_head(b) : NULL;
    if (!words && b->given) {
        rows = builder_given_rows(b, "loss", builder_rows_of(b, logits));
        logits = builder_place(b, "loss.input", logits, rows, true);
    }
    is_part = builder_shares_sequences(b) || rows != BUILDER_ALL_ROWS;
    op.inputs[0] = logits;
    op.inputs[1] = builder_own_targets(b, builder_own_tokens(b, "targets", targets), rows);
    if (words) {
        op.attributes.divided = true;
        op.attributes.first_word = words->first[0];
        op.inputs[op.input_count++] = share_sums(b, logits, op.inputs[1], &op.attributes);
    }
    op.outputs[0] = is_part ? builder_activation(b, "loss", ".part", PROGRAM_FP32) : add_loss(b);
    op.outputs[1] = builder_activation(b, "loss", ".lse", PROGRAM_FP32);
    builder_add_op(b, &op);
    if (rows != BUILDER_ALL_ROWS)
        average(b, op.outputs[0], OP_GROUP_MODEL, b->cell.model_ranks);
    else if (is_part)
        average(b, op.outputs[0], OP_GROUP_SEQUENCE, b->cell.sequence_ranks);
}
