/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda_emulator/backend_emulated.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cuda/operators.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/program/dgc.h"
#include "libfleet/program/ops/operand.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/numerics/kernel_bytes.h"

#define SEEDS_MAX     16
#define GRADIENTS_MAX 64

struct emulated {
    struct backend base;
    uint64_t seed;
};

static void *uploaded(const void *host, size_t bytes)
{
    void *device = emulator_allocate(bytes);

    emulator_write(device, host, bytes);
    return device;
}

/* `device` is `call` with operands on the device; an output may lie over an input. */
static void upload(const struct kernel_call *call, struct kernel_call *device)
{
    *device = *call;
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        if (call->in[i])
            device->in[i] = uploaded(call->in[i], kernel_input_bytes(call, i));
    for (int o = 0; o < call->op->output_count; o++) {
        if (!call->out[o])
            continue;
        device->out[o] =
            emulator_allocate(program_var_bytes(operand_out(call->program, call->op, o)));
        for (int i = 0; i < OP_INPUTS_MAX; i++)
            if (call->in[i] == call->out[o])
                device->out[o] = (void *)(uintptr_t)device->in[i];
    }
    device->scratch = emulator_allocate(gpu_scratch_bytes(call->program, call->op));
}

/* Messages of dgc are device memory, too; `scalars` are those of the device's call. */
static void upload_messages(const struct kernel_call *call, struct run_scalars *scalars,
                            struct kernel_call *device)
{
    struct run_messages *m = &scalars->messages;

    *scalars = *call->scalars;
    if (m->all)
        m->all = uploaded(m->all, (size_t)m->words * (size_t)m->ranks * sizeof(*m->all));
    device->scalars = scalars;
}

/* DGC_SELECT writes its part of the message, DGC the gradient. */
static void download_beside(const struct kernel_call *call, const struct kernel_call *device)
{
    const struct run_messages *m = &call->scalars->messages;

    if (call->op->kind == OP_DGC_SELECT && m->all)
        memcpy(m->all, device->scalars->messages.all,
               (size_t)m->words * (size_t)m->ranks * sizeof(*m->all));
    if (call->op->kind == OP_DGC)
        memcpy((void *)(uintptr_t)call->in[1], device->in[1], kernel_input_bytes(call, 1));
}

static int download(const struct kernel_call *call, const struct kernel_call *device,
                    struct fleet_error *err)
{
    for (int o = 0; o < call->op->output_count; o++) {
        size_t bytes, at = 0;
        if (!call->out[o])
            continue;
        bytes = program_var_bytes(operand_out(call->program, call->op, o));
        if (call->op->kind == OP_TRUST_SQUARES) { /* the pair of its parameter */
            at = 2 * (size_t)call->op->attributes.optimizer.norm_index * sizeof(float);
            bytes = 2 * sizeof(float);
        }
        if (!emulator_is_written((char *)device->out[o] + at, bytes))
            return fleet_error(err, -EIO, "%s: output %d was not written completely",
                               op_definition(call->op->kind)->name, o);
        memcpy((char *)call->out[o] + at, (char *)device->out[o] + at, bytes);
    }
    download_beside(call, device);
    return 0;
}

static struct cuda_operator_context context_of(const struct kernel_call *device)
{
    struct fleet_cuda_scalars scalars = {.step = device->scalars->step,
                                         .first_sample = device->scalars->first_sample,
                                         .update_1based = device->scalars->update_1based,
                                         .gradient_scale = device->scalars->gradient_scale,
                                         .learning_rate = device->scalars->learning_rate,
                                         .votes = 3,
                                         .world = 3};
    struct fleet_cuda_gradient gradients[GRADIENTS_MAX];
    struct fleet_cuda_parameter parameter;
    struct cuda_operator_context context = {.scalars = uploaded(&scalars, sizeof(scalars))};
    static const uint64_t no_fault;
    int64_t blocks;
    int count;

    context.fault = uploaded(&no_fault, sizeof(no_fault));
    if (device->op->kind == OP_GRAD_NORM) {
        count = cuda_operator_gradients(device->program, cuda_operator_held(device), device->in[0],
                                        gradients, GRADIENTS_MAX, &blocks);
        fleet_assert(count >= 0);
        context.gradients = uploaded(gradients, (size_t)count * sizeof(gradients[0]));
    }
    if (cuda_operator_reads_parameter(device->op->kind)) {
        parameter = cuda_operator_parameter(device);
        context.parameter = uploaded(&parameter, sizeof(parameter));
    }
    return context;
}

static int64_t words_of(const struct kernel_call *call)
{
    const struct program_var *weight = operand_in(call->program, call->op, 1);

    if (call->op->kind != OP_LINEAR_CROSS_ENTROPY)
        return operand_columns(operand_in(call->program, call->op, 0));
    return weight->shape[call->op->attributes.transposed ? 0 : 1];
}

/* In the words of the CPU's kernels. */
static int bad_element(const struct kernel_call *call, uint64_t fault, struct fleet_error *err)
{
    int64_t at = (int64_t)fault - 1;
    const struct program_var *first = operand_in(call->program, call->op, 0);
    int64_t ignored = call->op->attributes.ignore_index;
    int targets = call->op->kind == OP_LINEAR_CROSS_ENTROPY ? 2 : 1;

    if (call->op->kind == OP_EMBEDDING)
        return fleet_error(
            err, -EINVAL,
            "id %" PRId32 " at position %" PRId64 " of sample %" PRId64 ", must be 0 to %" PRId64,
            ((const int32_t *)call->in[0])[at], at % first->shape[1], at / first->shape[1],
            operand_in(call->program, call->op, 1)->shape[0] - 1);
    return fleet_error(err, -EINVAL,
                       "target %" PRId32 " of row %" PRId64 ", must be 0 to %" PRId64 " or %" PRId64
                       " to ignore the row",
                       ((const int32_t *)call->in[targets])[at], at, words_of(call) - 1, ignored);
}

static int launch_error(const struct kernel_call *call, cudaError_t status, struct fleet_error *err)
{
    const struct program_var *qkv = operand_in(call->program, call->op, 0);
    const struct op_attributes *a = &call->op->attributes;

    if (status != cudaErrorInvalidValue)
        return fleet_error(err, -EIO, "%s on the emulator: %s", op_definition(call->op->kind)->name,
                           emulator_failure());
    if (call->op->kind == OP_ATTENTION)
        return fleet_error(err, -ENOTSUP, "%s: heads of %d columns, at most 128", qkv->name,
                           (int)(qkv->shape[2] / (a->heads + 2 * a->kv_heads)));
    return fleet_error(err, -ENOTSUP, "%s: no kernel for these operands",
                       op_definition(call->op->kind)->name);
}

static int emulated_kernel(struct backend *backend, const struct kernel_call *call,
                           struct fleet_error *err)
{
    const struct run_messages *m = &call->scalars->messages;
    struct cuda_operator_context context;
    struct run_scalars scalars;
    struct kernel_call device;
    cudaError_t status;
    int rc = 0;

    if (call->op->kind == OP_RESHAPE || call->op->kind == OP_MEMCPY) {
        memmove(call->out[0], call->in[0], kernel_input_bytes(call, 0));
        return 0;
    }
    if (call->op->kind == OP_DGC && m->all &&
        dgc_check_messages(call->program, call->op, m->ratio, m->ranks, m->words, m->all, err) < 0)
        return err->code;
    emulator_seed(((struct emulated *)backend)->seed);
    emulator_clear_failure();
    upload(call, &device);
    upload_messages(call, &scalars, &device);
    context = context_of(&device);
    status = cuda_operator_launch(NULL, &device, &context);
    if (status != cudaSuccess)
        rc = launch_error(call, status, err);
    else if (*context.fault)
        rc = bad_element(call, *context.fault, err);
    else
        rc = download(call, &device, err);
    emulator_release_all();
    return rc;
}

static kernel_fn emulated_kernel_of(struct backend *backend, enum op_kind kind)
{
    (void)backend;
    return kind == OP_ALL_REDUCE ? NULL : emulated_kernel;
}

struct backend *backend_emulated(uint64_t seed)
{
    static const struct backend_vtable vtable = {.name = "emulated", .kernel = emulated_kernel_of};
    static struct emulated made[SEEDS_MAX];

    fleet_assert(seed < SEEDS_MAX);
    made[seed] = (struct emulated){.base.vtable = &vtable, .seed = seed};
    return &made[seed].base;
}

/* Calls of the emulator do not fail. */
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
