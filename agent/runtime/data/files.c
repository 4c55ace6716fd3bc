/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/data/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"

/* ---- one file -------------------------------------------------------------------------------- */

static int read_at(int fd, const char *field, const char *path, int64_t offset, size_t size,
                   void *out, struct fleet_error *err)
{
    char *to = out;

    while (size > 0) {
        ssize_t got = pread(fd, to, size, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fleet_error(err, -errno, "%s: read %s: %s", field, path, strerror(errno));
        if (got == 0)
            return fleet_error(err, -ESTALE, "%s: %s became shorter during the run", field, path);
        to += got;
        offset += got;
        size -= (size_t)got;
    }
    return 0;
}

static int digest_ends(int fd, const char *field, const char *path, int64_t size,
                       uint8_t out[FLEET_SHA256_SIZE], struct fleet_error *err)
{
    size_t part = size < FILES_END ? (size_t)size : FILES_END;
    FLEET_AUTO_FREE char *ends = malloc(2 * part);
    int rc;

    fleet_assert(ends != NULL);
    rc = read_at(fd, field, path, 0, part, ends, err);
    if (rc == 0)
        rc = read_at(fd, field, path, size - (int64_t)part, part, ends + part, err);
    if (rc == 0)
        fleet_sha256(ends, 2 * part, out);
    return rc;
}

static int64_t inode_ns(const struct stat *st)
{
    return (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec;
}

/* ---- which files ----------------------------------------------------------------------------- */

/* Append `path` (owned from here on) if it is a regular file with content. */
static int add_file(const char *field, char *path, struct data_files *files,
                    struct fleet_error *err)
{
    FLEET_AUTO_FREE char *owned = path;
    FLEET_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO may wait */
    struct data_file *grown, *file;
    struct stat st;
    int rc;

    if (fd < 0 || fstat(fd, &st) < 0)
        return fleet_error(err, -errno, "%s: open %s: %s", field, path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return fleet_error(err, -EINVAL, "%s: %s is not a regular file", field, path);
    if (st.st_size == 0)
        return 0;
    if (files->count == FILES_MAX)
        return fleet_error(err, -E2BIG, "%s: more than %d files", field, FILES_MAX);
    grown = fleet_grow(files->items, (size_t)files->count, sizeof(*grown));
    files->items = grown;
    file = &files->items[files->count];
    *file = (struct data_file){.path = path, .seen = st, .inode_ns = inode_ns(&st)};
    rc = digest_ends(fd, field, path, st.st_size, file->ends, err);
    if (rc < 0)
        return rc;
    files->count++;
    owned = NULL;
    return 0;
}

/* Is it a link to a file in `folder` itself, which would be read twice? */
static bool is_link_within(const char *folder, const char *path)
{
    FLEET_AUTO_FREE char *target = realpath(path, NULL), *home = realpath(folder, NULL);
    char *slash = target ? strrchr(target, '/') : NULL;

    if (!slash || !home)
        return false;
    slash[slash == target] = '\0';
    return strcmp(target, home) == 0;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct data_file *)a)->path, ((const struct data_file *)b)->path);
}

static int add_folder(const char *field, const char *folder, const struct data_file_names *names,
                      struct data_files *files, struct fleet_error *err)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    int rc = 0;

    if (!dir)
        return fleet_error(err, -errno, "%s: open %s: %s", field, folder, strerror(errno));
    while (rc == 0 && (entry = readdir(dir))) {
        char *path;
        struct stat link, target;
        if (entry->d_name[0] == '.' || (names && !names->wanted(entry->d_name)))
            continue;
        path = fleet_file_join(folder, entry->d_name);
        if (lstat(path, &link) < 0 || stat(path, &target) < 0) {
            rc = fleet_error(err, -errno, "%s: open %s: %s", field, path, strerror(errno));
            free(path);
        } else if (!S_ISREG(target.st_mode) ||
                   (S_ISLNK(link.st_mode) && is_link_within(folder, path)))
            free(path);
        else
            rc = add_file(field, path, files, err);
    }
    closedir(dir);
    if (rc == 0 && files->count)
        qsort(files->items, (size_t)files->count, sizeof(*files->items), compare_paths);
    if (rc == 0 && files->count == 0)
        return fleet_error(err, -EINVAL, "%s: folder %s holds no file with content%s%s", field,
                           folder, names ? " of those that are read: " : "",
                           names ? names->words : "");
    return rc;
}

static int add_glob(const char *field, const char *pattern, struct data_files *files,
                    struct fleet_error *err)
{
    glob_t found = {0};
    int rc = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);

    if (rc == GLOB_ABORTED && errno != ENOENT) {
        rc = fleet_error(err, -errno, "%s: open the folders of %s: %s", field, pattern,
                         strerror(errno));
        globfree(&found);
        return rc;
    }
    if (rc != 0) {
        globfree(&found);
        return fleet_error(err, rc == GLOB_NOSPACE ? -ENOMEM : -ENOENT, "%s: no file matches %s",
                           field, pattern);
    }
    for (size_t i = 0; i < found.gl_pathc && rc == 0; i++) {
        char *path = strdup(found.gl_pathv[i]);
        struct stat st;
        fleet_assert(path != NULL);
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            free(path);
        else
            rc = add_file(field, path, files, err);
    }
    globfree(&found);
    if (rc == 0 && files->count)
        qsort(files->items, (size_t)files->count, sizeof(*files->items), compare_paths);
    if (rc == 0 && files->count == 0)
        return fleet_error(err, -EINVAL, "%s: no file with content matches %s", field, pattern);
    return rc;
}

static int add_all(const char *field, const char *path, const struct data_file_names *names,
                   struct data_files *files, struct fleet_error *err)
{
    struct stat st;
    char *copy;
    int rc;

    if (stat(path, &st) < 0 && strpbrk(path, "*?["))
        return add_glob(field, path, files, err);
    if (stat(path, &st) < 0)
        return fleet_error(err, -errno, "%s: open %s: %s", field, path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return add_folder(field, path, names, files, err);
    copy = fleet_dup_text(path);
    rc = add_file(field, copy, files, err);
    if (rc == 0 && files->count == 0)
        return fleet_error(err, -EINVAL, "%s: %s is empty", field, path);
    return rc;
}

int files_open(const char *field, const char *path, struct data_files *out, struct fleet_error *err)
{
    return files_open_some(field, path, NULL, out, err);
}

int files_open_some(const char *field, const char *path, const struct data_file_names *names,
                    struct data_files *out, struct fleet_error *err)
{
    struct data_files files = {0};
    int rc = add_all(field, path, names, &files, err);

    if (rc < 0) {
        files_release(&files);
        return rc;
    }
    for (int i = 0; i < files.count; i++) {
        files.items[i].first = files.size;
        files.size += files.items[i].seen.st_size;
    }
    *out = files;
    return 0;
}

int files_check_sizes(const struct data_files *files, const char *field, int bytes,
                      const char *unit, struct fleet_error *err)
{
    for (int i = 0; i < files->count; i++) {
        const struct data_file *file = &files->items[i];
        if (file->seen.st_size % bytes != 0)
            return fleet_error(err, -EINVAL,
                               "%s: %s has %lld bytes, not a multiple of the %d of %s", field,
                               file->path, (long long)file->seen.st_size, bytes, unit);
    }
    return 0;
}

void files_release(struct data_files *files)
{
    for (int i = 0; i < files->count; i++)
        free(files->items[i].path);
    free(files->items);
    memset(files, 0, sizeof(*files));
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct data_file *file_at(const struct data_files *files, int64_t offset)
{
    int low = 0, high = files->count; /* items[low].first <= offset < items[high].first */

    fleet_assert(offset >= 0 && offset < files->size);
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (files->items[middle].first <= offset)
            low = middle;
        else
            high = middle;
    }
    return &files->items[low];
}

const struct data_file *files_at(const struct data_files *files, int64_t offset)
{
    return file_at(files, offset);
}

/* The inode has changed: is it only owner, mode or links, or the content, too? */
static int check_content(struct data_file *file, const char *field, int fd, int64_t now_ns,
                         struct fleet_error *err)
{
    uint8_t ends[FLEET_SHA256_SIZE];
    int rc = digest_ends(fd, field, file->path, file->seen.st_size, ends, err);

    if (rc < 0)
        return rc;
    if (memcmp(ends, file->ends, sizeof(ends)) != 0)
        return fleet_error(err, -ESTALE,
                           "%s: %s changed during the run: it was written to and dated back", field,
                           file->path);
    atomic_store(&file->inode_ns, now_ns);
    return 0;
}

static int check_unchanged(struct data_file *file, const char *field, int fd,
                           const struct stat *now, struct fleet_error *err)
{
    const struct stat *seen = &file->seen;

    if (now->st_dev != seen->st_dev || now->st_ino != seen->st_ino || !S_ISREG(now->st_mode))
        return fleet_error(err, -ESTALE, "%s: %s was replaced by another file during the run",
                           field, file->path);
    if (now->st_size != seen->st_size)
        return fleet_error(err, -ESTALE,
                           "%s: %s changed during the run: it had %lld bytes, now %lld", field,
                           file->path, (long long)seen->st_size, (long long)now->st_size);
    if (now->st_mtim.tv_sec != seen->st_mtim.tv_sec ||
        now->st_mtim.tv_nsec != seen->st_mtim.tv_nsec)
        return fleet_error(err, -ESTALE, "%s: %s changed during the run: it was written to", field,
                           file->path);
    if (inode_ns(now) != atomic_load(&file->inode_ns))
        return check_content(file, field, fd, inode_ns(now), err);
    return 0;
}

/* Open the file; it must still be the one that was listed. */
static int open_unchanged(struct data_file *file, const char *field, int *out_fd,
                          struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat now;
    int rc;

    if (fd < 0 || fstat(fd, &now) < 0)
        return fleet_error(err, -errno, "%s: open %s: %s", field, file->path, strerror(errno));
    rc = check_unchanged(file, field, fd, &now, err);
    if (rc < 0)
        return rc;
    *out_fd = fd;
    fd = -1;
    return 0;
}

static int read_part(struct data_file *file, const char *field, int64_t offset, size_t size,
                     char *out, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = -1;
    int rc = open_unchanged(file, field, &fd, err);

    return rc < 0 ? rc : read_at(fd, field, file->path, offset, size, out, err);
}

int files_read(const struct data_files *files, const char *field, int64_t offset, size_t size,
               void *out, struct fleet_error *err)
{
    char *to = out;

    fleet_assert(offset >= 0 && (uint64_t)offset + size <= (uint64_t)files->size);
    while (size > 0) {
        struct data_file *file = file_at(files, offset);
        int64_t inside = offset - file->first, left = file->seen.st_size - inside;
        size_t part = (uint64_t)left < size ? (size_t)left : size;
        int rc = read_part(file, field, inside, part, to, err);
        if (rc < 0)
            return rc;
        to += part;
        offset += (int64_t)part;
        size -= part;
    }
    return 0;
}

int files_check(const struct data_files *files, const char *field, int index,
                struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int fd = -1;

    fleet_assert(index >= 0 && index < files->count);
    return open_unchanged(&files->items[index], field, &fd, err);
}
