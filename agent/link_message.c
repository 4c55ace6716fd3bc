/* SPDX-License-Identifier: Apache-2.0 */

/*
 * link.h's messages as JSON. What is a plain number or text in a message stands in one table, which
 * drives both directions; only the lists of `assign` and `progress` are written out by hand.
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
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"

enum slot_type {
    SLOT_INT,
    SLOT_INT64,
    SLOT_NUMBER,
    SLOT_LOSS,
    SLOT_BOOL,
    SLOT_TEXT,
    SLOT_PHASE
};

struct slot {
    enum link_kind kind;
    const char *key;
    enum slot_type type;
    size_t offset, size; /* of the member in struct link_message */
    double min, max;     /* SLOT_INT, SLOT_INT64 */
};

#define AT(member) offsetof(struct link_message, member), sizeof(((struct link_message *)0)->member)
#define STEP_MAX   9007199254740992.0

static const struct slot slots[] = {
    {LINK_ASSIGN, "rank", SLOT_INT, AT(assign.rank), 0, LINK_WORLD_MAX - 1},
    {LINK_ASSIGN, "world", SLOT_INT, AT(assign.world), 1, LINK_WORLD_MAX},
    {LINK_ASSIGN, "level", SLOT_INT, AT(assign.level), 0, 1000},
    {LINK_ASSIGN, "digest", SLOT_TEXT, AT(assign.digest), 0, 0},
    {LINK_ASSIGN, "keepsState", SLOT_BOOL, AT(assign.keeps_state), 0, 0},
    {LINK_ASSIGN, "faultAtMs", SLOT_NUMBER, AT(assign.fault_at_ms), 0, 0},
    {LINK_ABORT, "cause", SLOT_TEXT, AT(abort.cause), 0, 0},
    {LINK_LEAVE, "graceMs", SLOT_NUMBER, AT(leave.grace_ms), 0, 0},
    {LINK_HELLO, "port", SLOT_INT, AT(hello.port), 0, 65535},
    {LINK_HELLO, "level", SLOT_INT, AT(hello.level), 0, 1000},
    {LINK_HELLO, "pid", SLOT_INT64, AT(hello.pid), 0, INT_MAX},
    {LINK_READY, "phase", SLOT_PHASE, AT(ready.phase), 0, 0},
    {LINK_READY, "atMs", SLOT_NUMBER, AT(ready.at_ms), 0, 0},
    {LINK_READY, "step", SLOT_INT64, AT(ready.step), -1, STEP_MAX},
    {LINK_PEER_LOST, "rank", SLOT_INT, AT(peer_lost.rank), 0, LINK_WORLD_MAX - 1},
    {LINK_PEER_LOST, "atMs", SLOT_NUMBER, AT(peer_lost.at_ms), 0, 0},
    {LINK_PEER_LOST, "text", SLOT_TEXT, AT(peer_lost.text), 0, 0},
    {LINK_CHECKPOINT_DONE, "step", SLOT_INT64, AT(checkpoint_done.step), 0, STEP_MAX},
    {LINK_CHECKPOINT_DONE, "path", SLOT_TEXT, AT(checkpoint_done.path), 0, 0},
    {LINK_CHECKPOINT_FAILED, "step", SLOT_INT64, AT(checkpoint_failed.step), 0, STEP_MAX},
    {LINK_CHECKPOINT_FAILED, "text", SLOT_TEXT, AT(checkpoint_failed.text), 0, 0},
    {LINK_EVALUATION, "step", SLOT_INT64, AT(evaluation.step), 0, STEP_MAX},
    {LINK_EVALUATION, "loss", SLOT_LOSS, AT(evaluation.loss), 0, 0},
    {LINK_WARNING, "text", SLOT_TEXT, AT(warning.text), 0, 0},
    {LINK_WARNING, "isNote", SLOT_BOOL, AT(warning.is_note), 0, 0},
    {LINK_FAILED, "text", SLOT_TEXT, AT(failed.text), 0, 0},
    {LINK_FAILED, "cause", SLOT_TEXT, AT(failed.cause), 0, 0},
    {LINK_FAILED, "permanent", SLOT_BOOL, AT(failed.permanent), 0, 0},
    {LINK_FINISHED, "steps", SLOT_INT64, AT(finished.steps), 0, STEP_MAX},
    {LINK_FINISHED, "loss", SLOT_LOSS, AT(finished.loss), 0, 0},
    {LINK_FINISHED, "weightsSha256", SLOT_TEXT, AT(finished.weights_sha256), 0, 0},
};

static const char *const kind_names[LINK_KIND_COUNT] = {
    [LINK_ASSIGN] = "assign",
    [LINK_ABORT] = "abort",
    [LINK_CHECKPOINT] = "checkpoint",
    [LINK_LEAVE] = "leave",
    [LINK_DONE] = "done",
    [LINK_HELLO] = "hello",
    [LINK_READY] = "ready",
    [LINK_PROGRESS] = "progress",
    [LINK_PEER_LOST] = "peer_lost",
    [LINK_CHECKPOINT_DONE] = "checkpoint_done",
    [LINK_CHECKPOINT_FAILED] = "checkpoint_failed",
    [LINK_EVALUATION] = "evaluation",
    [LINK_WARNING] = "warning",
    [LINK_FAILED] = "failed",
    [LINK_FINISHED] = "finished",
    [LINK_HEARTBEAT] = "heartbeat",
};

static const char *const phase_names[LINK_PHASE_COUNT] = {"waiting", "connected", "restored",
                                                          "first_step"};

const char *link_kind_name(enum link_kind kind)
{
    return kind_names[kind];
}

static bool has_generation(enum link_kind kind)
{
    return kind == LINK_ASSIGN || kind == LINK_ABORT || kind == LINK_READY ||
           kind == LINK_PROGRESS || kind == LINK_PEER_LOST || kind == LINK_CHECKPOINT_DONE;
}

void link_message_release(struct link_message *message)
{
    if (message->kind == LINK_ASSIGN && message->assign.addresses) {
        for (int i = 0; i < message->assign.world; i++)
            free(message->assign.addresses[i]);
        free(message->assign.addresses);
    }
    memset(message, 0, sizeof(*message));
}

/* ---- writing --------------------------------------------------------------------------------- */

static void append_key(struct fleet_strbuf *out, const char *key)
{
    fleet_strbuf_appendf(out, ",\"%s\":", key);
}

static void append_number(struct fleet_strbuf *out, const char *key, double value)
{
    append_key(out, key);
    fleet_json_append_number(out, value);
}

static void append_slot(struct fleet_strbuf *out, const struct slot *slot,
                        const struct link_message *message)
{
    const void *at = (const char *)message + slot->offset;

    append_key(out, slot->key);
    switch (slot->type) {
    case SLOT_INT:
        fleet_strbuf_appendf(out, "%d", *(const int *)at);
        break;
    case SLOT_INT64:
        fleet_strbuf_appendf(out, "%lld", (long long)*(const int64_t *)at);
        break;
    case SLOT_NUMBER:
    case SLOT_LOSS:
        fleet_json_append_number(out, *(const double *)at);
        break;
    case SLOT_BOOL:
        fleet_strbuf_append(out, *(const bool *)at ? "true" : "false");
        break;
    case SLOT_TEXT:
        fleet_json_append_string(out, at);
        break;
    case SLOT_PHASE:
        fleet_json_append_string(out, phase_names[*(const enum link_phase *)at]);
        break;
    }
}

static void append_assign(struct fleet_strbuf *out, const struct link_message *message)
{
    char key[2 * LINK_KEY_SIZE + 1];

    fleet_hex_encode(message->assign.key, LINK_KEY_SIZE, key);
    fleet_strbuf_appendf(out, ",\"key\":\"%s\",\"addresses\":[", key);
    for (int i = 0; i < message->assign.world; i++) {
        if (i)
            fleet_strbuf_append_char(out, ',');
        fleet_json_append_string(out, message->assign.addresses[i]);
    }
    fleet_strbuf_append(out, "],\"lineage\":[");
    for (int i = 0; i < message->assign.lineage_count; i++) {
        const struct link_lineage *l = &message->assign.lineage[i];
        fleet_strbuf_appendf(out, "%s{\"epoch\":%lld,\"counter\":%lld,\"firstStep\":%lld}",
                             i ? "," : "", (long long)l->generation.epoch,
                             (long long)l->generation.counter, (long long)l->first_step);
    }
    fleet_strbuf_append_char(out, ']');
}

static void append_times(struct fleet_strbuf *out, const struct link_times *times)
{
    append_number(out, "dataSeconds", times->data);
    append_number(out, "forwardSeconds", times->forward);
    append_number(out, "backwardSeconds", times->backward);
    append_number(out, "exchangeSeconds", times->exchange);
    append_number(out, "optimizerSeconds", times->optimizer);
}

static void append_progress(struct fleet_strbuf *out, const struct link_message *message)
{
    fleet_strbuf_append(out, ",\"steps\":[");
    for (int i = 0; i < message->progress.count; i++) {
        const struct link_step *s = &message->progress.steps[i];
        fleet_strbuf_appendf(out, "%s{\"step\":%lld", i ? "," : "", (long long)s->step);
        append_number(out, "loss", s->loss);
        if (s->has_update) {
            append_number(out, "gradNorm", s->gradient_norm);
            append_number(out, "learningRate", s->learning_rate);
        }
        fleet_strbuf_appendf(out, ",\"tokens\":%lld", (long long)s->tokens);
        append_number(out, "tokensPerSecond", s->tokens_per_second);
        append_times(out, &s->times);
        fleet_strbuf_append_char(out, '}');
    }
    fleet_strbuf_append_char(out, ']');
}

void link_message_encode(const struct link_message *message, struct fleet_strbuf *out)
{
    fleet_assert(message->kind >= 0 && message->kind < LINK_KIND_COUNT);
    fleet_strbuf_appendf(out, "{\"message\":\"%s\"", kind_names[message->kind]);
    if (has_generation(message->kind))
        fleet_strbuf_appendf(out, ",\"epoch\":%lld,\"counter\":%lld",
                             (long long)message->generation.epoch,
                             (long long)message->generation.counter);
    for (size_t i = 0; i < FLEET_COUNT(slots); i++)
        if (slots[i].kind == message->kind)
            append_slot(out, &slots[i], message);
    if (message->kind == LINK_ASSIGN)
        append_assign(out, message);
    if (message->kind == LINK_PROGRESS)
        append_progress(out, message);
    fleet_strbuf_append(out, "}\n");
}

/* ---- reading --------------------------------------------------------------------------------- */

static int get_int_between(const cJSON *root, const char *key, double min, double max, int64_t *out,
                           struct fleet_error *err)
{
    int64_t value;
    int rc = fleet_json_get_int(root, key, &value, err);

    if (rc < 0)
        return rc;
    if ((double)value < min || (double)value > max)
        return fleet_error(err, -EINVAL, "%s is %lld, not in [%.0f, %.0f]", key, (long long)value,
                           min, max);
    *out = value;
    return 0;
}

/* null stands for a number that JSON cannot say: `missing`. */
static int get_number(const cJSON *root, const char *key, double missing, double *out,
                      struct fleet_error *err)
{
    const cJSON *item = fleet_json_at(root, key);

    if (!cJSON_IsNull(item))
        return fleet_json_get_number(root, key, out, err);
    *out = missing;
    return 0;
}

/* Texts are for people: too long ones are cut, at the start of a character. */
static int get_text(const cJSON *root, const char *key, char *out, size_t size,
                    struct fleet_error *err)
{
    const char *text;
    size_t length;
    int rc = fleet_json_get_string(root, key, &text, err);

    if (rc < 0)
        return rc;
    length = strlen(text);
    if (length >= size)
        for (length = size - 1; length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80;)
            length--;
    memcpy(out, text, length);
    out[length] = '\0';
    return 0;
}

static int get_phase(const cJSON *root, const char *key, enum link_phase *out,
                     struct fleet_error *err)
{
    const char *text;
    int rc = fleet_json_get_string(root, key, &text, err);

    if (rc < 0)
        return rc;
    for (int i = 0; i < LINK_PHASE_COUNT; i++)
        if (strcmp(text, phase_names[i]) == 0) {
            *out = (enum link_phase)i;
            return 0;
        }
    return fleet_error(err, -EINVAL,
                       "%s is \"%.40s\", none of waiting, connected, restored, first_step", key,
                       text);
}

static int read_slot(const cJSON *root, const struct slot *slot, struct link_message *out,
                     struct fleet_error *err)
{
    void *at = (char *)out + slot->offset;
    int64_t number = 0;
    int rc = 0;

    switch (slot->type) {
    case SLOT_INT:
        rc = get_int_between(root, slot->key, slot->min, slot->max, &number, err);
        *(int *)at = (int)number;
        return rc;
    case SLOT_INT64:
        rc = get_int_between(root, slot->key, slot->min, slot->max, &number, err);
        *(int64_t *)at = number;
        return rc;
    case SLOT_NUMBER:
        return get_number(root, slot->key, 0.0, at, err);
    case SLOT_LOSS:
        return get_number(root, slot->key, NAN, at, err);
    case SLOT_BOOL:
        return fleet_json_get_bool(root, slot->key, at, err);
    case SLOT_TEXT:
        return get_text(root, slot->key, at, slot->size, err);
    case SLOT_PHASE:
        return get_phase(root, slot->key, at, err);
    }
    return 0;
}

static int get_generation(const cJSON *root, struct fleet_generation *out, struct fleet_error *err)
{
    int rc = get_int_between(root, "epoch", 0, STEP_MAX, &out->epoch, err);

    return rc < 0 ? rc : get_int_between(root, "counter", 0, STEP_MAX, &out->counter, err);
}

static int get_list(const cJSON *root, const char *key, int min, int max, const cJSON **out,
                    struct fleet_error *err)
{
    const cJSON *list = fleet_json_at(root, key);
    int count = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;

    if (count < 0)
        return fleet_error(err, -EINVAL, "%s is not a list", key);
    if (count < min || count > max)
        return fleet_error(err, -EINVAL, "%s has %d elements, not between %d and %d", key, count,
                           min, max);
    *out = list;
    return count;
}

static bool is_address(const cJSON *item)
{
    size_t length = cJSON_IsString(item) ? strlen(item->valuestring) : 0;

    for (size_t i = 0; i < length; i++)
        if (item->valuestring[i] <= ' ' || item->valuestring[i] > '~')
            return false;
    return length > 0 && length < LINK_ADDRESS_SIZE;
}

static int read_addresses(const cJSON *root, struct link_message *out, struct fleet_error *err)
{
    const cJSON *list, *item;
    int world = out->assign.world, rank = 0;
    int rc = get_list(root, "addresses", world, world, &list, err);

    if (rc < 0)
        return rc;
    out->assign.addresses = calloc((size_t)world, sizeof(*out->assign.addresses));
    fleet_assert(out->assign.addresses);
    cJSON_ArrayForEach(item, list)
    {
        if (!is_address(item))
            return fleet_error(err, -EINVAL,
                               "addresses[%d] is not a text of 1 to %d visible characters", rank,
                               LINK_ADDRESS_SIZE - 1);
        out->assign.addresses[rank] = fleet_dup_text(item->valuestring);
        rank++;
    }
    return 0;
}

static int read_lineage(const cJSON *root, struct link_message *out, struct fleet_error *err)
{
    const cJSON *list, *item;
    int rc = get_list(root, "lineage", 0, LINK_LINEAGE_MAX, &list, err);

    if (rc < 0)
        return rc;
    cJSON_ArrayForEach(item, list)
    {
        struct link_lineage *l = &out->assign.lineage[out->assign.lineage_count];
        if (get_generation(item, &l->generation, err) < 0 ||
            get_int_between(item, "firstStep", 0, STEP_MAX, &l->first_step, err) < 0)
            return fleet_error_wrap(err, "lineage[%d]", out->assign.lineage_count);
        out->assign.lineage_count++;
    }
    return 0;
}

static int read_assign(const cJSON *root, struct link_message *out, struct fleet_error *err)
{
    const char *key;
    int rc = fleet_json_get_string(root, "key", &key, err);

    if (rc < 0)
        return rc;
    if (fleet_hex_decode(key, out->assign.key, LINK_KEY_SIZE) < 0)
        return fleet_error(err, -EINVAL, "key is not %d hexadecimal digits", 2 * LINK_KEY_SIZE);
    if (out->assign.rank >= out->assign.world)
        return fleet_error(err, -EINVAL, "rank %d does not exist in a world of %d",
                           out->assign.rank, out->assign.world);
    rc = read_addresses(root, out, err);
    return rc < 0 ? rc : read_lineage(root, out, err);
}

static int read_times(const cJSON *item, struct link_times *out, struct fleet_error *err)
{
    int rc;

    if ((rc = get_number(item, "dataSeconds", 0.0, &out->data, err)) < 0 ||
        (rc = get_number(item, "forwardSeconds", 0.0, &out->forward, err)) < 0 ||
        (rc = get_number(item, "backwardSeconds", 0.0, &out->backward, err)) < 0 ||
        (rc = get_number(item, "exchangeSeconds", 0.0, &out->exchange, err)) < 0)
        return rc;
    return get_number(item, "optimizerSeconds", 0.0, &out->optimizer, err);
}

static int read_step(const cJSON *item, struct link_step *out, struct fleet_error *err)
{
    int rc;

    if ((rc = get_int_between(item, "step", 1, STEP_MAX, &out->step, err)) < 0 ||
        (rc = get_number(item, "loss", NAN, &out->loss, err)) < 0 ||
        (rc = get_int_between(item, "tokens", 0, STEP_MAX, &out->tokens, err)) < 0 ||
        (rc = get_number(item, "tokensPerSecond", 0.0, &out->tokens_per_second, err)) < 0 ||
        (cJSON_HasObjectItem(item, "dataSeconds") && (rc = read_times(item, &out->times, err)) < 0))
        return rc;
    out->has_update = cJSON_HasObjectItem(item, "learningRate");
    if (!out->has_update)
        return 0;
    rc = get_number(item, "gradNorm", NAN, &out->gradient_norm, err);
    return rc < 0 ? rc : get_number(item, "learningRate", 0.0, &out->learning_rate, err);
}

static int read_progress(const cJSON *root, struct link_message *out, struct fleet_error *err)
{
    const cJSON *list, *item;
    int rc = get_list(root, "steps", 1, LINK_STEPS_MAX, &list, err);

    if (rc < 0)
        return rc;
    cJSON_ArrayForEach(item, list)
    {
        int i = out->progress.count;
        struct link_step *s = &out->progress.steps[i];
        if (read_step(item, s, err) < 0)
            return fleet_error_wrap(err, "steps[%d]", i);
        if (i > 0 && s->step != s[-1].step + 1)
            return fleet_error(err, -EINVAL, "steps[%d] is step %lld after step %lld", i,
                               (long long)s->step, (long long)s[-1].step);
        out->progress.count++;
    }
    return 0;
}

static int read_message(const cJSON *root, struct link_message *out, struct fleet_error *err)
{
    int rc = 0;

    if (has_generation(out->kind))
        rc = get_generation(root, &out->generation, err);
    for (size_t i = 0; rc == 0 && i < FLEET_COUNT(slots); i++)
        if (slots[i].kind == out->kind)
            rc = read_slot(root, &slots[i], out, err);
    if (rc == 0 && out->kind == LINK_ASSIGN)
        rc = read_assign(root, out, err);
    if (rc == 0 && out->kind == LINK_PROGRESS)
        rc = read_progress(root, out, err);
    return rc;
}

/* Whatever was wrong, the caller only asks whether it was a message. */
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
    struct link_message message = {0};
    const char *name;
    int rc = fleet_json_parse(line, size, LINK_MESSAGE_SIZE_MAX, &root, err);

    if (rc < 0 || (rc = fleet_json_get_string(root, "message", &name, err)) < 0)
        return refuse(rc, "message", err);
    while (message.kind < LINK_KIND_COUNT && strcmp(name, kind_names[message.kind]) != 0)
        message.kind++;
    if (message.kind == LINK_KIND_COUNT)
        return fleet_error(err, -EINVAL, "unknown message \"%.40s\" on the link", name);
    rc = read_message(root, &message, err);
    if (rc < 0) {
        link_message_release(&message);
        return refuse(rc, name, err);
    }
    *out = message;
    return 0;
}
