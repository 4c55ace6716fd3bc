/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every collective in every world, over every transport, and what each rank must see afterwards.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/error.h"
#include "tests/unit/comm_ranks.h"

/* ---- collectives ----------------------------------------------------------------------------- */

/* Sizes that differ for every pair and direction, some zero, some larger than socket buffers. */
static size_t pair_bytes(int from, int to)
{
    static const size_t sizes[] = {0, 1, 4096, 100, 700001, 3000000, 17};

    return sizes[(from * 3 + to * 5) % 7];
}

static int exchange_uneven(struct comm_rank *self, struct fleet_error *err)
{
    int world = self->comm->world, rc;
    uint8_t *out[COMM_RANKS_MAX], *in[COMM_RANKS_MAX];
    size_t out_bytes[COMM_RANKS_MAX], in_bytes[COMM_RANKS_MAX];

    for (int p = 0; p < world; p++) {
        out_bytes[p] = pair_bytes(self->rank, p);
        in_bytes[p] = pair_bytes(p, self->rank);
        out[p] = malloc(out_bytes[p] + 1);
        in[p] = calloc(1, in_bytes[p] + 1);
        for (size_t i = 0; i < out_bytes[p]; i++)
            out[p][i] = comm_ranks_byte(self->rank, p, i);
    }
    rc = comm_exchange(self->comm, (const void *const *)out, out_bytes, (void *const *)in, in_bytes,
                       comm_ranks_patience(), err);
    for (int p = 0; p < world; p++) {
        for (size_t i = 0; i < in_bytes[p] && rc == 0; i++)
            if (in[p][i] != comm_ranks_byte(p, self->rank, i))
                rc = comm_ranks_wrong(err, "exchange", p, i);
        free(out[p]);
        free(in[p]);
    }
    return rc;
}

static int gather_some(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    uint8_t *mine = malloc(bytes + 1), *all = calloc((size_t)comm->world, bytes + 1);
    int rc;

    for (size_t i = 0; i < bytes; i++)
        mine[i] = comm_ranks_byte(comm->rank, 0, i);
    rc = comm_all_gather(comm, mine, bytes, all, comm_ranks_patience(), err);
    for (size_t i = 0; i < bytes * (size_t)comm->world && rc == 0; i++)
        if (all[i] != comm_ranks_byte((int)(i / bytes), 0, i % bytes))
            rc = comm_ranks_wrong(err, "all_gather", (int)(i / bytes), i % bytes);
    free(mine);
    free(all);
    return rc;
}

static int gather_varying(struct comm *comm, struct fleet_error *err)
{
    size_t bytes[COMM_RANKS_MAX], total = 0, at = 0;
    uint8_t mine[64], all[64 * COMM_RANKS_MAX];
    int rc;

    for (int r = 0; r < comm->world; r++)
        total += bytes[r] = (size_t)(r * 11) % 64;
    for (size_t i = 0; i < sizeof(mine); i++)
        mine[i] = comm_ranks_byte(comm->rank, 0, i);
    rc = comm_all_gather_varying(comm, mine, bytes, all, comm_ranks_patience(), err);
    for (int r = 0; r < comm->world && rc == 0; at += bytes[r++])
        for (size_t i = 0; i < bytes[r]; i++)
            if (all[at + i] != comm_ranks_byte(r, 0, i))
                return comm_ranks_wrong(err, "all_gather_varying", r, i);
    return rc == 0 && at != total ? comm_ranks_wrong(err, "all_gather_varying", -1, at) : rc;
}

static int broadcast_some(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    uint8_t *data = malloc(bytes + 1);
    int rc = 0;

    for (int root = 0; root < comm->world && rc == 0; root++) {
        for (size_t i = 0; i < bytes; i++)
            data[i] = comm->rank == root ? comm_ranks_byte(root, 1, i) : 0;
        rc = comm_broadcast(comm, data, bytes, root, comm_ranks_patience(), err);
        for (size_t i = 0; i < bytes && rc == 0; i++)
            if (data[i] != comm_ranks_byte(root, 1, i))
                rc = comm_ranks_wrong(err, "broadcast", root, i);
    }
    free(data);
    return rc;
}

static int all_to_all_some(struct comm *comm, size_t bytes, struct fleet_error *err)
{
    size_t total = bytes * (size_t)comm->world;
    uint8_t *out = malloc(total), *in = calloc(1, total);
    int rc;

    for (size_t i = 0; i < total; i++)
        out[i] = comm_ranks_byte(comm->rank, (int)(i / bytes), i % bytes);
    rc = comm_all_to_all(comm, out, bytes, in, comm_ranks_patience(), err);
    for (size_t i = 0; i < total && rc == 0; i++)
        if (in[i] != comm_ranks_byte((int)(i / bytes), comm->rank, i % bytes))
            rc = comm_ranks_wrong(err, "all_to_all", (int)(i / bytes), i % bytes);
    free(out);
    free(in);
    return rc;
}

/* A number goes once around the ring of ranks, each adds its own. */
static int ring(struct comm *comm, struct fleet_error *err)
{
    int world = comm->world, next = (comm->rank + 1) % world,
        last = (comm->rank + world - 1) % world;
    int64_t value = 0, expected = (int64_t)world * (world - 1) / 2;
    int rc = 0;

    if (world == 1)
        return 0;
    if (comm->rank > 0)
        rc = comm_receive(comm, last, &value, sizeof(value), comm_ranks_patience(), err);
    value += comm->rank;
    if (rc == 0)
        rc = comm_send(comm, next, &value, sizeof(value), comm_ranks_patience(), err);
    if (rc == 0 && comm->rank == 0)
        rc = comm_receive(comm, last, &value, sizeof(value), comm_ranks_patience(), err);
    if (rc == 0 && comm->rank == 0 && value != expected)
        return fleet_error(err, -EBADMSG, "ring: expected %lld, got %lld", (long long)expected,
                           (long long)value);
    return rc;
}

static int all_collectives(struct comm_rank *self, struct fleet_error *err)
{
    struct comm *comm = self->comm;
    int rc = exchange_uneven(self, err);

    for (int round = 0; round < comm_ranks_rounds(3) && rc == 0; round++) {
        rc = ring(comm, err);
        rc = rc ? rc : gather_some(comm, 3, err);
        rc = rc ? rc : gather_some(comm, 1000003, err);
        rc = rc ? rc : gather_varying(comm, err);
        rc = rc ? rc : broadcast_some(comm, 5, err);
        rc = rc ? rc : broadcast_some(comm, 0, err);
        rc = rc ? rc : broadcast_some(comm, 1500007, err);
        rc = rc ? rc : all_to_all_some(comm, 70001, err);
        rc = rc ? rc : comm_barrier(comm, comm_ranks_patience(), err);
    }
    return rc;
}

static void test_comm__every_collective_in_every_world(void **state)
{
    (void)state;
    for (int world = 1; world <= COMM_RANKS_MAX; world += world == 5 ? 3 : 1) {
        struct comm_ranks c;
        comm_ranks_init(&c, world);
        comm_ranks_run(&c, all_collectives);
        for (int r = 1; r < world; r++) /* all ranks gave and took the same number of bytes */
            assert_true(c.ranks[r].comm->bytes_sent > 0);
        comm_ranks_release(&c);
    }
}

/* Ranks are threads of one process here, so all of them can be read. */
static void test_comm__every_collective_from_memory_to_memory(void **state)
{
    (void)state;
    for (int world = 2; world <= 5; world++) {
        struct comm_ranks c;
        comm_ranks_init(&c, world);
        c.neighbours = COMM_NEIGHBOURS_DIRECT;
        comm_ranks_run(&c, all_collectives);
        for (int r = 0; r < world; r++)
            assert_int_equal(c.ranks[r].comm->direct_ranks, world - 1);
        comm_ranks_release(&c);
    }
}

static int exchange_many(struct comm_rank *self, struct fleet_error *err)
{
    int rc = 0;

    for (int i = 0; i < comm_ranks_rounds(30) && rc == 0; i++)
        rc = i % 3 ? all_to_all_some(self->comm, (size_t)(i * 2311 + 1), err)
                   : exchange_uneven(self, err);
    return rc;
}

/* Only some ranks want it, or none: the others go on through sockets, and all agree. */
static void test_comm__ranks_may_differ_in_what_they_can_read(void **state)
{
    (void)state;
    for (int without = 0; without < 3; without++) {
        struct comm_ranks c, plain;
        pthread_t threads[3];
        comm_ranks_init(&c, 3);
        c.neighbours = COMM_NEIGHBOURS_DIRECT;
        plain = c;
        plain.neighbours = COMM_NEIGHBOURS_TCP;
        for (int r = 0; r < 3; r++)
            c.ranks[r].all = r == without ? &plain : &c;
        c.body = plain.body = exchange_many;
        for (int r = 0; r < 3; r++)
            assert_int_equal(pthread_create(&threads[r], NULL, comm_ranks_main, &c.ranks[r]), 0);
        for (int r = 0; r < 3; r++)
            pthread_join(threads[r], NULL);
        for (int r = 0; r < 3; r++) {
            if (c.ranks[r].rc != 0)
                fail_msg("%s", c.ranks[r].text);
            assert_int_equal(c.ranks[r].comm->direct_ranks, r == without ? 0 : 1);
        }
        comm_ranks_release(&c);
    }
}

static void test_comm__a_world_of_one_needs_no_transport(void **state)
{
    struct comm *comm = comm_local_new();
    struct comm_rank self = {.comm = comm};
    struct fleet_error err = {.text = ""};

    (void)state;
    if (all_collectives(&self, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(comm->bytes_sent, 0);
    comm_abort(comm);
    assert_int_equal(comm_barrier(comm, INFINITY, NULL), -ECANCELED);
    assert_int_equal(comm_barrier(comm, INFINITY, NULL), -ECONNABORTED);
    comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm__every_collective_in_every_world),
        cmocka_unit_test(test_comm__every_collective_from_memory_to_memory),
        cmocka_unit_test(test_comm__ranks_may_differ_in_what_they_can_read),
        cmocka_unit_test(test_comm__a_world_of_one_needs_no_transport),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
