/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Bytes that travel as arguments of a launch: small tables that change from step to step need no
 * pinned memory that has to live until the device has read it.
 *
 * Floor: the bytes, once. Grid: one block for each 2 KiB, in a launch of its own.
 * Determinism: a word has one writer.
 */
#include <string.h>

#include "cuda/kernels/device.cuh"

#define STORE_WORDS 256 /* of 8 bytes: with the rest below the 4 KiB of arguments */

struct store_words {
    uint64_t word[STORE_WORDS];
};

__global__ void __launch_bounds__(STORE_WORDS)
    store_kernel(uint64_t *to, const struct store_words words, int count)
{
    int i = (int)threadIdx.x;

    if (i < count)
        to[i] = words.word[i];
}

cudaError_t fleet_cuda_store(cudaStream_t stream, void *to, const void *from, size_t bytes)
{
    cudaError_t status = cudaSuccess;

    if (bytes % sizeof(uint64_t) != 0)
        return cudaErrorInvalidValue;
    for (size_t at = 0; at < bytes && status == cudaSuccess; at += sizeof(struct store_words)) {
        size_t left = bytes - at, part = left < sizeof(store_words) ? left : sizeof(store_words);
        struct store_words words = {};

        memcpy(&words, (const char *)from + at, part);
        status = CUDA_LAUNCH(store_kernel, 1, STORE_WORDS, 0, stream,
                             (uint64_t *)(void *)((char *)to + at), words,
                             (int)(part / sizeof(uint64_t)));
    }
    return status;
}
