/* SPDX-License-Identifier: Apache-2.0 */

/* The grid as cells and replicas: the invariants (1) to (3) of cells.h for grids of many degrees
 * and all orders of the axes, and one grid written out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/cells.h"

static void swap(enum topology_axis *a, enum topology_axis *b)
{
    enum topology_axis kept = *a;

    *a = *b;
    *b = kept;
}

static void expect_invariants(const struct topology *grid)
{
    int unit = cells_count(grid), replicas = cells_replicas(grid);
    bool seen[512] = {false};

    assert_int_equal(unit * replicas, grid->world);
    for (int rank = 0; rank < grid->world; rank++) {
        struct cell_place place = cells_place(grid, rank);
        int at[TOPOLOGY_AXES];

        topology_coordinates(grid, rank, at);
        assert_int_equal(place.cell / (unit / grid->degree[TOPOLOGY_PIPELINE]),
                         at[TOPOLOGY_PIPELINE]);
        assert_int_equal(place.cell % grid->degree[TOPOLOGY_MODEL], at[TOPOLOGY_MODEL]);
        assert_int_equal(place.replica / grid->degree[TOPOLOGY_SHARDING], at[TOPOLOGY_DATA]);
        assert_int_equal(place.replica % grid->degree[TOPOLOGY_SHARDING], at[TOPOLOGY_SHARDING]);
        for (int axis = TOPOLOGY_MODEL; axis < TOPOLOGY_AXES; axis++)
            if (axis != TOPOLOGY_DATA && axis != TOPOLOGY_SHARDING)
                assert_int_equal(cells_coordinate(grid, place.cell, (enum topology_axis)axis),
                                 at[axis]);
        assert_int_equal(cells_rank(grid, place), rank);
        assert_false(seen[place.replica * unit + place.cell]);
        seen[place.replica * unit + place.cell] = true;
    }
}

/* All orders, by swapping (Heap's method). */
static void expect_in_all_orders(struct topology *grid, int count)
{
    if (count == 1) {
        expect_invariants(grid);
        return;
    }
    for (int i = 0; i < count; i++) {
        expect_in_all_orders(grid, count - 1);
        swap(&grid->order[count % 2 ? 0 : i], &grid->order[count - 1]);
    }
}

static void test_cells__rank_and_place_are_one_to_one(void **state)
{
    static const int degrees[][TOPOLOGY_AXES] = {{1, 1, 1, 1, 1}, {2, 1, 1, 1, 3}, {2, 1, 2, 2, 2},
                                                 {4, 1, 2, 3, 1}, {2, 2, 3, 2, 2}, {3, 2, 1, 4, 5}};

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(degrees); i++) {
        struct topology grid = {.world = 1};
        for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
            grid.degree[axis] = degrees[i][axis];
            grid.order[axis] = (enum topology_axis)axis;
            grid.world *= degrees[i][axis];
        }
        expect_in_all_orders(&grid, TOPOLOGY_AXES);
    }
}

static const struct topology drawn = {.world = 8,
                                      .degree = {2, 1, 1, 1, 4},
                                      .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE,
                                                TOPOLOGY_SHARDING, TOPOLOGY_PIPELINE,
                                                TOPOLOGY_DATA}};

static void test_cells__are_those_of_the_drawing(void **state)
{
    struct cell_place place = cells_place(&drawn, 5);

    (void)state;
    assert_int_equal(cells_count(&drawn), 2);
    assert_int_equal(cells_replicas(&drawn), 4);
    assert_int_equal(place.cell, 1);
    assert_int_equal(place.replica, 2);
}

static void test_cells__more_ranks_are_more_replicas(void **state)
{
    struct topology other;

    (void)state;
    assert_true(cells_resize(&drawn, 2, &other));
    assert_int_equal(cells_count(&other), 2);
    assert_int_equal(cells_replicas(&other), 1);
    assert_true(cells_resize(&drawn, 12, &other));
    assert_int_equal(cells_replicas(&other), 6);
    assert_int_equal(other.world, 12);
    assert_false(cells_resize(&drawn, 3, &other));
    assert_false(cells_resize(&drawn, 0, &other));
}

/* Four ranks of two stages: as replicas they lie behind the stages, as shards between them. */
static void test_cells__shards_may_move_cells(void **state)
{
    const struct topology least = {.world = 2,
                                   .degree = {1, 1, 1, 2, 1},
                                   .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE, TOPOLOGY_SHARDING,
                                             TOPOLOGY_PIPELINE, TOPOLOGY_DATA}};
    struct topology replicas = least, shards = least, other = least;

    (void)state;
    replicas.world = shards.world = 4;
    replicas.degree[TOPOLOGY_DATA] = shards.degree[TOPOLOGY_SHARDING] = 2;
    assert_true(cells_stay(&least, &replicas));
    assert_false(cells_stay(&least, &shards));
    other.order[2] = shards.order[2] = TOPOLOGY_PIPELINE;
    other.order[3] = shards.order[3] = TOPOLOGY_SHARDING;
    assert_true(cells_stay(&other, &shards));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells__rank_and_place_are_one_to_one),
        cmocka_unit_test(test_cells__are_those_of_the_drawing),
        cmocka_unit_test(test_cells__more_ranks_are_more_replicas),
        cmocka_unit_test(test_cells__shards_may_move_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
