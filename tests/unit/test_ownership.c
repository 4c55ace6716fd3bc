/* SPDX-License-Identifier: Apache-2.0 */

/* The map of owners: every element has a holder, a shard has two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/program/program.h"

#define STATES (OWNERSHIP_BIT(OWNERSHIP_STATE0) | OWNERSHIP_BIT(OWNERSHIP_STATE1))

/* Parameters of these sizes with two states each, laid out. */
static void make_program(const int64_t *sizes, int count, struct program *out)
{
    program_init(out, "t");
    for (int i = 0; i < count; i++) {
        char name[16];
        int var;
        (void)snprintf(name, sizeof(name), "p%d", i);
        var = program_add_var(out, name, PROGRAM_FP32, PROGRAM_ROLE_PARAMETER, 1, &sizes[i]);
        out->vars[var].trained = true;
        (void)program_add_state(out, var, 0);
        (void)program_add_state(out, var, 1);
    }
    out->state_count = 2;
    program_layout(out);
}

static const int64_t sizes[] = {100, 7, 64, 31, 16, 200, 5};
#define SIZES 7

static void build(const struct program *program, int replicas, int shards, bool greedy,
                  bool has_buddies, struct ownership *out)
{
    ownership_build(program,
                    &(struct ownership_rule){.replicas = replicas,
                                             .shards = shards,
                                             .divided = STATES,
                                             .greedy = greedy,
                                             .has_buddies = has_buddies},
                    out);
}

static void test_ownership__a_replicated_job_has_one_line(void **state)
{
    struct program program;
    struct ownership map;
    bool has[3] = {false, true, false};

    (void)state;
    make_program(sizes, SIZES, &program);
    build(&program, 3, 1, false, true, &map);
    assert_int_equal(map.count, 1);
    for (int r = -1; r < 3; r++) {
        assert_true(ownership_holds(&map, &map.lines[0], r));
        assert_int_equal(ownership_place(&map, OWNERSHIP_STATE1, 123, r), 123);
        assert_int_equal(ownership_elements(&map, OWNERSHIP_BUFFERS, 77, r), 77);
    }
    assert_null(ownership_lost(&map, has));
    has[1] = false;
    assert_ptr_equal(ownership_lost(&map, has), &map.lines[0]);
    ownership_release(&map);
    program_release(&program);
}

/* (1), (2): each element of each space has exactly one line, a parameter lies in one. */
static void expect_cover(const struct program *program, const struct ownership *map)
{
    for (int space = 0; space < OWNERSHIP_BUFFERS; space++)
        for (int64_t e = 0; e < program->flat_count; e++) {
            int lines = 0;
            for (int i = 0; i < map->count; i++)
                lines += (map->lines[i].spaces & OWNERSHIP_BIT(space)) &&
                         map->lines[i].first <= e && e < map->lines[i].end;
            if (lines != 1)
                fail_msg("element %d of space %d has %d lines", (int)e, space, lines);
        }
    for (int v = 0; v < program->var_count; v++) {
        const struct program_var *var = &program->vars[v];
        int64_t last = var->flat_offset + program_var_elements(var) - 1;
        assert_ptr_equal(ownership_find(map, OWNERSHIP_STATE0, var->flat_offset),
                         ownership_find(map, OWNERSHIP_STATE0, last));
    }
}

/* Holders of every line: owners, one a group, and a buddy where there is one group. */
static void expect_holders(const struct ownership *map)
{
    for (int i = 0; i < map->count; i++) {
        const struct ownership_line *line = &map->lines[i];
        int holders = 0, owners = 0;
        for (int r = 0; r < map->replicas; r++) {
            int owner = ownership_owner(map, line, r);
            holders += ownership_holds(map, line, r);
            owners += owner == r;
            assert_true(ownership_holds(map, line, owner));
            if (line->holders == OWNERSHIP_SHARD)
                assert_int_equal(owner % map->shards, line->shard);
        }
        if (line->holders == OWNERSHIP_ALL)
            assert_int_equal(holders, map->replicas);
        else if (map->has_buddies)
            assert_true(holders >= 2);
        else
            assert_int_equal(holders, owners);
    }
}

static void test_ownership__covers_all_and_has_holders(void **state)
{
    struct program program;

    (void)state;
    make_program(sizes, SIZES, &program);
    for (int replicas = 1; replicas <= 9; replicas++)
        for (int shards = 1; shards <= replicas; shards++)
            for (int flags = 0; flags < 4; flags++) {
                struct ownership map;
                build(&program, replicas, shards, flags & 1, flags & 2, &map);
                expect_cover(&program, &map);
                expect_holders(&map);
                ownership_release(&map);
            }
    program_release(&program);
}

/* A rank's memory has its ranges without gaps, and the memory plan agrees. */
static void test_ownership__places_follow_each_other(void **state)
{
    struct program program;

    (void)state;
    make_program(sizes, SIZES, &program);
    for (int flags = 0; flags < 4; flags++) {
        struct ownership map;
        build(&program, 3, 3, flags & 1, flags & 2, &map);
        for (int r = 0; r < 3; r++) {
            struct memory_plan memory;
            int64_t next = 0;
            for (int64_t e = 0; e < program.flat_count; e++) {
                int64_t place = ownership_place(&map, OWNERSHIP_STATE0, e, r);
                if (place != OWNERSHIP_NOBODY)
                    assert_int_equal(place, next++);
            }
            assert_int_equal(ownership_elements(&map, OWNERSHIP_STATE0, program.flat_count, r),
                             next);
            assert_int_equal(memory_plan_build(&program, &map, r, &memory, NULL), 0);
            assert_int_equal(memory.bytes[MEMORY_STATE0], next * 4);
            assert_int_equal(memory.bytes[MEMORY_STATE1], next * 4);
            assert_int_equal(memory.bytes[MEMORY_PARAMETERS], program.flat_count * 4);
            memory_plan_release(&memory);
        }
        ownership_release(&map);
    }
    program_release(&program);
}

/* Without buddies the shards of all ranks together are the space: nothing is held twice. */
static void test_ownership__shards_add_up(void **state)
{
    struct program program;

    (void)state;
    make_program(sizes, SIZES, &program);
    for (int shards = 2; shards <= 9; shards++) {
        struct ownership map;
        int64_t sum = 0, most = 0;
        build(&program, shards, shards, true, false, &map);
        for (int r = 0; r < shards; r++) {
            int64_t held = ownership_elements(&map, OWNERSHIP_STATE0, program.flat_count, r);
            sum += held;
            most = held > most ? held : most;
        }
        assert_int_equal(sum, program.flat_count);
        assert_int_equal(ownership_elements(&map, OWNERSHIP_STATE0, program.flat_count,
                                            ownership_heaviest(&map)),
                         most);
        assert_int_equal(ownership_elements(&map, OWNERSHIP_STATE0, program.flat_count, -1), 0);
        ownership_release(&map);
    }
    program_release(&program);
}

/* One lost rank is never a lost state with buddies; an owner and its buddy are. */
static void test_ownership__says_what_is_lost(void **state)
{
    struct program program;
    struct ownership map;
    bool has[4] = {true, true, true, true};
    const struct ownership_line *lost;

    (void)state;
    make_program(sizes, SIZES, &program);
    build(&program, 4, 4, true, true, &map);
    for (int r = 0; r < 4; r++) {
        has[r] = false;
        assert_null(ownership_lost(&map, has));
        has[(r + 1) % 4] = false;
        lost = ownership_lost(&map, has);
        assert_non_null(lost);
        assert_int_equal(lost->shard, r);
        has[r] = has[(r + 1) % 4] = true;
    }
    ownership_release(&map);

    build(&program, 4, 2, true, false, &map); /* two groups: each shard has two ranks */
    for (int r = 0; r < 4; r++) {
        has[r] = false;
        assert_null(ownership_lost(&map, has));
        has[(r + 2) % 4] = false;
        assert_non_null(ownership_lost(&map, has));
        has[r] = has[(r + 2) % 4] = true;
    }
    ownership_release(&map);
    program_release(&program);
}

/* What each rank has for itself is held by it, and lost with it without harm. */
static void test_ownership__private_values_are_no_state_to_lose(void **state)
{
    struct ownership map;
    bool has[2] = {true, false};

    (void)state;
    ownership_build_whole(2, &map);
    ownership_set_private(&map, OWNERSHIP_STATE1);
    assert_int_equal(map.count, 2);
    assert_int_equal(ownership_find(&map, OWNERSHIP_STATE1, 5)->holders, OWNERSHIP_EACH);
    assert_int_equal(ownership_find(&map, OWNERSHIP_STATE0, 5)->holders, OWNERSHIP_ALL);
    assert_int_equal(ownership_place(&map, OWNERSHIP_STATE1, 5, 1), 5);
    assert_null(ownership_lost(&map, has));
    ownership_release(&map);
}

/* Each stage of a pipeline has its parameters, wherever they lie, and the memory of its ranks is
 * full of them. */
static void expect_stages(int ranks)
{
    static const int stages[SIZES] = {0, 1, 1, 2, 0, 2, 1};
    struct program program;
    struct ownership map;
    int64_t all = 0;

    make_program(sizes, SIZES, &program);
    for (int v = 0, i = 0; v < program.var_count; v++)
        if (program.vars[v].role == PROGRAM_ROLE_PARAMETER)
            program.vars[v].stage = stages[i++];
    ownership_build_stages(&program, 3, ranks, STATES | OWNERSHIP_BIT(OWNERSHIP_PARAMETERS), &map);
    for (int v = 0; v < program.var_count; v++) {
        const struct program_var *var = &program.vars[v];
        if (var->role != PROGRAM_ROLE_PARAMETER)
            continue;
        for (int rank = 0, holders = 0; rank < 3 * ranks; rank++) {
            int64_t at = ownership_place(&map, OWNERSHIP_PARAMETERS, var->flat_offset, rank);
            holders += at != OWNERSHIP_NOBODY;
            assert_true(at == OWNERSHIP_NOBODY || rank / ranks == var->stage);
            assert_true(rank + 1 < 3 * ranks || holders == 1);
            assert_int_equal(ownership_place(&map, OWNERSHIP_STATE1, var->flat_offset, rank), at);
        }
    }
    for (int rank = 0; rank < 3 * ranks; rank++)
        all += ownership_elements(&map, OWNERSHIP_PARAMETERS, program.flat_count, rank);
    assert_int_equal(all, program.flat_count);
    ownership_release(&map);
    program_release(&program);
}

static void test_ownership__stages_have_their_own(void **state)
{
    (void)state;
    expect_stages(1);
    expect_stages(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ownership__a_replicated_job_has_one_line),
        cmocka_unit_test(test_ownership__covers_all_and_has_holders),
        cmocka_unit_test(test_ownership__places_follow_each_other),
        cmocka_unit_test(test_ownership__shards_add_up),
        cmocka_unit_test(test_ownership__says_what_is_lost),
        cmocka_unit_test(test_ownership__private_values_are_no_state_to_lose),
        cmocka_unit_test(test_ownership__stages_have_their_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
