/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_S3_FIXTURE_H
#define TESTS_INTEGRATION_S3_FIXTURE_H

/*
 * tests/fake/s3.py for a test, with the bucket "fleet": `home` has its folder `data`, its log and
 * its faults.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"
#include "tests/support/job_run.h"

static char *home; /* of the server */
static pid_t s3_server;

/* "home/name"; the last 16 stay valid. */
static inline const char *at_home(const char *name)
{
    static char paths[16][512];
    static int next;
    char *path = paths[next++ % 16];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", home, name);
    return path;
}

static inline void write_text(const char *path, const char *text)
{
    assert_int_equal(fleet_file_write(path, text, strlen(text), NULL), 0);
}

/* The whole of a file below home, heap; "" if there is none. */
static inline char *read_home(const char *name)
{
    char *text = NULL;
    size_t size;

    return fleet_file_read(at_home(name), 1 << 24, &text, &size, NULL) < 0 ? fleet_dup_text("")
                                                                           : text;
}

/* Lines of faults for s3.py; "" for none. */
static inline void set_faults(const char *lines)
{
    write_text(at_home("faults"), lines);
}

static inline int s3_start(void **state)
{
    char text[32] = "", url[64];
    int ends[2];

    (void)state;
    home = job_run_folder();
    if (mkdir(at_home("data"), 0777) != 0 || mkdir(at_home("data/fleet"), 0777) != 0 ||
        pipe(ends) != 0)
        return -1;
    s3_server = fork();
    if (s3_server == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(ends[1], 1);
        (void)close(ends[0]);
        (void)close(ends[1]);
        (void)execlp("python3", "python3", "tests/fake/s3.py", at_home("data"), (char *)NULL);
        _exit(127);
    }
    (void)close(ends[1]);
    for (size_t length = 0; !strchr(text, '\n');) {
        ssize_t got = read(ends[0], text + length, sizeof(text) - 1 - length);
        if (got <= 0)
            return -1;
        length += (size_t)got;
    }
    (void)close(ends[0]);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%d", atoi(text));
    (void)setenv("AWS_ENDPOINT_URL_S3", url, 1);
    (void)setenv("AWS_ACCESS_KEY_ID", "fleetuser", 1);
    (void)setenv("AWS_SECRET_ACCESS_KEY", "fleetsecret", 1);
    (void)setenv("FLEET_CACHE", at_home("cache"), 1);
    return 0;
}

static inline int s3_stop(void **state)
{
    (void)state;
    (void)kill(s3_server, SIGKILL);
    (void)waitpid(s3_server, NULL, 0);
    job_run_remove(home);
    free(home);
    return 0;
}

#endif
