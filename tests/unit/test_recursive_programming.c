/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The chains of matrix products of the specification's section 11.6: their strategies, and for the
 * first one every cost of every decision.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/search/recursive_programming.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define PRODUCTS_MAX 4

struct chain {
    struct recursive_node nodes[PRODUCTS_MAX];
    struct recursive_edge edges[PRODUCTS_MAX];
    struct recursive_graph graph;
};

/* X[batch, widths[0]] · W1[widths[0], widths[1]] · …; widths end with 0. */
static void make_chain(int64_t batch, const int64_t *widths, struct chain *out)
{
    int count = 0;

    memset(out, 0, sizeof(*out));
    for (; widths[count + 1]; count++) {
        out->nodes[count] = (struct recursive_node){
            .kind = RECURSIVE_MATMUL,
            .input = {{1, 1, batch, widths[count]}, {1, 1, widths[count], widths[count + 1]}},
            .output = {1, 1, batch, widths[count + 1]}};
        if (count > 0)
            out->edges[count - 1] = (struct recursive_edge){count - 1, count, 0};
    }
    out->graph = (struct recursive_graph){
        .nodes = out->nodes, .edges = out->edges, .node_count = count, .edge_count = count - 1};
}

static struct recursive_options options_of(int devices)
{
    return (struct recursive_options){.devices = devices,
                                      .stages = 1,
                                      .micro_batches = 1,
                                      .matmul_coefficient = RECURSIVE_MATMUL_COEFFICIENT};
}

static void test_recursive_programming__cuts_chains_as_recorded(void **state)
{
    static const struct {
        int64_t batch, widths[PRODUCTS_MAX + 2];
        int devices;
        int parts[PRODUCTS_MAX][4]; /* ((i,k),(k,j)) */
    } rows[] = {
        {128, {512, 2048, 512, 0}, 8, {{2, 1, 1, 4}, {2, 4, 4, 1}}},
        {16, {4096, 16384, 4096, 0}, 8, {{1, 1, 1, 8}, {1, 8, 8, 1}}},
        {1024, {1024, 1024, 0}, 4, {{4, 1, 1, 1}}},
        {2, {4096, 4096, 0}, 8, {{1, 1, 1, 8}}},
        {32, {784, 128, 10, 0}, 4, {{4, 1, 1, 1}, {4, 1, 1, 1}}},
        {8, {8192, 8192, 8192, 8192, 0}, 8, {{1, 1, 1, 8}, {1, 8, 8, 1}, {1, 1, 1, 8}}},
    };

    (void)state;
    for (size_t r = 0; r < FLEET_COUNT(rows); r++) {
        struct recursive_options options = options_of(rows[r].devices);
        struct fleet_error err;
        struct chain chain;

        make_chain(rows[r].batch, rows[r].widths, &chain);
        assert_int_equal(recursive_programming_search(&chain.graph, &options, NULL, NULL, &err), 0);
        for (int i = 0; i < chain.graph.node_count; i++) {
            const struct recursive_cut *cut = &chain.nodes[i].cut;
            int parts[4] = {cut->input[0][2], cut->input[0][3], cut->input[1][2], cut->input[1][3]};

            assert_memory_equal(parts, rows[r].parts[i], sizeof(parts));
        }
    }
}

struct decision {
    double i, j, k, none; /* 0: illegal */
    enum recursive_option chosen;
};

static void compare_cost(double cost, double expected)
{
    if (expected == 0)
        assert_true(isinf(cost));
    else
        assert_true(fabs(cost - expected) <= 1e-3);
}

static void compare_decision(void *context, int round, int node,
                             const double costs[RECURSIVE_OPTIONS], enum recursive_option chosen)
{
    static const struct decision decisions[] = {
        {52428.8, 131072, 32768, 42949672.96, RECURSIVE_CUT_K},
        {4246732.8, 32768, 4325376, 47143976.96, RECURSIVE_CUT_J},
        {26214.4, 0, 32768, 27487790.694, RECURSIVE_CUT_I},
        {26214.4, 2129920, 0, 29584942.694, RECURSIVE_CUT_I},
        {26214.4, 0, 16384, 10737418.24, RECURSIVE_CUT_K},
        {1074790.4, 16384, 0, 11785994.24, RECURSIVE_CUT_J},
    };
    int *count = context;
    const struct decision *expected = &decisions[*count];

    assert_in_range(*count, 0, FLEET_COUNT(decisions) - 1);
    assert_int_equal(round, *count / 2);
    assert_int_equal(node, 1 - *count % 2);
    compare_cost(costs[RECURSIVE_CUT_I], expected->i);
    compare_cost(costs[RECURSIVE_CUT_J], expected->j);
    compare_cost(costs[RECURSIVE_CUT_K], expected->k);
    compare_cost(costs[RECURSIVE_CUT_NONE], expected->none);
    assert_int_equal(chosen, expected->chosen);
    ++*count;
}

static void test_recursive_programming__has_the_costs_of_the_trace(void **state)
{
    static const int64_t widths[] = {512, 2048, 512, 0};
    struct recursive_options options = options_of(8);
    struct fleet_error err;
    struct chain chain;
    int count = 0;

    (void)state;
    make_chain(128, widths, &chain);
    assert_int_equal(
        recursive_programming_search(&chain.graph, &options, compare_decision, &count, &err), 0);
    assert_int_equal(count, 6);
}

/* Stages take the devices of the last rounds. */
static void test_recursive_programming__leaves_devices_to_stages(void **state)
{
    static const int64_t widths[] = {512, 2048, 512, 0};
    struct recursive_options options = options_of(8);
    struct fleet_error err;
    struct chain chain;

    (void)state;
    options.stages = 4;
    options.micro_batches = 8;
    make_chain(128, widths, &chain);
    assert_int_equal(recursive_programming_search(&chain.graph, &options, NULL, NULL, &err), 0);
    assert_int_equal(chain.nodes[0].cut.input[1][3], 2); /* round 1: j, then k */
    assert_int_equal(chain.nodes[1].cut.input[0][3], 2);
    assert_int_equal(chain.nodes[0].cut.input[0][2], 1);
    assert_true(recursive_input_elements(&chain.graph) ==
                128.0 * 512 + 512.0 * 1024 + 128.0 * 1024 + 1024.0 * 512);
}

static void test_recursive_programming__refuses_other_numbers_of_devices(void **state)
{
    static const int64_t widths[] = {8, 8, 0};
    static const int devices[] = {0, -4, 3, 6, 2048};
    struct fleet_error err;
    struct chain chain;

    (void)state;
    make_chain(8, widths, &chain);
    for (size_t i = 0; i < FLEET_COUNT(devices); i++) {
        struct recursive_options options = options_of(devices[i]);

        assert_int_equal(recursive_programming_search(&chain.graph, &options, NULL, NULL, &err),
                         -EINVAL);
    }
}

/* A batch of matrices: the batch is cut first while it is small beside 32. */
static void test_recursive_programming__cuts_batches_of_products(void **state)
{
    struct recursive_node node = {.kind = RECURSIVE_BATCH_MATMUL,
                                  .input = {{32, 4, 64, 64}, {32, 4, 64, 64}},
                                  .output = {32, 4, 64, 64}};
    struct recursive_graph graph = {.nodes = &node, .node_count = 1};
    struct recursive_options options = options_of(4);
    struct fleet_error err;

    (void)state;
    assert_int_equal(recursive_programming_search(&graph, &options, NULL, NULL, &err), 0);
    /* 128 matrices: n costs 0, c |0 - 1|, so n twice. */
    assert_int_equal(node.cut.output[0], 4);
    assert_int_equal(node.cut.input[1][0], 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recursive_programming__cuts_chains_as_recorded),
        cmocka_unit_test(test_recursive_programming__has_the_costs_of_the_trace),
        cmocka_unit_test(test_recursive_programming__leaves_devices_to_stages),
        cmocka_unit_test(test_recursive_programming__refuses_other_numbers_of_devices),
        cmocka_unit_test(test_recursive_programming__cuts_batches_of_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
