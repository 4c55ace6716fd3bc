/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_TOPOLOGY_NEAREST_H
#define LIBFLEET_STRATEGY_TOPOLOGY_NEAREST_H

/*
 * What an error suggests in place of a grid that is not possible. Each number works together with
 * all other numbers of the job (topology_fit.h). Pure.
 */

#include <stdint.h>

#include "libfleet/strategy/topology.h"

struct fleet_strbuf;
struct strategy;
struct topology_given;
struct topology_job;

/*
 * Append "; nearest possible: " and numbers of workers for the given degrees, and other degrees for
 * `world` ranks: "2 or 4 workers; or mp_degree 1". If no number of workers will do, fewer workers
 * with degrees that are nearer. If there is nothing of this, degrees with another batch: "mp_degree
 * 2 and globalBatchSize 8". If there is none, append nothing.
 */
void topology_nearest(const struct strategy *s, int world, const struct topology_job *job,
                      struct fleet_strbuf *out);

/* The fewest micro-batches of a batch, more than the job's, with which these degrees are possible.
 * 0: none, or not known. */
int64_t topology_nearest_batch(const struct strategy *s, const struct topology_job *job,
                               const int degree[TOPOLOGY_AXES]);

/* Append "mp_degree 2 × pp_degree 2", the degrees that fields give; returns how many they are. */
int topology_print_degrees(const struct topology_given *given, const int degree[TOPOLOGY_AXES],
                           struct fleet_strbuf *out);

#endif
