/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Preloaded into trainers by a test: the rank that writes the checkpoint of step DIE_BEHIND dies by
 * SIGKILL before it is complete, and behind the next step, at any speed of disk and machine.
 *
 *   rename() of that checkpoint's manifest never returns in the process that is to die
 *   puts() of the line of step DIE_BEHIND + 1, which only the first rank prints: the process writes
 *   its number into the file DIE_MARK, and kills itself
 *
 * With DIE_REFUSE set no process dies: each such rename() fails with ENOSPC.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long step_to_die(void)
{
    const char *text = getenv("DIE_BEHIND");

    return text ? strtol(text, NULL, 10) : -1;
}

/* The process that has died, or is about to; 0 = none. */
static long who_died(void)
{
    const char *path = getenv("DIE_MARK");
    FILE *file = path ? fopen(path, "re") : NULL;
    long pid = 0;

    if (file && fscanf(file, "%ld", &pid) != 1)
        pid = 0;
    if (file)
        (void)fclose(file);
    return pid;
}

int rename(const char *from, const char *to)
{
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    char name[32];
    long died;

    (void)snprintf(name, sizeof(name), "/step-%08ld-", step_to_die());
    if (!strstr(to, name) || !strstr(to, "/manifest.json"))
        return next(from, to);
    if (getenv("DIE_REFUSE")) {
        errno = ENOSPC;
        return -1;
    }
    died = who_died();
    while (died == 0 || died == getpid())
        (void)pause();
    return next(from, to);
}

int puts(const char *text)
{
    int (*next)(const char *) = dlsym(RTLD_NEXT, "puts");
    char line[32];
    const char *path = getenv("DIE_MARK");
    FILE *file;

    (void)snprintf(line, sizeof(line), "step %ld/", step_to_die() + 1);
    if (!path || getenv("DIE_REFUSE") || strncmp(text, line, strlen(line)) != 0 || who_died() != 0)
        return next(text);
    file = fopen(path, "we");
    if (file) {
        (void)fprintf(file, "%d", (int)getpid());
        (void)fclose(file);
    }
    (void)kill(getpid(), SIGKILL);
    return next(text);
}
