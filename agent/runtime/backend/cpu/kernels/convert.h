/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_CONVERT_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_CONVERT_H

/*
 * CAST: to the nearest, or fp32 to bf16 at random. Then a random number of 16 bits is added to the
 * bits that are dropped: bits 16·(e % 8) … of random block e / 8 belong to element e.
 */

#include "agent/runtime/backend/cpu/kernels/elementwise.h"
#include "libfleet/base/random.h"

#define CONVERT_BLOCK 8 /* elements of a random block */

struct convert {
    const float *x;
    uint16_t *y;
    int64_t count, step;
    struct fleet_random_key key;
};

static void convert_task(void *context, int64_t task, int thread)
{
    const struct convert *c = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, c->count);
    uint32_t words[4] = {0};

    (void)thread;
    for (int64_t i = from; i < to; i++) {
        uint32_t bits = typed_bits_of_float(c->x[i]), random;
        if (i % CONVERT_BLOCK == 0)
            fleet_random_block(c->key, (uint64_t)c->step, (uint64_t)(i / CONVERT_BLOCK), words);
        random = words[i / 2 % 4] >> 16 * (i % 2) & 0xffff;
        c->y[i] = (bits & 0x7f800000) == 0x7f800000 ? typed_to_bf16(c->x[i])
                                                    : (uint16_t)((bits + random) >> 16);
    }
}

static int convert_kernel(struct backend *backend, const struct kernel_call *call,
                          struct fleet_error *err)
{
    uint64_t stream = call->op->attributes.stream;
    struct convert c = {.x = call->in[0],
                        .y = call->out[0],
                        .count = program_var_elements(kernel_in(call, 0)),
                        .step = call->scalars->step,
                        .key = fleet_random_key(call->scalars->seed, "rounding", stream)};

    if (stream == 0 || call->scalars->evaluation)
        return cast_kernel(backend, call, err);
    cpu_parallel(cpu_backend(backend), kernel_pieces(c.count, KERNEL_TASK_ELEMENTS), convert_task,
                 &c);
    return 0;
}

#endif
