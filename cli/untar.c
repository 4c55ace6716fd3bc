/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/untar.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/checkpoint/tar.h"

/* Read exactly `size` bytes. -EBADMSG if the stream ends first. */
static int read_all(int fd, void *out, size_t size, struct fleet_error *err)
{
    size_t done = 0;

    while (done < size) {
        ssize_t got = read(fd, (char *)out + done, size - done);
        if (got < 0)
            return fleet_error(err, -errno, "read the archive: %s", strerror(errno));
        if (got == 0)
            return fleet_error(err, -EBADMSG, "the archive ends too early; try again");
        done += (size_t)got;
    }
    return 0;
}

static int copy(int fd, int to, uint64_t size, struct fleet_error *err)
{
    char chunk[65536];

    while (size > 0) {
        size_t part = size < sizeof(chunk) ? (size_t)size : sizeof(chunk);
        int rc = read_all(fd, chunk, part, err);
        if (rc == 0) {
            rc = fleet_file_write_all(to, chunk, part);
            if (rc < 0)
                (void)fleet_error(err, rc, "write: %s", strerror(-rc));
        }
        if (rc < 0)
            return rc;
        size -= part;
    }
    return 0;
}

static int unpack_file(int fd, const char *folder, const struct tar_entry *entry,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, entry->name);
    char padding[TAR_BLOCK];
    struct fleet_file_draft draft;
    int rc = fleet_file_draft_open(path, &draft, err);

    if (rc < 0)
        return rc;
    rc = copy(fd, draft.fd, entry->size, err);
    if (rc == 0)
        rc = read_all(fd, padding, tar_padding(entry->size), err);
    if (rc == 0)
        return fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, err);
    fleet_file_draft_discard(&draft);
    return fleet_error_wrap(err, "%s", path);
}

int untar(int fd, const char *folder, struct untar_result *out, struct fleet_error *err)
{
    struct untar_result result = {0};

    for (;;) {
        char block[TAR_BLOCK];
        struct tar_entry entry;
        int rc = read_all(fd, block, sizeof(block), err);
        if (rc == 0)
            rc = tar_decode(block, &entry, err);
        if (rc < 0)
            return rc;
        if (entry.is_end)
            break;
        rc = unpack_file(fd, folder, &entry, err);
        if (rc < 0)
            return rc;
        result.files++;
        result.bytes += entry.size;
    }
    *out = result;
    return 0;
}
