/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Layers as operators and variables. Errors are kept, not returned: a model then reads as the list
 * of its layers, and builder_finish() returns the first error.
 */
#include "libfleet/program/models/builder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/program/models/builder_internal.h"
#include "libfleet/program/slice.h"

/* Of a forward part: passes and autodiff add several for each, and PROGRAM_VARS_MAX must hold. */
#define VARS_MAX 50000

void builder_init(struct builder *b, struct program *program)
{
    *b = (struct builder){.program = program, .layer = -1};
}

int builder_finish(const struct builder *b, struct fleet_error *err)
{
    if (b->rc < 0 && err)
        *err = b->err;
    return b->rc;
}

void builder_enter(struct builder *b, int layer, const char *prefix)
{
    int used = snprintf(b->prefix, sizeof(b->prefix), "%s", prefix);

    fleet_assert(used < (int)sizeof(b->prefix));
    b->layer = layer;
    b->whole_heads = false;
    b->attention_rows = BUILDER_ALL_ROWS;
}

int builder_add_var(struct builder *b, const char *name, const char *suffix, enum program_type type,
                    enum program_role role, int ndim, const int64_t *shape)
{
    char full[PROGRAM_NAME_MAX];
    int index, used;

    if (b->rc < 0)
        return PROGRAM_NONE;
    if (b->program->var_count >= VARS_MAX) {
        b->rc = fleet_error(&b->err, -E2BIG, "model %s has more than %d variables",
                            b->program->name, VARS_MAX);
        return PROGRAM_NONE;
    }
    used = snprintf(full, sizeof(full), "%s%s%s", b->prefix, name, suffix);
    fleet_assert(used < (int)sizeof(full));
    index = program_add_var(b->program, full, type, role, ndim, shape);
    b->program->vars[index].layer = b->layer;
    return index;
}

int builder_input(struct builder *b, const char *name, enum program_type type, int ndim,
                  const int64_t *shape)
{
    return builder_add_var(b, name, "", type, PROGRAM_ROLE_INPUT, ndim, shape);
}

int builder_add_parameter(struct builder *b, const char *name, const char *suffix,
                          enum program_initial initial, double deviation, int ndim,
                          const int64_t *shape)
{
    int index = builder_add_var(b, name, suffix, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, ndim, shape);

    if (index == PROGRAM_NONE)
        return index;
    b->program->vars[index].trained = true;
    b->program->vars[index].initial = initial;
    b->program->vars[index].deviation = (float)deviation;
    return index;
}

int builder_parameter(struct builder *b, const char *name, enum program_initial initial,
                      double deviation, int ndim, const int64_t *shape)
{
    return builder_add_parameter(b, name, "", initial, deviation, ndim, shape);
}

int builder_activation(struct builder *b, const char *name, const char *suffix,
                       enum program_type type)
{
    return builder_add_var(b, name, suffix, type, PROGRAM_ROLE_ACTIVATION, PROGRAM_UNSHAPED, NULL);
}

void builder_add_op(struct builder *b, const struct program_op *op)
{
    struct program_op copy = *op;

    if (b->rc < 0)
        return;
    copy.section = PROGRAM_SECTION_MICRO_BATCH;
    copy.layer = b->layer;
    (void)program_add_op(b->program, &copy);
    b->rc = op_infer(b->program, &copy, &b->err);
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* a + c, of the same shape, or c for each row. */
static int add_to(struct builder *b, const char *name, const char *suffix, int a, int c)
{
    struct program_op op = {.kind = OP_ADD,
                            .inputs = {a, c},
                            .input_count = 2,
                            .outputs = {builder_activation(b, name, suffix, PROGRAM_FP32)},
                            .output_count = 1};

    builder_add_op(b, &op);
    return op.outputs[0];
}

int64_t builder_columns(const struct builder *b, int var)
{
    const struct program_var *v = &b->program->vars[var];

    return v->shape[v->ndim - 1];
}

bool builder_divides(const struct builder *b)
{
    return b->cell.model_ranks > 1;
}

int builder_heads(const struct builder *b, int heads)
{
    if (builder_divides(b) && !b->whole_heads)
        heads /= b->cell.model_ranks;
    return builder_shares_sequences(b) ? heads / b->cell.sequence_ranks : heads;
}

/* A parameter whose `slice` this rank has. */
static int add_slice(struct builder *b, const char *name, const char *suffix,
                     enum program_initial initial, double deviation, int ndim, int64_t *shape,
                     const struct program_slice *slice)
{
    int index;

    shape[slice->dimension] = slice_count(slice);
    index = builder_add_parameter(b, name, suffix, initial, deviation, ndim, shape);
    if (index != PROGRAM_NONE)
        b->program->vars[index].slice = *slice;
    return index;
}

int builder_reshape(struct builder *b, const char *name, const char *suffix, int x, int ndim,
                    const int64_t *shape)
{
    struct program_op op = {.kind = OP_RESHAPE, .inputs = {x}, .input_count = 1, .output_count = 1};

    if (b->rc < 0)
        return PROGRAM_NONE;
    op.outputs[0] = builder_add_var(b, name, suffix, b->program->vars[x].type,
                                    PROGRAM_ROLE_ACTIVATION, ndim, shape);
    builder_add_op(b, &op);
    return op.outputs[0];
}

/* ---- linear layers --------------------------------------------------------------------------- */

static int add_bias(struct builder *b, const char *name, const struct builder_linear *l)
{
    enum program_initial initial =
        l->bias_deviation > 0 ? PROGRAM_INITIAL_UNIFORM : PROGRAM_INITIAL_ZERO;
    int64_t features = l->features;
    struct program_slice slice;

    if (!builder_divides(b) || l->division != BUILDER_COLUMNS)
        return builder_add_parameter(b, name, ".bias", initial, l->bias_deviation, 1, &features);
    slice = slice_of(features, l->blocks ? l->blocks : 1, 0, &b->cell);
    return add_slice(b, name, ".bias", initial, l->bias_deviation, 1, &features, &slice);
}

static int add_weight(struct builder *b, const char *name, int x, const struct builder_linear *l)
{
    int inputs = l->transposed ? 1 : 0, features = 1 - inputs; /* dimensions of the weight */
    int64_t shape[2];
    struct program_slice slice;

    shape[features] = l->features;
    shape[inputs] = builder_columns(b, x);
    if (!builder_divides(b) || l->division == BUILDER_WHOLE)
        return builder_add_parameter(b, name, ".weight", l->initial, l->deviation, 2, shape);
    if (l->division == BUILDER_COLUMNS)
        slice = slice_of(l->features, l->blocks ? l->blocks : 1, features, &b->cell);
    else
        slice = slice_of(l->inputs, 1, inputs, &b->cell);
    return add_slice(b, name, ".weight", l->initial, l->deviation, 2, shape, &slice);
}

/* Columns, or the whole. */
static int linear(struct builder *b, const char *name, int x, const struct builder_linear *l)
{
    bool activated = l->activation != OP_ACTIVATION_NONE;
    struct program_op op = {.kind = OP_LINEAR, .input_count = 3, .output_count = 2};

    if (b->rc < 0)
        return PROGRAM_NONE;
    op.inputs[0] = x;
    op.inputs[1] = l->weight > 0 ? l->weight : add_weight(b, name, x, l);
    op.inputs[2] = l->bias ? add_bias(b, name, l) : PROGRAM_NONE;
    op.outputs[0] = builder_activation(b, name, "", PROGRAM_FP32);
    op.outputs[1] = activated ? builder_activation(b, name, ".pre", PROGRAM_FP32) : PROGRAM_NONE;
    op.attributes.transposed = l->transposed;
    op.attributes.activation = l->activation;
    builder_add_op(b, &op);
    return op.outputs[0];
}

/* A part of the inputs: the bias is added once, to the sum. */
static int linear_rows(struct builder *b, const char *name, int x, const struct builder_linear *l)
{
    struct builder_linear part = *l;
    int sum, bias;

    fleet_assert(l->activation == OP_ACTIVATION_NONE && l->weight <= 0);
    part.bias = false;
    part.division = BUILDER_WHOLE;
    part.weight = add_weight(b, name, x, l);
    bias = l->bias ? add_bias(b, name, l) : PROGRAM_NONE;
    sum = builder_sum_rows(b, name, linear(b, name, x, &part));
    if (bias == PROGRAM_NONE)
        return sum;
    return add_to(b, name, ".biased", sum, bias);
}

/* x as the layer reads it. Where each rank computes a part of its gradient, as layers with some of
 * the features do, the gather of rows sums. */
static int linear_input(struct builder *b, const char *name, int x, const struct builder_linear *l,
                        bool is_part, enum builder_rows rows)
{
    char input[PROGRAM_NAME_MAX];

    if (!b->given)
        return x;
    (void)snprintf(input, sizeof(input), "%s.input", name);
    if (is_part && builder_columns(b, x) == l->inputs)
        return builder_place(b, input, x, BUILDER_ALL_ROWS, false);
    return builder_redistribute(b, input, x, 1, l->inputs, l->division == BUILDER_ROWS, rows);
}

int builder_linear(struct builder *b, const char *name, int x, const struct builder_linear *l)
{
    struct builder_linear own = *l;
    enum builder_rows rows;
    int y;

    if (b->rc < 0)
        return PROGRAM_NONE;
    if (!builder_divides(b))
        return linear(b, name, x, l);
    own.division = builder_decide(b, name, x, l, &rows);
    own.inputs = l->inputs ? l->inputs : builder_columns(b, x);
    x = linear_input(b, name, x, &own,
                     own.division == BUILDER_COLUMNS || l->division == BUILDER_WHOLE, rows);
    if (own.division == BUILDER_ROWS)
        return linear_rows(b, name, x, &own);
    y = linear(b, name, x, &own);
    return b->given && l->division == BUILDER_ROWS && own.division == BUILDER_COLUMNS
               ? builder_redistribute(b, name, y, 1, l->features, false, BUILDER_ALL_ROWS)
               : y;
}

/* x with the rows that a strategy of `name` gives a rank, else all. */
static int place_as_given(struct builder *b, const char *name, const char *suffix, int x)
{
    char input[PROGRAM_NAME_MAX];

    if (!b->given)
        return x;
    (void)snprintf(input, sizeof(input), "%s%s", name, suffix);
    return builder_place(b, input, x, builder_given_rows(b, name, BUILDER_ALL_ROWS), true);
}

/* `centers`: the mean is taken off, and there is a bias. */
static int add_norm(struct builder *b, const char *name, int x, double epsilon, bool centers)
{
    struct program_op op = {.kind = centers ? OP_LAYER_NORM : OP_RMS_NORM,
                            .attributes = {.epsilon = epsilon}};
    int64_t columns;

    x = place_as_given(b, name, ".input", x);
    if (b->rc < 0)
        return PROGRAM_NONE;
    columns = builder_columns(b, x);
    op.inputs[op.input_count++] = x;
    op.inputs[op.input_count++] =
        builder_add_parameter(b, name, ".weight", PROGRAM_INITIAL_ONE, 0, 1, &columns);
    if (centers)
        op.inputs[op.input_count++] =
            builder_add_parameter(b, name, ".bias", PROGRAM_INITIAL_ZERO, 0, 1, &columns);
    op.outputs[op.output_count++] = builder_activation(b, name, "", PROGRAM_FP32);
    if (centers)
        op.outputs[op.output_count++] = builder_activation(b, name, ".mean", PROGRAM_FP32);
    op.outputs[op.output_count++] = builder_activation(b, name, ".rstd", PROGRAM_FP32);
    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_layer_norm(struct builder *b, const char *name, int x, double epsilon)
{
    return add_norm(b, name, x, epsilon, true);
}

int builder_rms_norm(struct builder *b, const char *name, int x, double epsilon)
{
    return add_norm(b, name, x, epsilon, false);
}

int builder_attention(struct builder *b, const char *name, int qkv, int heads, int kv_heads)
{
    struct program_op op = {.kind = OP_ATTENTION,
                            .inputs = {qkv},
                            .input_count = 1,
                            .outputs = {builder_activation(b, name, "", PROGRAM_FP32),
                                        builder_activation(b, name, ".lse", PROGRAM_FP32)},
                            .output_count = 2,
                            .attributes = {.heads = heads, .kv_heads = kv_heads, .causal = true}};

    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_unary(struct builder *b, const char *name, enum op_kind kind, int x,
                  const struct op_attributes *attributes)
{
    struct program_op op = {.kind = kind,
                            .inputs = {x},
                            .input_count = 1,
                            .outputs = {builder_activation(b, name, "", PROGRAM_FP32)},
                            .output_count = 1};

    if (attributes)
        op.attributes = *attributes;
    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_dropout(struct builder *b, const char *name, int x, double rate)
{
    struct op_attributes a = {.rate = rate, .stream = b->streams};

    if (rate == 0 || b->rc < 0)
        return x;
    b->streams++;
    x = place_as_given(b, name, ".input", x);
    if (b->rc < 0)
        return PROGRAM_NONE;
    if (builder_shares_sequences(b)) {
        a.ranks = b->cell.sequence_ranks;
        a.place = b->cell.sequence_rank;
    }
    if (builder_divides_rows(b) || builder_rows_of(b, x) != BUILDER_ALL_ROWS) {
        a.ranks = (a.ranks > 0 ? a.ranks : 1) * b->cell.model_ranks;
        a.place = a.place * b->cell.model_ranks + b->cell.model_rank;
    }
    return builder_unary(b, name, OP_DROPOUT, x, &a);
}

int builder_add(struct builder *b, const char *name, int a, int c)
{
    a = place_as_given(b, name, ".input", a);
    c = place_as_given(b, name, ".skipped", c);
    return add_to(b, name, "", a, c);
}

int builder_swiglu(struct builder *b, const char *name, int gate, int up, int64_t features)
{
    struct program_op op = {.kind = OP_SWIGLU,
                            .input_count = 2,
                            .outputs = {builder_activation(b, name, "", PROGRAM_FP32)},
                            .output_count = 1};
    char input[PROGRAM_NAME_MAX];

    op.inputs[0] = gate;
    op.inputs[1] = up;
    for (int i = 0; i < 2 && b->given && b->rc == 0; i++) {
        bool divided = builder_given_columns(b, name, builder_columns(b, gate) < features);

        (void)snprintf(input, sizeof(input), "%s.%s", name, i ? "up" : "gate");
        op.inputs[i] = builder_redistribute(b, input, op.inputs[i], 1, features, divided,
                                            builder_given_rows(b, name, builder_rows_of(b, gate)));
    }
    builder_add_op(b, &op);
    return op.outputs[0];
}

int builder_table(struct builder *b, const char *name, int64_t rows, int64_t columns,
                  double deviation, bool is_tied)
{
    int64_t shape[2] = {rows, columns};
    struct program_slice slice;

    if (!builder_divides(b) || !builder_table_divided(b, is_tied))
        return builder_parameter(b, name, PROGRAM_INITIAL_NORMAL, deviation, 2, shape);
    slice = slice_of(rows, 1, 0, &b->cell);
    return add_slice(b, name, "", PROGRAM_INITIAL_NORMAL, deviation, 2, shape, &slice);
}

/* x [B,T,C] plus position [T,C], sample by sample. */
static int add_positions(struct builder *b, const char *name, int x, int position)
{
    int64_t shape[3], row;
    int flat;

    if (b->rc < 0)
        return PROGRAM_NONE;
    memcpy(shape, b->program->vars[x].shape, sizeof(shape));
    row = shape[1] * shape[2];
    flat = builder_reshape(b, name, ".flat", x, 2, (int64_t[]){shape[0], row});
    position = builder_reshape(b, name, ".positions", position, 1, &row);
    flat = add_to(b, name, ".placed", flat, position);
    return builder_reshape(b, name, ".tokens", flat, 3, shape);
}

int builder_embedding(struct builder *b, const char *name, int ids, int table, int position)
{
    struct program_op op = {.kind = OP_EMBEDDING,
                            .inputs = {ids, table, position},
                            .input_count = position == PROGRAM_NONE ? 2 : 3,
                            .output_count = 1};
    bool is_divided;
    int x;

    if (b->rc < 0)
        return PROGRAM_NONE;
    is_divided = b->program->vars[table].slice.parts > 0;
    if (is_divided) {
        op.input_count = 2;
        op.inputs[2] = 0;
        op.attributes.divided = true;
        op.attributes.first_word = b->program->vars[table].slice.first[0];
    }
    op.outputs[0] = builder_activation(b, name, "", PROGRAM_FP32);
    builder_add_op(b, &op);
    if (!is_divided)
        return builder_own_tokens(b, name, op.outputs[0]);
    if (position == PROGRAM_NONE)
        return builder_sum_rows(b, name, builder_own_tokens(b, name, op.outputs[0]));
    x = add_positions(b, name, builder_sum_parts(b, name, op.outputs[0]), position);
    x = builder_own_tokens(b, name, x);
    return builder_divides_rows(b) ? builder_divide_rows(b, name, OP_OWN_ROWS, x) : x;
}

int builder_concat(struct builder *b, const char *name, const int *parts, int count)
{
    struct program_op op = {.kind = OP_CONCAT,
                            .input_count = count,
                            .outputs = {builder_activation(b, name, "", PROGRAM_FP32)},
                            .output_count = 1};

    fleet_assert(count <= OP_INPUTS_MAX);
    memcpy(op.inputs, parts, (size_t)count * sizeof(*parts));
    builder_add_op(b, &op);
    return op.outputs[0];
}
