/* SPDX-License-Identifier: Apache-2.0 */

/*
 * y = op(a)·op(b), matrix by matrix over the leading dimensions, op = transposed or not. Its
 * gradients are products again. (LINEAR is the one with a weight, a bias and an activation.)
 */
#include <errno.h>

#include "libfleet/base/error.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/ops/definitions.h"
#include "libfleet/program/ops/operand.h"

/* Rows and columns of op(operand i). */
static void sides(const struct program *program, const struct program_op *op, int i,
                  int64_t *out_rows, int64_t *out_columns)
{
    const struct program_var *x = operand_in(program, op, i);
    bool turned = i == 0 ? op->attributes.transposed_a : op->attributes.transposed;

    *out_rows = x->shape[x->ndim - (turned ? 1 : 2)];
    *out_columns = x->shape[x->ndim - (turned ? 2 : 1)];
}

static int matmul_infer(struct program *program, const struct program_op *op,
                        struct fleet_error *err)
{
    struct program_var a = *operand_in(program, op, 0), b;
    int64_t m, n, k, k_of_b;

    for (int i = 0; i < 2; i++)
        if (operand_need_ndim(program, op, i, 2, PROGRAM_DIMS_MAX, err) < 0 ||
            operand_need_type(program, op, i, OPERAND_FLOAT, err) < 0)
            return -EINVAL;
    sides(program, op, 0, &m, &k);
    sides(program, op, 1, &k_of_b, &n);
    b = a;
    b.shape[b.ndim - 2] = op->attributes.transposed ? n : k;
    b.shape[b.ndim - 1] = op->attributes.transposed ? k : n;
    if (operand_need_like(program, op, 1, &b, err) < 0)
        return -EINVAL;
    a.shape[a.ndim - 2] = m;
    a.shape[a.ndim - 1] = n;
    return operand_give_like(program, op, 0, OPERAND_FLOAT, &a, err);
}

/* out = op(x)·op(y), if it is needed. */
static int append_product(struct autodiff *ad, int x, bool x_turned, int y, bool y_turned, int out,
                          struct fleet_error *err)
{
    if (out == PROGRAM_NONE)
        return 0;
    return autodiff_add_op(
        ad,
        &(struct program_op){.kind = OP_MATMUL,
                             .inputs = {x, y},
                             .input_count = 2,
                             .outputs = {out},
                             .output_count = 1,
                             .attributes = {.transposed_a = x_turned, .transposed = y_turned}},
        err);
}

static int matmul_gradient(struct program *program, const struct program_op *op,
                           struct autodiff *ad, struct fleet_error *err)
{
    int a = op->inputs[0], b = op->inputs[1];
    bool a_turned = op->attributes.transposed_a, b_turned = op->attributes.transposed;
    int d = autodiff_of_filled(ad, op->outputs[0], err), d_a, d_b, rc;

    (void)program;
    if (d == PROGRAM_NONE)
        return -EINVAL;
    d_a = autodiff_slot(ad, a);
    d_b = autodiff_slot(ad, b);
    rc = a_turned ? append_product(ad, b, b_turned, d, true, d_a, err)
                  : append_product(ad, d, false, b, !b_turned, d_a, err);
    if (rc < 0)
        return rc;
    return b_turned ? append_product(ad, d, true, a, a_turned, d_b, err)
                    : append_product(ad, a, !a_turned, d, false, d_b, err);
}

static void matmul_cost(const struct program *program, const struct program_op *op,
                        struct op_cost *out)
{
    const struct program_var *y = operand_out(program, op, 0);
    int64_t rows, depth;

    sides(program, op, 0, &rows, &depth);
    out->flops = 2 * (double)depth * operand_out_elements(program, op, 0);
    /* fp32 sums of a product with a 16-bit result, for a block of its columns at a time. */
    if (y->type != PROGRAM_FP32)
        out->scratch_bytes = (size_t)rows * OPERAND_PRODUCT_COLUMNS * sizeof(float);
}

const struct op_definition matmul_definition = {
    .name = "matmul",
    .input_min = 2,
    .input_max = 2,
    .output_min = 1,
    .output_max = 1,
    .infer = matmul_infer,
    .gradient = matmul_gradient,
    .cost = matmul_cost,
};
