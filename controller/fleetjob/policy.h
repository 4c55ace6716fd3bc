/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_FLEETJOB_POLICY_H
#define CONTROLLER_FLEETJOB_POLICY_H

/*
 * The decisions about a job, a file each. policies.def lists the policies and their order; here are
 * the three that decide whether the others are applied, and what policies ask each other. A policy
 * reads the pass, and adds actions (pass.h) and conditions (status.h). The manual of a policy is
 * the head of its file.
 */

#include "controller/fleetjob/pass.h"

#define POLICY(stage, name) void name##_apply(struct pass *pass);
#include "controller/fleetjob/policies.def"

/* metadata.deletionTimestamp: end everything. True if the job is being deleted. */
bool deletion_apply(struct pass *pass);
/* Accepted: is the spec valid? False: nothing is created or changed. */
bool acceptance_check(struct pass *pass);
/* runPolicy.suspend: end all pods, host no hub. True if the job is suspended. */
bool suspend_apply(struct pass *pass);

/* Delete the pods of all servers, with `reason`; with `only_living` those that may run. */
void servers_delete(struct pass *pass, const char *reason, bool only_living);
/* Is there a pod of a server that may run? */
bool servers_are_living(const struct pass *pass);
/* status.servers: how many there are. */
void servers_count(struct pass *pass);

/* The rules as the hub wants them. The caller frees the list; its items belong to the spec. */
struct failure_rules failure_policy_rules(const struct fleetjob_spec *spec);
/* What the rules say about a failure. */
enum failure_action failure_policy_action(const struct pass *pass, int exit_code,
                                          const char *reason);
/* Restarts up to now that followed each other soon. */
int restart_policy_in_a_row(const struct pass *pass);
/* When the next pod of an index may be created, wall ms: at once, or after a back-off. The first
 * function is for an index whose last pod failed, the second for one whose pods vanish. */
int64_t restart_policy_next_start(const struct pass *pass, const struct observed_pod *last);
int64_t restart_policy_after_vanished(const struct pass *pass, int index);
/* Ask for pods that the status counts as living and that were not seen: they may have lost the
 * label that the watch selects. */
void workers_look_for_missing(struct pass *pass);

#endif
