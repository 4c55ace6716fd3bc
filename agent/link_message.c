/* SPDX-License-Identifier: Apache-2.0 */

/*
 * link.h's messages as JSON: a table of fields for each message, made from link_messages.def.
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

static const struct fleet_field lineage_fields[] = {
    ROW_INT(struct fleet_lineage_entry, "epoch", generation.epoch, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_INT(struct fleet_lineage_entry, "counter", generation.counter, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_INT(struct fleet_lineage_entry, "firstStep", first_step, 0, STEP_MAX, FLEET_REQUIRED),
    ROW_END,
};

static const struct fleet_object lineage_type =
    ROW_OBJECT_TYPE("lineage", struct fleet_lineage_entry, lineage_fields);

static const struct fleet_object step_type;

/* The tables: <object>_fields for each object of link_messages.def. The way to a member has no
 * parentheses, since offsetof() takes none. */
/* NOLINTBEGIN(bugprone-macro-parentheses) */
#define BEGIN(object) static const struct fleet_field object##_fields[] = {
#define END  \
    ROW_END, \
    }        \
    ;
#define COMMITTED(object, name, member, low) \
    ROW_INT(struct link_##object, name, member, low, STEP_MAX, FLEET_REQUIRED),
#define MEASURED(object, name, member, missing) \
    ROW_NUMBER(struct link_##object, name, member, missing, FLEET_REQUIRED),
#define FLAG(member)
#define UPDATED(object, name, member, missing)                  \
    ROW(struct link_##object, name, NUMBER, member, FLEET_NULL, \
        .presence = FLEET_PRESENCE(struct link_##object, has_update), .unset = (missing)),
/* Optional, but written even if it is 0. */
#define TIME(object, name, member) \
    ROW(struct link_##object, name, NUMBER, member, FLEET_NULL, .default_text = "0"),
#define TIMES(object, times) FLEET_STEP_TIMES(TIME, object, times)
#define GENERATION(object)                                                                \
    ROW_INT(struct link_message, "epoch", generation.epoch, 0, STEP_MAX, FLEET_REQUIRED), \
        ROW_INT(struct link_message, "counter", generation.counter, 0, STEP_MAX, FLEET_REQUIRED),
#define BOOL(object, name, member) \
    ROW_BOOL(struct link_message, name, object.member, FLEET_REQUIRED),
#define INT32(object, name, member, low, high) \
    ROW_INT32(struct link_message, name, object.member, low, high, FLEET_REQUIRED),
#define INT(object, name, member, low, high) \
    ROW_INT(struct link_message, name, object.member, low, high, FLEET_REQUIRED),
#define NUMBER(object, name, member, missing) \
    ROW_NUMBER(struct link_message, name, object.member, missing, FLEET_REQUIRED),
#define ENUM(object, name, member, type, words) \
    ROW_ENUM(struct link_message, name, object.member, words, FLEET_REQUIRED),
#define LEVEL(object, name, member) INT32(object, name, member, 0, FLEET_ISA_COUNT - 1)
#define TEXT(object, name, member, size) \
    ROW_CHARS(struct link_message, name, object.member, FLEET_REQUIRED | FLEET_CUT),
#define KEY(object, name, member) ROW_HEX(struct link_message, name, object.member, FLEET_REQUIRED),
#define PART_INT(object, name, member, high) \
    ROW_INT32(struct link_message, name, object.member, 0, high, 0),
#define PART(object, part)                                                         \
    PART_INT(object, "replicas", part.division.replicas, LINK_WORLD_MAX)           \
    PART_INT(object, "shards", part.division.shards, LINK_WORLD_MAX)               \
    ROW_BOOL(struct link_message, "buddies", object.part.division.has_buddies, 0), \
        PART_INT(object, "replica", part.first, LINK_WORLD_MAX - 1)                \
            PART_INT(object, "held", part.count, LINK_WORLD_MAX)                   \
                PART_INT(object, "lost", part.lost, LINK_WORLD_MAX)                \
                    PART_INT(object, "heldRank", part.rank, LINK_WORLD_MAX - 1)    \
                        PART_INT(object, "heldWorld", part.world, LINK_WORLD_MAX)
#define ADDRESSES(object, name, member, count_)                                          \
    ROW(struct link_message, name, LIST, object.member,                                  \
        FLEET_REQUIRED | FLEET_NOT_EMPTY | FLEET_INT_COUNT, .count_max = LINK_WORLD_MAX, \
        .item = FLEET_FIELD_STRING),
#define STEPS(object, name, member, count)                         \
    ROW_ARRAY(struct link_message, name, object.member, step_type, \
              FLEET_REQUIRED | FLEET_NOT_EMPTY | FLEET_INT_COUNT),
#define LINEAGE(object, name, member) \
    ROW_ARRAY(struct link_message, name, object.member.entries, lineage_type, FLEET_REQUIRED),
/* NOLINTEND(bugprone-macro-parentheses) */
#include "agent/link_messages.def"

static const struct fleet_object step_type = ROW_OBJECT_TYPE("step", struct link_step, step_fields);
static const struct fleet_field no_fields[] = {ROW_END};

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
