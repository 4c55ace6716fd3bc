/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/checkpoint/remote.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/checkpoint/shards.h"
#include "agent/runtime/store/cache.h"
#include "agent/runtime/store/store.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define WAIT_MS  200 /* between two looks for a note */
#define NOTE_MAX ((size_t)64 << 10)
#define TRY_NAME ".fleetjob-try-XXXXXX"

struct remote {
    struct store *store;
    char *mirror;
    pthread_mutex_t lock;            /* the pulls and the ends of saves, one after another */
    struct fleet_fs_names removable; /* complete checkpoints of the store, at the last pull */
};

int remote_open(const char *url, struct remote **out, const char **out_folder,
                struct fleet_error *err)
{
    struct remote *remote = calloc(1, sizeof(*remote));
    int rc;

    fleet_assert(remote != NULL && pthread_mutex_init(&remote->lock, NULL) == 0);
    rc = store_open(url, &remote->store, err);
    if (rc == 0)
        rc = cache_place("checkpoints", store_url(remote->store), &remote->mirror, err);
    if (rc < 0) {
        remote_free(remote);
        return rc;
    }
    *out = remote;
    *out_folder = remote->mirror;
    return 0;
}

void remote_free(struct remote *remote)
{
    if (!remote)
        return;
    if (remote->store)
        store_names_release(remote->store, &remote->removable);
    store_free(remote->store);
    (void)pthread_mutex_destroy(&remote->lock);
    free(remote->mirror);
    free(remote);
}

int remote_try(struct remote *remote, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(remote->mirror, TRY_NAME);
    const char *name = path + strlen(remote->mirror) + 1;
    struct fleet_error ignored;
    int fd = mkstemp(path), rc; /* others try at the same time */

    if (fd < 0)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    (void)close(fd);
    rc = store_put(remote->store, path, name, err);
    if (rc == 0)
        (void)store_delete(remote->store, name, &ignored);
    (void)unlink(path);
    return rc;
}

static char *name_in(const char *folder, const char *file)
{
    return fleet_file_join(folder, file);
}

static char *local_path(const struct remote *remote, const char *folder, const char *file)
{
    FLEET_AUTO_FREE char *place = fleet_file_join(remote->mirror, folder);

    return file ? fleet_file_join(place, file) : fleet_dup_text(place);
}

static bool is_checkpoint(const char *name, struct fleet_generation *generation)
{
    int64_t step;
    int copy;

    return manifest_folder_parse(name, &step, generation, &copy);
}

/* ---- the mirror follows the store ------------------------------------------------------------ */

/* Read the manifest of `folder` into the mirror. 1: it is there; 0: the store has none. */
static int pull_manifest(struct remote *remote, const char *folder, bool fresh,
                         struct fleet_error *err)
{
    FLEET_AUTO_FREE char *name = name_in(folder, MANIFEST_NAME), *text = NULL;
    FLEET_AUTO_FREE char *place = local_path(remote, folder, NULL);
    FLEET_AUTO_FREE char *path = local_path(remote, folder, MANIFEST_NAME);
    size_t bytes;
    int rc;

    if (!fresh && access(path, F_OK) == 0)
        return 1;
    rc = store_read(remote->store, name, MANIFEST_SIZE_MAX, &text, &bytes, err);
    if (rc == -ENOENT)
        return 0;
    if (rc == 0)
        rc = fleet_file_make_folder(place, err);
    if (rc == 0)
        rc = fleet_file_write(path, text, bytes, err);
    return rc < 0 ? rc : 1;
}

static bool is_listed(const struct fleet_fs_names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->list[i], name) == 0)
            return true;
    return false;
}

/* Complete checkpoints of the mirror that the store does not have. */
static int drop_others(struct remote *remote, const struct fleet_fs_names *complete,
                       struct fleet_error *err)
{
    struct manifest_list list;
    int rc = manifest_scan(remote->mirror, NULL, &list, NULL, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < list.count; i++)
        if (!is_listed(complete, list.entries[i].folder))
            checkpoint_discard(remote->mirror, list.entries[i].folder);
    manifest_list_release(&list);
    return 0;
}

static int pull(struct remote *remote, bool fresh, struct fleet_error *err)
{
    struct fleet_fs_names folders = {0}, files = {0};
    struct fleet_generation generation;
    size_t kept = 0;
    int rc = store_list(remote->store, "", &folders, &files, err);

    store_names_release(remote->store, &files);
    for (size_t i = 0; i < folders.count && rc >= 0; i++) {
        char *name = folders.list[i];
        rc = is_checkpoint(name, &generation) ? pull_manifest(remote, name, fresh, err) : 0;
        if (rc > 0) { /* the others go to the end, and are freed with the list */
            folders.list[i] = folders.list[kept];
            folders.list[kept++] = name;
        }
    }
    if (rc >= 0) {
        size_t all = folders.count;
        folders.count = kept;
        rc = drop_others(remote, &folders, err);
        folders.count = all;
    }
    while (rc >= 0 && folders.count > kept)
        free(folders.list[--folders.count]);
    if (rc < 0) {
        store_names_release(remote->store, &folders);
        return rc;
    }
    store_names_release(remote->store, &remote->removable);
    remote->removable = folders;
    return 0;
}

int remote_pull(struct remote *remote, bool fresh, struct fleet_error *err)
{
    int rc;

    pthread_mutex_lock(&remote->lock);
    rc = pull(remote, fresh, err);
    pthread_mutex_unlock(&remote->lock);
    return rc;
}

static int bring_file(struct remote *remote, const char *folder, const struct manifest_file *file,
                      struct fleet_error *err)
{
    FLEET_AUTO_FREE char *name = name_in(folder, file->name);
    FLEET_AUTO_FREE char *path = local_path(remote, folder, file->name);
    struct fleet_fs_info seen;
    struct stat info;
    int rc;

    if (stat(path, &info) == 0 && (uint64_t)info.st_size == file->bytes)
        return 0;
    rc = store_look(remote->store, name, &seen, err);
    if (rc < 0)
        return rc;
    if (rc == 0 || seen.is_folder || seen.bytes != file->bytes)
        return fleet_error(err, -ENOENT, "%s/%s is not there as its manifest says",
                           store_url(remote->store), name);
    return store_get(remote->store, name, &seen, path, err);
}

int remote_bring(struct remote *remote, const char *folder, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = local_path(remote, folder, NULL);
    FLEET_AUTO_CLOSE int lock = -1;
    struct manifest manifest;
    int rc = cache_lock(remote->mirror, ".lock", LOCK_EX, &lock, err);

    if (rc == 0)
        rc = pull_manifest(remote, folder, false, err);
    if (rc == 0)
        return fleet_error(err, -ENOENT, "%s/%s has no manifest", store_url(remote->store), folder);
    if (rc > 0)
        rc = manifest_read(place, &manifest, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < manifest.file_count && rc == 0; i++)
        rc = bring_file(remote, folder, &manifest.files[i], err);
    manifest_release(&manifest);
    return rc;
}

/* ---- saving ---------------------------------------------------------------------------------- */

int remote_put_shard(struct remote *remote, const char *folder,
                     const struct checkpoint_shard *shard, struct fleet_error *err)
{
    for (int i = 0; i < shard->file_count; i++) {
        FLEET_AUTO_FREE char *name = name_in(folder, shard->files[i].name);
        FLEET_AUTO_FREE char *path = local_path(remote, folder, shard->files[i].name);
        int rc = store_put(remote->store, path, name, err);
        if (rc < 0)
            return rc;
        (void)unlink(path);
    }
    return 0;
}

static char *note_name(int shard, int shards)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};

    fleet_strbuf_appendf(&name, SHARDS_NOTE_PREFIX "%05d-of-%05d.note", shard + 1, shards);
    return fleet_strbuf_take(&name);
}

int remote_put_note(struct remote *remote, const char *folder, int shard, int shards,
                    struct fleet_error *err)
{
    FLEET_AUTO_FREE char *note = note_name(shard, shards);
    FLEET_AUTO_FREE char *name = name_in(folder, note), *path = local_path(remote, folder, note);
    int rc = store_put(remote->store, path, name, err);

    (void)unlink(path);
    return rc;
}

static int check_file(struct remote *remote, const char *folder, const char *file, uint64_t bytes,
                      struct fleet_error *err)
{
    FLEET_AUTO_FREE char *name = name_in(folder, file);
    struct fleet_fs_info info;
    int rc = store_look(remote->store, name, &info, err);

    if (rc < 0)
        return rc;
    if (rc == 0 || info.bytes != bytes)
        return fleet_error(err, -EBADMSG, "%s/%s is not there with its %llu bytes",
                           store_url(remote->store), name, (unsigned long long)bytes);
    return 0;
}

struct notes {
    struct remote *remote;
    const char *folder;
    int shards;
};

/* As `read` of a reader of shards.h. The files are checked before the manifest is sent. */
static int read_note(void *context, int shard, struct checkpoint_shard *out,
                     struct fleet_error *err)
{
    const struct notes *notes = context;
    FLEET_AUTO_FREE char *note = note_name(shard, notes->shards);
    FLEET_AUTO_FREE char *name = name_in(notes->folder, note);
    FLEET_AUTO_FREE char *text = NULL;
    size_t bytes;
    int rc = store_read(notes->remote->store, name, NOTE_MAX, &text, &bytes, err);

    if (rc < 0)
        return rc == -ENOENT ? 1 : rc;
    return shards_note_decode(text, bytes, shard, notes->shards, out, err);
}

int remote_await_shards(struct remote *remote, const char *folder, int shards,
                        const atomic_bool *stop, const atomic_bool *abandoned, double patience_ms,
                        struct checkpoint_shard *out, struct fleet_error *err)
{
    struct notes notes = {remote, folder, shards};
    const struct shards_reader reader = {read_note, &notes, WAIT_MS};

    return shards_await_by(&reader, shards, stop, abandoned, patience_ms, out, err);
}

static int send_manifest(struct remote *remote, const char *folder, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *place = local_path(remote, folder, NULL);
    FLEET_AUTO_FREE char *path = local_path(remote, folder, MANIFEST_NAME);
    FLEET_AUTO_FREE char *name = name_in(folder, MANIFEST_NAME);
    struct manifest manifest;
    int rc = manifest_read(place, &manifest, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < manifest.file_count && rc == 0; i++)
        rc = check_file(remote, folder, manifest.files[i].name, manifest.files[i].bytes, err);
    manifest_release(&manifest);
    return rc < 0 ? rc : store_put(remote->store, path, name, err);
}

/* Its manifest first, so that what a failure leaves is no checkpoint. */
static void remove_there(struct remote *remote, const char *folder)
{
    FLEET_AUTO_FREE char *manifest = name_in(folder, MANIFEST_NAME);
    struct fleet_error ignored;

    if (store_delete(remote->store, manifest, &ignored) == 0)
        (void)store_delete(remote->store, folder, &ignored);
}

/* What interrupted saves of this and older generations have left. */
static void remove_torn(struct remote *remote, const char *folder,
                        struct fleet_generation generation)
{
    struct fleet_fs_names folders = {0}, files = {0};
    struct fleet_generation theirs;
    struct fleet_error ignored;
    int rc = store_list(remote->store, "", &folders, &files, &ignored);

    for (size_t i = 0; i < folders.count && rc == 0; i++) {
        const char *name = folders.list[i];
        FLEET_AUTO_FREE char *manifest = name_in(name, MANIFEST_NAME);
        struct fleet_fs_info info;
        if (strcmp(name, folder) == 0 || !is_checkpoint(name, &theirs) ||
            fleet_generation_compare(theirs, generation) > 0 || is_listed(&remote->removable, name))
            continue;
        if (store_look(remote->store, manifest, &info, &ignored) == 0)
            remove_there(remote, name);
    }
    store_names_release(remote->store, &folders);
    store_names_release(remote->store, &files);
}

static void remove_old(struct remote *remote, const char *folder,
                       struct fleet_generation generation, int shards)
{
    struct fleet_error ignored;

    for (size_t i = 0; i < remote->removable.count; i++) {
        FLEET_AUTO_FREE char *path = local_path(remote, remote->removable.list[i], MANIFEST_NAME);
        if (access(path, F_OK) < 0 && errno == ENOENT)
            remove_there(remote, remote->removable.list[i]);
    }
    remove_torn(remote, folder, generation);
    for (int shard = 1; shard < shards; shard++) {
        FLEET_AUTO_FREE char *note = note_name(shard, shards), *name = name_in(folder, note);
        (void)store_delete(remote->store, name, &ignored);
    }
}

int remote_finish(struct remote *remote, const char *folder, struct fleet_generation generation,
                  int shards, struct fleet_error *err)
{
    int rc;

    pthread_mutex_lock(&remote->lock);
    rc = send_manifest(remote, folder, err);
    if (rc < 0)
        remote_discard(remote, folder);
    else
        remove_old(remote, folder, generation, shards);
    pthread_mutex_unlock(&remote->lock);
    return rc;
}

void remote_discard(struct remote *remote, const char *folder)
{
    checkpoint_discard(remote->mirror, folder);
    remove_there(remote, folder);
}
