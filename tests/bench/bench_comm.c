/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Collectives over local transports: time and bandwidth by operation and size, beside Gloo's in the
 * same run and what the machine's loopback gives raw (two processes that send and receive the same
 * number of bytes at once). Ranks are processes, as in a job.
 *
 *     bench_comm [ranks]      default 4
 *
 * "tcp" goes through sockets only; "shm" through shared memory, and takes large messages from the
 * other process's memory. tree_sum is the deterministic all-reduce, one leaf a rank; its rival is
 * Gloo's all_reduce. Bytes are those of the whole tensor, of all ranks' parts together.
 *
 * "bus" is the bytes that must leave a rank per second: comparable over numbers of ranks. "raw" is
 * the duplex rate of one pair, shared by n/2 pairs at once. "gloo" is Gloo's time divided by ours.
 */
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "tests/support/child_process.h"

#define RANKS_MAX  16
#define ROUNDS_MS  400.0 /* per size */
#define ROUNDS_MIN 5

static const int64_t sizes[] = {1,     16,     256,     1024,    4096,     16384,
                                65536, 262144, 1048576, 4194304, 16777216, 67108864};
#define SIZES (int)(sizeof(sizes) / sizeof(sizes[0]))

enum {
    ALL_REDUCE,
    TREE_SUM,
    REDUCE_SCATTER,
    ALL_GATHER,
    OPERATIONS
};
static const char *const names[OPERATIONS] = {"all_reduce", "tree_sum", "reduce_scatter",
                                              "all_gather"};

struct shared {
    double seconds[2][OPERATIONS][SIZES];   /* tcp, shm: median over rounds of rank 0 */
    double gloo_seconds[OPERATIONS][SIZES]; /* 0 = not measured */
    double raw_bytes_per_s;
};

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct memory {
    float *data, *part; /* largest size; a rank's part of it */
    void *workspace;
};

/* `count` elements of all ranks together. */
static int run_once(struct comm *comm, int operation, int64_t count, const struct memory *memory)
{
    int64_t part = count / comm->world;
    struct comm_call call = {.type = COMM_FP32, .count = part};

    if (operation == TREE_SUM)
        return comm_tree_sum(comm, comm->world, (float *const *)&memory->data, count,
                             memory->workspace, INFINITY, NULL);
    if (operation == ALL_REDUCE)
        return comm_all_reduce(comm, memory->data, count, COMM_FP32, COMM_SUM, INFINITY, NULL);
    call.operation = operation == REDUCE_SCATTER ? COMM_REDUCE_SCATTER : COMM_ALL_GATHER;
    call.send = operation == REDUCE_SCATTER ? memory->data : memory->part;
    call.receive = operation == REDUCE_SCATTER ? memory->part : memory->data;
    return comm_run(comm, &call, INFINITY, NULL);
}

/* Rank 0 decides when it was long enough. */
static double time_size(struct comm *comm, int operation, int64_t count,
                        const struct memory *memory)
{
    static double times[100000];
    double started = fleet_monotonic_ms();
    int rounds = 0, go_on = 1;

    while (go_on) {
        double at = fleet_monotonic_ms();
        fleet_assert(run_once(comm, operation, count, memory) == 0);
        times[rounds++] = fleet_monotonic_ms() - at;
        if (rounds % 5 == 0) {
            go_on = fleet_monotonic_ms() - started < ROUNDS_MS && rounds < 99990;
            fleet_assert(comm_broadcast(comm, &go_on, sizeof(go_on), 0, INFINITY, NULL) == 0);
        }
    }
    qsort(times, (size_t)rounds, sizeof(times[0]), compare_doubles);
    return times[rounds / 2] / 1e3;
}

static void run_rank(const struct comm_tcp_options *options, struct shared *shared)
{
    struct comm *comm;
    struct fleet_error err;
    int64_t largest = sizes[SIZES - 1];
    struct memory memory = {
        .data = calloc((size_t)largest, sizeof(float)),
        .part = calloc((size_t)largest, sizeof(float)),
        .workspace =
            malloc(tree_sum_workspace(options->world, options->world, largest) + (1 << 20))};

    if (comm_tcp_new(options, fleet_monotonic_ms() + 10000, &comm, &err) < 0) {
        fprintf(stderr, "rank %d: %s\n", options->rank, err.text);
        _exit(1);
    }
    for (int o = 0; o < OPERATIONS; o++)
        for (int i = 0; i < SIZES; i++) {
            double seconds = time_size(comm, o, sizes[i], &memory);
            if (options->rank == 0)
                shared->seconds[options->neighbours != COMM_NEIGHBOURS_TCP][o][i] = seconds;
        }
    comm_free(comm);
    free(memory.data);
    free(memory.part);
    free(memory.workspace);
}

/* ---- the machine's own limit ----------------------------------------------------------------- */

#define RAW_BYTES (64 << 20)

/* Send and receive RAW_BYTES over `fd` at once. */
static void duplex(int fd)
{
    static char out[1 << 20], in[1 << 20];
    size_t sent = 0, received = 0;

    while (sent < RAW_BYTES || received < RAW_BYTES) {
        struct pollfd p = {.fd = fd,
                           .events = (short)((sent < RAW_BYTES ? POLLOUT : 0) |
                                             (received < RAW_BYTES ? POLLIN : 0))};
        ssize_t n;
        fleet_assert(poll(&p, 1, -1) >= 0);
        if (p.revents & POLLOUT && (n = send(fd, out, sizeof(out), MSG_DONTWAIT)) > 0)
            sent += (size_t)n;
        if (p.revents & POLLIN && (n = recv(fd, in, sizeof(in), MSG_DONTWAIT)) > 0)
            received += (size_t)n;
    }
}

/* Bytes a second in each direction of one connection, while `pairs` do the same. */
static double raw_rate(int pairs)
{
    double started;
    pid_t children[2 * RANKS_MAX];

    started = fleet_monotonic_ms();
    for (int i = 0; i < pairs; i++) {
        int listener, port, a, b;
        struct sockaddr_storage address;
        socklen_t size = sizeof(address);
        fleet_assert(comm_tcp_listen("127.0.0.1", &listener, &port, NULL) == 0);
        fleet_assert(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
        a = socket(AF_INET, SOCK_STREAM, 0);
        fleet_assert(connect(a, (struct sockaddr *)&address, size) == 0);
        b = accept(listener, NULL, NULL);
        for (int side = 0; side < 2; side++) {
            children[2 * i + side] = child_process_fork();
            if (children[2 * i + side] == 0) {
                duplex(side ? a : b);
                _exit(0);
            }
        }
        (void)close(listener);
        (void)close(a);
        (void)close(b);
    }
    for (int i = 0; i < 2 * pairs; i++)
        (void)child_process_wait(children[i]);
    return RAW_BYTES / ((fleet_monotonic_ms() - started) / 1e3);
}

/* ---- the rival ------------------------------------------------------------------------------- */

static void run_gloo(int world, struct shared *shared)
{
    const char *python = getenv("RIVAL_PYTHON");
    char command[1024], line[256];
    int used = snprintf(command, sizeof(command), "%s tests/bench/rival_gloo.py %d",
                        python ? python : "python3", world);
    FILE *output;

    for (int i = 0; i < SIZES && (size_t)used < sizeof(command); i++)
        used += snprintf(command + used, sizeof(command) - (size_t)used, " %lld",
                         (long long)sizes[i] * 4);
    (void)snprintf(command + used, sizeof(command) - (size_t)used, " 2>/dev/null");
    output = popen(command, "r");
    while (output && fgets(line, sizeof(line), output)) {
        char name[32];
        long long bytes;
        double seconds;
        if (sscanf(line, "%31s %lld %lf", name, &bytes, &seconds) != 3)
            continue;
        for (int o = 0; o < OPERATIONS; o++)
            for (int i = 0; i < SIZES; i++)
                if (bytes == sizes[i] * 4 &&
                    strcmp(name, names[o == TREE_SUM ? ALL_REDUCE : o]) == 0)
                    shared->gloo_seconds[o][i] = seconds;
    }
    if (output)
        (void)pclose(output);
}

static void run_world(int world, bool is_shm, struct shared *shared)
{
    struct comm_tcp_options options = {.world = world,
                                       .stop = -1,
                                       .neighbours =
                                           is_shm ? COMM_NEIGHBOURS_DIRECT : COMM_NEIGHBOURS_TCP};
    char texts[RANKS_MAX][32];
    const char *addresses[RANKS_MAX];
    int listeners[RANKS_MAX];
    pid_t children[RANKS_MAX];

    for (int r = 0; r < world; r++) {
        int port;
        fleet_assert(comm_tcp_listen("127.0.0.1", &listeners[r], &port, NULL) == 0);
        (void)snprintf(texts[r], sizeof(texts[r]), "127.0.0.1:%d", port);
        addresses[r] = texts[r];
    }
    options.addresses = addresses;
    for (int r = 0; r < world; r++) {
        children[r] = child_process_fork();
        if (children[r] == 0) {
            options.rank = r;
            options.listener = listeners[r];
            run_rank(&options, shared);
            _exit(0);
        }
    }
    for (int r = 0; r < world; r++) {
        (void)child_process_wait(children[r]);
        (void)close(listeners[r]);
    }
}

static void print_row(int world, bool is_shm, int operation, int size, const struct shared *shared)
{
    double bytes = (double)sizes[size] * 4, seconds = shared->seconds[is_shm][operation][size];
    double times = operation == ALL_REDUCE || operation == TREE_SUM ? 2 : 1;
    double rate = times * bytes * (world - 1) / world / seconds;
    double gloo = shared->gloo_seconds[operation][size];
    const char *transport = is_shm ? "shm" : "tcp";

    printf("%-14s %4s %12.0f %12.1f %10.3f %8.2f ", names[operation], transport, bytes,
           seconds * 1e6, rate / 1e9, rate / shared->raw_bytes_per_s);
    if (gloo > 0)
        printf("%8.1f\n", gloo / seconds);
    else
        printf("%8s\n", "-");
    printf("{\"bench\":\"%s\",\"transport\":\"%s\",\"ranks\":%d,\"bytes\":%.0f,"
           "\"seconds\":%.9f,\"busBytesPerSecond\":%.0f,\"ofRaw\":%.3f,\"timesGloo\":%.3f}\n",
           names[operation], transport, world, bytes, seconds, rate, rate / shared->raw_bytes_per_s,
           gloo / seconds);
}

int main(int argc, char **argv)
{
    int world = argc > 1 ? atoi(argv[1]) : 4;
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (world < 2 || world > RANKS_MAX || shared == MAP_FAILED)
        return 2;
    run_world(world, false, shared);
    run_world(world, true, shared);
    run_gloo(world, shared);
    shared->raw_bytes_per_s = raw_rate(world / 2);
    printf("%d ranks on one machine; raw duplex loopback of %d pairs: %.2f GB/s each way\n", world,
           world / 2, shared->raw_bytes_per_s / 1e9);
    printf("%-14s %4s %12s %12s %10s %8s %8s\n", "", "", "bytes", "us", "bus GB/s", "of raw",
           "gloo");
    for (int o = 0; o < OPERATIONS; o++)
        for (int size = 0; size < SIZES; size++)
            for (int shm = 0; shm < 2; shm++)
                print_row(world, shm, o, size, shared);
    return 0;
}
