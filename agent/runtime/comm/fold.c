/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reductions. One goes over the inputs in their order, a block of elements at a time: integers wrap
 * around; fp16 and bf16 are summed in fp32 and rounded once; the average is the sum divided by the
 * number of inputs.
 */
#include "agent/runtime/comm/fold.h"

#include <stdatomic.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/comm/engine.h"
#include "libfleet/base/assert.h"

const struct comm_folding *comm_foldings_of(enum fleet_isa level)
{
    if (level >= FLEET_ISA_AVX512)
        return comm_foldings_avx512;
    return level >= FLEET_ISA_AVX2 ? comm_foldings_avx2 : comm_foldings_plain;
}

/* Those of this machine, or of FLEET_ISA. Threads that ask at the same time find the same. */
static const struct comm_folding *foldings(void)
{
    static _Atomic(const struct comm_folding *) known;
    const struct comm_folding *found = atomic_load_explicit(&known, memory_order_relaxed);

    if (!found) {
        found = comm_foldings_of(backend_level_detect());
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return found;
}

void comm_fold(enum comm_type type, enum comm_reduction reduction, const void *const *inputs, int n,
               int64_t count, void *to)
{
    const struct comm_folding *folding = &foldings()[type];
    size_t size = comm_type_size(type);
    _Alignas(64) unsigned char acc[FOLD_BLOCK * sizeof(double)];

    fleet_assert(folding->fold != NULL);
    for (int64_t at = 0; at < count; at += FOLD_BLOCK) {
        int64_t block = count - at < FOLD_BLOCK ? count - at : FOLD_BLOCK;
        size_t offset = (size_t)at * size;
        folding->start(acc, (const char *)inputs[0] + offset, block);
        for (int r = 1; r < n; r++)
            folding->fold(reduction, acc, (const char *)inputs[r] + offset, block);
        folding->finish(acc, block, reduction == COMM_AVG ? n : 1, (char *)to + offset);
    }
}

void comm_fold_halves(const void *const *inputs, int n, int64_t count, bool starts, float *sum)
{
    const struct comm_folding *folding = &foldings()[COMM_FP16];

    for (int64_t at = 0; at < count; at += FOLD_BLOCK) {
        int64_t block = count - at < FOLD_BLOCK ? count - at : FOLD_BLOCK;
        for (int r = 0; r < n; r++) {
            const uint16_t *input = (const uint16_t *)inputs[r] + at;
            if (starts && r == 0)
                folding->start(sum + at, input, block);
            else
                folding->fold(COMM_SUM, sum + at, input, block);
        }
    }
}

void comm_fold_halves_end(const float *sum, int64_t count, void *to)
{
    const struct comm_folding *folding = &foldings()[COMM_FP16];

    for (int64_t at = 0; at < count; at += FOLD_BLOCK)
        folding->finish(sum + at, count - at < FOLD_BLOCK ? count - at : FOLD_BLOCK, 1,
                        (uint16_t *)to + at);
}
