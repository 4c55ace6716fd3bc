/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_UPDATE_H
#define AGENT_RUNTIME_UPDATE_H

/*
 * What happens to a complete gradient: it is checked, judged, and becomes part of the state.
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct trainer;

/* Run the exchange section: slots[0] then holds the sum over all leaves. Errors as those of the
 * collectives in comm.h, and of executor_run(). */
int update_exchange(struct trainer *trainer, int64_t update, struct fleet_error *err);

/* Run the check section over slots[0]. *out_is_finite: no NaN or infinity in it. -ECANCELED: the
 * generation was aborted meanwhile. */
int update_check(struct trainer *trainer, int64_t update, bool *out_is_finite,
                 struct fleet_error *err);

/*
 * Make the update part of the state, the only place where that happens: judge its gradient, apply
 * the optimizer or leave it out, fold in running statistics, advance the ledger. `leaves` holds the
 * rows of all its leaves. -EDOM: the gradient is not finite and nothing says what to do about it;
 * nothing is committed.
 */
int update_commit(struct trainer *trainer, int64_t update, const float *leaves,
                  struct fleet_error *err);

/* Of the newest committed update: the norm of its gradient before clipping; NaN where every rank
 * had a gradient of its own. */
double update_norm(const struct trainer *trainer);

/* Leaves over which the gradient of a full update is averaged. */
int64_t update_averaged(const struct trainer *trainer);

/* The learning rate of `update`. */
double update_rate(const struct trainer *trainer, int64_t update);

#endif
