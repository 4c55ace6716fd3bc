/* SPDX-License-Identifier: Apache-2.0 */

/* Seats where ranks share a model: the invariants (1) to (4) of cell_assign.h on random members,
 * and examples that were thought out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/rendezvous/cell_assign.h"

#define SEATS_MAX 12
/* Nothing is divided into shards. */
#define MEMBER(last, cell, holds)                                                     \
    {                                                                                 \
        last, cell, holds, false, false, {CELL_NONE, CELL_NONE}, CELL_NONE, CELL_NONE \
    }
#define NEW MEMBER(CELL_NONE, CELL_NONE, false)

static const struct topology by_two = {.world = 2,
                                       .degree = {2, 1, 1, 1, 1},
                                       .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE,
                                                 TOPOLOGY_SHARDING, TOPOLOGY_PIPELINE,
                                                 TOPOLOGY_DATA}};

static void test_cell_assign__seats_come_in_whole_replicas(void **state)
{
    struct topology by_six = by_two;

    (void)state;
    by_six.world = 12;
    by_six.degree[TOPOLOGY_PIPELINE] = 3;
    by_six.degree[TOPOLOGY_SHARDING] = 2;
    assert_int_equal(cell_assign_step(&by_two, 1), 2);
    assert_int_equal(cell_assign_step(&by_two, 2), 1);
    assert_int_equal(cell_assign_step(&by_two, 3), 2);
    assert_int_equal(cell_assign_step(&by_six, 1), 12);
    assert_int_equal(cell_assign_step(&by_six, 8), 3);
}

static void test_cell_assign__keeps_a_holder_of_each_cell(void **state)
{
    static const struct {
        struct cell_member members[4];
        size_t count;
        int seats, expected[4];
    } rows[] = {
        /* the lowest two would both be of cell 0 */
        {{MEMBER(0, 0, true), MEMBER(2, 0, true), MEMBER(3, 1, true)}, 3, 2, {0, CELL_NONE, 1}},
        /* one cell has too few members: the newcomer gets the place, else another cell's */
        {{MEMBER(0, 0, true), MEMBER(2, 0, true), MEMBER(3, 1, true), NEW}, 4, 4, {0, 2, 3, 1}},
        {{MEMBER(0, 0, true), MEMBER(1, 1, true), MEMBER(2, 0, true), MEMBER(4, 0, true)},
         4,
         4,
         {0, 1, 2, 3}},
        /* a survivor without the state gives way to one that holds it */
        {{MEMBER(0, 0, false), MEMBER(1, 1, true), MEMBER(2, 0, true)}, 3, 2, {CELL_NONE, 1, 0}},
        /* a spare with the state of a cell that has enough of it gives way to a newcomer */
        {{MEMBER(0, 0, true), MEMBER(CELL_NONE, 0, true), NEW}, 3, 2, {0, CELL_NONE, 1}},
        {{MEMBER(CELL_NONE, 1, true), NEW}, 2, 2, {1, 0}},
        /* a first generation: by order */
        {{NEW, NEW, NEW}, 3, 2, {0, 1, CELL_NONE}},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct cell_member members[4];
        for (size_t m = 0; m < rows[i].count; m++)
            members[m] = rows[i].members[m];
        assert_true(cell_assign(members, rows[i].count, &by_two, 1, rows[i].seats));
        for (size_t m = 0; m < rows[i].count; m++)
            assert_int_equal(members[m].seat, rows[i].expected[m]);
    }
}

static void test_cell_assign__fills_all_seats_or_none(void **state)
{
    struct cell_member members[] = {NEW};

    (void)state;
    assert_false(cell_assign(members, 1, &by_two, 1, 2));
    assert_int_equal(members[0].seat, CELL_NONE);
}

/* Random survivors of SEATS_MAX seats, spares and newcomers. */
static size_t draw(struct cell_member *members, unsigned int *seed)
{
    size_t count = 0;

    for (int seat = 0; seat < SEATS_MAX; seat++)
        if (rand_r(seed) % 3 > 0)
            members[count++] =
                rand_r(seed) % 4 == 0
                    ? (struct cell_member)MEMBER(CELL_NONE, seat % 2, true)
                    : (struct cell_member)MEMBER(seat, seat % 2, rand_r(seed) % 4 > 0);
    for (int i = rand_r(seed) % 4; i > 0; i--)
        members[count++] = (struct cell_member)NEW;
    return count;
}

static void test_cell_assign__holds_for_random_members(void **state)
{
    unsigned int seed = 7;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct cell_member members[SEATS_MAX + 4];
        size_t count = draw(members, &seed);
        int seats = rand_r(&seed) % (SEATS_MAX / 2 + 1) * 2;
        bool taken[SEATS_MAX] = {false}, had[2] = {false}, has[2] = {false};
        bool moves = false, waits = false;

        if (!cell_assign(members, count, &by_two, 1, seats)) {
            assert_true(count < (size_t)seats);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            const struct cell_member *m = &members[i];
            if (m->holds)
                had[m->cell] = true;
            waits |= m->seat == CELL_NONE && m->last == CELL_NONE && !m->holds;
            if (m->seat == CELL_NONE)
                continue;
            moves |= m->holds && m->seat % 2 != m->cell;
            assert_in_range(m->seat, 0, seats - 1);
            assert_false(taken[m->seat]); /* (1) */
            taken[m->seat] = true;
            if (m->holds && m->seat % 2 == m->cell)
                has[m->cell] = true;
        }
        for (int seat = 0; seat < seats; seat++)
            assert_true(taken[seat]);
        for (int cell = 0; cell < 2 && seats > 0; cell++)
            assert_int_equal(has[cell], had[cell]); /* (4) */
        assert_false(moves && waits);               /* (3) */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cell_assign__seats_come_in_whole_replicas),
        cmocka_unit_test(test_cell_assign__keeps_a_holder_of_each_cell),
        cmocka_unit_test(test_cell_assign__fills_all_seats_or_none),
        cmocka_unit_test(test_cell_assign__holds_for_random_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
