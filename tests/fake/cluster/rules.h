/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_CLUSTER_RULES_H
#define TESTS_FAKE_CLUSTER_RULES_H

/*
 * The rules that a cluster must keep (cluster.h), and what the cluster reports to them. A broken
 * rule ends the history by cluster_broken().
 */

#include "tests/fake/cluster/cells.h"
#include "tests/fake/cluster/cluster.h"

/* ---- check.c --------------------------------------------------------------------------------- */

void cluster_check_server(struct cluster *c);
void cluster_check_request(struct cluster *c, int replica, const struct kube_request *request);
/* `replica` is the leader, or `what` breaks a rule. */
void cluster_check_leads(struct cluster *c, int replica, const char *what);
/* True if each job is over or deleted, and none of its objects is left. */
bool cluster_is_settled(struct cluster *c);
void cluster_check_end(struct cluster *c);

/* ---- check_generations.c --------------------------------------------------------------------- */

void cluster_check_assign(struct cluster *c, struct cluster_hosted *hosted,
                          const struct message_assign *assign);
void cluster_check_event(struct cluster *c, struct cluster_hosted *hosted,
                         const struct hub_event *event);
void cluster_check_vote(struct cluster *c, struct cluster_run *run);
void cluster_check_apply(struct cluster *c, const struct cluster_run *run, int64_t step);
void cluster_check_start(struct cluster *c, struct cluster_run *run);
/* True if the trainer's state is on the lineage of the run. */
bool cluster_check_counts(const struct cluster *c, const struct cluster_run *run,
                          const struct cluster_trainer *t);

/* ---- cells.c --------------------------------------------------------------------------------- */

/* A job whose ranks share a model gets a generation. It continues from the state of `step`; -1 =
 * from a checkpoint or the start. Its members can read step `saved` again; 0 = only the start. */
void cluster_cells_assign(struct cluster *c, struct cluster_hosted *hosted, struct cluster_run *run,
                          int64_t step, int64_t saved);

/* ---- restarts.c ------------------------------------------------------------------------------ */

/* A fault hits a worker, and lasts until `until_ms`. */
void cluster_restarts_hurt(struct cluster *c, struct cluster_agent *a, double until_ms);
/* A trainer of the worker is about to be killed. */
void cluster_restarts_kill(struct cluster *c, struct cluster_agent *a, int process);
/* The worker gets SIGTERM. This ends its generation, also if one of its trainers has ended and the
 * worker does not know that yet. */
void cluster_restarts_term(struct cluster *c, const struct cluster_agent *a);
/* The worker's pod is deleted. A failure of its trainers may be lost with the pod and the hub. */
void cluster_restarts_take(struct cluster *c, struct cluster_agent *a);
/* A resize ends a generation. A fault that the hub does not know by then did not end it. */
void cluster_restarts_resize(struct cluster *c, int job, struct fleet_generation ended);
/* The status says that the job has used up its restarts. */
void cluster_restarts_used_up(struct cluster *c, int job);
/* The hub sends a generation to its members. `restarts` counts the restarts up to this one. */
void cluster_restarts_assign(struct cluster *c, struct cluster_run *run, int restarts);
/* Check the job as the API server has it. */
void cluster_restarts_check(struct cluster *c, int job, const cJSON *object);

/* ---- excuses.c ------------------------------------------------------------------------------- */

/* The leader `replica` loses its lease. A replica has become the leader. */
void cluster_excuse_unled(struct cluster *c, int replica);
void cluster_excuse_led(struct cluster *c);
void cluster_excuse_hosted(struct cluster *c, int job);
/* A fault deletes the pod. */
void cluster_excuse_delete(struct cluster *c, const char *pod);
/* True if a fault explains what rule (8) would forbid. That fault then counts as used. */
bool cluster_excuse_restart(struct cluster *c, const struct cluster_run *before);
bool cluster_excuse_death(struct cluster *c, const struct cluster_run *before);
bool cluster_excuse_untold(struct cluster *c, const struct cluster_run *run);
/* The names of the faults in `excuses`. */
void cluster_excuses_print(unsigned excuses, char *out, size_t size);

#endif
