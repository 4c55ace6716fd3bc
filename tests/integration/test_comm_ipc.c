/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Communicators through GPU memory that ranks share (cuda/comm_ipc.h), over the fake CUDA runtime:
 * messages of many pieces, groups, ranks that end, and each call of CUDA that fails once. The
 * conformance suite and the suites of lost ranks have the rest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/integration/comm_faults.h"

#define WORLD  3
#define VICTIM 1
#define LARGE  ((5 << 18) + 3) /* elements: more bytes than all slots of a pair hold, and uneven */
#define SMALL  5

static const struct comm_way *const way = &comm_ways[5];
static char fault[128];

/* Element i of message `number` of rank `from`. */
static float value_of(int from, int number, int64_t i)
{
    return (float)(1000 * from + 100 * number + i % 97);
}

/* Two messages to the next rank, a large and a small one, and two from the last one. */
static int pass_on(struct comm *comm, int64_t large, float *memory, float *copy,
                   struct fleet_error *err)
{
    const struct backend_vtable *v = comm_queue->vtable;
    int64_t counts[2] = {large, SMALL}, whole = large + SMALL;
    int next = (comm->rank + 1) % comm->world, last = (comm->rank + comm->world - 1) % comm->world;
    struct comm_message messages[4];
    const struct comm_call call = {
        .operation = COMM_MESSAGES, .messages = messages, .message_count = 4, .queue = comm_queue};
    int rc;

    for (int m = 0; m < 2; m++) {
        int64_t first = m == 0 ? 0 : large;
        for (int64_t i = 0; i < counts[m]; i++)
            copy[first + i] = value_of(comm->rank, m, i);
        messages[m] = (struct comm_message){
            .peer = next, .data = memory + first, .count = counts[m], .type = COMM_FP32};
        messages[2 + m] = (struct comm_message){.peer = last,
                                                .is_receive = true,
                                                .data = memory + whole + first,
                                                .count = counts[m],
                                                .type = COMM_FP32};
    }
    v->copy_in(comm_queue, memory, copy, (size_t)whole * sizeof(*copy));
    rc = comm_run(comm, &call, comm_patience(), err);
    if (rc < 0)
        return rc;
    v->copy_out(comm_queue, copy, memory + whole, (size_t)whole * sizeof(*copy));
    for (int m = 0; m < 2; m++)
        for (int64_t i = 0; i < counts[m]; i++)
            if (copy[(m == 0 ? 0 : large) + i] != value_of(last, m, i))
                return fleet_error(err, -EBADMSG, "element %lld of message %d is %g", (long long)i,
                                   m, (double)copy[(m == 0 ? 0 : large) + i]);
    return 0;
}

static int pass_messages(struct comm *comm, int64_t large, struct fleet_error *err)
{
    size_t bytes = (size_t)(large + SMALL) * sizeof(float);
    float *memory = comm_queue->vtable->allocate(comm_queue, 2 * bytes, err);
    float *copy = malloc(bytes);
    int rc = memory && copy ? 0 : -ENOMEM;

    for (int round = 0; round < 2 && rc == 0; round++)
        rc = pass_on(comm, large, memory, copy, err);
    if (memory)
        comm_queue->vtable->deallocate(comm_queue, memory);
    free(copy);
    return rc;
}

/* In a group that has another order, then in the world again. */
static int use_groups(struct comm *comm, int64_t large, struct fleet_error *err)
{
    const int ranks[] = {2, 0};
    struct comm *group = NULL;
    int rc = pass_messages(comm, large, err);

    if (rc == 0)
        rc = comm_group(comm, ranks, 2, comm_patience(), &group, err);
    if (rc == 0 && comm->rank != 1)
        rc = comm_has_device(group) ? pass_messages(group, SMALL, err) : -EBADMSG;
    if (group)
        comm_free(group);
    return rc < 0 ? rc : pass_messages(comm, SMALL, err);
}

static int large_body(struct comm *comm, const void *argument, struct fleet_error *err)
{
    (void)argument;
    return use_groups(comm, LARGE, err);
}

static void test_comm_ipc__messages_of_many_pieces_and_groups(void **state)
{
    struct comm_outcome out[COMM_PROCESSES_MAX];

    (void)state;
    comm_processes_run(WORLD, way, large_body, NULL, -1, out);
    for (int r = 0; r < WORLD; r++)
        if (!out[r].has_ended || out[r].rc != 0 || !comm_has_used(way, &out[r]))
            fail_msg("rank %d: %d %s, %ld exchanges", r, out[r].rc, out[r].text,
                     out[r].library_calls);
}

/* ---- failures -------------------------------------------------------------------------------- */

static int fault_body(struct comm *comm, const void *argument, struct fleet_error *err)
{
    int rc;

    (void)argument;
    if (comm->rank == VICTIM)
        (void)setenv("FAKE_CUDA_FAIL", fault, 1);
    rc = comm_open_device(comm, comm_patience(), err);
    return rc < 0 ? rc : use_groups(comm, SMALL, err);
}

/* A call of CUDA that fails may end its process, as a lost device does. */
static void expect_end(const struct comm_outcome *out, int rank, long n)
{
    if (rank == VICTIM ? out->has_ended && out->rc != 0 && !out->text[0]
                       : !out->has_ended || (out->rc != 0 && !out->text[0]))
        fail_msg("call %ld: rank %d %s with %d \"%s\"", n, rank,
                 out->has_ended ? "ended" : "did not end", out->rc, out->text);
}

static void test_comm_ipc__each_call_that_fails_is_one_clear_error(void **state)
{
    const struct comm_way host = comm_host_way("ipc");
    struct comm_outcome out[COMM_PROCESSES_MAX];
    long n = 1, failures = 0;

    (void)state;
    for (;; n++) {
        (void)snprintf(fault, sizeof(fault), "%ld:999:%s", n, comm_fault_file);
        comm_fault_forget();
        comm_processes_run(WORLD, &host, fault_body, NULL, -1, out);
        if (!comm_fault_is_reached())
            break;
        for (int r = 0; r < WORLD; r++)
            expect_end(&out[r], r, n);
        failures += !out[VICTIM].has_ended || out[VICTIM].rc != 0;
    }
    for (int r = 0; r < WORLD; r++)
        if (out[r].rc != 0)
            fail_msg("without a failure rank %d ends with %d %s", r, out[r].rc, out[r].text);
    assert_true(n > 50 && failures > n / 2); /* what only frees may fail without consequences */
}

/* ---- settings -------------------------------------------------------------------------------- */

static int unknown_body(struct comm *comm, const void *argument, struct fleet_error *err)
{
    (void)argument;
    (void)setenv("FLEET_CUDA_COMM", "tcp", 1);
    return comm_open_device(comm, comm_patience(), err);
}

static void test_comm_ipc__another_name_is_refused(void **state)
{
    const struct comm_way host = comm_host_way("ipc");
    struct comm_outcome out[COMM_PROCESSES_MAX];

    (void)state;
    comm_processes_run(2, &host, unknown_body, NULL, -1, out);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(out[r].rc, -EINVAL);
        assert_string_equal(out[r].text, "FLEET_CUDA_COMM: 'tcp' is neither nccl nor ipc");
    }
}

int main(void)
{
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(test_comm_ipc__messages_of_many_pieces_and_groups),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_ipc__messages_of_many_pieces_and_groups),
        cmocka_unit_test(test_comm_ipc__each_call_that_fails_is_one_clear_error),
        cmocka_unit_test(test_comm_ipc__another_name_is_refused),
    };

    return comm_faults_run(way, tests, on_gpu);
}
