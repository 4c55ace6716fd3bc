/* SPDX-License-Identifier: Apache-2.0 */

/* Activations whose columns become whole, or divided over the ranks that share tensors. */
#include <string.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_internal.h"

int builder_add_moved(struct builder *b, const char *name, const char *suffix, enum op_kind kind,
                      int x, const struct op_attributes *attributes)
{
    struct program_op op = {.kind = kind,
                            .inputs = {x},
                            .input_count = 1,
                            .output_count = 1,
                            .attributes = *attributes};

    if (b->rc < 0)
        return PROGRAM_NONE;
    op.outputs[0] = builder_activation(b, name, suffix, b->program->vars[x].type);
    builder_add_op(b, &op);
    return op.outputs[0];
}

/* x [B,T,blocks·m·C] -> [B,T,blocks·C]: of each block this rank's columns. */
static int split(struct builder *b, const char *name, int x, int64_t blocks)
{
    struct op_attributes own = {
        .group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks, .place = b->cell.model_rank};
    int64_t shape[PROGRAM_DIMS_MAX], ranks = b->cell.model_ranks, width;

    memcpy(shape, b->program->vars[x].shape, sizeof(shape));
    width = shape[2] / (blocks * ranks);
    x = builder_reshape(b, name, ".columns", x, 4,
                        (int64_t[]){shape[0] * shape[1], blocks, ranks, width});
    x = builder_add_moved(b, name, ".by_rank", OP_TRANSPOSE, x,
                          &(struct op_attributes){.order = {2, 0, 1, 3}});
    x = builder_add_moved(b, name, ".own_columns", OP_OWN_ROWS, x, &own);
    shape[2] = blocks * width;
    return builder_reshape(b, name, ".split", x, 3, shape);
}

/* x [B,T,blocks·C] -> [B,T,blocks·m·C]: of each block the columns of all ranks. */
static int gather(struct builder *b, const char *name, int x, int64_t blocks)
{
    struct op_attributes alike = {.group = OP_GROUP_MODEL,
                                  .ranks = b->cell.model_ranks,
                                  .place = b->cell.model_rank,
                                  .alike = true};
    int64_t shape[PROGRAM_DIMS_MAX], ranks = b->cell.model_ranks, width;

    memcpy(shape, b->program->vars[x].shape, sizeof(shape));
    width = shape[2] / blocks;
    x = builder_reshape(b, name, ".part", x, 4, (int64_t[]){1, shape[0] * shape[1], blocks, width});
    x = builder_add_moved(b, name, ".by_rank", OP_ALL_GATHER, x, &alike);
    x = builder_add_moved(b, name, ".columns", OP_TRANSPOSE, x,
                          &(struct op_attributes){.order = {1, 2, 0, 3}});
    shape[2] *= ranks;
    return builder_reshape(b, name, ".gathered", x, 3, shape);
}

int builder_redistribute(struct builder *b, const char *name, int x, int blocks, int64_t columns,
                         bool divided, enum builder_rows rows)
{
    if (!b->given || b->rc < 0)
        return x;
    if (!divided && builder_columns(b, x) < columns)
        x = gather(b, name, x, blocks);
    x = builder_place(b, name, x, divided ? BUILDER_ALL_ROWS : rows, true);
    return b->rc == 0 && divided && builder_columns(b, x) == columns ? split(b, name, x, blocks)
                                                                     : x;
}

int builder_convert(struct builder *b, const char *name, int x, int blocks, int64_t columns,
                    bool divided)
{
    return builder_redistribute(b, name, x, blocks, columns, divided, b->attention_rows);
}
