/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_OPTIMIZER_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_OPTIMIZER_H

/*
 * One optimizer step on one parameter, in place, with the formulas of Paddle's optimizers.
 *
 * The gradient that an element sees is S·gradient_scale, clipped, ·rescale, then with L1 or L2
 * decay added; each a rounding of its own, in this order. What is the same for all elements (rates,
 * bias corrections) is computed in double and rounded once. LAMB and LARS need norms of the whole
 * tensor first: a pass over blocks of 4096 elements sums squares as grad_norm.h does.
 */

#include "agent/runtime/backend/cpu/kernels/grad_norm.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"

struct optimizer {
    enum op_kind kind;
    float *param, *state0, *state1;
    const float *gradient;
    int64_t count;
    float gradient_scale, clip_factor, clip_value, rescale;
    float l1, l2;  /* added to the gradient: l1·sign(p), l2·p */
    float shrink;  /* decoupled decay: p is multiplied by it first */
    float rate;    /* learning rate, for Adam with its bias correction */
    float epsilon; /* Adam: with its bias correction */
    float momentum, beta1, beta2, one_less_beta1, one_less_beta2;
    float correct1, correct2; /* LAMB: 1/(1 - beta^t) */
    float lambda;             /* LAMB, LARS: decay inside the ratio */
    float ratio;              /* LAMB: trust ratio; LARS: local rate */
    bool nesterov, clips_value;
    bool only_looks;                      /* LAMB: the norms are wanted, and the moments stay */
    double *param_squares, *step_squares; /* LAMB, LARS: one a block */
};

/* Element's gradient as the formulas of section 6 mean it. */
V_INLINE v16 optimizer_gradient(const struct optimizer *o, int64_t i, int64_t n, v16 p)
{
    v16 g = v_mul(v_load_n(o->gradient + i, n), v_set(o->gradient_scale));

    if (o->clips_value)
        g = v_max(v_set(-o->clip_value), v_min(v_set(o->clip_value), g));
    g = v_mul(v_mul(g, v_set(o->clip_factor)), v_set(o->rescale));
    if (o->l2 != 0)
        g = v_fma(v_set(o->l2), p, g);
    if (o->l1 != 0) {
        v16 sign = v_select(v_less(v_zero(), p), v_set(o->l1), v_zero());
        sign = v_select(v_less(p, v_zero()), v_set(-o->l1), sign);
        g = v_add(g, sign);
    }
    return g;
}

/* m = β1·m + (1-β1)·g, v = β2·v + (1-β2)·g². */
V_INLINE void optimizer_next_moments(const struct optimizer *o, int64_t i, int64_t n, v16 g, v16 *m,
                                     v16 *v)
{
    *m = v_fma(v_set(o->beta1), v_load_n(o->state0 + i, n), v_mul(v_set(o->one_less_beta1), g));
    *v = v_fma(v_set(o->beta2), v_load_n(o->state1 + i, n),
               v_mul(v_mul(v_set(o->one_less_beta2), g), g));
}

/* The same, stored and given back. */
V_INLINE void optimizer_moments(const struct optimizer *o, int64_t i, int64_t n, v16 g, v16 *m,
                                v16 *v)
{
    optimizer_next_moments(o, i, n, g, m, v);
    v_store_n(o->state0 + i, n, *m);
    v_store_n(o->state1 + i, n, *v);
}

V_INLINE v16 optimizer_sgd(const struct optimizer *o, int64_t i, int64_t n, v16 p)
{
    return v_sub(p, v_mul(v_set(o->rate), optimizer_gradient(o, i, n, p)));
}

V_INLINE v16 optimizer_momentum(const struct optimizer *o, int64_t i, int64_t n, v16 p)
{
    v16 g = optimizer_gradient(o, i, n, p);
    v16 velocity = v_fma(v_set(o->momentum), v_load_n(o->state0 + i, n), g);

    v_store_n(o->state0 + i, n, velocity);
    if (o->nesterov)
        velocity = v_fma(v_set(o->momentum), velocity, g);
    return v_sub(p, v_mul(v_set(o->rate), velocity));
}

V_INLINE v16 optimizer_adam(const struct optimizer *o, int64_t i, int64_t n, v16 p)
{
    v16 g = optimizer_gradient(o, i, n, p), m, v;

    optimizer_moments(o, i, n, g, &m, &v);
    m = v_div(m, v_add(v_sqrt(v), v_set(o->epsilon)));
    return v_sub(p, v_mul(v_set(o->rate), m));
}

V_INLINE v16 optimizer_lamb_step(const struct optimizer *o, v16 m, v16 v, v16 p)
{
    v16 m_hat = v_mul(m, v_set(o->correct1)), v_hat = v_mul(v, v_set(o->correct2));
    v16 step = v_div(m_hat, v_add(v_sqrt(v_hat), v_set(o->epsilon)));

    return v_fma(v_set(o->lambda), p, step);
}

V_INLINE v16 optimizer_lamb(const struct optimizer *o, int64_t i, int64_t n, v16 p)
{
    v16 u = optimizer_lamb_step(o, v_load_n(o->state0 + i, n), v_load_n(o->state1 + i, n), p);

    return v_sub(p, v_mul(v_set(o->rate * o->ratio), u));
}

V_INLINE v16 optimizer_lars(const struct optimizer *o, int64_t i, int64_t n, v16 p)
{
    v16 g = v_fma(v_set(o->lambda), p, optimizer_gradient(o, i, n, p));
    v16 velocity = v_fma(v_set(o->momentum), v_load_n(o->state0 + i, n), v_mul(v_set(o->ratio), g));

    v_store_n(o->state0 + i, n, velocity);
    return v_sub(p, velocity);
}

static void optimizer_task(void *context, int64_t task, int thread)
{
    const struct optimizer *o = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, o->count);

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        int64_t n = to - i;
        v16 p = v_load_n(o->param + i, n);
        if (o->shrink != 1.0f)
            p = v_mul(p, v_set(o->shrink));
        switch (o->kind) {
        case OP_MOMENTUM:
            p = optimizer_momentum(o, i, n, p);
            break;
        case OP_ADAM:
        case OP_ADAMW:
            p = optimizer_adam(o, i, n, p);
            break;
        case OP_LAMB:
            p = optimizer_lamb(o, i, n, p);
            break;
        case OP_LARS:
            p = optimizer_lars(o, i, n, p);
            break;
        default:
            p = optimizer_sgd(o, i, n, p);
            break;
        }
        v_store_n(o->param + i, n, p);
    }
}

/* ---- norms for LAMB and LARS ----------------------------------------------------------------- */

static void optimizer_square(double sums[V_LANES], v16 a)
{
    float x[V_LANES];

    v_store(x, a);
    for (int l = 0; l < V_LANES; l++)
        sums[l] += (double)x[l] * (double)x[l];
}

/* LAMB's moments are updated here; the tensor's own pass then only reads them. */
static void optimizer_norms_task(void *context, int64_t task, int thread)
{
    const struct optimizer *o = context;
    int64_t from = task * NORM_BLOCK, to = kernel_least(from + NORM_BLOCK, o->count);
    double param[V_LANES] = {0}, step[V_LANES] = {0};

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        int64_t n = to - i;
        v16 p = v_load_n(o->param + i, n), m, v, g = optimizer_gradient(o, i, n, p);
        if (o->kind == OP_LAMB) {
            if (o->only_looks)
                optimizer_next_moments(o, i, n, g, &m, &v);
            else
                optimizer_moments(o, i, n, g, &m, &v);
            g = optimizer_lamb_step(o, m, v, p);
            if (n < V_LANES) /* 0/0 past the end if epsilon is 0 */
                g = v_select(v_first((int)n), g, v_zero());
        }
        optimizer_square(param, p);
        optimizer_square(step, g);
    }
    for (int half = V_LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) {
            param[l] += param[l + half];
            step[l] += step[l + half];
        }
    o->param_squares[task] = param[0];
    o->step_squares[task] = step[0];
}

/* Sums of squares of the parameter and of its step. */
static void optimizer_squares(struct cpu_backend *cpu, const struct kernel_call *call,
                              struct optimizer *o, double *param, double *step)
{
    int64_t blocks = kernel_pieces(o->count, NORM_BLOCK);

    *param = *step = 0;
    if (blocks == 0)
        return;
    o->param_squares = call->scratch;
    o->step_squares = o->param_squares + blocks;
    cpu_parallel(cpu, blocks, optimizer_norms_task, o);
    *param = block_tree(o->param_squares, blocks);
    *step = block_tree(o->step_squares, blocks);
}

/* Those of the whole tensor, from what all ranks computed (TRUST_SQUARES). */
static void optimizer_join_squares(const struct kernel_call *call, int input, double *param,
                                   double *step)
{
    int64_t ranks = call->op->attributes.ranks;
    int64_t stride = program_var_elements(kernel_in(call, input)) / ranks;
    const float *own =
        (const float *)call->in[input] + 2 * (int64_t)call->op->attributes.optimizer.norm_index;
    bool is_divided = kernel_out(call, 0)->slice.parts > 0;

    *param = *step = 0;
    for (int64_t r = 0; r < (is_divided ? ranks : 1); r++) {
        *param += (double)own[r * stride];
        *step += (double)own[r * stride + 1];
    }
}

static void optimizer_ratio(struct cpu_backend *cpu, const struct kernel_call *call,
                            struct optimizer *o)
{
    int squares = 3 + op_definition(o->kind)->states;
    double param, step, lambda = call->op->attributes.optimizer.lambda;
    double rate = call->scalars->learning_rate, ratio = 1;

    optimizer_squares(cpu, call, o, &param, &step);
    if (call->op->input_count > squares)
        optimizer_join_squares(call, squares, &param, &step);
    param = sqrt(param);
    step = sqrt(step);
    if (o->kind == OP_LAMB) {
        if (param > 0 && step > 0 && (lambda != 0 || call->op->attributes.optimizer.always_adapt))
            ratio = param / step;
        o->ratio = (float)ratio;
        return;
    }
    if (lambda > 0 && param > 0 && step > 0)
        ratio = call->op->attributes.optimizer.coefficient * param /
                (step + lambda * param + call->op->attributes.optimizer.epsilon);
    o->ratio = (float)(rate * ratio);
}

/* ---- what is the same for all elements ------------------------------------------------------- */

/* base^exponent by squaring: libm's pow differs between machines. */
static double optimizer_power(double base, int64_t exponent)
{
    double result = 1;

    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2)
            result *= base;
    return result;
}

static void optimizer_set_clip(const struct kernel_call *call, struct optimizer *o, int norms_input)
{
    double limit = call->op->attributes.optimizer.clip_limit, norm, factor = 1;
    const float *norms = call->in[norms_input];

    o->clip_factor = 1;
    switch (call->op->attributes.optimizer.clip) {
    case OP_CLIP_VALUE:
        o->clips_value = true;
        o->clip_value = (float)limit;
        break;
    case OP_CLIP_NORM:
        norm = sqrt((double)norms[call->op->attributes.optimizer.norm_index]);
        factor = norm > limit ? limit / norm : 1;
        break;
    case OP_CLIP_GLOBAL_NORM:
        norm = (double)norms[program_var_elements(kernel_in(call, norms_input)) - 1];
        factor = norm > limit ? limit / norm : 1;
        break;
    default:
        break;
    }
    o->clip_factor = (float)factor;
}

static void optimizer_set_decay(const struct kernel_call *call, struct optimizer *o)
{
    double decay = call->op->attributes.optimizer.decay;

    o->shrink = 1;
    if (call->op->attributes.optimizer.decay_kind == OP_DECAY_L1)
        o->l1 = (float)decay;
    else if (call->op->attributes.optimizer.decay_kind == OP_DECAY_L2)
        o->l2 = (float)decay;
    else if (call->op->attributes.optimizer.decay_kind == OP_DECAY_DECOUPLED)
        o->shrink = (float)(1 - call->scalars->learning_rate * decay);
}

/* The betas are fp32 numbers everywhere, in 1 - beta and in the corrections too, as in Paddle: else
 * v / (1 - beta2^t) is off by 1e-5, the rounding of 1 - 0.999. */
static void optimizer_set_rate(const struct kernel_call *call, struct optimizer *o)
{
    double beta1 = (double)(float)call->op->attributes.optimizer.beta1;
    double beta2 = (double)(float)call->op->attributes.optimizer.beta2;
    double power1 = optimizer_power(beta1, call->scalars->update_1based);
    double root2 = sqrt(1 - optimizer_power(beta2, call->scalars->update_1based));
    double rate = call->scalars->learning_rate, epsilon = call->op->attributes.optimizer.epsilon;

    o->beta1 = (float)beta1;
    o->beta2 = (float)beta2;
    o->one_less_beta1 = (float)(1 - beta1);
    o->one_less_beta2 = (float)(1 - beta2);
    o->rate = (float)rate;
    o->epsilon = (float)epsilon;
    if (o->kind == OP_ADAM || o->kind == OP_ADAMW) {
        o->rate = (float)(rate * root2 / (1 - power1));
        o->epsilon = (float)(epsilon * root2);
    }
    if (o->kind == OP_LAMB) {
        o->correct1 = (float)(1 / (1 - power1));
        o->correct2 = (float)(1 / (root2 * root2));
    }
}

static int optimizer_kernel(struct backend *backend, const struct kernel_call *call,
                            struct fleet_error *err)
{
    enum op_kind kind = call->op->kind;
    int states = op_definition(kind)->states;
    struct optimizer o = {.kind = kind,
                          .param = call->out[0],
                          .state0 = states > 0 ? call->out[1] : NULL,
                          .state1 = states > 1 ? call->out[2] : NULL,
                          .gradient = call->in[1],
                          .count = program_var_elements(kernel_out(call, 0)),
                          .gradient_scale = (float)call->scalars->gradient_scale,
                          .rescale = (float)call->op->attributes.optimizer.rescale,
                          .momentum = (float)call->op->attributes.optimizer.momentum,
                          .lambda = (float)call->op->attributes.optimizer.lambda,
                          .nesterov = call->op->attributes.optimizer.nesterov};

    (void)err;
    optimizer_set_clip(call, &o, 2 + states);
    optimizer_set_decay(call, &o);
    optimizer_set_rate(call, &o);
    if (o.count > 0 && (kind == OP_LAMB || kind == OP_LARS))
        optimizer_ratio(cpu_backend(backend), call, &o);
    cpu_parallel(cpu_backend(backend), kernel_pieces(o.count, KERNEL_TASK_ELEMENTS), optimizer_task,
                 &o);
    return 0;
}

/* The norms that LAMB and LARS need, and nothing else. */
static int trust_squares_kernel(struct backend *backend, const struct kernel_call *call,
                                struct fleet_error *err)
{
    bool is_lamb = call->in[3] != NULL;
    struct optimizer o = {.kind = is_lamb ? OP_LAMB : OP_LARS,
                          .param = (float *)call->in[0],
                          .state0 = (float *)call->in[2],
                          .state1 = (float *)call->in[3],
                          .gradient = call->in[1],
                          .count = program_var_elements(kernel_in(call, 0)),
                          .gradient_scale = (float)call->scalars->gradient_scale,
                          .rescale = (float)call->op->attributes.optimizer.rescale,
                          .momentum = (float)call->op->attributes.optimizer.momentum,
                          .lambda = (float)call->op->attributes.optimizer.lambda,
                          .only_looks = true};
    float *squares = (float *)call->out[0] + 2 * (int64_t)call->op->attributes.optimizer.norm_index;
    double param, step;

    (void)err;
    optimizer_set_clip(call, &o, 4);
    optimizer_set_decay(call, &o);
    optimizer_set_rate(call, &o);
    optimizer_squares(cpu_backend(backend), call, &o, &param, &step);
    squares[0] = (float)param;
    squares[1] = (float)step;
    return 0;
}

#endif
