/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_UPDATE_H
#define AGENT_RUNTIME_STEP_UPDATE_H

/*
 * The way of a complete gradient: it is checked, judged, and applied to the state.
 * `err` may not be NULL anywhere here.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct trainer;

/* Run the exchange section: slots[0] then holds the sum over all leaves. Errors as those of the
 * collectives in comm.h, and of executor_run(). */
int update_exchange(struct trainer *trainer, int64_t update, struct fleet_error *err);

/* Run the check section over slots[0]. *out_is_finite: it has no NaN or infinity. -ECANCELED: the
 * generation was aborted meanwhile. */
int update_check(struct trainer *trainer, int64_t update, bool *out_is_finite,
                 struct fleet_error *err);

/*
 * Make the update part of the state; only this function does that. It judges the gradient, runs the
 * optimizer or skips it, folds in the running statistics and advances the ledger. `leaves` holds
 * the rows of all leaves of the update. -EDOM: the gradient is not finite and no setting allows to
 * go on; nothing is committed.
 */
int update_commit(struct trainer *trainer, int64_t update, const float *leaves,
                  struct fleet_error *err);

/* The norm of the gradient of the newest committed update, before clipping. NaN if each rank had a
 * gradient of its own. */
double update_norm(const struct trainer *trainer);

/* The number of leaves over which the gradient of a complete update is averaged. */
int64_t update_averaged(const struct trainer *trainer);

/* The learning rate of `update`. */
double update_rate(const struct trainer *trainer, int64_t update);

#endif
