/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MESSAGE_H
#define LIBFLEET_RENDEZVOUS_MESSAGE_H

/*
 * The messages between agent and hub. Each is one JSON object: {"type": "hello", …}.
 *
 *   agent → hub   hello ready progress evaluation failed peer_lost checkpoint_done
 *                 checkpoint_failed finished left
 *   hub → agent   assign abort checkpoint leave done refused value
 *   both          heartbeat put get
 *
 * Invariants a caller may rely on:
 *  (1) A decoded message is within all limits here and in messages.def; every string is
 *      non-NULL, valid UTF-8 without NUL; every list has its stated length.
 *  (2) Unknown fields are ignored, because a newer peer may send them. An unknown type is an error.
 *  (3) encode then decode gives the same message.
 *
 * Ownership: all pointers inside a message are borrowed. One built by hand points to the caller's
 * storage and needs no release; one from message_decode() points into its own storage, which
 * message_release() frees.
 *
 * Messages have no timestamps, because the clocks of two machines differ. A message about an event
 * has its age in milliseconds (`age_ms`) instead.
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
    MESSAGE_STATE_STARTING, /* at least one process is not up */
    MESSAGE_STATE_WAITING,  /* all are up and in no generation; they wait for an assign */
    MESSAGE_STATE_RUNNING,  /* all are up and in `generation` */
};

/* The structs: message_status, and one for each object of messages.def. That file has the meaning
 * of each member. A list is a pointer and, after it, its count. */
#define SHARED(object, fields) \
    struct message_##object {  \
        fields                 \
    };
#define BEGIN(object) struct message_##object {
#define END \
    }       \
    ;
#define BOOL(object, name, member, flags)              bool member;
#define INT32(object, name, member, low, high, flags)  int member;
#define INT(object, name, member, low, high, flags)    int64_t member;
#define STEP(object, name, member, flags)              int64_t member;
#define NUMBER(object, name, member, flags)            double member;
#define AGE(object, name, member)                      double member;
#define ID(object, name, member, max)                  const char *member;
#define TEXT(object, name, member, max, flags)         const char *member;
#define LINES(object, name, member, max, flags)        const char *member;
#define ENUM(object, name, member, type, words, flags) enum type member;
#define GENERATION(object, name, member, flags)        struct fleet_generation member;
#define KEY(object, name, member, flags)               uint8_t member[MESSAGE_SECRET_SIZE];
#define BYTES(object, name, member, count, max, flags) \
    const void *member;                                \
    size_t count;
#define LIST(object, name, member, item, count, max, type, flags) \
    const struct item *member;                                    \
    size_t count;
#define PORTS(object) \
    const int *ports; \
    int processes;
#define STATUS(object)        struct message_status status;
#define PART(object, member)  struct fleet_part member;
#define TIMES(object, member) struct fleet_step_times member;
#include "libfleet/rendezvous/messages.def"

struct message {
    enum message_type type;
    /* Number of the message among those of one agent, from 1. The hub drops a message whose number
     * is not greater than the last one. 0 in a hub's messages: they are idempotent. */
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
    bool is_owned; /* message_release() frees the texts and lists */
};

/*
 * An encoded message with a reference count. Many connections may queue the same text.
 */
struct message_text {
    size_t uses;               /* references; 1 after message_encode() */
    size_t size;               /* bytes */
    size_t queues, job_queues; /* connections' queues that hold it; those that count for a job */
    char text[];               /* [size], and a NUL */
};

/* Encode a message. The caller holds one reference. A text longer than its limit is cut at the end,
 * at a UTF-8 boundary; log lines lose their beginning. A list longer than its limit is a bug and
 * aborts. */
struct message_text *message_encode(const struct message *message);

/* Take one more reference; drop one (NULL does nothing). The last drop frees the text. The count is
 * not atomic: one thread only. */
struct message_text *message_text_use(struct message_text *text);
void message_text_release(struct message_text *text);

/*
 * -EINVAL: not JSON, an unknown message type, or a field that is missing, has the wrong JSON type
 * or is out of range; the error names the field. -EFBIG: longer than MESSAGE_SIZE_MAX bytes. On
 * success release *out_message.
 */
int message_decode(const char *text, size_t size, struct message *out_message,
                   struct fleet_error *err);

/* A deep copy, for example to keep an assign. Release *out_copy. */
void message_copy(const struct message *message, struct message *out_copy);

/* Frees what message_decode() or message_copy() allocated. */
void message_release(struct message *message);

/* "hello", "assign", … */
const char *message_type_name(enum message_type type);

/* First rank of members[place] of an assignment: the number of processes of the members before. */
int message_first_rank(const struct message_assign *assign, int place);

#endif
