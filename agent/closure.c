/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Files are copied with plain reads and writes into a new file, which is renamed into place: a
 * running program cannot be overwritten, but it can be replaced.
 */
#include "agent/closure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

static int copy_content(int from, int to, off_t size)
{
    while (size > 0) {
        ssize_t count = sendfile(to, from, NULL, (size_t)size);
        if (count < 0)
            return -errno;
        if (count == 0)
            return -EIO; /* it became shorter meanwhile */
        size -= count;
    }
    return 0;
}

/* Copy into a new file and rename it: a running program can be replaced, but not overwritten. */
static int copy_file(const char *from_path, const char *to_path, struct fleet_error *err)
{
    FLEET_AUTO_CLOSE int from = open(from_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct fleet_file_draft draft;
    struct stat stat;
    int rc;

    if (from < 0 || fstat(from, &stat) < 0)
        return fleet_error(err, -errno, "read %s: %s", from_path, strerror(errno));
    if (!S_ISREG(stat.st_mode))
        return fleet_error(err, -EINVAL, "%s is no plain file", from_path);
    rc = fleet_file_draft_open(to_path, &draft, err);
    if (rc < 0)
        return rc;
    rc = copy_content(from, draft.fd, stat.st_size);
    if (rc == 0 && fchmod(draft.fd, stat.st_mode & 0755) < 0)
        rc = -errno;
    if (rc == 0)
        return fleet_file_draft_commit(&draft, FLEET_FILE_VOLATILE, err);
    fleet_file_draft_discard(&draft);
    return fleet_error(err, rc, "copy %s to %s: %s", from_path, to_path, strerror(-rc));
}

static int copy_folder(const char *source, const char *target, const char *name,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *from = fleet_file_join(source, name), *to = fleet_file_join(target, name);
    const struct dirent *entry;
    DIR *folder;
    int count = 0, rc = fleet_file_make_folder(to, err);

    if (rc < 0)
        return rc;
    folder = opendir(from);
    if (!folder)
        return fleet_error(err, -errno, "read the folder %s: %s", from, strerror(errno));
    while (rc == 0 && (entry = readdir(folder))) { /* NOLINT(concurrency-mt-unsafe): one thread */
        FLEET_AUTO_FREE char *from_path = fleet_file_join(from, entry->d_name);
        FLEET_AUTO_FREE char *to_path = fleet_file_join(to, entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        rc = ++count <= CLOSURE_FILES_MAX
                 ? copy_file(from_path, to_path, err)
                 : fleet_error(err, -E2BIG, "%s has more than %d files", from, CLOSURE_FILES_MAX);
    }
    (void)closedir(folder);
    return rc;
}

int closure_install(const char *source, const char *target, struct fleet_error *err)
{
    int rc = copy_folder(source, target, "lib", err);

    return rc < 0 ? rc : copy_folder(source, target, "bin", err);
}

int closure_folder(char **out_folder, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *own = NULL;
    int rc = fleet_file_own_folder(&own, err);
    char *slash;

    if (rc < 0)
        return rc;
    slash = strrchr(own, '/');
    if (!slash || strcmp(slash, "/bin") != 0)
        return fleet_error(err, -ENOENT, "%s is not the bin folder of a closure", own);
    *slash = '\0';
    *out_folder = fleet_file_join(own[0] ? own : "/", "");
    return 0;
}
