/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_ELIMINATION_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_ELIMINATION_H

/*
 * Elimination in a cost graph: nodes and edges are replaced by smaller ones of the same least score
 * until one node is left; then each elimination, in reverse order, gives back the strategies that
 * it chose. Part of dynamic_programming.c.
 *
 *   edge      two edges between u and v become one; costs add
 *   operator  a node w of two neighbours u and v becomes an edge u–v: for each pair of their
 *             strategies the best of w's. If u and v are joined already (a triangle), rule "edge"
 *             follows.
 *   fold      a node of one neighbour is folded into it (merge and contract of the specification);
 *             one of none into any other
 *   star      a node w of three and more neighbours and one of these become one node, whose
 *             strategies are the pairs of theirs
 *
 * All four are exact; direction does not matter to them. A star with more than
 * ELIMINATION_PAIRS_MAX pairs keeps the cheapest of them, which is not.
 */

#include <stdbool.h>

#include "libfleet/autoparallel/search/cost_graph.h"

struct elimination_question {
    const struct cost_graph *graph;
    struct search_weights weights;
    double price;     /* of a byte of memory, added to the score */
    bool keeps_lists; /* a cell keeps each tuple that needs less memory than all cheaper ones */
};

/*
 * Strategies into choices[graph->node_count]. Returns 0, or -ENOENT if nothing is finite and within
 * the limit. *is_exact becomes false if something was cut.
 */
int elimination_solve(const struct elimination_question *question, int *choices, bool *is_exact);

#endif
