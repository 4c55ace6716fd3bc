/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Members that keep a whole state where single processes have lost their parts: the table of
 * cell_cover.h, and random members beside all choices that there are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/rendezvous/cell_assign.h"
#include "libfleet/rendezvous/cell_cover.h"
#include "libfleet/rendezvous/cell_lines.h"

#define HOLDERS_MAX 8

/* Cells 0 and 1 by tensors, times 2 stages: members of two processes hold cells 0 and 1, or 2 and
 * 3. */
static struct topology grid_of(int stages, int shards)
{
    return (struct topology){.world = 2 * stages * shards,
                             .degree = {2, 1, shards, stages, 1},
                             .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE, TOPOLOGY_SHARDING,
                                       TOPOLOGY_PIPELINE, TOPOLOGY_DATA}};
}

/* What a member of two processes held at `seat` of so many, with one of them lost if `lacking`. */
static struct cell_holder holder_at(const struct topology *grid, int seat, int seats, int lacking)
{
    int shards = grid->degree[TOPOLOGY_SHARDING], cells = grid->world / shards;
    struct cell_holder holder = {.part = {.rank = 2 * seat, .world = 2 * seats, .lacking = lacking},
                                 .cell = cell_assign_cell(grid, 2, seats, seat)};

    if (shards > 1)
        holder.part.division = (struct fleet_division){2 * seats / cells, shards, true};
    return holder;
}

static bool is_whole(const struct topology *grid, const struct cell_holder *holders, size_t count,
                     unsigned int set)
{
    struct cell_lines lines;
    int shard;
    bool is_whole;

    cell_lines_init(&lines, grid);
    for (size_t i = 0; i < count; i++)
        if (set >> i & 1)
            cell_lines_add(&lines, &holders[i].part, 2, NULL, 0);
    is_whole = cell_lines_lost(&lines, &shard) == CELL_LINES_WHOLE;
    cell_lines_release(&lines);
    return is_whole;
}

/* The holders of the set find seats in their cells. */
static bool fits(const struct topology *grid, const struct cell_holder *holders, size_t count,
                 unsigned int set, int seats)
{
    for (size_t i = 0; i < count; i++) {
        int used = 0, free = 0;
        for (size_t k = 0; k < count; k++)
            used += (set >> k & 1) && holders[k].cell == holders[i].cell;
        for (int seat = 0; seat < seats; seat++)
            free += cell_assign_cell(grid, 2, seats, seat) == holders[i].cell;
        if ((set >> i & 1) && used > free)
            return false;
    }
    return true;
}

static unsigned int needed(const struct cell_holder *holders, size_t count)
{
    unsigned int set = 0;

    for (size_t i = 0; i < count; i++)
        set |= holders[i].is_needed ? 1u << i : 0;
    return set;
}

/* Of four replicas of two shards, with buddies: replica r holds shard r % 2. */
static void test_cell_cover__takes_two_members_that_hold_all_with_one_process_each(void **state)
{
    struct topology grid = grid_of(1, 2);
    struct cell_holder holders[] = {
        holder_at(&grid, 0, 4, 0), /* shard 0 of both cells */
        holder_at(&grid, 1, 4, 2), /* shard 1 of cell 0 */
        holder_at(&grid, 3, 4, 1), /* shard 1 of cell 1 */
        holder_at(&grid, 0, 2, 2), /* of two replicas, so all shards of cell 0 … */
        holder_at(&grid, 0, 2, 1), /* … and of cell 1 */
    };

    (void)state;
    assert_true(cell_cover(holders, 5, &grid, 2, 2));
    assert_int_equal(needed(holders, 5), 1 << 3 | 1 << 4);
    assert_true(cell_cover(holders, 3, &grid, 2, 4));
    assert_int_equal(needed(holders, 3), 7);
    assert_false(cell_cover(holders, 3, &grid, 2, 2));
    assert_int_equal(needed(holders, 3), 0);
}

static void test_cell_cover__finds_a_choice_if_there_is_one(void **state)
{
    unsigned int seed = 11;
    int found = 0, missed = 0;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct topology grid = grid_of(1 + rand_r(&seed) % 2, 1 + rand_r(&seed) % 2);
        struct cell_holder holders[HOLDERS_MAX];
        size_t count = 2 + (size_t)rand_r(&seed) % (HOLDERS_MAX - 1);
        int step = cell_assign_step(&grid, 2), seats = step * (1 + rand_r(&seed) % 2);
        bool could = false;

        for (size_t i = 0; i < count; i++)
            holders[i] = holder_at(&grid, rand_r(&seed) % (4 * step), 4 * step, rand_r(&seed) % 3);
        if (!is_whole(&grid, holders, count, (1u << count) - 1))
            continue;
        for (unsigned int set = 0; set < 1u << count && !could; set++)
            could = fits(&grid, holders, count, set, seats) && is_whole(&grid, holders, count, set);
        assert_int_equal(cell_cover(holders, count, &grid, 2, seats), could);
        if (could) {
            assert_true(is_whole(&grid, holders, count, needed(holders, count)));
            assert_true(fits(&grid, holders, count, needed(holders, count), seats));
        }
        found += could;
        missed += !could;
    }
    assert_in_range(found, 100, 3000);
    assert_in_range(missed, 100, 3000);
}

/* Five members hold each of 80 lines, one line each: 40 seats are too few, and nobody can try all
 * choices. */
static void test_cell_cover__gives_up_a_search_that_is_too_long(void **state)
{
    enum {
        MEMBERS = 400,
        SHARDS = 40
    };
    struct topology grid = grid_of(1, SHARDS);
    struct cell_holder holders[MEMBERS];

    (void)state;
    for (int i = 0; i < MEMBERS; i++)
        holders[i] = holder_at(&grid, i, MEMBERS, 1 + i / SHARDS % 2);
    assert_false(cell_cover(holders, MEMBERS, &grid, 2, 40));
    for (int i = 0; i < MEMBERS; i++)
        assert_false(holders[i].is_needed);
    assert_true(cell_cover(holders, MEMBERS, &grid, 2, 80));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cell_cover__takes_two_members_that_hold_all_with_one_process_each),
        cmocka_unit_test(test_cell_cover__finds_a_choice_if_there_is_one),
        cmocka_unit_test(test_cell_cover__gives_up_a_search_that_is_too_long),
    };
    return cmocka_run_group_tests_name("cell_cover", tests, NULL, NULL);
}
