/* SPDX-License-Identifier: Apache-2.0 */

/* What runs once an update: the whole gradient, optimizers. */
#include <stdlib.h>

#include "cuda/operators.h"
#include "cuda/operators_internal.h"
#include "libfleet/base/assert.h"
#include "libfleet/program/ops/operand.h"

int64_t cuda_blocks_of(int64_t count)
{
    return (count + FLEET_CUDA_BLOCK - 1) / FLEET_CUDA_BLOCK;
}

/* Where the gradient of `parameter` begins, and its elements: none, if this rank has others. */
static int64_t gradient_place(const struct program *program, int parameter,
                              const struct kernel_held *held, int64_t *out_count)
{
    const struct program_var *var = &program->vars[parameter];
    int64_t at = held ? held->places[program_gradient_of(program, parameter)] : var->flat_offset;

    *out_count = held && at < 0 ? 0 : program_var_elements(var);
    return at < 0 ? 0 : at;
}

int cuda_operator_gradients(const struct program *program, const struct kernel_held *held,
                            const float *gradients, struct fleet_cuda_gradient *table, int room,
                            int64_t *out_blocks)
{
    int *parameters, count = program_parameters(program, true, &parameters);

    *out_blocks = 0;
    for (int i = 0; i < count && i < room; i++) {
        int64_t at = gradient_place(program, parameters[i], held, &table[i].count);
        table[i].data = gradients + at;
        table[i].first_block = *out_blocks;
        *out_blocks += cuda_blocks_of(table[i].count);
    }
    free(parameters);
    return count <= room ? count : -1;
}

int64_t cuda_gradient_blocks(const struct program *program, const struct kernel_held *held,
                             int *out_count)
{
    int64_t blocks = 0, elements;
    int *parameters;

    *out_count = program_parameters(program, true, &parameters);
    for (int i = 0; i < *out_count; i++) {
        (void)gradient_place(program, parameters[i], held, &elements);
        blocks += cuda_blocks_of(elements);
    }
    free(parameters);
    return blocks;
}

const struct kernel_held *cuda_operator_held(const struct kernel_call *call)
{
    return call->op->attributes.owned ? call->held : NULL;
}

cudaError_t cuda_launch_grad_norm(const struct launch *l)
{
    bool owned = l->attributes->owned;
    struct fleet_cuda_grad_norm n = {.tensors = l->context->gradients,
                                     .scalars = l->context->scalars,
                                     .norms = owned ? NULL : l->call->out[0],
                                     .squares = owned ? l->call->out[0] : NULL,
                                     .scratch = l->call->scratch};

    n.block_count =
        cuda_gradient_blocks(l->call->program, cuda_operator_held(l->call), &n.tensor_count);
    return fleet_cuda_grad_norm(l->stream, &n);
}

/* ---- norms of several ranks ------------------------------------------------------------------ */

/* Trained parameters in the order of their names: what is true of each one. */
static int32_t *numbers_in_whole(const struct program *program, int *out_count)
{
    int *parameters;
    int32_t *numbers;

    *out_count = program_parameters(program, true, &parameters);
    numbers = calloc((size_t)*out_count + 1, sizeof(*numbers));
    fleet_assert(numbers != NULL);
    for (int i = 0; i < *out_count; i++) {
        const struct program_var *var = &program->vars[parameters[i]];
        numbers[i] = var->is_copy ? -1 : var->number;
    }
    free(parameters);
    return numbers;
}

static bool *divided_parameters(const struct program *program, int *out_count)
{
    int *parameters;
    bool *divided;

    *out_count = program_parameters(program, true, &parameters);
    divided = calloc((size_t)*out_count + 1, sizeof(*divided));
    fleet_assert(divided != NULL);
    for (int i = 0; i < *out_count; i++)
        divided[i] = program->vars[parameters[i]].slice.parts > 0;
    free(parameters);
    return divided;
}

cudaError_t cuda_launch_spread_norms(const struct launch *l)
{
    struct fleet_cuda_spread_norms s = {.own = l->call->in[0],
                                        .whole = l->call->out[0],
                                        .whole_count = program_var_elements(out(l, 0))};
    int32_t *places = numbers_in_whole(l->call->program, &s.count);
    cudaError_t status;

    s.places = places;
    status = fleet_cuda_spread_norms(l->stream, &s);
    free(places);
    return status;
}

cudaError_t cuda_launch_total_norm(const struct launch *l)
{
    return fleet_cuda_total_norm(l->stream, l->call->in[0], l->call->out[0],
                                 program_var_elements(out(l, 0)) - 1);
}

cudaError_t cuda_launch_join_norms(const struct launch *l)
{
    bool is_bytes = in_type(l, 0) == PROGRAM_UINT8;
    struct fleet_cuda_join_norms j = {.all = is_bytes ? NULL : l->call->in[0],
                                      .squares = is_bytes ? l->call->in[0] : NULL,
                                      .norms = l->call->out[0]};
    bool *divided = divided_parameters(l->call->program, &j.count);
    cudaError_t status;

    j.divided = divided;
    j.ranks = (int)(program_var_elements(in(l, 0)) / program_var_elements(out(l, 0)));
    status = fleet_cuda_join_norms(l->stream, &j);
    free(divided);
    return status;
}

cudaError_t cuda_launch_check_finite(const struct launch *l)
{
    const struct kernel_held *held = cuda_operator_held(l->call);
    struct fleet_cuda_check_finite c = {.x = (float *)(uintptr_t)l->call->in[0], /* only read */
                                        .count = held ? held->count : l->call->program->flat_count,
                                        .flag = l->call->out[0]};

    return fleet_cuda_check_finite(l->stream, &c);
}

/* The operands: param grad state… in both kinds, and only an update writes them. */
static void set_operands(const struct kernel_call *call, struct fleet_cuda_parameter *p)
{
    int states = call->op->kind == OP_TRUST_SQUARES ? 2
                 : call->op->kind == OP_DGC         ? 1 /* the velocity of the dense phase */
                                                    : op_definition(call->op->kind)->states;

    p->param = (float *)(uintptr_t)call->in[0];
    p->gradient = call->in[1];
    for (int i = 0; i < states; i++)
        p->state[i] = (float *)(uintptr_t)call->in[2 + i];
}

struct fleet_cuda_parameter cuda_operator_parameter(const struct kernel_call *call)
{
    const struct op_attributes *a = &call->op->attributes;
    struct fleet_cuda_parameter p = {
        .count = program_var_elements(operand_in(call->program, call->op, 0)),
        .beta1 = a->optimizer.beta1,
        .beta2 = a->optimizer.beta2,
        .epsilon = a->optimizer.epsilon,
        .momentum = a->optimizer.momentum,
        .coefficient = a->optimizer.coefficient,
        .decay = a->optimizer.decay,
        .lambda = a->optimizer.lambda,
        .rescale = a->optimizer.rescale,
        .clip_limit = a->optimizer.clip_limit,
        .decay_kind = a->optimizer.decay_kind,
        .clip = a->optimizer.clip,
        .norm_index = a->optimizer.norm_index,
        .nesterov = a->optimizer.nesterov,
        .always_adapt = a->optimizer.always_adapt};

    set_operands(call, &p);
    if (operand_in(call->program, call->op, 0)->slice.parts > 0)
        p.squares_ranks = (int)a->ranks;
    else
        p.squares_ranks = a->ranks > 0; /* all ranks have all of it: the first one's */
    if (call->op->kind == OP_DGC) {
        p.clip = OP_CLIP_NONE;
        p.clip_factor = call->scratch; /* fleet_cuda_dgc_numbers() */
    }
    return p;
}

/* The norms to clip by are input `at`, if they are there. */
static struct fleet_cuda_optimizer optimizer_of(const struct launch *l, enum op_kind kind, int at)
{
    struct fleet_cuda_optimizer o = {.kind = kind,
                                     .parameters = l->context->parameter,
                                     .parameter_count = 1,
                                     .block_count = cuda_blocks_of(program_var_elements(in(l, 0))),
                                     .scalars = l->context->scalars,
                                     .scratch = l->call->scratch};

    if (at < l->call->op->input_count && in(l, at)) {
        o.norms = l->call->in[at];
        o.norm_count = (int)program_var_elements(in(l, at));
    }
    return o;
}

cudaError_t cuda_launch_optimizer(const struct launch *l)
{
    int at = 2 + op_definition(l->call->op->kind)->states;
    struct fleet_cuda_optimizer o = optimizer_of(l, l->call->op->kind, at);

    if (at + 1 < l->call->op->input_count) {
        o.squares = l->call->in[at + 1];
        o.squares_stride = program_var_elements(in(l, at + 1)) / l->attributes->ranks;
    }
    return fleet_cuda_optimizer(l->stream, &o);
}

/* Two states are LAMB's, one is LARS'. */
cudaError_t cuda_launch_trust_squares(const struct launch *l)
{
    struct fleet_cuda_optimizer o = optimizer_of(l, in(l, 3) ? OP_LAMB : OP_LARS, 4);

    o.own_squares = l->call->out[0];
    return fleet_cuda_trust_squares(l->stream, &o);
}
