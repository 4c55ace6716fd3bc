/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/dynamic_programming.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/autoparallel/search/elimination.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

#define LISTS_WORK_MAX 3e6 /* sum of the cubes of strategies up to which cells keep lists */
#define PRICE_ROUNDS   24  /* of halving the interval of prices */
#define IMPROVE_ROUNDS 8   /* over all nodes */

/* ---- one elimination ------------------------------------------------------------------------- */

struct search {
    const struct cost_graph *graph;
    struct search_weights weights;
    struct search_result best;
    bool has_best;
    int *choices; /* of the elimination at hand */
};

/* Costs of the choices at hand; a better result is kept if it fits. */
static struct search_cost look_at(struct search *s)
{
    struct search_cost cost = cost_graph_sum(s->graph, s->choices);
    double score = search_score(&cost, &s->weights);

    if (cost.memory <= s->weights.memory_limit && (!s->has_best || score < s->best.score)) {
        size_t size = (size_t)s->graph->node_count * sizeof(int);

        memcpy(s->best.choices, s->choices, size);
        s->best.cost = cost;
        s->best.score = score;
        s->has_best = true;
    }
    return cost;
}

static int solve(struct search *s, double price, bool keeps_lists, bool *is_exact)
{
    struct elimination_question question = {
        .graph = s->graph, .weights = s->weights, .price = price, .keeps_lists = keeps_lists};

    *is_exact = true;
    return elimination_solve(&question, s->choices, is_exact);
}

/* The least memory that any combination needs. */
static double least_memory(struct search *s)
{
    struct search_weights all = s->weights;
    bool is_exact;
    int rc;

    s->weights.alpha = s->weights.beta = 0;
    rc = solve(s, 1, false, &is_exact);
    s->weights = all;
    return rc < 0 ? INFINITY : look_at(s).memory;
}

/* ---- within a limit -------------------------------------------------------------------------- */

static double lists_work(const struct cost_graph *graph)
{
    double work = 0;

    for (int i = 0; i < graph->node_count; i++)
        work += pow(graph->nodes[i].choices, 3);
    return work;
}

/*
 * Raise the price of memory until the result fits, then look for the lowest such price. Each exact
 * solution says that nothing within the limit has a lower score than its own with the price of the
 * memory above the limit: Lagrange's bound.
 */
static void search_by_price(struct search *s, double score, double memory)
{
    double low = 0, high = (fabs(score) + 1) / (memory + 1);
    bool is_exact, has_high = false;

    for (int round = 0; round < PRICE_ROUNDS || !has_high; round++) {
        double price = has_high ? (low + high) / 2 : high;
        struct search_cost cost;

        if (!isfinite(price) || solve(s, price, false, &is_exact) < 0)
            return;
        cost = look_at(s);
        if (is_exact)
            s->best.bound =
                fmax(s->best.bound, search_score(&cost, &s->weights) +
                                        price * (cost.memory - s->weights.memory_limit));
        if (cost.memory > s->weights.memory_limit) {
            low = price;
            high = has_high ? high : 4 * high;
        } else {
            high = price;
            has_high = true;
        }
    }
}

/* Cost of node `node` and its edges with strategy `choice`, beside the best's others. */
static struct search_cost cost_around(const struct search *s, const int *edges, int node,
                                      int choice)
{
    const struct cost_graph *graph = s->graph;
    struct search_cost sum = *cost_graph_at(graph, graph->nodes[node].table, 0, choice);

    for (; *edges >= 0; edges++) {
        const struct cost_edge *edge = &graph->edges[*edges];
        int from = edge->from == node ? choice : s->best.choices[edge->from];
        int to = edge->to == node ? choice : s->best.choices[edge->to];

        search_cost_add(&sum, cost_graph_at(graph, edge->table, from, to));
    }
    return sum;
}

/* Give one node a strategy of lower score, if the whole still fits. */
static bool improve_node(struct search *s, const int *edges, int node)
{
    int now = s->best.choices[node];
    struct search_cost cost = cost_around(s, edges, node, now);
    double others = s->best.cost.memory - cost.memory;
    double lowest = search_score(&cost, &s->weights);

    if (s->graph->nodes[node].fixed != COST_GRAPH_FREE)
        return false;
    for (int i = 0; i < s->graph->nodes[node].choices; i++) {
        struct search_cost other = cost_around(s, edges, node, i);

        if (search_score(&other, &s->weights) < lowest &&
            others + other.memory <= s->weights.memory_limit) {
            lowest = search_score(&other, &s->weights);
            s->best.choices[node] = i;
        }
    }
    if (s->best.choices[node] == now)
        return false;
    s->best.cost = cost_graph_sum(s->graph, s->best.choices);
    s->best.score = search_score(&s->best.cost, &s->weights);
    return true;
}

/* A price moves equal layers together; one after the other they may use the memory that is left. */
static void improve(struct search *s)
{
    const struct cost_graph *graph = s->graph;
    int *lists = calloc((size_t)(2 * graph->edge_count + graph->node_count), sizeof(*lists));
    int *first = calloc((size_t)graph->node_count, sizeof(*first)), used = 0;
    bool changed = true;

    fleet_assert(lists && first);
    for (int node = 0; node < graph->node_count; node++) {
        first[node] = used;
        for (int e = 0; e < graph->edge_count; e++)
            if (graph->edges[e].from == node || graph->edges[e].to == node)
                lists[used++] = e;
        lists[used++] = -1;
    }
    for (int round = 0; round < IMPROVE_ROUNDS && changed; round++) {
        changed = false;
        for (int node = 0; node < graph->node_count; node++)
            changed |= improve_node(s, lists + first[node], node);
    }
    free(lists);
    free(first);
}

static int refuse_memory(double limit, double least, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_append(&text, "no combination of strategies fits into ");
    fleet_strbuf_append_size(&text, limit);
    fleet_strbuf_append(&text, " of memory: the smallest needs ");
    fleet_strbuf_append_size(&text, least);
    return fleet_error(err, -ENOMEM, "%s", text.text);
}

/* The best takes more memory than there is. */
static int search_within(struct search *s, const struct search_cost *cost, struct fleet_error *err)
{
    double least = least_memory(s);
    bool is_exact;

    s->best.is_exact = false;
    if (least > s->weights.memory_limit)
        return refuse_memory(s->weights.memory_limit, least, err);
    if (lists_work(s->graph) <= LISTS_WORK_MAX && solve(s, 0, true, &is_exact) == 0) {
        (void)look_at(s);
        s->best.is_exact = is_exact;
        if (is_exact)
            s->best.bound = s->best.score;
        return 0;
    }
    search_by_price(s, search_score(cost, &s->weights), cost->memory);
    improve(s);
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int search(struct search *s, struct fleet_error *err)
{
    struct search_cost cost;

    if (solve(s, 0, false, &s->best.is_exact) < 0)
        return fleet_error(err, -EINVAL,
                           "every combination of strategies has an operator or a redistribution "
                           "that is not possible");
    cost = look_at(s);
    s->best.bound = s->best.is_exact ? search_score(&cost, &s->weights) : -INFINITY;
    return s->has_best ? 0 : search_within(s, &cost, err);
}

int dynamic_programming_search(const struct cost_graph *graph, const struct search_weights *weights,
                               struct search_result *out, struct fleet_error *err)
{
    struct search s = {.graph = graph, .weights = *weights};
    int rc;

    s.choices = calloc((size_t)graph->node_count + 1, sizeof(int));
    s.best.choices = calloc((size_t)graph->node_count + 1, sizeof(int));
    fleet_assert(s.choices && s.best.choices);
    rc = search(&s, err);
    free(s.choices);
    if (rc < 0)
        search_result_release(&s.best);
    else
        *out = s.best;
    return rc;
}

void search_result_release(struct search_result *result)
{
    free(result->choices);
    *result = (struct search_result){0};
}
