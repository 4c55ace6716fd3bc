/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MESSAGE_H
#define LIBFLEET_RENDEZVOUS_MESSAGE_H

/*
 * The messages of agent and hub: each is one JSON object, {"type": "hello", …}.
 *
 *   agent → hub   hello ready progress evaluation failed peer_lost checkpoint_done
 *                 checkpoint_failed finished left
 *   hub → agent   assign abort checkpoint leave done refused value
 *   both          heartbeat put get
 *
 * Invariants a caller may rely on:
 *  (1) A decoded message is within all limits below; every string is non-NULL, valid UTF-8 without
 *      NUL; every list has its stated length.
 *  (2) Unknown fields are ignored (a newer peer may send them), an unknown type is refused.
 *  (3) encode then decode gives the same message.
 *
 * Ownership: all pointers inside a message are borrowed. One built by hand points to the caller's
 * storage and needs no release; one from message_decode() points into its own storage, which
 * message_release() frees.
 *
 * Messages have no clock readings, since clocks of two machines differ: a message about an event
 * says how long ago it happened (`age_ms`).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/division.h"
#include "libfleet/base/isa.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/lineage.h"
#include "libfleet/base/step_times.h"

struct fleet_error;

#define MESSAGE_PROTOCOL "fleetjob.rendezvous.v1" /* WebSocket subprotocol */

#define MESSAGE_SIZE_MAX      FLEET_MESSAGE_MAX   /* bytes of one encoded message */
#define MESSAGE_MEMBERS_MAX   FLEET_WORKERS_MAX   /* members of a generation */
#define MESSAGE_PROCESSES_MAX FLEET_PROCESSES_MAX /* processes of a member */
#define MESSAGE_STEPS_MAX     256                 /* steps in one progress message */
#define MESSAGE_UID_MAX       64                  /* bytes of a job or pod UID, without the NUL */
#define MESSAGE_ADDRESS_MAX   FLEET_ADDRESS_MAX
#define MESSAGE_CAUSE_MAX     64
#define MESSAGE_REASON_MAX    512
#define MESSAGE_TEXT_MAX      256 /* devices, version, plan digest */
#define MESSAGE_PATH_MAX      4096
#define MESSAGE_LINES_MAX     16384 /* bytes of last log lines */
#define MESSAGE_KEY_MAX       1024
#define MESSAGE_VALUE_MAX     (1u << 20)
#define MESSAGE_SECRET_SIZE   32

enum message_type {
    MESSAGE_HELLO,
    MESSAGE_READY,
    MESSAGE_PROGRESS,
    MESSAGE_EVALUATION,
    MESSAGE_FAILED,
    MESSAGE_PEER_LOST,
    MESSAGE_CHECKPOINT_DONE,
    MESSAGE_CHECKPOINT_FAILED,
    MESSAGE_FINISHED,
    MESSAGE_LEFT,
    MESSAGE_ASSIGN,
    MESSAGE_ABORT,
    MESSAGE_CHECKPOINT,
    MESSAGE_LEAVE,
    MESSAGE_DONE,
    MESSAGE_REFUSED,
    MESSAGE_HEARTBEAT,
    MESSAGE_PUT,
    MESSAGE_GET,
    MESSAGE_VALUE,
};

/* What a member's trainer processes are doing. */
enum message_state {
    MESSAGE_STATE_STARTING, /* at least one process is not up: "not ready" */
    MESSAGE_STATE_WAITING,  /* all are up, in no generation: ready for an assign */
    MESSAGE_STATE_RUNNING,  /* all are up, in `generation` */
};

/* Where a member is: everything a hub must know of it, so that one heartbeat heals a lost
 * message. */
struct message_status {
    enum message_state state;
    struct fleet_generation generation; /* the newest obeyed, none if none */
    enum fleet_phase phase; /* reached in `generation` by all its processes, while RUNNING */
    int64_t step;           /* last step committed and held by its trainers, -1 = no state */
    struct fleet_generation
        state_generation;   /* in which that state was last complete, none if none */
    struct fleet_part part; /* what of that state they hold */
    bool is_leaving;        /* it was asked to go: its trainers save what they hold and end */
    int64_t steps_from;     /* oldest committed step that it can still report, 0 = none */
};

struct message_hello {
    const char *job_uid;
    const char *pod_uid; /* the identity of a member */
    int index, attempt;  /* of the pod */
    const char *address; /* where peers reach its trainers */
    const int *ports;    /* [processes], one a trainer process, by local rank; 0 = not known yet */
    int processes;       /* >= 1 */
    const char *devices; /* for people, e.g. "cpu" or "8 x NVIDIA H200" */
    const char *backend; /* of its trainers: "cpu", "cuda"; "" = an own trainer, or not known */
    enum fleet_isa level;
    const char *version;
    struct message_status status;
    int place;   /* its place in the member list of status.generation, or -1 */
    int members; /* number of members of that generation, 0 if none */
    /* For a hub that does not know this generation: */
    int restarts;         /* of the job up to that generation */
    const char *left_for; /* what ended it: a hub's word, or a trainer of its own; "" = neither */
};

/* Said at once when a phase is reached; status.phase WAITING with state WAITING after an abort. */
struct message_ready {
    struct message_status status;
    double age_ms;
};

/* One committed step. A number that does not exist is NaN. */
struct message_step {
    int64_t step;       /* from 1 */
    int64_t generation; /* counter of the generation that committed it */
    int64_t steps;      /* of the whole job as the trainer says, 0 = it does not */
    double loss;
    double grad_norm;     /* NaN for a batch without update */
    double learning_rate; /* NaN for a batch without update */
    int64_t tokens;       /* tokens (else samples) of the step */
    double tokens_per_second;
    struct fleet_step_times times; /* NaN = not measured */
};

struct message_progress {
    struct fleet_generation generation; /* of the sender now */
    int64_t steps_from;                 /* as in its status */
    bool is_sparse; /* an own trainer reports what it likes: no step in between is missing */
    const struct message_step *steps; /* [count], ascending without holes */
    size_t count;
};

struct message_evaluation {
    struct fleet_generation generation;
    int64_t step;
    double loss;
};

struct message_failed {
    struct fleet_generation generation; /* it was running, none if none */
    int local_rank;
    int exit_code;     /* -1 if ended by a signal */
    int signal;        /* 0 if it exited */
    const char *cause; /* CamelCase, e.g. "OutOfMemory"; "" = derive from exit code and signal */
    bool fatal;        /* trying again cannot help: a bad job */
    bool is_back;      /* it was started again before this could be reported */
    const char *lines; /* the last lines of its log, "" if none */
    double age_ms;
};

/* An accusation: the sender's collectives lost `rank`. */
struct message_peer_lost {
    struct fleet_generation generation;
    int rank; /* the accused process */
    double age_ms;
};

struct message_checkpoint_done {
    struct fleet_generation generation;
    int64_t step;
    const char *path;
};

/* One could not be written; the trainer tries again. */
struct message_checkpoint_failed {
    int64_t step;
    const char *reason; /* and where the newest one is */
};

struct message_finished {
    struct fleet_generation generation;
    int64_t steps;
    double loss;
    const char *weights_sha256; /* 64 hex digits, or "" if this member has none to report */
};

struct message_left {
    const char *reason;
};

struct message_member {
    const char *pod_uid;
    int index;
    const char *address;
    const int *ports; /* [processes] */
    int processes;
    int64_t step; /* newest state one of its processes holds in memory, -1 = none: a newcomer */
};

/*
 * The same text for every member. Ranks are per process: member i holds the `processes` ranks that
 * follow those of member i-1; the first of member 0 is rank 0.
 */
struct message_assign {
    struct fleet_generation generation;
    const struct message_member *members; /* [member_count], in rank order */
    size_t member_count;
    int world;                                 /* sum of processes */
    uint8_t key[MESSAGE_SECRET_SIZE];          /* of the generation; never logged */
    const char *plan_digest;                   /* "" if the owner gives none */
    enum fleet_isa level;                      /* lowest of the members */
    const struct fleet_lineage_entry *lineage; /* [lineage_count], this generation last */
    size_t lineage_count;
    int64_t step; /* newest step held by a member, -1: start from a checkpoint or from step 0 */
    int reporter; /* place of the member that sends progress, evaluation, checkpoint_done */
    int64_t progress_step;       /* last step that the hub knows */
    double progress_interval_ms; /* least time between two progress messages */
    int restarts;                /* of the job, up to this generation */
    /* Own trainers: the checkpoint that the job reported last, and where it lies. */
    int64_t checkpoint_step;     /* 0 = none */
    const char *checkpoint_path; /* "" = not said */
};

struct message_abort {
    struct fleet_generation generation;
    const char *cause;
    int member; /* index of the pod that caused it, -1 = none */
};

struct message_checkpoint {
    struct fleet_generation generation;
};

struct message_leave {
    const char *reason;
};

struct message_done {
    bool succeeded;
    const char *reason;
};

struct message_refused {
    const char *reason;
};

struct message_heartbeat {
    struct message_status status; /* from an agent; from a hub only its generation */
    int64_t progress_step;        /* hub: last step that it knows */
    int64_t evaluation_step;      /* hub: step of the last evaluation that it knows, 0 = none */
    int64_t checkpoint_step;      /* hub: newest checkpoint that it knows, 0 = none */
    int64_t held_step;  /* hub: newest step held by a member that answers or by a checkpoint; 0 =
                                     none */
    double interval_ms; /* hub: how often to send one; 0 from an agent */
};

/* put: agent → hub. value: hub → agent, the answer to get once the key was put. */
struct message_value {
    struct fleet_generation generation;
    const char *key;
    const void *value; /* [value_size] opaque bytes; not for get */
    size_t value_size;
};

struct message_get {
    struct fleet_generation generation;
    const char *key;
};

struct message {
    enum message_type type;
    /* Counts the messages of one agent, so that a repeated or overtaken one is recognized; 0 from a
     * hub, whose messages are safe to repeat. */
    int64_t sequence;
    union {
        struct message_hello hello;
        struct message_ready ready;
        struct message_progress progress;
        struct message_evaluation evaluation;
        struct message_failed failed;
        struct message_peer_lost peer_lost;
        struct message_checkpoint_done checkpoint_done;
        struct message_checkpoint_failed checkpoint_failed;
        struct message_finished finished;
        struct message_left left;
        struct message_assign assign;
        struct message_abort abort;
        struct message_checkpoint checkpoint;
        struct message_leave leave;
        struct message_done done;
        struct message_refused refused;
        struct message_heartbeat heartbeat;
        struct message_value put;
        struct message_get get;
        struct message_value value;
    };
    bool is_owned; /* its texts and lists are freed by message_release() */
};

/*
 * An encoded message that may wait in many queues: made once, counted. `uses` starts at 1.
 */
struct message_text {
    size_t uses;
    size_t size;
    size_t queues, job_queues; /* of peers, that hold it: hub_held.c counts with these */
    char text[];               /* [size], and a NUL */
};

/* The encoded message, one use held by the caller. Texts longer than their limit are cut at a UTF-8
 * boundary (log lines: at the front); a list longer than its limit is a bug and aborts. */
struct message_text *message_encode(const struct message *message);

/* Take one more use of the same text; give one back (NULL is fine), the last frees it. Not for
 * several threads. */
struct message_text *message_text_use(struct message_text *text);
void message_text_release(struct message_text *text);

/*
 * -EINVAL: not JSON, a field missing, of another type or outside its limits (named), an unknown
 * type; -EFBIG: longer than MESSAGE_SIZE_MAX.
 */
int message_decode(const char *text, size_t size, struct message *out_message,
                   struct fleet_error *err);

/* A copy with storage of its own, e.g. to keep an assign. */
void message_copy(const struct message *message, struct message *out_copy);

/* Frees what message_decode() or message_copy() allocated. */
void message_release(struct message *message);

/* "hello", "assign", … */
const char *message_type_name(enum message_type type);

/* First rank of member `place` of an assignment: the sum of the processes before it. */
int message_first_rank(const struct message_assign *assign, int place);

#endif
