/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole files. A durable write is fsync(2) of the new content, rename(2), then fsync(2) of the
 * folder. Without any one of them, a power failure after the reported success may leave an empty
 * file or the old one.
 */
#include "libfleet/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define STALE_AFTER_S 3600 /* no process writes a temporary file of that age any more */

static int fail(struct fleet_error *err, const char *what, const char *path)
{
    int code = errno;

    return fleet_error(err, -code, "%s %s: %s", what, path, strerror(code));
}

int fleet_file_read(const char *path, size_t size_max, char **out_text, size_t *out_size,
                    struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int own = -1;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char chunk[65536];
    int fd = STDIN_FILENO;

    if (strcmp(path, "-") != 0) {
        own = fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return fail(err, "open", path);
    }
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof(chunk));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(err, "read", path);
        if (got == 0)
            break;
        fleet_strbuf_append_bytes(&text, chunk, (size_t)got);
        if (text.length > size_max)
            return fleet_error(err, -EFBIG, "read %s: larger than the limit of %zu bytes", path,
                               size_max);
    }
    *out_size = text.length;
    *out_text = fleet_strbuf_take(&text);
    return 0;
}

int fleet_file_write_all(int fd, const void *data, size_t size)
{
    const char *p = data;

    while (size > 0) {
        ssize_t done = write(fd, p, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        p += done;
        size -= (size_t)done;
    }
    return 0;
}

/* Heap; "." if the path is only a name. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");

    fleet_assert(folder != NULL);
    return folder;
}

static int sync_folder_of(const char *path)
{
    FLEET_AUTO_FREE char *folder = folder_of(path);
    FLEET_AUTO_CLOSE int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 ? -1 : fsync(fd);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISLNK(mode)  ? "a symbolic link"
           : S_ISFIFO(mode) ? "a named pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* (2). *out_mode: permissions of the new file. */
static int check_replaceable(const char *path, mode_t *out_mode, struct fleet_error *err)
{
    struct stat info;

    *out_mode = 0;
    if (lstat(path, &info) < 0)
        return errno == ENOENT ? 0 : fail(err, "write", path);
    if (!S_ISREG(info.st_mode))
        return fleet_error(err, -EINVAL, "write %s: it is %s, and only a regular file is replaced",
                           path, kind_of(info.st_mode));
    *out_mode = info.st_mode & 0777;
    return 0;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static char *temporary_of(const char *path)
{
    FLEET_AUTO_FREE char *folder = folder_of(path);
    struct fleet_strbuf text = {0};
    uint64_t number;

    fleet_random_bytes(&number, sizeof(number));
    fleet_strbuf_appendf(&text, "%s/.%s.%016" PRIx64 ".tmp", folder, name_of(path), number);
    return fleet_strbuf_take(&text);
}

int fleet_file_draft_open(const char *path, struct fleet_file_draft *out, struct fleet_error *err)
{
    mode_t mode;
    int fd, rc = check_replaceable(path, &mode, err);
    char *temporary;

    if (rc < 0)
        return rc;
    temporary = temporary_of(path);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) {
        rc = fail(err, "create", path);
        free(temporary);
        return rc;
    }
    if (mode)
        (void)fchmod(fd, mode); /* some file systems have no permissions */
    *out = (struct fleet_file_draft){.fd = fd, .path = strdup(path), .temporary = temporary};
    fleet_assert(out->path);
    return 0;
}

static void forget(struct fleet_file_draft *draft)
{
    free(draft->path);
    free(draft->temporary);
    *draft = (struct fleet_file_draft){.fd = -1};
}

void fleet_file_draft_discard(struct fleet_file_draft *draft)
{
    if (draft->fd < 0)
        return;
    (void)close(draft->fd);
    (void)unlink(draft->temporary);
    forget(draft);
}

int fleet_file_draft_commit(struct fleet_file_draft *draft, enum fleet_file_durability durability,
                            struct fleet_error *err)
{
    bool is_durable = durability == FLEET_FILE_DURABLE;
    mode_t mode;
    int rc = is_durable && fsync(draft->fd) < 0 ? fail(err, "write", draft->path) : 0;

    if (close(draft->fd) < 0 && rc == 0)
        rc = fail(err, "close", draft->path);
    if (rc == 0)
        rc = check_replaceable(draft->path, &mode, err); /* another process may have made it */
    if (rc == 0 && rename(draft->temporary, draft->path) < 0)
        rc = fail(err, "rename to", draft->path);
    if (rc < 0)
        (void)unlink(draft->temporary);
    else if (is_durable && sync_folder_of(draft->path) < 0)
        rc = fail(err, "sync the folder of", draft->path);
    forget(draft);
    return rc;
}

int fleet_file_replace(const char *path, const void *data, size_t size,
                       enum fleet_file_durability durability, struct fleet_error *err)
{
    struct fleet_file_draft draft;
    int rc = fleet_file_draft_open(path, &draft, err);

    if (rc < 0)
        return rc;
    rc = fleet_file_write_all(draft.fd, data, size);
    if (rc == 0)
        return fleet_file_draft_commit(&draft, durability, err);
    fleet_file_draft_discard(&draft);
    return fleet_error(err, rc, "write %s: %s", path, strerror(-rc));
}

int fleet_file_write(const char *path, const void *data, size_t size, struct fleet_error *err)
{
    return fleet_file_replace(path, data, size, FLEET_FILE_DURABLE, err);
}

/* ".NAME.<16 hex digits>.tmp"? */
static bool is_temporary_of(const char *entry, const char *name)
{
    size_t length = strlen(name);

    return entry[0] == '.' && strncmp(entry + 1, name, length) == 0 && entry[1 + length] == '.' &&
           strspn(entry + 2 + length, "0123456789abcdef") == 16 &&
           strcmp(entry + 18 + length, ".tmp") == 0;
}

/* Remove temporary files of killed processes. A younger file may belong to a process that still
 * writes it. */
static void remove_stale(const char *path)
{
    FLEET_AUTO_FREE char *folder = folder_of(path);
    time_t limit = time(NULL) - STALE_AFTER_S;
    const struct dirent *entry;
    DIR *dir = opendir(folder);

    while (dir && (entry = readdir(dir))) { /* NOLINT(concurrency-mt-unsafe): its own stream */
        struct stat info;
        if (is_temporary_of(entry->d_name, name_of(path)) &&
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode) && info.st_mtime < limit)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir)
        (void)closedir(dir);
}

/* ---- folders --------------------------------------------------------------------------------- */

int fleet_file_try_folder(const char *folder, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *probe = fleet_file_join(folder, ".writable-XXXXXX");
    int fd = mkostemp(probe, O_CLOEXEC);

    if (fd < 0)
        return fail(err, "write to", folder);
    (void)close(fd);
    (void)unlink(probe);
    return 0;
}

int fleet_file_prepare(const char *path, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *folder = folder_of(path);
    mode_t mode;
    int rc = fleet_file_make_folder(folder, err);

    if (rc < 0 || (rc = check_replaceable(path, &mode, err)) < 0)
        return rc;
    remove_stale(path);
    return fleet_file_try_folder(folder, err);
}

int fleet_file_make_folder(const char *path, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *part = strdup(path);

    fleet_assert(part != NULL);
    for (char *p = part + 1; part[0]; p++) {
        char here = *p;
        if (here != '/' && here != '\0')
            continue;
        *p = '\0';
        if (mkdir(part, 0777) < 0 && errno != EEXIST)
            return fail(err, "create folder", part);
        *p = here;
        if (here == '\0')
            break;
    }
    return 0;
}

int fleet_file_own_folder(char **out_folder, struct fleet_error *err)
{
    char path[4096];
    ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    if (size <= 0)
        return fleet_error(err, -errno, "find my own program: %s", strerror(errno));
    path[size] = '\0';
    slash = strrchr(path, '/');
    fleet_assert(slash);
    *out_folder = strndup(path, (size_t)(slash - path));
    fleet_assert(*out_folder);
    return 0;
}

bool fleet_path_is_remote(const char *path)
{
    static const char *const schemes[] = {"s3://", "hdfs://", "webhdfs://", "swebhdfs://"};

    for (size_t i = 0; path && i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strncmp(path, schemes[i], strlen(schemes[i])) == 0)
            return true;
    return false;
}

char *fleet_file_join(const char *folder, const char *name)
{
    struct fleet_strbuf path = {0};

    if (name[0] != '/' && folder[0] && !fleet_path_is_remote(name))
        fleet_strbuf_appendf(&path, "%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/");
    fleet_strbuf_append(&path, name);
    return fleet_strbuf_take(&path);
}
