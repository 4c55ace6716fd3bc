/* SPDX-License-Identifier: Apache-2.0 */

/* sharding_propagation on graphs of products and element-wise operators over [64,64] on 8 devices,
 * with the costs of redistributions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libfleet/autoparallel/layout.h"
#include "libfleet/autoparallel/layout/redistribution.h"
#include "libfleet/autoparallel/search/sharding_propagation.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define DEVICES     8
#define SIZE        64
#define CHOICES_MAX 16
#define NODES_MAX   8
#define TYPE_SIZE   4

/* Strategies of a node: rows, inner, columns; element-wise ones have no inner axis. */
struct strategies {
    int count;
    struct {
        int rows, inner, columns;
        struct layout in, out;
    } strategies[CHOICES_MAX];
};

static struct strategies nodes[NODES_MAX];

static struct layout layout_of(int rows, int inner, int columns, int second)
{
    return (struct layout){.axes = 3,
                           .devices = {rows, inner, columns},
                           .dims = 2,
                           .map = {2, second},
                           .shape = {SIZE, SIZE}};
}

static int add_node(struct cost_graph *graph, const char *name, bool is_product)
{
    struct strategies *node = &nodes[graph->node_count];
    int table;

    node->count = 0;
    for (int rows = DEVICES; rows >= 1; rows /= 2)
        for (int inner = is_product ? DEVICES / rows : 1; inner >= 1; inner /= 2) {
            int columns = DEVICES / rows / inner;

            node->strategies[node->count].rows = rows;
            node->strategies[node->count].inner = inner;
            node->strategies[node->count].columns = columns;
            node->strategies[node->count].in = layout_of(rows, inner, columns, is_product ? 1 : 0);
            node->strategies[node->count++].out = layout_of(rows, inner, columns, 0);
        }
    table = cost_graph_add_table(graph, 1, node->count);
    for (int i = 0; i < node->count; i++)
        cost_graph_at(graph, table, 0, i)->computation = SIZE * SIZE * TYPE_SIZE;
    return cost_graph_add_node(graph, name, table);
}

static void add_edge(struct cost_graph *graph, int from, int to)
{
    int table = cost_graph_add_table(graph, nodes[from].count, nodes[to].count);

    for (int i = 0; i < nodes[from].count; i++)
        for (int j = 0; j < nodes[to].count; j++) {
            const struct layout *given = &nodes[from].strategies[i].out;
            struct redistribution steps;
            struct redistribution_cost cost;
            struct fleet_error err;

            assert_int_equal(
                redistribution_build(given, &nodes[to].strategies[j].in, true, &steps, &err), 0);
            redistribution_cost(&steps, layout_slice_elements(given), TYPE_SIZE, &cost);
            *cost_graph_at(graph, table, i, j) =
                search_cost_of_edge(cost.computation, cost.forward, cost.backward, cost.memory);
        }
    (void)cost_graph_add_edge(graph, from, to, table);
}

static void fix(struct cost_graph *graph, int node, int rows, int inner, int columns)
{
    for (int i = 0; i < nodes[node].count; i++)
        if (nodes[node].strategies[i].rows == rows && nodes[node].strategies[i].inner == inner &&
            nodes[node].strategies[i].columns == columns)
            graph->nodes[node].fixed = i;
    assert_int_not_equal(graph->nodes[node].fixed, COST_GRAPH_FREE);
}

static void expect_strategy(const struct propagation *found, int node, int rows, int inner,
                            int columns)
{
    int choice = found->choices[node];

    assert_int_equal(nodes[node].strategies[choice].rows, rows);
    assert_int_equal(nodes[node].strategies[choice].inner, inner);
    assert_int_equal(nodes[node].strategies[choice].columns, columns);
}

static void find(const struct cost_graph *graph, const bool *parameters, struct propagation *out)
{
    struct fleet_error err;

    if (sharding_propagation_search(graph, parameters, out, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_sharding_propagation__a_chain_takes_one_strategy(void **state)
{
    (void)state;
    for (int at = 0; at < 5; at++) {
        struct cost_graph graph = {0};
        struct propagation found;

        for (int i = 0; i < 5; i++)
            (void)add_node(&graph, "relu", false);
        for (int i = 0; i + 1 < 5; i++)
            add_edge(&graph, i, i + 1);
        fix(&graph, at, 2, 1, 4);
        find(&graph, NULL, &found);
        for (int i = 0; i < 5; i++)
            expect_strategy(&found, i, 2, 1, 4);
        assert_int_equal(found.redistributions, 0);
        propagation_release(&found);
        cost_graph_release(&graph);
    }
}

/* ((2,1),(1,4)), then (2,4), then the inner axis in 4. */
static void test_sharding_propagation__finds_rows_behind_columns(void **state)
{
    struct cost_graph graph = {0};
    struct propagation found;

    (void)state;
    (void)add_node(&graph, "first", true);
    (void)add_node(&graph, "relu", false);
    (void)add_node(&graph, "second", true);
    add_edge(&graph, 0, 1);
    add_edge(&graph, 1, 2);
    fix(&graph, 0, 2, 1, 4);
    find(&graph, NULL, &found);
    expect_strategy(&found, 1, 2, 1, 4);
    expect_strategy(&found, 2, 2, 4, 1);
    assert_int_equal(found.redistributions, 0);
    propagation_release(&found);
    cost_graph_release(&graph);
}

/* Where the two regions meet, and nowhere else. */
static void test_sharding_propagation__two_that_disagree_meet_once(void **state)
{
    struct cost_graph graph = {0};
    struct propagation found;

    (void)state;
    for (int i = 0; i < 6; i++)
        (void)add_node(&graph, "relu", false);
    for (int i = 0; i + 1 < 6; i++)
        add_edge(&graph, i, i + 1);
    fix(&graph, 0, 8, 1, 1);
    fix(&graph, 5, 2, 1, 4);
    find(&graph, NULL, &found);
    expect_strategy(&found, 0, 8, 1, 1);
    expect_strategy(&found, 5, 2, 1, 4);
    assert_int_equal(found.redistributions, 1);
    propagation_release(&found);
    cost_graph_release(&graph);
}

/* An operator that nobody configured follows the parameter; one that is not reached takes the
 * first. */
static void test_sharding_propagation__users_follow_their_parameter(void **state)
{
    static const bool parameters[NODES_MAX] = {true};
    struct cost_graph graph = {0};
    struct propagation found;
    struct fleet_error err;

    (void)state;
    (void)add_node(&graph, "table", false);
    for (int i = 1; i < 4; i++)
        (void)add_node(&graph, i == 1 ? "one" : i == 2 ? "two" : "alone", false);
    add_edge(&graph, 0, 1);
    add_edge(&graph, 0, 2);
    fix(&graph, 1, 4, 1, 2);
    find(&graph, parameters, &found);
    expect_strategy(&found, 0, 4, 1, 2);
    expect_strategy(&found, 2, 4, 1, 2);
    assert_int_equal(found.choices[3], 0);
    propagation_release(&found);

    fix(&graph, 2, 1, 1, 8);
    assert_int_equal(sharding_propagation_search(&graph, parameters, &found, &err), -EINVAL);
    assert_string_equal(
        err.text, "one and two are configured so that they need parameter table in two layouts");
    cost_graph_release(&graph);
}

static void test_sharding_propagation__needs_a_beginning(void **state)
{
    struct cost_graph graph = {0};
    struct propagation found;
    struct fleet_error err;

    (void)state;
    (void)add_node(&graph, "relu", false);
    assert_int_equal(sharding_propagation_search(&graph, NULL, &found, &err), -EINVAL);
    assert_string_equal(err.text, "no operator has a given strategy to begin at");
    cost_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharding_propagation__a_chain_takes_one_strategy),
        cmocka_unit_test(test_sharding_propagation__finds_rows_behind_columns),
        cmocka_unit_test(test_sharding_propagation__two_that_disagree_meet_once),
        cmocka_unit_test(test_sharding_propagation__users_follow_their_parameter),
        cmocka_unit_test(test_sharding_propagation__needs_a_beginning),
    };
    return cmocka_run_group_tests_name("sharding_propagation", tests, NULL, NULL);
}
