/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_MANIFEST_H
#define LIBFLEET_CHECKPOINT_MANIFEST_H

/*
 * The description of a checkpoint: manifest.json. It is written last, so a folder without one is
 * not a checkpoint.
 *
 * A checkpoint is a folder step-<step>-g<epoch>.<counter>[-<n>] below `training.checkpoint.path`:
 *
 *     model-00001-of-00002.safetensors      parameters and buffers under their exported names
 *     optimizer-00001-of-00002.safetensors  optimizer states: "<parameter>.state0", ".state1"
 *     manifest.json                         this
 *
 * A tensor that a shard holds in part is a one-dimensional piece "<name>@<first element>".
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/digest.h"
#include "libfleet/base/lineage.h"

struct fleet_error;
struct fleet_errors;

#define MANIFEST_NAME      "manifest.json"
#define MANIFEST_SIZE_MAX  (16u << 20) /* bytes of JSON */
#define MANIFEST_FILES_MAX 20000
#define MANIFEST_TEXT_MAX  256

struct manifest_file {
    char *name; /* no folder */
    uint64_t bytes;
    char sha256[FLEET_SHA256_HEX_SIZE];
};

struct manifest {
    int64_t step;    /* batches that were committed: training goes on with batch number `step` */
    int64_t updates; /* optimizer updates made */
    int64_t samples; /* position in the data: the number of the next sample */
    struct fleet_generation generation;        /* that wrote it */
    char instruction_set[32];                  /* level it was computed at: equal bits per level */
    char config_digest[FLEET_SHA256_HEX_SIZE]; /* of the job's arithmetic; "" if not given */
    int64_t created_wall_ms;
    struct manifest_file *files; /* [file_count] */
    size_t file_count;
    cJSON *job;   /* owned object: whose it is (agent/runtime/origin.h); NULL = unknown */
    cJSON *extra; /* owned object with other state of passes (loss scale …); NULL = none */
};

/* Whether a file of a checkpoint holds parameters and buffers; the others hold optimizer states. */
bool manifest_is_model_file(const char *name);

/* The uid in `job`, "" if it is not given. */
const char *manifest_job_uid(const struct manifest *manifest);

/* Free what it holds and zero it. */
void manifest_release(struct manifest *manifest);

/* Heap text, one JSON object. */
char *manifest_encode(const struct manifest *manifest);

/* -EINVAL for a wrong type, a value out of range, or a name that leaves the folder. */
int manifest_decode(const char *text, size_t size, struct manifest *out, struct fleet_error *err);

/* The manifest in the checkpoint's folder. -errno, or as manifest_decode(). */
int manifest_read(const char *folder, struct manifest *out, struct fleet_error *err);

/*
 * Names of checkpoint folders. `copy` numbers folders of the same step and generation from 1 on;
 * the first has no suffix. Parse returns false for any name that format would not give.
 */
#define MANIFEST_FOLDER_MAX 96
void manifest_folder_format(int64_t step, struct fleet_generation generation, int copy,
                            char out[MANIFEST_FOLDER_MAX]);
bool manifest_folder_parse(const char *name, int64_t *out_step,
                           struct fleet_generation *out_generation, int *out_copy);

/* Which checkpoints belong to a job. */
struct manifest_history {
    const struct fleet_lineage *lineage; /* empty = all belong */
    const char *job_uid;                 /* the job of the lineage; NULL = not given */
};

/* Whether the state in a checkpoint is on the lineage; NULL = all are. Numbers of generations begin
 * again with each job. A checkpoint of another job counts as older than all of this, and is on the
 * lineage up to the step where ours began. */
bool manifest_belongs(const struct manifest_history *history, const struct manifest *manifest);

/* A complete checkpoint that was found: its manifest reads well; its files were not looked at. */
struct manifest_entry {
    char *folder;        /* name below the path */
    int copy;            /* of several of one step and generation */
    int64_t job_wall_ms; /* when its job wrote its newest one that is listed */
    struct manifest manifest;
};

struct manifest_list {
    struct manifest_entry *entries; /* [count], newest first: by job, generation, step */
    size_t count;
};

/*
 * All checkpoints below `path` that belong to `history` (NULL = all); none if the path is missing.
 * Folders with a manifest that does not read are reported in `warnings` (may be NULL) and left out;
 * folders without one (torn) silently. -errno if the path cannot be listed.
 */
int manifest_scan(const char *path, const struct manifest_history *history,
                  struct manifest_list *out, struct fleet_errors *warnings,
                  struct fleet_error *err);
void manifest_list_release(struct manifest_list *list);

/*
 * Whether `folder` holds every file of `manifest` with its size and SHA-256: 0, or -EBADMSG (-errno
 * if unreadable) with the first one that differs. Reads all of it.
 */
int manifest_verify(const char *folder, const struct manifest *manifest, struct fleet_error *err);

#endif
