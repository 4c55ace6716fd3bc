/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One table of fields for each type of message; field.h does the rest. A new field is one line here
 * and one in the header: make it optional, since older peers do not send it.
 */
#include "libfleet/rendezvous/message.h"

#include <assert.h>
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

/* Rows that several messages have. `type` is the struct's name without "message_". */
#define BOOL(type, name, member, flags) ROW_BOOL(struct message_##type, name, member, flags)
#define INT(type, name, member, low, high, flags) \
    ROW_INT(struct message_##type, name, member, low, high, flags)
#define INT32(type, name, member, low, high, flags) \
    ROW_INT32(struct message_##type, name, member, low, high, flags)
#define STEP(type, name, member, flags) INT(type, name, member, 0, STEP_MAX, flags)
#define NUMBER(type, name, member, flags) \
    ROW_NUMBER(struct message_##type, name, member, NAN, flags)
#define AGE(type, name, member)                                                           \
    ROW(struct message_##type, name, NUMBER, member, FLEET_MIN | FLEET_MAX | FLEET_CLAMP, \
        .min = 0, .max = AGE_MS_MAX)
#define ID(type, name, member, max) \
    ROW_STRING(struct message_##type, name, member, max, FLEET_REQUIRED | FLEET_NOT_EMPTY)
#define TEXT(type, name, member, max, flags) \
    ROW_STRING(struct message_##type, name, member, max, (flags) | FLEET_CUT)
#define ENUM(type, name, member, words, flags) \
    ROW_ENUM(struct message_##type, name, member, words, flags)
#define GENERATION(type, name, member, flags) \
    ROW_OBJECT(struct message_##type, name, member, fleet_generation_type, flags)
#define PORTS(type)                                                                 \
    ROW(struct message_##type, "ports", LIST, ports,                                \
        FLEET_REQUIRED | FLEET_NOT_EMPTY | FLEET_INT_COUNT | FLEET_MIN | FLEET_MAX, \
        .count_max = MESSAGE_PROCESSES_MAX, .item = FLEET_FIELD_INT32, .min = 0, .max = 65535)
#define OBJECTS(type, name, member, max, object, flags) \
    ROW_OBJECTS(struct message_##type, name, member, max, object, (flags) | FLEET_REQUIRED)
#define PART(type, name, member) INT32(type, name, status.part.member, 0, FLEET_WORLD_MAX, 0)
#define STATUS(type)                                                                              \
    ENUM(type, "state", status.state, state_names, 0),                                            \
        GENERATION(type, "generation", status.generation, FLEET_MAY_MISS),                        \
        ENUM(type, "phase", status.phase, phase_names, 0),                                        \
        INT(type, "step", status.step, -1, STEP_MAX, FLEET_REQUIRED),                             \
        GENERATION(type, "stateGeneration", status.state_generation, FLEET_MAY_MISS),             \
        BOOL(type, "leaving", status.is_leaving, 0),                                              \
        STEP(type, "stepsFrom", status.steps_from, 0), PART(type, "replicas", division.replicas), \
        PART(type, "shards", division.shards),                                                    \
        BOOL(type, "buddies", status.part.division.has_buddies, 0), PART(type, "replica", first), \
        PART(type, "held", count), PART(type, "lost", lost)
#define NEEDED FLEET_REQUIRED

static const struct fleet_field hello_fields[] = {
    ID(hello, "job", job_uid, MESSAGE_UID_MAX),
    ID(hello, "podUid", pod_uid, MESSAGE_UID_MAX),
    INT32(hello, "index", index, 0, 1000000, NEEDED),
    INT32(hello, "attempt", attempt, 0, 1000000000, NEEDED),
    ID(hello, "address", address, MESSAGE_ADDRESS_MAX),
    PORTS(hello),
    TEXT(hello, "devices", devices, MESSAGE_TEXT_MAX, 0),
    TEXT(hello, "backend", backend, MESSAGE_CAUSE_MAX, 0),
    ENUM(hello, "level", level, fleet_isa_names, NEEDED),
    TEXT(hello, "version", version, MESSAGE_TEXT_MAX, 0),
    STATUS(hello),
    INT32(hello, "place", place, -1, MESSAGE_MEMBERS_MAX - 1, NEEDED),
    INT32(hello, "members", members, 0, MESSAGE_MEMBERS_MAX, 0),
    INT32(hello, "restarts", restarts, 0, INT_MAX, 0),
    TEXT(hello, "leftFor", left_for, MESSAGE_CAUSE_MAX, 0),
    ROW_END,
};

static const struct fleet_field ready_fields[] = {
    STATUS(ready),
    AGE(ready, "ageMs", age_ms),
    ROW_END,
};

static const struct fleet_field step_fields[] = {
    STEP(step, "step", step, NEEDED),
    STEP(step, "generation", generation, 0),
    STEP(step, "steps", steps, 0),
    NUMBER(step, "loss", loss, 0),
    NUMBER(step, "gradNorm", grad_norm, 0),
    NUMBER(step, "learningRate", learning_rate, 0),
    STEP(step, "tokens", tokens, 0),
    NUMBER(step, "tokensPerSecond", tokens_per_second, 0),
    NUMBER(step, "dataSeconds", times.data_s, 0),
    NUMBER(step, "forwardSeconds", times.forward_s, 0),
    NUMBER(step, "backwardSeconds", times.backward_s, 0),
    NUMBER(step, "exchangeSeconds", times.exchange_s, 0),
    NUMBER(step, "optimizerSeconds", times.optimizer_s, 0),
    NUMBER(step, "hiddenSeconds", times.hidden_s, 0),
    ROW_END,
};

static const struct fleet_object step_type =
    ROW_OBJECT_TYPE("step", struct message_step, step_fields);

static const struct fleet_field progress_fields[] = {
    GENERATION(progress, "generation", generation, NEEDED),
    STEP(progress, "stepsFrom", steps_from, 0),
    BOOL(progress, "sparse", is_sparse, 0),
    OBJECTS(progress, "steps", steps, MESSAGE_STEPS_MAX, step_type, 0),
    ROW_END,
};

static const struct fleet_field evaluation_fields[] = {
    GENERATION(evaluation, "generation", generation, NEEDED),
    STEP(evaluation, "step", step, NEEDED),
    NUMBER(evaluation, "loss", loss, NEEDED),
    ROW_END,
};

static const struct fleet_field failed_fields[] = {
    GENERATION(failed, "generation", generation, FLEET_MAY_MISS),
    INT32(failed, "localRank", local_rank, 0, MESSAGE_PROCESSES_MAX - 1, NEEDED),
    INT32(failed, "exitCode", exit_code, -1, 255, NEEDED),
    INT32(failed, "signal", signal, 0, 128, NEEDED),
    TEXT(failed, "cause", cause, MESSAGE_CAUSE_MAX, 0),
    BOOL(failed, "fatal", fatal, 0),
    BOOL(failed, "isBack", is_back, 0),
    ROW_STRING(struct message_failed, "lines", lines, MESSAGE_LINES_MAX, FLEET_CUT_FRONT),
    AGE(failed, "ageMs", age_ms),
    ROW_END,
};

static const struct fleet_field peer_lost_fields[] = {
    GENERATION(peer_lost, "generation", generation, NEEDED),
    INT32(peer_lost, "rank", rank, -1, FLEET_WORLD_MAX - 1, NEEDED),
    AGE(peer_lost, "ageMs", age_ms),
    ROW_END,
};

static const struct fleet_field checkpoint_done_fields[] = {
    GENERATION(checkpoint_done, "generation", generation, NEEDED),
    STEP(checkpoint_done, "step", step, NEEDED),
    TEXT(checkpoint_done, "path", path, MESSAGE_PATH_MAX, NEEDED),
    ROW_END,
};

static const struct fleet_field checkpoint_failed_fields[] = {
    STEP(checkpoint_failed, "step", step, NEEDED),
    TEXT(checkpoint_failed, "reason", reason, MESSAGE_REASON_MAX, NEEDED),
    ROW_END,
};

static const struct fleet_field finished_fields[] = {
    GENERATION(finished, "generation", generation, NEEDED),
    STEP(finished, "steps", steps, NEEDED),
    NUMBER(finished, "loss", loss, 0),
    TEXT(finished, "weightsSha256", weights_sha256, 64, 0),
    ROW_END,
};

static const struct fleet_field left_fields[] = {
    TEXT(left, "reason", reason, MESSAGE_REASON_MAX, 0),
    ROW_END,
};

static const struct fleet_field member_fields[] = {
    ID(member, "podUid", pod_uid, MESSAGE_UID_MAX),
    INT32(member, "index", index, 0, 1000000, NEEDED),
    ID(member, "address", address, MESSAGE_ADDRESS_MAX),
    PORTS(member),
    INT(member, "step", step, -1, STEP_MAX, NEEDED),
    ROW_END,
};

static const struct fleet_object member_type =
    ROW_OBJECT_TYPE("member", struct message_member, member_fields);

static const struct fleet_field lineage_fields[] = {
    ROW_OBJECT(struct fleet_lineage_entry, "generation", generation, fleet_generation_type, NEEDED),
    ROW_INT(struct fleet_lineage_entry, "firstStep", first_step, 0, STEP_MAX, NEEDED),
    ROW_END,
};

static const struct fleet_object lineage_type =
    ROW_OBJECT_TYPE("lineage", struct fleet_lineage_entry, lineage_fields);

static const struct fleet_field assign_fields[] = {
    GENERATION(assign, "generation", generation, NEEDED),
    OBJECTS(assign, "members", members, MESSAGE_MEMBERS_MAX, member_type, FLEET_NOT_EMPTY),
    INT32(assign, "world", world, 1, FLEET_WORLD_MAX, NEEDED),
    ROW_HEX(struct message_assign, "key", key, NEEDED),
    TEXT(assign, "planDigest", plan_digest, MESSAGE_TEXT_MAX, 0),
    ENUM(assign, "level", level, fleet_isa_names, NEEDED),
    OBJECTS(assign, "lineage", lineage, FLEET_LINEAGE_MAX, lineage_type, 0),
    INT(assign, "step", step, -1, STEP_MAX, NEEDED),
    INT32(assign, "reporter", reporter, 0, MESSAGE_MEMBERS_MAX - 1, NEEDED),
    STEP(assign, "progressStep", progress_step, NEEDED),
    AGE(assign, "progressIntervalMs", progress_interval_ms),
    INT32(assign, "restarts", restarts, 0, INT_MAX, 0),
    STEP(assign, "checkpointStep", checkpoint_step, 0),
    TEXT(assign, "checkpointPath", checkpoint_path, MESSAGE_PATH_MAX, 0),
    ROW_END,
};

static const struct fleet_field abort_fields[] = {
    GENERATION(abort, "generation", generation, NEEDED),
    TEXT(abort, "cause", cause, MESSAGE_CAUSE_MAX, 0),
    INT32(abort, "member", member, -1, 1000000, NEEDED),
    ROW_END,
};

static const struct fleet_field checkpoint_fields[] = {
    GENERATION(checkpoint, "generation", generation, NEEDED),
    ROW_END,
};

static const struct fleet_field leave_fields[] = {
    TEXT(leave, "reason", reason, MESSAGE_REASON_MAX, 0),
    ROW_END,
};

static const struct fleet_field done_fields[] = {
    BOOL(done, "succeeded", succeeded, NEEDED),
    TEXT(done, "reason", reason, MESSAGE_REASON_MAX, 0),
    ROW_END,
};

static const struct fleet_field refused_fields[] = {
    TEXT(refused, "reason", reason, MESSAGE_REASON_MAX, 0),
    ROW_END,
};

static const struct fleet_field heartbeat_fields[] = {
    STATUS(heartbeat),
    STEP(heartbeat, "progressStep", progress_step, 0),
    STEP(heartbeat, "evaluationStep", evaluation_step, 0),
    STEP(heartbeat, "checkpointStep", checkpoint_step, 0),
    STEP(heartbeat, "heldStep", held_step, 0),
    AGE(heartbeat, "intervalMs", interval_ms),
    ROW_END,
};

static const struct fleet_field get_fields[] = {
    GENERATION(get, "generation", generation, NEEDED),
    ID(get, "key", key, MESSAGE_KEY_MAX),
    ROW_END,
};

static const struct fleet_field value_fields[] = {
    GENERATION(value, "generation", generation, NEEDED),
    ID(value, "key", key, MESSAGE_KEY_MAX),
    ROW_BASE64(struct message_value, "value", value, MESSAGE_VALUE_MAX, NEEDED),
    ROW_END,
};

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

/* Lists and bytes are a pointer and a count beside it (FLEET_FIELD_LIST). */
#define IS_LIST(type, items, count)            \
    (offsetof(struct message_##type, count) == \
     offsetof(struct message_##type, items) + sizeof(const void *))
static_assert(IS_LIST(hello, ports, processes), "ports");
static_assert(IS_LIST(member, ports, processes), "ports");
static_assert(IS_LIST(progress, steps, count), "steps");
static_assert(IS_LIST(assign, members, member_count), "members");
static_assert(IS_LIST(assign, lineage, lineage_count), "lineage");
static_assert(IS_LIST(value, value, value_size), "value");

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
