/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Communicators over the fake NCCL (tests/nccl_fake) whose calls fail or never return: the n-th
 * call of one rank, for all n, also while its operations become part of a graph. No other rank
 * waits for ever, no result is wrong, and nothing is left behind. The conformance suite and the
 * suite of lost ranks have the rest. On a GPU no call fails (comm_gpu.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/integration/comm_faults.h"

#define WORLD    2
#define VICTIM   1
#define COUNT    37
#define LEAVES   3
#define HUNG_MS  400 /* a deadline that passes: any will do */
#define SYSTEM   2   /* ncclSystemError: of a connection */
#define INTERNAL 3   /* ncclInternalError */

static const struct comm_way *const way = COMM_WAY_NCCL;

struct fault {
    const char *variable;
    char value[128];
    double deadline_ms; /* of each operation; 0: patience */
};

static double deadline_of(const struct fault *fault)
{
    return fault->deadline_ms > 0 ? fleet_monotonic_ms() + fault->deadline_ms : comm_patience();
}

/* A sum in the order of ranks, one in NCCL's, and one of the tree, of `memory`. */
static int run_sums(struct comm *comm, const struct fault *fault, float *memory, float *host,
                    struct fleet_error *err)
{
    const struct backend_vtable *v = comm_queue->vtable;
    float *slots[] = {memory, memory + COUNT};
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = COMM_FP32,
                             .count = COUNT,
                             .send = memory,
                             .receive = memory,
                             .leaves = LEAVES,
                             .slots = slots,
                             .queue = comm_queue};
    int rc = 0;

    for (int i = 0; i < 2 * COUNT; i++)
        host[i] = (float)(comm->rank + 1);
    v->copy_in(comm_queue, memory, host, 2 * COUNT * sizeof(*host));
    rc = comm_run(comm, &call, deadline_of(fault), err); /* 1 + 2 = 3 */
    call.any_order = true;
    if (rc == 0)
        rc = comm_run(comm, &call, deadline_of(fault), err); /* 3 + 3 = 6 */
    call.operation = COMM_TREE_SUM;
    if (rc == 0)
        rc =
            comm_run(comm, &call, deadline_of(fault), err); /* leaves 0 and 1 of rank 0: one node */
    if (rc < 0)
        return rc;
    v->copy_out(comm_queue, host, memory, COUNT * sizeof(*host));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != 12)
            return fleet_error(err, -EBADMSG, "element %d is %g", i, (double)host[i]);
    return 0;
}

/* The sums of run_sums() in a graph, which runs twice. */
static int capture_sums(struct comm *comm, const struct fault *fault, float *memory,
                        struct backend_graph **out, struct fleet_error *err)
{
    float *slots[] = {memory, memory + COUNT};
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = COMM_FP32,
                             .count = COUNT,
                             .send = memory,
                             .receive = memory,
                             .leaves = LEAVES,
                             .slots = slots,
                             .queue = comm_queue};
    int rc = backend_capture_begin(comm_queue, err);

    if (rc < 0)
        return rc;
    rc = comm_device_capture(comm, &call, deadline_of(fault), err);
    call.any_order = true;
    if (rc == 0)
        rc = comm_device_capture(comm, &call, deadline_of(fault), err);
    call.operation = COMM_TREE_SUM;
    if (rc == 0)
        rc = comm_device_capture(comm, &call, deadline_of(fault), err);
    if (rc == 0)
        return backend_capture_end(comm_queue, out, err);
    (void)backend_capture_end(comm_queue, NULL, NULL);
    return rc;
}

static int replay_sums(struct comm *comm, const struct fault *fault, struct backend_graph *graph,
                       float *memory, float *host, struct fleet_error *err)
{
    const struct comm_call end = {.operation = COMM_BARRIER, .queue = comm_queue};
    const struct backend_vtable *v = comm_queue->vtable;
    const struct run_scalars scalars = {.update_1based = 1};
    int rc;

    for (int i = 0; i < 2 * COUNT; i++)
        host[i] = (float)(comm->rank + 1);
    v->copy_in(comm_queue, memory, host, 2 * COUNT * sizeof(*host));
    rc = backend_replay(comm_queue, graph, &scalars, err);
    if (rc == 0)
        rc = comm_run(comm, &end, deadline_of(fault), err);
    if (rc < 0)
        return rc;
    v->copy_out(comm_queue, host, memory, COUNT * sizeof(*host));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != 12)
            return fleet_error(err, -EBADMSG, "element %d of a graph is %g", i, (double)host[i]);
    return 0;
}

static int run_graph(struct comm *comm, const struct fault *fault, float *memory, float *host,
                     struct fleet_error *err)
{
    struct backend_graph *graph = NULL;
    uint8_t is_ready;
    int rc = capture_sums(comm, fault, memory, &graph, err);

    is_ready = rc == 0;
    if (rc == 0)
        rc = comm_all_reduce(comm, &is_ready, 1, COMM_UINT8, COMM_MIN, deadline_of(fault), err);
    for (int run = 0; run < 2 && rc == 0; run++)
        rc = replay_sums(comm, fault, graph, memory, host, err);
    backend_graph_free(comm_queue, graph); /* before the communicator */
    return rc;
}

static int open_group(struct comm *comm, const struct fault *fault, struct fleet_error *err)
{
    const int both[] = {1, 0};
    struct comm *group = NULL;
    int rc = comm_group(comm, both, WORLD, deadline_of(fault), &group, err);

    if (rc == 0 && (group->rank == comm->rank || !comm_has_device(group)))
        rc = fleet_error(err, -EBADMSG, "the group is not the one that was asked for");
    if (rc == 0)
        comm_free(group);
    return rc;
}

static int run_with_fault(struct comm *comm, const void *argument, struct fleet_error *err)
{
    const struct fault *fault = argument;
    float host[2 * COUNT], *memory;
    int rc;

    if (comm->rank == VICTIM && fault->variable)
        (void)setenv(fault->variable, fault->value, 1);
    if ((rc = comm_open_device(comm, deadline_of(fault), err)) < 0)
        return rc;
    memory = comm_queue->vtable->allocate(comm_queue, sizeof(host), err);
    if (!memory)
        return -ENOMEM;
    rc = run_sums(comm, fault, memory, host, err);
    if (rc == 0)
        rc = run_graph(comm, fault, memory, host, err);
    if (rc == 0)
        rc = open_group(comm, fault, err);
    comm_queue->vtable->deallocate(comm_queue, memory);
    return rc;
}

static void run(const struct fault *fault, int victim, struct comm_outcome out[COMM_PROCESSES_MAX])
{
    const struct comm_way host = comm_host_way(NULL);

    (void)setenv("FAKE_NCCL_FOLDER", comm_faults_folder, 1);
    comm_processes_run(WORLD, &host, run_with_fault, fault, victim, out);
}

static void test_comm_nccl__sums_and_groups(void **state)
{
    struct comm_outcome out[COMM_PROCESSES_MAX];
    const struct fault none = {0};

    (void)state;
    run(&none, -1, out);
    for (int r = 0; r < WORLD; r++)
        if (!out[r].has_ended || out[r].rc != 0 || !out[r].library_calls)
            fail_msg("rank %d, %ld calls: %d %s", r, out[r].library_calls, out[r].rc, out[r].text);
}

static bool is_error_of_a_fault(int rc)
{
    return rc == -ECONNRESET || rc == -EIO || rc == -ETIMEDOUT || rc == -ECANCELED ||
           rc == -ECONNABORTED;
}

static void expect_end(const struct comm_outcome *out, int rank, long n)
{
    if (!out->has_ended || (out->rc != 0 && (!is_error_of_a_fault(out->rc) || !out->text[0])))
        fail_msg("call %ld: rank %d %s with %d \"%s\"", n, rank,
                 out->has_ended ? "ended" : "did not end", out->rc, out->text);
}

/* Returns the number of calls. */
static long fail_each(int code)
{
    struct comm_outcome out[COMM_PROCESSES_MAX];
    long failures = 0, n = 1;

    for (;; n++) {
        struct fault fault = {.variable = "FAKE_NCCL_FAIL"};
        (void)snprintf(fault.value, sizeof(fault.value), "%ld:%d:%s", n, code, comm_fault_file);
        comm_fault_forget();
        run(&fault, -1, out);
        if (!comm_fault_is_reached())
            break;
        for (int r = 0; r < WORLD; r++)
            expect_end(&out[r], r, n);
        failures += out[VICTIM].rc != 0;
    }
    assert_int_equal(out[VICTIM].rc, 0);
    assert_true(failures > n / 2); /* aborting may fail without consequences */
    return n;
}

static void test_comm_nccl__each_call_that_fails_is_one_clear_error(void **state)
{
    (void)state;
    assert_true(fail_each(SYSTEM) > 20);
    (void)fail_each(INTERNAL);
}

/* An agent ends a trainer that does not leave its generation. */
static void test_comm_nccl__nobody_waits_for_a_rank_whose_call_hangs(void **state)
{
    struct comm_outcome out[COMM_PROCESSES_MAX];

    (void)state;
    for (long n = 1;; n++) {
        struct fault fault = {.variable = "FAKE_NCCL_HANG", .deadline_ms = HUNG_MS};
        (void)snprintf(fault.value, sizeof(fault.value), "%ld:%s", n, comm_fault_file);
        comm_fault_forget();
        run(&fault, VICTIM, out);
        expect_end(&out[0], 0, n);
        if (!comm_fault_is_reached())
            break;
    }
}

int main(void)
{
    const struct CMUnitTest on_gpu[] = {cmocka_unit_test(test_comm_nccl__sums_and_groups)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_nccl__sums_and_groups),
        cmocka_unit_test(test_comm_nccl__each_call_that_fails_is_one_clear_error),
        cmocka_unit_test(test_comm_nccl__nobody_waits_for_a_rank_whose_call_hangs),
    };

    return comm_faults_run(way, tests, on_gpu);
}
