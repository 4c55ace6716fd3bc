/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One row an operator: Paddle's list for it and the types by which Paddle knows it. The rows were
 * compared with recorded lists of the real Paddle (tests/golden).
 */
#include "libfleet/program/passes/amp_lists.h"

#include <stdbool.h>
#include <string.h>

#include "libfleet/strategy/strategy.h"

#define TYPES_MAX 5

/* Forward operators alone: backward ones follow their forward operator. */
static const struct row {
    enum amp_list list;
    const char *types[TYPES_MAX];
} rows[OP_KIND_COUNT] = {
    [OP_EMBEDDING] = {AMP_BLACK, {"lookup_table_v2", "lookup_table"}},
    [OP_LAYER_NORM] = {AMP_BLACK, {"layer_norm"}}, /* gray as well, black wins (observed.md 7.2) */
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

static bool names(const struct strategy_strings *list, enum op_kind kind)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], op_definition(kind)->name) == 0)
            return true;
        for (int j = 0; j < TYPES_MAX && rows[kind].types[j]; j++)
            if (strcmp(list->items[i], rows[kind].types[j]) == 0)
                return true;
    }
    return false;
}

enum amp_list amp_lists_effective(enum op_kind kind, const struct strategy *strategy)
{
    if (names(&strategy->amp_configs.custom_black_list, kind))
        return AMP_BLACK;
    if (names(&strategy->amp_configs.custom_white_list, kind))
        return AMP_WHITE;
    return amp_lists_default(kind);
}
