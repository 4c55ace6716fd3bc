/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/fs/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "distributed/fs/s3.h"

/* ---- life ------------------------------------------------------------------------------------ */

/* The scheme's end in `url`; 0 if it is a path. */
static size_t scheme_length(const char *url)
{
    size_t length = strspn(url, "abcdefghijklmnopqrstuvwxyz0123456789+.-");
    return length > 0 && url[length] == ':' ? length : 0;
}

static int set_options(struct fleet_fs *fs, const struct fleet_fs_options *options,
                       struct fleet_error *err)
{
    const struct fleet_fs_options none = {0}, *o = options ? options : &none;
    size_t count = 0;

    if (o->timeout_ms < 0 || o->attempts < 0 || o->pause_ms < 0)
        return fleet_error(err, -EINVAL,
                           "timeout_ms %d, attempts %d, pause_ms %d: allowed: 0 or more",
                           o->timeout_ms, o->attempts, o->pause_ms);
    while (o->settings && o->settings[count])
        if (++count > FLEET_FS_SETTINGS_MAX)
            return fleet_error(err, -EINVAL, "more than %d settings", FLEET_FS_SETTINGS_MAX);
    fs->settings = calloc(count + 1, sizeof(*fs->settings));
    if (!fs->settings)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < count; i++) {
        if (!strchr(o->settings[i], '='))
            return fleet_error(err, -EINVAL, "settings[%zu] is \"%.60s\", needed: key=value", i,
                               o->settings[i]);
        fs->settings[i] = strdup(o->settings[i]);
        if (!fs->settings[i])
            return fleet_error(err, -ENOMEM, "out of memory");
    }
    fs->timeout_ms = o->timeout_ms ? o->timeout_ms : 300000;
    fs->attempts = o->attempts ? o->attempts : 5;
    fs->pause_ms = o->pause_ms ? o->pause_ms : 3000;
    return 0;
}

int fleet_fs_open(const char *url, const struct fleet_fs_options *options, struct fleet_fs **out,
                  struct fleet_error *err)
{
    struct fleet_fs *fs;
    size_t length;
    int rc = 0;

    if (argument_check(url, "fleet_fs_open", "url", err) < 0 ||
        argument_check(out, "fleet_fs_open", "out", err) < 0)
        return -EINVAL;
    length = scheme_length(url);
    fs = calloc(1, sizeof(*fs));
    if (!fs)
        return fleet_error(err, -ENOMEM, "fleet_fs_open: out of memory");
    fs->operations = &fs_local;
    rc = set_options(fs, options, err);
    if (rc == 0 && strncmp(url, "hdfs:", 5) == 0) {
        fs->operations = &fs_hadoop;
        rc = hadoop_open(fs, options ? options->hadoop_home : NULL, err);
    } else if (rc == 0 && strncmp(url, "s3:", 3) == 0) {
        fs->operations = &fs_s3;
        rc = s3_open(fs, url, err);
    } else if (rc == 0 && (strncmp(url, "webhdfs:", 8) == 0 || strncmp(url, "swebhdfs:", 9) == 0)) {
        fs->operations = &fs_webhdfs;
        rc = webhdfs_open(fs, url, err);
    } else if (rc == 0 && length > 0 && strncmp(url, "file:", 5) != 0) {
        rc = fleet_error(err, -EINVAL,
                         "the scheme is \"%.*s\", allowed: file, hdfs, webhdfs, swebhdfs, s3",
                         (int)length, url);
    }
    if (rc < 0) {
        fleet_fs_free(fs);
        return fleet_error_wrap(err, "fleet_fs_open");
    }
    *out = fs;
    return 0;
}

void fleet_fs_free(struct fleet_fs *fs)
{
    if (!fs)
        return;
    for (char **one = fs->settings; one && *one; one++)
        free(*one);
    free(fs->settings);
    if (fs->operations->free)
        fs->operations->free(fs);
    free(fs);
}

bool fleet_fs_needs_transfer(const struct fleet_fs *fs)
{
    return fs && fs->operations->needs_transfer;
}

/* ---- names ----------------------------------------------------------------------------------- */

int fs_names_add(struct fleet_fs_names *names, const char *name, size_t length,
                 struct fleet_error *err)
{
    char **list = realloc(names->list, (names->count + 1) * sizeof(*list));

    if (list)
        names->list = list;
    if (!list || !(list[names->count] = strndup(name, length)))
        return fleet_error(err, -ENOMEM, "out of memory");
    names->count++;
    return 0;
}

void fleet_fs_names_release(struct fleet_fs_names *names)
{
    if (!names)
        return;
    for (size_t i = 0; i < names->count; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct fleet_fs_names){0};
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort(struct fleet_fs_names *names)
{
    if (names->count > 0)
        qsort(names->list, names->count, sizeof(*names->list), compare);
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Paths of "file:" are those of the system. */
static const char *plain(const struct fleet_fs *fs, const char *path)
{
    if (!fs->operations->needs_transfer && strncmp(path, "file:", 5) == 0) {
        path += 5;
        if (strncmp(path, "//", 2) == 0)
            path += 2;
    }
    return path;
}

static int kind_of(const char *what, struct fleet_fs *fs, const char **path,
                   struct fleet_error *err)
{
    int rc = argument_check(fs, what, "fs", err);

    if (rc < 0)
        return rc;
    if (!*path || !(*path)[0])
        return fleet_error(err, -EINVAL, "%s: the path is empty", what);
    *path = plain(fs, *path);
    rc = fs->operations->kind(fs, *path, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : rc;
}

int fleet_fs_exists(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    int rc = kind_of("fleet_fs_exists", fs, &path, err);
    return rc < 0 ? rc : rc != FS_NOTHING;
}

int fleet_fs_is_file(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    int rc = kind_of("fleet_fs_is_file", fs, &path, err);
    return rc < 0 ? rc : rc == FS_FILE;
}

int fleet_fs_is_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    int rc = kind_of("fleet_fs_is_folder", fs, &path, err);
    return rc < 0 ? rc : rc == FS_FOLDER;
}

int fleet_fs_list(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                  struct fleet_fs_names *files, struct fleet_error *err)
{
    const char *what = "fleet_fs_list";
    struct fleet_fs_names found_folders = {0}, found_files = {0};
    int rc = kind_of(what, fs, &path, err);

    if (rc >= 0 && !folders)
        rc = argument_check(folders, what, "folders", err);
    if (rc < 0)
        return rc;
    rc = rc == FS_FOLDER ? fs->operations->list(fs, path, &found_folders, &found_files, err) : 0;
    if (rc < 0 || !files)
        fleet_fs_names_release(&found_files);
    if (rc < 0) {
        fleet_fs_names_release(&found_folders);
        return fleet_error_wrap(err, "%s", what);
    }
    sort(&found_folders);
    sort(&found_files);
    *folders = found_folders;
    if (files)
        *files = found_files;
    return 0;
}

int fleet_fs_make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    const char *what = "fleet_fs_make_folder";
    int rc = kind_of(what, fs, &path, err);

    if (rc < 0 || rc == FS_FOLDER)
        return rc < 0 ? rc : 0;
    if (rc == FS_FILE)
        return fleet_error(err, -EEXIST, "%s: %s is a file", what, path);
    rc = fs->operations->make_folder(fs, path, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_fs_delete(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    const char *what = "fleet_fs_delete";
    int rc = kind_of(what, fs, &path, err);

    if (rc > 0)
        rc = fs->operations->remove(fs, path, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

/* Make room for `to`: -EEXIST unless it may be overwritten. */
static int clear_target(const char *what, struct fleet_fs *fs, const char **to, bool overwrite,
                        struct fleet_error *err)
{
    int rc = kind_of(what, fs, to, err);

    if (rc <= 0)
        return rc;
    if (!overwrite)
        return fleet_error(err, -EEXIST, "%s: %s exists already", what, *to);
    rc = fs->operations->remove(fs, *to, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

static int need_source(const char *what, struct fleet_fs *fs, const char **from,
                       struct fleet_error *err)
{
    int rc = kind_of(what, fs, from, err);

    if (rc == FS_NOTHING)
        return fleet_error(err, -ENOENT, "%s: %s does not exist", what, *from);
    return rc < 0 ? rc : 0;
}

int fleet_fs_move(struct fleet_fs *fs, const char *from, const char *to, bool overwrite,
                  struct fleet_error *err)
{
    const char *what = "fleet_fs_move";
    int rc = need_source(what, fs, &from, err);

    if (rc == 0 && to && strcmp(from, plain(fs, to)) == 0)
        return fleet_error(err, -EINVAL, "%s: both paths are %s", what, from);
    if (rc == 0)
        rc = clear_target(what, fs, &to, overwrite, err);
    if (rc < 0)
        return rc;
    rc = fs->operations->move(fs, from, to, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_fs_touch(struct fleet_fs *fs, const char *path, bool exist_ok, struct fleet_error *err)
{
    const char *what = "fleet_fs_touch";
    int rc = kind_of(what, fs, &path, err);

    if (rc < 0)
        return rc;
    if (rc != FS_NOTHING)
        return exist_ok ? 0 : fleet_error(err, -EEXIST, "%s: %s exists already", what, path);
    rc = fs->operations->touch(fs, path, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_fs_read(struct fleet_fs *fs, const char *path, size_t size_max, char **out, size_t *bytes,
                  struct fleet_error *err)
{
    const char *what = "fleet_fs_read";
    int rc = need_source(what, fs, &path, err);

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    if (rc == 0)
        rc = argument_check(bytes, what, "bytes", err);
    if (rc < 0)
        return rc;
    rc = fs->operations->read(fs, path, size_max, out, bytes, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

/* The file system of the other side of a transfer. */
static struct fleet_fs here = {.operations = &fs_local};

/* Does an upload of file `local` take the place of the file at `path`, which stays if it fails? */
static bool replaces(struct fleet_fs *fs, const char *local, const char *path)
{
    return fs->operations->replaces && path && path[0] &&
           fs_local.kind(NULL, local, NULL) == FS_FILE &&
           fs->operations->kind(fs, path, NULL) == FS_FILE;
}

int fleet_fs_upload(struct fleet_fs *fs, const char *local, const char *path, bool overwrite,
                    struct fleet_error *err)
{
    const char *what = "fleet_fs_upload";
    int rc = argument_check(fs, what, "fs", err);

    if (rc == 0)
        rc = need_source(what, &here, &local, err);
    if (rc == 0)
        rc = overwrite && replaces(fs, local, path) ? 0
                                                    : clear_target(what, fs, &path, overwrite, err);
    if (rc < 0)
        return rc;
    rc = fs->operations->upload(fs, local, path, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_fs_download(struct fleet_fs *fs, const char *path, const char *local, bool overwrite,
                      struct fleet_error *err)
{
    const char *what = "fleet_fs_download";
    int rc = need_source(what, fs, &path, err);

    if (rc == 0)
        rc = clear_target(what, &here, &local, overwrite, err);
    if (rc < 0)
        return rc;
    rc = fs->operations->download(fs, path, local, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_fs_look(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                  struct fleet_error *err)
{
    const char *what = "fleet_fs_look";
    struct fleet_fs_info info = {0};
    int rc = argument_check(fs, what, "fs", err);

    if (rc == 0)
        rc = argument_check(out, what, "out", err);
    if (rc < 0)
        return rc;
    if (!path || !path[0])
        return fleet_error(err, -EINVAL, "%s: the path is empty", what);
    rc = fs->operations->look(fs, plain(fs, path), &info, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    info.is_folder = rc == FS_FOLDER;
    *out = info;
    return rc != FS_NOTHING;
}

int fleet_fs_read_part(struct fleet_fs *fs, const char *path, const struct fleet_fs_info *seen,
                       uint64_t offset, uint64_t bytes, int fd, struct fleet_error *err)
{
    const char *what = "fleet_fs_read_part";
    struct stat info;
    int rc = argument_check(fs, what, "fs", err);

    if (rc == 0)
        rc = argument_check(seen, what, "seen", err);
    if (rc < 0)
        return rc;
    if (!path || !path[0])
        return fleet_error(err, -EINVAL, "%s: the path is empty", what);
    if (!fs->operations->read_part)
        return fleet_error(err, -ENOTSUP, "%s: this file system has no parts of files", what);
    if (offset > seen->bytes || bytes < 1 || bytes > seen->bytes - offset)
        return fleet_error(err, -EINVAL, "%s: %llu bytes from %llu are not in a file of %llu", what,
                           (unsigned long long)bytes, (unsigned long long)offset,
                           (unsigned long long)seen->bytes);
    rc = fs->operations->read_part(fs, path, seen, offset, bytes, fd, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    if (fstat(fd, &info) != 0 || (uint64_t)info.st_size != offset + bytes)
        return fleet_error(err, -EIO, "%s: %s: the server sent another number of bytes than %llu",
                           what, path, (unsigned long long)bytes);
    return 0;
}
