/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_GRID_SEARCH_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_GRID_SEARCH_H

/*
 * auto_parallel: MindSpore's searches, limited to what the built-in trainer runs. It runs grids, so
 * all operators share one choice: the devices of a stage are data × model (tensor) degree. The
 * strategy of each operator follows from the grid. Pure.
 *
 *   score                    that of cost_graph.h: computation + 50 · communication, over all
 *                            operators of the program that a rank of the grid runs on the samples
 *                            of the busiest replica. Computation is bytes of one device's slices;
 *                            communication is what the plan of this program says that a rank sends
 *                            (program_traffic.h), also between operators that are divided in
 *                            different ways
 *   dynamic_programming      the grid of least score: exact, since the space is the grids
 *   recursive_programming    log2(devices) rounds; each cuts all operators in two, by samples or
 *                            by heads and features, as the score says
 *
 * A grid is possible if its model degree divides the model (model_check_ranks()) and each replica
 * has a micro-batch for each stage. Of equal scores the one with more replicas wins.
 */

#include <stdbool.h>

struct fleet_error;
struct training_config;

enum grid_search_kind {
    GRID_SEARCH_RECURSIVE,
    GRID_SEARCH_DYNAMIC,
};

struct grid_request {
    const struct training_config *training; /* decoded and related; its vocabulary is known */
    int devices;                            /* of a stage */
    int stages;
    int model;        /* the given model degree; 0: it is searched */
    bool by_operator; /* single operators are divided as training->operators says */
    enum grid_search_kind kind;
};

struct grid {
    int data, model;
};

/* -EINVAL: no grid is possible, or the recursive search got another number of devices than a power
 * of two. */
int grid_search(const struct grid_request *request, struct grid *out, struct fleet_error *err);

/* The score of a grid. -EINVAL: it is not possible. */
int grid_score(const struct grid_request *request, const struct grid *grid, double *out,
               struct fleet_error *err);

#endif
