/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The deterministic sum over ranks against the sequential tree, bit by bit.
 */
#include <errno.h>
#include <math.h>
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
#include "libfleet/plan/tree.h"
#include "tests/support/tree_values.h"
#include "tests/unit/comm_ranks.h"

static float tree_sum(int64_t a, int64_t b, int64_t element)
{
    int64_t power = 1;

    if (b - a == 1)
        return leaf_value(a, element);
    while (2 * power < b - a)
        power *= 2;
    return tree_sum(a, a + power, element) + tree_sum(a + power, b, element);
}

/* How ranks connect: each kind of neighbours, then by several encrypted connections. */
#define ENCRYPTED 3
#define WAYS      4

struct sum_case {
    int64_t leaves, count;
};

static int tree_reduce(struct comm_rank *self, struct fleet_error *err)
{
    const struct sum_case *x = self->all->argument;
    struct comm *comm = self->comm;
    struct tree_node nodes[TREE_NODES_MAX];
    int count = tree_nodes(x->leaves, tree_first_leaf(x->leaves, comm->world, comm->rank),
                           tree_first_leaf(x->leaves, comm->world, comm->rank + 1), nodes);
    float *slots[TREE_NODES_MAX];
    void *workspace = malloc(tree_sum_workspace(x->leaves, comm->world, x->count) + 1);
    int rc;

    for (int i = 0; i < count; i++) {
        slots[i] = malloc((size_t)x->count * sizeof(float));
        for (int64_t e = 0; e < x->count; e++)
            slots[i][e] = tree_sum(nodes[i].first, nodes[i].end, e);
    }
    rc = comm_tree_sum(comm, x->leaves, slots, x->count, workspace, comm_ranks_patience(), err);
    for (int64_t e = 0; e < x->count && rc == 0; e++) {
        float expected = tree_sum(0, x->leaves, e);
        if (memcmp(&expected, &slots[0][e], sizeof(float)) != 0)
            rc = fleet_error(
                err, -EBADMSG, "leaves %lld, element %lld of %lld: expected %a, got %a",
                (long long)x->leaves, (long long)e, (long long)x->count, expected, slots[0][e]);
    }
    for (int i = 0; i < count; i++)
        free(slots[i]);
    free(workspace);
    return rc;
}

static void test_comm_tree_sum__gives_the_bits_of_the_sequential_tree(void **state)
{
    static const struct sum_case cases[] = {{8, 1},      {8, 17},     {9, 8192},  {13, 8193},
                                            {16, 50001}, {33, 12345}, {64, 9000}, {31, 1200007}};

    (void)state;
    for (int world = 1; world <= COMM_RANKS_MAX; world++)
        for (int way = 0; way < WAYS; way++) {
            struct comm_ranks c;
            comm_ranks_init(&c, world);
            c.neighbours = way == ENCRYPTED ? COMM_NEIGHBOURS_TCP : (enum comm_neighbours)way;
            c.encrypts = way == ENCRYPTED;
            c.channels = way == ENCRYPTED ? 3 : 1;
            for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                if (cases[i].count > 1000000 && world != 3)
                    continue;
                c.argument = &cases[i];
                comm_ranks_run(&c, tree_reduce);
            }
            comm_ranks_release(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_tree_sum__gives_the_bits_of_the_sequential_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
