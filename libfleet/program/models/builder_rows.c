/* SPDX-License-Identifier: Apache-2.0 */

/* Activations whose rows, the tokens of all samples, the ranks that share tensors divide. */
#include "libfleet/base/assert.h"
#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_internal.h"

bool builder_divides_rows(const struct builder *b)
{
    return builder_divides(b) && b->cell.divides_rows;
}

int builder_divide_rows(struct builder *b, const char *name, enum op_kind kind, int x)
{
    struct program_op op = {.kind = kind,
                            .input_count = 1,
                            .output_count = 1,
                            .attributes = {.group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks}};
    const struct program_var *var;

    if (b->rc < 0)
        return PROGRAM_NONE;
    var = &b->program->vars[x];
    fleet_assert(var->ndim == 3);
    b->samples = var->shape[0];
    b->tokens = var->shape[1];
    op.inputs[0] = builder_reshape(b, name, ".undivided", x, 2,
                                   (int64_t[]){b->samples * b->tokens, builder_columns(b, x)});
    op.outputs[0] = builder_activation(b, name, ".rows", PROGRAM_FP32);
    if (kind == OP_OWN_ROWS)
        op.attributes.place = b->cell.model_rank;
    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_join_rows(struct builder *b, const char *name, int x)
{
    struct program_op op = {.kind = OP_ALL_GATHER,
                            .inputs = {x},
                            .input_count = 1,
                            .outputs = {PROGRAM_NONE},
                            .output_count = 1,
                            .attributes = {.group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks}};

    if (!builder_divides_rows(b))
        return x;
    op.outputs[0] = builder_activation(b, name, ".all", PROGRAM_FP32);
    builder_add_op(b, &op);
    if (b->rc < 0)
        return PROGRAM_NONE;
    return builder_reshape(b, name, ".joined", op.outputs[0], 3,
                           (int64_t[]){b->samples, b->tokens, builder_columns(b, x)});
}

int builder_sum_parts(struct builder *b, const char *name, int part)
{
    struct program_op op = {.kind = OP_ALL_REDUCE,
                            .inputs = {part},
                            .input_count = 1,
                            .outputs = {builder_activation(b, name, ".sum", PROGRAM_FP32)},
                            .output_count = 1,
                            .attributes = {.group = OP_GROUP_MODEL, .alike = true}};

    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_sum_rows(struct builder *b, const char *name, int part)
{
    return builder_divides_rows(b) ? builder_divide_rows(b, name, OP_REDUCE_SCATTER, part)
                                   : builder_sum_parts(b, name, part);
}
