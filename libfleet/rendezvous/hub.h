/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_HUB_H
#define LIBFLEET_RENDEZVOUS_HUB_H

/*
 * The hub of one job: knows its members, makes generations. A pure state machine: each call says
 * what happened and when, and returns a list of actions. It has no socket, clock or thread.
 *
 * Every call that takes `out` appends to it. The owner carries out the actions in order, clears the
 * list, and calls hub_tick() when hub_deadline() has come. `now_ms` is monotonic milliseconds and
 * never goes back. Times in events are on that one clock.
 *
 *     struct hub_output out = {0};
 *     hub_receive(hub, connection, &message, now_ms, &out);
 *     … for each out.items[i]: send, close, record, event …
 *     hub_output_release(&out);
 *
 * (hub_server.h does this for hubs behind a network.)
 *
 * A *member* is a pod with its agent; it is known by its pod UID, talks over a *connection* (any
 * number the owner chooses, never used twice), and holds one rank per trainer process.
 *
 * The state machine, its invariants and the elastic policy are described at the head of hub.c.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/generation.h"
#include "libfleet/rendezvous/failure_rules.h"
#include "libfleet/rendezvous/message.h"
#include "libfleet/strategy/topology.h"

struct hub;

/* What the user asked for; may change at any time (hub_configure). */
struct hub_policy {
    int min, max;           /* members, 1 <= min <= max <= MESSAGE_MEMBERS_MAX */
    int desired;            /* min <= desired <= max */
    double rejoin_grace_ms; /* elastic.rejoinGraceMs */
    double timeout_ms;      /* elastic.timeoutSeconds */
    /* elastic.waitForReplacementSeconds: survivors wait so long before they go on with fewer */
    double replacement_ms;
    int restarts_max;            /* restart.maxRestarts */
    struct failure_rules rules;  /* failurePolicy; borrowed for the call, the hub copies them */
    int64_t reset_after_steps;   /* restart.resetAfterSteps; 0 = never */
    double progress_interval_ms; /* least time between two progress messages; 0 = every step */
    /*
     * The job's own trainers (no spec.training): each exits for itself, so the job has succeeded
     * once all ranks of one generation have exited with 0. They do not pass on what they hold in
     * memory: they start again in every generation. The hub knows of steps and checkpoints only
     * what they report.
     */
    bool own_trainer;
    /*
     * Ranks share a model: the grid of the fewest ranks, else `world` is 0. Then a generation has a
     * multiple of the members that a replica needs; those that are left over are spares. Each
     * member has `ranks_of_member` ranks.
     */
    struct topology grid;
    int ranks_of_member;
};

/* What is known when the hub starts; all zero (but secret and job_uid) for a job's first hub. */
struct hub_start {
    const char *job_uid;
    const char *plan_digest;          /* put into assign; NULL = "" */
    int64_t epoch;                    /* >= 1; 0 is taken as 1 */
    struct fleet_generation recorded; /* the newest recorded generation */
    int recorded_members;             /* of it; 0 = not known */
    int64_t counter; /* counters up to this are used in `epoch` already; 0 = up to `recorded` */
    struct fleet_lineage lineage; /* as recorded */
    int64_t progress_step;        /* last step reported before */
    int64_t checkpoint_step;      /* of the newest checkpoint; 0 = none */
    const char *checkpoint_path;  /* where it lies; NULL = not known */
    int restarts;                 /* counted since the last reset */
    int restarts_total;           /* since the job began */
    int restarts_ignored;         /* those that a rule says do not count, ever */
    int failures; /* restarts in a row without progress, so far: the back-off goes on from them */
    /* how long to wait for recorded members that it has not heard from; 0 = 20 s */
    double unheard_ms;
    bool is_alone;    /* no pod of the job lives: no member is waited for */
    bool has_trained; /* the recorded generation trained, and was not asked to end: if none of
                       * its members is left, that was a failure */
    uint8_t secret[MESSAGE_SECRET_SIZE]; /* unpredictable; keys of generations derive from it */
};

enum hub_phase {
    HUB_GATHERING, /* waits for members */
    HUB_RECORDING, /* waits for hub_record_done() */
    HUB_FORMING,   /* assigned; members connect and restore */
    HUB_RUNNING,   /* the generation has committed a step */
    HUB_FINISHED,
    HUB_FAILED,
};

enum hub_event_type {
    HUB_EVENT_JOINED,         /* a member said hello for the first time */
    HUB_EVENT_LOST,           /* a member no longer counts: cause, message */
    HUB_EVENT_TRAINER_FAILED, /* a trainer ended: local_rank, exit_code, signal, cause, lines */
    HUB_EVENT_ISOLATED,   /* ordered to leave after accusations; the owner should replace the pod */
    HUB_EVENT_ASSIGNED,   /* a generation was sent out: members, world */
    HUB_EVENT_RUNNING,    /* the first step of a generation */
    HUB_EVENT_RESTART,    /* a generation after the first: cause, timeline, lost_steps */
    HUB_EVENT_STEP,       /* each committed step once, ascending */
    HUB_EVENT_EVALUATION, /* step.step, step.loss */
    HUB_EVENT_CHECKPOINT, /* step.step, path */
    HUB_EVENT_CHECKPOINT_FAILED, /* step.step; message: why, and where the newest one is */
    HUB_EVENT_STATE_LOST, /* no member holds the newest state any more: message, lost_steps */
    HUB_EVENT_STALLED,    /* the job waits; message has the reason */
    HUB_EVENT_FAILED,     /* the job cannot go on: the first cause, message, lines; terminal */
    HUB_EVENT_FINISHED,   /* step.step, step.loss, weights_sha256; terminal */
    /* the job waits for its next generation: message has the reason, "" = it no longer waits;
     * until_ms */
    HUB_EVENT_WAITING,
    /* a member holds `generation`, of a greater epoch than this hub's: the hub does nothing any
     * more until hub_end(). The owner replaces it, if it leads */
    HUB_EVENT_SUPERSEDED,
    /* an assertion failed in the hub: message. It does nothing any more; the owner frees it and
     * makes another one from what was recorded. Nothing else of the event is known */
    HUB_EVENT_DEFECT,
};

/* Phases of a restart; they add up: detect + agree + connect + restore = resume. -1 = not
 * reached. */
struct hub_timeline {
    double detect_ms;     /* fault → the hub aborted the generation */
    double agree_ms;      /* → assign sent */
    double connect_ms;    /* → the last member connected */
    double restore_ms;    /* → the last member restored */
    double resume_ms;     /* fault → restored */
    double first_step_ms; /* restored → first step committed */
};

/* Why the job makes no progress; hub_stall_word() has the words. */
enum hub_stall {
    HUB_STALL_NONE,
    HUB_STALL_TOO_FEW_MEMBERS,
    HUB_STALL_FORMING,       /* a generation was assigned, and not all members join it */
    HUB_STALL_STEP_TOO_LONG, /* a step takes much longer than those before */
    HUB_STALL_HOLDER_AWAY,   /* the only member with the newest state does not answer */
    HUB_STALL_SUPERSEDED,    /* a member holds a greater epoch */
    HUB_STALLS
};

struct hub_event {
    enum hub_event_type type;
    struct fleet_generation generation; /* the newest; for RESTART the one that was made */
    double at_ms;                       /* when it happened */
    double until_ms;                    /* WAITING: when it goes on anyway; INFINITY = not known */

    int member;  /* pod index it is about, -1 = none */
    int attempt; /* of that pod */
    char pod_uid[MESSAGE_UID_MAX + 1];
    char cause[MESSAGE_CAUSE_MAX + 1]; /* CamelCase: MemberLost, TrainerFailed, Resize, … */
    char message[MESSAGE_REASON_MAX + 1];
    enum hub_stall stall;              /* STALLED, SUPERSEDED; `cause` is its word */
    int local_rank, exit_code, signal; /* exit_code: 128 + signal if ended by one; -1 unknown */
    bool counted;                      /* RESTART: counts against maxRestarts */
    bool restarts_used_up;             /* FAILED: that is why */
    int restarts;                      /* counted so far, since the last reset */
    int members, world;                /* of `generation` */
    /* RESTART: steps reported before that are computed again; -1 = unknown: an own trainer did not
     * say where it goes on */
    int64_t lost_steps;
    bool is_before_first_step;    /* RESTART: the job had made no step, so none could be lost */
    struct hub_timeline timeline; /* RESTART */
    struct message_step step;
    bool weights_differ;     /* FINISHED: two members reported different digests */
    char weights_sha256[65]; /* FINISHED */
    char *text;              /* last log lines, or the path of a checkpoint; NULL = none */
};

/*
 * Write this down (status.rendezvous) before any member is assigned; then hub_record_done().
 * Records only grow: if a newer generation was written already, there is nothing to write, and it
 * is done.
 */
struct hub_record {
    struct fleet_generation generation;
    int members;        /* of it */
    int64_t first_step; /* the step it continues with */
    int restarts;       /* counted since the last reset, the one that leads to it included … */
    int restarts_total; /* … and ever: in one write with the generation, so that each counts once */
    int restarts_ignored; /* the same of those that a rule says do not count */
    /* The restart that it ends, for the history, if no member is left to report it; cause "" = a
     * first generation. */
    char cause[MESSAGE_CAUSE_MAX + 1];
    int member, exit_code; /* -1 = none, unknown */
    /* Failures before that one, counted since the last written record. If no member is left to
     * report them, no history has them. */
    int untold;
};

enum hub_action_type {
    HUB_SEND,
    HUB_CLOSE,
    HUB_RECORD,
    HUB_EVENT
};

struct hub_action {
    enum hub_action_type type;
    uint64_t connection;       /* SEND, CLOSE */
    struct message_text *text; /* SEND; one use, released with the list */
    char *reason;              /* CLOSE */
    bool is_refusal;           /* CLOSE: for what the connection did, not for the member's state */
    struct hub_record record;  /* RECORD */
    struct hub_event *event;   /* EVENT */
};

/* All zero is empty. */
struct hub_output {
    struct hub_action *items; /* [count] */
    size_t count, capacity;
};

/* Free all actions; the list is empty afterwards. */
void hub_output_release(struct hub_output *out);

/* Append the actions of `from`, which is empty afterwards. */
void hub_output_move(struct hub_output *to, struct hub_output *from);

/* Never NULL. Strings in `start` are copied. */
struct hub *hub_new(const struct hub_start *start, const struct hub_policy *policy, double now_ms);
void hub_free(struct hub *hub); /* NULL is fine */

/*
 * A broken invariant of the hub ends the hub, not the process (HUB_EVENT_DEFECT): the actions of
 * that call are dropped, later calls do nothing, and questions get the answers of a hub without
 * members. hub_defect() has the text of the assertion, NULL = none. hub_free() does not touch such
 * a hub: its memory is lost, and hub_defects() counts these hubs.
 */
#define HUB_DEFECT_MAX 256 /* bytes, with the NUL */
const char *hub_defect(const struct hub *hub);
size_t hub_defects(void);

/* Is it the policy that the hub has? */
bool hub_has_policy(const struct hub *hub, const struct hub_policy *policy);

/* A changed `desired` makes a generation of another size, which does not count as a restart. */
void hub_configure(struct hub *hub, const struct hub_policy *policy, double now_ms,
                   struct hub_output *out);

/* A connection was opened (its token checked), brought a message, is gone. */
void hub_connected(struct hub *hub, uint64_t connection, double now_ms, struct hub_output *out);
void hub_receive(struct hub *hub, uint64_t connection, const struct message *message, double now_ms,
                 struct hub_output *out);
void hub_disconnected(struct hub *hub, uint64_t connection, double now_ms, struct hub_output *out);

/* The record was written; late answers to given-up generations are ignored. */
void hub_record_done(struct hub *hub, struct fleet_generation generation, double now_ms,
                     struct hub_output *out);

/*
 * The record cannot be written now. The hub goes on if the new generation holds a strict majority
 * of the newest one, else waits; it asks for the record again every second until it is done.
 */
void hub_record_failed(struct hub *hub, struct fleet_generation generation, double now_ms,
                       struct hub_output *out);

/* The owner knows that the pod is gone for good (deleted, its agent's process has ended). */
void hub_member_gone(struct hub *hub, const char *pod_uid, enum fleet_cause cause, double now_ms,
                     struct hub_output *out);

/*
 * Kubernetes removes the pod: the end of its generation gets this `cause` (PREEMPTED, EVICTED) and
 * is no failure. The call may come after the member has left, until the restart is reported; a
 * later call changes nothing. If the pod was only deleted (MEMBER_LEFT), a member that
 * the hub knows has to say goodbye itself. If `explains` is false, the pod cannot have been
 * the one whose end ended a generation: its removal explains nothing, but its member goes.
 *
 * A hub that goes on from a record believes the call for a member that it has not heard from, too.
 * The owner calls it for each pod that is removed, before the first member connects. Otherwise a
 * survivor may come first, and make a drain a failure: it only saw a peer vanish.
 */
void hub_member_departs(struct hub *hub, const char *pod_uid, int index, int attempt,
                        enum fleet_cause cause, bool explains);

/*
 * In which order the members of a first generation get their ranks: by their place in this list of
 * [count] pod UIDs (near ones beside each other), else by index. Later generations keep the ranks
 * that there are.
 */
void hub_order(struct hub *hub, const char *const *pod_uids, size_t count);

/* Ask the members for a checkpoint now. (A member that leaves saves without being asked.) */
void hub_checkpoint(struct hub *hub, double now_ms, struct hub_output *out);

/* End the job from outside (policy, deletion): members get `done`. No event follows. */
void hub_end(struct hub *hub, bool succeeded, const char *reason, double now_ms,
             struct hub_output *out);

/* When to call hub_tick() at the latest; INFINITY = no need. Earlier calls do no harm. */
double hub_deadline(const struct hub *hub);
void hub_tick(struct hub *hub, double now_ms, struct hub_output *out);

/* ---- what an observer may see ---------------------------------------------------------------- */

struct hub_member {
    const char *pod_uid; /* borrowed until the next call on the hub */
    int index, attempt;
    int place; /* in the newest generation, -1 = not in it */
    bool is_connected;
    enum message_state state;
    int64_t step;
    bool was_ready; /* it has waited since before the newest generation was chosen */
};

/* Where in its state machine the hub is (hub.c); the newest generation assigned, none at first. */
enum hub_phase hub_phase(const struct hub *hub);
int hub_members_max(const struct hub *hub); /* by the policy */
struct fleet_generation hub_generation(const struct hub *hub);
int hub_generation_members(const struct hub *hub); /* of that; 0 = none, or not known yet */
/* Ranks share a model: ready members that the running generation has no seat for. Otherwise 0. */
int hub_spares(const struct hub *hub);
int64_t hub_epoch(const struct hub *hub); /* of the generations it makes */

/* The newest generation that is known to have made a step, or none. */
struct fleet_generation hub_trained(const struct hub *hub);
/* All members of the newest generation have left because they were asked to: no member is left to
 * report this to the next hub. */
bool hub_is_deserted(const struct hub *hub);

/* The hub was made for a generation that may run, and has not learnt of it yet. No fault. */
bool hub_is_learning(const struct hub *hub);
int hub_restarts_total(const struct hub *hub);   /* since the job began */
int hub_restarts(const struct hub *hub);         /* counted since the last reset */
int hub_restarts_ignored(const struct hub *hub); /* that do not count, ever */

/* The restart that led to the newest generation, as long as no RESTART event has reported it;
 * false if one has, or there was no restart. */
bool hub_begun(const struct hub *hub, struct hub_record *out);

/* The lineage as it will be once `record` is done. */
struct fleet_lineage hub_record_lineage(const struct hub *hub, const struct hub_record *record);

/* Does the job wait for this lost member, because it alone holds the state? */
bool hub_is_awaited(const struct hub *hub, const char *pod_uid);

/* The recorded lineage. */
struct fleet_lineage hub_lineage(const struct hub *hub);

/* Members that count, in order of arrival: writes at most `capacity`, returns how many there
 * are. */
size_t hub_members(const struct hub *hub, struct hub_member *out, size_t capacity);

/* Words for logs and tests: "Gathering", "TrainerFailed", "TooFewMembers", …. Static. */
const char *hub_phase_name(enum hub_phase phase);
const char *hub_event_name(enum hub_event_type type);
const char *hub_stall_word(enum hub_stall stall);

#endif
