/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_BASE_CAUSE_H
#define LIBFLEET_BASE_CAUSE_H

/*
 * Why a trainer, a worker or a generation ended.
 *
 * A cause travels as a word (status.restarts.history[].cause, messages, termination messages),
 * because the set is open: Kubernetes and own trainers have words of their own, which rules of the
 * failurePolicy may name. Code that decides turns the word into a value first. Code that names a
 * cause takes its word from here. docs/failures.md explains the words.
 */

#include <stdbool.h>

enum fleet_cause {
    FLEET_CAUSE_NONE,  /* "" */
    FLEET_CAUSE_OTHER, /* a word that is not ours */

    /* The hub has seen it. */
    FLEET_CAUSE_MEMBER_LOST,      /* a worker's connection or process ended */
    FLEET_CAUSE_POD_GONE,         /* its pod was deleted or has ended */
    FLEET_CAUSE_MEMBER_LEFT,      /* it was asked to go, and went */
    FLEET_CAUSE_RESIZE,           /* another number of workers is wanted */
    FLEET_CAUSE_PEER_UNREACHABLE, /* a rank lost another; neither has failed */
    FLEET_CAUSE_ISOLATED,         /* removed: it and another lost each other twice */
    FLEET_CAUSE_WRONG_STATE,      /* it restored another step than the agreed one */
    FLEET_CAUSE_STATE_LOST,       /* no member holds the newest state */
    FLEET_CAUSE_SUPERSEDED,       /* a newer generation was made */
    FLEET_CAUSE_UNKNOWN,          /* a hub before this one knew */
    FLEET_CAUSE_FAILURE_POLICY,   /* a rule calls the failure final */
    FLEET_CAUSE_FAILED,           /* without a reason */
    FLEET_CAUSE_MIXED_BACKENDS,   /* workers compute with different back ends */

    /* Kubernetes did it. */
    FLEET_CAUSE_PREEMPTED,  /* the scheduler needs the room for a pod that matters more */
    FLEET_CAUSE_EVICTED,    /* a drain, a taint, a node under pressure */
    FLEET_CAUSE_OOM_KILLED, /* the kernel, for lack of memory */

    /* The agent has seen it. */
    FLEET_CAUSE_TRAINER_FAILED,    /* a trainer exited with another code than 0 */
    FLEET_CAUSE_KILLED,            /* a trainer was ended by a signal */
    FLEET_CAUSE_CANNOT_START,      /* a trainer's program cannot be started */
    FLEET_CAUSE_BAD_ENTRYPOINT,    /* the image's ENTRYPOINT cannot be taken over */
    FLEET_CAUSE_RESTART_REQUESTED, /* an own trainer asked for it */
    FLEET_CAUSE_CHECKPOINT_FAILED, /* the last checkpoint cannot be written */
    FLEET_CAUSE_STORE_REFUSED,     /* a store of the job's data or checkpoints does not accept us */
    FLEET_CAUSES
};

/* "MemberLost", …; "" for NONE and OTHER. Static. */
const char *fleet_cause_word(enum fleet_cause cause);

/* The inverse. OTHER for a word that is not in the table; NONE for "" and NULL. */
enum fleet_cause fleet_cause_find(const char *word);

/* Was it ended on purpose? Such an end counts for no restart: a resize, a worker that was asked to
 * go, or that Kubernetes has taken away. */
bool fleet_cause_is_wanted(enum fleet_cause cause);

#endif
