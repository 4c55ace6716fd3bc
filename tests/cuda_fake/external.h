/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUDA_FAKE_EXTERNAL_H
#define TESTS_CUDA_FAKE_EXTERNAL_H

/*
 * Work of another library in a stream of the fake CUDA runtime. A stream begins with this struct,
 * so that a library which is opened by itself needs no symbol of the fake.
 */

#include <stdbool.h>
#include <stddef.h>

#include "tests/cuda_emulator/emulator.h"

struct CUstream_st;

struct external_stream {
    /* Put work into the stream. `advance` runs with the device's memory open, again and again,
     * until it returns true: then the work has ended. It must not wait. */
    void (*put)(struct CUstream_st *stream, bool (*advance)(void *context), void *context);

    /* Launch a kernel, as our own kernels are launched: emulator_submit. */
    emulator_submit_fn launch;
};

#endif
