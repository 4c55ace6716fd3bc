/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_COST_GRAPH_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_COST_GRAPH_H

/*
 * The graph on which dynamic programming works: a node is an operator with its strategies and what
 * each costs, an edge is a tensor between two operators with the cost of its redistribution for
 * every pair of strategies.
 *
 * Tables of costs belong to the graph and may be shared: the layers of a transformer repeat, so
 * thousands of nodes and edges need a few dozen tables.
 *
 * Owner: the caller holds `struct cost_graph`; cost_graph_release() frees all below it.
 */

#include <stdbool.h>
#include <stddef.h>

#define COST_GRAPH_CHOICES_MAX 4096 /* strategies of a node */
#define COST_GRAPH_FREE        (-1) /* no strategy is fixed */

/*
 * What a strategy of an operator, or a redistribution, costs. Sizes are bytes of local slices, or
 * seconds where they come from a measured model; one graph has one unit.
 */
struct search_cost {
    double computation;
    double communication; /* forward and backward */
    double partial;       /* forward + SEARCH_GAMMA · backward: sums of gradients overlap */
    double forward;       /* without parameters, too: they communicate backward only */
    double memory;        /* bytes that stay until the backward pass */
};

#define SEARCH_GAMMA 0.001

/* From its parts, with the correction for short messages: of `forward` bytes, 1 … 2048 count as
 * 3072, more get 1024 more. */
struct search_cost search_cost_of_operator(double computation, double forward, double backward,
                                           double memory);

/* The same for a redistribution, which cannot be overlapped: all of it counts. */
struct search_cost search_cost_of_edge(double computation, double forward, double backward,
                                       double memory);

void search_cost_add(struct search_cost *sum, const struct search_cost *cost);

/* What is minimized: alpha · computation + beta · partial (in inference: · forward), as long as the
 * memory of all nodes and edges is at most `memory_limit`. */
struct search_weights {
    double alpha, beta;
    double memory_limit; /* INFINITY: none */
    bool inference;
};

#define SEARCH_BETA_DEFAULT 50.0

double search_score(const struct search_cost *cost, const struct search_weights *weights);

struct cost_table {
    int rows, columns; /* of a node: 1 × strategies */
    struct search_cost *items;
};

struct cost_node {
    char *name;
    int table;
    int choices; /* strategies */
    int fixed;   /* the strategy that the user gave, or COST_GRAPH_FREE */
};

struct cost_edge {
    int from, to; /* nodes; several edges may join the same two */
    int table;    /* [strategies of from × strategies of to] */
};

struct cost_graph {
    struct cost_table *tables;
    struct cost_node *nodes;
    struct cost_edge *edges;
    int table_count, node_count, edge_count;
};

/* A table of zeros; returns its index. Items are filled through cost_graph_at(). */
int cost_graph_add_table(struct cost_graph *graph, int rows, int columns);

/* Append a node over a table of one row / an edge over a table of the nodes' sizes (asserted).
 * Returns its index. `name` is copied. */
int cost_graph_add_node(struct cost_graph *graph, const char *name, int table);
int cost_graph_add_edge(struct cost_graph *graph, int from, int to, int table);

struct search_cost *cost_graph_at(const struct cost_graph *graph, int table, int row, int column);

/* Sum of all nodes and edges for one strategy of each node. */
struct search_cost cost_graph_sum(const struct cost_graph *graph, const int *choices);

/* Fine on a zeroed graph. */
void cost_graph_release(struct cost_graph *graph);

#endif
