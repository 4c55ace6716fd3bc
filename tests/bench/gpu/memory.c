/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/bench.h"

#define SOURCE_COUNT (1 << 22) /* of each kind of random number */
#define ALIGNMENT    ((size_t)256)

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15); /* splitmix64 */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* The sum of four uniform numbers, scaled to variance 1. */
static float near_normal(uint64_t bits)
{
    float sum = 0;

    for (int i = 0; i < 4; i++)
        sum += (float)((bits >> (16 * i)) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7320508f;
}

static cudaError_t upload(cudaStream_t stream, void **out, const void *host, size_t bytes)
{
    void *pinned = NULL;
    cudaError_t status = cudaMalloc(out, bytes);

    if (status == cudaSuccess)
        status = cudaMallocHost(&pinned, bytes);
    if (status != cudaSuccess)
        return status;
    memcpy(pinned, host, bytes);
    status = cudaMemcpyAsync(*out, pinned, bytes, cudaMemcpyHostToDevice, stream);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(stream);
    (void)cudaFreeHost(pinned);
    return status;
}

cudaError_t bench_source_init(struct bench_source *source, int64_t limit)
{
    float *values = malloc(SOURCE_COUNT * sizeof(*values));
    uint16_t *halves = malloc(SOURCE_COUNT * sizeof(*halves));
    int32_t *numbers = malloc(SOURCE_COUNT * sizeof(*numbers));
    cudaError_t status = values && halves && numbers ? cudaSuccess : cudaErrorMemoryAllocation;
    cudaStream_t stream = NULL;
    uint64_t state = 1;

    if (status == cudaSuccess)
        status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int i = 0; status == cudaSuccess && i < SOURCE_COUNT; i++) {
        uint32_t bits;
        values[i] = near_normal(next(&state));
        memcpy(&bits, &values[i], sizeof(bits));
        halves[i] = (uint16_t)(bits >> 16);
        numbers[i] = (int32_t)(next(&state) % (uint64_t)limit);
    }
    if (status == cudaSuccess)
        status = upload(stream, (void **)&source->normal, values, SOURCE_COUNT * sizeof(*values));
    for (int i = 0; status == cudaSuccess && i < SOURCE_COUNT; i++)
        values[i] = (float)((next(&state) >> 41) + 1) / 8388608.0f;
    if (status == cudaSuccess)
        status = upload(stream, (void **)&source->positive, values, SOURCE_COUNT * sizeof(*values));
    if (status == cudaSuccess)
        status =
            upload(stream, (void **)&source->normal_bf16, halves, SOURCE_COUNT * sizeof(*halves));
    if (status == cudaSuccess)
        status =
            upload(stream, (void **)&source->numbers, numbers, SOURCE_COUNT * sizeof(*numbers));
    if (stream)
        (void)cudaStreamDestroy(stream);
    free(values);
    free(halves);
    free(numbers);
    return status;
}

void bench_source_release(struct bench_source *source)
{
    (void)cudaFree(source->normal);
    (void)cudaFree(source->positive);
    (void)cudaFree(source->normal_bf16);
    (void)cudaFree(source->numbers);
}

/* ---- operands -------------------------------------------------------------------------------- */

static void *take(struct bench_arena *arena, size_t bytes)
{
    void *memory = arena->base ? arena->base + arena->used : NULL;

    arena->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return memory;
}

/* Copies of the source one after the other; the first begins inside it. A failed copy shows at the
 * next synchronization. */
static void *filled(struct bench_arena *arena, const void *source, size_t element, int64_t count)
{
    char *memory = take(arena, (size_t)count * element);
    int64_t skip = (int64_t)(next(&arena->turn) % (SOURCE_COUNT / 2)) / 64 * 64;

    for (int64_t at = 0; memory && at < count;) {
        int64_t piece = SOURCE_COUNT - skip < count - at ? SOURCE_COUNT - skip : count - at;
        (void)cudaMemcpyAsync(memory + (size_t)at * element,
                              (const char *)source + (size_t)skip * element,
                              (size_t)piece * element, cudaMemcpyDeviceToDevice, arena->stream);
        at += piece;
        skip = 0;
    }
    return memory;
}

void *bench_random(struct bench_arena *arena, enum program_type type, int64_t count)
{
    return type == PROGRAM_FP32 ? filled(arena, arena->source->normal, sizeof(float), count)
                                : filled(arena, arena->source->normal_bf16, 2, count);
}

float *bench_positive(struct bench_arena *arena, int64_t count)
{
    return filled(arena, arena->source->positive, sizeof(float), count);
}

int32_t *bench_numbers(struct bench_arena *arena, int64_t count)
{
    return filled(arena, arena->source->numbers, sizeof(int32_t), count);
}

static void *set_to(struct bench_arena *arena, int byte, size_t bytes)
{
    void *memory = take(arena, bytes);

    if (memory && bytes)
        (void)cudaMemsetAsync(memory, byte, bytes, arena->stream);
    return memory;
}

void *bench_zeros(struct bench_arena *arena, size_t bytes)
{
    return set_to(arena, 0, bytes);
}

void *bench_room(struct bench_arena *arena, size_t bytes)
{
    return set_to(arena, 0xff, bytes);
}

void *bench_table(struct bench_arena *arena, const void *rows, size_t bytes)
{
    void *memory = take(arena, bytes);

    if (memory)
        (void)fleet_cuda_store(arena->stream, memory, rows, bytes);
    return memory;
}
