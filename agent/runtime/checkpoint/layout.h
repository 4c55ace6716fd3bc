/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_LAYOUT_H
#define AGENT_RUNTIME_CHECKPOINT_LAYOUT_H

/*
 * Which bytes of the state go into which file of a shard, in order; and writing them.
 *
 * All data bytes of a shard's files, one after the other, have positions [0, total): a writer that
 * runs beside the training says by position how far it is.
 */

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/checkpoint/safetensors.h"

/* One file: tensors in order, and in its metadata what their names do not say. */
struct checkpoint_contents {
    struct safetensors_tensor *tensors; /* [count]; `data` is the state's, of its back end */
    size_t count;
    struct safetensors_metadata *metadata; /* [metadata_count]: "shape:NAME" of pieces,
                                              "buffer:NAME" */
    size_t metadata_count;
};

struct checkpoint_layout {
    int shard, shards;
    struct backend *backend;                                      /* as in checkpoint_state */
    struct checkpoint_contents files[CHECKPOINT_SHARD_FILES_MAX]; /* model, optimizer */
    uint64_t total;                                               /* bytes of data in both */
};

/* Elements [first, end) of the flat spaces, as shard `shard` of `shards` has them. Borrows memory
 * of `state`, nothing of its program. */
void checkpoint_layout_init(struct checkpoint_layout *layout, const struct checkpoint_state *state,
                            int shard, int shards);
void checkpoint_layout_release(struct checkpoint_layout *layout);

/*
 * Where the bytes come from while they are written: acquire() gives the memory that holds `size`
 * bytes of position `position` until release(): `live`, which is the state's own, or host memory.
 * Called in order of position. NULL as a whole: the state's own, which does not change meanwhile.
 */
struct checkpoint_source {
    void *context;
    const void *(*acquire)(void *context, uint64_t position, const void *live, size_t size);
    void (*release)(void *context, uint64_t position, size_t size);
};

/* Write and sync the files into `folder` below `path`; *out describes them. -errno with the
 * path. */
int checkpoint_layout_write(const struct checkpoint_layout *layout, const char *path,
                            const char *folder, const struct checkpoint_source *source,
                            struct checkpoint_shard *out, struct fleet_error *err);

#endif
