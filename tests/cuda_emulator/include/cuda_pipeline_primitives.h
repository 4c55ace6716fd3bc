/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EMULATOR_CUDA_PIPELINE_PRIMITIVES_H
#define EMULATOR_CUDA_PIPELINE_PRIMITIVES_H

/* Asynchronous copies from device to shared memory; each is made as late as it may be. */

#include "cuda_runtime.h"

#define __pipeline_memcpy_async(to, from, bytes) \
    emulator_copy_start(to, const_cast<void *>(static_cast<const void *>(from)), bytes, true)
#define __pipeline_commit()            emulator_copies_commit()
#define __pipeline_wait_prior(but_for) emulator_copies_wait(but_for)

#endif
