/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_PRODUCTS_H
#define CUDA_PRODUCTS_H

/*
 * Matrix products by cuBLASLt, and by our own kernel (kernels/gemm.cu) where cuBLASLt has none.
 *
 * Operands: fp32 with fp32 (IEEE products and sums, or tf32 products if FLEET_CUDA_TF32 is 1), bf16
 * with bf16, fp16 with fp16; sums are fp32. Bias and activation are a part of the product where
 * cuBLASLt can do that, else our elementwise kernels follow it.
 *
 * Bits: a shape has one algorithm, the first that the library proposes of those that add in a fixed
 * order. Nothing is measured, so that the same library on the same kind of device gives the same
 * bits in every process (docs/decisions/cublaslt.md).
 *
 * A product allocates no device memory and waits for nothing, so that a stream may be captured into
 * a graph. One thread at a time.
 */

#include <stddef.h>

#include "cuda/kernels/kernels.h"

struct cublaslt_library;
struct fleet_error;

#define PRODUCTS_WORKSPACE_BYTES GPU_SCRATCH_PRODUCTS
#define PRODUCTS_TF32_ENV        "FLEET_CUDA_TF32"

struct products;

/* `workspace` is device memory of PRODUCTS_WORKSPACE_BYTES, the caller's. -EINVAL: the value of
 * FLEET_CUDA_TF32. -EIO: cuBLASLt does not start. */
int products_new(const struct cublaslt_library *library, void *workspace, struct products **out,
                 struct fleet_error *err);

/* NULL: does nothing. */
void products_free(struct products *products);

/* Choose how g is computed, before the first step. Of its pointers only NULL or not matters.
 * Operands start at multiples of 16 bytes. -EIO: a call of the library failed. */
int products_prepare(struct products *products, const struct fleet_cuda_gemm *g,
                     struct fleet_error *err);

/* Compute g; `products` NULL: by our own kernel. What was not prepared is chosen now. `scratch` has
 * room for a bias of 16 bits (gpu_scratch.h). */
cudaError_t products_run(struct products *products, cudaStream_t stream,
                         const struct fleet_cuda_gemm *g, void *scratch);

/* Shapes that were chosen, and those of them that our own kernel computes. */
void products_count(const struct products *products, int *out_chosen, int *out_own);

#endif
