/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The elimination against exhaustive search: thousands of random graphs of every shape (chains,
 * triangles, stars, parallel edges, parts that are not joined), with and without a memory limit.
 * Costs are small integers, so that sums are exact and ties are frequent.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/search/dynamic_programming.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"
#include "tests/support/seeds.h"

#define NODES_MAX   7
#define CHOICES_MAX 4

struct draw {
    struct fleet_random_key key;
    uint64_t counter;
};

static int draw_below(struct draw *draw, int end)
{
    return (int)(fleet_random_u64(draw->key, draw->counter++) % (uint64_t)end);
}

static struct search_cost draw_cost(struct draw *draw, int largest)
{
    return (struct search_cost){.computation = draw_below(draw, largest),
                                .partial = draw_below(draw, largest),
                                .forward = draw_below(draw, largest),
                                .memory = draw_below(draw, 2 * largest)};
}

static int draw_table(struct draw *draw, struct cost_graph *graph, int rows, int columns)
{
    int table = cost_graph_add_table(graph, rows, columns);

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            *cost_graph_at(graph, table, i, j) = draw_cost(draw, 12);
            if (draw_below(draw, 40) == 0) /* not possible */
                cost_graph_at(graph, table, i, j)->computation = INFINITY;
        }
    return table;
}

static void draw_graph(struct draw *draw, struct cost_graph *graph)
{
    int nodes = 1 + draw_below(draw, NODES_MAX), edges = draw_below(draw, 2 * nodes + 1);

    for (int i = 0; i < nodes; i++) {
        cost_graph_add_node(graph, "w",
                            draw_table(draw, graph, 1, 1 + draw_below(draw, CHOICES_MAX)));
        if (draw_below(draw, 8) == 0)
            graph->nodes[i].fixed = draw_below(draw, graph->nodes[i].choices);
    }
    for (int i = 0; i < edges && nodes > 1; i++) {
        int from = draw_below(draw, nodes), to = (from + 1 + draw_below(draw, nodes - 1)) % nodes;

        cost_graph_add_edge(
            graph, from, to,
            draw_table(draw, graph, graph->nodes[from].choices, graph->nodes[to].choices));
    }
}

struct exhaustive {
    double score, least_memory;
};

static bool next_choices(const struct cost_graph *graph, int *choices)
{
    for (int i = 0; i < graph->node_count; i++) {
        if (++choices[i] < graph->nodes[i].choices)
            return true;
        choices[i] = 0;
    }
    return false;
}

static bool keeps_fixed(const struct cost_graph *graph, const int *choices)
{
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].fixed != COST_GRAPH_FREE && graph->nodes[i].fixed != choices[i])
            return false;
    return true;
}

static struct exhaustive search_exhaustively(const struct cost_graph *graph,
                                             const struct search_weights *weights)
{
    struct exhaustive found = {INFINITY, INFINITY};
    int choices[NODES_MAX] = {0};

    do {
        struct search_cost cost = cost_graph_sum(graph, choices);
        double score = search_score(&cost, weights);

        if (!keeps_fixed(graph, choices) || !isfinite(cost.computation))
            continue;
        if (cost.memory < found.least_memory)
            found.least_memory = cost.memory;
        if (cost.memory <= weights->memory_limit && score < found.score)
            found.score = score;
    } while (next_choices(graph, choices));
    return found;
}

static void compare(const struct cost_graph *graph, const struct search_weights *weights)
{
    struct exhaustive expected = search_exhaustively(graph, weights);
    struct search_result found;
    struct fleet_error err;
    int rc = dynamic_programming_search(graph, weights, &found, &err);

    if (!isfinite(expected.least_memory)) {
        assert_int_equal(rc, -EINVAL);
    } else if (expected.least_memory > weights->memory_limit) {
        assert_int_equal(rc, -ENOMEM);
    } else {
        assert_int_equal(rc, 0);
        assert_true(found.is_exact);
        assert_true(found.score == expected.score);
        assert_true(found.bound == expected.score);
        assert_true(keeps_fixed(graph, found.choices));
        assert_true(found.cost.memory <= weights->memory_limit);
        search_result_release(&found);
    }
}

static void test_dynamic_programming__equals_exhaustive_search(void **state)
{
    unsigned long count = seeds_count(6000);

    (void)state;
    for (unsigned long seed = 0; seed < count; seed++) {
        struct draw draw = {fleet_random_key(seed, "cost graph", 0), 0};
        struct search_weights weights = {.alpha = draw_below(&draw, 3),
                                         .beta = draw_below(&draw, 4),
                                         .memory_limit = INFINITY,
                                         .inference = draw_below(&draw, 4) == 0};
        struct cost_graph graph = {0};

        draw_graph(&draw, &graph);
        compare(&graph, &weights);
        weights.memory_limit = draw_below(&draw, 20 * graph.node_count + 10);
        compare(&graph, &weights);
        cost_graph_release(&graph);
    }
}

/* Twice the costs, the same choice; no price of communication, the least computation. */
static void test_dynamic_programming__does_not_depend_on_the_scale(void **state)
{
    (void)state;
    for (unsigned long seed = 0; seed < 200; seed++) {
        struct draw draw = {fleet_random_key(seed, "scale", 0), 0};
        struct search_weights weights = {.alpha = 1, .beta = 3, .memory_limit = INFINITY};
        struct cost_graph graph = {0};
        struct search_result once, twice;
        struct fleet_error err;

        draw_graph(&draw, &graph);
        if (dynamic_programming_search(&graph, &weights, &once, &err) == 0) {
            weights.alpha = 2;
            weights.beta = 6;
            assert_int_equal(dynamic_programming_search(&graph, &weights, &twice, &err), 0);
            assert_memory_equal(once.choices, twice.choices,
                                (size_t)graph.node_count * sizeof(int));
            search_result_release(&once);
            search_result_release(&twice);
        }
        cost_graph_release(&graph);
    }
}

/* A graph that is too large for lists: the result fits, and the bound holds. */
static void test_dynamic_programming__prices_memory_in_large_graphs(void **state)
{
    struct draw draw = {fleet_random_key(7, "large", 0), 0};
    struct search_weights weights = {.alpha = 1, .beta = 1, .memory_limit = INFINITY};
    struct cost_graph graph = {0};
    struct search_result open, limited;
    struct fleet_error err;
    int table = cost_graph_add_table(&graph, 1, 40), edge = cost_graph_add_table(&graph, 40, 40);

    (void)state;
    for (int i = 0; i < 40; i++) { /* the more memory, the cheaper */
        *cost_graph_at(&graph, table, 0, i) =
            (struct search_cost){.computation = 100.0 / (1 + i), .memory = 1 + i};
        for (int j = 0; j < 40; j++)
            *cost_graph_at(&graph, edge, i, j) = draw_cost(&draw, 5);
    }
    for (int i = 0; i < 100; i++) {
        cost_graph_add_node(&graph, "w", table);
        if (i > 0)
            cost_graph_add_edge(&graph, i - 1, i, edge);
    }
    assert_int_equal(dynamic_programming_search(&graph, &weights, &open, &err), 0);
    weights.memory_limit = open.cost.memory / 2;
    assert_int_equal(dynamic_programming_search(&graph, &weights, &limited, &err), 0);
    assert_true(limited.cost.memory <= weights.memory_limit);
    assert_true(limited.score >= limited.bound && limited.bound >= open.score);
    assert_true(limited.score < 1.15 * limited.bound);
    weights.memory_limit = 10;
    assert_int_equal(dynamic_programming_search(&graph, &weights, &limited, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "the smallest needs"));
    search_result_release(&open);
    search_result_release(&limited);
    cost_graph_release(&graph);
}

static void test_dynamic_programming__corrects_short_messages(void **state)
{
    struct search_cost cost = search_cost_of_operator(5, 2048, 4000, 7);

    (void)state;
    assert_true(cost.computation == 5 && cost.forward == 3072 && cost.communication == 7072 &&
                cost.partial == 3072 + SEARCH_GAMMA * 4000 && cost.memory == 7);
    assert_true(search_cost_of_operator(0, 0, 9, 0).forward == 0);
    assert_true(search_cost_of_operator(0, 2049, 0, 0).forward == 3073);
    cost = search_cost_of_edge(0, 1, 5000, 0);
    assert_true(cost.communication == 3072 + 6024 && cost.partial == cost.communication &&
                cost.forward == cost.communication);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dynamic_programming__equals_exhaustive_search),
        cmocka_unit_test(test_dynamic_programming__does_not_depend_on_the_scale),
        cmocka_unit_test(test_dynamic_programming__prices_memory_in_large_graphs),
        cmocka_unit_test(test_dynamic_programming__corrects_short_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
