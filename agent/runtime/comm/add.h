/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_COMM_ADD_H
#define AGENT_RUNTIME_COMM_ADD_H

/* The addition of partial sums on the host. */

#include <stdint.h>

/* Eight at a time, at any address: the compiler may not assume that `to` overlaps neither
 * operand. */
typedef float comm_eight __attribute__((vector_size(32), aligned(4), may_alias));

/* to = x + y; `to` may be one of them, but not overlap them otherwise. */
static inline void comm_add(const float *x, const float *y, int64_t count, float *to)
{
    int64_t i = 0;

    for (; i + 8 <= count; i += 8)
        *(comm_eight *)(to + i) = *(const comm_eight *)(x + i) + *(const comm_eight *)(y + i);
    for (; i < count; i++)
        to[i] = x[i] + y[i];
}

#endif
