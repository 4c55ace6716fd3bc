/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_SHARDING_PROPAGATION_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_SHARDING_PROPAGATION_H

/*
 * The search sharding_propagation: strategies spread from the operators that a user configured
 * (`fixed` nodes of a cost graph), so that little is redistributed. Pure.
 *
 *   1. For each configured operator, in order: breadth first along the edges, in both directions. A
 *      neighbour without a strategy takes the one of least communication on that edge; of equal
 *      ones that of least computation, then the first. A configured neighbour, or one that has a
 *      strategy, keeps it, and the edge may then need a redistribution.
 *   2. A parameter of several operators takes the layout that a configured one among them needs.
 *      Operators that nobody configured then follow the parameter.
 *   3. Operators that were not reached take their first strategy.
 *
 * Source: mindspore/ccsrc/frontend/parallel/auto_parallel/graph_costmodel.cc (BFS).
 */

#include <stdbool.h>

#include "libfleet/autoparallel/search/cost_graph.h"

struct fleet_error;

struct propagation {
    int *choices;        /* [nodes] the strategy of each */
    int redistributions; /* edges that communicate */
};

/*
 * `parameters`: [nodes] true for a parameter; NULL: there are none. -EINVAL: no operator is
 * configured; or configured operators need one parameter in two layouts (the message names them).
 * Release *out.
 */
int sharding_propagation_search(const struct cost_graph *graph, const bool *parameters,
                                struct propagation *out, struct fleet_error *err);
void propagation_release(struct propagation *propagation);

#endif
