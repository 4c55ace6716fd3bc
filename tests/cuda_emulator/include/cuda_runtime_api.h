/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_CUDA_RUNTIME_API_H
#define EMULATOR_CUDA_RUNTIME_API_H

/* Of CUDA's header of this name, what cuda/kernels/kernels.h needs. Numbers are CUDA's. */

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorLaunchFailure = 719,
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;

#endif
