/* SPDX-License-Identifier: Apache-2.0 */

/* Which ranks hold which shard, and which shard is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "libfleet/base/division.h"

static struct fleet_part part(int replicas, int shards, bool has_buddies, int first, int count)
{
    return (struct fleet_part){
        .division = {replicas, shards, has_buddies}, .first = first, .count = count};
}

/* The question asked rank by rank. */
static int lost_by_ranks(const struct fleet_division *division, const bool *lives)
{
    for (int shard = 0; shard < division->shards; shard++) {
        bool is_held = false;
        for (int r = 0; r < division->replicas; r++)
            is_held |= lives[r] && fleet_division_holds(division, shard, r);
        if (!is_held)
            return shard;
    }
    return FLEET_DIVISION_WHOLE;
}

/* Every set of survivors of up to six ranks, in every number of shards. */
static void test_division__names_the_lowest_shard_that_no_survivor_holds(void **state)
{
    (void)state;
    for (int replicas = 1; replicas <= 6; replicas++)
        for (int shards = 1; shards <= replicas; shards++)
            for (int buddies = 0; buddies < 2; buddies++)
                for (int set = 1; set < 1 << replicas; set++) {
                    struct fleet_division division = {replicas, shards, buddies};
                    struct fleet_part parts[6];
                    bool lives[6];
                    size_t count = 0;
                    for (int r = 0; r < replicas; r++) {
                        lives[r] = set >> r & 1;
                        if (lives[r])
                            parts[count++] = part(replicas, shards, buddies, r, 1);
                    }
                    assert_int_equal(fleet_parts_lost(parts, count),
                                     lost_by_ranks(&division, lives));
                }
}

/* Four ranks that divide into four: with buddies any one may be lost, or two that are not
 * neighbours. */
static void test_division__a_buddy_is_the_next_rank(void **state)
{
    struct fleet_division four = {4, 4, true}, groups = {4, 2, true}, odd = {3, 2, true};

    (void)state;
    for (int shard = 0; shard < 4; shard++)
        assert_int_equal(fleet_division_buddy(&four, shard), (shard + 1) % 4);
    for (int shard = 0; shard < 2; shard++) /* the other group has a copy */
        assert_int_equal(fleet_division_buddy(&groups, shard), FLEET_DIVISION_NOBODY);
    assert_int_equal(fleet_division_buddy(&odd, 0), FLEET_DIVISION_NOBODY);
    assert_int_equal(fleet_division_buddy(&odd, 1), 2);
}

static void test_division__says_nothing_where_only_ranks_can_know(void **state)
{
    struct fleet_part whole = {0}, unknown = part(3, 3, false, 0, 0);
    struct fleet_part two_divisions[] = {part(3, 3, false, 0, 1), part(2, 2, false, 0, 1)};
    struct fleet_part lies[] = {part(3, 3, false, 2, 2)};

    (void)state;
    assert_int_equal(fleet_parts_lost(&whole, 1), FLEET_DIVISION_WHOLE);
    assert_int_equal(fleet_parts_lost(&unknown, 1), FLEET_DIVISION_WHOLE);
    assert_int_equal(fleet_parts_lost(two_divisions, 2), FLEET_DIVISION_WHOLE);
    assert_false(fleet_part_is_sound(&lies[0]));
    assert_int_equal(fleet_parts_lost(lies, 1), FLEET_DIVISION_WHOLE);
    assert_int_equal(fleet_parts_lost(NULL, 0), FLEET_DIVISION_WHOLE);
}

static void test_division__processes_of_a_worker_are_a_row(void **state)
{
    struct fleet_part row = part(4, 4, false, 1, 1), next = part(4, 4, false, 2, 1);
    struct fleet_part far = part(4, 4, false, 0, 1), whole = {0};

    (void)state;
    fleet_part_add(&row, &next);
    assert_int_equal(row.first, 1);
    assert_int_equal(row.count, 2);
    fleet_part_add(&row, &far);
    assert_int_equal(row.count, 0);
    fleet_part_add(&whole, &(struct fleet_part){0});
    assert_int_equal(whole.division.shards, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_division__names_the_lowest_shard_that_no_survivor_holds),
        cmocka_unit_test(test_division__a_buddy_is_the_next_rank),
        cmocka_unit_test(test_division__says_nothing_where_only_ranks_can_know),
        cmocka_unit_test(test_division__processes_of_a_worker_are_a_row),
    };
    return cmocka_run_group_tests_name("division", tests, NULL, NULL);
}
