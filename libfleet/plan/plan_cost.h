/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_COST_H
#define LIBFLEET_PLAN_PLAN_COST_H

/*
 * Bytes and traffic of a rank. Part of plan_build(); see plan.h.
 *
 * Where every knob in effect has a pass, bytes are those of the memory plan. Else, with E elements
 * of parameters on a rank's stage, n ranks of a sharding group, a bytes of a weight and a gradient
 * (2 in 16-bit training, else 4), K bytes of optimizer state an element (4 a state, and 4 for the
 * fp32 copy in 16-bit training):
 *
 *   parameters   aE, with stage 3 aE/n          gradients  aE a live sum, with stage 2 and 3 aE/n
 *   optimizer    KE, with sharding KE/n         localsgd   a copy of the parameters
 *   dgc          4 more for the residual of each element of a tensor of 16384 and more
 *   activations  those of a micro-batch, by the stage's share of the layers, times the
 *                micro-batches that the schedule holds at once
 *
 * By the formulas an all-reduce over w ranks sends 2(w-1)/w of its bytes, a reduce or a broadcast
 * (w-1)/w. Else traffic is the sum over the program's operators (program_traffic.h).
 */

#include "libfleet/plan/plan.h"

/* Equal shards instead of those of one rank. */
#define PLAN_COST_EQUAL_SHARDS (-1)

/* What a rank of `stage` that owns `shard` needs, with what it holds as a buddy. */
void plan_cost_bytes(const struct plan *plan, int stage, int shard, size_t bytes[PLAN_BYTES_COUNT],
                     bool by_formula[PLAN_BYTES_COUNT]);

/* What a rank of `stage` sends for one update. Where every knob in effect has a pass, the program
 * says it, for `replica` or the heaviest one (program_traffic.h). */
void plan_cost_traffic(const struct plan *plan, int stage, int replica, struct plan_traffic *out);

/* Sum of the known parts. */
double plan_cost_sent(const struct plan_traffic *traffic);

/* Elements of the largest range of gradients that ranks exchange at a time. */
int64_t plan_cost_bucket_elements(const struct program *program);

/* Micro-batches of one batch that the busiest pipeline of the job runs. */
int64_t plan_cost_micro_batches(const struct plan *plan);

/* Slots, bytes and traffic into the plan; program, memory, parts and topology are there. */
void plan_cost(struct plan *plan);

#endif
