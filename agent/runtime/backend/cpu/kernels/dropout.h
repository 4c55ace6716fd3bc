/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_DROPOUT_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_DROPOUT_H

/*
 * y = x/(1 - rate), or 0 with probability `rate`. Which elements is a function of (seed, stream,
 * step, sample, element): not of rank, micro-batch or direction, so backward is the same operator
 * on d_y.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "libfleet/base/random.h"

struct dropout {
    const void *x;
    void *y;
    enum program_type x_type, y_type;
    struct fleet_random_key key;
    int64_t step, first_sample, per_sample, count;
    int64_t first;  /* element 0 of x, in the whole micro-batch */
    uint32_t limit; /* a random word below it drops the element */
    float scale;
};

/* Element i of x, first + i of the micro-batch: words 4·block … of its sample. */
static void dropout_task(void *context, int64_t task, int thread)
{
    const struct dropout *d = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, d->count);
    uint64_t held_sample = UINT64_MAX, held_block = 0;
    uint32_t words[4] = {0};

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        float factor[V_LANES] = {0};
        for (int64_t l = i; l < kernel_least(i + V_LANES, to); l++) {
            uint64_t sample = (uint64_t)(d->first_sample + (d->first + l) / d->per_sample);
            uint64_t element = (uint64_t)((d->first + l) % d->per_sample);
            if (sample != held_sample || element / 4 != held_block) {
                held_sample = sample;
                held_block = element / 4;
                fleet_random_block(d->key, ((uint64_t)d->step << 24) ^ sample, held_block, words);
            }
            factor[l - i] = words[element % 4] < d->limit ? 0.0f : d->scale;
        }
        typed_store_n(d->y, d->y_type, i, to - i,
                      v_mul(typed_load_n(d->x, d->x_type, i, to - i), v_load(factor)));
    }
}

static int dropout_kernel(struct backend *backend, const struct kernel_call *call,
                          struct fleet_error *err)
{
    const struct program_var *x = kernel_in(call, 0);
    double rate = call->op->attributes.rate;
    int64_t samples = call->program->micro_batch_size;
    int64_t ranks = call->op->attributes.ranks > 0 ? call->op->attributes.ranks : 1, whole;
    struct dropout d = {
        .x = call->in[0],
        .y = call->out[0],
        .x_type = x->type,
        .y_type = kernel_out_type(call, 0),
        .key = fleet_random_key(call->scalars->seed, "dropout", call->op->attributes.stream),
        .step = call->scalars->step,
        .first_sample = call->scalars->first_sample,
        .count = program_var_elements(x),
        .limit = call->scalars->evaluation ? 0 : (uint32_t)(rate * 4294967296.0),
        .scale = call->scalars->evaluation ? 1 : (float)(1 / (1 - rate))};

    (void)err;
    if (samples < 1)
        samples = x->shape[0];
    whole = d.count * ranks;
    d.first = d.count * call->op->attributes.place;
    d.per_sample = whole / samples > 0 ? whole / samples : 1;
    cpu_parallel(cpu_backend(backend), kernel_pieces(d.count, KERNEL_TASK_ELEMENTS), dropout_task,
                 &d);
    return 0;
}

#endif
