/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A rank is lost in the middle of an operation: killed, stopped or cut off, over every transport,
 * in every operation. Each survivor gets an error, and no operation that it completed before has a
 * wrong sum. The lost rank starts its operation, so that a part of its data is on its way, and is
 * gone; survivors repeat the operation until they notice, because some of them may have all that
 * they need of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/integration/comm_processes.h"

#define WORLD      3
#define GOOD_RUNS  2
#define STOPPED_MS 300 /* the survivors' deadline for a stopped rank: any will do */

enum loss {
    LOSS_KILLED,
    LOSS_STOPPED,
    LOSS_CUT_OFF,
};

struct loss_case {
    enum comm_operation operation;
    enum loss loss;
    int victim;
    int64_t count; /* of fp32 */
};

static const char *const loss_names[] = {"killed", "stopped", "cut off"};

/* What the lists of an exchange and of a sum in a tree point to, while it runs. */
static const void *sends[WORLD];
static void *receives[WORLD];
static size_t sizes[WORLD];
static float *slots[1];
static void *workspace;

static float *device_send, *device_receive; /* if there is a device */

static int make_device_buffers(const float *send, size_t bytes, struct fleet_error *err)
{
    if (!comm_queue)
        return 0;
    device_send = comm_queue->vtable->allocate(comm_queue, bytes, err);
    device_receive = comm_queue->vtable->allocate(comm_queue, bytes, err);
    if (!device_send || !device_receive)
        return -ENOMEM;
    comm_queue->vtable->copy_in(comm_queue, device_send, send, bytes);
    return 0;
}

static void lose(struct comm *comm, enum loss loss)
{
    if (loss == LOSS_CUT_OFF)
        comm_abort(comm);
    else
        (void)raise(loss == LOSS_KILLED ? SIGKILL : SIGSTOP);
}

static int start(struct comm *comm, const struct loss_case *x, float *send, float *receive,
                 double deadline_ms, struct comm_request **out, struct fleet_error *err)
{
    int next = (comm->rank + 1) % WORLD, last = (comm->rank + WORLD - 1) % WORLD;
    static struct comm_message messages[2];
    struct comm_call call = {.operation = x->operation,
                             .type = COMM_FP32,
                             .count = x->count,
                             .send = send,
                             .receive = receive,
                             .messages = messages,
                             .message_count = 2};

    if (comm_queue) {
        call.queue = comm_queue;
        send = device_send;
        receive = device_receive;
        call.send = send;
        call.receive = receive;
    }
    for (int r = 0; r < WORLD; r++) {
        sends[r] = send;
        receives[r] = receive + r * x->count;
        sizes[r] = (size_t)x->count * sizeof(float);
    }
    call.sends = sends;
    call.receives = receives;
    call.send_bytes = call.receive_bytes = sizes;
    if (x->operation == COMM_TREE_SUM) { /* a leaf of each rank, and the sum in its place */
        memcpy(receive, send, sizes[0]);
        slots[0] = receive;
        call.slots = slots;
        call.leaves = WORLD;
        call.workspace = workspace;
    }
    messages[0] = (struct comm_message){next, false, send, x->count, COMM_FP32};
    messages[1] = (struct comm_message){last, true, receive, x->count, COMM_FP32};
    return comm_start(comm, &call, deadline_ms, out, err);
}

/* Every rank sends its number plus one everywhere, so each element of a sum is 6. */
static int check_sum(const struct loss_case *x, const float *receive, struct fleet_error *err)
{
    if (x->operation != COMM_ALL_REDUCE && x->operation != COMM_REDUCE_SCATTER &&
        x->operation != COMM_TREE_SUM)
        return 0;
    for (int64_t i = 0; i < x->count; i++)
        if (receive[i] != 6)
            return fleet_error(err, -EBADMSG, "element %lld of a sum is %g", (long long)i,
                               (double)receive[i]);
    return 0;
}

static int lose_one(struct comm *comm, const void *argument, struct fleet_error *err)
{
    const struct loss_case *x = argument;
    size_t bytes = (size_t)x->count * WORLD * sizeof(float);
    float *send = malloc(bytes), *receive = calloc(1, bytes);
    int rc = 0;

    workspace = malloc(tree_sum_workspace(WORLD, WORLD, x->count));
    fleet_assert(send && receive && workspace);
    for (int64_t i = 0; i < x->count * WORLD; i++)
        send[i] = (float)(comm->rank + 1);
    rc = make_device_buffers(send, bytes, err);
    for (int run = 0; rc == 0; run++) {
        double deadline_ms = x->loss == LOSS_STOPPED && run >= GOOD_RUNS
                                 ? fleet_monotonic_ms() + STOPPED_MS
                                 : comm_patience();
        struct comm_request *request;
        rc = start(comm, x, send, receive, deadline_ms, &request, err);
        if (rc == 0 && run == GOOD_RUNS && comm->rank == x->victim)
            lose(comm, x->loss);
        if (rc == 0)
            rc = comm_wait(request, err);
        if (rc == 0 && comm_queue)
            comm_queue->vtable->copy_out(comm_queue, receive, device_receive, bytes);
        if (rc == 0)
            rc = check_sum(x, receive, err);
    }
    if (comm_queue) {
        comm_queue->vtable->deallocate(comm_queue, device_send);
        comm_queue->vtable->deallocate(comm_queue, device_receive);
    }
    free(send);
    free(receive);
    free(workspace);
    return rc;
}

static void check_survivor(const struct loss_case *x, const char *way, int rank,
                           const struct comm_outcome *out)
{
    bool is_expected = out->rc == -ECONNRESET || (out->rc == -ETIMEDOUT && x->loss == LOSS_STOPPED);

    if (!out->has_ended || !is_expected || out->failed_rank < 0 || !strstr(out->text, "rank "))
        fail_msg("%s, rank %d %s in %s of %lld: rank %d has %d \"%s\", failed rank %d", way,
                 x->victim, loss_names[x->loss], comm_operation_name(x->operation),
                 (long long)x->count, rank, out->rc, out->text, out->failed_rank);
}

/* Not all of them where a rank starts slowly. */
static bool is_chosen(const struct comm_way *way, enum loss loss, size_t w, size_t o, size_t c)
{
    if (!comm_has_way(way))
        return false;
    if (comm_on_gpu())
        return c == o % 2 && (loss == LOSS_KILLED || o % 3 == 0);
    return (!comm_few_cases() && !way->encrypts) || (o + c + w) % 3 == 0;
}

static void lose_in_every_operation(enum loss loss)
{
    static const enum comm_operation operations[] = {
        COMM_ALL_REDUCE, COMM_REDUCE,   COMM_REDUCE_SCATTER, COMM_ALL_GATHER,
        COMM_BROADCAST,  COMM_SCATTER,  COMM_ALL_TO_ALL,     COMM_MESSAGES,
        COMM_BARRIER,    COMM_EXCHANGE, COMM_TREE_SUM};
    static const int64_t counts[] = {16, 300000}; /* one round; many, and direct ones */

    for (size_t w = 0; w < sizeof(comm_ways) / sizeof(comm_ways[0]); w++)
        for (size_t o = 0; o < sizeof(operations) / sizeof(operations[0]); o++)
            for (size_t c = 0; c < 2; c++) {
                int victim = (int)((o + c + w) % WORLD); /* the root, too */
                struct loss_case x = {operations[o], loss, victim, counts[c]};
                struct comm_outcome out[COMM_PROCESSES_MAX];
                if (x.operation == COMM_BARRIER && c > 0)
                    continue;
                if (!is_chosen(&comm_ways[w], loss, w, o, c) ||
                    (comm_ways[w].on_device &&
                     (x.operation == COMM_EXCHANGE || x.operation == COMM_TREE_SUM)))
                    continue;
                if (comm_ways[w].on_device && !comm_on_gpu() && c > 0)
                    x.count = 3000; /* kernels run on the emulator */
                comm_processes_run(WORLD, &comm_ways[w], lose_one, &x, x.victim, out);
                for (int r = 0; r < WORLD; r++)
                    if (r != x.victim)
                        check_survivor(&x, comm_ways[w].name, r, &out[r]);
            }
}

static void test_comm__a_rank_killed_in_the_middle_of_every_operation(void **state)
{
    (void)state;
    lose_in_every_operation(LOSS_KILLED);
}

static void test_comm__a_rank_cut_off_in_the_middle_of_every_operation(void **state)
{
    (void)state;
    lose_in_every_operation(LOSS_CUT_OFF);
}

static void test_comm__a_rank_stopped_in_the_middle_of_every_operation(void **state)
{
    (void)state;
    lose_in_every_operation(LOSS_STOPPED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__a_rank_killed_in_the_middle_of_every_operation),
        cmocka_unit_test(test_comm__a_rank_cut_off_in_the_middle_of_every_operation),
        cmocka_unit_test(test_comm__a_rank_stopped_in_the_middle_of_every_operation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
