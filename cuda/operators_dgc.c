/* SPDX-License-Identifier: Apache-2.0 */

/* Deep gradient compression. The sizes of a message differ from update to update, so these launches
 * are no part of a graph (executor_run.c). */
#include "cuda/operators.h"
#include "cuda/operators_internal.h"
#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/program/dgc.h"
#include "libfleet/program/ops/operand.h"

static void set_threshold(const struct launch *l, struct fleet_cuda_dgc *d)
{
    double ratio = l->call->scalars->messages.ratio;

    d->kept = d->wanted = dgc_kept(d->count, ratio);
    if (!l->attributes->sampled)
        return;
    d->sampled = dgc_sample(d->count);
    d->wanted = dgc_kept(d->sampled, ratio);
}

static struct fleet_cuda_dgc dgc_of(const struct launch *l)
{
    const struct run_messages *m = &l->call->scalars->messages;
    float decay = (float)l->attributes->optimizer.decay;
    enum op_decay kind = l->attributes->optimizer.decay_kind;
    struct fleet_cuda_dgc d = {.param = (float *)(uintptr_t)l->call->in[0],
                               .gradient = (float *)(uintptr_t)l->call->in[1],
                               .u = (float *)(uintptr_t)l->call->in[2],
                               .v = (float *)(uintptr_t)l->call->in[3],
                               .count = program_var_elements(in(l, 0)),
                               .l1 = kind == OP_DECAY_L1 ? decay : 0,
                               .l2 = kind == OP_DECAY_L2 ? decay : 0,
                               .momentum = (float)l->attributes->optimizer.momentum,
                               .nesterov = l->attributes->optimizer.nesterov,
                               .clips = l->attributes->optimizer.clip == OP_CLIP_NORM,
                               .clip_limit = l->attributes->optimizer.clip_limit,
                               .rescale = l->attributes->optimizer.rescale,
                               .ranks = m->ranks > 1 ? m->ranks : 1,
                               .rank = m->rank,
                               .stride = m->words,
                               .scalars = l->context->scalars,
                               .scratch = l->call->scratch};

    if (m->all)
        d.part = m->all + dgc_words(l->call->program, m->ratio, l->call->op->inputs[0]);
    set_threshold(l, &d);
    return d;
}

cudaError_t cuda_launch_dgc_select(const struct launch *l)
{
    struct fleet_cuda_dgc d = dgc_of(l);

    return l->call->scalars->messages.all ? fleet_cuda_dgc_select(l->stream, &d) : cudaSuccess;
}

/* In the dense phase momentum with velocity u. Tensors that take part are not clipped then, unless
 * there is only one rank and so never a message. */
cudaError_t cuda_launch_dgc(const struct launch *l)
{
    struct fleet_cuda_dgc d = dgc_of(l);
    struct fleet_cuda_optimizer o = {
        .kind = OP_MOMENTUM,
        .parameters = l->context->parameter,
        .parameter_count = 1,
        .block_count = cuda_blocks_of(d.count),
        .scalars = l->context->scalars,
        .scratch = (double *)(void *)((char *)l->call->scratch + gpu_scratch_dgc(d.count))};
    cudaError_t status;

    if (l->call->scalars->messages.all)
        return fleet_cuda_dgc(l->stream, &d);
    d.clips = d.clips && d.ranks == 1;
    status = fleet_cuda_dgc_numbers(l->stream, &d);
    return status == cudaSuccess ? fleet_cuda_optimizer(l->stream, &o) : status;
}
