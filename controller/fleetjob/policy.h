/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POLICY_H
#define CONTROLLER_FLEETJOB_POLICY_H

/*
 * The decisions about a job, a file each: reconcile() calls them in order. A policy reads the pass,
 * and adds actions (pass.h) and conditions (status.h). The manual of a policy is the head of its
 * file.
 */

#include "controller/fleetjob/pass.h"

/* Accepted: does the spec make sense? False: nothing is made or changed. */
bool acceptance_check(struct pass *pass);
/* All steps are done: Succeeded. */
void success_policy_apply(struct pass *pass);
/* A failure that a rule calls final, or that the hub gave up on: Failed. */
void failure_policy_apply(struct pass *pass);
/* The rules as the hub wants them; the list is to be freed, what it points to is the spec's. */
struct failure_rules failure_policy_rules(const struct fleetjob_spec *spec);
/* What the rules say about a failure. */
enum failure_action failure_policy_action(const struct pass *pass, int exit_code,
                                          const char *reason);
/* Pods that end before training has begun: Failed when maxRestarts are used up. */
void restart_policy_apply(struct pass *pass);
/* How many restarts there were up to now, soon one after the other. */
int restart_policy_in_a_row(const struct pass *pass);
/* When the next pod of an index may be made, at once or after a back-off: if its last pod has
 * failed; … if its pods vanish. */
int64_t restart_policy_next_start(const struct pass *pass, const struct observed_pod *last);
int64_t restart_policy_after_vanished(const struct pass *pass, int index);
/* activeDeadlineSeconds, progressDeadlineSeconds: Failed. */
void deadline_apply(struct pass *pass);
/* runPolicy.suspend: end all pods, host no hub. True if the job is to stand still. */
bool suspend_apply(struct pass *pass);
/* How many members the hub takes, and how long it waits. */
void elastic_policy_apply(struct pass *pass);
/* Create missing pods, replace failed ones, delete surplus ones. */
void workers_apply(struct pass *pass);
/* Before the first generation: which workers get neighbouring ranks. */
void rank_order_apply(struct pass *pass);
/* A terminal job: which pods stay. */
void clean_pod_policy_apply(struct pass *pass);
/* A terminal job: when it is deleted. */
void ttl_after_finished_apply(struct pass *pass);
/* metadata.deletionTimestamp: end everything. True if the job is being deleted. */
bool deletion_apply(struct pass *pass);

#endif
