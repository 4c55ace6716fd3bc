/* SPDX-License-Identifier: Apache-2.0 */

/*
 * After a loss: ranks that are left free their communicator and make another one of themselves,
 * over the memory of a device, too, and after a loss inside a graph. And an abort by another thread
 * ends an operation that waits for a rank that stands still. The times are printed: they mean
 * something on a GPU only.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/integration/comm_processes.h"

#define WORLD     3
#define VICTIM    1
#define GOOD_RUNS 2
#define COUNT     4096
#define LIMIT_S   300
#define UNDER_WAY 100 /* ms that an operation runs before it is aborted; any will do */

/* Monotonic milliseconds, shared by the ranks. */
struct times {
    double lost; /* the victim's last moment */
    double noticed[WORLD], freed[WORLD], connected[WORLD], opened[WORLD], summed[WORLD];
    double aborted[WORLD];
    _Atomic int waiting; /* ranks whose operation waits for the victim */
};

static struct times *times;

/* ---- a sum ----------------------------------------------------------------------------------- */

static float *place; /* [COUNT]: the device's memory if there is one */
static float host[COUNT];

static int begin(struct comm *comm, struct comm_request **out, struct fleet_error *err)
{
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = COMM_FP32,
                             .count = COUNT,
                             .queue = comm_queue,
                             .any_order = comm_queue != NULL};

    if (!place)
        place = comm_queue ? comm_queue->vtable->allocate(comm_queue, sizeof(host), err) : host;
    if (!place)
        return -ENOMEM;
    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(comm_options.rank + 1);
    if (comm_queue)
        comm_queue->vtable->copy_in(comm_queue, place, host, sizeof(host));
    call.send = place;
    call.receive = place;
    return comm_start(comm, &call, comm_patience(), out, err);
}

static int end(struct comm_request *request, float expected, struct fleet_error *err)
{
    int rc = comm_wait(request, err);

    if (rc < 0)
        return rc;
    if (comm_queue)
        comm_queue->vtable->copy_out(comm_queue, host, place, sizeof(host));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != expected)
            return fleet_error(err, -EBADMSG, "element %d is %g, not %g", i, (double)host[i],
                               (double)expected);
    return 0;
}

static int sum(struct comm *comm, float expected, struct fleet_error *err)
{
    struct comm_request *request;
    int rc = begin(comm, &request, err);

    return rc < 0 ? rc : end(request, expected, err);
}

static void forget_place(void)
{
    if (comm_queue && place)
        comm_queue->vtable->deallocate(comm_queue, place);
    place = NULL;
}

/* ---- a new world ----------------------------------------------------------------------------- */

/* All ranks but the victim, in their order. */
static int connect_the_others(bool on_device, struct fleet_error *err)
{
    const char *addresses[WORLD];
    struct comm_tcp_options options = comm_options;
    int rc;

    options.world = 0;
    options.addresses = addresses;
    options.key[0]++;
    for (int r = 0; r < WORLD; r++) {
        if (r == comm_options.rank)
            options.rank = options.world;
        if (r != VICTIM)
            addresses[options.world++] = comm_options.addresses[r];
    }
    rc = comm_tcp_new(&options, comm_patience(), &comm_world, err);
    times->connected[comm_options.rank] = fleet_monotonic_ms();
    if (rc == 0 && on_device)
        rc = comm_open_device(comm_world, comm_patience(), err);
    times->opened[comm_options.rank] = fleet_monotonic_ms();
    return rc;
}

/* The old communicator ends, a new one has its first sum. */
static int go_on(const struct comm_way *way, struct fleet_error *err)
{
    int rank = comm_options.rank, rc;

    comm_free(comm_world);
    comm_world = NULL;
    times->freed[rank] = fleet_monotonic_ms();
    rc = connect_the_others(way->on_device, err);
    if (rc == 0)
        rc = sum(comm_world, 1 + 3, err);
    times->summed[rank] = fleet_monotonic_ms();
    forget_place();
    return rc;
}

static int lose_one_and_go_on(struct comm *comm, const void *argument, struct fleet_error *err)
{
    const struct comm_way *way = argument;
    struct fleet_error lost = {.text = ""};
    int rank = comm->rank, rc = 0;

    for (int run = 0; rc == 0; run++) {
        struct comm_request *request;
        rc = begin(comm, &request, &lost);
        if (rc == 0 && run == GOOD_RUNS && rank == VICTIM) {
            times->lost = fleet_monotonic_ms();
            (void)raise(SIGKILL);
        }
        if (rc == 0)
            rc = end(request, 1 + 2 + 3, &lost);
    }
    times->noticed[rank] = fleet_monotonic_ms();
    if (rc != -ECONNRESET)
        return fleet_error(err, -EBADMSG, "not a lost connection: %d %s", rc, lost.text);
    return go_on(way, err);
}

/* ---- the same in a graph --------------------------------------------------------------------- */

static int capture_sum(struct comm *comm, struct backend_graph **out, struct fleet_error *err)
{
    const struct comm_call call = {.operation = COMM_ALL_REDUCE,
                                   .type = COMM_FP32,
                                   .count = COUNT,
                                   .send = place,
                                   .receive = place,
                                   .queue = comm_queue,
                                   .any_order = true};
    int rc = backend_capture_begin(comm_queue, err);

    if (rc == 0)
        rc = comm_device_capture(comm, &call, comm_patience(), err);
    if (rc == 0)
        rc = backend_capture_end(comm_queue, out, err);
    return rc < 0 ? rc : comm_barrier(comm, comm_patience(), err);
}

/* What the sum finds in `place`: the result of the one before. */
static int replay(struct comm *comm, struct backend_graph *graph, struct fleet_error *err)
{
    const struct comm_call end = {.operation = COMM_BARRIER, .queue = comm_queue};
    const struct run_scalars scalars = {.update_1based = 1};
    int rc = backend_replay(comm_queue, graph, &scalars, err);

    return rc < 0 ? rc : comm_run(comm, &end, comm_patience(), err);
}

static int lose_one_in_a_graph(struct comm *comm, const void *argument, struct fleet_error *err)
{
    struct fleet_error lost = {.text = ""};
    struct backend_graph *graph = NULL;
    int rank = comm->rank, rc = sum(comm, 1 + 2 + 3, err);

    if (rc == 0)
        rc = capture_sum(comm, &graph, err);
    for (int run = 0; run < GOOD_RUNS && rc == 0; run++)
        rc = replay(comm, graph, err);
    if (rc < 0)
        return rc;
    comm_queue->vtable->copy_out(comm_queue, host, place, sizeof(host));
    if (host[COUNT - 1] != 6 * 3 * 3)
        return fleet_error(err, -EBADMSG, "two sums of a graph give %g", (double)host[COUNT - 1]);
    if (rank == VICTIM) {
        times->lost = fleet_monotonic_ms();
        (void)raise(SIGKILL);
    }
    rc = replay(comm, graph, &lost);
    times->noticed[rank] = fleet_monotonic_ms();
    if (rc != -ECONNRESET)
        return fleet_error(err, -EBADMSG, "not a lost connection: %d %s", rc, lost.text);
    backend_graph_free(comm_queue, graph); /* NCCL waits for it */
    comm_library->settle();
    return go_on(argument, err);
}

/* ---- an abort -------------------------------------------------------------------------------- */

/* Both ranks' operations have waited for the victim for a while. */
static int wait_under_way(struct comm_request *request, struct fleet_error *err)
{
    double until = fleet_monotonic_ms() + UNDER_WAY;
    bool counted = false;
    int rc = 0;

    while (rc == 0 && times->waiting < WORLD - 1) {
        rc = comm_test(request, err);
        if (!counted && fleet_monotonic_ms() > until) {
            counted = true;
            times->waiting++;
        }
    }
    return rc == 0 ? 0 : fleet_error_wrap(err, "it has not waited, %d", rc);
}

static void *abort_world(void *argument)
{
    struct comm *comm = argument;

    comm_abort(comm);
    return NULL;
}

static int abort_under_way(struct comm *comm, const void *argument, struct fleet_error *err)
{
    struct fleet_error own = {.text = ""};
    struct comm_request *request;
    int rank = comm->rank, rc = 0;
    pthread_t thread;

    (void)argument;
    for (int run = 0; run < GOOD_RUNS && rc == 0; run++)
        rc = sum(comm, 1 + 2 + 3, err);
    if (rc == 0 && rank == VICTIM)
        (void)raise(SIGSTOP);
    if (rc == 0)
        rc = begin(comm, &request, err);
    if (rc == 0)
        rc = wait_under_way(request, err);
    if (rc != 0)
        return rc;
    times->aborted[rank] = fleet_monotonic_ms();
    fleet_assert(pthread_create(&thread, NULL, abort_world, comm) == 0);
    rc = comm_wait(request, &own);
    times->noticed[rank] = fleet_monotonic_ms();
    fleet_assert(pthread_join(thread, NULL) == 0);
    comm_free(comm_world);
    comm_world = NULL;
    times->freed[rank] = fleet_monotonic_ms();
    forget_place();
    /* the other one was first: its connection is gone */
    return rc == -ECANCELED || rc == -ECONNRESET
               ? 0
               : fleet_error(err, -EBADMSG, "not aborted: %d %s", rc, own.text);
}

/* ---- an abort that takes long ---------------------------------------------------------------- */

/* ncclCommAbort() returns only after this rank has freed its communicator and makes the file. */
static int go_on_before_nccl(struct comm *comm, const void *argument, struct fleet_error *err)
{
    char file[64];
    int rc, fd;

    (void)snprintf(file, sizeof(file), "%s/ended-%d", (const char *)argument, comm->rank);
    (void)setenv("FAKE_NCCL_ABORT", file, 1);
    (void)alarm(LIMIT_S); /* this rank would wait for ever */
    rc = abort_under_way(comm, NULL, err);
    fd = open(file, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return fleet_error(err, -errno, "make %s: %s", file, strerror(errno));
    (void)close(fd);
    comm_library->settle();
    return rc;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void run(const struct comm_way *way, comm_body *body, const void *argument)
{
    struct comm_outcome out[COMM_PROCESSES_MAX];

    *times = (struct times){0};
    comm_processes_run(WORLD, way, body, argument, VICTIM, out);
    for (int r = 0; r < WORLD; r++) {
        if (r == VICTIM)
            continue;
        if (!out[r].has_ended || out[r].rc != 0)
            fail_msg("%s, rank %d: %d %s", way->name, r, out[r].rc, out[r].text);
        if (!comm_has_used(way, &out[r]))
            fail_msg("%s, rank %d has not used its library", way->name, r);
    }
    if (comm_on_gpu())
        print_message("NCCL %d, %ld calls of rank 0\n", out[0].nccl_version, out[0].library_calls);
}

/* The last rank's time since `from`. */
static double latest(const double at[WORLD], double from)
{
    double result = 0;

    for (int r = 0; r < WORLD; r++)
        if (r != VICTIM && at[r] - from > result)
            result = at[r] - from;
    return result;
}

static void test_comm__the_ranks_that_are_left_make_a_new_world(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof(comm_ways) / sizeof(comm_ways[0]); w++) {
        if (!comm_has_way(&comm_ways[w]))
            continue;
        run(&comm_ways[w], lose_one_and_go_on, &comm_ways[w]);
        print_message("%s: ms since a rank was killed: error %.0f, freed %.0f, connected %.0f, "
                      "opened %.0f, first collective %.0f\n",
                      comm_ways[w].name, latest(times->noticed, times->lost),
                      latest(times->freed, times->lost), latest(times->connected, times->lost),
                      latest(times->opened, times->lost), latest(times->summed, times->lost));
    }
}

static void test_comm__a_rank_that_is_lost_in_a_graph(void **state)
{
    const struct comm_way *way = COMM_WAY_NCCL;

    (void)state;
    if (!comm_has_way(way))
        skip();
    run(way, lose_one_in_a_graph, way);
    print_message("graph: ms since a rank was killed: error %.0f, freed %.0f, first collective "
                  "%.0f\n",
                  latest(times->noticed, times->lost), latest(times->freed, times->lost),
                  latest(times->summed, times->lost));
}

static void test_comm__an_abort_ends_an_operation_that_waits(void **state)
{
    (void)state;
    for (size_t w = 0; w < sizeof(comm_ways) / sizeof(comm_ways[0]); w++) {
        if (!comm_has_way(&comm_ways[w]))
            continue;
        run(&comm_ways[w], abort_under_way, NULL);
        for (int r = 0; r < WORLD; r++)
            if (r != VICTIM)
                print_message("%s: rank %d: ms since the abort: error %.1f, freed %.1f\n",
                              comm_ways[w].name, r, times->noticed[r] - times->aborted[r],
                              times->freed[r] - times->aborted[r]);
    }
}

static void test_comm__an_abort_does_not_wait_for_nccl(void **state)
{
    const struct comm_way *way = COMM_WAY_NCCL;
    char folder[] = "/tmp/fleet-abort-XXXXXX", command[64];

    (void)state;
    if (comm_on_gpu() || !comm_has_way(way))
        skip();
    assert_non_null(mkdtemp(folder));
    run(way, go_on_before_nccl, folder);
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static int set_up(void **state)
{
    (void)state;
    times = mmap(NULL, sizeof(*times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return times == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__the_ranks_that_are_left_make_a_new_world),
        cmocka_unit_test(test_comm__a_rank_that_is_lost_in_a_graph),
        cmocka_unit_test(test_comm__an_abort_ends_an_operation_that_waits),
        cmocka_unit_test(test_comm__an_abort_does_not_wait_for_nccl),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
