/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sizes of the trainer's buffers besides the program's own tensors. The plan adds them up, the
 * runtime allocates by them: a formula that stood in two places would sooner or later be two
 * formulas.
 */
#include "libfleet/plan/runtime_memory.h"

#define HALVES_ALIGN ((size_t)256) /* as memory that a GPU allocates */

int64_t runtime_exchange_held(int64_t count, int world)
{
    int64_t chunk = RUNTIME_EXCHANGE_PART * world;

    if (count <= RUNTIME_EXCHANGE_WHOLE)
        return count;
    return (count < chunk ? count : chunk) / world + 2 * RUNTIME_EXCHANGE_ALIGN; /* largest part */
}

size_t runtime_exchange_bytes(int64_t nodes, int world, int64_t count)
{
    int64_t held = runtime_exchange_held(count, world), whole = RUNTIME_EXCHANGE_WHOLE;
    int64_t floats;

    if (world == 1)
        return 0;
    /* A smaller bucket than the largest may hold more: it goes whole. */
    if (count > whole && held < whole)
        held = whole;
    floats = nodes * held + RUNTIME_EXCHANGE_DEPTH * RUNTIME_EXCHANGE_BLOCK;
    return ((size_t)floats * sizeof(float) + 7) / 8 * 8 +
           (size_t)world * (2 * sizeof(void *) + 2 * sizeof(size_t)) +
           (size_t)nodes * sizeof(void *) + ((size_t)world + 1 + 2 * (size_t)nodes) * sizeof(int);
}

int64_t runtime_divided_part(int64_t most)
{
    return most < RUNTIME_EXCHANGE_PART ? most : RUNTIME_EXCHANGE_PART;
}

size_t runtime_divided_bytes(int world, int64_t most)
{
    int64_t floats =
        RUNTIME_EXCHANGE_DEPTH * RUNTIME_EXCHANGE_BLOCK + world * runtime_divided_part(most);

    return (size_t)world * sizeof(int64_t) + (size_t)floats * sizeof(float);
}

size_t runtime_received_bytes(int64_t count, int ranks, int64_t inputs, size_t size)
{
    return (size_t)((count + ranks - 1) / ranks * inputs) * size;
}

size_t runtime_halves_at(int64_t count, int ranks)
{
    size_t received = runtime_received_bytes(count, ranks, ranks, sizeof(uint16_t));

    return (received + HALVES_ALIGN - 1) / HALVES_ALIGN * HALVES_ALIGN;
}

size_t runtime_halves_bytes(int64_t count, int ranks)
{
    return runtime_halves_at(count, ranks) + (size_t)count * sizeof(uint16_t);
}

size_t runtime_kernel_bytes(int threads)
{
    return RUNTIME_PACKED_A_BYTES + RUNTIME_PACKED_B_BYTES + (size_t)threads * RUNTIME_THREAD_BYTES;
}

size_t runtime_leaf_bytes(int64_t leaves, int64_t buffers)
{
    return 4 * (size_t)leaves * (size_t)buffers * sizeof(float);
}

size_t runtime_snapshot_bytes(size_t state)
{
    return state < RUNTIME_SNAPSHOT_BYTES_MAX ? state : RUNTIME_SNAPSHOT_BYTES_MAX;
}
