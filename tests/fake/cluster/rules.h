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
void cluster_check_leads(struct cluster *c, int replica, const char *what);
bool cluster_is_settled(
    struct cluster *c); /* every job is over or gone, and nothing is left of it */
void cluster_check_end(struct cluster *c);

/* ---- check_generations.c --------------------------------------------------------------------- */

void cluster_check_assign(struct cluster *c, struct cluster_hosted *hosted,
                          const struct message_assign *assign);
void cluster_check_event(struct cluster *c, struct cluster_hosted *hosted,
                         const struct hub_event *event);
void cluster_check_vote(struct cluster *c, struct cluster_run *run);
void cluster_check_apply(struct cluster *c, const struct cluster_run *run, int64_t step);
void cluster_check_start(struct cluster *c, struct cluster_run *run);
/* The trainer's state is on the lineage of the run. */
bool cluster_check_counts(const struct cluster *c, const struct cluster_run *run,
                          const struct cluster_trainer *t);

/* ---- cells.c --------------------------------------------------------------------------------- */

/* A generation of a job whose ranks share a model is assigned; it goes on from `step`, -1 = from a
 * checkpoint or the start. */
void cluster_cells_assign(struct cluster *c, struct cluster_hosted *hosted, struct cluster_run *run,
                          int64_t step);

/* ---- restarts.c ------------------------------------------------------------------------------ */

/* Something goes wrong with a worker now, until `until_ms`. */
void cluster_restarts_hurt(struct cluster *c, struct cluster_agent *a, double until_ms);
/* One of its trainers is about to be killed. */
void cluster_restarts_kill(struct cluster *c, struct cluster_agent *a, int process);
/* It is asked to go: that ends its generation, even if trainers have ended that it has not heard
 * of yet. */
void cluster_restarts_term(struct cluster *c, const struct cluster_agent *a);
/* Its pod is taken away: a failure of its own trainers may be lost with it and its hub. */
void cluster_restarts_take(struct cluster *c, struct cluster_agent *a);
/* A generation is ended by a resize: what its hub does not know by then did not end it. */
void cluster_restarts_resize(struct cluster *c, int job, struct fleet_generation ended);
/* The job has used up its restarts, says its status. */
void cluster_restarts_used_up(struct cluster *c, int job);
/* A generation is sent to its members, together with the number of restarts including it. */
void cluster_restarts_assign(struct cluster *c, struct cluster_run *run, int restarts);
/* The job as it stands on the server. */
void cluster_restarts_check(struct cluster *c, int job, const cJSON *object);

/* ---- excuses.c ------------------------------------------------------------------------------- */

/* The leader is being lost; a replica leads. */
void cluster_excuse_unled(struct cluster *c, int replica);
void cluster_excuse_led(struct cluster *c);
/* A fault deletes the pod. */
void cluster_excuse_delete(struct cluster *c, const char *pod);
/* May rule (8) let it pass? True = yes, and the excuse counts as used. */
bool cluster_excuse_restart(struct cluster *c, const struct cluster_run *before);
bool cluster_excuse_death(struct cluster *c, const struct cluster_run *before);
bool cluster_excuse_untold(struct cluster *c, const struct cluster_run *run);
/* Their names, for `excuses`. */
void cluster_excuses_print(unsigned excuses, char *out, size_t size);

#endif
