/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_EMULATOR_BACKEND_EMULATED_H
#define TESTS_CUDA_EMULATOR_BACKEND_EMULATED_H

/*
 * A back end of nothing but kernels: each runs on the emulator, by cuda/operators.h. Operands are
 * the host's; they are copied to the emulator's memory and back, exactly as large as their shapes
 * say, and every output must have been written completely.
 *
 * tests/numerics/kernel_rig.h uses it in place of the CPU's where RIG_EMULATED is defined: so the
 * tests of the CPU's kernels and the recordings of other systems run our CUDA kernels, and each of
 * their cases is compared with the CPU, too.
 */

#include "agent/runtime/backend/backend.h"

/* Kernels run in the interleaving of `seed`. Made once a seed below 16; never freed. */
struct backend *backend_emulated(uint64_t seed);

#endif
