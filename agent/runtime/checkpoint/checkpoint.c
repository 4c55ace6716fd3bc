/* SPDX-License-Identifier: Apache-2.0 */

/* The life of a checkpoint's folder: made, completed by its manifest, one day deleted. */
#include "agent/runtime/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/checkpoint/shards.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"

#define COPIES_MAX 10000 /* folders of one step and generation */

static int sync_folder(const char *path)
{
    FLEET_AUTO_CLOSE int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

/* ---- removing -------------------------------------------------------------------------------- */

static bool is_ours(const char *name)
{
    size_t length, suffix = strlen(".safetensors");

    name += name[0] == '.'; /* a temporary name of such a file (libfleet/base/file.h) */
    length = strlen(name);
    return strncmp(name, MANIFEST_NAME, strlen(MANIFEST_NAME)) == 0 ||
           strncmp(name, SHARDS_NOTE_PREFIX, strlen(SHARDS_NOTE_PREFIX)) == 0 ||
           (length > suffix && strcmp(name + length - suffix, ".safetensors") == 0);
}

/*
 * Remove a checkpoint's folder, its manifest first and durably, so that what a crash leaves over is
 * no checkpoint. Other people's files in it, and then the folder, stay. Failures leave garbage that
 * the next save tries to remove again.
 */
static void remove_folder(const char *path, const char *name)
{
    FLEET_AUTO_FREE char *folder = fleet_file_join(path, name);
    FLEET_AUTO_FREE char *manifest = fleet_file_join(folder, MANIFEST_NAME);
    DIR *dir;
    struct dirent *entry;

    if (unlink(manifest) == 0)
        (void)sync_folder(folder);
    else if (errno != ENOENT)
        return;
    dir = opendir(folder);
    if (!dir)
        return;
    while ((entry = readdir(dir)))
        if (is_ours(entry->d_name))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    (void)rmdir(folder);
}

void checkpoint_discard(const char *path, const char *folder)
{
    remove_folder(path, folder);
}

static bool has_manifest(const char *path, const char *name)
{
    FLEET_AUTO_FREE char *folder = fleet_file_join(path, name);
    FLEET_AUTO_FREE char *manifest = fleet_file_join(folder, MANIFEST_NAME);

    return access(manifest, F_OK) == 0 || errno != ENOENT;
}

/* What interrupted saves of this and older generations have left: folders without a manifest. */
static void remove_torn(const char *path, struct fleet_generation generation)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir))) {
        struct fleet_generation theirs;
        int64_t step;
        int copy;
        if (manifest_folder_parse(entry->d_name, &step, &theirs, &copy) &&
            fleet_generation_compare(theirs, generation) <= 0 && !has_manifest(path, entry->d_name))
            remove_folder(path, entry->d_name);
    }
    if (dir)
        closedir(dir);
}

static bool is_of(const struct manifest *manifest, const char *job_uid)
{
    return strcmp(manifest_job_uid(manifest), job_uid ? job_uid : "") == 0;
}

/* (4): something of a newer generation of this job is there. */
static bool is_fenced_off(const struct manifest_list *list, const struct manifest *about)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct manifest *m = &list->entries[i].manifest;
        if (is_of(m, manifest_job_uid(about)) &&
            fleet_generation_compare(m->generation, about->generation) > 0)
            return true;
    }
    return false;
}

/*
 * Only checkpoints on the lineage count. Checkpoints of an abandoned branch would otherwise push
 * out the one that the job resumed from. A checkpoint of a newer generation belongs to another job
 * and stays.
 */
static void remove_old(const char *path, int64_t keep, const struct manifest_history *history,
                       const struct manifest *about)
{
    struct manifest_list list;
    int64_t counted = 0;
    bool may_remove;

    if (manifest_scan(path, NULL, &list, NULL, NULL) < 0)
        return;
    may_remove = !is_fenced_off(&list, about);
    for (size_t i = 0; may_remove && i < list.count; i++) {
        const struct manifest *m = &list.entries[i].manifest;
        if (counted < keep)
            counted += manifest_belongs(history, m);
        else if (fleet_generation_compare(m->generation, about->generation) <= 0)
            remove_folder(path, list.entries[i].folder);
    }
    manifest_list_release(&list);
}

bool checkpoint_is_shared(const char *path, const char *job_uid, int64_t since_wall_ms,
                          char folder[CHECKPOINT_FOLDER_MAX])
{
    struct manifest_list list;
    bool is_shared = false;

    if (manifest_scan(path, NULL, &list, NULL, NULL) < 0)
        return false;
    for (size_t i = 0; !is_shared && i < list.count; i++) {
        const struct manifest *m = &list.entries[i].manifest;
        if (is_of(m, job_uid) || m->created_wall_ms < since_wall_ms)
            continue;
        is_shared = true;
        (void)snprintf(folder, CHECKPOINT_FOLDER_MAX, "%s", list.entries[i].folder);
    }
    manifest_list_release(&list);
    return is_shared;
}

/* ---- making ---------------------------------------------------------------------------------- */

static int make_fresh_folder(const char *path, const struct manifest *about,
                             char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err)
{
    for (int copy = 1; copy <= COPIES_MAX; copy++) {
        FLEET_AUTO_FREE char *place = NULL;
        manifest_folder_format(about->step, about->generation, copy, folder);
        place = fleet_file_join(path, folder);
        if (mkdir(place, 0777) == 0)
            return 0;
        if (errno != EEXIST)
            return fleet_error(err, -errno, "create folder %s: %s", place, strerror(errno));
    }
    return fleet_error(err, -EEXIST, "create folder %s/%s: %d of them exist", path, folder,
                       COPIES_MAX);
}

int checkpoint_begin(const char *path, const struct manifest *about,
                     char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err)
{
    int rc = fleet_file_make_folder(path, err);

    if (rc < 0)
        return rc;
    remove_torn(path, about->generation);
    return make_fresh_folder(path, about, folder, err);
}

static char *encode_manifest(const struct manifest *about, const struct checkpoint_shard *shards,
                             int shard_count)
{
    struct manifest manifest = *about; /* borrows `job` and `extra` */
    char *text;

    manifest.created_wall_ms = fleet_wall_ms();
    manifest.file_count = 0;
    manifest.files =
        calloc((size_t)shard_count * CHECKPOINT_SHARD_FILES_MAX + 1, sizeof(*manifest.files));
    fleet_assert(manifest.files != NULL);
    for (int i = 0; i < shard_count; i++)
        for (int j = 0; j < shards[i].file_count; j++) {
            struct manifest_file *to = &manifest.files[manifest.file_count++];
            to->name = (char *)shards[i].files[j].name;
            to->bytes = shards[i].files[j].bytes;
            memcpy(to->sha256, shards[i].files[j].sha256, sizeof(to->sha256));
        }
    text = manifest_encode(&manifest);
    free(manifest.files);
    return text;
}

static int write_manifest(const char *path, const char *folder, const char *text,
                          struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(path, folder);
    FLEET_AUTO_FREE char *file = fleet_file_join(place, MANIFEST_NAME);
    int rc = sync_folder(place);

    if (rc == 0)
        rc = sync_folder(path);
    if (rc < 0)
        return fleet_error(err, rc, "sync %s: %s", place, strerror(-rc));
    return fleet_file_write(file, text, strlen(text), err);
}

int checkpoint_commit(const char *path, const char *folder, int64_t keep,
                      const struct manifest_history *history, const struct manifest *about,
                      const struct checkpoint_shard *shards, int shard_count,
                      struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = encode_manifest(about, shards, shard_count);
    int rc = write_manifest(path, folder, text, err);

    fleet_assert(keep >= 1);
    if (rc < 0) {
        remove_folder(path, folder);
        return rc;
    }
    remove_old(path, keep, history, about);
    return 0;
}

int checkpoint_save(const char *path, int64_t keep, const struct checkpoint_state *state,
                    const struct manifest *about, char folder[CHECKPOINT_FOLDER_MAX],
                    struct fleet_error *err)
{
    struct checkpoint_shard shard;
    int rc = checkpoint_begin(path, about, folder, err);

    if (rc < 0)
        return rc;
    rc = checkpoint_write_shard(path, folder, state, 0, 1, &shard, err);
    if (rc < 0) {
        remove_folder(path, folder);
        return rc;
    }
    return checkpoint_commit(path, folder, keep, NULL, about, &shard, 1, err);
}
