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

/* ---- rows of single operators ---------------------------------------------------------------- */

enum builder_rows builder_rows_of(const struct builder *b, int x)
{
    const struct program_var *var = &b->program->vars[x];
    int64_t all = b->program->micro_batch_size * b->program->tokens_per_sample;

    if (!b->given || program_var_elements(var) >= all * builder_columns(b, x))
        return BUILDER_ALL_ROWS;
    return var->ndim == 3 ? BUILDER_SAMPLES : BUILDER_TOKENS;
}

/* x [B,T,C], all ranks hold it -> this rank's rows. */
static int split(struct builder *b, const char *name, int x, enum builder_rows rows)
{
    const struct program_var *var = &b->program->vars[x];
    struct op_attributes own = {
        .group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks, .place = b->cell.model_rank};

    if (rows == BUILDER_TOKENS)
        x = builder_reshape(b, name, ".undivided", x, 2,
                            (int64_t[]){var->shape[0] * var->shape[1], var->shape[2]});
    return builder_add_moved(b, name, ".rows", OP_OWN_ROWS, x, &own);
}

/* The rows of all ranks -> [B,T,C]. */
static int gather(struct builder *b, const char *name, int x, bool alike)
{
    struct op_attributes a = {
        .group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks, .alike = alike};
    int64_t columns = builder_columns(b, x);

    if (alike)
        a.place = b->cell.model_rank;
    x = builder_add_moved(b, name, ".all", OP_ALL_GATHER, x, &a);
    if (b->rc < 0 || b->program->vars[x].ndim == 3)
        return x;
    return builder_reshape(
        b, name, ".joined", x, 3,
        (int64_t[]){b->program->micro_batch_size, b->program->tokens_per_sample, columns});
}

/* The same rows in the shape of `rows`. */
static int reshape_rows(struct builder *b, const char *name, int x, enum builder_rows rows)
{
    int64_t tokens = b->program->tokens_per_sample, columns = builder_columns(b, x);
    int64_t samples = b->program->micro_batch_size / b->cell.model_ranks;

    if (rows == BUILDER_TOKENS)
        return builder_reshape(b, name, ".tokens", x, 2, (int64_t[]){samples * tokens, columns});
    return builder_reshape(b, name, ".samples", x, 3, (int64_t[]){samples, tokens, columns});
}

/* What x became before, for another operator of the layer; PROGRAM_NONE. */
static int find_placed(const struct builder *b, const struct builder_placed *wanted)
{
    for (int i = 0; i < BUILDER_PLACED_MAX && i < b->placed_count; i++)
        if (b->placed[i].from == wanted->from && b->placed[i].rows == wanted->rows &&
            b->placed[i].alike == wanted->alike && b->placed[i].layer == b->layer)
            return b->placed[i].to;
    return PROGRAM_NONE;
}

int builder_place(struct builder *b, const char *name, int x, enum builder_rows rows, bool alike)
{
    struct builder_placed placed = {.from = x, .layer = b->layer, .rows = rows, .alike = alike};
    enum builder_rows has;

    if (!b->given || b->rc < 0 || (has = builder_rows_of(b, x)) == rows)
        return x;
    placed.to = find_placed(b, &placed);
    if (placed.to != PROGRAM_NONE)
        return placed.to;
    if (has == BUILDER_ALL_ROWS)
        placed.to = split(b, name, x, rows);
    else
        placed.to =
            rows == BUILDER_ALL_ROWS ? gather(b, name, x, alike) : reshape_rows(b, name, x, rows);
    b->placed[b->placed_count++ % BUILDER_PLACED_MAX] = placed;
    return placed.to;
}

int builder_own_targets(struct builder *b, int targets, enum builder_rows rows)
{
    struct op_attributes own = {
        .group = OP_GROUP_MODEL, .ranks = b->cell.model_ranks, .place = b->cell.model_rank};
    int64_t tokens = b->program->micro_batch_size * b->program->tokens_per_sample;

    if (rows == BUILDER_ALL_ROWS)
        return targets;
    if (rows == BUILDER_TOKENS)
        targets = builder_reshape(b, "targets", ".undivided", targets, 1, &tokens);
    return builder_add_moved(b, "targets", ".rows", OP_OWN_ROWS, targets, &own);
}
