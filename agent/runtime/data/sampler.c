/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The order of an epoch is a computed bijection, not a shuffled list: the place of any sample needs
 * no memory and no earlier samples.
 */
#include "agent/runtime/data/sampler.h"

#include "libfleet/base/assert.h"
#include "libfleet/base/random.h"

int64_t sampler_index(const struct sampler *sampler, int64_t k)
{
    struct fleet_random_key key;
    uint64_t size = (uint64_t)sampler->count;

    fleet_assert(k >= 0 && sampler->count >= 1);
    if (!sampler->shuffle)
        return k % sampler->count;
    key = fleet_random_key(sampler->seed, "sample order", (uint64_t)k / size);
    return (int64_t)fleet_random_permute(key, size, (uint64_t)k % size);
}
