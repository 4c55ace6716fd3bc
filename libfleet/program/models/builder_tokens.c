/* SPDX-License-Identifier: Apache-2.0 */

/* The tokens of ranks that share sequences, and what these ranks exchange around attention. */
#include <string.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_internal.h"

bool builder_shares_sequences(const struct builder *b)
{
    return b->cell.sequence_ranks > 1;
}

int builder_own_tokens(struct builder *b, const char *name, int x)
{
    struct op_attributes own = {.group = OP_GROUP_SEQUENCE,
                                .ranks = b->cell.sequence_ranks,
                                .place = b->cell.sequence_rank};
    int64_t shape[PROGRAM_DIMS_MAX];
    int ndim;

    if (!builder_shares_sequences(b) || b->rc < 0)
        return x;
    ndim = b->program->vars[x].ndim;
    memcpy(shape, b->program->vars[x].shape, sizeof(shape));
    shape[1] *= shape[0];
    x = builder_reshape(b, name, ".all_tokens", x, ndim - 1, shape + 1);
    x = builder_add_moved(b, name, ".own_tokens", OP_OWN_ROWS, x, &own);
    shape[0] = 1;
    shape[1] /= own.ranks;
    return builder_reshape(b, name, ".part", x, ndim, shape);
}

/* The ranks exchange: part r of x [S,…] goes to rank r. */
static int exchange(struct builder *b, const char *name, int x)
{
    return builder_add_moved(
        b, name, ".exchanged", OP_ALL_TO_ALL, x,
        &(struct op_attributes){.group = OP_GROUP_SEQUENCE, .ranks = b->cell.sequence_ranks});
}

int builder_join_tokens(struct builder *b, const char *name, int x, int blocks)
{
    int64_t samples = b->program->micro_batch_size, context = b->program->tokens_per_sample;
    int64_t ranks = b->cell.sequence_ranks, width;

    if (!builder_shares_sequences(b) || b->rc < 0)
        return x;
    width = builder_columns(b, x) / (blocks * ranks);
    x = builder_reshape(b, name, ".heads", x, 4,
                        (int64_t[]){samples * context / ranks, blocks, ranks, width});
    x = builder_add_moved(b, name, ".by_rank", OP_TRANSPOSE, x,
                          &(struct op_attributes){.order = {2, 0, 1, 3}});
    x = exchange(b, name, x);
    return builder_reshape(b, name, ".joined", x, 3, (int64_t[]){samples, context, blocks * width});
}

int builder_join_heads(struct builder *b, const char *name, int x)
{
    int64_t ranks = b->cell.sequence_ranks, width, rows;

    if (!builder_shares_sequences(b) || b->rc < 0)
        return x;
    width = builder_columns(b, x);
    rows = b->program->micro_batch_size * b->program->tokens_per_sample / ranks;
    x = builder_reshape(b, name, ".by_rank", x, 3, (int64_t[]){ranks, rows, width});
    x = exchange(b, name, x);
    x = builder_add_moved(b, name, ".by_token", OP_TRANSPOSE, x,
                          &(struct op_attributes){.order = {1, 0, 2}});
    return builder_reshape(b, name, ".part", x, 3, (int64_t[]){1, rows, ranks * width});
}
