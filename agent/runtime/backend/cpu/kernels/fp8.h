/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_FP8_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_FP8_H

/*
 * Factors of a product in fp8 (libfleet/program/fp8.h), rounded, in bf16, which has all bits of a
 * code times 2^-s. The products are those of a GPU; only the order of their sums differs. Tests use
 * this, and a user who wants to know what fp8 costs in accuracy. It saves neither time nor memory.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "libfleet/program/fp8.h"

struct fp8_rounding {
    struct cpu_backend *cpu;
    const void *x;
    enum program_type x_type;
    bool by_bf16; /* a GPU has x in bf16 */
    enum fp8_type type;
    int scale; /* s */
    int64_t count;
    uint16_t *out;
};

V_INLINE float fp8_element(const struct fp8_rounding *r, int64_t i)
{
    float x = r->x_type == PROGRAM_FP32 ? ((const float *)r->x)[i]
                                        : typed_of_bf16(((const uint16_t *)r->x)[i]);

    return r->by_bf16 ? typed_of_bf16(typed_to_bf16(x)) : x;
}

/* The nearest number of a type. */
V_INLINE float fp8_nearest(float x, enum fp8_type type)
{
    uint32_t bits = typed_bits_of_float(x), sign = bits & 0x80000000, size = bits & 0x7fffffff;
    int dropped = type == FP8_E4M3 ? 20 : 21;
    uint32_t least = type == FP8_E4M3 ? 0x3c800000 : 0x38800000;
    uint32_t greatest = type == FP8_E4M3 ? 0x43e00000 : 0x47600000;
    float subnormal = type == FP8_E4M3 ? 0x1p14f : 0x1p7f; /* its last place is the type's */

    if (size >= 0x7f800000)
        return typed_float_of_bits(0x7fc00000);
    if (size < least) {
        float sum = typed_float_of_bits(size) + subnormal;
        return typed_float_of_bits(typed_bits_of_float(sum - subnormal) | sign);
    }
    size = (size + ((1u << (dropped - 1)) - 1) + (size >> dropped & 1)) >> dropped << dropped;
    return typed_float_of_bits((size < greatest ? size : greatest) | sign);
}

static void fp8_greatest_task(void *context, int64_t task, int thread)
{
    const struct fp8_rounding *r = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, r->count);
    uint32_t *greatest = cpu_thread_buffer(r->cpu, thread);

    for (int64_t i = from; i < to; i++) {
        uint32_t size = typed_bits_of_float(fp8_element(r, i)) & 0x7fffffff;
        if (size < 0x7f800000 && size > *greatest)
            *greatest = size;
    }
}

static void fp8_round_task(void *context, int64_t task, int thread)
{
    const struct fp8_rounding *r = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, r->count);
    float up = typed_float_of_bits(fp8_power(r->scale));
    float down = typed_float_of_bits(fp8_power(-r->scale));

    (void)thread;
    for (int64_t i = from; i < to; i++)
        r->out[i] = typed_to_bf16(fp8_nearest(fp8_element(r, i) * up, r->type) * down);
}

/* The rounded elements of x, in `to`, which moves behind them. The greatest element is the same for
 * any number of threads. */
static const void *fp8_round(struct cpu_backend *cpu, const void *x, enum program_type x_type,
                             int64_t count, bool by_bf16, enum fp8_type type, char **to)
{
    struct fp8_rounding r = {.cpu = cpu,
                             .x = x,
                             .x_type = x_type,
                             .by_bf16 = by_bf16,
                             .type = type,
                             .count = count,
                             .out = (uint16_t *)(void *)*to};
    uint32_t greatest = 0;

    *to += fp8_rounded_bytes(count);
    for (int t = 0; t < cpu->threads; t++)
        *(uint32_t *)cpu_thread_buffer(cpu, t) = 0;
    cpu_parallel(cpu, kernel_pieces(count, KERNEL_TASK_ELEMENTS), fp8_greatest_task, &r);
    for (int t = 0; t < cpu->threads; t++) {
        uint32_t own = *(uint32_t *)cpu_thread_buffer(cpu, t);
        greatest = own > greatest ? own : greatest;
    }
    r.scale = fp8_scale(greatest, type);
    cpu_parallel(cpu, kernel_pieces(count, KERNEL_TASK_ELEMENTS), fp8_round_task, &r);
    return r.out;
}

#endif
