/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any strategy text under any policy, world and optimizer: errors, or a selection whose final
 * strategy selects the same again and whose ranks form a bijection with the grid, in groups that
 * partition the world. The first three bytes choose; the rest is text.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"

#define WORLD_MAX 300

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_grid(const struct strategy *s, int world)
{
    struct fleet_errors errors = {0};
    struct topology t;
    int at[TOPOLOGY_AXES], group[WORLD_MAX];

    fleet_assert(topology_build(s, world, NULL, "", &t, &errors) == 0);
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
        bool seen[WORLD_MAX] = {false};
        int members = 0;

        for (int rank = 0; rank < world; rank++) {
            topology_coordinates(&t, rank, at);
            fleet_assert(topology_rank(&t, at) == rank);
            if (topology_group(&t, (enum topology_axis)axis, rank, group) != 0)
                continue;
            for (int i = 0; i < t.degree[axis]; i++, members++) {
                fleet_assert(group[i] >= 0 && group[i] < world && !seen[group[i]]);
                seen[group[i]] = true;
            }
        }
        fleet_assert(members == world);
    }
}

static void check_again(const struct select_result *first, const struct select_options *options)
{
    struct fleet_errors errors = {0};
    SELECT_AUTO_RESULT struct select_result second = {0};

    fleet_assert(strategy_select(&first->final, options, "", &second, &errors) == 0);
    fleet_assert(first->applied.count == second.applied.count);
    for (size_t i = 0; i < first->applied.count; i++)
        fleet_assert(strcmp(first->applied.items[i], second.applied.items[i]) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const optimizers[] = {NULL, "sgd", "momentum", "adam", "adamw"};
    SELECT_AUTO_RESULT struct select_result result = {0};
    STRATEGY_AUTO struct strategy s;
    struct fleet_errors errors = {0};
    struct select_options options = {0};

    strategy_init(&s);
    if (size < 3 || prototxt_merge(&s, "f", (const char *)data + 3, size - 3, NULL) < 0)
        return 0;
    options.policy = data[0] & 1 ? STRATEGY_PADDLE : STRATEGY_FULL;
    options.world_size = 1 + (data[1] + (data[0] >> 1)) % WORLD_MAX;
    options.optimizer = optimizers[data[2] % FLEET_COUNT(optimizers)];
    if (strategy_select(&s, &options, "", &result, &errors) == 0) {
        check_grid(&result.final, options.world_size);
        check_again(&result, &options);
    }
    fleet_errors_release(&errors);
    return 0;
}
