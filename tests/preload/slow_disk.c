/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded into the processes of a job: a disk that takes SLOW_DISK_MS milliseconds longer for
 * each fsync(), fdatasync() and rename(). tests/chaos uses it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(void)
{
    const char *text = getenv("SLOW_DISK_MS");
    long ms = text ? strtol(text, NULL, 10) : 0;
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&pause, NULL);
}

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");

    wait_for_disk();
    return real(fd);
}

int fdatasync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

    wait_for_disk();
    return real(fd);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");

    wait_for_disk();
    return real(from, to);
}
