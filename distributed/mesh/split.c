/* SPDX-License-Identifier: Apache-2.0 */

/* Layers whose weight is divided over a group (fleet_split_new()). */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/distributed.h"
#include "include/fleet/fleet_mesh.h"
#include "libfleet/base/cleanup.h"

struct fleet_split {
    struct fleet_split_options options;
    struct fleet_group *group;
    int64_t rows, columns; /* of this rank's part */
    int64_t first;         /* its first row, or column with axis 1 */
    struct fleet_tensor weight, weight_gradient, bias, bias_gradient; /* their data: owned */
};

/* ---- making ---------------------------------------------------------------------------------- */

static int check_options(const char *what, const struct fleet_split_options *o, int ranks,
                         struct fleet_error *err)
{
    bool is_embedding = o->kind == FLEET_SPLIT_EMBEDDING;
    int64_t divided = o->axis == 0 ? o->rows : o->columns;

    if ((int)o->kind < 0 || o->kind > FLEET_SPLIT_EMBEDDING)
        return fleet_error(err, -EINVAL, "%s: kind is %d, allowed: 0 (linear), 1 (embedding)", what,
                           (int)o->kind);
    if (o->axis != 0 && (o->axis != 1 || is_embedding))
        return fleet_error(err, -EINVAL, "%s: axis is %d, allowed: 0%s", what, o->axis,
                           is_embedding ? " for an embedding" : " and 1");
    if (is_embedding && o->has_bias)
        return fleet_error(err, -EINVAL, "%s: an embedding has no bias", what);
    if (o->rows < 1 || o->columns < 1 || o->rows > INT64_MAX / 16 / o->columns)
        return fleet_error(err, -EINVAL, "%s: %" PRId64 " × %" PRId64 " weights", what, o->rows,
                           o->columns);
    if (o->partitions != ranks)
        return fleet_error(err, -EINVAL, "%s: partitions is %d, the group has %d ranks", what,
                           o->partitions, ranks);
    if (divided % ranks != 0)
        return fleet_error(err, -EINVAL, "%s: %d ranks do not divide %" PRId64 " %s", what, ranks,
                           divided, o->axis == 0 ? "rows" : "columns");
    return 0;
}

static int check_tensor(const char *what, const char *name, const struct fleet_tensor *tensor,
                        enum fleet_type type, int dimensions, int64_t first, int64_t second,
                        struct fleet_error *err)
{
    if (!tensor || !tensor->data)
        return fleet_error(err, -EINVAL, "%s: %s is NULL", what, name);
    if (tensor->type != type || tensor->dimensions != dimensions || tensor->shape[0] < 0 ||
        (first >= 0 && tensor->shape[0] != first) ||
        (dimensions == 2 && tensor->shape[1] != second))
        return fleet_error(err, -EINVAL,
                           "%s: %s has a wrong type or shape, needed: %s of %d dimensions, the "
                           "last one %" PRId64,
                           what, name, comm_type_name((enum comm_type)type), dimensions,
                           dimensions == 2 ? second : first);
    return 0;
}

/* A part of the weight or the bias, and zeros for its gradient. */
static int add_part(int64_t rows, int64_t columns, int dimensions, struct fleet_tensor *part,
                    struct fleet_tensor *gradient)
{
    *part = (struct fleet_tensor){
        NULL, FLEET_FP32, dimensions, {dimensions == 2 ? rows : columns, columns}};
    *gradient = *part;
    part->data = calloc((size_t)(rows * columns) + 1, sizeof(float));
    gradient->data = calloc((size_t)(rows * columns) + 1, sizeof(float));
    return part->data && gradient->data ? 0 : -ENOMEM;
}

static int fill(struct fleet_split *split, const struct fleet_tensor *weight,
                const struct fleet_tensor *bias, struct fleet_error *err)
{
    const struct fleet_split_options *o = &split->options;
    int64_t row = o->axis == 0 ? split->first : 0, column = o->axis == 1 ? split->first : 0;
    int64_t biases = o->has_bias ? split->columns : 0;

    if (add_part(split->rows, split->columns, 2, &split->weight, &split->weight_gradient) < 0 ||
        add_part(1, biases, 1, &split->bias, &split->bias_gradient) < 0)
        return fleet_error(err, -ENOMEM, "fleet_split_new: out of memory");
    for (int64_t i = 0; i < split->rows; i++)
        memcpy((float *)split->weight.data + i * split->columns,
               (const float *)weight->data + (row + i) * o->columns + column,
               (size_t)split->columns * sizeof(float));
    if (biases > 0 && bias)
        memcpy(split->bias.data, (const float *)bias->data + column,
               (size_t)biases * sizeof(float));
    return 0;
}

int fleet_split_new(const struct fleet_split_options *options, const struct fleet_tensor *weight,
                    const struct fleet_tensor *bias, struct fleet_group *group,
                    struct fleet_split **out, struct fleet_error *err)
{
    const char *what = "fleet_split_new";
    struct fleet_split *split;
    int rc = group_ready(what, group, &group, err);

    if (rc < 0)
        return rc;
    if (!options)
        return fleet_error(err, -EINVAL, "%s: options is NULL", what);
    if (check_options(what, options, group->count, err) < 0 ||
        check_tensor(what, "weight", weight, FLEET_FP32, 2, options->rows, options->columns, err) <
            0 ||
        (options->has_bias && bias &&
         check_tensor(what, "bias", bias, FLEET_FP32, 1, options->columns, 0, err) < 0))
        return -EINVAL;
    split = calloc(1, sizeof(*split));
    if (!split)
        return fleet_error(err, -ENOMEM, "%s: out of memory", what);
    *split = (struct fleet_split){.options = *options, .group = group};
    split->rows = options->axis == 0 ? options->rows / group->count : options->rows;
    split->columns = options->axis == 1 ? options->columns / group->count : options->columns;
    split->first = group->comm->rank * (options->axis == 0 ? split->rows : split->columns);
    rc = fill(split, weight, bias, err);
    if (rc < 0)
        fleet_split_free(split);
    else
        *out = split;
    return rc;
}

void fleet_split_free(struct fleet_split *split)
{
    if (!split)
        return;
    free(split->weight.data);
    free(split->weight_gradient.data);
    free(split->bias.data);
    free(split->bias_gradient.data);
    free(split);
}

const struct fleet_tensor *fleet_split_weight(const struct fleet_split *split)
{
    return &split->weight;
}

const struct fleet_tensor *fleet_split_weight_gradient(const struct fleet_split *split)
{
    return &split->weight_gradient;
}

const struct fleet_tensor *fleet_split_bias(const struct fleet_split *split)
{
    return &split->bias;
}

const struct fleet_tensor *fleet_split_bias_gradient(const struct fleet_split *split)
{
    return &split->bias_gradient;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void multiply(const struct fleet_split *split, const float *in, int64_t n, float *out)
{
    const float *weight = split->weight.data;

    memset(out, 0, (size_t)(n * split->columns) * sizeof(*out));
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < split->rows; r++)
            for (int64_t c = 0; c < split->columns; c++)
                out[i * split->columns + c] +=
                    in[i * split->rows + r] * weight[r * split->columns + c];
}

static void add_bias(const struct fleet_split *split, int64_t n, float *out)
{
    const float *bias = split->bias.data;

    for (int64_t i = 0; split->options.has_bias && i < n; i++)
        for (int64_t c = 0; c < split->columns; c++)
            out[i * split->columns + c] += bias[c];
}

static int look_up(const struct fleet_split *split, const int64_t *in, int64_t n, float *out,
                   struct fleet_error *err)
{
    const float *weight = split->weight.data;
    size_t bytes = (size_t)split->columns * sizeof(*out);

    for (int64_t i = 0; i < n; i++)
        if (in[i] < 0 || in[i] >= split->options.rows)
            return fleet_error(err, -EINVAL,
                               "fleet_split_forward: in[%" PRId64 "] is %" PRId64
                               ", the vocabulary has %" PRId64 " rows",
                               i, in[i], split->options.rows);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = in[i] - split->first;

        if (row >= 0 && row < split->rows)
            memcpy(out + i * split->columns, weight + row * split->columns, bytes);
        else
            memset(out + i * split->columns, 0, bytes);
    }
    return 0;
}

/* The columns of all ranks, side by side. */
static int gather_columns(struct fleet_split *split, const float *part, int64_t n, float *out,
                          struct fleet_error *err)
{
    int64_t elements = n * split->columns;
    int ranks = split->group->count;
    FLEET_AUTO_FREE float *all = calloc((size_t)(elements * ranks) + 1, sizeof(*all));
    struct fleet_tensor to = {all, FLEET_FP32, 1, {elements * ranks}},
                        from = {(void *)part, FLEET_FP32, 1, {elements}};
    int rc;

    if (!all)
        return fleet_error(err, -ENOMEM, "out of memory");
    rc = fleet_all_gather(&to, &from, split->group, NULL, err);
    for (int r = 0; rc == 0 && r < ranks; r++)
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i * split->options.columns + r * split->columns,
                   all + r * elements + i * split->columns, (size_t)split->columns * sizeof(float));
    return rc;
}

static int check_sides(const char *what, const struct fleet_split *split,
                       const struct fleet_tensor *in, const struct fleet_tensor *out,
                       struct fleet_error *err)
{
    const struct fleet_split_options *o = &split->options;
    bool is_embedding = o->kind == FLEET_SPLIT_EMBEDDING;
    bool is_part = o->axis == 1 && !o->gather_out;
    int rc = check_tensor(what, "in", in, is_embedding ? FLEET_INT64 : FLEET_FP32,
                          is_embedding ? 1 : 2, -1, split->rows, err);

    return rc < 0 ? rc
                  : check_tensor(what, "out", out, FLEET_FP32, 2, in->shape[0],
                                 is_part ? split->columns : o->columns, err);
}

int fleet_split_forward(struct fleet_split *split, const struct fleet_tensor *in,
                        const struct fleet_tensor *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE float *part = NULL;
    float *to;
    int64_t n;
    bool gathers;
    int rc;

    if (!split)
        return fleet_error(err, -EINVAL, "fleet_split_forward: split is NULL");
    if (check_sides("fleet_split_forward", split, in, out, err) < 0)
        return -EINVAL;
    n = in->shape[0];
    gathers = split->options.axis == 1 && split->options.gather_out;
    part = gathers ? calloc((size_t)(n * split->columns) + 1, sizeof(*part)) : NULL;
    if (gathers && !part)
        return fleet_error(err, -ENOMEM, "fleet_split_forward: out of memory");
    to = gathers ? part : out->data;
    if (split->options.kind == FLEET_SPLIT_EMBEDDING) {
        rc = look_up(split, in->data, n, to, err);
        if (rc < 0)
            return rc;
    } else {
        multiply(split, in->data, n, to);
    }
    rc = split->options.axis == 0 ? fleet_all_reduce(out, FLEET_SUM, split->group, NULL, err) : 0;
    if (rc == 0)
        add_bias(split, n, to);
    if (rc == 0 && gathers)
        rc = gather_columns(split, part, n, out->data, err);
    return rc < 0 ? fleet_error_wrap(err, "fleet_split_forward") : 0;
}

/* ---- backward -------------------------------------------------------------------------------- */

static void add_embedding(struct fleet_split *split, const int64_t *in, int64_t n,
                          const float *gradient)
{
    float *to = split->weight_gradient.data;

    for (int64_t i = 0; i < n; i++) {
        int64_t row = in[i] - split->first;

        for (int64_t c = 0; row >= 0 && row < split->rows && c < split->columns; c++)
            to[row * split->columns + c] += gradient[i * split->columns + c];
    }
}

/* `gradient` has rows of `stride` elements. This rank's columns begin at its first one. */
static void add_linear(struct fleet_split *split, const float *in, int64_t n, const float *gradient,
                       int64_t stride)
{
    float *weight = split->weight_gradient.data, *bias = split->bias_gradient.data;

    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < split->columns; c++) {
            float g = gradient[i * stride + c];

            for (int64_t r = 0; r < split->rows; r++)
                weight[r * split->columns + c] += in[i * split->rows + r] * g;
            if (split->options.has_bias)
                bias[c] += g;
        }
}

static void multiply_back(const struct fleet_split *split, const float *gradient, int64_t stride,
                          int64_t n, float *out)
{
    const float *weight = split->weight.data;

    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < split->rows; r++) {
            float sum = 0;

            for (int64_t c = 0; c < split->columns; c++)
                sum += gradient[i * stride + c] * weight[r * split->columns + c];
            out[i * split->rows + r] = sum;
        }
}

int fleet_split_backward(struct fleet_split *split, const struct fleet_tensor *in,
                         const struct fleet_tensor *out_gradient,
                         const struct fleet_tensor *in_gradient, struct fleet_error *err)
{
    const char *what = "fleet_split_backward";
    const float *gradient;
    bool has_all;
    int rc = 0;

    if (!split)
        return fleet_error(err, -EINVAL, "%s: split is NULL", what);
    if (check_sides(what, split, in, out_gradient, err) < 0)
        return -EINVAL;
    gradient = out_gradient->data;
    if (split->options.kind == FLEET_SPLIT_EMBEDDING) {
        if (in_gradient)
            return fleet_error(err, -EINVAL, "%s: an embedding has no gradient of its input", what);
        add_embedding(split, in->data, in->shape[0], gradient);
        return 0;
    }
    if (in_gradient && check_tensor(what, "in_gradient", in_gradient, FLEET_FP32, 2, in->shape[0],
                                    split->rows, err) < 0)
        return -EINVAL;
    has_all = split->options.axis == 1 && split->options.gather_out;
    gradient += has_all ? split->first : 0;
    add_linear(split, in->data, in->shape[0], gradient, out_gradient->shape[1]);
    if (in_gradient) {
        multiply_back(split, gradient, out_gradient->shape[1], in->shape[0], in_gradient->data);
        if (split->options.axis == 1)
            rc = fleet_all_reduce(in_gradient, FLEET_SUM, split->group, NULL, err);
    }
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}
