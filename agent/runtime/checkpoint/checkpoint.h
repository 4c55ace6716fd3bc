/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CHECKPOINT_CHECKPOINT_H
#define AGENT_RUNTIME_CHECKPOINT_CHECKPOINT_H

/*
 * The committed state on disk and back (files: libfleet/checkpoint/manifest.h).
 *
 * Order of a save: a new folder; shard files, each fsynced; fsync of the folder; manifest.json by
 * rename, fsync of the folder and of the path; only then older ones are deleted, manifest first.
 * Hence, wherever a process dies:
 *  (1) A folder with a manifest is complete; one without is never read, and the next save of a
 *      newer step removes it.
 *  (2) The newest complete checkpoint is never touched while another is being made.
 *  (3) A failed save (disk full, not writable) leaves the older ones and no new folder.
 *  (4) Only the newest generation of a job deletes: a save by an older one than any found keeps
 *      everything. Of another job only what has no newer generation is deleted.
 *
 * With one rank writing:
 *     checkpoint_save(path, keep, &state, &position, &folder, err)
 * With several: the first makes the folder (checkpoint_begin) and sends its name to the others,
 * each writes its shard (checkpoint_write_shard) and hands the description of its files to the
 * first (shards.h), which ends it (checkpoint_commit) or removes it (checkpoint_discard).
 *
 * Loading: checkpoint_restore() takes the newest that verifies; any number of shards onto any
 * number of ranks.
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

#define CHECKPOINT_SPACES_MAX      8
#define CHECKPOINT_FOLDER_MAX      MANIFEST_FOLDER_MAX
#define CHECKPOINT_SHARD_FILES_MAX 2

/* A flat space (program.h): one array of fp32 that holds something for every parameter or
 * buffer. */
struct checkpoint_space {
    const char *suffix; /* "" = the weights themselves, ".state0", …: added to the names */
    float *data;        /* what the rank holds: ownership_place() says where; NULL = leave out */
    bool is_elsewhere;  /* with data NULL: its names are known, what files hold of it is not read */
    bool is_buffers;
    int slot; /* optimizer state number that a parameter must have for this space; -1 = all have */
};

struct checkpoint_state {
    const struct program *program; /* borrowed; laid out */
    struct backend *backend;       /* borrowed: whose memory the spaces are; NULL = the host's */
    const struct ownership *map;   /* borrowed: their owners; NULL = all of it is here */
    int replica;                   /* the own place in the map */
    struct checkpoint_space spaces[CHECKPOINT_SPACES_MAX];
    int space_count;
};

/* The usual spaces; any of the last three may be NULL. All borrowed. */
void checkpoint_state_init(struct checkpoint_state *state, const struct program *program,
                           struct backend *backend, float *parameters, float *state0, float *state1,
                           float *buffers);

/*
 * Save all of `state` as one shard and delete what exceeds the newest `keep` (>= 1). `about` gives
 * step, updates, samples, generation, instruction_set, config_digest, job and extra (borrowed);
 * files and time are filled in the file, not in `about`. `folder` gets the name.
 * -errno (-ENOSPC, -EACCES …) with the path; then nothing new is left.
 */
int checkpoint_save(const char *path, int64_t keep, const struct checkpoint_state *state,
                    const struct manifest *about, char folder[CHECKPOINT_FOLDER_MAX],
                    struct fleet_error *err);

/* ---- the same in parts, for several ranks ---------------------------------------------------- */

/* Make `path` if need be and a fresh folder in it, whose name goes to `folder`. -errno with the
 * path. */
int checkpoint_begin(const char *path, const struct manifest *about,
                     char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err);

/* What one rank wrote; plain bytes, so that it may be sent as it is. */
struct checkpoint_shard {
    int file_count;
    struct checkpoint_shard_file {
        char name[64];
        uint64_t bytes;
        char sha256[FLEET_SHA256_HEX_SIZE];
    } files[CHECKPOINT_SHARD_FILES_MAX];
};

/* Write shard `shard` of `shards`: an equal part of the lines for ALL, cut at multiples of 4096
 * elements, buffers with shard 0, and what rank `shard` alone owns by the map. *out describes the
 * files, which are synced. -errno with the path. */
int checkpoint_write_shard(const char *path, const char *folder,
                           const struct checkpoint_state *state, int shard, int shards,
                           struct checkpoint_shard *out, struct fleet_error *err);

/* All shards are there: make it a checkpoint, then delete what exceeds the newest `keep` of those
 * of `history` (NULL = all), off-lineage ones that are older included. On failure the folder is
 * removed. */
int checkpoint_commit(const char *path, const char *folder, int64_t keep,
                      const struct manifest_history *history, const struct manifest *about,
                      const struct checkpoint_shard *shards, int shard_count,
                      struct fleet_error *err);

/* Whether another job than `job_uid` has completed a checkpoint below `path` since then (one of
 * them goes to `folder`): two runs share it, and each may delete what the other needs. */
bool checkpoint_is_shared(const char *path, const char *job_uid, int64_t since_wall_ms,
                          char folder[CHECKPOINT_FOLDER_MAX]);

/* Remove the folder of a save that failed. */
void checkpoint_discard(const char *path, const char *folder);

/* ---- back ------------------------------------------------------------------------------------ */

/*
 * Fill `state` (every space) from the newest checkpoint of `history` (NULL = any) that verifies.
 * `resume`: TRAINING_RESUME_AUTO, or the step it must be of. *out_manifest (release it) says where
 * training goes on, `folder` which one it was. Corrupt ones that were passed over are in `warnings`
 * (may be NULL).
 *
 * -ENOENT: there is none (AUTO: start from the beginning; a step: error). -EBADMSG: there are some,
 * none is sound. -EINVAL: the newest sound one is of another model: all tensors missing, extra or
 * misshapen are listed. `state` is written only on success.
 */
int checkpoint_restore(const char *path, int64_t resume, const struct manifest_history *history,
                       struct checkpoint_state *state, struct manifest *out_manifest,
                       char folder[CHECKPOINT_FOLDER_MAX], struct fleet_errors *warnings,
                       struct fleet_error *err);

/*
 * Fill `state` from the checkpoint in `folder`, whose manifest was verified; with `weights_only`
 * parameters and buffers, and `state` holds no other spaces. -EINVAL lists everything missing,
 * extra and misshapen; -errno.
 */
int checkpoint_load_folder(const char *folder, const struct manifest *manifest, bool weights_only,
                           struct checkpoint_state *state, struct fleet_error *err);

/*
 * Fill parameters and buffers (spaces with suffix "") from one safetensors file, as
 * model.initialWeights says: fp32, bf16, fp16 or fp64 tensors under the exported names. -EINVAL
 * lists everything missing, extra and misshapen at once; -errno if the file cannot be read.
 */
int checkpoint_load_weights(const char *path, struct checkpoint_state *state,
                            struct fleet_error *err);

/*
 * spec/training.md 3: SHA-256 over the parameters in ascending byte order of their names, each as
 * its raw little-endian fp32 values, as lower-case hex. `backend` as in checkpoint_state.
 */
void checkpoint_weights_sha256(const struct program *program, struct backend *backend,
                               const float *parameters, char out[FLEET_SHA256_HEX_SIZE]);

#endif
