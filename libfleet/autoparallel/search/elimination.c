/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Working copies of the graph's nodes and edges, a pool of the cells that they and the steps refer
 * to, and the list of steps. A step keeps the cells that it made: they say, for the strategies of
 * the nodes that were left, the strategy and the tuples of each node that went.
 */
#include "libfleet/autoparallel/search/elimination.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "libfleet/autoparallel/search/elimination_internal.h"
#include "libfleet/base/assert.h"

#define STAR_WORK 1e300 /* more than any operator's */

/* ---- which next ------------------------------------------------------------------------------ */

/* Work of eliminating a node of two neighbours. */
static double operator_work(const struct work *work, int w)
{
    const struct work_node *node = &work->nodes[w];
    double product = node->choices;

    for (int i = 0; i < node->degree; i++)
        product *= work->nodes[work_other_end(work, node->edges[i], w)].choices;
    return product;
}

/* The node of the fewest neighbours; of those with two, the one of least work. */
static int next_node(const struct work *work, int *left)
{
    int best = -1;
    double least_work = INFINITY;

    *left = 0;
    for (int i = 0; i < work->node_count; i++) {
        const struct work_node *node = &work->nodes[i];
        double cost = node->degree;

        if (node->is_gone)
            continue;
        ++*left;
        if (node->degree > 1)
            cost = node->degree == 2 ? 2 + operator_work(work, i) : STAR_WORK;
        if (cost < least_work || best < 0) {
            least_work = cost;
            best = i;
        }
    }
    return best;
}

/* The edge whose ends have the fewest pairs of strategies. */
static int smallest_pair(const struct work *work)
{
    int best = ELIMINATION_NO_EDGE;
    int64_t fewest = INT64_MAX;

    for (int i = 0; i < work->edge_count; i++) {
        const struct work_edge *edge = &work->edges[i];
        int64_t pairs;

        if (edge->is_gone)
            continue;
        pairs = (int64_t)work->nodes[edge->a].choices * work->nodes[edge->b].choices;
        if (pairs < fewest) {
            fewest = pairs;
            best = i;
        }
    }
    return best;
}

/* Any other node that is left. */
static int other_node(const struct work *work, int w)
{
    for (int i = 0; i < work->node_count; i++)
        if (i != w && !work->nodes[i].is_gone)
            return i;
    return -1;
}

/* Down to one node, which is returned; -1: nothing is possible. */
static int eliminate_all(struct work *work)
{
    for (;;) {
        int left, w = next_node(work, &left), degree = work->nodes[w].degree;

        if (left == 1)
            return w;
        if (degree == 0) {
            work_fold(work, w, other_node(work, w), ELIMINATION_NO_EDGE);
        } else if (degree == 1) {
            int e = work->nodes[w].edges[0];
            work_fold(work, w, work_other_end(work, e, w), e);
        } else if (degree == 2) {
            work_eliminate_operator(work, w);
        } else {
            int e = smallest_pair(work);
            if (!work_merge_star(work, work->edges[e].a, work->edges[e].b))
                return -1;
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int from_table(struct work *work, const struct cost_table *table, int only)
{
    const struct elimination_question *q = work->question;
    struct cells made;

    work_begin(work, &made, table->rows, table->columns);
    for (int i = 0; i < table->rows * table->columns; i++) {
        const struct search_cost *cost = &table->items[i];
        struct cells_candidate candidate = {.score = search_score(cost, &q->weights) +
                                                     q->price * cost->memory,
                                            .memory = cost->memory};

        if (only == COST_GRAPH_FREE || i == only)
            cells_offer(&work->maker, &candidate);
        cells_close(&work->maker);
    }
    return work_add_cells(work, &made);
}

static void load(struct work *work, const struct cost_graph *graph)
{
    int *loaded = calloc((size_t)graph->table_count + 1, sizeof(*loaded)); /* index + 1 */

    fleet_assert(loaded);
    work->node_count = graph->node_count;
    work->nodes = calloc((size_t)graph->node_count, sizeof(*work->nodes));
    fleet_assert(work->nodes);
    for (int i = 0; i < graph->node_count; i++) {
        const struct cost_node *node = &graph->nodes[i];

        work->nodes[i].choices = node->choices;
        work->nodes[i].cells = from_table(work, &graph->tables[node->table], node->fixed);
    }
    for (int i = 0; i < graph->edge_count; i++) {
        const struct cost_edge *edge = &graph->edges[i];

        if (!loaded[edge->table])
            loaded[edge->table] =
                1 + from_table(work, &graph->tables[edge->table], COST_GRAPH_FREE);
        work_insert_edge(work, edge->from, edge->to, loaded[edge->table] - 1);
    }
    free(loaded);
}

static void release(struct work *work)
{
    for (int i = 0; i < work->pool_count; i++)
        cells_release(&work->pool[i]);
    for (int i = 0; i < work->node_count; i++)
        free(work->nodes[i].edges);
    for (int i = 0; i < work->step_count; i++) {
        free(work->steps[i].pairs_w);
        free(work->steps[i].pairs_u);
    }
    free(work->pool);
    free(work->nodes);
    free(work->edges);
    free(work->steps);
    free(work->maker.candidates);
}

int elimination_solve(const struct elimination_question *question, int *choices, bool *is_exact)
{
    struct work work = {
        .question = question,
        .maker = {.limit = question->weights.memory_limit, .keeps_lists = question->keeps_lists},
        .is_exact = true};
    int last;
    bool found;

    fleet_assert(question->graph->node_count > 0);
    load(&work, question->graph);
    last = eliminate_all(&work);
    found = last >= 0 && work_recover(&work, last, choices);
    if (!work.is_exact || work.maker.was_cut)
        *is_exact = false;
    release(&work);
    return found ? 0 : -ENOENT;
}
