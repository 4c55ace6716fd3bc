/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SUPERVISOR_H
#define AGENT_SUPERVISOR_H

/*
 * The decisions of an agent, as a state machine between the trainers of its pod (link.h) and the
 * hub (a member, libfleet/rendezvous/member.h). It has no descriptor, process or clock: its callers
 * report what happened and when, and it acts through `struct supervisor_host`.
 *
 * The machine is drawn at the head of supervisor.c. Times are monotonic milliseconds.
 */

#include <stdbool.h>

#include "agent/link.h"
#include "libfleet/base/cause.h"
#include "libfleet/rendezvous/member.h"

struct supervisor;
struct fleet_error;
struct progress_line;

/* A trainer's place in a generation. An own trainer gets it in its environment. */
struct supervisor_place {
    const struct message_assign *assign; /* borrowed */
    int place;                           /* of this pod among its members */
    int first_rank;                      /* of this pod's local rank 0 */
};

/*
 * Functions of the process that the supervisor runs in. Only `apply` may call back, with an order.
 */
struct supervisor_host {
    /* Start the trainer; `place` is NULL for the built-in one, which learns it by `assign`. */
    int (*start)(void *user, int local_rank, const struct supervisor_place *place,
                 struct fleet_error *err);
    void (*signal)(void *user, int local_rank, int signal_number);
    /* Tell an own trainer that stays (supervisor_progress()): `place` is its place in a new
     * generation, NULL: its generation has ended. Optional, if no trainer stays. */
    void (*renew)(void *user, int local_rank, const struct supervisor_place *place);
    /* A message to a trainer that has a link; nothing happens if the link is gone. */
    void (*send)(void *user, int local_rank, const struct link_message *message);
    /* Its output is prefixed with this rank from now on. */
    void (*rank)(void *user, int local_rank, int rank);
    /* The member to talk to the hub with, at this instruction-set level; made again if the level is
     * another than last time. Owned by the host. */
    struct member *(*member)(void *user, enum fleet_isa level);
    /* The time for the member; never earlier than the time that its client gave it. */
    double (*now)(void *user);
    /* Carry out what the member has answered, and release the list. */
    void (*apply)(void *user, struct member_output *out);
    /* The last lines of the trainer's output, borrowed until its next start; never NULL.
     * Without this function none are kept. */
    const char *(*last_lines)(void *user, int local_rank);
    /* Returns whether the kernel has killed one of our processes for lack of memory since the last
     * call. Optional: without this function none was killed. */
    bool (*is_out_of_memory)(void *user);
    /* A trainer could not be started, or ended though it was not asked to. The host logs it and
     * writes the termination message. */
    void (*failed)(void *user, const struct member_failure *failure, const char *text);
    void *user;
};

struct supervisor_config {
    int processes;        /* trainers of this pod, 1 … MESSAGE_PROCESSES_MAX */
    bool has_own_trainer; /* the trainer does not speak link.h: restarted for every generation */
    double grace_ms;      /* from the order to leave to SIGKILL */
    bool hub_may_move;    /* another hub follows one that is lost, as in a cluster */
    const int *ports;     /* [processes]: where trainers listen, as reported to the hub */
    uint64_t seed;        /* of the back-off's jitter */
};

/* Both structs are copied, `ports` too. Nothing is started before supervisor_start(). */
struct supervisor *supervisor_new(const struct supervisor_config *config,
                                  const struct supervisor_host *host);
void supervisor_free(struct supervisor *supervisor); /* NULL is fine */

/* Begin: start the trainers (built-in) or report to the hub that the pod is ready (own trainer). */
void supervisor_start(struct supervisor *supervisor, double now_ms);

/* Begin without ever starting a trainer: report to the hub that no trainer can run here, and that a
 * restart does not help. The supervisor is done when the hub has the report. */
void supervisor_refuse(struct supervisor *supervisor, enum fleet_cause cause, const char *text,
                       double now_ms);

/* A message of a trainer. */
void supervisor_message(struct supervisor *supervisor, int local_rank,
                        const struct link_message *message, double now_ms);

/*
 * An own trainer reported a line. Progress counts from rank 0 only. A trainer that reports `stays`
 * is not ended for a new generation: it gets it by renew(), after it has reported which generation
 * it left. If it leaves one that no other rank has left, or does not leave one that has ended, it
 * is killed.
 */
void supervisor_progress(struct supervisor *supervisor, int local_rank,
                         const struct progress_line *line, double now_ms);

/* A trainer closed its link. It should be about to end; if not, it is ended. */
void supervisor_link_closed(struct supervisor *supervisor, int local_rank, double now_ms);

/* A trainer broke the protocol: it is ended. */
void supervisor_link_broken(struct supervisor *supervisor, int local_rank, const char *reason,
                            double now_ms);

/* A trainer has ended, with the status of waitpid(). */
void supervisor_exited(struct supervisor *supervisor, int local_rank, int wait_status,
                       double now_ms);

/* An order of the hub: ASSIGN … REFUSED. */
void supervisor_order(struct supervisor *supervisor, const struct member_action *action,
                      double now_ms);

/* SIGTERM or SIGINT reached this process; the second one ends everything at once. */
void supervisor_signal(struct supervisor *supervisor, int signal_number, double now_ms);

/* The agent has asked the trainer to end; it kills the trainer when the grace is over. */
bool supervisor_is_stopping(const struct supervisor *supervisor, int local_rank);

/*
 * When the agent's work is over: how long it waits for a hub that does not answer. 0 = it has
 * nothing left to report, or no hub will receive it. To report a checkpoint it waits for the whole
 * grace. If a signal ends the worker and another hub will follow a lost one, the agent waits for
 * the rest of the grace to say goodbye: without the goodbye that hub counts a failure.
 */
double supervisor_patience_ms(const struct supervisor *supervisor, double now_ms);

/* When to call supervisor_tick() at the latest; INFINITY = no need. */
double supervisor_deadline(const struct supervisor *supervisor);
void supervisor_tick(struct supervisor *supervisor, double now_ms);

/* True when there is nothing left to do: no trainer runs and none will. *out_exit_code: 0 the job
 * succeeded; 1 it failed or this member was refused; 128 + signal when asked to leave by one. */
bool supervisor_is_over(const struct supervisor *supervisor, int *out_exit_code);

#endif
