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

struct external_work {
    /* Runs with the device's memory open, again and again, until it returns true: then the work has
     * ended, and `context` is gone. It must not wait. */
    bool (*advance)(void *context);

    /* Of work in a graph, which never runs itself: the same work for one launch; free it. */
    void *(*again)(void *context);
    void (*drop)(void *context);
};

struct external_stream {
    /* Put work into the stream, or into the graph that it captures. */
    void (*put)(struct CUstream_st *stream, const struct external_work *work, void *context);

    bool (*is_captured)(const struct CUstream_st *stream);

    /* Launch a kernel, as our own kernels are launched: emulator_submit. */
    emulator_submit_fn launch;
};

#endif
