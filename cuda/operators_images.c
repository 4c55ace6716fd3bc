/* SPDX-License-Identifier: Apache-2.0 */

/* Convolutions, batch norm, pools. */
#include "cuda/operators_internal.h"

static struct fleet_cuda_conv2d conv2d_of(const struct launch *l, int x, int weight,
                                          const struct program_var *y)
{
    const struct program_var *image = in(l, x), *w = in(l, weight);
    const struct op_attributes *a = l->attributes;

    return (struct fleet_cuda_conv2d){.x = l->call->in[x],
                                      .weight = l->call->in[weight],
                                      .x_type = image->type,
                                      .weight_type = w->type,
                                      .y_type = y->type,
                                      .batch = image->shape[0],
                                      .in = image->shape[1],
                                      .out = w->shape[0],
                                      .h = image->shape[2],
                                      .w = image->shape[3],
                                      .out_h = y->shape[2],
                                      .out_w = y->shape[3],
                                      .window = {w->shape[2], w->shape[3]},
                                      .stride = {a->stride[0], a->stride[1]},
                                      .padding = {a->padding[0], a->padding[1]}};
}

cudaError_t cuda_launch_conv2d(const struct launch *l)
{
    struct fleet_cuda_conv2d c = conv2d_of(l, 0, 1, out(l, 0));

    c.y = l->call->out[0];
    return fleet_cuda_conv2d(l->stream, &c);
}

cudaError_t cuda_launch_conv2d_grad(const struct launch *l)
{
    struct fleet_cuda_conv2d c = conv2d_of(l, 1, 2, in(l, 0));
    cudaError_t status = cudaSuccess;

    c.d_y = l->call->in[0];
    c.d_x = l->call->out[0];
    c.d_weight = l->call->out[1];
    c.d_x_type = out_type(l, 0);
    c.d_weight_type = out_type(l, 1);
    if (c.d_x)
        status = fleet_cuda_conv2d_grad_x(l->stream, &c);
    if (status == cudaSuccess && c.d_weight)
        status = fleet_cuda_conv2d_grad_weight(l->stream, &c);
    return status;
}

/* Sizes of x in input i. */
static struct fleet_cuda_batch_norm batch_norm_of(const struct launch *l, int i)
{
    const struct program_var *x = in(l, i);

    return (struct fleet_cuda_batch_norm){.x = l->call->in[i],
                                          .x_type = x->type,
                                          .out_type = out_type(l, 0),
                                          .batch = x->shape[0],
                                          .channels = x->shape[1],
                                          .plane =
                                              program_var_elements(x) / x->shape[0] / x->shape[1],
                                          .epsilon = (float)l->attributes->epsilon};
}

cudaError_t cuda_launch_batch_norm(const struct launch *l)
{
    struct fleet_cuda_batch_norm b = batch_norm_of(l, 0);

    b.total = l->call->in[6];
    b.center = l->call->in[3];
    b.scale = l->call->in[1];
    b.shift = l->call->in[2];
    b.running_mean = l->call->scalars->evaluation ? l->call->in[3] : NULL;
    b.running_var = l->call->in[4];
    b.residual = l->call->in[5];
    b.residual_type = in_type(l, 5);
    b.relu = l->attributes->activation == OP_ACTIVATION_RELU;
    b.y = l->call->out[0];
    b.mean = l->call->out[1];
    b.rstd = l->call->out[2];
    b.stat_mean = l->call->out[3];
    b.stat_var = l->call->out[4];
    return fleet_cuda_batch_norm(l->stream, &b);
}

cudaError_t cuda_launch_batch_norm_grad(const struct launch *l)
{
    struct fleet_cuda_batch_norm b = batch_norm_of(l, 1);

    b.total = l->call->in[5];
    b.own = l->call->in[6];
    b.d_y = l->call->in[0];
    b.d_type = in_type(l, 0);
    b.scale = l->call->in[2];
    b.mean = (float *)(uintptr_t)l->call->in[3]; /* read only here, as is rstd */
    b.rstd = (float *)(uintptr_t)l->call->in[4];
    b.d_x = l->call->out[0];
    b.d_scale = l->call->out[1];
    b.d_shift = l->call->out[2];
    return fleet_cuda_batch_norm_grad(l->stream, &b);
}

cudaError_t cuda_launch_batch_norm_sums(const struct launch *l)
{
    struct fleet_cuda_batch_norm b = batch_norm_of(l, 0);

    b.center = l->call->in[1];
    b.sums = l->call->out[0];
    return fleet_cuda_batch_norm_sums(l->stream, &b);
}

cudaError_t cuda_launch_batch_norm_grad_sums(const struct launch *l)
{
    struct fleet_cuda_batch_norm b = batch_norm_of(l, 1);

    b.d_y = l->call->in[0];
    b.d_type = in_type(l, 0);
    b.mean = (float *)(uintptr_t)l->call->in[2]; /* read only here, as is rstd */
    b.rstd = (float *)(uintptr_t)l->call->in[3];
    b.sums = l->call->out[0];
    return fleet_cuda_batch_norm_grad_sums(l->stream, &b);
}

static cudaError_t launch_pool(const struct launch *l, bool back,
                               cudaError_t (*kernel)(cudaStream_t, const struct fleet_cuda_pool *))
{
    const struct program_var *x = back ? out(l, 0) : in(l, 0), *y = back ? in(l, 0) : out(l, 0);
    const struct op_attributes *a = l->attributes;
    struct fleet_cuda_pool p = {.from = l->call->in[0],
                                .to = l->call->out[0],
                                .indices =
                                    back ? (int32_t *)(uintptr_t)l->call->in[2] : l->call->out[1],
                                .from_type = in_type(l, 0),
                                .to_type = out_type(l, 0),
                                .planes = x->shape[0] * x->shape[1],
                                .h = x->shape[2],
                                .w = x->shape[3],
                                .out_h = y->shape[2],
                                .out_w = y->shape[3],
                                .window = {a->kernel[0], a->kernel[1]},
                                .stride = {a->stride[0], a->stride[1]},
                                .padding = {a->padding[0], a->padding[1]},
                                .exclude_padding = a->exclude_padding};

    return kernel(l->stream, &p);
}

#define POOL(name, back)                                   \
    cudaError_t cuda_launch_##name(const struct launch *l) \
    {                                                      \
        return launch_pool(l, back, fleet_cuda_##name);    \
    }
POOL(max_pool2d, false)
POOL(avg_pool2d, false)
POOL(adaptive_avg_pool2d, false)
POOL(max_pool2d_grad, true)
POOL(avg_pool2d_grad, true)
POOL(adaptive_avg_pool2d_grad, true)
