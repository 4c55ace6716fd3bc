/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_DYNAMIC_PROGRAMMING_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_DYNAMIC_PROGRAMMING_H

/*
 * The search dynamic_programming: of all combinations of strategies the one of least score, by
 * elimination in a cost graph (elimination.h). Pure.
 *
 * Without a memory limit, or where the best fits into it, the result is exact for every graph whose
 * stars are small (ELIMINATION_PAIRS_MAX). If the best does not fit, cells keep a list of
 * tuples, which is exact, too, while no list is cut (FRONT_MAX). A graph too large for lists is
 * solved with a price on memory that is doubled and halved until the result fits; then `bound` says
 * how far from the best it can be at most.
 *
 * MindSpore prunes its lists by computation and communication and forgets memory, so it may report
 * that nothing fits where something does, and its stars and triangles may contradict each other.
 */

#include <stdbool.h>

#include "libfleet/autoparallel/search/cost_graph.h"

struct fleet_error;

struct search_result {
    int *choices;            /* [nodes] the strategy of each */
    struct search_cost cost; /* sum of all nodes and edges */
    double score;
    double bound;  /* no combination within the limit has a lower score; equal if exact */
    bool is_exact; /* proven to be the best */
};

/*
 * -ENOMEM: no combination was found whose memory is at most the limit; the message has the limit
 * and the least memory found. -EINVAL: every combination costs infinitely much.
 * Release *out.
 */
int dynamic_programming_search(const struct cost_graph *graph, const struct search_weights *weights,
                               struct search_result *out, struct fleet_error *err);
void search_result_release(struct search_result *result);

#endif
