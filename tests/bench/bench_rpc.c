/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls a second between two processes of one machine by fleet_rpc.h, with 64 bytes each way:
 * one call after the other, and 100 at once. bench_rpc [SECONDS]
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "include/fleet/fleet_rpc.h"

#define BYTES   64
#define AT_ONCE 100

static struct fleet_error err;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(int rc)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "bench_rpc: %s\n", err.text);
    exit(1);
}

static int echo(const void *in, size_t in_bytes, void **out, size_t *out_bytes, void *argument,
                struct fleet_error *e)
{
    (void)argument, (void)e;
    *out = malloc(in_bytes);
    memcpy(*out, in, in_bytes);
    *out_bytes = in_bytes;
    return 0;
}

static void take(struct fleet_rpc_future *future)
{
    void *out;
    size_t bytes;

    need(fleet_rpc_wait(future, &out, &bytes, &err));
    free(out);
    fleet_rpc_future_free(future);
}

/* `width` calls at once for `seconds`: calls a second. */
static double measure(int width, double seconds)
{
    struct fleet_rpc_future *futures[AT_ONCE];
    char argument[BYTES] = {0};
    double begin = now(), end = begin;
    long calls = 0;

    for (; end - begin < seconds; end = now()) {
        for (int i = 0; i < width; i++)
            need(fleet_rpc_start("first", "echo", argument, BYTES, 0, &futures[i], &err));
        for (int i = 0; i < width; i++)
            take(futures[i]);
        calls += width;
    }
    return (double)calls / (end - begin);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    char master[32];
    int fd = socket(AF_INET, SOCK_STREAM, 0), rank, status = 0;
    pid_t child;

    if (bind(fd, (struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return 1;
    (void)close(fd);
    (void)snprintf(master, sizeof(master), "127.0.0.1:%d", ntohs(address.sin_port));
    child = fork();
    rank = child == 0;
    need(fleet_rpc_register("echo", echo, NULL, &err));
    need(fleet_rpc_init(rank == 0 ? "first" : "second", rank, 2, master, &err));
    if (rank == 1) {
        (void)printf("one after the other  %8.0f calls/s\n", measure(1, seconds));
        (void)printf("%d at once          %8.0f calls/s\n", AT_ONCE, measure(AT_ONCE, seconds));
        (void)fflush(stdout);
    }
    need(fleet_rpc_shutdown(&err));
    if (rank == 0)
        (void)waitpid(child, &status, 0);
    return status != 0;
}
