/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_TOPOLOGY_FIT_H
#define LIBFLEET_STRATEGY_TOPOLOGY_FIT_H

/*
 * Can a job be divided over a grid of ranks? A number of the job that is 0 is not known, and allows
 * everything. The model's builder refuses by these rules, and errors suggest by them. Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/strategy/topology.h"

struct strategy;
struct strategy_options;

/* What is known of a job. */
struct topology_job {
    int ranks_of_worker; /* a user gives the number of workers, and each has so many ranks */
    int64_t heads, kv_heads, hidden, vocabulary; /* of a text model; other models have 1 head */
    int64_t layers;                              /* there are at most so many stages */
    int64_t context;                             /* tokens of a sample */
    int64_t micro_batch_size, micro_batches;     /* samples of a micro-batch; those of a batch */
    const struct strategy_options *options;      /* NULL: the defaults */
};

/* Each of `ranks` ranks gets some of the heads of keys and values, or one that others have, too. */
bool topology_fits_kv_heads(int64_t kv_heads, int64_t ranks);

/* The ranks that share tensors divide the heads, the hidden features and the vocabulary. */
bool topology_fits_tensors(const struct topology_job *job, int64_t model_ranks);

/* The ranks that share sequences divide the heads that one of `model_ranks` ranks has. */
bool topology_fits_sequences(const struct topology_job *job, int64_t model_ranks,
                             int64_t sequence_ranks);

/* `ranks` ranks divide the tokens of a micro-batch. */
bool topology_fits_tokens(const struct topology_job *job, int64_t ranks);

/* The ranks of these degrees that divide the tokens: those that share tensors only if the strategy
 * asks for it. */
int64_t topology_token_ranks(const struct strategy *s, const int degree[TOPOLOGY_AXES]);

/* All of these, and the stages, their schedule and the replicas' share of the batch. */
bool topology_fits(const struct strategy *s, const struct topology_job *job,
                   const int degree[TOPOLOGY_AXES]);

#endif
