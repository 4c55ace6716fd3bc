/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/cost_graph.h"

#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/memory.h"

#define SHORT_BYTES 2048.0 /* a message of at most so many bytes … */
#define SHORT_COST  3072.0 /* … costs this */
#define LONG_EXTRA  1024.0

/* ---- costs ----------------------------------------------------------------------------------- */

static double correct(double forward)
{
    if (forward <= 0)
        return 0;
    return forward <= SHORT_BYTES ? SHORT_COST : forward + LONG_EXTRA;
}

struct search_cost search_cost_of_operator(double computation, double forward, double backward,
                                           double memory)
{
    double sent = correct(forward);

    return (struct search_cost){.computation = computation,
                                .communication = sent + backward,
                                .partial = sent + SEARCH_GAMMA * backward,
                                .forward = sent,
                                .memory = memory};
}

struct search_cost search_cost_of_edge(double computation, double forward, double backward,
                                       double memory)
{
    double sent = correct(forward) + correct(backward);

    return (struct search_cost){.computation = computation,
                                .communication = sent,
                                .partial = sent,
                                .forward = sent,
                                .memory = memory};
}

double search_score(const struct search_cost *cost, const struct search_weights *weights)
{
    double sent = weights->inference ? cost->forward : cost->partial;

    return weights->alpha * cost->computation + weights->beta * sent;
}

/* ---- the graph ------------------------------------------------------------------------------- */

int cost_graph_add_table(struct cost_graph *graph, int rows, int columns)
{
    struct cost_table *table;

    fleet_assert(rows >= 1 && rows <= COST_GRAPH_CHOICES_MAX && columns >= 1 &&
                 columns <= COST_GRAPH_CHOICES_MAX);
    graph->tables = fleet_grow(graph->tables, (size_t)graph->table_count, sizeof(*graph->tables));
    table = &graph->tables[graph->table_count];
    *table = (struct cost_table){.rows = rows, .columns = columns};
    table->items = calloc((size_t)rows * (size_t)columns, sizeof(*table->items));
    fleet_assert(table->items);
    return graph->table_count++;
}

int cost_graph_add_node(struct cost_graph *graph, const char *name, int table)
{
    fleet_assert(table < graph->table_count && graph->tables[table].rows == 1);
    graph->nodes = fleet_grow(graph->nodes, (size_t)graph->node_count, sizeof(*graph->nodes));
    graph->nodes[graph->node_count] = (struct cost_node){.name = fleet_dup_text(name),
                                                         .table = table,
                                                         .choices = graph->tables[table].columns,
                                                         .fixed = COST_GRAPH_FREE};
    return graph->node_count++;
}

int cost_graph_add_edge(struct cost_graph *graph, int from, int to, int table)
{
    fleet_assert(from != to && from < graph->node_count && to < graph->node_count &&
                 graph->tables[table].rows == graph->nodes[from].choices &&
                 graph->tables[table].columns == graph->nodes[to].choices);
    graph->edges = fleet_grow(graph->edges, (size_t)graph->edge_count, sizeof(*graph->edges));
    graph->edges[graph->edge_count] = (struct cost_edge){.from = from, .to = to, .table = table};
    return graph->edge_count++;
}

struct search_cost *cost_graph_at(const struct cost_graph *graph, int table, int row, int column)
{
    const struct cost_table *t = &graph->tables[table];

    fleet_assert(row >= 0 && row < t->rows && column >= 0 && column < t->columns);
    return &t->items[(size_t)row * (size_t)t->columns + (size_t)column];
}

void search_cost_add(struct search_cost *sum, const struct search_cost *cost)
{
    sum->computation += cost->computation;
    sum->communication += cost->communication;
    sum->partial += cost->partial;
    sum->forward += cost->forward;
    sum->memory += cost->memory;
}

struct search_cost cost_graph_sum(const struct cost_graph *graph, const int *choices)
{
    struct search_cost sum = {0};

    for (int i = 0; i < graph->node_count; i++)
        search_cost_add(&sum, cost_graph_at(graph, graph->nodes[i].table, 0, choices[i]));
    for (int i = 0; i < graph->edge_count; i++) {
        const struct cost_edge *edge = &graph->edges[i];

        search_cost_add(&sum,
                        cost_graph_at(graph, edge->table, choices[edge->from], choices[edge->to]));
    }
    return sum;
}

void cost_graph_release(struct cost_graph *graph)
{
    for (int i = 0; i < graph->table_count; i++)
        free(graph->tables[i].items);
    for (int i = 0; i < graph->node_count; i++)
        free(graph->nodes[i].name);
    free(graph->tables);
    free(graph->nodes);
    free(graph->edges);
    *graph = (struct cost_graph){0};
}
