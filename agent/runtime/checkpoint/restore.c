/* SPDX-License-Identifier: Apache-2.0 */

/* Which checkpoint is read, and from what files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/checkpoint/match.h"
#include "agent/runtime/checkpoint/tensors.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/limits.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/training/training.h"

#define PRIVATE_NAME "private-%05d-of-%05d.safetensors" /* as layout.c writes it */

/* ---- checkpoints ----------------------------------------------------------------------------- */

static bool is_private_file(const char *name)
{
    return strncmp(name, "private-", strlen("private-")) == 0;
}

static int load_checkpoint(const char *folder, const struct manifest *manifest, bool weights_only,
                           const struct checkpoint_state *state, struct fleet_error *err)
{
    struct safetensors_file *files = calloc(manifest->file_count + 1, sizeof(*files));
    size_t opened = 0;
    int rc = 0;

    fleet_assert(files != NULL);
    for (size_t i = 0; i < manifest->file_count && rc == 0; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, manifest->files[i].name);
        if (is_private_file(manifest->files[i].name) ||
            (weights_only && !manifest_is_model_file(manifest->files[i].name)))
            continue;
        rc = safetensors_open(path, &files[opened], err);
        if (rc == 0)
            opened++;
    }
    if (rc == 0)
        rc = match_load_files(files, opened, false, state, err);
    for (size_t i = 0; i < opened; i++)
        safetensors_release(&files[i]);
    free(files);
    return rc;
}

/* The first of `list` that is of the wanted step and verifies; -1 if none, *out_seen = of that
 * step. */
static int choose_sound(const char *path, int64_t resume, const struct manifest_list *list,
                        struct fleet_errors *warnings, size_t *out_seen)
{
    *out_seen = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct manifest_entry *entry = &list->entries[i];
        FLEET_AUTO_FREE char *folder = fleet_file_join(path, entry->folder);
        struct fleet_error why;
        if (resume >= 0 && entry->manifest.step != resume)
            continue;
        (*out_seen)++;
        if (manifest_verify(folder, &entry->manifest, &why) == 0)
            return (int)i;
        if (warnings)
            fleet_errors_add(warnings, entry->folder, "%s", why.text);
    }
    return -1;
}

static int restore_from(const char *path, struct manifest_list *list, int index,
                        const struct checkpoint_state *state, struct manifest *out_manifest,
                        char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err)
{
    struct manifest_entry *entry = &list->entries[index];
    FLEET_AUTO_FREE char *place = fleet_file_join(path, entry->folder);
    int rc = load_checkpoint(place, &entry->manifest, false, state, err);

    if (rc < 0) {
        (void)fleet_error_wrap(err, "checkpoint %s", place);
        return rc;
    }
    (void)snprintf(folder, CHECKPOINT_FOLDER_MAX, "%s", entry->folder);
    *out_manifest = entry->manifest;
    entry->manifest = (struct manifest){0}; /* moved */
    return 0;
}

/* `auto` resumes from the newest run, not from the highest step. If an older run has a higher step,
 * warn. */
static void report_higher_steps(const struct manifest_list *list, size_t chosen,
                                struct fleet_errors *warnings)
{
    int64_t step = list->entries[chosen].manifest.step;

    for (size_t i = chosen + 1; i < list->count; i++)
        if (list->entries[i].manifest.step > step)
            fleet_errors_add(warnings, list->entries[i].folder,
                             "it is of a higher step, but of an older run than %s; resume: %lld "
                             "goes on from it",
                             list->entries[chosen].folder,
                             (long long)list->entries[i].manifest.step);
}

int checkpoint_restore(const char *path, int64_t resume, const struct manifest_history *history,
                       struct checkpoint_state *state, struct manifest *out_manifest,
                       char folder[CHECKPOINT_FOLDER_MAX], struct fleet_errors *warnings,
                       struct fleet_error *err)
{
    struct fleet_errors unreadable = {0};
    struct manifest_list list;
    size_t seen;
    int rc = manifest_scan(path, history, &list, &unreadable, err), index;

    if (rc < 0)
        return rc;
    for (size_t i = 0; warnings && i < unreadable.count && i < FLEET_ERRORS_MAX; i++)
        fleet_errors_add(warnings, unreadable.items[i].path, "%s", unreadable.items[i].message);
    index = choose_sound(path, resume, &list, warnings, &seen);
    if (index >= 0 && resume == TRAINING_RESUME_AUTO && !history && warnings)
        report_higher_steps(&list, (size_t)index, warnings);
    if (index >= 0)
        rc = restore_from(path, &list, index, state, out_manifest, folder, err);
    else if (seen > 0 || (resume < 0 && unreadable.count > 0))
        rc = fleet_error(err, -EBADMSG, "%s: no checkpoint of %zu is sound", path,
                         seen + unreadable.count);
    else if (resume >= 0)
        rc = fleet_error(err, -ENOENT, "%s: there is no checkpoint of step %lld", path,
                         (long long)resume);
    else
        rc = fleet_error(err, -ENOENT, "%s: there is no checkpoint", path);
    manifest_list_release(&list);
    fleet_errors_release(&unreadable);
    return rc;
}

int checkpoint_load_folder(const char *folder, const struct manifest *manifest, bool weights_only,
                           struct checkpoint_state *state, struct fleet_error *err)
{
    return load_checkpoint(folder, manifest, weights_only, state, err) < 0
               ? fleet_error_wrap(err, "checkpoint %s", folder)
               : 0;
}

/* ---- values that each rank has for itself ---------------------------------------------------- */

int checkpoint_private_ranks(const struct manifest *manifest)
{
    static const char before[] = "-of-";
    char name[64];

    for (size_t i = 0; i < manifest->file_count; i++) {
        const char *found = manifest->files[i].name, *of = strstr(found, before);
        long ranks = of ? strtol(of + strlen(before), NULL, 10) : 0;
        if (ranks < 1 || ranks > FLEET_WORLD_MAX)
            continue;
        (void)snprintf(name, sizeof(name), PRIVATE_NAME, 1, (int)ranks);
        if (strcmp(found, name) == 0) /* the first rank has a file in each such checkpoint */
            return (int)ranks;
    }
    return 0;
}

int checkpoint_load_private(const char *folder, const struct manifest *manifest, int rank,
                            struct checkpoint_state *state, struct fleet_error *err)
{
    struct safetensors_file file;
    char name[64];
    int rc = -ENOENT;

    (void)snprintf(name, sizeof(name), PRIVATE_NAME, rank + 1, checkpoint_private_ranks(manifest));
    for (size_t i = 0; i < manifest->file_count && rc != 0; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, name);
        if (strcmp(manifest->files[i].name, name) != 0)
            continue;
        rc = safetensors_open(path, &file, err);
        if (rc < 0)
            return rc;
    }
    if (rc < 0)
        return fleet_error(err, rc, "checkpoint %s has no %s", folder, name);
    rc = match_load_files(&file, 1, false, state, err);
    safetensors_release(&file);
    return rc < 0 ? fleet_error_wrap(err, "checkpoint %s: %s", folder, name) : 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

int checkpoint_load_weights(const char *path, struct checkpoint_state *state,
                            struct fleet_error *err)
{
    struct checkpoint_state weights = *state;
    struct safetensors_file file;
    int rc = safetensors_open(path, &file, err);

    if (rc < 0)
        return rc;
    for (int i = 0; i < weights.space_count; i++)
        if (weights.spaces[i].suffix[0] != '\0') { /* optimizer states stay as they are */
            weights.spaces[i].data = NULL;
            weights.spaces[i].is_elsewhere = false;
        }
    rc = match_load_files(&file, 1, true, &weights, err);
    safetensors_release(&file);
    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", path);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_tensor *)a)->name,
                  ((const struct checkpoint_tensor *)b)->name);
}

void checkpoint_weights_sha256(const struct program *program, struct backend *backend,
                               const float *parameters, char out[FLEET_SHA256_HEX_SIZE])
{
    struct checkpoint_tensors tensors;
    struct checkpoint_state state;
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];

    checkpoint_state_init(&state, program, backend, (float *)parameters, NULL, NULL, NULL);
    checkpoint_tensors_init(&tensors, &state);
    if (tensors.count)
        qsort(tensors.items, tensors.count, sizeof(*tensors.items), compare_names);
    for (size_t i = 0; i < tensors.count; i++) {
        float *data = tensors.items[i].data;
        size_t bytes = (size_t)tensors.items[i].elements * sizeof(*data);
        void *host = backend_map(backend, data, bytes, BACKEND_READ);
        fleet_sha256_update(sha, host, bytes);
        backend_unmap(backend, data, bytes, BACKEND_READ, host);
    }
    checkpoint_tensors_release(&tensors);
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), out);
}
