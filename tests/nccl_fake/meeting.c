/* SPDX-License-Identifier: Apache-2.0 */

/* Files through which ranks meet. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/nccl_fake/fake_nccl.h"

void meeting_path(const struct ncclComm *comm, char *path, const char *format, ...)
{
    size_t length = strlen(comm->folder);
    va_list arguments;

    memcpy(path, comm->folder, length);
    path[length++] = '/';
    va_start(arguments, format);
    (void)vsnprintf(path + length, PATH_SIZE - length, format, arguments);
    va_end(arguments);
}

void meeting_publish(const char *path, const void *data, size_t bytes)
{
    char hidden[PATH_SIZE + 8];
    int fd;

    (void)snprintf(hidden, sizeof(hidden), "%s.new", path);
    fd = open(hidden, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        fake_nccl_die("%s: %s", hidden, strerror(errno));
    for (size_t at = 0; at < bytes;) {
        ssize_t n = write(fd, (const char *)data + at, bytes - at);
        if (n < 0)
            fake_nccl_die("%s: %s", hidden, strerror(errno));
        at += (size_t)n;
    }
    (void)close(fd);
    if (rename(hidden, path) != 0)
        fake_nccl_die("%s: %s", path, strerror(errno));
}

bool meeting_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool meeting_read(const char *path, void *data, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;

    if (fd < 0)
        return false;
    if (fstat(fd, &status) != 0 || (size_t)status.st_size != bytes)
        fake_nccl_die("%s has %lld bytes, not %zu: the ranks disagree", path,
                      (long long)status.st_size, bytes);
    for (size_t at = 0; at < bytes;) {
        ssize_t n = read(fd, (char *)data + at, bytes - at);
        if (n <= 0)
            fake_nccl_die("%s: %s", path, strerror(errno));
        at += (size_t)n;
    }
    (void)close(fd);
    return true;
}

void meeting_make_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        fake_nccl_die("%s: %s", path, strerror(errno));
}
