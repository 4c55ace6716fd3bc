/* SPDX-License-Identifier: Apache-2.0 */

/* The file system of this machine. A walk never follows links. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/fs/fs.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"

#define COPY_BYTES   (1 << 20)
#define OPEN_FOLDERS 16

static int failed(const char *what, const char *path, struct fleet_error *err)
{
    return fleet_error(err, -errno, "%s %s: %s", what, path, strerror(errno));
}

static int local_kind(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    struct stat status;

    (void)fs;
    if (stat(path, &status) == 0)
        return S_ISDIR(status.st_mode) ? FS_FOLDER : FS_FILE;
    if (lstat(path, &status) == 0) /* a link to nothing */
        return FS_FILE;
    return errno == ENOENT || errno == ENOTDIR ? FS_NOTHING : failed("look at", path, err);
}

static int local_look(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                      struct fleet_error *err)
{
    struct stat status;
    int kind = local_kind(fs, path, err);

    if (kind != FS_FILE || stat(path, &status) != 0)
        return kind;
    out->bytes = (uint64_t)status.st_size;
    (void)snprintf(out->tag, sizeof(out->tag), "%lld.%09ld", (long long)status.st_mtim.tv_sec,
                   status.st_mtim.tv_nsec);
    return FS_FILE;
}

static int local_list(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                      struct fleet_fs_names *files, struct fleet_error *err)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    int rc = 0;

    if (!folder)
        return failed("open", path, err);
    while (rc == 0 && (entry = readdir(folder)) != NULL) {
        FLEET_AUTO_FREE char *full = NULL;
        int kind;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        full = fleet_file_join(path, entry->d_name);
        kind = local_kind(fs, full, err);
        rc = kind < 0 ? kind
                      : fs_names_add(kind == FS_FOLDER ? folders : files, entry->d_name,
                                     strlen(entry->d_name), err);
    }
    (void)closedir(folder);
    return rc;
}

static int local_make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    (void)fs;
    return fleet_file_make_folder(path, err);
}

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *at)
{
    (void)status, (void)flag, (void)at;
    return remove(path);
}

static int local_delete(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    (void)fs;
    if (nftw(path, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS) != 0)
        return failed("delete", path, err);
    return 0;
}

/* ---- copying --------------------------------------------------------------------------------- */

static int copy_bytes(const char *from, int in, int out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *buffer = malloc(COPY_BYTES);
    ssize_t count;

    if (!buffer)
        return fleet_error(err, -ENOMEM, "out of memory");
    while ((count = read(in, buffer, COPY_BYTES)) > 0) {
        int rc = fleet_file_write_all(out, buffer, (size_t)count);
        if (rc < 0)
            return fleet_error(err, rc, "write the copy of %s: %s", from, strerror(-rc));
    }
    return count < 0 ? failed("read", from, err) : 0;
}

static int copy_file(const char *from, const char *to, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int in = open(from, O_RDONLY | O_CLOEXEC);
    struct fleet_file_draft draft;
    int rc;

    if (in < 0)
        return failed("open", from, err);
    rc = fleet_file_draft_open(to, &draft, err);
    if (rc < 0)
        return rc;
    rc = copy_bytes(from, in, draft.fd, err);
    if (rc < 0) {
        fleet_file_draft_discard(&draft);
        return rc;
    }
    return fleet_file_draft_commit(&draft, FLEET_FILE_VOLATILE, err);
}

static int copy_any(const char *from, const char *to, int depth, struct fleet_error *err);

static int copy_folder(const char *from, const char *to, int depth, struct fleet_error *err)
{
    struct fleet_fs_names folders = {0}, files = {0};
    struct fleet_fs_names *both[] = {&folders, &files};
    int rc = depth > FS_DEPTH_MAX ? fleet_error(err, -ELOOP, "%s: more than %d folders in folders",
                                                from, FS_DEPTH_MAX)
                                  : fleet_file_make_folder(to, err);

    if (rc == 0)
        rc = local_list(NULL, from, &folders, &files, err);
    for (int b = 0; b < 2; b++)
        for (size_t i = 0; rc == 0 && i < both[b]->count; i++) {
            FLEET_AUTO_FREE char *in = fleet_file_join(from, both[b]->list[i]);
            FLEET_AUTO_FREE char *out = fleet_file_join(to, both[b]->list[i]);
            rc = copy_any(in, out, depth + 1, err);
        }
    fleet_fs_names_release(&folders);
    fleet_fs_names_release(&files);
    return rc;
}

static int copy_any(const char *from, const char *to, int depth, struct fleet_error *err)
{
    struct stat status;

    if (stat(from, &status) != 0)
        return failed("look at", from, err);
    if (S_ISDIR(status.st_mode))
        return copy_folder(from, to, depth, err);
    if (!S_ISREG(status.st_mode))
        return fleet_error(err, -EINVAL, "%s is neither a file nor a folder", from);
    return copy_file(from, to, err);
}

int fs_local_copy(const char *from, const char *to, struct fleet_error *err)
{
    int rc = copy_any(from, to, 0, err);

    if (rc < 0 && access(to, F_OK) == 0)
        (void)local_delete(NULL, to, NULL);
    return rc;
}

static int local_transfer(struct fleet_fs *fs, const char *from, const char *to,
                          struct fleet_error *err)
{
    (void)fs;
    return fs_local_copy(from, to, err);
}

static int local_move(struct fleet_fs *fs, const char *from, const char *to,
                      struct fleet_error *err)
{
    int rc;

    if (rename(from, to) == 0)
        return 0;
    if (errno != EXDEV)
        return fleet_error(err, -errno, "move %s to %s: %s", from, to, strerror(errno));
    rc = fs_local_copy(from, to, err); /* to another disk */
    return rc < 0 ? rc : local_delete(fs, from, err);
}

static int local_touch(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

    (void)fs;
    return fd < 0 ? failed("create", path, err) : 0;
}

static int local_read(struct fleet_fs *fs, const char *path, size_t size_max, char **out,
                      size_t *bytes, struct fleet_error *err)
{
    (void)fs;
    return fleet_file_read(path, size_max, out, bytes, err);
}

const struct fs_operations fs_local = {
    .kind = local_kind,
    .look = local_look,
    .list = local_list,
    .make_folder = local_make_folder,
    .remove = local_delete,
    .move = local_move,
    .touch = local_touch,
    .read = local_read,
    .upload = local_transfer,
    .download = local_transfer,
};
