/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MEMBER_INTERNAL_H
#define LIBFLEET_RENDEZVOUS_MEMBER_INTERNAL_H

/*
 * The state of a member, shared by the files that make it: member.c (connection and life),
 * member_receive.c (what the hub says, generations), member_trainer.c (what trainers report),
 * member_report.c (messages to the hub), member_store.c (the store of the generation). No other
 * file includes this.
 */

#include "libfleet/base/random.h"
#include "libfleet/rendezvous/member.h"
#include "libfleet/rendezvous/member_steps.h"

enum process_state {
    PROCESS_DOWN,
    PROCESS_WAITING,
    PROCESS_RUNNING
};

struct member_process {
    enum process_state state;
    int port;
    int64_t step;                             /* state held, -1 = none */
    struct fleet_part part;                   /* what of it */
    int64_t restored_step;                    /* the one it went on from in this generation */
    struct fleet_generation state_generation; /* in which it was last complete, none if none */
    enum fleet_phase phase;
    double phase_at_ms;
    bool is_finished;
    bool has_failed; /* and the hub does not know yet: `failure` */
    struct member_failure failure;
    struct fleet_generation failed_in;
};

/* A put of this generation, kept for a hub that forgot it, or a get that waits for its answer. */
struct member_entry {
    char *key;
    void *value; /* NULL: a get */
    size_t value_size;
    int local_rank; /* of a get */
};

struct member {
    char *job_uid, *pod_uid, *address, *devices, *backend, *version;
    int index, attempt;
    enum fleet_isa level;
    bool own_trainer;
    struct member_process processes[MESSAGE_PROCESSES_MAX];
    int process_count;

    enum {
        CONNECTION_IDLE,
        CONNECTION_DIALLING,
        CONNECTION_OPEN,
        CONNECTION_GREETED
    } connection;
    double gone_ms;    /* since when the hub says that the job is gone; -1 = it does not */
    bool is_over;      /* refused, or has said goodbye: no more dialling */
    bool is_leaving;   /* asked to go: no further generation */
    bool is_dismissed; /* leave or done came: once is enough */
    /* the trainers have ended: say so once all is reported; NULL = they have not */
    char *left_reason;
    double now_ms;
    double dial_ms; /* IDLE: when to dial; DIALLING: when to give up */
    int dial_failures;
    uint64_t jitter_count;
    struct fleet_random_key jitter;
    double heard_ms, heartbeat_ms, interval_ms;
    int64_t sequence;

    struct fleet_generation obeyed, delivered; /* delivered: the newest the trainers were given */
    struct message assignment;                 /* of `obeyed`, if has_assignment */
    bool has_assignment;
    char left_for[MESSAGE_CAUSE_MAX + 1]; /* what ended `obeyed`: the hub or a trainer; else "" */
    int place, first_rank;
    bool is_joined;  /* obeyed and not left */
    bool is_pending; /* joined, and waits for the trainers to leave the earlier one */

    struct member_steps steps;
    double steps_sent_ms, steps_due_ms;
    double steps_acked_ms; /* when the hub last knew more, or all */
    /* The newest checkpoint that the hub may not know, path NULL = none. */
    char *checkpoint_path;
    int64_t checkpoint_step;
    struct fleet_generation checkpoint_generation;
    struct fleet_generation hub_generation; /* the newest it said there is */
    int64_t held_step;                      /* the newest it said is safe without us */
    bool is_finished;
    int64_t finished_steps;
    double finished_loss;
    char finished_sha256[65];

    struct member_entry *store; /* [store_count] */
    size_t store_count, store_bytes;
};

/* ---- member.c -------------------------------------------------------------------------------- */

/* Append an action, else zero; borrowed until the next one is appended. */
struct member_action *member_append(struct member_output *out, enum member_action_type type);

/* Every public call begins with it: time never goes back. */
void member_enter(struct member *member, double now_ms);

/* All its processes have done what the job wants, and nothing can change that: it takes part in no
 * further generation. */
bool member_is_done(const struct member *member);

/* How many processes are in that state. */
int member_count(const struct member *member, enum process_state state);

/* The failure of a process has been reported, or does not matter any more. */
void member_forget_failure(struct member_process *process);

/* An action with a reason; NULL is "". */
void member_append_reason(struct member_output *out, enum member_action_type type,
                          const char *reason);

/* Close the connection, and do not dial at once. */
void member_leave_hub(struct member *member, const char *reason, struct member_output *out);

/* The hub knows the newest checkpoint. */
void member_forget_checkpoint(struct member *member);

/* ---- member_receive.c ------------------------------------------------------------------------ */

/* Give the assignment to the trainers; all of them wait. */
void member_deliver(struct member *member, struct member_output *out);
void member_abort_trainers(struct member *member, const char *cause, struct member_output *out);

/* ---- member_report.c ------------------------------------------------------------------------- */

/* The hub has answered our hello: before, nothing but a hello goes out. */
bool member_report_can_send(const struct member *member);

/* Number a message and send it. */
void member_report_send(struct member *member, struct message *message, struct member_output *out);

/* One message each, made from what the member knows; except for the hello, nothing is sent while
 * member_report_can_send() is false. What was not sent then follows the next hello. */
void member_report_hello(struct member *member, struct member_output *out);
void member_report_heartbeat(struct member *member, struct member_output *out);
void member_report_ready(struct member *member, double age_ms, struct member_output *out);
void member_report_failures(struct member *member, struct member_output *out);
void member_report_checkpoint(struct member *member, struct member_output *out);
/* Once nothing is left to report: `left`. After that the hub no longer knows this member. */
void member_report_left(struct member *member, struct member_output *out);
void member_report_finished(struct member *member, struct member_output *out);
/* Does this member report the steps of this generation? */
bool member_report_is_reporter(const struct member *member);
/* All steps that were not sent on this connection. */
void member_report_steps(struct member *member, struct member_output *out);
/* The same, but not more often than the hub asks for, and only as the reporter. */
void member_report_steps_when_due(struct member *member, struct member_output *out);
void member_report_store_entry(struct member *member, const struct member_entry *entry,
                               struct member_output *out);
/* All gets that wait, and all puts if the hub may have forgotten them. */
void member_report_store(struct member *member, bool with_puts, struct member_output *out);
/* The phase that all processes have reached. */
enum fleet_phase member_report_phase(const struct member *member);

/* ---- member_store.c -------------------------------------------------------------------------- */

/* Forget all puts and gets: their generation is over. */
void member_store_forget(struct member *member);

/* The hub's answer to a get: MEMBER_VALUE for every process that waits for the key. */
void member_store_value(struct member *member, const struct message_value *m,
                        struct member_output *out);

#endif
