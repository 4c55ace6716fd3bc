/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/sharding_propagation.h"

#include <errno.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define NO_CHOICE (-1)

struct spreading {
    const struct cost_graph *graph;
    const bool *parameters;
    int *choices;
    int *queue; /* [nodes] */
};

/* Communication on an edge if its ends have these strategies; `from` says which end `own` is. */
static double traffic(const struct spreading *s, const struct cost_edge *edge, bool from, int own,
                      int other)
{
    return cost_graph_at(s->graph, edge->table, from ? own : other, from ? other : own)
        ->communication;
}

/* The strategy of the other end that fits `own` best. */
static int best_for(const struct spreading *s, const struct cost_edge *edge, bool from, int own)
{
    const struct cost_node *node = &s->graph->nodes[from ? edge->to : edge->from];
    int best = 0;

    for (int i = 1; i < node->choices; i++) {
        double now = traffic(s, edge, from, own, i), least = traffic(s, edge, from, own, best);

        if (now < least ||
            (now == least && cost_graph_at(s->graph, node->table, 0, i)->computation <
                                 cost_graph_at(s->graph, node->table, 0, best)->computation))
            best = i;
    }
    return best;
}

static void spread(const struct spreading *s, int start)
{
    int first = 0, count = 0;

    s->queue[count++] = start;
    while (first < count) {
        int node = s->queue[first++];

        for (int i = 0; i < s->graph->edge_count; i++) {
            const struct cost_edge *edge = &s->graph->edges[i];
            bool from = edge->from == node;
            int other = from ? edge->to : edge->from;

            if ((!from && edge->to != node) || s->choices[other] != NO_CHOICE)
                continue;
            s->choices[other] = best_for(s, edge, from, s->choices[node]);
            s->queue[count++] = other;
        }
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Operators that use the parameter follow it, unless they are configured. */
static int follow(const struct spreading *s, int parameter, struct fleet_error *err)
{
    const struct cost_node *nodes = s->graph->nodes;
    int asks = NO_CHOICE;

    for (int i = 0; i < s->graph->edge_count && nodes[parameter].fixed == COST_GRAPH_FREE; i++) {
        const struct cost_edge *edge = &s->graph->edges[i];
        bool from = edge->from == parameter;
        int user = from ? edge->to : edge->from, wanted;

        if ((!from && edge->to != parameter) || nodes[user].fixed == COST_GRAPH_FREE)
            continue;
        wanted = best_for(s, edge, !from, nodes[user].fixed);
        if (asks == NO_CHOICE) {
            asks = user;
            s->choices[parameter] = wanted;
        } else if (traffic(s, edge, from, s->choices[parameter], nodes[user].fixed) > 0) {
            return fleet_error(err, -EINVAL,
                               "%s and %s are configured so that they need parameter %s in two "
                               "layouts",
                               nodes[asks].name, nodes[user].name, nodes[parameter].name);
        }
    }
    for (int i = 0; i < s->graph->edge_count && asks != NO_CHOICE; i++) {
        const struct cost_edge *edge = &s->graph->edges[i];
        bool from = edge->from == parameter;
        int user = from ? edge->to : edge->from;

        if ((from || edge->to == parameter) && nodes[user].fixed == COST_GRAPH_FREE)
            s->choices[user] = best_for(s, edge, from, s->choices[parameter]);
    }
    return 0;
}

/* Does a user of the parameter have a strategy that does not fit it? */
static bool is_torn(const struct spreading *s, int parameter)
{
    for (int i = 0; i < s->graph->edge_count; i++) {
        const struct cost_edge *edge = &s->graph->edges[i];

        if ((edge->from == parameter || edge->to == parameter) &&
            cost_graph_at(s->graph, edge->table, s->choices[edge->from], s->choices[edge->to])
                    ->communication > 0)
            return true;
    }
    return false;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int search(const struct spreading *s, struct fleet_error *err)
{
    const struct cost_graph *graph = s->graph;
    bool is_configured = false;
    int rc = 0;

    for (int n = 0; n < graph->node_count; n++) {
        s->choices[n] =
            graph->nodes[n].fixed == COST_GRAPH_FREE ? NO_CHOICE : graph->nodes[n].fixed;
        is_configured |= s->choices[n] != NO_CHOICE;
    }
    if (!is_configured)
        return fleet_error(err, -EINVAL, "no operator has a given strategy to begin at");
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].fixed != COST_GRAPH_FREE)
            spread(s, n);
    for (int n = 0; n < graph->node_count; n++)
        if (s->choices[n] == NO_CHOICE)
            s->choices[n] = 0;
    for (int n = 0; n < graph->node_count && rc == 0; n++)
        if (s->parameters && s->parameters[n] && is_torn(s, n))
            rc = follow(s, n, err);
    return rc;
}

int sharding_propagation_search(const struct cost_graph *graph, const bool *parameters,
                                struct propagation *out, struct fleet_error *err)
{
    struct spreading s = {.graph = graph, .parameters = parameters};
    int rc;

    s.choices = calloc((size_t)graph->node_count + 1, sizeof(*s.choices));
    s.queue = calloc((size_t)graph->node_count + 1, sizeof(*s.queue));
    fleet_assert(s.choices != NULL && s.queue != NULL);
    rc = search(&s, err);
    free(s.queue);
    if (rc < 0) {
        free(s.choices);
        return rc;
    }
    *out = (struct propagation){.choices = s.choices};
    for (int i = 0; i < graph->edge_count; i++) {
        const struct cost_edge *edge = &graph->edges[i];

        out->redistributions +=
            cost_graph_at(graph, edge->table, s.choices[edge->from], s.choices[edge->to])
                ->communication > 0;
    }
    return 0;
}

void propagation_release(struct propagation *propagation)
{
    free(propagation->choices);
    *propagation = (struct propagation){0};
}
