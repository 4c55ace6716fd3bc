/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_LAYOUT_H
#define AGENT_RUNTIME_CHECKPOINT_LAYOUT_H

/*
 * The layout of a shard: which bytes of the state go into which file, in which order. And the
 * function that writes them.
 *
 * The data bytes of all files of a shard, one file after another, have the positions [0, total). A
 * writer that runs beside the training reports its progress as a position.
 */

#include "agent/runtime/checkpoint/checkpoint.h"
#include "libfleet/checkpoint/safetensors.h"

/* One file: its tensors in order, and metadata for what their names do not express. */
struct checkpoint_contents {
    struct safetensors_tensor *tensors; /* [count]; `data` is memory of the state's back end */
    size_t count;
    struct safetensors_metadata *metadata; /* [metadata_count]: "shape:NAME" of pieces,
                                              "buffer:NAME" */
    size_t metadata_count;
};

struct checkpoint_layout {
    int shard, shards;
    struct backend *backend;                                      /* as in checkpoint_state */
    struct checkpoint_contents files[CHECKPOINT_SHARD_FILES_MAX]; /* by enum checkpoint_file */
    uint64_t total;                                               /* bytes of data in both */
};

/* The layout of shard `shard` of `shards`. It borrows the memory of `state`, but nothing of its
 * program. */
void checkpoint_layout_init(struct checkpoint_layout *layout, const struct checkpoint_state *state,
                            int shard, int shards);
void checkpoint_layout_release(struct checkpoint_layout *layout);

/*
 * The source of the bytes that are written. acquire() returns memory that holds `size` bytes from
 * position `position` and stays valid until release(): `live`, which is the state's own memory, or
 * host memory. The calls come in the order of positions. Without a source (NULL) the writer reads
 * the state's own memory, which must not change meanwhile.
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
