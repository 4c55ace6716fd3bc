/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_JOIN_ROLLBACK_H
#define AGENT_RUNTIME_JOIN_ROLLBACK_H

/*
 * Going back to the last checkpoint when training.health asks for it.
 * `err` may not be NULL anywhere here.
 */

struct fleet_error;
struct trainer;

/* If the newest committed update owes a rollback, take the state back to the last checkpoint, on
 * all ranks. Errors as train_run(); the state is then lost (TRAINER_NO_STATE). -ECANCELED also if
 * that checkpoint must be made again, because the rank that was to write it died. */
int rollback_if_due(struct trainer *trainer, struct fleet_error *err);

#endif
