/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_TENSOR_H
#define EMULATOR_TENSOR_H

/*
 * The macros of cuda/kernels/tensor_core.cuh, which says what they do. Products and loads of
 * fragments wait until all 32 lanes have come. A copy is made at the wait for it; until then its
 * destination holds NaNs, and nobody may read or write it.
 */

#define CUDA_MMA_BF16(d, a, b0, b1) emulator_mma(d, a, b0, b1, true, __FILE__, __LINE__)
#define CUDA_MMA_FP16(d, a, b0, b1) emulator_mma(d, a, b0, b1, false, __FILE__, __LINE__)

#define CUDA_LDMATRIX(r, row)        emulator_ldmatrix(r, row, false, __FILE__, __LINE__)
#define CUDA_LDMATRIX_TURNED(r, row) emulator_ldmatrix(r, row, true, __FILE__, __LINE__)

#define CUDA_COPY_16(to, from, exists) emulator_copy_start(to, from, 16, exists)
#define CUDA_COPY_4(to, from, exists)  emulator_copy_start(to, from, 4, exists)
#define CUDA_COPY_COMMIT()             emulator_copies_commit()
#define CUDA_COPY_WAIT(but_for)        emulator_copies_wait(but_for)

#define CUDA_EXP2(x)   exp2f(x)
#define CUDA_FORGET(x) ((void)(x))

#endif
