/* SPDX-License-Identifier: Apache-2.0 */

/* Operators on elements, and those that only move them. */
#include "cuda/operators_internal.h"
#include "libfleet/base/random.h"
#include "libfleet/program/ops/operand.h"

/* ---- elementwise ----------------------------------------------------------------------------- */

static cudaError_t launch_elementwise(const struct launch *l,
                                      cudaError_t (*kernel)(cudaStream_t,
                                                            const struct fleet_cuda_elementwise *))
{
    struct fleet_cuda_elementwise e = {.count = program_var_elements(out(l, 0)),
                                       .number = (float)l->attributes->scale,
                                       .exact = l->attributes->exact,
                                       .relu = l->attributes->activation == OP_ACTIVATION_RELU};

    for (int i = 0; i < 3; i++) {
        e.in[i] = l->call->in[i];
        e.in_type[i] = in_type(l, i);
    }
    for (int i = 0; i < 2; i++) {
        e.out[i] = l->call->out[i];
        e.out_type[i] = out_type(l, i);
    }
    if (in(l, 1) && program_var_elements(in(l, 1)) != e.count)
        e.period = program_var_elements(in(l, 1));
    return kernel(l->stream, &e);
}

#define ELEMENTWISE(name)                                  \
    cudaError_t cuda_launch_##name(const struct launch *l) \
    {                                                      \
        return launch_elementwise(l, fleet_cuda_##name);   \
    }
ELEMENTWISE(add)
ELEMENTWISE(subtract)
ELEMENTWISE(scale)
ELEMENTWISE(fill)
ELEMENTWISE(gelu)
ELEMENTWISE(gelu_grad)
ELEMENTWISE(relu)
ELEMENTWISE(relu_grad)
ELEMENTWISE(silu)
ELEMENTWISE(silu_grad)
ELEMENTWISE(swiglu)
ELEMENTWISE(swiglu_grad)

/* In an evaluation to the nearest. */
cudaError_t cuda_launch_cast(const struct launch *l)
{
    uint64_t stream = l->attributes->stream;
    struct fleet_random_key key = fleet_random_key(l->call->scalars->seed, "rounding", stream);
    struct fleet_cuda_round r = {.x = l->call->in[0],
                                 .y = l->call->out[0],
                                 .count = program_var_elements(in(l, 0)),
                                 .key = {key.word[0], key.word[1]},
                                 .scalars = l->context->scalars};

    return stream == 0 || l->call->scalars->evaluation ? launch_elementwise(l, fleet_cuda_cast)
                                                       : fleet_cuda_round(l->stream, &r);
}

cudaError_t cuda_launch_dropout(const struct launch *l)
{
    const struct program_var *x = in(l, 0);
    int64_t count = program_var_elements(x), samples = l->call->program->micro_batch_size;
    int64_t whole = count * (l->attributes->ranks > 0 ? l->attributes->ranks : 1);
    struct fleet_random_key key =
        fleet_random_key(l->call->scalars->seed, "dropout", l->attributes->stream);
    struct fleet_cuda_dropout d = {.x = l->call->in[0],
                                   .y = l->call->out[0],
                                   .x_type = x->type,
                                   .y_type = out_type(l, 0),
                                   .count = count,
                                   .first = count * l->attributes->place,
                                   .key = {key.word[0], key.word[1]},
                                   .rate = l->call->scalars->evaluation ? 0 : l->attributes->rate,
                                   .scalars = l->context->scalars};

    if (samples < 1)
        samples = x->shape[0];
    d.per_sample = whole / samples > 0 ? whole / samples : 1;
    return fleet_cuda_dropout(l->stream, &d);
}

/* ---- places ---------------------------------------------------------------------------------- */

cudaError_t cuda_launch_transpose(const struct launch *l)
{
    const struct program_var *x = in(l, 0);
    struct fleet_cuda_transpose t = {
        .x = l->call->in[0], .y = l->call->out[0], .type = x->type, .shape = {1, 1, 1, 1}};
    int64_t stride[PROGRAM_DIMS_MAX], step = 1;
    int first = PROGRAM_DIMS_MAX - x->ndim;

    for (int i = x->ndim - 1; i >= 0; i--) {
        stride[i] = step;
        step *= x->shape[i];
    }
    for (int i = 0; i < x->ndim; i++) {
        t.shape[first + i] = x->shape[l->attributes->order[i]];
        t.stride[first + i] = stride[l->attributes->order[i]];
    }
    return fleet_cuda_transpose(l->stream, &t);
}

cudaError_t cuda_launch_concat(const struct launch *l)
{
    bool is_split = l->call->op->kind == OP_SPLIT;
    const struct program_var *whole = is_split ? in(l, 0) : out(l, 0);
    struct fleet_cuda_concat c = {
        .whole = is_split ? (void *)(uintptr_t)l->call->in[0] : l->call->out[0],
        .whole_type = whole->type,
        .part_count = is_split ? l->call->op->output_count : l->call->op->input_count,
        .rows = operand_rows(whole)};

    for (int i = 0; i < c.part_count; i++) {
        const struct program_var *part = is_split ? out(l, i) : in(l, i);
        c.parts[i].data = is_split ? l->call->out[i] : (void *)(uintptr_t)l->call->in[i];
        c.parts[i].type = part->type;
        c.parts[i].columns = operand_columns(part);
    }
    return (is_split ? fleet_cuda_split : fleet_cuda_concat)(l->stream, &c);
}

cudaError_t cuda_launch_reduce(const struct launch *l)
{
    bool back = l->call->op->kind == OP_REDUCE_GRAD;
    const struct program_var *whole = back ? out(l, 0) : in(l, 0);
    const struct program_var *part = back ? in(l, 0) : out(l, 0);
    struct fleet_cuda_reduce r = {.x = l->call->in[0],
                                  .out = l->call->out[0],
                                  .x_type = in_type(l, 0),
                                  .out_type = out_type(l, 0),
                                  .rows = program_var_elements(part),
                                  .mean = l->attributes->mean};

    r.columns = r.rows > 0 ? program_var_elements(whole) / r.rows : 1;
    return (back ? fleet_cuda_reduce_grad : fleet_cuda_reduce)(l->stream, &r);
}
