/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/store/library.h"
#include "agent/runtime/store/store_log.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

struct store {
    const struct library *library;
    struct fleet_fs *bulk, *quick; /* for transfers, and for all else */
    char *url;
};

/* ---- life ------------------------------------------------------------------------------------ */

int store_open(const char *url, struct store **out, struct fleet_error *err)
{
    const struct fleet_fs_options bulk = {.attempts = 3, .pause_ms = 1000};
    const struct fleet_fs_options quick = {.timeout_ms = 10000, .attempts = 2, .pause_ms = 500};
    const struct fleet_fs_options hadoop = {.attempts = 2, .pause_ms = 500}; /* it starts slowly */
    struct store *store = calloc(1, sizeof(*store));
    size_t length = strlen(url);
    int rc;

    fleet_assert(store != NULL);
    while (length > 0 && url[length - 1] == '/')
        length--;
    store->url = strndup(url, length);
    fleet_assert(store->url != NULL);
    rc = library_open(&store->library, err);
    if (rc == 0)
        rc = store->library->open(store->url, &bulk, &store->bulk, err);
    if (rc == 0)
        rc = store->library->open(store->url, strncmp(url, "hdfs:", 5) == 0 ? &hadoop : &quick,
                                  &store->quick, err);
    if (rc < 0) {
        store_free(store);
        return rc;
    }
    *out = store;
    return 0;
}

void store_free(struct store *store)
{
    if (!store)
        return;
    if (store->library) {
        store->library->free(store->bulk);
        store->library->free(store->quick);
    }
    free(store->url);
    free(store);
}

const char *store_url(const struct store *store)
{
    return store->url;
}

static char *path_of(const struct store *store, const char *name)
{
    return name[0] ? fleet_file_join(store->url, name) : fleet_dup_text(store->url);
}

/* Another try may help where the server or the way to it is at fault. */
static int judge(int rc, struct fleet_error *err)
{
    if (rc == -EIO || rc == -ETIMEDOUT || rc == -ESTALE || rc == -ECANCELED) {
        err->code = -EAGAIN;
        return -EAGAIN;
    }
    return rc;
}

/* ---- names ----------------------------------------------------------------------------------- */

int store_look(const struct store *store, const char *name, struct fleet_fs_info *out,
               struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = path_of(store, name);

    return judge(store->library->look(store->quick, path, out, err), err);
}

int store_list(const struct store *store, const char *name, struct fleet_fs_names *folders,
               struct fleet_fs_names *files, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = path_of(store, name);

    return judge(store->library->list(store->quick, path, folders, files, err), err);
}

int store_read(const struct store *store, const char *name, size_t size_max, char **out,
               size_t *bytes, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = path_of(store, name);

    return judge(store->library->read(store->quick, path, size_max, out, bytes, err), err);
}

void store_names_release(const struct store *store, struct fleet_fs_names *names)
{
    store->library->names_release(names);
}

int store_delete(const struct store *store, const char *name, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = path_of(store, name);

    return judge(store->library->delete_(store->quick, path, err), err);
}

/* ---- content --------------------------------------------------------------------------------- */

int store_put(const struct store *store, const char *local, const char *name,
              struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = path_of(store, name);

    return judge(store->library->upload(store->bulk, local, path, true, err), err);
}

/* "folder/.NAME.….part": of this state of the file, no other. */
static char *part_path(const char *local, const struct fleet_fs_info *seen)
{
    const char *slash = strrchr(local, '/');
    struct fleet_sha256 *sha = fleet_sha256_new();
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[17];

    fleet_sha256_update(sha, seen->tag, strlen(seen->tag));
    fleet_sha256_update(sha, &seen->bytes, sizeof(seen->bytes));
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, 8, hex);
    fleet_strbuf_appendf(&path, "%.*s.%s.%s.part", slash ? (int)(slash + 1 - local) : 0, local,
                         slash ? slash + 1 : local, hex);
    return fleet_strbuf_take(&path);
}

/* Whole parts that an earlier process has read stay: each was durable before the next began. */
static int read_parts(const struct store *store, const char *path, const struct fleet_fs_info *seen,
                      int fd, struct fleet_error *err)
{
    double said_ms = fleet_monotonic_ms();
    struct stat info;
    uint64_t done;
    int rc = 0;

    if (fstat(fd, &info) < 0)
        return fleet_error(err, -errno, "%s", strerror(errno));
    done = (uint64_t)info.st_size >= seen->bytes
               ? 0
               : (uint64_t)info.st_size / STORE_PART_BYTES * STORE_PART_BYTES;
    if (done > 0)
        store_log_resume(path, done, seen->bytes);
    while (rc == 0 && done < seen->bytes) {
        uint64_t left = seen->bytes - done;
        uint64_t bytes = left < STORE_PART_BYTES ? left : STORE_PART_BYTES;
        rc = store->library->read_part(store->bulk, path, seen, done, bytes, fd, err);
        if (rc == 0 && fdatasync(fd) < 0)
            rc = fleet_error(err, -errno, "sync a file for %s: %s", path, strerror(errno));
        done += bytes;
        store_log_step(path, done, seen->bytes, &said_ms);
    }
    return rc;
}

/* The file that was read must be the file that is there. */
static int check_read(const struct store *store, const char *path, const char *part,
                      const struct fleet_fs_info *seen, struct fleet_error *err)
{
    struct fleet_fs_info now = {0};
    struct stat info;
    int rc = store->library->look(store->quick, path, &now, err);

    if (rc < 0)
        return rc;
    if (rc == 0 || now.bytes != seen->bytes || strcmp(now.tag, seen->tag) != 0 ||
        stat(part, &info) < 0 || (uint64_t)info.st_size != seen->bytes) {
        (void)unlink(part);
        return fleet_error(err, -EAGAIN, "%s has changed while it was read", path);
    }
    return 0;
}

static int sync_folder_of(const char *local)
{
    FLEET_AUTO_FREE char *folder = fleet_dup_text(local);
    FLEET_AUTO_CLOSE int fd = -1;

    if (strrchr(folder, '/'))
        *strrchr(folder, '/') = '\0';
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int store_get(const struct store *store, const char *name, const struct fleet_fs_info *seen,
              const char *local, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = path_of(store, name), *part = part_path(local, seen);
    FLEET_AUTO_CLOSE int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int rc;

    if (fd < 0)
        return fleet_error(err, -errno, "open %s: %s", part, strerror(errno));
    rc = read_parts(store, path, seen, fd, err);
    if (rc == -ENOTSUP) /* by the program: all of it or nothing */
        rc = store->library->download(store->bulk, path, part, true, err);
    if (rc == 0)
        rc = check_read(store, path, part, seen, err);
    if (rc < 0)
        return judge(rc, err);
    if (rename(part, local) < 0 || sync_folder_of(local) < 0)
        return fleet_error(err, -errno, "put %s in its place: %s", local, strerror(errno));
    return 0;
}
