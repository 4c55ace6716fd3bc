/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/ipc_board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/error.h"

static struct ipc_board *map(int fd)
{
    void *memory = mmap(NULL, sizeof(struct ipc_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

static int fail(const char *what, struct fleet_error *err)
{
    return fleet_error(err, -EIO, "memory that ranks share: %s: %s", what, strerror(errno));
}

int ipc_board_make(struct ipc_board **out, struct ipc_place *out_place, struct fleet_error *err)
{
    struct ipc_place place = {.pid = getpid()};

    if (getrandom(&place.secret, sizeof(place.secret), 0) != sizeof(place.secret))
        return fail("draw a number", err);
    place.fd = memfd_create("fleetjob-gpu-board", MFD_CLOEXEC);
    if (place.fd < 0)
        return fail("make it", err);
    *out = ftruncate(place.fd, sizeof(struct ipc_board)) == 0 ? map(place.fd) : NULL;
    if (!*out) {
        int rc = fail("map it", err);
        (void)close(place.fd);
        return rc;
    }
    (*out)->secret = place.secret;
    *out_place = place;
    return 0;
}

void ipc_board_hide(const struct ipc_place *place)
{
    (void)close(place->fd);
}

int ipc_board_open(const struct ipc_place *place, struct ipc_board **out, struct fleet_error *err)
{
    char path[64];
    struct stat status;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)place->pid, (int)place->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return fleet_error(err, -EIO,
                           "memory that ranks share: %s: %s (all ranks must be in one container)",
                           path, strerror(errno));
    *out = fstat(fd, &status) == 0 && status.st_size == (off_t)sizeof(struct ipc_board) ? map(fd)
                                                                                        : NULL;
    (void)close(fd);
    if (*out && (*out)->secret == place->secret)
        return 0;
    ipc_board_close(*out);
    *out = NULL;
    return fleet_error(err, -EIO,
                       "memory that ranks share: %s is not what another rank has made (all ranks "
                       "must be in one container)",
                       path);
}

void ipc_board_close(struct ipc_board *board)
{
    if (board)
        (void)munmap(board, sizeof(*board));
}
