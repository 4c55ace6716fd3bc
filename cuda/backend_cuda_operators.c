/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Operators of programs. What a kernel reads beside its operands (scalars, tables) is written by
 * store kernels in the same stream, so the next step may change it while this one still runs.
 */
#include <errno.h>
#include <stdlib.h>

#include "cuda/backend_cuda_internal.h"
#include "cuda/operators.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/gpu_scratch.h"
#include "libfleet/program/dgc.h"
#include "libfleet/program/ops/operand.h"

#define FP8_CAPABILITY 89 /* the first architecture that multiplies fp8 */

static bool is_copy(enum op_kind kind)
{
    return kind == OP_RESHAPE || kind == OP_MEMCPY || kind == OP_OWN_ROWS;
}

static enum device_fault_kind fault_kind(enum op_kind kind)
{
    switch (kind) {
    case OP_EMBEDDING:
        return DEVICE_FAULT_ID;
    case OP_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY:
        return DEVICE_FAULT_TARGET;
    case OP_CROSS_ENTROPY_GRAD:
        return DEVICE_FAULT_TARGET_GRAD;
    default:
        return DEVICE_FAULT_NONE;
    }
}

static void expect_fault(struct cuda_device *device, const struct program *program,
                         const struct program_op *op)
{
    const struct program_var *first = operand_in(program, op, 0);
    enum device_fault_kind kind = fault_kind(op->kind);

    if (kind == DEVICE_FAULT_ID)
        device->fault_of[kind] = (struct device_fault){
            .limit = operand_in(program, op, 1)->shape[0], .row = first->shape[1]};
    else if (kind != DEVICE_FAULT_NONE)
        device->fault_of[kind].limit =
            op->kind == OP_LINEAR_CROSS_ENTROPY
                ? operand_in(program, op, 1)->shape[op->attributes.transposed ? 0 : 1]
                : operand_columns(first);
}

/* Room for a row a tensor of the gradient. */
static int reserve_gradients(struct cuda_device *device, const struct program *program,
                             struct fleet_error *err)
{
    size_t bytes = (size_t)program->var_count * sizeof(*device->gradients);
    size_t had = device->gradients_bytes;
    int rc =
        device_reserve(device, (void **)&device->gradients, &device->gradients_bytes, bytes, err);

    if (rc < 0 || bytes <= had)
        return rc;
    free(device->gradient_rows);
    device->gradient_rows = calloc(1, bytes);
    fleet_assert(device->gradient_rows != NULL);
    return 0;
}

int cuda_prepare(struct backend *backend, const struct program *program,
                 const struct program_op *op, struct fleet_error *err)
{
    struct cuda_device *device = handle_of(backend)->device;
    const char *refusal = is_copy(op->kind) ? NULL : cuda_operator_refusal(program, op);
    int rc;

    if (refusal)
        return fleet_error(err, -ENOTSUP, "the GPU has no kernel for this: %s", refusal);
    if (op->attributes.fp8 && device->capability < FP8_CAPABILITY)
        return fleet_error(err, -ENOTSUP,
                           "spec.training.precision: fp8 needs a GPU of compute capability %d.%d "
                           "or later, this one has %d.%d; use bf16",
                           FP8_CAPABILITY / 10, FP8_CAPABILITY % 10, device->capability / 10,
                           device->capability % 10);
    expect_fault(device, program, op);
    rc = device_reserve(device, &device->scratch, &device->scratch_bytes,
                        is_copy(op->kind) ? 0 : gpu_scratch_bytes(program, op), err);
    if (rc == 0)
        rc = cuda_operator_plan(device->products, program, op, err);
    return rc == 0 && op->kind == OP_GRAD_NORM ? reserve_gradients(device, program, err) : rc;
}

static bool is_known(const struct fleet_cuda_scalars *a, const struct fleet_cuda_scalars *b)
{
    return a->step == b->step && a->first_sample == b->first_sample &&
           a->update_1based == b->update_1based && a->gradient_scale == b->gradient_scale &&
           a->learning_rate == b->learning_rate;
}

cudaError_t cuda_bring_scalars(struct handle *h, const struct run_scalars *s)
{
    struct cuda_device *device = h->device;
    struct fleet_cuda_scalars wanted = {.step = s->step,
                                        .first_sample = s->first_sample,
                                        .update_1based = s->update_1based,
                                        .gradient_scale = s->gradient_scale,
                                        .learning_rate = s->learning_rate,
                                        .votes = 1, /* the trainer has all of them by now */
                                        .world = 1};
    cudaError_t status;

    if (device->is_capturing || (device->knows_scalars && is_known(&device->known, &wanted)))
        return cudaSuccess;
    status = fleet_cuda_store(h->stream, device->scalars, &wanted, sizeof(wanted));
    if (status == cudaSuccess) {
        device->known = wanted;
        device->knows_scalars = true;
    }
    return status;
}

static cudaError_t bring_gradients(struct handle *h, const struct kernel_call *call)
{
    struct cuda_device *device = h->device;
    int64_t blocks;
    int count = cuda_operator_gradients(call->program, cuda_operator_held(call), call->in[0],
                                        device->gradient_rows, call->program->var_count, &blocks);

    return count < 0 ? cudaErrorInvalidValue
                     : fleet_cuda_store(h->stream, device->gradients, device->gradient_rows,
                                        (size_t)count * sizeof(*device->gradients));
}

static cudaError_t run(struct handle *h, const struct kernel_call *call)
{
    struct cuda_device *device = h->device;
    struct kernel_call with_scratch = *call;
    struct cuda_operator_context context = {.scalars = device->scalars,
                                            .fault = device->faults,
                                            .gradients = device->gradients,
                                            .parameter = device->parameter,
                                            .products = device->products};
    struct fleet_cuda_parameter row;
    cudaError_t status = cuda_bring_scalars(h, call->scalars);

    with_scratch.scratch = device->scratch;
    if (status == cudaSuccess && call->op->kind == OP_GRAD_NORM)
        status = bring_gradients(h, call);
    if (status == cudaSuccess && cuda_operator_reads_parameter(call->op->kind)) {
        row = cuda_operator_parameter(&with_scratch);
        status = fleet_cuda_store(h->stream, device->parameter, &row, sizeof(row));
    }
    if (fault_kind(call->op->kind) != DEVICE_FAULT_NONE)
        context.fault = device->faults + fault_kind(call->op->kind);
    return status == cudaSuccess ? cuda_operator_launch(h->stream, &with_scratch, &context)
                                 : status;
}

static cudaError_t copy(struct handle *h, const struct kernel_call *call)
{
    size_t bytes = program_var_bytes(operand_out(call->program, call->op, 0));
    const char *from = (const char *)call->in[0] + bytes * (size_t)call->op->attributes.place;

    if (from == call->out[0] || bytes == 0)
        return cudaSuccess;
    return cudaMemcpyAsync(call->out[0], from, bytes, cudaMemcpyDefault, h->stream);
}

/* Messages of dgc lie in the host's memory, and all have arrived. */
static int check_messages(const struct kernel_call *call, struct fleet_error *err)
{
    const struct run_messages *m = &call->scalars->messages;

    if (call->op->kind != OP_DGC || !m->all)
        return 0;
    return dgc_check_messages(call->program, call->op, m->ratio, m->ranks, m->words, m->all, err);
}

static int cuda_run(struct backend *backend, const struct kernel_call *call,
                    struct fleet_error *err)
{
    struct handle *h = handle_of(backend);
    int rc = device_check(h->device, err);
    cudaError_t status;

    if (rc == 0)
        rc = check_messages(call, err);
    if (rc < 0)
        return rc;
    status = is_copy(call->op->kind) ? copy(h, call) : run(h, call);
    return status == cudaSuccess ? 0 : device_fail(h->device, status, "start a kernel", err);
}

kernel_fn cuda_kernel(struct backend *backend, enum op_kind kind)
{
    (void)backend;
    return is_copy(kind) || cuda_operator_exists(kind) ? cuda_run : NULL;
}
