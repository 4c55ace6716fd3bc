/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_DATA_SAMPLER_H
#define AGENT_RUNTIME_DATA_SAMPLER_H

/*
 * The order of samples: a function of (seed, number). It does not depend on ranks or on earlier
 * calls.
 *
 * Number k = step · globalBatchSize + i of an endless sequence is position k mod n of epoch k div
 * n. With `shuffle` each epoch is permuted by a bijection keyed by (seed, epoch). So every epoch
 * has every sample once, and the position in the data is one number.
 */

#include <stdbool.h>
#include <stdint.h>

struct sampler {
    uint64_t seed;
    int64_t count; /* samples n, >= 1 */
    bool shuffle;
};

/* The sample at number k >= 0, in [0, count). */
int64_t sampler_index(const struct sampler *sampler, int64_t k);

#endif
