/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whole files. Durability is rename(2) between two fsync(2): of the new content before it, of the
 * folder after it; leave one out and a power cut may show an empty file or the old one after
 * success was said.
 */
#include "libfleet/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

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

static int write_all(int fd, const void *data, size_t size)
{
    const char *p = data;

    while (size > 0) {
        ssize_t done = write(fd, p, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        p += done;
        size -= (size_t)done;
    }
    return 0;
}

/* Heap; "." for a name alone. */
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

int fleet_file_write(const char *path, const void *data, size_t size, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf temporary = {0};
    int fd, rc;

    fleet_strbuf_appendf(&temporary, "%s.%ld.tmp", path, (long)getpid());
    fd = open(temporary.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return fail(err, "create", temporary.text);
    rc = write_all(fd, data, size) < 0 || fsync(fd) < 0 ? fail(err, "write", path) : 0;
    if (close(fd) < 0 && rc == 0)
        rc = fail(err, "close", path);
    if (rc == 0 && rename(temporary.text, path) < 0)
        rc = fail(err, "rename to", path);
    if (rc < 0) {
        (void)unlink(temporary.text);
        return rc;
    }
    return sync_folder_of(path) < 0 ? fail(err, "sync the folder of", path) : 0;
}

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
    struct stat info;
    int rc;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = EISDIR;
        return fail(err, "write", path);
    }
    rc = fleet_file_make_folder(folder, err);
    return rc < 0 ? rc : fleet_file_try_folder(folder, err);
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
            return fail(err, "make folder", part);
        *p = here;
        if (here == '\0')
            break;
    }
    return 0;
}

char *fleet_file_join(const char *folder, const char *name)
{
    struct fleet_strbuf path = {0};

    if (name[0] != '/' && folder[0])
        fleet_strbuf_appendf(&path, "%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/");
    fleet_strbuf_append(&path, name);
    return fleet_strbuf_take(&path);
}
