/* SPDX-License-Identifier: Apache-2.0 */

/*
 * softmax(q · kᵀ/√D, masked) · v of packed q, k, v, tile by tile: no [T,T] matrix is ever in memory
 * (Dao et al., 2205.14135). lse, the logarithm of each row's sum, lets the backward part make the
 * tiles again. With kv_heads G < heads H each key head serves H/G query heads.
 */
#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

/* Checks packed qkv in input i; fills head_dim. */
static int need_packed(struct program *program, const struct program_op *op, int i,
                       int64_t *head_dim, struct fleet_error *err)
{
    const struct program_var *qkv = operand_in(program, op, i);
    int heads = op->attributes.heads, kv_heads = op->attributes.kv_heads;

    if (operand_need_at_least("heads", heads, 1, err) < 0 ||
        operand_need_at_least("kv_heads", kv_heads, 1, err) < 0 ||
        operand_need_ndim(program, op, i, 3, 3, err) < 0 ||
        operand_need_type(program, op, i, OPERAND_FLOAT, err) < 0)
        return -EINVAL;
    if (heads % kv_heads)
        return fleet_error(err, -EINVAL, "heads %d is not a multiple of kv_heads %d", heads,
                           kv_heads);
    *head_dim = qkv->shape[2] / (heads + 2 * kv_heads);
    if (*head_dim * (heads + 2 * kv_heads) != qkv->shape[2])
        return fleet_error(err, -EINVAL,
                           "input %d (%s) has %" PRId64 " columns, not a multiple of the %d heads "
                           "of q, k and v",
                           i, qkv->name, qkv->shape[2], heads + 2 * kv_heads);
    return 0;
}

static int attention_infer(struct program *program, const struct program_op *op,
                           struct fleet_error *err)
{
    struct program_var qkv = *operand_in(program, op, 0);
    int64_t head_dim = 0, heads = op->attributes.heads;

    if (need_packed(program, op, 0, &head_dim, err) < 0 ||
        operand_give(program, op, 0, OPERAND_FLOAT, 3,
                     (int64_t[]){qkv.shape[0], qkv.shape[1], heads * head_dim}, err) < 0)
        return -EINVAL;
    return operand_give(program, op, 1, OPERAND_FP32, 3,
                        (int64_t[]){qkv.shape[0], heads, qkv.shape[1]}, err);
}

static int attention_gradient(struct program *program, const struct program_op *op,
                              struct autodiff *ad, struct fleet_error *err)
{
    struct program_op grad = {
        .kind = OP_ATTENTION_GRAD,
        .inputs = {autodiff_of(ad, op->outputs[0]), op->inputs[0], op->outputs[0], op->outputs[1]},
        .input_count = 4,
        .outputs = {autodiff_slot(ad, op->inputs[0])},
        .output_count = 1,
        .attributes = op->attributes};

    (void)program;
    return autodiff_add_op(ad, &grad, err);
}

static int attention_grad_infer(struct program *program, const struct program_op *op,
                                struct fleet_error *err)
{
    struct program_var qkv = *operand_in(program, op, 1);
    int64_t head_dim = 0, heads = op->attributes.heads, out[3] = {qkv.shape[0], qkv.shape[1], 0};

    if (need_packed(program, op, 1, &head_dim, err) < 0)
        return -EINVAL;
    out[2] = heads * head_dim;
    if (operand_need_shape(program, op, 0, 3, out, err) < 0 ||
        operand_need_shape(program, op, 2, 3, out, err) < 0 ||
        operand_need_shape(program, op, 3, 3, (int64_t[]){qkv.shape[0], heads, qkv.shape[1]}, err) <
            0 ||
        operand_need_type(program, op, 3, OPERAND_FP32, err) < 0)
        return -EINVAL;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &qkv, err);
}

/* One product of scores' size: 2 · B · H · T · T · D, halved by the causal mask. */
static double product_flops(const struct program_op *op, const struct program_var *qkv)
{
    double heads = op->attributes.heads, width = (double)qkv->shape[2];
    double head_dim = width / (heads + 2 * op->attributes.kv_heads), t = (double)qkv->shape[1];

    return 2 * (double)qkv->shape[0] * heads * t * t * head_dim / (op->attributes.causal ? 2 : 1);
}

static void attention_cost(const struct program *program, const struct program_op *op,
                           struct op_cost *out)
{
    out->flops = 2 * product_flops(op, operand_in(program, op, 0));
}

/* Row sums of d_out · out, as large as lse; and the gradient in fp32 if it becomes narrower. Tiles
 * live in the buffers of the threads. */
static void attention_grad_cost(const struct program *program, const struct program_op *op,
                                struct op_cost *out)
{
    size_t sums = ((size_t)operand_in_elements(program, op, 3) + 15) / 16 * 16;
    size_t wide = operand_out(program, op, 0)->type == PROGRAM_FP32
                      ? 0
                      : (size_t)operand_out_elements(program, op, 0);

    out->flops = 5 * product_flops(op, operand_in(program, op, 1));
    out->scratch_bytes = (sums + wide) * sizeof(float);
}

const struct op_definition attention_definition = {
    .name = "attention",
    .input_min = 1,
    .input_max = 1,
    .output_min = 2,
    .output_max = 2,
    .infer = attention_infer,
    .gradient = attention_gradient,
    .cost = attention_cost,
};

const struct op_definition attention_grad_definition = {
    .name = "attention_grad",
    .input_min = 4,
    .input_max = 4,
    .output_min = 1,
    .output_max = 1,
    .infer = attention_grad_infer,
    .cost = attention_grad_cost,
};
