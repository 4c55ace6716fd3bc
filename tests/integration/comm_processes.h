/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_COMM_PROCESSES_H
#define TESTS_INTEGRATION_COMM_PROCESSES_H

/*
 * The ranks of a communicator as processes, as in a job. Each process connects and runs a body. The
 * parent waits for all of them and reads their results from shared memory.
 */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/runtime/backend/backend.h"
#include "agent/runtime/comm/comm.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "tests/integration/comm_gpu.h"
#include "tests/support/child_process.h"

#define COMM_PROCESSES_MAX 8

struct comm_outcome {
    bool has_ended; /* the body returned */
    int rc;
    int failed_rank;
    int nccl_version;   /* 0: this rank has not opened the library */
    long library_calls; /* into NCCL that have moved data */
    char text[FLEET_ERROR_SIZE];
};

/* A way to connect: its name, how neighbours talk, and the connections of a pair. */
struct comm_way {
    const char *name;
    enum comm_neighbours neighbours;
    int channels;
    bool encrypts;
    bool on_device;      /* comm_gpu.h */
    const char *library; /* of a device: FLEET_CUDA_COMM */
};

static const struct comm_way comm_ways[] = {
    {"tcp", COMM_NEIGHBOURS_TCP, 1, false, false, NULL},
    {"tcp, 3 encrypted channels", COMM_NEIGHBOURS_TCP, 3, true, false, NULL},
    /* as where the rules for debuggers refuse memory */
    {"shm", COMM_NEIGHBOURS_SHARED, 1, false, false, NULL},
    {"direct", COMM_NEIGHBOURS_DIRECT, 1, false, false, NULL},
    {"nccl", COMM_NEIGHBOURS_TCP, 1, false, true, "nccl"},
    {"ipc", COMM_NEIGHBOURS_TCP, 1, false, true, "ipc"},
};

#define COMM_WAY_NCCL (&comm_ways[4])

/* Of this rank, and its world; a body that replaces the world frees the old one and sets it. */
static struct comm_tcp_options comm_options;
static struct comm *comm_world;

typedef int comm_body(struct comm *comm, const void *argument, struct fleet_error *err);

/* A deadline later than anything ends, under a sanitizer on a busy machine. */
static inline double comm_patience(void)
{
    return fleet_monotonic_ms() + 300000;
}

/* The fakes are built for one variant. On a GPU only what needs one runs. */
static inline bool comm_has_way(const struct comm_way *way)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    if (comm_on_gpu())
        return way->on_device;
    return !way->on_device || !variant || strcmp(variant, "release") == 0;
}

/* Has the way's library of a device moved data? */
static inline bool comm_has_used(const struct comm_way *way, const struct comm_outcome *outcome)
{
    bool is_nccl = way->on_device && strcmp(way->library, "nccl") == 0;

    return !way->on_device ||
           (outcome->library_calls > 0 && is_nccl == (outcome->nccl_version > 0));
}

static inline void comm_run_rank(const struct comm_tcp_options *options, bool on_device,
                                 comm_body *body, const void *argument,
                                 struct comm_outcome *outcome)
{
    struct fleet_error err = {.text = ""};
    int rc = 0;

    comm_options = *options;
    if (options->world == 1)
        comm_world = comm_local_new();
    else
        rc = comm_tcp_new(options, comm_patience(), &comm_world, &err);
    if (rc == 0 && options->world > 1) {
        int expected = options->neighbours == COMM_NEIGHBOURS_TCP ? 0 : options->world - 1;
        if (comm_world->shm_ranks != expected)
            rc = fleet_error(&err, -ENOTSUP, "%d of %d ranks reached through shared memory",
                             comm_world->shm_ranks, expected);
    }
    if (rc == 0 && on_device)
        rc = comm_open_device(comm_world, comm_patience(), &err);
    if (rc == 0)
        rc = body(comm_world, argument, &err);
    outcome->rc = rc;
    outcome->failed_rank = comm_world ? comm_world->failed_rank : -1;
    outcome->nccl_version = comm_library ? comm_nccl_version() : 0;
    outcome->library_calls = comm_library_calls;
    memcpy(outcome->text, err.text, sizeof(outcome->text));
    outcome->has_ended = true;
    comm_free(comm_world);
    if (comm_queue)
        backend_free(comm_queue);
}

/*
 * Run `body` on `world` ranks. `victim`: a rank that ends or stops by itself, -1: none. It is
 * killed after the others have ended.
 */
static inline void comm_processes_run(int world, const struct comm_way *way, comm_body *body,
                                      const void *argument, int victim,
                                      struct comm_outcome out[COMM_PROCESSES_MAX])
{
    char texts[COMM_PROCESSES_MAX][32];
    const char *addresses[COMM_PROCESSES_MAX];
    int listeners[COMM_PROCESSES_MAX];
    pid_t children[COMM_PROCESSES_MAX];
    size_t size = COMM_PROCESSES_MAX * sizeof(*out);
    struct comm_outcome *shared =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    fleet_assert(shared != MAP_FAILED);
    for (int r = 0; r < world; r++) {
        int port;
        fleet_assert(comm_tcp_listen("127.0.0.1", &listeners[r], &port, NULL) == 0);
        (void)snprintf(texts[r], sizeof(texts[r]), "127.0.0.1:%d", port);
        addresses[r] = texts[r];
    }
    for (int r = 0; r < world; r++) {
        children[r] = child_process_fork();
        if (children[r] == 0) {
            struct comm_tcp_options options = {.rank = r,
                                               .world = world,
                                               .addresses = addresses,
                                               .listener = listeners[r],
                                               .key = {7},
                                               .stop = -1,
                                               .neighbours = way->neighbours,
                                               .channels = way->channels,
                                               .encrypts = way->encrypts};
            (void)setenv("FLEET_CUDA_COMM", way->library ? way->library : "nccl", 1);
            comm_run_rank(&options, way->on_device, body, argument, &shared[r]);
            _exit(0);
        }
    }
    for (int r = 0; r < world; r++)
        if (r != victim)
            (void)child_process_wait(children[r]);
    if (victim >= 0)
        (void)child_process_kill(children[victim]);
    for (int r = 0; r < world; r++)
        (void)close(listeners[r]);
    memcpy(out, shared, size);
    (void)munmap(shared, size);
}

/* The thread sanitizer, and a run of all tests, take a part of the cases. */
static inline bool comm_all_cases(void)
{
    return getenv("COMM_CASES") && strcmp(getenv("COMM_CASES"), "all") == 0;
}

static inline bool comm_few_cases(void)
{
    const char *variant = getenv("FLEET_TEST_VARIANT");

    return variant && strcmp(variant, "release") != 0;
}

#endif
