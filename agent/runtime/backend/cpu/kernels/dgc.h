/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_DGC_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_DGC_H

/*
 * Deep gradient compression of one tensor (libfleet/program/dgc.h): both operators, and the update.
 *
 * u and v do not change before the commit of the update. So select and update compute their new
 * values from the gradient, each in one pass.
 */

#include "agent/runtime/backend/cpu/kernels/dgc_select.h"
#include "agent/runtime/backend/cpu/kernels/grad_norm.h"
#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "agent/runtime/backend/cpu/kernels/optimizer.h"
#include "libfleet/program/dgc.h"

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
    d.notes = (struct dgc_notes *)(d.at + d.count / KERNEL_TASK_ELEMENTS + 1);
    d.sample = (float *)(d.notes + d.count / KERNEL_TASK_ELEMENTS + 1);
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
        if (d.kept <= d.count / DGC_NOTED_OF)
            (void)dgc_note(&d, d.threshold);
    } else {
        dgc_find_exact(&d);
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
    const struct kernel_call *call;
    float *param, *gradient, *u, *v;
    float rate, share; /* share: 1 / ranks */
    float back;        /* what is left in `gradient` is multiplied by gradient_scale later on */
};

/* u and v of a task, and a gradient of zeros. */
static void dgc_move(const struct dgc_update *update, int64_t from, int64_t to)
{
    const struct dgc_update up = *update; /* in registers: the arrays are not in it */

    for (int64_t i = from; i < to; i += V_LANES) {
        struct dgc_lanes moved = dgc_moved(&up.d, i, to - i);
        v_store_n(up.u + i, to - i, moved.u);
        v_store_n(up.v + i, to - i, moved.v);
        v_store_n(up.gradient + i, to - i, v_zero());
    }
}

/* The groups of V_LANES elements of a task into which something was sent, a bit each. */
struct dgc_touched {
    uint64_t bits[KERNEL_TASK_ELEMENTS / V_LANES / 64];
};

/* The parameters of the groups that were touched; a gradient of zero changes none. */
static void dgc_apply(const struct dgc_update *up, const struct dgc_touched *touched, int64_t from,
                      int64_t to)
{
    for (int64_t i = from; i < to; i += V_LANES) {
        int64_t n = to - i, group = (i - from) / V_LANES;
        v16 g, p;
        if (!(touched->bits[group / 64] >> (group % 64) & 1))
            continue;
        g = v_mul(v_load_n(up->gradient + i, n), v_set(up->share));
        p = v_load_n(up->param + i, n);
        v_store_n(up->param + i, n, v_sub(p, v_mul(v_set(up->rate), g)));
        v_store_n(up->gradient + i, n, v_mul(g, v_set(up->back)));
    }
}

/* The first of `count` ascending indices that is not below `least`. */
static int64_t dgc_search(const uint32_t *indices, int64_t count, int64_t least)
{
    int64_t low = 0, high = count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (indices[middle] < least)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Add what `rank` sent of elements [from, to). Of our own, u and v are rid of it. */
static void dgc_decode(const struct dgc_update *up, int rank, int64_t from, int64_t to,
                       struct dgc_touched *touched)
{
    const struct kernel_call *call = up->call;
    const uint32_t *part = dgc_part(call, rank), *sent;
    int64_t count = up->d.kept;
    bool is_own = rank == call->scalars->messages.rank;

    if (call->op->attributes.sampled)
        count = *part++;
    sent = part + up->d.kept;
    for (int64_t j = dgc_search(part, count, from); j < count && part[j] < to; j++) {
        int64_t group = (part[j] - from) / V_LANES;
        float value;
        memcpy(&value, &sent[j], sizeof(value));
        up->gradient[part[j]] += value;
        touched->bits[group / 64] |= UINT64_C(1) << (group % 64);
        if (is_own)
            up->u[part[j]] = up->v[part[j]] = 0;
    }
}

static void dgc_update_task(void *context, int64_t task, int thread)
{
    const struct dgc_update *up = context;
    int64_t from = dgc_first(task), to = dgc_end(&up->d, task);
    struct dgc_touched touched = {0};

    (void)thread;
    dgc_move(up, from, to);
    for (int rank = 0; rank < dgc_ranks(up->call); rank++)
        dgc_decode(up, rank, from, to, &touched);
    dgc_apply(up, &touched, from, to);
}

static int dgc_sparse(struct cpu_backend *cpu, const struct kernel_call *call,
                      struct fleet_error *err)
{
    struct dgc_update up = {.d = dgc_of(cpu, call),
                            .call = call,
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
    cpu_parallel(cpu, tasks, dgc_update_task, &up);
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
