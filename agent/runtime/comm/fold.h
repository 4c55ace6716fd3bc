/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_FOLD_H
#define AGENT_RUNTIME_COMM_FOLD_H

/*
 * The arithmetic of reductions, compiled once for each instruction-set level: fold_plain.c,
 * fold_avx2.c and fold_avx512.c. All levels have the same bits: each element is reduced by itself,
 * and a NaN is stored as one of two patterns, by its sign.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/isa.h"

/* The loops for one type. `acc` has the type in which it is added: fp32 for fp16 and bf16, else
 * its own. All are called with at most FOLD_BLOCK elements. */
struct comm_folding {
    /* acc = input */
    void (*start)(void *acc, const void *input, int64_t n);
    /* acc = the reduction of acc and input, in this order */
    void (*fold)(enum comm_reduction reduction, void *acc, const void *input, int64_t n);
    /* to = acc; divided if `divisor` is more than 1 */
    void (*finish)(const void *acc, int64_t n, int divisor, void *to);
};

#define FOLD_BLOCK 1024

/* By type; no functions where there is no reduction. A machine without the instructions of a level
 * must not call its functions. */
extern const struct comm_folding comm_foldings_plain[COMM_TYPES], comm_foldings_avx2[COMM_TYPES],
    comm_foldings_avx512[COMM_TYPES];

/* The table of a level. */
const struct comm_folding *comm_foldings_of(enum fleet_isa level);

/*
 * The sum of halves that goes on from rank to rank, in fp32: sum[i] += inputs[0][i], then
 * inputs[1][i], … If it starts here, sum[i] begins as inputs[0][i]. comm_fold_halves_end() rounds
 * it to fp16. The bits are those of comm_fold() over all inputs at once.
 */
void comm_fold_halves(const void *const *inputs, int n, int64_t count, bool starts, float *sum);
void comm_fold_halves_end(const float *sum, int64_t count, void *to);

#endif
