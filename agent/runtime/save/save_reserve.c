/* SPDX-License-Identifier: Apache-2.0 */

/* Memory for the copy that a device makes of the state while a checkpoint is written. */
#include <errno.h>

#include "agent/runtime/checkpoint/layout.h"
#include "agent/runtime/save/save.h"
#include "agent/runtime/save/save_internal.h"
#include "agent/runtime/step/private_save.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/error.h"

static size_t shard_bytes(const struct trainer *trainer, int shard, int shards)
{
    struct checkpoint_state state;
    struct checkpoint_layout layout;
    size_t bytes;

    save_state_of(trainer, &state);
    if (shards > 1 && private_is_saved(trainer))
        private_add_spaces(trainer, &state);
    checkpoint_layout_init(&layout, &state, shard, shards);
    bytes = (size_t)layout.total;
    checkpoint_layout_release(&layout);
    return bytes;
}

/* The first rank writes all of an undivided state, also where others write parts: it saves alone if
 * the agent orders a checkpoint. Where ranks share tensors, each gathers its part in memory of the
 * host. */
static size_t own_bytes(const struct trainer *trainer)
{
    int rank = trainer->generation.rank, world = trainer->generation.world;
    bool is_together = save_is_divided(trainer) || private_is_saved(trainer);

    if (save_has_cells(trainer))
        return 0;
    if (rank == 0 && !is_together)
        return shard_bytes(trainer, 0, 1);
    if (is_together || trainer->job.config.checkpoint.format != TRAINING_FORMAT_SINGLE)
        return shard_bytes(trainer, rank, world);
    return 0;
}

void save_reserve(struct trainer *trainer)
{
    struct backend *backend = trainer->state.backend;
    struct fleet_error err;
    size_t bytes;
    int rc;

    if (!trainer->save.snapshot || !backend_aside(backend))
        return;
    bytes = own_bytes(trainer);
    rc = snapshot_reserve(trainer->save.snapshot, backend, bytes, &err);
    if (rc == -EBUSY) {
        save_finish(trainer);
        rc = snapshot_reserve(trainer->save.snapshot, backend, bytes, &err);
    }
    if (rc < 0)
        trainer_warn(trainer, "checkpoints stop the training while the state is copied: %s",
                     err.text);
}
