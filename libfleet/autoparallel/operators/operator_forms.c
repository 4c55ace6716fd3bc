/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/operators/operator_forms.h"

#include "libfleet/autoparallel/operators/operator_axes.h"

/* ---- operands -------------------------------------------------------------------------------- */

struct operator_operand operator_form_whole(const struct program *program, int var)
{
    struct operator_operand operand = {.var = var};

    if (var == PROGRAM_NONE)
        return operand;
    operand.dims = program->vars[var].ndim;
    for (int i = 0; i < operand.dims; i++) {
        operand.shape[i] = program->vars[var].shape[i];
        operand.axis[i] = OPERATOR_WHOLE;
    }
    return operand;
}

/* An axis for each of the first `count` dimensions. */
static void add_dims(struct operator_build *b, const struct operator_operand *operand, int count)
{
    for (int i = 0; i < count; i++)
        (void)operator_axes_add(b->axes, operand->shape[i]);
}

/* Dimension i is axis i, for the first `count`. */
static void take_leading(struct operator_operand *operand, int count)
{
    for (int i = 0; i < count && i < operand->dims; i++)
        operand->axis[i] = i;
}

/* Rows [N] of the first `leading` dimensions of `like`, said apart, with what follows the rows. */
static void take_rows(struct operator_operand *operand, const struct operator_operand *like,
                      int leading)
{
    struct operator_operand rows = {.var = operand->var};

    if (operand->var == PROGRAM_NONE)
        return;
    for (int i = 0; i < leading; i++) {
        rows.shape[rows.dims] = like->shape[i];
        rows.axis[rows.dims++] = i;
    }
    for (int i = 1; i < operand->dims; i++) {
        rows.shape[rows.dims] = operand->shape[i];
        rows.axis[rows.dims++] = OPERATOR_WHOLE;
    }
    *operand = rows;
}

static void take_last(struct operator_operand *operand, int axis)
{
    if (operand->dims > 0)
        operand->axis[operand->dims - 1] = axis;
}

/* All inputs, then all outputs. */
static struct operator_operand *operand_at(struct operator_build *b, int i)
{
    return i < b->axes->input_count ? &b->axes->inputs[i]
                                    : &b->axes->outputs[i - b->axes->input_count];
}

static int operand_count(const struct operator_build *b)
{
    return b->axes->input_count + b->axes->output_count;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* ---- forms ----------------------------------------------------------------------------------- */

/* Operands of the first one's shape, or one row of it (the b of add); norms of an optimizer. */
void operator_form_elementwise(struct operator_build *b)
{
    const struct operator_operand *first = operand_at(b, 0);

    add_dims(b, first, first->dims);
    for (int i = 0; i < operand_count(b); i++) {
        struct operator_operand *operand = operand_at(b, i);
        if (operand->var == PROGRAM_NONE)
            continue;
        if (operand->dims == first->dims &&
            (i == 0 || b->program->vars[operand->var].role != PROGRAM_ROLE_SCALAR))
            take_leading(operand, operand->dims);
        else if (operand->dims == 1 && b->program->vars[operand->var].role != PROGRAM_ROLE_SCALAR)
            take_last(operand, first->dims - 1);
    }
}

/* All but the last dimension; operands have one shape but in it. */
void operator_form_leading(struct operator_build *b)
{
    int leading = operand_at(b, 0)->dims - 1;

    add_dims(b, operand_at(b, 0), leading);
    for (int i = 0; i < operand_count(b); i++)
        take_leading(operand_at(b, i), leading);
}

/* x scale shift? -> y rows…, and d_y x scale rows… -> d_x d_scale d_shift. */
void operator_form_norm(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_LAYER_NORM || b->op->kind == OP_RMS_NORM;
    const struct operator_operand *x = &axes->inputs[0];
    int leading = x->dims - 1;

    add_dims(b, x, leading);
    take_leading(&axes->inputs[0], leading);
    take_leading(&axes->outputs[0], leading);
    if (!forward)
        take_leading(&axes->inputs[1], leading);
    for (int i = 1; forward && i < axes->output_count; i++)
        take_rows(&axes->outputs[i], x, leading);
    for (int i = 3; !forward && i < axes->input_count; i++)
        take_rows(&axes->inputs[i], x, leading);
}

static void take_factors(struct operator_operand *operand, bool turned, int row_axis,
                         int column_axis)
{
    if (operand->var == PROGRAM_NONE)
        return;
    operand->axis[operand->dims - 2] = turned ? column_axis : row_axis;
    operand->axis[operand->dims - 1] = turned ? row_axis : column_axis;
}

static void take_columns(struct operator_operand *operand, int leading, int axis)
{
    take_leading(operand, leading);
    take_last(operand, axis);
}

void operator_form_linear(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_LINEAR, turned = b->op->attributes.transposed;
    struct operator_operand *x = &axes->inputs[forward ? 0 : 1];
    struct operator_operand *weight = &axes->inputs[forward ? 1 : 2];
    int leading = x->dims - 1, inner, columns;

    add_dims(b, x, leading);
    inner = operator_axes_add(axes, x->shape[leading]);
    columns = operator_axes_add(axes, weight->shape[turned ? 0 : 1]);
    take_columns(x, leading, inner);
    take_factors(weight, turned, inner, columns);
    if (forward) {
        take_last(&axes->inputs[2], columns);
        take_columns(&axes->outputs[0], leading, columns);
        take_columns(&axes->outputs[1], leading, columns);
        return;
    }
    take_columns(&axes->inputs[0], leading, columns);
    take_columns(&axes->inputs[3], leading, columns);
    take_columns(&axes->outputs[0], leading, inner);
    take_factors(&axes->outputs[1], turned, inner, columns);
    take_last(&axes->outputs[2], columns);
    axes->outputs[2].sums = (1U << leading) - 1; /* of d_y, which has no inner axis */
}

void operator_form_matmul(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool a_turned = b->op->attributes.transposed_a, b_turned = b->op->attributes.transposed;
    struct operator_operand *left = &axes->inputs[0], *right = &axes->inputs[1];
    int batch = left->dims - 2, rows, inner, columns;

    add_dims(b, left, batch);
    rows = operator_axes_add(axes, left->shape[batch + (a_turned ? 1 : 0)]);
    inner = operator_axes_add(axes, left->shape[batch + (a_turned ? 0 : 1)]);
    columns = operator_axes_add(axes, right->shape[batch + (b_turned ? 0 : 1)]);
    take_leading(left, batch);
    take_leading(right, batch);
    take_leading(&axes->outputs[0], batch);
    take_factors(left, a_turned, rows, inner);
    take_factors(right, b_turned, inner, columns);
    take_factors(&axes->outputs[0], false, rows, columns);
}

enum {
    EMBEDDING_BATCH,
    EMBEDDING_CONTEXT,
    EMBEDDING_ROWS,
    EMBEDDING_WIDTH
};

static void take_table(struct operator_operand *table, int rows)
{
    if (table->var == PROGRAM_NONE)
        return;
    table->axis[0] = rows;
    table->axis[1] = EMBEDDING_WIDTH;
}

/* ids table position? -> out, and ids d_out -> d_table d_position?. */
void operator_form_embedding(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_EMBEDDING;
    struct operator_operand *ids = &axes->inputs[0];
    struct operator_operand *out = forward ? &axes->outputs[0] : &axes->inputs[1];
    struct operator_operand *table = forward ? &axes->inputs[1] : &axes->outputs[0];
    struct operator_operand *position = forward ? &axes->inputs[2] : &axes->outputs[1];
    bool movable = position->var == PROGRAM_NONE || position->shape[0] == ids->shape[1];

    (void)operator_axes_add(axes, ids->shape[0]);
    (void)operator_axes_add(axes, movable ? ids->shape[1] : 1);
    (void)operator_axes_add(axes, table->var == PROGRAM_NONE ? 1 : table->shape[0]);
    (void)operator_axes_add(axes, out->shape[2]);
    take_leading(ids, 2);
    take_leading(out, 2);
    take_last(out, EMBEDDING_WIDTH);
    take_table(table, EMBEDDING_ROWS);
    take_table(position, movable ? EMBEDDING_CONTEXT : OPERATOR_WHOLE);
    if (!movable)
        ids->axis[1] = out->axis[1] = OPERATOR_WHOLE;
    axes->exclusive[0] = 1U << EMBEDDING_ROWS;
    axes->exclusive[1] = 1U << EMBEDDING_BATCH | 1U << EMBEDDING_CONTEXT;
}

/* [B,T,columns] by groups of heads; lse is [B,H,T]. */
static void take_heads(struct operator_operand *operand, int heads_dim)
{
    if (operand->var == PROGRAM_NONE)
        return;
    operand->axis[0] = 0;
    operand->axis[heads_dim] = 1;
}

void operator_form_attention(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_ATTENTION;

    (void)operator_axes_add(axes, axes->inputs[0].shape[0]);
    (void)operator_axes_add(axes, b->op->attributes.kv_heads);
    for (int i = 0; i < operand_count(b); i++) {
        bool lse = i == (forward ? axes->input_count + 1 : 3);
        take_heads(operand_at(b, i), lse ? 1 : 2);
    }
}

/* Columns of several variables behind each other in one, which is divided as each of them is. */
void operator_form_packed(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_CONCAT;
    const struct operator_operand *parts = forward ? axes->inputs : axes->outputs;
    int count = forward ? axes->input_count : axes->output_count;
    int last = parts[0].dims - 1;
    int64_t columns = 0;

    for (int i = 0; i < count; i++)
        columns = common_divisor(parts[i].shape[last], columns);
    add_dims(b, &parts[0], last);
    (void)operator_axes_add(axes, columns);
    for (int i = 0; i < operand_count(b); i++)
        take_leading(operand_at(b, i), last + 1);
}

/* Heads that are turned, then heads that are copied (those of v): a group has some of both. */
void operator_form_rope(struct operator_build *b)
{
    const struct op_attributes *attributes = &b->op->attributes;
    const struct operator_operand *x = &b->axes->inputs[0];
    int64_t copied = x->shape[2] - (int64_t)attributes->heads * attributes->head_dim;

    (void)operator_axes_add(b->axes, x->shape[0]);
    (void)operator_axes_add(b->axes,
                            copied % attributes->head_dim
                                ? 1
                                : common_divisor(attributes->heads, copied / attributes->head_dim));
    take_heads(&b->axes->inputs[0], 2);
    take_heads(&b->axes->outputs[0], 2);
}

void operator_form_cross_entropy(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    const struct operator_operand *logits = &axes->inputs[0];
    int leading = logits->dims - 1;

    add_dims(b, logits, leading);
    take_leading(&axes->inputs[0], leading);
    take_leading(&axes->inputs[1], leading);
    if (b->op->kind == OP_CROSS_ENTROPY) {
        take_rows(&axes->outputs[1], logits, leading);
        return;
    }
    take_rows(&axes->inputs[2], logits, leading);
    take_leading(&axes->outputs[0], leading);
}

enum {
    CONV_BATCH,
    CONV_IN,
    CONV_OUT
};

static void take_image(struct operator_operand *operand, int batch, int channels)
{
    if (operand->var == PROGRAM_NONE)
        return;
    operand->axis[0] = batch;
    operand->axis[1] = channels;
}

void operator_form_conv2d(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_CONV2D;
    struct operator_operand *x = &axes->inputs[forward ? 0 : 1];
    struct operator_operand *weight = &axes->inputs[forward ? 1 : 2];

    (void)operator_axes_add(axes, x->shape[0]);
    (void)operator_axes_add(axes, x->shape[1]);
    (void)operator_axes_add(axes, weight->shape[0]);
    take_image(x, CONV_BATCH, CONV_IN);
    take_image(weight, CONV_OUT, CONV_IN);
    take_image(forward ? &axes->outputs[0] : &axes->inputs[0], CONV_BATCH, CONV_OUT);
    if (!forward) {
        take_image(&axes->outputs[0], CONV_BATCH, CONV_IN);
        take_image(&axes->outputs[1], CONV_OUT, CONV_IN);
    }
}

/* [B,C,…], and values of channels [C]. */
void operator_form_images(struct operator_build *b)
{
    add_dims(b, operand_at(b, 0), 2);
    for (int i = 0; i < operand_count(b); i++) {
        struct operator_operand *operand = operand_at(b, i);
        if (operand->dims >= 2)
            take_image(operand, 0, 1);
        else if (operand->dims == 1 && operand->shape[0] == b->axes->size[1])
            take_last(operand, 1); /* not the sums of sync_batch_norm: they stay whole */
    }
}

void operator_form_reduce(struct operator_build *b)
{
    struct operator_axes *axes = b->axes;
    bool forward = b->op->kind == OP_REDUCE;
    struct operator_operand *x = forward ? &axes->inputs[0] : &axes->outputs[0];
    struct operator_operand *y = forward ? &axes->outputs[0] : &axes->inputs[0];

    add_dims(b, x, x->dims);
    take_leading(x, x->dims);
    take_leading(y, b->op->attributes.kept);
}

void operator_form_transpose(struct operator_build *b)
{
    struct operator_operand *x = &b->axes->inputs[0], *y = &b->axes->outputs[0];

    add_dims(b, x, x->dims);
    take_leading(x, x->dims);
    for (int i = 0; i < y->dims; i++)
        y->axis[i] = b->op->attributes.order[i];
}

/* The first dimension of [at, end) that is more than 1, or OPERATOR_WHOLE. */
static int first_real(const struct operator_operand *operand, int at, int end)
{
    for (int i = at; i < end; i++)
        if (operand->shape[i] > 1)
            return i;
    return OPERATOR_WHOLE;
}

/* Runs of dimensions with equal products, from the left. */
void operator_form_reshape(struct operator_build *b)
{
    struct operator_operand *x = &b->axes->inputs[0], *y = &b->axes->outputs[0];
    int i = 0, j = 0;

    while (i < x->dims && j < y->dims) {
        int first_i = i, first_j = j, of_x, of_y;
        int64_t product_x = x->shape[i++], product_y = y->shape[j++];
        while (product_x != product_y) {
            if (product_x < product_y)
                product_x *= x->shape[i++];
            else
                product_y *= y->shape[j++];
        }
        of_x = first_real(x, first_i, i);
        of_y = first_real(y, first_j, j);
        if (of_x == OPERATOR_WHOLE)
            continue;
        x->axis[of_x] = y->axis[of_y] =
            operator_axes_add(b->axes, common_divisor(x->shape[of_x], y->shape[of_y]));
    }
}
