/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MEMBER_H
#define LIBFLEET_RENDEZVOUS_MEMBER_H

/*
 * The agent's side of the rendezvous. A pure state machine between the hub and the trainer
 * processes of one pod: its calls say what happened and when, and return a list of actions.
 *
 * It hides from the supervisor that hubs come and go: it decides when to dial, sends a hello with
 * its state, repeats messages that a hub may have missed, ignores generations that are not newer
 * than the newest obeyed one, and drops reports of trainers about old ones.
 *
 * What the supervisor does with it, per trainer process (by local rank):
 *
 *   process has started and waits for orders      member_trainer_up()
 *   MEMBER_ASSIGN came                             tells every process; each then reports by
 *                                                  member_trainer_phase(): connected, restored,
 *                                                  firstStep
 *   MEMBER_ABORT came, or a peer was lost          the process leaves its collectives, then
 *                                                  member_trainer_up() again: up and waiting
 *   process ended                                  member_trainer_failed(), start it again
 *   process finished the job (exit 0)              member_trainer_finished()
 *
 * Every call that takes `out` appends to it; carry the actions out in order, then
 * member_output_release(). member_client.h does the network part.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/generation.h"
#include "libfleet/rendezvous/message.h"

#define MEMBER_GONE_MS 60000.0 /* how long a hub must say that the job is gone */

struct member;

struct member_config {
    const char *job_uid, *pod_uid;
    int index, attempt;
    const char *address; /* where peers reach the trainers of this pod */
    const int *ports;    /* [processes], by local rank; 0 = not known yet */
    int processes;       /* 1 … MESSAGE_PROCESSES_MAX */
    const char *devices;
    const char *backend; /* may be NULL: not known */
    enum fleet_isa level;
    const char *version;
    uint64_t seed; /* of the jitter */
    /* Own trainers. A trainer that has finished runs again if its generation ends before all have
     * finished. Their steps may have gaps, and no other member can get their state. */
    bool own_trainer;
};

enum member_action_type {
    /* for the transport */
    MEMBER_DIAL,  /* open a connection now */
    MEMBER_SEND,  /* text */
    MEMBER_CLOSE, /* drop the connection (a silent hub); member_disconnected() need not follow */
    /* for the trainers */
    MEMBER_ASSIGN,     /* assign, place, first_rank: join this generation */
    MEMBER_ABORT,      /* generation, reason: leave the generation, keep committed state */
    MEMBER_CHECKPOINT, /* write a checkpoint at the next step boundary */
    MEMBER_VALUE,      /* key, value: the answer to member_get() of local_rank */
    /* for the supervisor */
    MEMBER_LEAVE,   /* reason: end the trainers and exit */
    MEMBER_DONE,    /* succeeded, reason: the job is over; end what still runs and exit */
    MEMBER_REFUSED, /* reason: the hub does not want this member; exit */
};

struct member_action {
    enum member_action_type type;
    struct message_text *text; /* SEND; one use, released with the list */
    const struct message_assign
        *assign;           /* ASSIGN; borrowed until the next ASSIGN or member_free() */
    int place, first_rank; /* ASSIGN */
    struct fleet_generation generation; /* ASSIGN, ABORT, CHECKPOINT */
    bool succeeded;                     /* DONE */
    char *reason;                       /* ABORT, LEAVE, DONE, REFUSED, CLOSE */
    int local_rank;                     /* VALUE: the process that asked */
    char *key;                          /* VALUE */
    void *value;                        /* VALUE, [value_size] */
    size_t value_size;
};

/* All zero is empty. */
struct member_output {
    struct member_action *items; /* [count] */
    size_t count, capacity;
};

/* Free all actions; the list is empty afterwards. */
void member_output_release(struct member_output *out);

/* Append the actions of `from`, which is empty afterwards. */
void member_output_move(struct member_output *to, struct member_output *from);

/* Never NULL. Everything in `config` is copied. The first tick asks for MEMBER_DIAL. */
struct member *member_new(const struct member_config *config, double now_ms);
void member_free(struct member *member); /* NULL is fine */

/* ---- from the transport ---------------------------------------------------------------------- */

/* The connection asked for by MEMBER_DIAL is up: hello goes out. */
void member_connected(struct member *member, double now_ms, struct member_output *out);
/* Also when dialling failed. */
/* The hub, which knows the job's token, has answered a dial that the job is gone: its UID does not
 * exist any more, and UIDs do not come back. If that is said for MEMBER_GONE_MS, the member ends as
 * one that is refused. */
void member_job_gone(struct member *member, double now_ms, struct member_output *out);
void member_disconnected(struct member *member, double now_ms, struct member_output *out);
void member_receive(struct member *member, const struct message *message, double now_ms,
                    struct member_output *out);

/* When to call member_tick() at the latest; INFINITY = no need. */
double member_deadline(const struct member *member);
void member_tick(struct member *member, double now_ms, struct member_output *out);

/* ---- from the trainers ----------------------------------------------------------------------- */

/* What of a divided state the process holds, before the next call that says how far it is; zeroed
 * when it ends. */
void member_trainer_holds(struct member *member, int local_rank, const struct fleet_part *part);

/* The process is up and waits for an assign; it holds the state of `step` (-1: none). */
void member_trainer_up(struct member *member, int local_rank, int64_t step, double now_ms,
                       struct member_output *out);

/* The process listens on another port than before (each start may choose one). Call it before
 * member_trainer_up(), which reports to the hub. */
void member_set_port(struct member *member, int local_rank, int port);

/* It reached a phase (not WAITING) of `generation`, at `at_ms` on the clock of now_ms. */
void member_trainer_phase(struct member *member, int local_rank, struct fleet_generation generation,
                          enum fleet_phase phase, int64_t step, double at_ms, double now_ms,
                          struct member_output *out);

/*
 * A step was committed. Call this for every process, in every pod; repetitions are dropped. The
 * member keeps the last steps and sends them if it is the reporter, so that each is reported once,
 * also when members die.
 */
void member_trainer_step(struct member *member, const struct message_step *step, double now_ms,
                         struct member_output *out);
void member_trainer_evaluation(struct member *member, int64_t step, double loss, double now_ms,
                               struct member_output *out);
/* A checkpoint of `step` could not be written and is tried again. Reported once, if a hub is
 * connected: the next failed try reports it again. */
void member_trainer_checkpoint_failed(struct member *member, int64_t step, const char *reason,
                                      double now_ms, struct member_output *out);
/* `generation`: the one in which it was saved. The report is repeated until the hub knows it. */
void member_trainer_checkpoint(struct member *member, struct fleet_generation generation,
                               int64_t step, const char *path, double now_ms,
                               struct member_output *out);

struct member_failure {
    int local_rank;
    int exit_code;     /* -1 if ended by a signal */
    int signal;        /* 0 if it exited */
    const char *cause; /* "" = by exit code and signal */
    bool fatal;        /* trying again cannot help */
    const char *lines; /* last log lines, "" if none */
    double at_ms;      /* when it happened, on the clock of now_ms */
};

/* The process has ended without finishing the job. It counts as down until member_trainer_up(). */
void member_trainer_failed(struct member *member, const struct member_failure *failure,
                           double now_ms, struct member_output *out);

/* The process' collectives of `generation` lost rank `rank`. member_trainer_up() follows when it
 * has left the generation. */
void member_peer_lost(struct member *member, struct fleet_generation generation, int rank,
                      double at_ms, double now_ms, struct member_output *out);

/*
 * The process has done all `steps`, which member_trainer_step() has reported (0 for a trainer that
 * does not report steps). `weights_sha256` "" if this process has none to report.
 */
void member_trainer_finished(struct member *member, int local_rank, int64_t steps, double loss,
                             const char *weights_sha256, double now_ms, struct member_output *out);

/* Store of the generation: `value` is copied, and put again where a hub may have forgotten it.
 * -EINVAL: key or value too long, no generation. */
int member_put(struct member *member, const char *key, const void *value, size_t value_size,
               double now_ms, struct member_output *out, struct fleet_error *err);
/* MEMBER_VALUE follows once a member has put the key; forgotten with the generation. -EINVAL as
 * member_put(). */
int member_get(struct member *member, int local_rank, const char *key, double now_ms,
               struct member_output *out, struct fleet_error *err);

/* The trainers were asked to save their state and end (SIGTERM): report it to the hub. The hub
 * makes no more generations with this pod, but takes its reports until it has left. */
void member_leaving(struct member *member, double now_ms, struct member_output *out);

/* The trainers have ended: say goodbye once the hub knows their last checkpoint. */
void member_leave(struct member *member, const char *reason, double now_ms,
                  struct member_output *out);

/* The process does not answer, and may alone hold some state: it counts as down until it is up
 * again (it has left its generation) or has ended. */
void member_trainer_silent(struct member *member, int local_rank, double now_ms,
                           struct member_output *out);

/* ---- what an observer may see ---------------------------------------------------------------- */

/* The newest generation that the trainers were given (MEMBER_ASSIGN), or none. */
struct fleet_generation member_generation(const struct member *member);
/* No member needs the state of `step` that a trainer here holds: others have gone on in a
 * generation without this member, or the hub knows of a ready member, or of a checkpoint, with that
 * step. */
bool member_is_spare(const struct member *member, int64_t step);
/* Said goodbye, or no hub waits for it: nothing is left to do. */
bool member_has_left(const struct member *member);
/* A checkpoint that the hub does not know yet. */
bool member_owes_checkpoint(const struct member *member);
bool member_is_connected(const struct member *member);
enum message_state member_state(const struct member *member);
const struct message_assign *member_assignment(const struct member *member); /* NULL = none */

#endif
