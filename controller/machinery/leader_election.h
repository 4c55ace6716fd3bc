/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_MACHINERY_LEADER_ELECTION_H
#define CONTROLLER_MACHINERY_LEADER_ELECTION_H

/*
 * At most one active replica, by a Lease of coordination.k8s.io.
 *
 * The states are drawn in leader_election.c. What a caller may rely on:
 *  (1) leader_election_is_leader() is false from `renew_deadline_ms` after the last renewal was
 *      *sent*, whether or not anything ran in between: a process that was stopped and wakes up is
 *      not leader, before any callback reports it. Ask it before each effect.
 *  (2) No other replica leads before `lease_duration_ms` (> renew_deadline_ms) have passed on its
 *      own clock since it last saw the Lease change. Clocks need not agree, only run at about the
 *      same speed.
 *  (3) Each leadership has its own epoch, leaseTransitions of the Lease, greater than all before it
 *      for as long as the Lease is not deleted.
 */

#include <stdbool.h>
#include <stdint.h>

struct fleet_error;
struct kube_io;
struct leader_election;

struct leader_election_options {
    const char *namespace_, *name; /* of the Lease */
    const char *identity;          /* of this process; two processes never have the same */
    double lease_duration_ms;      /* 0: 15 000; whole seconds */
    double renew_deadline_ms;      /* 0: 10 000; less than the duration */
    double retry_ms;               /* 0: 2 000; between tries and between renewals */

    void (*on_leading)(void *user, int64_t epoch);
    /* The Lease was lost for good: the process should end, or begin from nothing with a new
     * identity. */
    void (*on_lost)(void *user);
    void (*on_trouble)(void *user, const struct fleet_error *err); /* for the log; NULL */
    void *user;
};

/* Starts to try at once; strings are copied. */
struct leader_election *leader_election_new(struct kube_io *io,
                                            const struct leader_election_options *options);

/* The Lease is not given back: others wait until it runs out. */
void leader_election_free(struct leader_election *election);

/*
 * Give the Lease back, so that the next leader need not wait, then `on_released` (not on_lost). It
 * is not tried for any more; leadership ends before the request is sent.
 */
void leader_election_release(struct leader_election *election, void (*on_released)(void *user),
                             void *user);

/* It holds the Lease, and its last renewal was sent within renew_deadline_ms: ask after every
 * wait. */
bool leader_election_is_leader(const struct leader_election *election);

/* When the last renewal that was taken was sent, on the io's clock: no other replica led then. */
double leader_election_renewed_ms(const struct leader_election *election);

/* Its leaseTransitions when this process led last. */
int64_t leader_election_epoch(const struct leader_election *election);

/* The holder of the Lease when it was last seen, "" if it had none. Borrowed until the loop
 * turns. */
const char *leader_election_holder(const struct leader_election *election);

#endif
