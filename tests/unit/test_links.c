/* SPDX-License-Identifier: Apache-2.0 */

/* The file of rates, and what they say of transfers and of ranks that share processors. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/search/links.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

static const struct links usual = {.devices_per_node = 4,
                                   .memory = 1e9,
                                   .compute = {{1e10, 1e10, 1e10}, 1e10},
                                   .inside = {1e-6, 1e10},
                                   .between = {1e-4, 1e8}};

static void test_links__group_inside_or_between_nodes(void **state)
{
    struct topology t = {.world = 16,
                         .degree = {[TOPOLOGY_MODEL] = 2,
                                    [TOPOLOGY_SEQUENCE] = 1,
                                    [TOPOLOGY_SHARDING] = 2,
                                    [TOPOLOGY_PIPELINE] = 2,
                                    [TOPOLOGY_DATA] = 2},
                         .order = {TOPOLOGY_MODEL, TOPOLOGY_SEQUENCE, TOPOLOGY_SHARDING,
                                   TOPOLOGY_PIPELINE, TOPOLOGY_DATA}};

    (void)state;
    assert_ptr_equal(links_between(&usual, &t, 1U << TOPOLOGY_MODEL), &usual.inside);
    assert_ptr_equal(links_between(&usual, &t, 1U << TOPOLOGY_SHARDING), &usual.inside);
    assert_ptr_equal(links_between(&usual, &t, 1U << TOPOLOGY_PIPELINE), &usual.between);
    assert_ptr_equal(links_between(&usual, &t, 1U << TOPOLOGY_DATA), &usual.between);
    assert_ptr_equal(links_between(&usual, &t, (1U << TOPOLOGY_DATA) | (1U << TOPOLOGY_SHARDING)),
                     &usual.between);
}

static void test_links__refuses_rates_that_are_none(void **state)
{
    FLEET_AUTO_JSON cJSON *json =
        cJSON_Parse("{\"devicesPerNode\":0,\"memoryPerDevice\":-1,\"compute\":{\"matrixFlops\":0},"
                    "\"insideNode\":{\"latencySeconds\":-1,\"bytesPerSecond\":1},\"speed\":1}");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct fleet_errors errors = {0};
    struct links links;

    (void)state;
    assert_int_equal(links_decode(json, &links, &errors), -EINVAL);
    fleet_errors_print(&errors, &text);
    assert_non_null(strstr(text.text, "devicesPerNode: "));
    assert_non_null(strstr(text.text, "memoryPerDevice: "));
    assert_non_null(strstr(text.text, "compute.matrixFlops: "));
    assert_non_null(strstr(text.text, "compute.attentionFlops: "));
    assert_non_null(strstr(text.text, "insideNode.latencySeconds: "));
    assert_non_null(strstr(text.text, "betweenNodes"));
    assert_non_null(strstr(text.text, "speed: "));
    fleet_errors_release(&errors);
}

static void test_links__refuses_groups_out_of_order(void **state)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(
        "{\"devicesPerNode\":8,\"memoryPerDevice\":1,\"processorsPerNode\":2,"
        "\"compute\":{\"matrixFlops\":1,\"attentionFlops\":1,\"convolutionFlops\":1,"
        "\"bytesPerSecond\":1},\"betweenNodes\":{\"latencySeconds\":0,\"bytesPerSecond\":1},"
        "\"insideNode\":{\"latencySeconds\":0,\"bytesPerSecond\":1,\"groups\":["
        "{\"ranks\":4,\"sumSeconds\":1,\"sumBytesPerSecond\":1,\"gatherSeconds\":1,"
        "\"gatherBytesPerSecond\":1},{\"ranks\":4,\"sumSeconds\":1,\"sumBytesPerSecond\":1,"
        "\"gatherSeconds\":1,\"gatherBytesPerSecond\":1}]}}");
    struct fleet_errors errors = {0};
    struct links links;

    (void)state;
    assert_int_equal(links_decode(json, &links, &errors), -EINVAL);
    assert_string_equal(errors.items[0].path, "insideNode.groups[1].ranks");
    fleet_errors_release(&errors);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static double seconds_of(const struct links_link *link, enum op_kind kind, int ranks, double calls,
                         double bytes)
{
    return links_transfer_seconds(
        link,
        &(struct plan_transfer){.kind = kind, .ranks = ranks, .calls = calls, .bytes = bytes});
}

/* Two measured numbers of ranks; others lie between them, or beyond. */
static void test_links__collectives_of_other_numbers_of_ranks(void **state)
{
    struct links_link link = {
        1e-6, 1e9, {.items = {{2, 1, 100, 0, 3, 300}, {8, 3, 300, 0, 9, 900}}}};

    (void)state;
    assert_true(is_near(seconds_of(&link, OP_ALL_REDUCE, 4, 2, 1e9), 2 * 4e-6 + 1));
    link.groups.count = 2;
    assert_true(is_near(seconds_of(&link, OP_TREE_SUM, 2, 2, 100), 2 + 1));
    assert_true(is_near(seconds_of(&link, OP_TREE_SUM, 4, 1, 200), 2 + 1));
    assert_true(is_near(seconds_of(&link, OP_TREE_SUM, 8, 1, 300), 3 + 1));
    assert_true(is_near(seconds_of(&link, OP_ALL_GATHER, 64, 1, 900), 18 + 1));
    assert_true(is_near(seconds_of(&link, OP_SEND, 8, 1, 1e9), 1e-6 + 1));
}

/* Rounds beyond one a call cost what was measured for them, and only in sums. */
static void test_links__rounds_of_large_sums(void **state)
{
    struct links_link link = {.groups = {.items = {{.ranks = 2,
                                                    .sum_seconds = 1,
                                                    .sum_bytes = 1,
                                                    .sum_round_seconds = 5,
                                                    .gather_seconds = 1,
                                                    .gather_bytes = 1},
                                                   {.ranks = 8,
                                                    .sum_seconds = 1,
                                                    .sum_bytes = 1,
                                                    .sum_round_seconds = 7,
                                                    .gather_seconds = 1,
                                                    .gather_bytes = 1}},
                                         .count = 2}};
    struct plan_transfer sum = {.kind = OP_ALL_REDUCE, .ranks = 4, .calls = 3, .rounds = 8};

    (void)state;
    assert_true(is_near(links_transfer_seconds(&link, &sum), 3 + 5 * 6));
    sum.rounds = 0;
    assert_true(is_near(links_transfer_seconds(&link, &sum), 3));
    sum.rounds = 8;
    sum.kind = OP_ALL_TO_ALL;
    assert_true(is_near(links_transfer_seconds(&link, &sum), 3));
}

/* Eight ranks on two processors compute four times as long as with a processor each. */
static void test_links__ranks_that_take_turns(void **state)
{
    struct links two = usual, many = usual;

    (void)state;
    two.processors_per_node = 2;
    two.devices_per_node = 8;
    many.processors_per_node = 64;
    assert_true(is_near(links_share(&two, 8), 4));
    assert_true(is_near(links_share(&two, 16), 4)); /* two nodes */
    assert_true(is_near(links_share(&two, 1), 1));
    assert_true(is_near(links_share(&many, 8), 1));
    assert_true(is_near(links_share(&usual, 8), 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links__group_inside_or_between_nodes),
        cmocka_unit_test(test_links__refuses_rates_that_are_none),
        cmocka_unit_test(test_links__refuses_groups_out_of_order),
        cmocka_unit_test(test_links__collectives_of_other_numbers_of_ranks),
        cmocka_unit_test(test_links__rounds_of_large_sums),
        cmocka_unit_test(test_links__ranks_that_take_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
