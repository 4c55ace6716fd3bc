/* SPDX-License-Identifier: Apache-2.0 */

/* Do some members hold a whole state? Of four ranks and of eight with 2 cells, divided or not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/rendezvous/cell_lines.h"

/* Cells vary fastest, then shards. */
static struct topology grid(int shards)
{
    return (struct topology){.world = 2 * shards,
                             .degree = {2, 1, shards, 1, 1},
                             .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE, TOPOLOGY_SHARDING,
                                       TOPOLOGY_PIPELINE, TOPOLOGY_DATA}};
}

/* What rank `rank` of `world` holds. */
static struct fleet_part part(int rank, int world, int shards, bool has_buddies)
{
    struct fleet_part part = {.rank = rank, .world = world};

    if (shards > 1) {
        part.division = (struct fleet_division){world / 2, shards, has_buddies};
        part.first = rank / 2;
        part.count = 1;
    }
    return part;
}

/* The cell that the members of ranks[count] lack. */
static int lost(const int *ranks, int count, int world, int shards, bool has_buddies, int *shard)
{
    struct topology all = grid(shards);
    struct cell_lines lines;
    int cell;

    cell_lines_init(&lines, &all);
    for (int i = 0; i < count; i++) {
        struct fleet_part held = part(ranks[i], world, shards, has_buddies);
        cell_lines_add(&lines, &held, 1, NULL, 0);
    }
    cell = cell_lines_lost(&lines, shard);
    cell_lines_release(&lines);
    return cell;
}

static void test_cell_lines__a_state_needs_a_holder_of_each_cell(void **state)
{
    static const int both[] = {0, 3}, one[] = {0, 2};
    int shard = 7;

    (void)state;
    assert_int_equal(lost(both, 2, 4, 1, false, &shard), CELL_LINES_WHOLE);
    assert_int_equal(lost(one, 2, 4, 1, false, &shard), 1);
    assert_int_equal(shard, FLEET_DIVISION_NOBODY);
    assert_int_equal(lost(NULL, 0, 4, 1, false, &shard), 0);
}

static void test_cell_lines__and_of_each_shard_of_the_cell(void **state)
{
    static const int all[] = {0, 1, 2, 3}, three[] = {0, 1, 2}, mixed[] = {0, 1, 5, 6};
    int shard = 7;

    (void)state;
    assert_int_equal(lost(all, 4, 4, 2, false, &shard), CELL_LINES_WHOLE);
    assert_int_equal(lost(three, 3, 4, 2, false, &shard), 1);
    assert_int_equal(shard, 1);
    assert_int_equal(lost(three, 3, 4, 2, true, &shard), CELL_LINES_WHOLE); /* a buddy */
    /* of eight ranks 0 and 5 hold shard 0, 1 and 6 the cells' other ones: cell 1 lacks shard 1 */
    assert_int_equal(lost(mixed, 4, 8, 2, false, &shard), 1);
    assert_int_equal(shard, 1);
}

/* Another number of ranks, with the same shards: the rest of a generation that moved its state. */
static void test_cell_lines__adds_parts_of_two_maps(void **state)
{
    struct topology all = grid(2);
    struct fleet_part parts[] = {part(0, 4, 2, false), part(3, 4, 2, false), part(1, 8, 2, false),
                                 part(2, 8, 2, false)};
    struct cell_lines lines;
    int shard;

    (void)state;
    cell_lines_init(&lines, &all);
    for (int i = 0; i < 4; i++) {
        assert_int_not_equal(cell_lines_lost(&lines, &shard), CELL_LINES_WHOLE);
        cell_lines_add(&lines, &parts[i], 1, NULL, 0);
    }
    assert_int_equal(cell_lines_lost(&lines, &shard), CELL_LINES_WHOLE);
    cell_lines_release(&lines);
}

static void test_cell_lines__a_process_that_holds_nothing_does_not_count(void **state)
{
    struct topology all = grid(1);
    struct fleet_part held = part(0, 4, 1, false);
    struct cell_lines lines;
    int shard;

    (void)state;
    cell_lines_init(&lines, &all);
    held.lacking = 2; /* its second process has started again */
    cell_lines_add(&lines, &held, 2, NULL, 0);
    assert_int_equal(cell_lines_lost(&lines, &shard), 1);
    held.lacking = 0;
    cell_lines_add(&lines, &held, 2, NULL, 0);
    assert_int_equal(cell_lines_lost(&lines, &shard), CELL_LINES_WHOLE);
    cell_lines_release(&lines);
}

static void test_cell_lines__a_rank_that_moves_gives_its_state_up(void **state)
{
    struct topology all = grid(1), four = grid(1);
    struct fleet_part first = part(0, 4, 1, false), second = part(1, 4, 1, false);
    int shard;

    (void)state;
    four.world = 4;
    four.degree[TOPOLOGY_DATA] = 2;
    for (int rank = 0; rank < 4; rank++) {
        struct cell_lines lines;
        cell_lines_init(&lines, &all);
        cell_lines_add(&lines, &first, 1, &four, 0);
        cell_lines_add(&lines, &second, 1, &four, rank);
        assert_int_equal(cell_lines_lost(&lines, &shard), rank % 2 == 1 ? CELL_LINES_WHOLE : 1);
        cell_lines_release(&lines);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cell_lines__a_state_needs_a_holder_of_each_cell),
        cmocka_unit_test(test_cell_lines__and_of_each_shard_of_the_cell),
        cmocka_unit_test(test_cell_lines__adds_parts_of_two_maps),
        cmocka_unit_test(test_cell_lines__a_process_that_holds_nothing_does_not_count),
        cmocka_unit_test(test_cell_lines__a_rank_that_moves_gives_its_state_up),
    };
    return cmocka_run_group_tests_name("cell_lines", tests, NULL, NULL);
}
