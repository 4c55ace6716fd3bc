/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_H
#define AGENT_LINK_H

/*
 * The messages of an agent and its trainer, over a socket pair.
 *
 * One message is one line of JSON: {"message":"ready","epoch":1,"counter":2,…}. The trainer
 * inherits its end as a descriptor whose number is in the environment variable FLEET_LINK_FD.
 * Neither side ever waits for the other: reading and writing are non-blocking. What does not fit
 * into the socket is queued, up to a limit.
 *
 *     agent → trainer    assign  abort  checkpoint  leave  done
 *     trainer → agent    hello  ready  progress  peer_lost  checkpoint_done  evaluation  warning
 *                        failed  finished  heartbeat
 *
 * Invariants a caller may rely on:
 *  (1) A decoded message is within every limit here and in link_messages.def; ranks, worlds and
 *      counts are consistent (0 <= rank < world, one address a rank), numbers are finite.
 *  (2) The first message of a trainer is `hello`. A trainer runs no generation before `assign`, and
 *      only obeys an `assign` or `abort` whose generation is not older than its own.
 *  (3) Times are milliseconds of CLOCK_MONOTONIC (fleet_monotonic_ms()): both sides share a
 *      machine.
 *  (4) End of file means the other side is gone. A trainer that reads it ends at once.
 *
 * A struct link is used by one thread at a time; the caller locks if there are several.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/division.h"
#include "libfleet/base/isa.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/lineage.h"
#include "libfleet/base/step_times.h"
#include "libfleet/base/strbuf.h"

struct fleet_error;

#define LINK_FD_ENV        "FLEET_LINK_FD"
#define LINK_JOB_FILE_ENV  "FLEET_JOB_FILE"  /* path: libfleet/training/trainer_file.h */
#define LINK_LISTEN_FD_ENV "FLEET_LISTEN_FD" /* listening socket for data connections, inherited */
#define LINK_SAVE_PATIENCE_ENV \
    "FLEET_SAVE_PATIENCE_SECONDS" /* how long the last checkpoint is tried; absent = 300 */
#define LINK_MESSAGE_SIZE_MAX FLEET_LINK_MESSAGE_MAX /* bytes of one line, without the newline */
#define LINK_QUEUE_SIZE_MAX   (2 * FLEET_LINK_MESSAGE_MAX) /* bytes waiting to be sent */
#define LINK_HEARTBEAT_MS     500 /* silence of six of them: the trainer is stopped or stuck */
#define LINK_WORLD_MAX        FLEET_WORLD_MAX
#define LINK_STEPS_MAX        64 /* steps in one `progress` */
#define LINK_KEY_SIZE         32
#define LINK_TEXT_SIZE        1024 /* with the final NUL; longer texts are cut when sent */
#define LINK_PATH_SIZE        4096
#define LINK_CAUSE_SIZE       32
#define LINK_ADDRESS_SIZE     262 /* "host:port" */
#define LINK_DIGEST_SIZE      65  /* 64 hexadecimal digits, or "" */

enum link_kind {
    /* agent → trainer */
    LINK_ASSIGN,     /* join this generation */
    LINK_ABORT,      /* stop the collectives of this generation; an assign follows */
    LINK_CHECKPOINT, /* write a checkpoint at the next step that allows one */
    LINK_LEAVE,      /* stop: checkpoint if the job has them, then exit 0 */
    LINK_DONE,       /* the job is over on all ranks: exit 0 */
    /* trainer → agent */
    LINK_HELLO,             /* alive, this is my data port */
    LINK_READY,             /* a phase of joining a generation is complete */
    LINK_PROGRESS,          /* committed steps */
    LINK_PEER_LOST,         /* a collective connection broke */
    LINK_CHECKPOINT_DONE,   /* a checkpoint is complete on disk */
    LINK_CHECKPOINT_FAILED, /* one could not be written; it is tried again */
    LINK_EVALUATION,        /* loss on the held-out samples */
    LINK_WARNING,           /* worth showing, training goes on */
    LINK_FAILED,            /* the error before a non-zero exit */
    LINK_FINISHED,          /* the last step is committed */
    LINK_HEARTBEAT,         /* every LINK_HEARTBEAT_MS: the process is not stopped */
    LINK_KIND_COUNT,
};

/* The structs: link_step, and one for each message that has fields. link_messages.def has the
 * meaning of each member. */
#define BEGIN(object) struct link_##object {
#define END \
    }       \
    ;
#define COMMITTED(object, name, member, low)    int64_t member;
#define MEASURED(object, name, member, missing) double member;
#define FLAG(member)                            bool member;
#define UPDATED(object, name, member, missing)  double member;
#define TIMES(object, member)                   struct fleet_step_times member;
#define GENERATION(object)
#define BOOL(object, name, member)              bool member;
#define INT32(object, name, member, low, high)  int member;
#define INT(object, name, member, low, high)    int64_t member;
#define NUMBER(object, name, member, missing)   double member;
#define ENUM(object, name, member, type, words) enum type member;
#define LEVEL(object, name, member)             enum fleet_isa member;
#define TEXT(object, name, member, size)        char member[size];
#define KEY(object, name, member)               uint8_t member[LINK_KEY_SIZE];
#define PART(object, member)                    struct fleet_part member;
#define ADDRESSES(object, name, member, count) \
    char **member;                             \
    int count;
#define STEPS(object, name, member, count)   \
    struct link_step member[LINK_STEPS_MAX]; \
    int count;
#define LINEAGE(object, name, member) struct fleet_lineage member;
#include "agent/link_messages.def"

struct link_message {
    enum link_kind kind;

    /* assign, abort, ready, progress, peer_lost, checkpoint_done: which one it is about. */
    struct fleet_generation generation;

    union {
        struct link_assign assign;
        struct link_abort abort;
        struct link_leave leave;
        struct link_hello hello;
        struct link_ready ready;
        struct link_progress progress;
        struct link_peer_lost peer_lost;
        struct link_checkpoint_done checkpoint_done;
        struct link_checkpoint_failed checkpoint_failed;
        struct link_evaluation evaluation;
        struct link_warning warning;
        struct link_failed failed;
        struct link_finished finished;
    };
};

/* "assign", "abort", …: the value of "message". */
const char *link_kind_name(enum link_kind kind);

/* Free what an assign owns; every other message owns nothing. Zeroes it. */
void link_message_release(struct link_message *message);

/* Append `message` as one line with its newline. NaN and infinite numbers are sent as null and
 * arrive as 0, except a step's and a finish's loss, which arrive as NaN. */
void link_message_encode(const struct link_message *message, struct fleet_strbuf *out);

/*
 * Read one line (without newline). *out is the caller's to release.
 * -EINVAL with the path of the wrong field; -EFBIG past LINK_MESSAGE_SIZE_MAX. Unknown keys are
 * ignored, unknown messages are not.
 */
int link_message_decode(const char *line, size_t size, struct link_message *out,
                        struct fleet_error *err);

/* ---- the stream (link.c) --------------------------------------------------------------------- */

struct link {
    int fd; /* owned; -1 = closed */
    struct fleet_strbuf in;
    size_t in_taken; /* bytes of `in` already handed out */
    struct fleet_strbuf out;
};

/* A connected pair, both ends close-on-exec and non-blocking: [0] for the agent, [1] for the
 * trainer (the process that starts it clears close-on-exec in the child). Both are the caller's to
 * close. -EMFILE and other errors of socketpair(). */
int link_pair(int out_fds[2], struct fleet_error *err);

/* Take over `fd` and make it non-blocking. */
void link_init(struct link *link, int fd);

/* Trainer's side: take over the descriptor named by FLEET_LINK_FD. -ENOENT if the variable is not
 * set, -EINVAL if it is not an open descriptor. The variable is removed. */
int link_init_from_environment(struct link *link, struct fleet_error *err);

/* Close the descriptor and free what is queued; what was not sent is lost. */
void link_release(struct link *link);

/*
 * Trainer's side: the listening socket that the agent keeps open over restarts, so that its port
 * stays. Non-blocking, close-on-exec, the caller's to close. -ENOENT: not set, listen yourself;
 * -EINVAL: not a listening TCP socket. The variable is removed.
 */
int link_listener_from_environment(int *out_fd, int *out_port, struct fleet_error *err);

/*
 * The next message, if a whole one has arrived. Never waits. 0: *out is the caller's to release.
 * -EAGAIN: nothing yet. -EPIPE: the other side is gone, and all its messages were handed out.
 * -EINVAL, -EFBIG: its input is not a message; the stream cannot be trusted any more.
 */
int link_receive(struct link *link, struct link_message *out, struct fleet_error *err);

/*
 * Queue a message and send what the socket takes. Never waits, never raises SIGPIPE.
 * -ENOBUFS: more than LINK_QUEUE_SIZE_MAX would wait, nothing was queued; -EPIPE: the other side is
 * gone.
 */
int link_send(struct link *link, const struct link_message *message, struct fleet_error *err);

/* Send as many queued bytes as the socket takes. -EPIPE as above. */
int link_flush(struct link *link, struct fleet_error *err);

/* True while something is queued: poll for writing, then link_flush(). */
bool link_wants_write(const struct link *link);

#endif
