/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Sums through the board have the bits of sums through sockets: the same random sequence of
 * operations over both, where no rank waits for the others between two operations. A rank that
 * filled a slot too early would change what another one adds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/runtime/comm/comm.h"
#include "libfleet/base/digest.h"
#include "libfleet/plan/runtime_connections.h"
#include "libfleet/plan/tree.h"
#include "tests/unit/comm_ranks.h"

#define LARGEST 300000 /* elements: several chunks of each part in a world of two */

struct sums {
    uint64_t seed;
    int operations;
    uint8_t digests[COMM_RANKS_MAX][FLEET_SHA256_SIZE]; /* of all results of a rank */
};

struct buffers {
    float *send, *receive; /* [world][LARGEST] */
    float *slots[TREE_NODES_MAX];
    void *workspace;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Numbers whose sum depends on the order of the additions. */
static void fill(float *to, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)(next_random(&seed) % 2000003) / 1024 - 900;
}

static int run_tree_sum(struct comm *comm, int64_t leaves, int64_t count, uint64_t seed,
                        struct buffers *b, struct fleet_error *err)
{
    int nodes = tree_slots_of(leaves, comm->world, comm->rank).nodes, rc;

    for (int k = 0; k < nodes || k < 1; k++) {
        b->slots[k] = malloc((size_t)count * sizeof(float));
        fill(b->slots[k], count, seed + (uint64_t)(comm->rank * 100 + k));
    }
    b->workspace = malloc(tree_sum_workspace(leaves, comm->world, count));
    rc = comm_tree_sum(comm, leaves, b->slots, count, b->workspace, comm_ranks_patience(), err);
    memcpy(b->receive, b->slots[0], (size_t)count * sizeof(float));
    for (int k = 0; k < nodes || k < 1; k++)
        free(b->slots[k]);
    free(b->workspace);
    return rc;
}

/* One random operation, the same on every rank. *out_count: elements of its result here. */
static int run_one(struct comm *comm, uint64_t *random, struct buffers *b, int64_t *out_count,
                   struct fleet_error *err)
{
    static const enum comm_operation operations[] = {COMM_ALL_REDUCE, COMM_REDUCE,
                                                     COMM_REDUCE_SCATTER, COMM_TREE_SUM};
    struct comm_call call = {.operation = operations[next_random(random) % 4],
                             .type = next_random(random) % 4 ? COMM_FP32 : COMM_FP16,
                             .root = (int)(next_random(random) % (uint64_t)comm->world),
                             .send = b->send,
                             .receive = b->receive};
    int64_t most = next_random(random) % 3 ? LARGEST : 20000;
    int64_t leaves = comm->world + (int64_t)(next_random(random) % 12);
    uint64_t seed = next_random(random);

    call.count = (int64_t)(next_random(random) % (uint64_t)most);
    if (call.operation == COMM_REDUCE_SCATTER)
        call.count /= comm->world;
    *out_count = call.operation == COMM_REDUCE && call.root != comm->rank ? 0 : call.count;
    if (call.operation == COMM_TREE_SUM)
        return run_tree_sum(comm, leaves, call.count, seed, b, err);
    fill(b->send, call.count * (call.operation == COMM_REDUCE_SCATTER ? comm->world : 1),
         seed + (uint64_t)comm->rank);
    if (call.type == COMM_FP16)
        *out_count /= 2; /* the halves fill half of the memory */
    return comm_run(comm, &call, comm_ranks_patience(), err);
}

static int run_sums(struct comm_rank *self, struct fleet_error *err)
{
    struct sums *sums = (struct sums *)self->all->argument;
    uint64_t random = sums->seed;
    size_t room = (size_t)self->comm->world * LARGEST * sizeof(float);
    struct buffers b = {.send = malloc(room), .receive = calloc(1, room)};
    struct fleet_sha256 *digest = fleet_sha256_new();
    int rc = 0;

    for (int i = 0; i < sums->operations && rc == 0; i++) {
        int64_t count;
        rc = run_one(self->comm, &random, &b, &count, err);
        fleet_sha256_update(digest, b.receive, (size_t)count * sizeof(float));
    }
    fleet_sha256_finish(digest, sums->digests[self->rank]);
    free(b.send);
    free(b.receive);
    return rc;
}

static void run_over(enum comm_neighbours neighbours, int world, struct sums *sums)
{
    struct comm_ranks c;

    comm_ranks_init(&c, world);
    c.neighbours = neighbours;
    c.argument = sums;
    comm_ranks_run(&c, run_sums);
    for (int r = 0; r < world; r++)
        assert_int_equal(c.ranks[r].comm->has_board, neighbours != COMM_NEIGHBOURS_TCP);
    comm_ranks_release(&c);
}

static void test_comm_board__has_the_bits_of_sockets(void **state)
{
    (void)state;
    for (int world = 2; world <= 6; world++) {
        struct sums sockets = {.seed = (uint64_t)world * 1000003,
                               .operations = comm_ranks_rounds(30)};
        struct sums board = sockets;
        run_over(COMM_NEIGHBOURS_TCP, world, &sockets);
        run_over(COMM_NEIGHBOURS_SHARED, world, &board);
        for (int r = 0; r < world; r++)
            if (memcmp(sockets.digests[r], board.digests[r], FLEET_SHA256_SIZE) != 0)
                fail_msg("rank %d of %d has other bits", r, world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_board__has_the_bits_of_sockets),
    };

    return cmocka_run_group_tests_name("comm_board", tests, NULL, NULL);
}
