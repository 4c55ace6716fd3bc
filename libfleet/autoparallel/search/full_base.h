/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_FULL_BASE_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_FULL_BASE_H

/*
 * Plans that many combinations share, and lower bounds of time and memory of a combination. Part of
 * full_search.c.
 *
 * A base belongs to one micro-batch, recompute or not, and one cell: the ranks that share tensors
 * and sequences. Its program is that of a rank of such a cell.
 *
 *   rough bounds  from the base of the cell of one rank: a rank of a larger cell runs at least its
 *                 share of each layer; and what the ranks of the cell must send
 *   bounds        from the base of the combination's own cell
 *
 * Both count computing, bubble, what is sent in layers, and the gathers of sharding stage 3. They
 * do not count what is sent once an update or between stages.
 */

#include <stdbool.h>

#include "libfleet/autoparallel/search/full_search.h"
#include "libfleet/training/training.h"

struct full_base {
    struct full_choice cell;         /* its micro-batch, recompute, sequence and model */
    struct training_config training; /* shallow: only the micro-batch is another */
    bool is_refused; /* the job's settings do not allow the cell; nothing else is set */
    struct plan plan;
    struct step_profile profile;
    double cell_seconds[OP_GROUP_CELL + 1][2]; /* in a micro-batch, by axes; inside, between */
    double *elements_before; /* [layers + 1] elements of parameters of the layers before */
    double matrices;         /* elements of those of two dimensions in layers */
    double largest;          /* elements of the largest parameter */
    int tensors;             /* parameters in layers */
};

struct full_bases {
    const struct full_request *request;
    struct full_base *items;
    int count;
};

/* Append the base of a combination. -ENOENT: recompute repeats nothing here. -EINVAL. */
int full_bases_add(struct full_bases *bases, const struct full_choice *choice,
                   struct fleet_errors *errors);

/* The base of a combination; made if it is the first with its cell. -1: the job's settings do not
 * allow it. */
int full_bases_find(struct full_bases *bases, const struct full_choice *choice);
void full_bases_release(struct full_bases *bases);

/* The request for the plan of a combination; `strategy` is filled, and the caller's to release. */
struct plan_request full_plan_request(const struct full_request *request,
                                      const struct training_config *training,
                                      const struct full_choice *choice, struct strategy *strategy);

/* A draft of it; with a program of `like`, if it is the same. */
int full_plan(const struct full_request *request, const struct training_config *training,
              const struct full_choice *choice, const struct plan *like, struct plan *out,
              struct fleet_errors *errors);

/* No plan of the combination is faster, or needs less of a rank's memory. `base` is that of its
 * cell, or, with its micro-batch and recompute, that of the cell of one rank. */
double full_bound_seconds(const struct full_request *request, const struct full_base *base,
                          const struct full_choice *choice);
double full_bound_bytes(const struct full_base *base, const struct full_choice *choice);

#endif
