/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Groups of ranks, operations in flight on several of them, and ranks that do not do the same.
 */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "agent/runtime/comm/engine.h"
#include "libfleet/base/error.h"
#include "tests/unit/comm_ranks.h"

static int sum_of(struct comm *comm, int64_t mine, int64_t expected, struct fleet_error *err)
{
    int64_t sums[5000];
    int rc;

    for (int i = 0; i < 5000; i++)
        sums[i] = mine * (i + 1);
    rc = comm_all_reduce(comm, sums, 5000, COMM_INT64, COMM_SUM, comm_ranks_patience(), err);
    for (int i = 0; i < 5000 && rc == 0; i++)
        if (sums[i] != expected * (i + 1))
            rc = fleet_error(err, -EBADMSG, "element %d: expected %lld, got %lld", i,
                             (long long)expected * (i + 1), (long long)sums[i]);
    return rc;
}

/* A grid of 2 × 3 ranks: its rows, its columns, all in reverse, one alone. */
static int grid(struct comm_rank *self, struct fleet_error *err)
{
    static const int lists[][6] = {{0, 1, 2}, {3, 4, 5},          {0, 3}, {1, 4},
                                   {2, 5},    {5, 4, 3, 2, 1, 0}, {4}};
    static const int counts[] = {3, 3, 2, 2, 2, 6, 1};
    struct comm *groups[7] = {NULL};
    int rc = 0;

    for (int g = 0; g < 7 && rc == 0; g++)
        rc = comm_group(self->comm, lists[g], counts[g], comm_ranks_patience(), &groups[g], err);
    for (int round = 0; round < 2 && rc == 0; round++) {
        for (int g = 0; g < 7 && rc == 0; g++) {
            int64_t expected = 0;
            for (int i = 0; i < counts[g]; i++)
                expected += lists[g][i] + 1;
            if (!groups[g])
                continue;
            if (lists[g][groups[g]->rank] != self->rank || groups[g]->world != counts[g])
                rc = fleet_error(err, -EBADMSG, "rank %d is rank %d of group %d", self->rank,
                                 groups[g]->rank, g);
            if (rc == 0)
                rc = sum_of(groups[g], self->rank + 1, expected, err);
        }
        if (rc == 0)
            rc = sum_of(self->comm, self->rank + 1, 21, err);
    }
    for (int g = 0; g < 7; g++)
        comm_free(groups[g]);
    return rc;
}

static void test_comm_group__rows_and_columns_of_a_grid(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct comm_ranks c;
        comm_ranks_init(&c, 6);
        c.neighbours = (enum comm_neighbours)way;
        comm_ranks_run(&c, grid);
        comm_ranks_release(&c);
    }
}

/* Rank 0 has an operation in flight, which cannot end before the others start theirs. */
static atomic_bool is_busy;

/* Rank 0 is refused a second operation of a communicator; the others come after that. */
static int refuse_second(struct comm_rank *self, const struct comm_call *call,
                         struct fleet_error *err)
{
    struct comm_request *second;

    if (self->rank == 0 &&
        comm_start(self->comm, call, comm_ranks_patience(), &second, err) != -EBUSY)
        return fleet_error(err, -EBADMSG, "two operations in flight on one communicator");
    return 0;
}

/* Both groups have an operation in flight; ranks wait for them in different orders. */
static int two_at_once(struct comm_rank *self, struct fleet_error *err)
{
    enum {
        COUNT = 400000
    };
    const int all[] = {0, 1, 2};
    struct comm *a = self->comm, *b = NULL;
    struct comm_request *first, *second;
    float *data = calloc(2 * COUNT, sizeof(*data));
    struct comm_call call = {.operation = COMM_ALL_REDUCE, .type = COMM_FP32, .count = COUNT};
    int rc = comm_group(self->comm, all, 3, comm_ranks_patience(), &b, err);

    for (int i = 0; i < 2 * COUNT; i++)
        data[i] = (float)(self->rank + (i >= COUNT));
    if (self->rank == 1) { /* and start them in another order */
        struct comm *other = a;
        a = b;
        b = other;
    }
    while (self->rank != 0 && !atomic_load(&is_busy))
        (void)sched_yield();
    call.send = call.receive = data + (a == self->comm ? 0 : COUNT);
    rc = rc ? rc : comm_start(a, &call, comm_ranks_patience(), &first, err);
    rc = rc ? rc : refuse_second(self, &call, err);
    if (self->rank == 0)
        atomic_store(&is_busy, true);
    call.send = call.receive = data + (b == self->comm ? 0 : COUNT);
    rc = rc ? rc : comm_start(b, &call, comm_ranks_patience(), &second, err);
    if (self->rank == 2)
        while (rc == 0 && (rc = comm_test(second, err)) == 0)
            ;
    rc = rc < 0 ? rc : comm_wait(self->rank == 0 ? first : second, err);
    rc = rc < 0 ? rc : comm_wait(self->rank == 0 ? second : first, err);
    for (int i = 0; i < 2 * COUNT && rc == 0; i++)
        if (data[i] != (i < COUNT ? 3.0f : 6.0f))
            rc = fleet_error(err, -EBADMSG, "element %d is %g", i, (double)data[i]);
    comm_free(a == self->comm ? b : a);
    free(data);
    return rc;
}

static void test_comm_start__operations_of_two_groups_at_once(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct comm_ranks c;
        comm_ranks_init(&c, 3);
        c.neighbours = (enum comm_neighbours)way;
        atomic_store(&is_busy, false);
        comm_ranks_run(&c, two_at_once);
        comm_ranks_release(&c);
    }
}

static int wrong_lists(struct comm_rank *self, struct fleet_error *err)
{
    const int twice[] = {0, 1, 0}, beyond[] = {0, 7}, mine[] = {0, self->rank == 2 ? 2 : 1};
    struct comm *group = NULL;

    if (comm_group(self->comm, twice, 3, comm_ranks_patience(), &group, err) != -EINVAL ||
        comm_group(self->comm, beyond, 2, comm_ranks_patience(), &group, err) != -EINVAL ||
        comm_group(self->comm, mine, 0, comm_ranks_patience(), &group, err) != -EINVAL)
        return fleet_error(err, -EBADMSG, "a wrong list was taken");
    return comm_group(self->comm, mine, 2, comm_ranks_patience(), &group, err);
}

static void test_comm_group__ranks_with_other_lists_are_named(void **state)
{
    struct comm_ranks c;
    int told = 0;

    (void)state;
    comm_ranks_init(&c, 3);
    comm_ranks_start(&c, wrong_lists);
    comm_ranks_join(&c);
    for (int r = 0; r < 3; r++) {
        assert_true(c.ranks[r].rc == -EPROTO || c.ranks[r].rc == -ECONNRESET);
        told += strstr(c.ranks[r].text, "rank 2") != NULL;
    }
    assert_true(told > 0);
    comm_ranks_release(&c);
}

/* ---- a device that fails --------------------------------------------------------------------- */

static int split_fails(struct comm_device *parent, int color, int key, struct comm_device **out,
                       struct fleet_error *err)
{
    (void)parent;
    (void)color;
    (void)key;
    *out = NULL;
    return fleet_error(err, -EIO, "no memory on the device");
}

static void leave_device(struct comm_device *device)
{
    (void)device;
}

/* Connections are made, the device's library then fails: nothing is left that could be freed
 * again. */
static int split_of_device(struct comm_rank *self, struct fleet_error *err)
{
    static const struct comm_device_library library = {
        .name = "none", .split = split_fails, .abort = leave_device, .free = leave_device};
    static const int both[] = {0, 1};
    static char device;
    struct comm *group = self->comm;
    int rc;

    self->comm->library = &library;
    self->comm->device = (struct comm_device *)&device;
    rc = comm_group(self->comm, both, 2, comm_ranks_patience(), &group, err);
    self->comm->device = NULL;
    return rc < 0 && group ? fleet_error(err, -EBADMSG, "a group is left that was freed") : rc;
}

static void test_comm_group__that_the_device_cannot_split_is_none(void **state)
{
    struct comm_ranks c;

    (void)state;
    comm_ranks_init(&c, 2);
    comm_ranks_start(&c, split_of_device);
    comm_ranks_join(&c);
    for (int r = 0; r < 2; r++)
        if (c.ranks[r].rc != -EIO && c.ranks[r].rc != -ECONNRESET)
            fail_msg("rank %d: %d, %s", r, c.ranks[r].rc, c.ranks[r].text);
    assert_true(c.ranks[0].rc == -EIO || c.ranks[1].rc == -EIO);
    comm_ranks_release(&c);
}

/* ---- ranks that disagree --------------------------------------------------------------------- */

struct disagreement {
    struct comm_call usual, odd; /* odd: of rank 1 */
};

static int disagree(struct comm_rank *self, struct fleet_error *err)
{
    const struct disagreement *d = self->all->argument;
    struct comm_call call = self->rank == 1 ? d->odd : d->usual;
    double send[64] = {0}, receive[64] = {0};
    int rc;

    call.send = send;
    call.receive = receive;
    rc = comm_barrier(self->comm, comm_ranks_patience(), err);
    rc = rc ? rc : comm_run(self->comm, &call, comm_ranks_patience(), err);
    /* A rank that only sends may learn it with the next operation. */
    while (rc == 0)
        rc = comm_barrier(self->comm, comm_ranks_patience(), err);
    return rc;
}

/* Rank 1 expects one element more of rank 2 than rank 2 sends. */
static int disagree_on_sizes(struct comm_rank *self, struct fleet_error *err)
{
    double send[64] = {0}, receive[192] = {0};
    int64_t counts[3] = {4, 4, 4};
    struct comm_call call = {.operation = COMM_ALL_GATHER,
                             .type = COMM_FP64,
                             .send = send,
                             .receive = receive,
                             .receive_counts = counts};
    int rc;

    counts[2] += self->rank == 1;
    rc = comm_run(self->comm, &call, comm_ranks_patience(), err);
    while (rc == 0)
        rc = comm_barrier(self->comm, comm_ranks_patience(), err);
    return rc;
}

static void test_comm__ranks_that_disagree_on_sizes_are_named(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct comm_ranks c;
        int told = 0;
        comm_ranks_init(&c, 3);
        c.neighbours = (enum comm_neighbours)way;
        comm_ranks_start(&c, disagree_on_sizes);
        comm_ranks_join(&c);
        for (int r = 0; r < 3; r++) {
            if (c.ranks[r].rc != -EPROTO && c.ranks[r].rc != -ECONNRESET)
                fail_msg("%s", c.ranks[r].text);
            told += strstr(c.ranks[r].text, "rank 2 sent") &&
                    strstr(c.ranks[r].text, "rank 1 expected");
        }
        if (told == 0)
            fail_msg("nobody names rank 2: %s; %s; %s", c.ranks[0].text, c.ranks[1].text,
                     c.ranks[2].text);
        comm_ranks_release(&c);
    }
}

#define CALL(o, t, r, n, c)                                                                   \
    {                                                                                         \
        .operation = COMM_##o, .type = COMM_##t, .reduction = COMM_##r, .root = n, .count = c \
    }

static void test_comm__ranks_that_disagree_are_named(void **state)
{
    static const struct disagreement cases[] = {
        {CALL(ALL_REDUCE, FP32, SUM, 0, 8), CALL(ALL_REDUCE, FP32, SUM, 0, 9)},
        {CALL(ALL_REDUCE, FP32, SUM, 0, 8), CALL(ALL_REDUCE, INT32, SUM, 0, 8)},
        {CALL(ALL_REDUCE, FP32, SUM, 0, 8), CALL(ALL_REDUCE, FP32, MAX, 0, 8)},
        {CALL(ALL_REDUCE, FP32, SUM, 0, 8), CALL(ALL_GATHER, FP32, SUM, 0, 8)},
        {CALL(ALL_REDUCE, FP32, SUM, 0, 8), CALL(BARRIER, UINT8, SUM, 0, 0)},
        {CALL(ALL_REDUCE, FP32, SUM, 0, 0), CALL(ALL_REDUCE, FP32, SUM, 0, 1)},
        {CALL(REDUCE, FP32, SUM, 0, 8), CALL(REDUCE, FP32, SUM, 0, 7)},
        {CALL(REDUCE, FP32, SUM, 0, 8), CALL(REDUCE, FP32, SUM, 2, 8)},
        {CALL(BROADCAST, FP32, SUM, 0, 8), CALL(BROADCAST, FP64, SUM, 0, 8)},
        {CALL(SCATTER, FP32, SUM, 0, 8), CALL(BROADCAST, FP32, SUM, 0, 8)},
        {CALL(ALL_TO_ALL, FP32, SUM, 0, 8), CALL(REDUCE_SCATTER, FP32, SUM, 0, 8)},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int way = 0; way < 3; way++) {
            struct comm_ranks c;
            int told = 0;
            comm_ranks_init(&c, 3);
            c.neighbours = (enum comm_neighbours)way;
            c.argument = &cases[i];
            comm_ranks_start(&c, disagree);
            comm_ranks_join(&c);
            for (int r = 0; r < 3; r++) {
                if (c.ranks[r].rc != -EPROTO && c.ranks[r].rc != -ECONNRESET)
                    fail_msg("case %zu: %s", i, c.ranks[r].text);
                told += strstr(c.ranks[r].text, "rank 1") && strstr(c.ranks[r].text, "runs");
            }
            if (told == 0)
                fail_msg("case %zu: nobody names rank 1: %s; %s; %s", i, c.ranks[0].text,
                         c.ranks[1].text, c.ranks[2].text);
            comm_ranks_release(&c);
        }
}

static void test_comm_start__what_no_rank_may_run(void **state)
{
    static const struct {
        struct comm_call call;
        const char *text;
    } cases[] = {
        {CALL(ALL_REDUCE, INT32, AVG, 0, 1), "no avg of int32"},
        {CALL(ALL_REDUCE, BOOL, SUM, 0, 1), "no sum of bool"},
        {CALL(REDUCE_SCATTER, COMPLEX64, MAX, 0, 1), "no max of complex64"},
        {CALL(BROADCAST, FP32, SUM, 1, 1), "root 1 is not one of 1 ranks"},
    };
    struct comm *comm = comm_local_new();
    const struct comm_message message = {.peer = 0, .count = 1};
    struct comm_request *request;
    struct fleet_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(comm_start(comm, &cases[i].call, INFINITY, &request, &err), -EINVAL);
        assert_non_null(strstr(err.text, cases[i].text));
    }
    assert_int_equal(comm_messages(comm, &message, 1, INFINITY, &err), -EINVAL);
    assert_int_equal(comm_barrier(comm, INFINITY, &err), 0); /* nothing has been lost */
    comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_group__rows_and_columns_of_a_grid),
        cmocka_unit_test(test_comm_start__operations_of_two_groups_at_once),
        cmocka_unit_test(test_comm_group__ranks_with_other_lists_are_named),
        cmocka_unit_test(test_comm_group__that_the_device_cannot_split_is_none),
        cmocka_unit_test(test_comm__ranks_that_disagree_are_named),
        cmocka_unit_test(test_comm__ranks_that_disagree_on_sizes_are_named),
        cmocka_unit_test(test_comm_start__what_no_rank_may_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
