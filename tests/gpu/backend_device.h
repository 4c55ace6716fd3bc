/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_BACKEND_DEVICE_H
#define TESTS_GPU_BACKEND_DEVICE_H

/*
 * A back end of nothing but kernels: each runs on the GPU, by libfleet_cuda.so, which the program
 * opens as a trainer does (FLEET_CUDA_LIBRARY names it). Operands are the host's; they are copied
 * to the device and back. Outputs start as what the host's memory holds, so an element that no
 * kernel wrote is seen, and a frame of bytes around every operand must stay as it was.
 *
 * tests/numerics/kernel_rig.h uses it in place of the CPU's where RIG_DEVICE is defined: so the
 * tests of the CPU's kernels run on the device, and each of their cases is compared with the CPU.
 */

#include "agent/runtime/backend/backend.h"

/* The GPU of this process; never freed. `seed` below 4 moves operands by as many times 64 bytes.
 * Fails the test if there is no GPU. */
struct backend *backend_device(uint64_t seed);

#endif
