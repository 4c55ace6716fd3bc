/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_DGC_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_DGC_H

/*
 * Deep gradient compression of one tensor (libfleet/program/dgc.h).
 *
 * u and v do not change before the commit of the update. Their new values are computed from the
 * gradient whenever they are needed, again for each pass over all elements.
 *
 * The k largest magnitudes are found by their bits, which have the same order as the numbers; a NaN
 * is larger than any number. Three histograms narrow the threshold down, by 11, 10 and 10 bits.
 * Counts are whole numbers, so the number of threads does not change the result.
 */

#include "agent/runtime/backend/cpu/kernels/grad_norm.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "agent/runtime/backend/cpu/kernels/optimizer.h"
#include "libfleet/program/dgc.h"

#define DGC_BINS       2048
#define DGC_HISTOGRAMS 3
#define DGC_NAN        UINT32_C(0x7fffffff)
#define DGC_INFINITY   UINT32_C(0x7f800000)

struct dgc {
    const float *param, *gradient, *u, *v;
    int64_t count;
    float factor; /* the gradient's: ranks / leaves, clipped, rescaled */
    float l1, l2, momentum;
    bool nesterov;
    int64_t kept;             /* k */
    double *squares;          /* scratch: one a block */
    int64_t *above, *at;      /* scratch: elements above the threshold and on it, one a task */
    float *sample;            /* scratch: [dgc_sample()] */
    struct cpu_backend *cpu;  /* whose threads' buffers hold histograms */
    uint32_t found, mask;     /* the bits of the threshold found so far, and which they are */
    uint32_t bins;            /* of the next histogram, … */
    int shift;                /* … which counts the bits from here on */
    uint32_t threshold;       /* the least magnitude that is sent, as bits, … */
    int64_t ties;             /* … and how many elements of exactly that one are sent at most */
    uint32_t *indices, *sent; /* [kept] of the message */
};

struct dgc_lanes {
    v16 u, v;
};

/* u and v of n elements from i on, as the update will have them. */
V_INLINE struct dgc_lanes dgc_moved(const struct dgc *d, int64_t i, int64_t n)
{
    v16 g = v_mul(v_load_n(d->gradient + i, n), v_set(d->factor)), p, u, v;

    if (d->l2 != 0 || d->l1 != 0) {
        p = v_load_n(d->param + i, n);
        g = v_fma(v_set(d->l2), p, g);
        g = v_add(g, v_select(v_less(v_zero(), p), v_set(d->l1), v_zero()));
        g = v_sub(g, v_select(v_less(p, v_zero()), v_set(d->l1), v_zero()));
    }
    u = v_load_n(d->u + i, n);
    v = v_load_n(d->v + i, n);
    if (d->nesterov) {
        u = v_mul(v_set(d->momentum), v_add(u, g));
        v = v_add(v_add(v, u), g);
    } else {
        u = v_fma(v_set(d->momentum), u, g);
        v = v_add(v, u);
    }
    return (struct dgc_lanes){u, v};
}

/* v of n <= 16 elements from i on. False, and `out` is not written, if the magnitudes of all are
 * below the number with the bits `least`: almost everywhere, once a threshold is known. */
static bool dgc_values(const struct dgc *d, int64_t i, int64_t n, uint32_t least,
                       float out[V_LANES])
{
    v16 v = dgc_moved(d, i, n).v, reaches;
    float bound;

    memcpy(&bound, &least, sizeof(bound));
    reaches = v_select(v_less(v_max(v, v_sub(v_zero(), v)), v_set(bound)), v_zero(), v_set(1));
    if (v_greatest(reaches) == 0)
        return false;
    v_store(out, v);
    return true;
}

/* The magnitude of a number, as bits that are ordered as magnitudes are. */
static inline uint32_t dgc_key(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits &= DGC_NAN;
    return bits > DGC_INFINITY ? DGC_NAN : bits;
}

/* ---- the threshold --------------------------------------------------------------------------- */

static void dgc_count(const struct dgc *d, int64_t *bins, const float *x, int64_t n)
{
    for (int64_t l = 0; l < n; l++) {
        uint32_t key = dgc_key(x[l]);
        if ((key & d->mask) == d->found)
            bins[(key >> d->shift) & (d->bins - 1)]++;
    }
}

static void dgc_count_task(void *context, int64_t task, int thread)
{
    const struct dgc *d = context;
    int64_t *bins = cpu_thread_buffer(d->cpu, thread);
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, d->count);

    for (int64_t i = from; i < to; i += V_LANES) {
        float x[V_LANES];
        int64_t n = kernel_least(to - i, V_LANES);
        if (dgc_values(d, i, n, d->found, x))
            dgc_count(d, bins, x, n);
    }
}

static void dgc_clear_bins(const struct dgc *d)
{
    for (int t = 0; t < d->cpu->threads; t++)
        memset(cpu_thread_buffer(d->cpu, t), 0, DGC_BINS * sizeof(int64_t));
}

/* Go from the largest bin down to the one that holds number *rank (from 1) of the largest; *rank
 * becomes its number within the bin. */
static uint32_t dgc_find_bin(const struct dgc *d, int64_t *rank)
{
    for (uint32_t bin = d->bins - 1;; bin--) {
        int64_t held = 0;
        for (int t = 0; t < d->cpu->threads; t++)
            held += ((const int64_t *)cpu_thread_buffer(d->cpu, t))[bin];
        if (*rank <= held || bin == 0)
            return bin;
        *rank -= held;
    }
}

/* Set the threshold to number `rank` of the largest of x[count]; of all elements if x is NULL. */
static void dgc_find_threshold(struct dgc *d, const float *x, int64_t count, int64_t rank)
{
    static const int bits[DGC_HISTOGRAMS] = {11, 10, 10};

    d->found = d->mask = 0;
    d->shift = 31;
    for (int i = 0; i < DGC_HISTOGRAMS; i++) {
        d->shift -= bits[i];
        d->bins = UINT32_C(1) << bits[i];
        dgc_clear_bins(d);
        if (x)
            dgc_count(d, cpu_thread_buffer(d->cpu, 0), x, count);
        else
            cpu_parallel(d->cpu, kernel_pieces(d->count, KERNEL_TASK_ELEMENTS), dgc_count_task, d);
        d->found |= dgc_find_bin(d, &rank) << d->shift;
        d->mask |= (d->bins - 1) << d->shift;
    }
    d->threshold = d->found;
    d->ties = rank;
}

/* Elements at equal distances. */
static void dgc_take_sample(const struct dgc *d, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        d->sample[j] = kernel_lane(dgc_moved(d, j * d->count / count, 1).v);
}

/* ---- taking what is sent --------------------------------------------------------------------- */

static void dgc_tell_task(void *context, int64_t task, int thread)
{
    const struct dgc *d = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS, above = 0, at = 0;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, d->count);

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        float x[V_LANES];
        int64_t n = kernel_least(to - i, V_LANES);
        if (!dgc_values(d, i, n, d->threshold, x))
            continue;
        for (int64_t l = 0; l < n; l++) {
            above += dgc_key(x[l]) > d->threshold;
            at += dgc_key(x[l]) == d->threshold;
        }
    }
    d->above[task] = above;
    d->at[task] = at;
}

/* above[] and at[] become the numbers in front of each task; returns how many elements are sent. */
static int64_t dgc_place_tasks(const struct dgc *d)
{
    int64_t tasks = kernel_pieces(d->count, KERNEL_TASK_ELEMENTS), above = 0, at = 0;

    for (int64_t t = 0; t < tasks; t++) {
        int64_t here = d->above[t], here_at = d->at[t];
        d->above[t] = above;
        d->at[t] = at;
        above += here;
        at += here_at;
    }
    return kernel_least(above + kernel_least(at, d->ties), d->kept);
}

static void dgc_take_task(void *context, int64_t task, int thread)
{
    const struct dgc *d = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS, at = d->at[task];
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, d->count);
    int64_t place = d->above[task] + kernel_least(at, d->ties);

    (void)thread;
    for (int64_t i = from; i < to && place < d->kept; i += V_LANES) {
        float x[V_LANES];
        int64_t n = kernel_least(to - i, V_LANES);
        if (!dgc_values(d, i, n, d->threshold, x))
            continue;
        for (int64_t l = 0; l < n && place < d->kept; l++) {
            uint32_t key = dgc_key(x[l]);
            bool is_tie = key == d->threshold;
            if (key < d->threshold || (is_tie && at >= d->ties))
                continue;
            at += is_tie;
            d->indices[place] = (uint32_t)(i + l);
            memcpy(&d->sent[place], &x[l], sizeof(x[l]));
            place++;
        }
    }
}

/* ---- both operators -------------------------------------------------------------------------- */

static int dgc_ranks(const struct kernel_call *call)
{
    return call->scalars->messages.ranks > 1 ? call->scalars->messages.ranks : 1;
}

/* By what clip_by_norm multiplies the own gradient, which holds the factor 1 / ranks. */
static double dgc_clip_factor(struct cpu_backend *cpu, const struct kernel_call *call,
                              double *squares)
{
    double limit = call->op->attributes.optimizer.clip_limit / sqrt(dgc_ranks(call)), norm;

    if (call->op->attributes.optimizer.clip != OP_CLIP_NORM)
        return 1;
    norm = sqrt(sum_of_squares(cpu, call->in[1], program_var_elements(kernel_in(call, 0)),
                               (float)call->scalars->gradient_scale, squares));
    return norm > limit ? limit / norm : 1;
}

static struct dgc dgc_of(struct cpu_backend *cpu, const struct kernel_call *call)
{
    struct dgc d = {.param = call->in[0],
                    .gradient = call->in[1],
                    .u = call->in[2],
                    .v = call->in[3],
                    .count = program_var_elements(kernel_in(call, 0)),
                    .momentum = (float)call->op->attributes.optimizer.momentum,
                    .nesterov = call->op->attributes.optimizer.nesterov,
                    .squares = call->scratch,
                    .cpu = cpu};
    double decay = call->op->attributes.optimizer.decay;

    d.above = (int64_t *)(d.squares + d.count / NORM_BLOCK + 1);
    d.at = d.above + d.count / KERNEL_TASK_ELEMENTS + 1;
    d.sample = (float *)(d.at + d.count / KERNEL_TASK_ELEMENTS + 1);
    if (call->op->attributes.optimizer.decay_kind == OP_DECAY_L1)
        d.l1 = (float)decay;
    else if (call->op->attributes.optimizer.decay_kind == OP_DECAY_L2)
        d.l2 = (float)decay;
    d.factor =
        (float)(call->scalars->gradient_scale * dgc_ranks(call) *
                dgc_clip_factor(cpu, call, d.squares) * call->op->attributes.optimizer.rescale);
    d.kept = dgc_kept(d.count, call->scalars->messages.ratio);
    return d;
}

/* The part of this tensor in the message of `rank`. */
static uint32_t *dgc_part(const struct kernel_call *call, int rank)
{
    const struct run_messages *m = &call->scalars->messages;

    return m->all + rank * m->words + dgc_words(call->program, m->ratio, call->op->inputs[0]);
}

static int dgc_select_kernel(struct backend *backend, const struct kernel_call *call,
                             struct fleet_error *err)
{
    int64_t sampled, tasks, taken;
    uint32_t *part;
    struct dgc d;

    (void)err;
    if (!call->scalars->messages.all) /* the dense phase */
        return 0;
    d = dgc_of(cpu_backend(backend), call);
    sampled = call->op->attributes.sampled ? dgc_sample(d.count) : 0;
    tasks = kernel_pieces(d.count, KERNEL_TASK_ELEMENTS);
    part = dgc_part(call, call->scalars->messages.rank);
    d.indices = part + (sampled > 0);
    d.sent = d.indices + d.kept;
    if (sampled > 0) {
        dgc_take_sample(&d, sampled);
        dgc_find_threshold(&d, d.sample, sampled, dgc_kept(sampled, call->scalars->messages.ratio));
        d.ties = d.kept; /* all of them while there is room */
    } else {
        dgc_find_threshold(&d, NULL, 0, d.kept);
    }
    cpu_parallel(d.cpu, tasks, dgc_tell_task, &d);
    taken = dgc_place_tasks(&d);
    cpu_parallel(d.cpu, tasks, dgc_take_task, &d);
    if (sampled > 0) { /* what is not used travels, too: the same bytes for the same numbers */
        part[0] = (uint32_t)taken;
        memset(d.indices + taken, 0, (size_t)(d.kept - taken) * sizeof(*part));
        memset(d.sent + taken, 0, (size_t)(d.kept - taken) * sizeof(*part));
    }
    return 0;
}

/* ---- the update ------------------------------------------------------------------------------ */

struct dgc_update {
    struct dgc d;
    float *param, *gradient, *u, *v;
    float rate, share; /* share: 1 / ranks */
    float back;        /* what is left in `gradient` is multiplied by gradient_scale later on */
};

static void dgc_move_task(void *context, int64_t task, int thread)
{
    const struct dgc_update *up = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, up->d.count);

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        struct dgc_lanes moved = dgc_moved(&up->d, i, to - i);
        v_store_n(up->u + i, to - i, moved.u);
        v_store_n(up->v + i, to - i, moved.v);
        v_store_n(up->gradient + i, to - i, v_zero());
    }
}

static void dgc_apply_task(void *context, int64_t task, int thread)
{
    const struct dgc_update *up = context;
    int64_t from = task * KERNEL_TASK_ELEMENTS;
    int64_t to = kernel_least(from + KERNEL_TASK_ELEMENTS, up->d.count);

    (void)thread;
    for (int64_t i = from; i < to; i += V_LANES) {
        int64_t n = to - i;
        v16 g = v_mul(v_load_n(up->gradient + i, n), v_set(up->share));
        v16 p = v_load_n(up->param + i, n);
        v_store_n(up->param + i, n, v_sub(p, v_mul(v_set(up->rate), g)));
        v_store_n(up->gradient + i, n, v_mul(g, v_set(up->back)));
    }
}

/* Add what `rank` sent. Of our own, u and v are rid of it. */
static void dgc_decode(const struct dgc_update *up, const struct kernel_call *call, int rank)
{
    const uint32_t *part = dgc_part(call, rank), *sent;
    int64_t count = up->d.kept;
    bool is_own = rank == call->scalars->messages.rank;

    if (call->op->attributes.sampled)
        count = *part++;
    sent = part + up->d.kept;
    for (int64_t j = 0; j < count; j++) {
        float value;
        memcpy(&value, &sent[j], sizeof(value));
        up->gradient[part[j]] += value;
        if (is_own)
            up->u[part[j]] = up->v[part[j]] = 0;
    }
}

static int dgc_sparse(struct cpu_backend *cpu, const struct kernel_call *call,
                      struct fleet_error *err)
{
    struct dgc_update up = {.d = dgc_of(cpu, call),
                            .param = call->out[0],
                            .gradient = (float *)call->in[1],
                            .u = call->out[1],
                            .v = call->out[2],
                            .rate = (float)call->scalars->learning_rate,
                            .share = (float)(1.0 / dgc_ranks(call)),
                            .back = (float)(1 / call->scalars->gradient_scale)};
    const struct run_messages *m = &call->scalars->messages;
    int64_t tasks = kernel_pieces(up.d.count, KERNEL_TASK_ELEMENTS);

    if (dgc_check_messages(call->program, call->op, m->ratio, dgc_ranks(call), m->words, m->all,
                           err) < 0)
        return err->code;
    cpu_parallel(cpu, tasks, dgc_move_task, &up);
    for (int rank = 0; rank < dgc_ranks(call); rank++)
        dgc_decode(&up, call, rank);
    cpu_parallel(cpu, tasks, dgc_apply_task, &up);
    return 0;
}

/* Momentum with velocity u. Tensors that take part are not clipped then, unless there is only one
 * rank and so never a message. */
static void dgc_dense(struct cpu_backend *cpu, const struct kernel_call *call)
{
    struct optimizer o = {.kind = OP_MOMENTUM,
                          .param = call->out[0],
                          .state0 = call->out[1],
                          .gradient = call->in[1],
                          .count = program_var_elements(kernel_out(call, 0)),
                          .gradient_scale = (float)call->scalars->gradient_scale,
                          .clip_factor = 1,
                          .rescale = (float)call->op->attributes.optimizer.rescale,
                          .momentum = (float)call->op->attributes.optimizer.momentum,
                          .nesterov = call->op->attributes.optimizer.nesterov};

    if (dgc_ranks(call) == 1)
        o.clip_factor = (float)dgc_clip_factor(cpu, call, call->scratch);
    optimizer_set_decay(call, &o);
    optimizer_set_rate(call, &o);
    cpu_parallel(cpu, kernel_pieces(o.count, KERNEL_TASK_ELEMENTS), optimizer_task, &o);
}

static int dgc_kernel(struct backend *backend, const struct kernel_call *call,
                      struct fleet_error *err)
{
    if (call->scalars->messages.all)
        return dgc_sparse(cpu_backend(backend), call, err);
    dgc_dense(cpu_backend(backend), call);
    return 0;
}

#endif
