/* SPDX-License-Identifier: Apache-2.0 */

/* All ranks run each collective at once, in groups of one size: as in a step of a job. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "agent/runtime/calibrate/calibrate_internal.h"
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/executor/queue.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/plan/runtime_traffic.h"

#define LARGE       262144 /* elements of all ranks together: 1 MiB */
#define BATCHES     4
#define BATCH_MS    12.0
#define DEADLINE_MS 60000.0
#define TENSORS     16     /* that calls go through: in a step each has memory of its own */
#define WORK        131072 /* elements that are computed with before each call: 512 KiB */
#define WORK_TIMES  12

enum measured {
    SUM,
    GATHER,
    MEASURED,
};

enum size {
    SMALL,  /* nearly no data; a sum in one round */
    MEDIUM, /* a sum in two rounds */
    WHOLE,  /* much data; a sum in two rounds, too */
    SIZES,
};

/* Seconds of a call, and bytes that the rank sends in it. */
struct timed {
    double seconds, bytes;
};

struct measures {
    struct timed by_size[MEASURED][CALIBRATE_RANKS_MAX + 1][SIZES]; /* by ranks of the group */
    struct timed send[SIZES];
};

struct world {
    const struct calibrate_request *request;
    int ranks;
    enum comm_neighbours neighbours;
    int listeners[CALIBRATE_RANKS_MAX];
    char addresses[CALIBRATE_RANKS_MAX][32];
    struct measures *measures; /* [ranks] shared */
};

static double share_of(const struct world *w)
{
    return fmax(1, w->ranks / (double)w->request->processors);
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;

    fleet_assert(clock_gettime(clock, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct memory {
    float *data; /* [TENSORS × LARGE] */
    float *part; /* [LARGE] */
    float *work; /* [WORK] */
    struct queue *queue;
};

/* A collective over `count` elements of `data`, or a message of them to the neighbour and one from
 * it. */
struct call {
    struct comm *comm;
    enum measured what;
    int64_t count;
    float *data;
    const struct memory *memory;
    double deadline_ms;
};

static int send_once(const struct call *call, struct fleet_error *err)
{
    int peer = call->comm->rank ^ 1;
    struct comm_message messages[2] = {
        {.peer = peer, .data = call->data, .count = call->count, .type = COMM_FP32},
        {.peer = peer,
         .is_receive = true,
         .data = call->memory->part,
         .count = call->count,
         .type = COMM_FP32}};

    return comm_messages(call->comm, messages, 2, call->deadline_ms, err);
}

/* An item of the queue. */
static int call_once(void *context, struct fleet_error *err)
{
    const struct call *call = context;
    const struct memory *memory = call->memory;
    int64_t part = call->count / call->comm->world;

    switch (call->what) {
    case SUM:
        return comm_all_reduce(call->comm, call->data, call->count, COMM_FP32, COMM_SUM,
                               call->deadline_ms, err);
    case GATHER:
        return comm_all_gather(call->comm, memory->part, (size_t)part * sizeof(float), call->data,
                               call->deadline_ms, err);
    default:
        return send_once(call, err);
    }
}

/* A call follows on computing, so that ranks take turns as in a step. The rank that runs meanwhile
 * empties the caches: what that costs is measured, too. */
static void compute(const struct memory *memory)
{
    volatile float *work = memory->work;

    for (int i = 0; i < WORK_TIMES; i++)
        for (int j = 0; j < WORK; j += 4)
            work[j] = work[j] + 1;
}

/* The calls run in a second queue, as those of the executor. */
static int repeat(struct comm *comm, enum measured what, int64_t count, int times,
                  const struct memory *memory, struct fleet_error *err)
{
    struct call call = {.comm = comm,
                        .what = what,
                        .count = count,
                        .memory = memory,
                        .deadline_ms = fleet_monotonic_ms() + DEADLINE_MS};
    int rc = 0;

    for (int i = 0; i < times && rc == 0; i++) {
        compute(memory);
        call.data = memory->data + (size_t)(i % TENSORS) * LARGE;
        rc = queue_wait(memory->queue, queue_put(memory->queue, call_once, &call), err);
    }
    return rc;
}

/* How many calls a batch has. Rank 0 of the world decides. */
static int choose_times(struct comm *world, struct comm *comm, enum measured what, int64_t count,
                        const struct memory *memory, int *out_times, struct fleet_error *err)
{
    double started_ms = fleet_monotonic_ms();
    int times = 3, rc = repeat(comm, what, count, times, memory, err);

    if (rc < 0)
        return rc;
    times = (int)fmin(1000, 2 + BATCH_MS * times / (fleet_monotonic_ms() - started_ms + 1e-3));
    *out_times = times;
    return comm_broadcast(world, out_times, sizeof(*out_times), 0, started_ms + DEADLINE_MS, err);
}

/* If ranks have a processor each: the least mean of some batches of calls. If they take turns: the
 * processor time of all calls, which other programs on the machine do not change. */
static int time_calls(const struct world *w, struct comm *world, struct comm *comm,
                      enum measured what, int64_t count, const struct memory *memory,
                      struct timed *out, struct fleet_error *err)
{
    double least = INFINITY, sum = 0, alone = INFINITY, alone_sum = 0,
           deadline_ms = fleet_monotonic_ms() + DEADLINE_MS;
    clockid_t clock = share_of(w) > 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    uint64_t sent;
    int times, rc = choose_times(world, comm, what, count, memory, &times, err);

    if (rc < 0)
        return rc;
    sent = comm->bytes_sent;
    for (int batch = 0; batch < BATCHES; batch++) {
        double started, took;

        if ((rc = comm_barrier(world, deadline_ms, err)) < 0)
            return rc;
        started = seconds_of(clock);
        for (int i = 0; i < times; i++)
            compute(memory);
        took = seconds_of(clock) - started;
        alone = fmin(alone, took / times);
        alone_sum += took / times;
        if ((rc = comm_barrier(world, deadline_ms, err)) < 0)
            return rc;
        started = seconds_of(clock);
        if ((rc = repeat(comm, what, count, times, memory, err)) < 0)
            return rc;
        took = seconds_of(clock) - started;
        least = fmin(least, took / times);
        sum += took / times;
    }
    *out = (struct timed){
        fmax(1e-7, clock == CLOCK_MONOTONIC ? least - alone : (sum - alone_sum) / BATCHES),
        (double)(comm->bytes_sent - sent) / (BATCHES * (double)times)};
    return 0;
}

/* The group of `size` neighbouring ranks that has this one; all ranks make all groups. */
static int make_group(struct comm *world, int size, struct comm **out, struct fleet_error *err)
{
    int rc = 0;

    *out = NULL;
    for (int first = 0; first < world->world && rc == 0; first += size) {
        int members[CALIBRATE_RANKS_MAX];
        struct comm *group;

        for (int i = 0; i < size; i++)
            members[i] = first + i;
        rc = comm_group(world, members, size, fleet_monotonic_ms() + DEADLINE_MS, &group, err);
        if (group)
            *out = group;
    }
    return rc;
}

/* A sum of more than a chunk would take more rounds. */
static int64_t elements_of(enum size size, int ranks)
{
    int64_t chunk = RUNTIME_REDUCE_PART / (int64_t)sizeof(float) * ranks;

    switch (size) {
    case SMALL:
        return 64;
    case MEDIUM:
        return 2 * RUNTIME_REDUCE_WHOLE / (int64_t)sizeof(float);
    default:
        return chunk < LARGE ? chunk : LARGE;
    }
}

static int measure_groups(struct world *w, struct comm *world, int size,
                          const struct memory *memory, struct fleet_error *err)
{
    struct measures *out = &w->measures[world->rank];
    struct comm *group = world;
    int rc = 0;

    if (size < w->ranks)
        rc = make_group(world, size, &group, err);
    if (rc < 0)
        return rc;
    for (int what = 0; what < MEASURED && rc == 0; what++)
        for (int i = 0; i < SIZES && rc == 0; i++)
            rc = time_calls(w, world, group, (enum measured)what, elements_of((enum size)i, size),
                            memory, &out->by_size[what][size][i], err);
    for (int i = 0; i < SIZES && rc == 0 && size == 2; i++)
        rc = time_calls(w, world, group, MEASURED, elements_of((enum size)i, size) / 2, memory,
                        &out->send[i], err);
    if (group != world)
        comm_free(group);
    return rc;
}

/* A process: rank `rank`. */
static int run_rank(void *context, int rank, struct fleet_error *err)
{
    struct world *w = context;
    const char *addresses[CALIBRATE_RANKS_MAX];
    struct comm_tcp_options options = {.rank = rank,
                                       .world = w->ranks,
                                       .addresses = addresses,
                                       .listener = w->listeners[rank],
                                       .stop = -1,
                                       .neighbours = w->neighbours};
    struct memory memory = {.data = calloc((size_t)TENSORS * LARGE, sizeof(float)),
                            .part = calloc(LARGE, sizeof(float)),
                            .work = calloc(WORK, sizeof(float))};
    struct comm *world = NULL;
    int rc;

    fleet_assert(memory.data && memory.part && memory.work);
    for (int i = 0; i < w->ranks; i++)
        addresses[i] = w->addresses[i];
    rc = queue_new(1, &memory.queue, err);
    if (rc == 0)
        rc = comm_tcp_new(&options, fleet_monotonic_ms() + DEADLINE_MS, &world, err);
    for (int size = 2; size <= w->ranks && rc == 0; size++)
        if (w->ranks % size == 0)
            rc = measure_groups(w, world, size, &memory, err);
    comm_free(world);
    queue_free(memory.queue);
    free(memory.data);
    free(memory.part);
    free(memory.work);
    return rc;
}

/* ---- rates ----------------------------------------------------------------------------------- */

/* The mean of all ranks; `at` is the place of the measures of all sizes. */
static void mean_of(const struct world *w, size_t at, struct timed mean[SIZES])
{
    memset(mean, 0, SIZES * sizeof(*mean));
    for (int rank = 0; rank < w->ranks; rank++) {
        const struct timed *timed = (const struct timed *)((const char *)&w->measures[rank] + at);
        for (int i = 0; i < SIZES; i++) {
            mean[i].seconds += timed[i].seconds / w->ranks;
            mean[i].bytes += timed[i].bytes / w->ranks;
        }
    }
}

/* Bytes a second between two sizes. */
static double rate_between(const struct timed *less, const struct timed *more)
{
    return (more->bytes - less->bytes) / fmax(more->seconds - less->seconds, 1e-2 * more->seconds);
}

static void rate_of(const struct world *w, size_t at, double *out_seconds, double *out_bytes)
{
    struct timed mean[SIZES];

    mean_of(w, at, mean);
    *out_seconds = mean[SMALL].seconds;
    *out_bytes = rate_between(&mean[SMALL], &mean[WHOLE]);
}

/* The medium and the large size have as many rounds; so the small one shows what a round costs. */
static void rate_of_sum(const struct world *w, size_t at, struct links_group *out)
{
    struct timed mean[SIZES];

    mean_of(w, at, mean);
    out->sum_seconds = mean[SMALL].seconds;
    out->sum_bytes = rate_between(&mean[MEDIUM], &mean[WHOLE]);
    out->sum_round_seconds =
        fmax(0, mean[MEDIUM].seconds - mean[SMALL].seconds - mean[MEDIUM].bytes / out->sum_bytes);
}

static void fill(const struct world *w, struct links_link *out)
{
    *out = (struct links_link){.latency = 0};
    for (int size = 2; size <= w->ranks; size++) {
        struct links_group *group = &out->groups.items[out->groups.count];

        if (w->ranks % size != 0 || out->groups.count == LINKS_GROUPS_MAX)
            continue;
        group->ranks = size;
        rate_of_sum(w, offsetof(struct measures, by_size[SUM][size]), group);
        rate_of(w, offsetof(struct measures, by_size[GATHER][size]), &group->gather_seconds,
                &group->gather_bytes);
        out->groups.count++;
    }
    if (w->ranks % 2 == 0) {
        rate_of(w, offsetof(struct measures, send), &out->latency, &out->bytes);
    } else {
        out->latency = out->groups.items[0].gather_seconds;
        out->bytes = out->groups.items[0].gather_bytes;
    }
}

static int measure_world(struct world *w, struct links_link *out, struct fleet_error *err)
{
    int rc = 0, opened = 0;

    w->measures = calibrate_shared((size_t)w->ranks * sizeof(*w->measures));
    for (; opened < w->ranks && rc == 0; opened++) {
        int port;
        rc = comm_tcp_listen("127.0.0.1", &w->listeners[opened], &port, err);
        if (rc < 0)
            break;
        (void)snprintf(w->addresses[opened], sizeof(w->addresses[0]), "127.0.0.1:%d", port);
    }
    if (rc == 0)
        rc = calibrate_processes(w->ranks, run_rank, w, err);
    for (int i = 0; i < opened; i++)
        (void)close(w->listeners[i]);
    if (rc == 0)
        fill(w, out);
    (void)munmap(w->measures, (size_t)w->ranks * sizeof(*w->measures));
    return rc < 0 ? fleet_error_wrap(err, "measure links") : 0;
}

int calibrate_links(const struct calibrate_request *request, struct calibrate_result *out,
                    struct fleet_error *err)
{
    struct world world = {.request = request, .ranks = request->ranks > 1 ? request->ranks : 2};
    int rc;

    world.neighbours = COMM_NEIGHBOURS_DIRECT;
    if ((rc = measure_world(&world, &out->links.inside, err)) < 0)
        return rc;
    world.neighbours = COMM_NEIGHBOURS_TCP;
    return measure_world(&world, &out->links.between, err);
}
