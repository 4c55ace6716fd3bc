/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_MATMUL_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_MATMUL_H

/* Products of matrices, one after the other; each uses all threads. */

#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "agent/runtime/backend/cpu/kernels/linear.h"

/* Matrix `number` of operand i, turned or not. */
static struct gemm_operand matmul_operand(const struct kernel_call *call, int i, int64_t number,
                                          bool turned)
{
    const struct program_var *x = kernel_in(call, i);
    int64_t columns = x->shape[x->ndim - 1], elements = x->shape[x->ndim - 2] * columns;
    const char *data = call->in[i];

    return linear_operand(data + (size_t)(number * elements) * program_type_size(x->type), x->type,
                          columns, turned);
}

static int matmul_kernel(struct backend *backend, const struct kernel_call *call,
                         struct fleet_error *err)
{
    const struct program_var *y = kernel_out(call, 0), *a = kernel_in(call, 0);
    bool turned = call->op->attributes.transposed_a;
    int64_t m = y->shape[y->ndim - 2], n = y->shape[y->ndim - 1];
    int64_t k = a->shape[a->ndim - (turned ? 2 : 1)];
    int64_t matrices = program_var_elements(y) / (m * n);
    char *out = call->out[0];

    (void)err;
    for (int64_t i = 0; i < matrices; i++) {
        struct gemm gemm = {.m = m,
                            .n = n,
                            .k = k,
                            .a = matmul_operand(call, 0, i, turned),
                            .b = matmul_operand(call, 1, i, call->op->attributes.transposed)};
        linear_product(cpu_backend(backend), &gemm,
                       out + (size_t)(i * m * n) * program_type_size(y->type), y->type,
                       call->scratch);
    }
    return 0;
}

#endif
