/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_CHECKPOINT_H
#define AGENT_RUNTIME_CHECKPOINT_CHECKPOINT_H

/*
 * Writes the committed state to disk and reads it back (files: libfleet/checkpoint/manifest.h).
 *
 * Order of a save: a new folder; shard files, each fsynced; fsync of the folder; manifest.json by
 * rename, fsync of the folder and of the path. Only then older checkpoints are deleted, manifest
 * first. So, if a process dies at any point:
 *  (1) A folder with a manifest is complete. A folder without one is never read, and the next save
 *      of a newer step removes it.
 *  (2) The newest complete checkpoint is never touched while another is being made.
 *  (3) A failed save (disk full, not writable) leaves the older checkpoints and no new folder.
 *  (4) Only the newest generation of a job deletes. A save keeps everything if it finds a
 *      checkpoint of a newer generation. It deletes checkpoints of another job only if they are not
 *      of a newer generation.
 *
 * With one rank writing:
 *     checkpoint_save(path, keep, &state, &position, &folder, err)
 * With several ranks: the first one makes the folder (checkpoint_begin) and sends its name to the
 * others. Each rank writes its shard (checkpoint_write_shard) and gives the description of its
 * files to the first (shards.h). The first rank completes the checkpoint (checkpoint_commit) or
 * removes it
 * (checkpoint_discard).
 *
 * Loading: checkpoint_restore() takes the newest checkpoint that verifies. Any number of ranks can
 * load any number of shards.
 */

#include <stdint.h>

#include "agent/runtime/backend/backend.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/errors.h"
#include "libfleet/checkpoint/manifest.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/program/program.h"

struct fleet_error;
struct fleet_strbuf;

#define CHECKPOINT_SPACES_MAX 8
#define CHECKPOINT_FOLDER_MAX MANIFEST_FOLDER_MAX

/* The files of a shard. */
enum checkpoint_file {
    CHECKPOINT_MODEL,     /* parameters, running statistics */
    CHECKPOINT_OPTIMIZER, /* its states */
    CHECKPOINT_PRIVATE,   /* values that the rank which writes the shard has for itself */
    CHECKPOINT_SHARD_FILES_MAX,
};

/* A flat space (program.h): one array of fp32 that holds something for every parameter or
 * buffer. */
struct checkpoint_space {
    const char *suffix; /* "" = the weights themselves, ".state0", …: added to the names */
    float *data;        /* the rank's part, laid out by ownership_place(); NULL = leave out */
    bool is_elsewhere;  /* with data NULL: accept its names in the files, but do not read them */
    bool is_buffers;
    bool is_private;  /* each rank has values of its own, and writes them into a file of its own */
    bool is_of_first; /* ranks differ, and the common files have the first rank's values */
    int slot;         /* optimizer state number: only parameters that have it are here; -1 = all */
};

struct checkpoint_state {
    const struct program *program; /* borrowed; laid out */
    /* To read: of all of the model, where `program` is that of a pipeline's stage. Files must have
     * the other tensors, too. NULL: there are none. Borrowed; laid out. */
    const struct program *whole;
    struct backend *backend;     /* borrowed: has the memory of the spaces; NULL = the host's */
    const struct ownership *map; /* borrowed: the owners; NULL = this rank has everything */
    int replica;                 /* this rank's place in the map */
    struct checkpoint_space spaces[CHECKPOINT_SPACES_MAX];
    int space_count;
};

/* The usual spaces; any of the last three may be NULL. All borrowed. */
void checkpoint_state_init(struct checkpoint_state *state, const struct program *program,
                           struct backend *backend, float *parameters, float *state0, float *state1,
                           float *buffers);

/*
 * Save all of `state` as one shard, and delete all but the newest `keep` (>= 1) checkpoints.
 * `about` gives step, updates, samples, generation, instruction_set, config_digest, job and extra
 * (borrowed). The manifest on disk also gets files and time; `about` does not. `folder` gets the
 * name. -errno (-ENOSPC, -EACCES …) with the path; then nothing new is left.
 */
int checkpoint_save(const char *path, int64_t keep, const struct checkpoint_state *state,
                    const struct manifest *about, char folder[CHECKPOINT_FOLDER_MAX],
                    struct fleet_error *err);

/* ---- the same in parts, for several ranks ---------------------------------------------------- */

/* Make `path` if it does not exist, and a new folder in it; `folder` gets the name. -errno with the
 * path. */
int checkpoint_begin(const char *path, const struct manifest *about,
                     char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err);

/* The files that one rank wrote. Plain bytes, so a rank can send the struct as it is. */
struct checkpoint_shard {
    int file_count;
    struct checkpoint_shard_file {
        char name[64];
        uint64_t bytes;
        char sha256[FLEET_SHA256_HEX_SIZE];
    } files[CHECKPOINT_SHARD_FILES_MAX];
};

/* Write shard `shard` of `shards`: an equal part of the state that all ranks hold, cut at multiples
 * of 4096 elements; the buffers and what is_of_first says if it is shard 0; the state that only
 * rank `shard` owns by the map; and the rank's private spaces. *out describes the files, which are
 * synced. -errno with the path. */
int checkpoint_write_shard(const char *path, const char *folder,
                           const struct checkpoint_state *state, int shard, int shards,
                           struct checkpoint_shard *out, struct fleet_error *err);

/* Complete the checkpoint when all shards are written. Then delete all but the newest `keep`
 * checkpoints of `history` (NULL = of all), and older ones that are off the lineage. On failure the
 * folder is removed. */
int checkpoint_commit(const char *path, const char *folder, int64_t keep,
                      const struct manifest_history *history, const struct manifest *about,
                      const struct checkpoint_shard *shards, int shard_count,
                      struct fleet_error *err);

/* True if another job than `job_uid` has completed a checkpoint below `path` since
 * `since_wall_ms`; `folder` gets one of them. Then two runs share the path, and each may delete
 * checkpoints that the other needs. */
bool checkpoint_is_shared(const char *path, const char *job_uid, int64_t since_wall_ms,
                          char folder[CHECKPOINT_FOLDER_MAX]);

/* Remove the folder of a save that failed. */
void checkpoint_discard(const char *path, const char *folder);

/* ---- back ------------------------------------------------------------------------------------ */

/*
 * Fill `state` (every space) from the newest checkpoint of `history` (NULL = any) that verifies.
 * `resume`: TRAINING_RESUME_AUTO, or the step that it must have. *out_manifest (release it) has the
 * position of the training, `folder` the checkpoint's name. Corrupt checkpoints that were skipped
 * are listed in `warnings` (may be NULL).
 *
 * -ENOENT: there is no checkpoint (AUTO: start from the beginning; a step: an error). -EBADMSG: all
 * checkpoints are corrupt. -EINVAL: the newest sound one is of another model; the error lists all
 * missing, extra and misshapen tensors. `state` is written only on success.
 */
int checkpoint_restore(const char *path, int64_t resume, const struct manifest_history *history,
                       struct checkpoint_state *state, struct manifest *out_manifest,
                       char folder[CHECKPOINT_FOLDER_MAX], struct fleet_errors *warnings,
                       struct fleet_error *err);

/*
 * Fill `state` from the checkpoint in `folder`, whose manifest was verified. With `weights_only` it
 * reads parameters and buffers only, and `state` must have no other spaces. -EINVAL lists all
 * missing, extra and misshapen tensors; -errno.
 */
int checkpoint_load_folder(const char *folder, const struct manifest *manifest, bool weights_only,
                           struct checkpoint_state *state, struct fleet_error *err);

/* The number of ranks that wrote private values into this checkpoint; 0 = none did. */
int checkpoint_private_ranks(const struct manifest *manifest);

/* Fill the private spaces of `state`, which has no others, from what rank `rank` wrote into the
 * checkpoint in `folder`. -EINVAL lists what does not fit; -ENOENT: that rank wrote nothing;
 * -errno. */
int checkpoint_load_private(const char *folder, const struct manifest *manifest, int rank,
                            struct checkpoint_state *state, struct fleet_error *err);

/*
 * Fill parameters and buffers (spaces with suffix "") from the safetensors file of
 * model.initialWeights: fp32, bf16, fp16 or fp64 tensors under the exported names. -EINVAL lists
 * all missing, extra and misshapen tensors; -errno if the file cannot be read.
 */
int checkpoint_load_weights(const char *path, struct checkpoint_state *state,
                            struct fleet_error *err);

/*
 * The SHA-256 over the parameters in ascending byte order of their names, each as its raw
 * little-endian fp32 values, as lower-case hex. `backend` as in checkpoint_state.
 */
void checkpoint_weights_sha256(const struct program *program, struct backend *backend,
                               const float *parameters, char out[FLEET_SHA256_HEX_SIZE]);

#endif
