/* SPDX-License-Identifier: Apache-2.0 */

/*
 * link.h's messages as JSON: a table of fields for each message. A new field is a row here and a
 * member in the header.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agent/link.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/field_row.h"
#include "libfleet/base/json.h"

#define STEP_MAX INT64_C(9007199254740992)

static const char *const phase_names[] = {"waiting", "connected", "restored", "first_step", NULL};

/* Rows of struct link_message; all of them are required. */
#define INT(name, member, low, high) \
    ROW_INT(struct link_message, name, member, low, high, FLEET_REQUIRED)
#define INT32(name, member, low, high) \
    ROW_INT32(struct link_message, name, member, low, high, FLEET_REQUIRED)
#define NUMBER(name, member, missing) \
    ROW_NUMBER(struct link_message, name, member, missing, FLEET_REQUIRED)
#define BOOL(name, member) ROW_BOOL(struct link_message, name, member, FLEET_REQUIRED)
#define TEXT(name, member) ROW_CHARS(struct link_message, name, member, FLEET_REQUIRED | FLEET_CUT)
#define GENERATION \
    INT("epoch", generation.epoch, 0, STEP_MAX), INT("counter", generation.counter, 0, STEP_MAX)

static const struct fleet_field lineage_fields[] = {
    ROW_INT(struct fleet_lineage_entry, "epoch", generation.epoch, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_INT(struct fleet_lineage_entry, "counter", generation.counter, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_INT(struct fleet_lineage_entry, "firstStep", first_step, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_END,
};

static const struct fleet_object lineage_type =
    ROW_OBJECT_TYPE("lineage", struct fleet_lineage_entry, lineage_fields);

static const struct fleet_field assign_fields[] = {
    GENERATION,
    INT32("rank", assign.rank, 0, LINK_WORLD_MAX - 1),
    INT32("world", assign.world, 1, LINK_WORLD_MAX),
    INT32("level", assign.level, 0, FLEET_ISA_COUNT - 1),
    TEXT("digest", assign.digest),
    BOOL("keepsState", assign.keeps_state),
    NUMBER("faultAtMs", assign.fault_at_ms, 0),
    ROW_HEX(struct link_message, "key", assign.key, FLEET_REQUIRED),
    ROW(struct link_message, "addresses", LIST, assign.addresses,
        FLEET_REQUIRED | FLEET_NOT_EMPTY | FLEET_INT_COUNT, .count_max = LINK_WORLD_MAX,
        .item = FLEET_FIELD_STRING),
    ROW_ARRAY(struct link_message, "lineage", assign.lineage.entries, lineage_type, FLEET_REQUIRED),
    ROW_END,
};

static const struct fleet_field abort_fields[] = {
    GENERATION,
    TEXT("cause", abort.cause),
    ROW_END,
};

static const struct fleet_field no_fields[] = {ROW_END};

static const struct fleet_field leave_fields[] = {
    NUMBER("graceMs", leave.grace_ms, 0),
    ROW_END,
};

static const struct fleet_field hello_fields[] = {
    INT32("port", hello.port, 0, 65535),
    INT32("level", hello.level, 0, FLEET_ISA_COUNT - 1),
    INT("pid", hello.pid, 0, INT_MAX),
    ROW_END,
};

/* Of a divided state; absent if it is not divided. */
#define PART(name, member, high) ROW_INT32(struct link_message, name, ready.part.member, 0, high, 0)

static const struct fleet_field ready_fields[] = {
    GENERATION,
    ROW_ENUM(struct link_message, "phase", ready.phase, phase_names, FLEET_REQUIRED),
    NUMBER("atMs", ready.at_ms, 0),
    INT("step", ready.step, -1, STEP_MAX),
    PART("replicas", division.replicas, LINK_WORLD_MAX),
    PART("shards", division.shards, LINK_WORLD_MAX),
    ROW_BOOL(struct link_message, "buddies", ready.part.division.has_buddies, 0),
    PART("replica", first, LINK_WORLD_MAX - 1),
    PART("held", count, LINK_WORLD_MAX),
    PART("lost", lost, LINK_WORLD_MAX),
    ROW_END,
};

#define STEP_NUMBER(name, member, missing) \
    ROW_NUMBER(struct link_step, name, member, missing, FLEET_REQUIRED)
/* Absent if the step made no update. */
#define UPDATE_NUMBER(name, member, missing)                \
    ROW(struct link_step, name, NUMBER, member, FLEET_NULL, \
        .presence = FLEET_PRESENCE(struct link_step, has_update), .unset = (missing))
/* Optional, but written even if it is 0. */
#define TIME(name, member) \
    ROW(struct link_step, name, NUMBER, member, FLEET_NULL, .default_text = "0")

static const struct fleet_field step_fields[] = {
    ROW_INT(struct link_step, "step", step, 1, STEP_MAX, FLEET_REQUIRED),
    STEP_NUMBER("loss", loss, NAN),
    UPDATE_NUMBER("gradNorm", gradient_norm, NAN),
    UPDATE_NUMBER("learningRate", learning_rate, 0),
    ROW_INT(struct link_step, "tokens", tokens, 0, STEP_MAX, FLEET_REQUIRED),
    STEP_NUMBER("tokensPerSecond", tokens_per_second, 0),
    TIME("dataSeconds", times.data_s),
    TIME("forwardSeconds", times.forward_s),
    TIME("backwardSeconds", times.backward_s),
    TIME("exchangeSeconds", times.exchange_s),
    TIME("optimizerSeconds", times.optimizer_s),
    TIME("hiddenSeconds", times.hidden_s),
    ROW_END,
};

static const struct fleet_object step_type = ROW_OBJECT_TYPE("step", struct link_step, step_fields);

static const struct fleet_field progress_fields[] = {
    GENERATION,
    ROW_ARRAY(struct link_message, "steps", progress.steps, step_type,
              FLEET_REQUIRED | FLEET_NOT_EMPTY | FLEET_INT_COUNT),
    ROW_END,
};

static const struct fleet_field peer_lost_fields[] = {
    GENERATION,
    INT32("rank", peer_lost.rank, 0, LINK_WORLD_MAX - 1),
    NUMBER("atMs", peer_lost.at_ms, 0),
    TEXT("text", peer_lost.text),
    ROW_END,
};

static const struct fleet_field checkpoint_done_fields[] = {
    GENERATION,
    INT("step", checkpoint_done.step, 0, STEP_MAX),
    TEXT("path", checkpoint_done.path),
    ROW_END,
};

static const struct fleet_field checkpoint_failed_fields[] = {
    INT("step", checkpoint_failed.step, 0, STEP_MAX),
    TEXT("text", checkpoint_failed.text),
    ROW_END,
};

static const struct fleet_field evaluation_fields[] = {
    INT("step", evaluation.step, 0, STEP_MAX),
    NUMBER("loss", evaluation.loss, NAN),
    ROW_END,
};

static const struct fleet_field warning_fields[] = {
    TEXT("text", warning.text),
    BOOL("isNote", warning.is_note),
    ROW_END,
};

static const struct fleet_field failed_fields[] = {
    TEXT("text", failed.text),
    TEXT("cause", failed.cause),
    BOOL("permanent", failed.permanent),
    ROW_END,
};

static const struct fleet_field finished_fields[] = {
    INT("steps", finished.steps, 0, STEP_MAX),
    NUMBER("loss", finished.loss, NAN),
    TEXT("weightsSha256", finished.weights_sha256),
    ROW_END,
};

#define TYPE(name, fields) ROW_OBJECT_TYPE(name, struct link_message, fields)

/* By name as "message" has it. */
static const struct fleet_object types[LINK_KIND_COUNT] = {
    [LINK_ASSIGN] = TYPE("assign", assign_fields),
    [LINK_ABORT] = TYPE("abort", abort_fields),
    [LINK_CHECKPOINT] = TYPE("checkpoint", no_fields),
    [LINK_LEAVE] = TYPE("leave", leave_fields),
    [LINK_DONE] = TYPE("done", no_fields),
    [LINK_HELLO] = TYPE("hello", hello_fields),
    [LINK_READY] = TYPE("ready", ready_fields),
    [LINK_PROGRESS] = TYPE("progress", progress_fields),
    [LINK_PEER_LOST] = TYPE("peer_lost", peer_lost_fields),
    [LINK_CHECKPOINT_DONE] = TYPE("checkpoint_done", checkpoint_done_fields),
    [LINK_CHECKPOINT_FAILED] = TYPE("checkpoint_failed", checkpoint_failed_fields),
    [LINK_EVALUATION] = TYPE("evaluation", evaluation_fields),
    [LINK_WARNING] = TYPE("warning", warning_fields),
    [LINK_FAILED] = TYPE("failed", failed_fields),
    [LINK_FINISHED] = TYPE("finished", finished_fields),
    [LINK_HEARTBEAT] = TYPE("heartbeat", no_fields),
};

const char *link_kind_name(enum link_kind kind)
{
    return types[kind].name;
}

void link_message_release(struct link_message *message)
{
    fleet_object_release(&types[message->kind], message);
}

void link_message_encode(const struct link_message *message, struct fleet_strbuf *out)
{
    fleet_assert(message->kind >= 0 && message->kind < LINK_KIND_COUNT);
    fleet_strbuf_appendf(out, "{\"message\":\"%s\"", types[message->kind].name);
    fleet_object_append_fields(&types[message->kind], message, out);
    fleet_strbuf_append(out, "}\n");
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_address(const char *text)
{
    size_t length = strlen(text);

    for (size_t i = 0; i < length; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return length > 0 && length < LINK_ADDRESS_SIZE;
}

/* Checks across fields. */
static int check_assign(const struct link_message *m, struct fleet_error *err)
{
    if (m->assign.rank >= m->assign.world)
        return fleet_error(err, -EINVAL, "rank %d does not exist in a world of %d", m->assign.rank,
                           m->assign.world);
    if (m->assign.address_count != m->assign.world)
        return fleet_error(err, -EINVAL, "addresses: %d of them in a world of %d",
                           m->assign.address_count, m->assign.world);
    for (int rank = 0; rank < m->assign.world; rank++)
        if (!is_address(m->assign.addresses[rank]))
            return fleet_error(err, -EINVAL,
                               "addresses[%d]: must be 1 to %d visible ASCII characters", rank,
                               LINK_ADDRESS_SIZE - 1);
    return 0;
}

static int check_progress(const struct link_message *m, struct fleet_error *err)
{
    const struct link_step *steps = m->progress.steps;

    for (int i = 1; i < m->progress.count; i++)
        if (steps[i].step != steps[i - 1].step + 1)
            return fleet_error(err, -EINVAL, "steps[%d] is step %lld after step %lld", i,
                               (long long)steps[i].step, (long long)steps[i - 1].step);
    return 0;
}

static int read_message(enum link_kind kind, const cJSON *root, struct link_message *out,
                        struct fleet_error *err)
{
    int rc = fleet_object_read(&types[kind], root, out, err);

    out->kind = kind;
    if (rc == 0 && kind == LINK_ASSIGN)
        rc = check_assign(out, err);
    if (rc == 0 && kind == LINK_PROGRESS)
        rc = check_progress(out, err);
    return rc;
}

/* The caller only needs to know whether it was a valid message. */
static int refuse(int rc, const char *what, struct fleet_error *err)
{
    (void)fleet_error_wrap(err, "decode \"%s\" of the link", what);
    rc = rc == -EFBIG ? rc : -EINVAL;
    if (err)
        err->code = rc;
    return rc;
}

int link_message_decode(const char *line, size_t size, struct link_message *out,
                        struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct link_message message;
    enum link_kind kind = 0;
    const char *name;
    int rc = fleet_json_parse(line, size, LINK_MESSAGE_SIZE_MAX, &root, err);

    if (rc < 0 || (rc = fleet_json_get_string(root, "message", &name, err)) < 0)
        return refuse(rc, "message", err);
    while (kind < LINK_KIND_COUNT && strcmp(name, types[kind].name) != 0)
        kind++;
    if (kind == LINK_KIND_COUNT)
        return fleet_error(err, -EINVAL, "unknown message \"%.40s\" on the link", name);
    rc = read_message(kind, root, &message, err);
    if (rc < 0) {
        link_message_release(&message);
        return refuse(rc, name, err);
    }
    *out = message;
    return 0;
}
