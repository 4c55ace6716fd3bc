/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_MINIO_FIXTURE_H
#define TESTS_INTEGRATION_MINIO_FIXTURE_H

/* A real MinIO (tools/minio.sh) for a test. Without one the test is skipped. */

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#define MINIO_USER   "fleetuser"
#define MINIO_SECRET "fleetsecret"

/* The path of the program; "" and false if it is not built. The reason is printed then. */
static inline bool minio_find(char out[512])
{
    FILE *pipe = popen("tools/minio.sh --built", "r");
    bool found = pipe && fgets(out, 512, pipe) != NULL;

    if (pipe && pclose(pipe) != 0)
        found = false;
    out[found ? strcspn(out, "\n") : 0] = '\0';
    return found;
}

/* Start it over `home`/data, whose folders are the buckets. It ends with the test. */
static inline pid_t minio_start(const char *program, const char *home, int port)
{
    char address[64], data[512];
    pid_t pid;

    (void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
    (void)snprintf(data, sizeof(data), "%s/data", home);
    pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(null, 1);
        (void)dup2(null, 2);
        (void)setenv("MINIO_ROOT_USER", MINIO_USER, 1);
        (void)setenv("MINIO_ROOT_PASSWORD", MINIO_SECRET, 1);
        (void)setenv("MINIO_UPDATE", "off", 1);
        (void)setenv("MINIO_BROWSER", "off", 1);
        (void)setenv("HOME", home, 1);
        (void)execl(program, program, "server", "--quiet", "--address", address, data,
                    (char *)NULL);
        _exit(127);
    }
    return pid;
}

#endif
