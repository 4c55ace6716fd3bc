/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One table of fields for each type of message, made from messages.def; field.h does the rest.
 */
#include "libfleet/rendezvous/message.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/field_row.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"

#define STEP_MAX   INT64_C(9007199254740992)
#define AGE_MS_MAX 1e12 /* thirty years */

static const char *const state_names[] = {"starting", "waiting", "running", NULL};
static const char *const phase_names[] = {"waiting", "connected", "restored", "firstStep", NULL};

static const struct fleet_field lineage_fields[] = {
    ROW_OBJECT(struct fleet_lineage_entry, "generation", generation, fleet_generation_type,
               FLEET_REQUIRED),
    ROW_INT(struct fleet_lineage_entry, "firstStep", first_step, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_END,
};

static const struct fleet_object lineage_type =
    ROW_OBJECT_TYPE("lineage", struct fleet_lineage_entry, lineage_fields);
static const struct fleet_object step_type, member_type; /* of objects within messages */

#define REQUIRED FLEET_REQUIRED
#define MAY_MISS FLEET_MAY_MISS

/* The tables: <object>_fields for each object of messages.def. The way to a member has no
 * parentheses, since offsetof() takes none. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define SHARED(object, fields)
#define BEGIN(object) static const struct fleet_field object##_fields[] = {
#define END  \
    ROW_END, \
    }        \
    ;
#define BOOL(object, name, member, flags) ROW_BOOL(struct message_##object, name, member, flags),
#define INT32(object, name, member, low, high, flags) \
    ROW_INT32(struct message_##object, name, member, low, high, flags),
#define INT(object, name, member, low, high, flags) \
    ROW_INT(struct message_##object, name, member, low, high, flags),
#define STEP(object, name, member, flags) INT(object, name, member, 0, STEP_MAX, flags)
#define NUMBER(object, name, member, flags) \
    ROW_NUMBER(struct message_##object, name, member, NAN, flags),
#define AGE(object, name, member)                                                           \
    ROW(struct message_##object, name, NUMBER, member, FLEET_MIN | FLEET_MAX | FLEET_CLAMP, \
        .min = 0, .max = AGE_MS_MAX),
#define ID(object, name, member, max) \
    ROW_STRING(struct message_##object, name, member, max, FLEET_REQUIRED | FLEET_NOT_EMPTY),
#define TEXT(object, name, member, max, flags) \
    ROW_STRING(struct message_##object, name, member, max, (flags) | FLEET_CUT),
#define LINES(object, name, member, max, flags) \
    ROW_STRING(struct message_##object, name, member, max, (flags) | FLEET_CUT_FRONT),
#define ENUM(object, name, member, type, words, flags) \
    ROW_ENUM(struct message_##object, name, member, words, flags),
#define GENERATION(object, name, member, flags) \
    ROW_OBJECT(struct message_##object, name, member, fleet_generation_type, flags),
#define KEY(object, name, member, flags) ROW_HEX(struct message_##object, name, member, flags),
#define BYTES(object, name, member, count, max, flags) \
    ROW_BASE64(struct message_##object, name, member, max, flags),
#define LIST(object, name, member, item, count, max, type, flags) \
    ROW_OBJECTS(struct message_##object, name, member, max, type, (flags) | FLEET_REQUIRED),
#define PORTS(object)                                                               \
    ROW(struct message_##object, "ports", LIST, ports,                              \
        FLEET_REQUIRED | FLEET_NOT_EMPTY | FLEET_INT_COUNT | FLEET_MIN | FLEET_MAX, \
        .count_max = MESSAGE_PROCESSES_MAX, .item = FLEET_FIELD_INT32, .min = 0, .max = 65535),
#define STATUS(object)                 STATUS_FIELDS(object, status.)
#define PART_INT(object, name, member) INT32(object, name, member, 0, FLEET_WORLD_MAX, 0)
#define PART(object, part)                                \
    PART_INT(object, "replicas", part.division.replicas)  \
    PART_INT(object, "shards", part.division.shards)      \
    BOOL(object, "buddies", part.division.has_buddies, 0) \
    PART_INT(object, "replica", part.first)               \
    PART_INT(object, "held", part.count)                  \
    PART_INT(object, "lost", part.lost)                   \
    PART_INT(object, "heldRank", part.rank)               \
    PART_INT(object, "heldWorld", part.world)             \
    STEP(object, "lacking", part.lacking, 0)
#define TIME(object, name, member) NUMBER(object, name, member, 0)
#define TIMES(object, times)       FLEET_STEP_TIMES(TIME, object, times)
/* NOLINTEND(bugprone-macro-parentheses) */
#include "libfleet/rendezvous/messages.def"

static const struct fleet_object step_type =
    ROW_OBJECT_TYPE("step", struct message_step, step_fields);
static const struct fleet_object member_type =
    ROW_OBJECT_TYPE("member", struct message_member, member_fields);

#define TYPE(word, struct_, fields_) ROW_OBJECT_TYPE(word, struct message_##struct_, fields_)

/* By name as "type" has it. */
static const struct fleet_object types[] = {
    [MESSAGE_HELLO] = TYPE("hello", hello, hello_fields),
    [MESSAGE_READY] = TYPE("ready", ready, ready_fields),
    [MESSAGE_PROGRESS] = TYPE("progress", progress, progress_fields),
    [MESSAGE_EVALUATION] = TYPE("evaluation", evaluation, evaluation_fields),
    [MESSAGE_FAILED] = TYPE("failed", failed, failed_fields),
    [MESSAGE_PEER_LOST] = TYPE("peerLost", peer_lost, peer_lost_fields),
    [MESSAGE_CHECKPOINT_DONE] = TYPE("checkpointDone", checkpoint_done, checkpoint_done_fields),
    [MESSAGE_CHECKPOINT_FAILED] =
        TYPE("checkpointFailed", checkpoint_failed, checkpoint_failed_fields),
    [MESSAGE_FINISHED] = TYPE("finished", finished, finished_fields),
    [MESSAGE_LEFT] = TYPE("left", left, left_fields),
    [MESSAGE_ASSIGN] = TYPE("assign", assign, assign_fields),
    [MESSAGE_ABORT] = TYPE("abort", abort, abort_fields),
    [MESSAGE_CHECKPOINT] = TYPE("checkpoint", checkpoint, checkpoint_fields),
    [MESSAGE_LEAVE] = TYPE("leave", leave, leave_fields),
    [MESSAGE_DONE] = TYPE("done", done, done_fields),
    [MESSAGE_REFUSED] = TYPE("refused", refused, refused_fields),
    [MESSAGE_HEARTBEAT] = TYPE("heartbeat", heartbeat, heartbeat_fields),
    [MESSAGE_PUT] = TYPE("put", value, value_fields),
    [MESSAGE_GET] = TYPE("get", get, get_fields),
    [MESSAGE_VALUE] = TYPE("value", value, value_fields),
};

struct message_text *message_encode(const struct message *message)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf json = {0};
    struct message_text *text;

    fleet_assert(message->type < FLEET_COUNT(types));
    fleet_strbuf_appendf(&json, "{\"type\":\"%s\"", types[message->type].name);
    if (message->sequence > 0)
        fleet_strbuf_appendf(&json, ",\"sequence\":%" PRId64, message->sequence);
    fleet_object_append_fields(&types[message->type], &message->hello, &json);
    fleet_strbuf_append_char(&json, '}');

    text = malloc(sizeof(*text) + json.length + 1);
    fleet_assert(text != NULL);
    *text = (struct message_text){.uses = 1, .size = json.length};
    memcpy(text->text, json.text, json.length + 1);
    return text;
}

struct message_text *message_text_use(struct message_text *text)
{
    text->uses++;
    return text;
}

void message_text_release(struct message_text *text)
{
    if (text && --text->uses == 0)
        free(text);
}

static int find_type(const char *name, enum message_type *out_type, struct fleet_error *err)
{
    for (size_t i = 0; i < FLEET_COUNT(types); i++)
        if (strcmp(name, types[i].name) == 0) {
            *out_type = (enum message_type)i;
            return 0;
        }
    return fleet_error(err, -EINVAL, "type: \"%.40s\" is no message of %s", name, MESSAGE_PROTOCOL);
}

static int check_sequence(int64_t sequence, struct fleet_error *err)
{
    if (sequence >= 0)
        return 0;
    return fleet_error(err, -EINVAL, "sequence: %" PRId64 " is negative, the first message has 1",
                       sequence);
}

/* Checks across fields: steps follow each other, the world is the sum of the processes, … */
static int check_whole(const struct message *message, struct fleet_error *err)
{
    const struct message_assign *assign = &message->assign;
    const struct message_progress *progress = &message->progress;

    if (message->type == MESSAGE_PROGRESS)
        for (size_t i = 1; i < progress->count; i++)
            if (progress->steps[i].step != progress->steps[i - 1].step + 1)
                return fleet_error(err, -EINVAL, "steps[%zu]: steps must follow each other", i);
    if (message->type == MESSAGE_ASSIGN) {
        if (assign->world != message_first_rank(assign, (int)assign->member_count))
            return fleet_error(err, -EINVAL, "world: %d is not the number of all processes",
                               assign->world);
        if ((size_t)assign->reporter >= assign->member_count)
            return fleet_error(err, -EINVAL, "reporter: there is no member %d", assign->reporter);
    }
    return 0;
}

int message_decode(const char *text, size_t size, struct message *out_message,
                   struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct message message = {.is_owned = true};
    const char *name = "";
    int rc;

    rc = fleet_json_parse(text, size, MESSAGE_SIZE_MAX, &root, err);
    if (rc < 0)
        return fleet_error_wrap(err, "decode message");
    if (fleet_json_get_string(root, "type", &name, err) < 0 ||
        fleet_json_opt_int(root, "sequence", &message.sequence, err) < 0 ||
        check_sequence(message.sequence, err) < 0 || find_type(name, &message.type, err) < 0) {
        (void)fleet_error_wrap(err, "decode message");
        return -EINVAL;
    }
    if (fleet_object_read(&types[message.type], root, &message.hello, err) < 0 ||
        check_whole(&message, err) < 0) {
        message_release(&message);
        (void)fleet_error_wrap(err, "decode message %s", name);
        return -EINVAL;
    }
    *out_message = message;
    return 0;
}

void message_copy(const struct message *message, struct message *out_copy)
{
    struct message_text *text = message_encode(message);
    int rc = message_decode(text->text, text->size, out_copy, NULL);

    fleet_assert(rc == 0);
    message_text_release(text);
}

void message_release(struct message *message)
{
    if (message->is_owned)
        fleet_object_release(&types[message->type], &message->hello);
    message->is_owned = false;
}

const char *message_type_name(enum message_type type)
{
    return type < FLEET_COUNT(types) ? types[type].name : "unknown";
}

int message_first_rank(const struct message_assign *assign, int place)
{
    int rank = 0;

    for (int i = 0; i < place; i++)
        rank += assign->members[i].processes;
    return rank;
}
