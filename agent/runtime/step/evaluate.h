/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STEP_EVALUATE_H
#define AGENT_RUNTIME_STEP_EVALUATE_H

/*
 * The loss on held-out data, computed by all ranks together.
 * `err` may not be NULL anywhere here.
 */

struct fleet_error;
struct trainer;

/*
 * If an evaluation is due after the newest committed update and has not been reported yet, compute
 * the loss on held-out data. The ranks share the micro-batches. Errors as train_run().
 */
int evaluate_if_due(struct trainer *trainer, struct fleet_error *err);

/* Allocate the data of evaluations, if the job has any; and free it. */
void evaluate_open(struct trainer *trainer);
void evaluate_reserve(struct trainer *trainer); /* memory for this generation's world */
void evaluate_close(struct trainer *trainer);

#endif
