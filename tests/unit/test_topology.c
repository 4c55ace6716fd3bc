/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The grid of ranks: the degrees that each way of asking gives, the documented layout, refusals
 * with the nearest possible degrees, and the invariants (1) to (3) of topology.h for worlds up to
 * 4096 with random degrees.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/strategy/topology_fit.h"
#include "tests/unit/strategy_text.h"

/* "model 1 sequence 1 sharding 4 …", ones left out, or the errors. */
static char *degrees(const char *json, int world, const struct topology_job *job)
{
    struct fleet_strbuf out = {0};
    struct fleet_errors errors = {0};
    struct topology t;
    struct strategy s;
    char *refused = strategy_text_read(&s, json);

    if (refused)
        fail_msg("%s: %s", json, refused);
    if (topology_build(&s, world, job, "", &t, &errors) < 0) {
        strategy_release(&s);
        return strategy_text_errors(&errors);
    }
    fleet_strbuf_append(&out, "");
    for (int i = TOPOLOGY_AXES - 1; i >= 0; i--)
        if (t.degree[i] > 1)
            fleet_strbuf_appendf(&out, "%s%s %d", out.length ? " " : "",
                                 topology_axis_name((enum topology_axis)i), t.degree[i]);
    strategy_release(&s);
    return fleet_strbuf_take(&out);
}

static void expect_for(const struct topology_job *job, const char *json, int world,
                       const char *expected)
{
    char *got = degrees(json, world, job);

    if (strcmp(got, expected) != 0)
        fail_msg("%s on %d\n  expected: %s\n  actual:   %s", json, world, expected, got);
    free(got);
}

static void expect(const char *json, int world, const char *expected)
{
    expect_for(NULL, json, world, expected);
}

static void test_topology__degrees_come_from_what_was_asked(void **state)
{
    (void)state;
    expect("{}", 6, "data 6");
    expect("{}", 1, "");
    expect("{'sharding': true}", 4, "sharding 4");
    expect("{'sharding': true, 'sharding_configs': {'sharding_group_size': 2}}", 4, "sharding 4");
    expect("{'sharding': true, 'sharding_configs': {'sharding_group_size': 2, 'hybrid_dp': true}}",
           8, "data 4 sharding 2");
    expect("{'sharding': true, 'sharding_configs': {'sharding_degree': 1, 'dp_degree': 4,"
           " '_dp_as_optimizer_sharding': true}}",
           4, "sharding 4");
    expect("{'sharding': true, 'sharding_configs': {'sharding_degree': 2, 'dp_degree': 2,"
           " '_dp_as_optimizer_sharding': true}}",
           4, "data 2 sharding 2");
    expect("{'sharding': true, 'pipeline': true, 'sharding_configs': {'sharding_degree': 2,"
           " 'mp_degree': 2, 'pp_degree': 2, 'dp_degree': 2}}",
           16, "data 2 pipeline 2 sharding 2 model 2");
    expect("{'hybrid_configs': {'mp_degree': 2, 'pp_degree': 3}}", 12, "data 2 pipeline 3 model 2");
    expect("{'hybrid_configs': {'dp_degree': -1, 'sharding_degree': 4}}", 8, "data 2 sharding 4");
    expect("{'hybrid_configs': {'dp_degree': 2}, 'sharding': true}", 8, "data 2 sharding 4");
    expect("{'tensor_parallel': true, 'tensor_parallel_configs': {'tensor_parallel_degree': 4}}", 8,
           "data 2 model 4");
    expect("{'hybrid_configs': {'sep_degree': 2}}", 8, "data 4 sequence 2");
}

/* What a loss leaves may not be several whole groups. Other degrees still have to fit. */
static void test_topology__ranks_that_are_not_several_groups_are_one(void **state)
{
    static const char groups[] =
        "{'sharding': true, 'sharding_configs': {'sharding_group_size': 2, 'hybrid_dp': true}}";

    (void)state;
    expect(groups, 4, "data 2 sharding 2");
    expect(groups, 3, "sharding 3");
    expect(groups, 2, "sharding 2");
    expect(groups, 1, "");
    expect("{'sharding': true, 'sharding_configs': {'hybrid_dp': true}}", 12, "sharding 12");
    expect("{'sharding': true, 'hybrid_configs': {'dp_degree': 2}, 'sharding_configs': "
           "{'sharding_group_size': 2, 'hybrid_dp': true}}",
           3,
           "sharding_configs.sharding_group_size: sharding_group_size 2 × dp_degree 2 is 4, which "
           "is not 3 workers; nearest possible: 4 workers; or sharding_group_size 1 × dp_degree "
           "3, or sharding_group_size 3 × dp_degree 1");
}

static void test_topology__an_open_pipeline_takes_what_is_left(void **state)
{
    (void)state;
    expect("{'pipeline': true}", 4, "pipeline 4");
    expect("{'pipeline': true, 'hybrid_configs': {'dp_degree': 2}}", 8, "data 2 pipeline 4");
    expect("{'pipeline': true, 'sharding': true}", 12, "pipeline 2 sharding 6");
    expect("{'pipeline': true, 'fp16_allreduce': true}", 9, "data 3 pipeline 3");
    expect("{'pipeline': true, 'dgc': true, 'hybrid_configs': {'dp_degree': 2}}", 8,
           "data 2 pipeline 4");
}

static void test_topology__impossible_degrees_name_the_nearest(void **state)
{
    (void)state;
    expect("{'hybrid_configs': {'mp_degree': 2, 'pp_degree': 2}}", 6,
           "hybrid_configs.mp_degree: mp_degree 2 × pp_degree 2 is 4, which does not divide 6 "
           "workers; nearest possible: 4 or 8 workers; or mp_degree 2 × pp_degree 3, or "
           "mp_degree 3 × pp_degree 2");
    expect("{'hybrid_configs': {'mp_degree': 8}}", 6,
           "hybrid_configs.mp_degree: mp_degree 8 does not divide 6 workers; nearest "
           "possible: 8 workers; or mp_degree 6, or mp_degree 3");
    expect("{'sharding': true, 'sharding_configs': {'sharding_degree': 4, 'mp_degree': 2}}", 16,
           "sharding_configs.mp_degree: mp_degree 2 × sharding_degree 4 × dp_degree 1 is 8, which "
           "is not 16 workers; nearest possible: 8 workers; or mp_degree 2 × sharding_degree 4 × "
           "dp_degree 2, or mp_degree 2 × sharding_degree 8 × dp_degree 1");
    /* no job has so many workers */
    expect(
        "{'hybrid_configs': {'mp_degree': 300, 'pp_degree': 300}}", 4,
        "hybrid_configs.mp_degree: mp_degree 300 × pp_degree 300 is 90000, which does not divide "
        "4 workers; nearest possible: mp_degree 1 × pp_degree 4, or mp_degree 2 × pp_degree 2");
    expect("{}", 0, "the number of workers must be from 1 to 65536, not 0");
}

static void test_topology__suggestions_fit_the_model(void **state)
{
    static const char asked[] = "{'hybrid_configs': {'mp_degree': 2, 'pp_degree': 2}}";
    const struct topology_job two_heads = {.heads = 2, .hidden = 128, .layers = 2};

    (void)state;
    expect_for(&two_heads, asked, 6,
               "hybrid_configs.mp_degree: mp_degree 2 × pp_degree 2 is 4, which does not divide 6 "
               "workers; nearest possible: 4 or 8 workers; or mp_degree 1 × pp_degree 2, or "
               "mp_degree 2 × pp_degree 1");
    /* no number of workers makes a model of two heads divisible by three */
    expect_for(&two_heads, "{'hybrid_configs': {'mp_degree': 3}}", 4,
               "hybrid_configs.mp_degree: mp_degree 3 does not divide 4 workers; nearest possible: "
               "mp_degree 2, or mp_degree 1");
}

static void test_topology__suggestions_count_workers(void **state)
{
    static const char asked[] = "{'hybrid_configs': {'mp_degree': 2, 'pp_degree': 2}}";

    (void)state;
    expect_for(&(struct topology_job){.ranks_of_worker = 3}, asked, 15,
               "hybrid_configs.mp_degree: mp_degree 2 × pp_degree 2 is 4, which does not divide "
               "the 15 ranks of 5 workers; nearest possible: 4 or 8 workers; or mp_degree 1 × "
               "pp_degree 3, or mp_degree 3 × pp_degree 1");
    expect_for(&(struct topology_job){.ranks_of_worker = 3},
               "{'hybrid_configs': {'mp_degree': 2, 'dp_degree': 2}}", 3,
               "hybrid_configs.mp_degree: mp_degree 2 × dp_degree 2 is 4, which is not the 3 ranks "
               "of 1 worker; nearest possible: mp_degree 1 × dp_degree 3, or mp_degree 3 × "
               "dp_degree 1");
}

static void test_topology__two_fields_must_agree(void **state)
{
    (void)state;
    expect("{'tensor_parallel': true, 'tensor_parallel_configs': {'tensor_parallel_degree': 4},"
           " 'hybrid_configs': {'mp_degree': 2}}",
           8,
           "tensor_parallel_configs.tensor_parallel_degree: is 4, but hybrid_configs.mp_degree is "
           "2: both give the model degree");
    expect("{'tensor_parallel': true, 'tensor_parallel_configs': {'tensor_parallel_degree': 2},"
           " 'hybrid_configs': {'mp_degree': 2}}",
           8, "data 4 model 2");
}

static void test_topology__ranks_count_model_sharding_pipeline_data(void **state)
{
    struct fleet_errors errors = {0};
    struct topology t;
    struct strategy s;
    int at[TOPOLOGY_AXES], group[2];

    (void)state;
    assert_null(strategy_text_read(
        &s, "{'hybrid_configs': {'mp_degree': 2, 'sharding_degree': 2, 'pp_degree': 2}}"));
    assert_int_equal(topology_build(&s, 16, NULL, "", &t, &errors), 0);
    topology_coordinates(&t, 5, at);
    assert_int_equal(at[TOPOLOGY_MODEL], 1);
    assert_int_equal(at[TOPOLOGY_SHARDING], 0);
    assert_int_equal(at[TOPOLOGY_PIPELINE], 1);
    assert_int_equal(at[TOPOLOGY_DATA], 0);
    assert_int_equal(topology_group(&t, TOPOLOGY_PIPELINE, 5, group), 1);
    assert_int_equal(group[0], 1);
    assert_int_equal(group[1], 5);
    strategy_release(&s);
}

static void test_topology__hybrid_dp_groups_are_consecutive(void **state)
{
    struct fleet_errors errors = {0};
    struct topology t;
    struct strategy s;
    int group[4];

    (void)state;
    assert_null(strategy_text_read(&s, "{'sharding': true, 'sharding_configs':"
                                       " {'sharding_group_size': 4, 'hybrid_dp': true}}"));
    assert_int_equal(topology_build(&s, 8, NULL, "", &t, &errors), 0);
    assert_int_equal(topology_group(&t, TOPOLOGY_SHARDING, 6, group), 2); /* 6 mod 4 */
    for (int i = 0; i < 4; i++)
        assert_int_equal(group[i], 4 + i);
    assert_int_equal(topology_group(&t, TOPOLOGY_DATA, 6, group), 1); /* 6 div 4 */
    assert_int_equal(group[0], 2);
    strategy_release(&s);
}

static void test_topology__the_order_of_axes_can_be_given(void **state)
{
    struct fleet_errors errors = {0};
    struct topology t;
    struct strategy s;
    int at[TOPOLOGY_AXES];

    (void)state;
    assert_null(strategy_text_read(&s, "{'hybrid_configs': {'dp_degree': 2, 'pp_degree': 2,"
                                       " 'order': ['pp', 'dp', 'sharding', 'sep', 'mp']}}"));
    assert_int_equal(topology_build(&s, 4, NULL, "", &t, &errors), 0);
    topology_coordinates(&t, 1, at);
    assert_int_equal(at[TOPOLOGY_DATA], 1);
    assert_int_equal(at[TOPOLOGY_PIPELINE], 0);
    strategy_release(&s);
    expect("{'hybrid_configs': {'dp_degree': 2, 'pp_degree': 2, 'order': ['dp', 'mp']}}", 4,
           "hybrid_configs.order: leaves out \"pp\", whose degree is 2");
}

static int divisor(unsigned int *seed, int n)
{
    int d = 1 + rand_r(seed) % n;

    while (n % d != 0)
        d--;
    return d;
}

/* (1) to (3) for one grid; returns the number of the first that does not hold, or 0. */
static int broken_invariant(const struct topology *t)
{
    static int group[4096];
    static bool seen[4096];
    int product = 1, at[TOPOLOGY_AXES];

    for (int i = 0; i < TOPOLOGY_AXES; i++)
        product *= t->degree[i];
    if (product != t->world)
        return 1;
    for (int rank = 0; rank < t->world; rank++) {
        topology_coordinates(t, rank, at);
        for (int i = 0; i < TOPOLOGY_AXES; i++)
            if (at[i] < 0 || at[i] >= t->degree[i])
                return 2;
        if (topology_rank(t, at) != rank)
            return 2;
    }
    for (int axis = 0; axis < TOPOLOGY_AXES; axis++) {
        int members = 0;

        memset(seen, 0, sizeof(seen));
        for (int rank = 0; rank < t->world; rank++) {
            int place = topology_group(t, (enum topology_axis)axis, rank, group);
            if (group[place] != rank)
                return 3;
            for (int i = 1; i < t->degree[axis]; i++)
                if (group[i] <= group[i - 1])
                    return 3;
            for (int i = 0; place == 0 && i < t->degree[axis]; i++, members++) {
                if (seen[group[i]])
                    return 3;
                seen[group[i]] = true;
            }
        }
        if (members != t->world)
            return 3;
    }
    return 0;
}

static void test_topology__holds_its_invariants_at_random(void **state)
{
    (void)state;
    for (unsigned int seed = 1; seed <= 300; seed++) {
        unsigned int r = seed;
        int world = 1 + rand_r(&r) % (seed < 250 ? 128 : 4096), rest = world, broken;
        int mp = divisor(&r, rest), pp = divisor(&r, rest / mp);
        int sharding = divisor(&r, rest / mp / pp);
        struct fleet_errors errors = {0};
        struct topology t;
        struct strategy s;
        char json[160];

        (void)snprintf(
            json, sizeof(json),
            "{'hybrid_configs': {'mp_degree': %d, 'pp_degree': %d, 'sharding_degree': %d}}", mp, pp,
            sharding);
        assert_null(strategy_text_read(&s, json));
        if (topology_build(&s, world, NULL, "", &t, &errors) < 0)
            fail_msg("%s on %d: %s", json, world, errors.items[0].message);
        broken = broken_invariant(&t);
        if (broken)
            fail_msg("%s on %d breaks invariant (%d)", json, world, broken);
        strategy_release(&s);
    }
}

/* What a trainer plans with: topology_build() takes it. */
static void test_topology__the_fewest_ranks_are_the_product_of_what_is_given(void **state)
{
    static const struct {
        const char *strategy;
        int world;
    } rows[] = {
        {"{}", 1},
        {"{'sharding': true, 'pipeline': true}", 1},
        {"{'hybrid_configs': {'dp_degree': 2}}", 2},
        {"{'hybrid_configs': {'dp_degree': -1, 'mp_degree': 4}}", 4},
        {"{'hybrid_configs': {'dp_degree': 2, 'mp_degree': 2, 'pp_degree': 3}}", 12},
        {"{'sharding': true, 'sharding_configs': {'sharding_degree': 1, 'dp_degree': 2}}", 2},
        {"{'sharding_configs': {'dp_degree': 2}}", 1},
        {"{'hybrid_configs': {'dp_degree': 2000000000, 'mp_degree': 2000000000}}",
         TOPOLOGY_WORLD_MAX},
    };

    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(rows); i++) {
        struct strategy s;

        assert_null(strategy_text_read(&s, rows[i].strategy));
        assert_int_equal(topology_least_world(&s), rows[i].world);
        strategy_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topology__degrees_come_from_what_was_asked),
        cmocka_unit_test(test_topology__the_fewest_ranks_are_the_product_of_what_is_given),
        cmocka_unit_test(test_topology__ranks_that_are_not_several_groups_are_one),
        cmocka_unit_test(test_topology__an_open_pipeline_takes_what_is_left),
        cmocka_unit_test(test_topology__impossible_degrees_name_the_nearest),
        cmocka_unit_test(test_topology__suggestions_fit_the_model),
        cmocka_unit_test(test_topology__suggestions_count_workers),
        cmocka_unit_test(test_topology__two_fields_must_agree),
        cmocka_unit_test(test_topology__ranks_count_model_sharding_pipeline_data),
        cmocka_unit_test(test_topology__hybrid_dp_groups_are_consecutive),
        cmocka_unit_test(test_topology__the_order_of_axes_can_be_given),
        cmocka_unit_test(test_topology__holds_its_invariants_at_random),
    };
    return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
