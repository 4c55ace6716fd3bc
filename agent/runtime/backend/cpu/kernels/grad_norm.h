/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_GRAD_NORM_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_GRAD_NORM_H

/*
 * Norms of the complete gradient, and whether it is finite. Squares are summed in double on sixteen
 * lanes, in blocks of 4096 elements of one tensor. The summation tree adds a tensor's blocks.
 * The fp32 norms of tensors are added in byte order of their parameters' names.
 */

#include <stdatomic.h>
#include <string.h>

#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "libfleet/plan/tree.h"

#define NORM_BLOCK 4096 /* elements; shards are cut at multiples */

struct block_squares {
    const float *x;
    double *sums; /* one a block */
    int64_t count;
    float scale;
};

static void block_squares_task(void *context, int64_t task, int thread)
{
    const struct block_squares *s = context;
    int64_t from = task * NORM_BLOCK, to = kernel_least(from + NORM_BLOCK, s->count);
    double sum[V_LANES] = {0};

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        float x[V_LANES];
        v_store(x, v_mul(v_load_n(s->x + i, to - i), v_set(s->scale)));
        for (int l = 0; l < V_LANES; l++)
            sum[l] += (double)x[l] * (double)x[l];
    }
    for (int step = V_LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++)
            sum[l] += sum[l + step];
    s->sums[task] = sum[0];
}

/* The tree over `count` >= 1 sums; as deep as count has bits. */
static double block_tree(const double *sums, int64_t count)
{
    int64_t left;

    if (count == 1)
        return sums[0];
    left = tree_split(0, count);
    return block_tree(sums, left) + block_tree(sums + left, count - left);
}

/* Sum of squares of (x · scale); `sums` holds a double a block. */
static double sum_of_squares(struct cpu_backend *cpu, const float *x, int64_t count, float scale,
                             double *sums)
{
    struct block_squares s = {.x = x, .sums = sums, .count = count, .scale = scale};
    int64_t blocks = kernel_pieces(count, NORM_BLOCK);

    if (count == 0)
        return 0;
    cpu_parallel(cpu, blocks, block_squares_task, &s);
    return block_tree(sums, blocks);
}

static const char *parameter_name(const struct program *program, const struct program_var *gradient)
{
    return program->vars[gradient->of].name;
}

/* The gradient whose parameter's name follows that of `after`, NULL: the first; NULL after the
 * last. */
static const struct program_var *next_gradient(const struct program *program,
                                               const struct program_var *after)
{
    const struct program_var *next = NULL;

    for (int i = 0; i < program->var_count; i++) {
        const struct program_var *var = &program->vars[i];
        if (var->role != PROGRAM_ROLE_GRADIENT)
            continue;
        if (after && strcmp(parameter_name(program, var), parameter_name(program, after)) <= 0)
            continue;
        if (!next || strcmp(parameter_name(program, var), parameter_name(program, next)) < 0)
            next = var;
    }
    return next;
}

/* The squares of the tensors that this rank holds, as doubles; zeros for others. */
static int own_squares(struct cpu_backend *cpu, const struct kernel_call *call)
{
    int64_t count = program_var_elements(kernel_out(call, 0)) / (int64_t)sizeof(double);
    const struct program_var *var = NULL;
    double *squares = call->out[0];

    for (int64_t i = 0; i < count && (var = next_gradient(call->program, var)); i++) {
        int64_t at = call->held->places[var - call->program->vars];
        squares[i] =
            at < 0 ? 0
                   : sum_of_squares(cpu, (const float *)call->in[0] + at, program_var_elements(var),
                                    (float)call->scalars->gradient_scale, call->scratch);
    }
    return 0;
}

static int grad_norm_kernel(struct backend *backend, const struct kernel_call *call,
                            struct fleet_error *err)
{
    const float *gradients = call->in[0];
    const struct program_var *var = NULL;
    float *norms = call->out[0];
    int64_t count = program_var_elements(kernel_out(call, 0)), i = 0;
    double total = 0;

    if (call->op->attributes.owned)
        return own_squares(cpu_backend(backend), call);
    for (; (var = next_gradient(call->program, var)); i++) {
        double squares;
        if (i + 1 >= count)
            return fleet_error(err, -EINVAL, "more than %lld gradients", (long long)count - 1);
        squares = sum_of_squares(cpu_backend(backend), gradients + var->flat_offset,
                                 program_var_elements(var), (float)call->scalars->gradient_scale,
                                 call->scratch);
        norms[i] = (float)squares;
        total += (double)norms[i]; /* rounded, as stages of a pipeline send it */
    }
    norms[count - 1] = (float)sqrt(total);
    return 0;
}

static int spread_norms_kernel(struct backend *backend, const struct kernel_call *call,
                               struct fleet_error *err)
{
    int64_t count = program_var_elements(kernel_out(call, 0));
    const struct program_var *var = NULL;
    const float *own = call->in[0];
    float *whole = call->out[0];

    (void)backend;
    memset(whole, 0, (size_t)count * sizeof(*whole));
    for (int64_t i = 0; (var = next_gradient(call->program, var)); i++) {
        const struct program_var *parameter = &call->program->vars[var->of];

        if (parameter->number + 1 >= count)
            return fleet_error(err, -EINVAL, "parameter %d of %lld", parameter->number,
                               (long long)count - 1);
        if (!parameter->is_copy)
            whole[parameter->number] = own[i];
    }
    return 0;
}

static int total_norm_kernel(struct backend *backend, const struct kernel_call *call,
                             struct fleet_error *err)
{
    int64_t count = program_var_elements(kernel_out(call, 0));
    const float *x = call->in[0];
    float *y = call->out[0];
    double total = 0;

    (void)backend;
    (void)err;
    for (int64_t i = 0; i + 1 < count; i++) {
        y[i] = x[i];
        total += (double)x[i];
    }
    y[count - 1] = (float)sqrt(total);
    return 0;
}

static void norms_from_doubles(const double *squares, int64_t count, float *norms)
{
    double total = 0;

    for (int64_t i = 0; i < count; i++) {
        norms[i] = (float)squares[i];
        total += (double)norms[i]; /* rounded, as in grad_norm */
    }
    norms[count] = (float)sqrt(total);
}

static int join_norms_kernel(struct backend *backend, const struct kernel_call *call,
                             struct fleet_error *err)
{
    int64_t count = program_var_elements(kernel_out(call, 0)), i = 0;
    int64_t ranks = program_var_elements(kernel_in(call, 0)) / count;
    const float *all = call->in[0]; /* [ranks, count] */
    const struct program_var *var = NULL;
    float *norms = call->out[0];
    double total = 0;

    (void)backend;
    if (kernel_in(call, 0)->type == PROGRAM_UINT8) {
        norms_from_doubles(call->in[0], count - 1, norms);
        return 0;
    }
    for (; (var = next_gradient(call->program, var)); i++) {
        bool is_divided = call->program->vars[var->of].slice.parts > 0;
        double squares = 0;

        if (i + 1 >= count)
            return fleet_error(err, -EINVAL, "more than %lld gradients", (long long)count - 1);
        for (int64_t r = 0; r < (is_divided ? ranks : 1); r++)
            squares += (double)all[r * count + i];
        norms[i] = (float)squares;
        total += (double)norms[i];
    }
    norms[count - 1] = (float)sqrt(total);
    return 0;
}

/* ---- check_finite ---------------------------------------------------------------------------- */

struct check_finite {
    const float *x;
    int64_t count;
    _Atomic bool found;
};

static void check_finite_task(void *context, int64_t task, int thread)
{
    struct check_finite *c = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, c->count);
    v16 sum = v_zero();
    float total;

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) /* 0·x is 0, or NaN if x is not finite */
        sum = v_fma(v_load_n(c->x + i, to - i), v_zero(), sum);
    total = v_sum(sum);
    if (total != 0)
        atomic_store_explicit(&c->found, true, memory_order_relaxed);
}

static int check_finite_kernel(struct backend *backend, const struct kernel_call *call,
                               struct fleet_error *err)
{
    struct check_finite c = {.x = call->in[0], .count = call->program->flat_count};

    (void)err;
    if (call->op->attributes.owned)
        c.count = call->held->count;
    cpu_parallel(cpu_backend(backend), kernel_pieces(c.count, KERNEL_TASK_ELEMENTS),
                 check_finite_task, &c);
    *(float *)call->out[0] = atomic_load(&c.found) ? 1.0f : 0.0f;
    return 0;
}

#endif
