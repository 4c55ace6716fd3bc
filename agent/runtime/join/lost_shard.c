/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/join/lost_shard.h"

#include <stdint.h>
#include <stdlib.h>

#include "agent/runtime/trainer.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"

int lost_shard_agree(struct trainer *trainer, int *lost, struct fleet_error *err)
{
    int world = trainer->generation.world, cells = cells_count(&trainer->job.plan.topology);
    FLEET_AUTO_FREE int32_t *all = calloc((size_t)world, sizeof(*all));
    int32_t mine = *lost;

    fleet_assert(all != NULL);
    if (cells == 1 || !placement_may_divide(trainer))
        return 0;
    if (comm_all_gather(trainer->net.comm, &mine, sizeof(mine), all, trainer_deadline_ms(trainer),
                        err) < 0)
        return fleet_error_wrap(err, "agree on what is lost");
    for (int cell = 0; cell < cells && *lost < 0; cell++)
        *lost = all[cells_rank(&trainer->job.plan.topology, (struct cell_place){.cell = cell})];
    return 0;
}
