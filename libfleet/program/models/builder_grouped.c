/* SPDX-License-Identifier: Apache-2.0 */

/* Heads of keys and values that serve groups of attention heads, where ranks divide heads. */
#include <stdio.h>

#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_internal.h"

#define COPIES_MAX 5 /* OP_OUTPUTS_MAX allows 6, which is 2 times 3 */

static int model_ranks(const struct builder *b)
{
    return builder_divides(b) && !b->whole_heads ? b->cell.model_ranks : 1;
}

/* Of the ranks that share tensors: each has so many. */
static int heads_of_rank(const struct builder *b, int kv_heads)
{
    int ranks = model_ranks(b);

    return kv_heads < ranks ? 1 : kv_heads / ranks;
}

/* How often each head is there when ranks that share sequences exchange. */
static int copies(const struct builder *b, int kv_heads)
{
    int heads = heads_of_rank(b, kv_heads);

    return builder_shares_sequences(b) && heads < b->cell.sequence_ranks
               ? b->cell.sequence_ranks / heads
               : 1;
}

int builder_kv_heads(const struct builder *b, int kv_heads)
{
    int heads = heads_of_rank(b, kv_heads) * copies(b, kv_heads);

    return builder_shares_sequences(b) ? heads / b->cell.sequence_ranks : heads;
}

/* Append `columns` of the last dimension of x as an output of `split`. */
static int add_part(struct builder *b, const char *name, const char *suffix, int x, int64_t columns,
                    struct program_op *split)
{
    const struct program_var *var = &b->program->vars[x];
    int64_t shape[PROGRAM_DIMS_MAX];
    int ndim = var->ndim, part;

    for (int i = 0; i < ndim; i++)
        shape[i] = var->shape[i];
    shape[ndim - 1] = columns;
    part = builder_add_var(b, name, suffix, PROGRAM_FP32, PROGRAM_ROLE_ACTIVATION, ndim, shape);
    split->outputs[split->output_count++] = part;
    return part;
}

/* The columns of the head that serves this rank. A split of all columns copies, and marks the layer
 * for the pass: its gradient, too, is a part. */
static int own_head(struct builder *b, const char *name, int x, int kv_heads)
{
    struct program_op split = {.kind = OP_SPLIT, .inputs = {x}, .input_count = 1};
    int64_t head_dim;
    int own, place = b->cell.model_rank / (model_ranks(b) / kv_heads);

    if (b->rc < 0)
        return PROGRAM_NONE;
    head_dim = builder_columns(b, x) / kv_heads;
    if (place > 0)
        (void)add_part(b, name, ".before", x, place * head_dim, &split);
    own = add_part(b, name, ".own", x, head_dim, &split);
    if (place < kv_heads - 1)
        (void)add_part(b, name, ".behind", x, (kv_heads - 1 - place) * head_dim, &split);
    builder_add_op(b, &split);
    return own;
}

int builder_kv_linear(struct builder *b, const char *name, int x, const struct builder_linear *l,
                      int kv_heads)
{
    struct builder_linear linear = *l;
    enum builder_rows rows;

    linear.division = BUILDER_COLUMNS;
    if (kv_heads >= model_ranks(b) || builder_decide(b, name, x, &linear, &rows) != BUILDER_COLUMNS)
        return builder_linear(b, name, x, &linear);
    linear.division = BUILDER_WHOLE;
    return own_head(b, name, builder_linear(b, name, x, &linear), kv_heads);
}

/* The smallest factor that one concatenation can make; if there is none, `times` itself. */
static int factor_of(int times)
{
    for (int factor = 2; factor <= COPIES_MAX; factor++)
        if (times % factor == 0)
            return factor;
    return times;
}

/* x [rows,width]: `times` copies side by side. More than a concatenation takes: twice one half. */
static int repeat_columns(struct builder *b, const char *name, int x, int times)
{
    int parts[COPIES_MAX] = {x, x, x, x, x}, count = times;
    char half[80];

    if (times > COPIES_MAX) {
        (void)snprintf(half, sizeof(half), "%s.%d", name, times / 2);
        parts[0] = parts[1] = repeat_columns(b, half, x, times / 2);
        count = 2 + times % 2;
    }
    return builder_concat(b, name, parts, count);
}

/* x [1,rows,heads·D]: each head `factor` times, side by side. */
static int repeat_heads(struct builder *b, const char *name, int x, int64_t heads, int factor)
{
    int64_t rows = b->program->vars[x].shape[1], width = builder_columns(b, x);

    x = builder_reshape(b, name, ".heads", x, 2, (int64_t[]){rows * heads, width / heads});
    x = repeat_columns(b, name, x, factor);
    return builder_reshape(b, name, ".side_by_side", x, 3, (int64_t[]){1, rows, width * factor});
}

int builder_join_kv(struct builder *b, const char *name, int x, int kv_heads)
{
    int heads = heads_of_rank(b, kv_heads), left = copies(b, kv_heads);

    while (b->rc == 0 && left > 1) {
        int factor = factor_of(left);
        char repeated[64];

        (void)snprintf(repeated, sizeof(repeated), "%s.repeated_%d", name, left);
        x = repeat_heads(b, repeated, x, heads, factor);
        heads *= factor;
        left /= factor;
    }
    return builder_join_tokens(b, name, x, 1);
}
