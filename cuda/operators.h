/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_OPERATORS_H
#define CUDA_OPERATORS_H

/*
 * An operator of a program as launches of our own kernels (kernels/kernels.h): what is in a
 * kernel_call becomes the struct of a family. Pure except for launches: it allocates nothing, and
 * operands, scratch (libfleet/plan/gpu_scratch.h) and tables are device memory of the caller.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/backend/backend.h"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/kernels_update.h"

struct fleet_error;
struct products;

/* What operators need beside their operands; all of it in device memory. */
struct cuda_operator_context {
    const struct fleet_cuda_scalars *scalars;
    uint64_t *fault;                              /* kernels.h; NULL: nobody wants to know */
    const struct fleet_cuda_gradient *gradients;  /* GRAD_NORM: cuda_operator_gradients() */
    const struct fleet_cuda_parameter *parameter; /* of an update: cuda_operator_parameter() */
    struct products *products;                    /* NULL: our own kernel multiplies */
};

/* Is there a kernel for a kind at all? RESHAPE, MEMCPY and OWN_ROWS have none: they are
 * copies. */
bool cuda_operator_exists(enum op_kind kind);

/* Does it read a row of cuda_operator_parameter()? */
bool cuda_operator_reads_parameter(enum op_kind kind);

/* Why our kernels cannot run `op`, or NULL if they can: its kind, a type, a size. */
const char *cuda_operator_refusal(const struct program *program, const struct program_op *op);

/* Choose how the matrix products of `op` are computed (products.h). Nothing is launched. Does
 * nothing for an operator without products, and if `products` is NULL. */
int cuda_operator_plan(struct products *products, const struct program *program,
                       const struct program_op *op, struct fleet_error *err);

/* Launch it. cudaErrorInvalidValue: a kind, type or size that our kernels do not have (heads of
 * more than 128 columns; RESHAPE, MEMCPY and OWN_ROWS, which are copies; ALL_REDUCE). Of
 * call->scalars only seed, evaluation and messages are read; dgc_check_messages() has accepted the
 * messages of DGC. */
cudaError_t cuda_operator_launch(cudaStream_t stream, const struct kernel_call *call,
                                 const struct cuda_operator_context *context);

/* The gradients that an operator with `owned` reads; NULL: all of them, at their flat offsets. */
const struct kernel_held *cuda_operator_held(const struct kernel_call *call);

/* GRAD_NORM's table, for the host to upload: tensors in byte order of their names, at `gradients`
 * (the device's address of flat offset 0, or of the held part). A tensor that is not held has no
 * elements. Room for `room` rows; returns their number, or -1 if
 * there are more. *out_blocks = blocks of all of them. */
int cuda_operator_gradients(const struct program *program, const struct kernel_held *held,
                            const float *gradients, struct fleet_cuda_gradient *table, int room,
                            int64_t *out_blocks);

/* The row of an operator that updates a parameter, or looks ahead at an update; first_block is 0,
 * narrow is absent. call->scratch is the kernel's. */
struct fleet_cuda_parameter cuda_operator_parameter(const struct kernel_call *call);

#endif
