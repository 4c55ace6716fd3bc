/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One row an operator: Paddle's list for it and Paddle's names of its type. The rows were
 * compared with recorded lists of the real Paddle (tests/golden).
 */
#include "libfleet/program/passes/amp_lists.h"

#include <stdbool.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/strategy.h"

#define TYPES_MAX 5

/* Forward operators alone: backward ones follow their forward operator. */
static const struct row {
    enum amp_list list;
    const char *types[TYPES_MAX];
} rows[OP_KIND_COUNT] = {
    [OP_EMBEDDING] = {AMP_BLACK, {"lookup_table_v2", "lookup_table"}},
    [OP_LAYER_NORM] = {AMP_BLACK, {"layer_norm"}}, /* gray as well, black wins */
    [OP_RMS_NORM] = {AMP_NONE, {"rms_norm"}},
    [OP_LINEAR] = {AMP_WHITE, {"mul", "matmul", "matmul_v2", "fused_gemm_epilogue"}},
    [OP_MATMUL] = {AMP_WHITE, {"matmul_v2", "matmul"}},
    [OP_ATTENTION] = {AMP_WHITE, {"fused_attention"}},
    [OP_CROSS_ENTROPY] = {AMP_BLACK, {"softmax_with_cross_entropy"}},
    [OP_ADD] = {AMP_GRAY, {"elementwise_add"}},
    [OP_SCALE] = {AMP_GRAY, {"scale"}},
    [OP_GELU] = {AMP_NONE, {"gelu"}},
    [OP_RELU] = {AMP_GRAY, {"relu"}},
    [OP_SILU] = {AMP_NONE, {"silu"}},
    [OP_SWIGLU] = {AMP_NONE, {"swiglu"}},
    [OP_ROPE] = {AMP_NONE, {"fused_rope"}},
    [OP_DROPOUT] = {AMP_GRAY, {"dropout"}},
    [OP_SOFTMAX] = {AMP_BLACK, {"softmax"}},
    [OP_CAST] = {AMP_GRAY, {"cast"}},
    [OP_RESHAPE] = {AMP_GRAY, {"reshape2"}},
    [OP_OWN_ROWS] = {AMP_GRAY, {"split"}},
    [OP_TRANSPOSE] = {AMP_GRAY, {"transpose2"}},
    [OP_REDUCE] = {AMP_BLACK, {"reduce_sum", "reduce_mean", "mean"}},
    [OP_CONCAT] = {AMP_GRAY, {"concat"}},
    [OP_SPLIT] = {AMP_GRAY, {"split"}},
    [OP_CONV2D] = {AMP_WHITE, {"conv2d"}},
    [OP_BATCH_NORM] = {AMP_GRAY, {"batch_norm"}},
    [OP_MAX_POOL2D] = {AMP_GRAY, {"pool2d"}},
    [OP_AVG_POOL2D] = {AMP_GRAY, {"pool2d"}},
    [OP_ADAPTIVE_AVG_POOL2D] = {AMP_GRAY, {"pool2d"}},
    [OP_FILL] = {AMP_GRAY, {"fill_constant"}},
};

enum amp_list amp_lists_default(enum op_kind kind)
{
    return rows[kind].types[0] ? rows[kind].list : AMP_NONE;
}

const char *const *amp_lists_paddle_types(enum op_kind kind)
{
    return rows[kind].types;
}

/* What else is in the lists of Paddle 2.0 and 2.6: another model may have it, so it is no
 * misspelling. */
static const char *const others[] = {"acos",
                                     "asin",
                                     "atanh",
                                     "bicubic_interp_v2",
                                     "bilinear_interp_v2",
                                     "c_allreduce_sum",
                                     "c_concat",
                                     "c_identity",
                                     "c_softmax_with_cross_entropy",
                                     "cos_sim",
                                     "cosh",
                                     "cross_entropy",
                                     "cross_entropy2",
                                     "cumprod",
                                     "cumsum",
                                     "dist",
                                     "einsum",
                                     "elementwise_div",
                                     "elementwise_floordiv",
                                     "elementwise_max",
                                     "elementwise_min",
                                     "elementwise_mod",
                                     "elementwise_mul",
                                     "elementwise_pow",
                                     "elementwise_sub",
                                     "erfinv",
                                     "exp",
                                     "expm1",
                                     "fake_quantize_dequantize_abs_max",
                                     "fake_quantize_dequantize_moving_average_abs_max",
                                     "flatten2",
                                     "frobenius_norm",
                                     "fused_bn_add_activation",
                                     "fused_feedforward",
                                     "fused_multi_transformer",
                                     "gather",
                                     "gaussian_random",
                                     "gaussian_random_batch_size_like",
                                     "get_tensor_from_selected_rows",
                                     "group_norm",
                                     "hsigmoid_loss",
                                     "huber_loss",
                                     "leaky_relu",
                                     "linear_interp_v2",
                                     "log",
                                     "log10",
                                     "log2",
                                     "log_loss",
                                     "log_softmax",
                                     "margin_cross_entropy",
                                     "max_pool2d_with_index",
                                     "nearest_interp_v2",
                                     "nll_loss",
                                     "pnorm",
                                     "pool3d",
                                     "pow",
                                     "rank",
                                     "reciprocal",
                                     "reduce_prod",
                                     "relu6",
                                     "renorm",
                                     "resnet_unit",
                                     "rsqrt",
                                     "scatter",
                                     "sigmoid",
                                     "sigmoid_cross_entropy_with_logits",
                                     "sign",
                                     "sinh",
                                     "slice",
                                     "soft_relu",
                                     "softmin",
                                     "softplus",
                                     "square",
                                     "squeeze2",
                                     "stack",
                                     "sum",
                                     "tan",
                                     "tanh",
                                     "tanh_shrink",
                                     "top_k",
                                     "trilinear_interp_v2",
                                     "triplet_margin_loss",
                                     "uniform_random",
                                     "uniform_random_batch_size_like",
                                     "unsqueeze2",
                                     "unstack"};

#define NAMES_MAX (OP_KIND_COUNT * (TYPES_MAX + 1) + FLEET_COUNT(others))

bool amp_lists_means(const char *name, enum op_kind kind)
{
    if (strcmp(name, op_definition(kind)->name) == 0)
        return true;
    for (int i = 0; i < TYPES_MAX && rows[kind].types[i]; i++)
        if (strcmp(name, rows[kind].types[i]) == 0)
            return true;
    return false;
}

const char *amp_lists_find(const struct strategy_strings *list, enum op_kind kind)
{
    for (size_t i = 0; i < list->count; i++)
        if (amp_lists_means(list->items[i], kind))
            return list->items[i];
    return NULL;
}

/* Every name that a list may have; returns how many. */
static size_t list_names(const char *names[NAMES_MAX])
{
    size_t count = 0;

    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        if (!rows[kind].types[0])
            continue;
        names[count++] = op_definition((enum op_kind)kind)->name;
        for (int i = 0; i < TYPES_MAX && rows[kind].types[i]; i++)
            names[count++] = rows[kind].types[i];
    }
    for (size_t i = 0; i < FLEET_COUNT(others); i++)
        names[count++] = others[i];
    return count;
}

bool amp_lists_knows(const char *name)
{
    const char *names[NAMES_MAX];
    size_t count = list_names(names);

    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

const char *amp_lists_closest(const char *name)
{
    const char *names[NAMES_MAX];

    return fleet_closest_word(name, names, list_names(names));
}

enum amp_list amp_lists_effective(enum op_kind kind, const struct strategy *strategy)
{
    if (amp_lists_find(&strategy->amp_configs.custom_black_list, kind))
        return AMP_BLACK;
    if (amp_lists_find(&strategy->amp_configs.custom_white_list, kind))
        return AMP_WHITE;
    return amp_lists_default(kind);
}
