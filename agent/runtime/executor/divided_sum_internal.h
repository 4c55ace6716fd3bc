/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_EXECUTOR_DIVIDED_SUM_INTERNAL_H
#define AGENT_RUNTIME_EXECUTOR_DIVIDED_SUM_INTERNAL_H

/* What the files of divided_sum.h share, for them alone: divided_sum.c (the host adds) and
 * divided_sum_device.c (the devices add). */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/executor/divided_sum.h"

/* ---- divided_sum.c --------------------------------------------------------------------------- */

/* A message of the call at work. */
void divided_sum_post(struct divided_sum *sum, int peer, bool is_receive, float *data,
                      int64_t count);

/* Where element `first` of piece `number` lies in slot `slot`; device memory. */
float *divided_sum_place(const struct divided_sum *sum, int number, int slot, int64_t first);

/* Its complete sum goes from this rank to others, or comes to this rank. */
bool divided_sum_moves(const struct divided_sum *sum, int number);

/* The messages that bring the complete sum of piece `number`, at `data`, to those that hold it. */
void divided_sum_post_shares(struct divided_sum *sum, int number, float *data);

/* ---- divided_sum_device.c -------------------------------------------------------------------- */

/* As divided_sum_add(), in the queue of `backend`; update at work: leaves > done. */
int divided_sum_add_on_device(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                              struct divided_range range, float *bucket, double deadline_ms,
                              struct fleet_error *err);

/* As divided_sum_share(), in the queue of `backend`. */
int divided_sum_share_on_device(struct divided_sum *sum, struct comm *comm, struct backend *backend,
                                double deadline_ms, struct fleet_error *err);

#endif
