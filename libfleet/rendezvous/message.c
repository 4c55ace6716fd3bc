/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One table of fields for each type of message; message_codec.c does the rest. A new field is one
 * line here and one in the header: make it optional, since older peers do not send it.
 */
#include "libfleet/rendezvous/message.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/message_codec.h"

#define STEP_MAX INT64_C(9007199254740992)

static const char *const level_names[] = {"plain", "avx2", "avx512", "avx512bf16", "amx"};
static const char *const state_names[] = {"starting", "waiting", "running"};
static const char *const phase_names[] = {"waiting", "connected", "restored", "firstStep"};

/* A line of a table: F(hello, "podUid", TEXT, pod_uid, .min = 1, .max = …). */
#define F(type, name_, kind_, member, ...)                             \
    {                                                                  \
        .name = (name_), .kind = MESSAGE_KIND_##kind_,                 \
        .offset = offsetof(struct message_##type, member), __VA_ARGS__ \
    }
#define END          \
    {                \
        .name = NULL \
    }
#define OPTIONAL    .is_optional = true
#define RANGE(a, b) .min = (a), .max = (b)
#define NAMES(list) .names = (list), .max = FLEET_COUNT(list)
#define UID         RANGE(1, MESSAGE_UID_MAX)
#define STEP        RANGE(-1, STEP_MAX)

static const struct message_field hello_fields[] = {
    F(hello, "job", TEXT, job_uid, UID),
    F(hello, "podUid", TEXT, pod_uid, UID),
    F(hello, "index", INT, index, RANGE(0, 1000000)),
    F(hello, "attempt", INT, attempt, RANGE(0, 1000000000)),
    F(hello, "address", TEXT, address, RANGE(1, MESSAGE_ADDRESS_MAX)),
    F(hello, "ports", INTS, ports, RANGE(1, MESSAGE_PROCESSES_MAX),
      .count_offset = offsetof(struct message_hello, processes)),
    F(hello, "devices", TEXT, devices, RANGE(0, MESSAGE_TEXT_MAX), OPTIONAL),
    F(hello, "level", ENUM, level, NAMES(level_names)),
    F(hello, "version", TEXT, version, RANGE(0, MESSAGE_TEXT_MAX), OPTIONAL),
    F(hello, "state", ENUM, status.state, NAMES(state_names), OPTIONAL),
    F(hello, "generation", GENERATION, status.generation, OPTIONAL),
    F(hello, "phase", ENUM, status.phase, NAMES(phase_names), OPTIONAL),
    F(hello, "step", INT64, status.step, STEP),
    F(hello, "stateGeneration", GENERATION, status.state_generation, OPTIONAL),
    F(hello, "leaving", BOOL, status.is_leaving, OPTIONAL),
    F(hello, "stepsFrom", INT64, status.steps_from, RANGE(0, STEP_MAX), OPTIONAL),
    F(hello, "place", INT, place, RANGE(-1, MESSAGE_MEMBERS_MAX - 1)),
    F(hello, "members", INT, members, RANGE(0, MESSAGE_MEMBERS_MAX), OPTIONAL),
    F(hello, "restarts", INT, restarts, RANGE(0, INT_MAX), OPTIONAL),
    F(hello, "leftFor", TEXT, left_for, RANGE(0, MESSAGE_CAUSE_MAX), OPTIONAL),
    END,
};

static const struct message_field ready_fields[] = {
    F(ready, "state", ENUM, status.state, NAMES(state_names), OPTIONAL),
    F(ready, "generation", GENERATION, status.generation, OPTIONAL),
    F(ready, "phase", ENUM, status.phase, NAMES(phase_names), OPTIONAL),
    F(ready, "step", INT64, status.step, STEP),
    F(ready, "stateGeneration", GENERATION, status.state_generation, OPTIONAL),
    F(ready, "leaving", BOOL, status.is_leaving, OPTIONAL),
    F(ready, "stepsFrom", INT64, status.steps_from, RANGE(0, STEP_MAX), OPTIONAL),
    F(ready, "ageMs", AGE, age_ms, OPTIONAL),
    END,
};

static const struct message_field step_fields[] = {
    F(step, "step", INT64, step, RANGE(0, STEP_MAX)),
    F(step, "generation", INT64, generation, RANGE(0, STEP_MAX), OPTIONAL),
    F(step, "steps", INT64, steps, RANGE(0, STEP_MAX), OPTIONAL),
    F(step, "loss", NUMBER, loss, OPTIONAL),
    F(step, "gradNorm", NUMBER, grad_norm, OPTIONAL),
    F(step, "learningRate", NUMBER, learning_rate, OPTIONAL),
    F(step, "tokens", INT64, tokens, RANGE(0, STEP_MAX), OPTIONAL),
    F(step, "tokensPerSecond", NUMBER, tokens_per_second, OPTIONAL),
    F(step, "dataSeconds", NUMBER, data_s, OPTIONAL),
    F(step, "forwardSeconds", NUMBER, forward_s, OPTIONAL),
    F(step, "backwardSeconds", NUMBER, backward_s, OPTIONAL),
    F(step, "exchangeSeconds", NUMBER, exchange_s, OPTIONAL),
    F(step, "optimizerSeconds", NUMBER, optimizer_s, OPTIONAL),
    END,
};

static const struct message_field progress_fields[] = {
    F(progress, "generation", GENERATION, generation),
    F(progress, "stepsFrom", INT64, steps_from, RANGE(0, STEP_MAX), OPTIONAL),
    F(progress, "sparse", BOOL, is_sparse, OPTIONAL),
    F(progress, "steps", LIST, steps, RANGE(0, MESSAGE_STEPS_MAX), .fields = step_fields,
      .element_size = sizeof(struct message_step),
      .count_offset = offsetof(struct message_progress, count)),
    END,
};

static const struct message_field evaluation_fields[] = {
    F(evaluation, "generation", GENERATION, generation),
    F(evaluation, "step", INT64, step, RANGE(0, STEP_MAX)),
    F(evaluation, "loss", NUMBER, loss),
    END,
};

static const struct message_field failed_fields[] = {
    F(failed, "generation", GENERATION, generation, OPTIONAL),
    F(failed, "localRank", INT, local_rank, RANGE(0, MESSAGE_PROCESSES_MAX - 1)),
    F(failed, "exitCode", INT, exit_code, RANGE(-1, 255)),
    F(failed, "signal", INT, signal, RANGE(0, 128)),
    F(failed, "cause", TEXT, cause, RANGE(0, MESSAGE_CAUSE_MAX), OPTIONAL),
    F(failed, "fatal", BOOL, fatal, OPTIONAL),
    F(failed, "isBack", BOOL, is_back, OPTIONAL),
    F(failed, "lines", LINES, lines, RANGE(0, MESSAGE_LINES_MAX), OPTIONAL),
    F(failed, "ageMs", AGE, age_ms, OPTIONAL),
    END,
};

static const struct message_field peer_lost_fields[] = {
    F(peer_lost, "generation", GENERATION, generation),
    F(peer_lost, "rank", INT, rank, RANGE(-1, FLEET_WORLD_MAX - 1)),
    F(peer_lost, "ageMs", AGE, age_ms, OPTIONAL),
    END,
};

static const struct message_field checkpoint_done_fields[] = {
    F(checkpoint_done, "generation", GENERATION, generation),
    F(checkpoint_done, "step", INT64, step, RANGE(0, STEP_MAX)),
    F(checkpoint_done, "path", TEXT, path, RANGE(0, MESSAGE_PATH_MAX)),
    END,
};

static const struct message_field checkpoint_failed_fields[] = {
    F(checkpoint_failed, "step", INT64, step, RANGE(0, STEP_MAX)),
    F(checkpoint_failed, "reason", TEXT, reason, RANGE(0, MESSAGE_REASON_MAX)),
    END,
};

static const struct message_field finished_fields[] = {
    F(finished, "generation", GENERATION, generation),
    F(finished, "steps", INT64, steps, RANGE(0, STEP_MAX)),
    F(finished, "loss", NUMBER, loss, OPTIONAL),
    F(finished, "weightsSha256", TEXT, weights_sha256, RANGE(0, 64), OPTIONAL),
    END,
};

static const struct message_field left_fields[] = {
    F(left, "reason", TEXT, reason, RANGE(0, MESSAGE_REASON_MAX), OPTIONAL),
    END,
};

static const struct message_field member_fields[] = {
    F(member, "podUid", TEXT, pod_uid, UID),
    F(member, "index", INT, index, RANGE(0, 1000000)),
    F(member, "address", TEXT, address, RANGE(1, MESSAGE_ADDRESS_MAX)),
    F(member, "ports", INTS, ports, RANGE(1, MESSAGE_PROCESSES_MAX),
      .count_offset = offsetof(struct message_member, processes)),
    F(member, "step", INT64, step, STEP),
    END,
};

static const struct message_field lineage_fields[] = {
    F(lineage, "generation", GENERATION, generation),
    F(lineage, "firstStep", INT64, first_step, RANGE(0, STEP_MAX)),
    END,
};

static const struct message_field assign_fields[] = {
    F(assign, "generation", GENERATION, generation),
    F(assign, "members", LIST, members, RANGE(1, MESSAGE_MEMBERS_MAX), .fields = member_fields,
      .element_size = sizeof(struct message_member),
      .count_offset = offsetof(struct message_assign, member_count)),
    F(assign, "world", INT, world, RANGE(1, FLEET_WORLD_MAX)),
    F(assign, "key", SECRET, key),
    F(assign, "planDigest", TEXT, plan_digest, RANGE(0, MESSAGE_TEXT_MAX), OPTIONAL),
    F(assign, "level", ENUM, level, NAMES(level_names)),
    F(assign, "lineage", LIST, lineage, RANGE(0, MESSAGE_LINEAGE_MAX), .fields = lineage_fields,
      .element_size = sizeof(struct message_lineage),
      .count_offset = offsetof(struct message_assign, lineage_count)),
    F(assign, "step", INT64, step, STEP),
    F(assign, "reporter", INT, reporter, RANGE(0, MESSAGE_MEMBERS_MAX - 1)),
    F(assign, "progressStep", INT64, progress_step, RANGE(0, STEP_MAX)),
    F(assign, "progressIntervalMs", AGE, progress_interval_ms, OPTIONAL),
    F(assign, "restarts", INT, restarts, RANGE(0, INT_MAX), OPTIONAL),
    F(assign, "checkpointStep", INT64, checkpoint_step, RANGE(0, STEP_MAX), OPTIONAL),
    F(assign, "checkpointPath", TEXT, checkpoint_path, RANGE(0, MESSAGE_PATH_MAX), OPTIONAL),
    END,
};

static const struct message_field abort_fields[] = {
    F(abort, "generation", GENERATION, generation),
    F(abort, "cause", TEXT, cause, RANGE(0, MESSAGE_CAUSE_MAX), OPTIONAL),
    F(abort, "member", INT, member, RANGE(-1, 1000000)),
    END,
};

static const struct message_field checkpoint_fields[] = {
    F(checkpoint, "generation", GENERATION, generation),
    END,
};

static const struct message_field leave_fields[] = {
    F(leave, "reason", TEXT, reason, RANGE(0, MESSAGE_REASON_MAX), OPTIONAL),
    END,
};

static const struct message_field done_fields[] = {
    F(done, "succeeded", BOOL, succeeded),
    F(done, "reason", TEXT, reason, RANGE(0, MESSAGE_REASON_MAX), OPTIONAL),
    END,
};

static const struct message_field refused_fields[] = {
    F(refused, "reason", TEXT, reason, RANGE(0, MESSAGE_REASON_MAX), OPTIONAL),
    END,
};

static const struct message_field heartbeat_fields[] = {
    F(heartbeat, "state", ENUM, status.state, NAMES(state_names), OPTIONAL),
    F(heartbeat, "generation", GENERATION, status.generation, OPTIONAL),
    F(heartbeat, "phase", ENUM, status.phase, NAMES(phase_names), OPTIONAL),
    F(heartbeat, "step", INT64, status.step, STEP),
    F(heartbeat, "stateGeneration", GENERATION, status.state_generation, OPTIONAL),
    F(heartbeat, "leaving", BOOL, status.is_leaving, OPTIONAL),
    F(heartbeat, "stepsFrom", INT64, status.steps_from, RANGE(0, STEP_MAX), OPTIONAL),
    F(heartbeat, "progressStep", INT64, progress_step, RANGE(0, STEP_MAX), OPTIONAL),
    F(heartbeat, "checkpointStep", INT64, checkpoint_step, RANGE(0, STEP_MAX), OPTIONAL),
    F(heartbeat, "heldStep", INT64, held_step, RANGE(0, STEP_MAX), OPTIONAL),
    F(heartbeat, "intervalMs", AGE, interval_ms, OPTIONAL),
    END,
};

static const struct message_field get_fields[] = {
    F(get, "generation", GENERATION, generation),
    F(get, "key", TEXT, key, RANGE(1, MESSAGE_KEY_MAX)),
    END,
};

static const struct message_field value_fields[] = {
    F(value, "generation", GENERATION, generation),
    F(value, "key", TEXT, key, RANGE(1, MESSAGE_KEY_MAX)),
    F(value, "value", BYTES, value, RANGE(0, MESSAGE_VALUE_MAX),
      .count_offset = offsetof(struct message_value, value_size)),
    END,
};

static const struct {
    const char *name;
    const struct message_field *fields;
} types[] = {
    [MESSAGE_HELLO] = {"hello", hello_fields},
    [MESSAGE_READY] = {"ready", ready_fields},
    [MESSAGE_PROGRESS] = {"progress", progress_fields},
    [MESSAGE_EVALUATION] = {"evaluation", evaluation_fields},
    [MESSAGE_FAILED] = {"failed", failed_fields},
    [MESSAGE_PEER_LOST] = {"peerLost", peer_lost_fields},
    [MESSAGE_CHECKPOINT_DONE] = {"checkpointDone", checkpoint_done_fields},
    [MESSAGE_CHECKPOINT_FAILED] = {"checkpointFailed", checkpoint_failed_fields},
    [MESSAGE_FINISHED] = {"finished", finished_fields},
    [MESSAGE_LEFT] = {"left", left_fields},
    [MESSAGE_ASSIGN] = {"assign", assign_fields},
    [MESSAGE_ABORT] = {"abort", abort_fields},
    [MESSAGE_CHECKPOINT] = {"checkpoint", checkpoint_fields},
    [MESSAGE_LEAVE] = {"leave", leave_fields},
    [MESSAGE_DONE] = {"done", done_fields},
    [MESSAGE_REFUSED] = {"refused", refused_fields},
    [MESSAGE_HEARTBEAT] = {"heartbeat", heartbeat_fields},
    [MESSAGE_PUT] = {"put", value_fields},
    [MESSAGE_GET] = {"get", get_fields},
    [MESSAGE_VALUE] = {"value", value_fields},
};

struct message_text *message_encode(const struct message *message)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf json = {0};
    struct message_text *text;

    fleet_assert(message->type < FLEET_COUNT(types));
    fleet_strbuf_appendf(&json, "{\"type\":\"%s\"", types[message->type].name);
    if (message->sequence > 0)
        fleet_strbuf_appendf(&json, ",\"sequence\":%" PRId64, message->sequence);
    message_codec_encode(types[message->type].fields, &message->hello, &json);
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

/* What single fields cannot say: steps follow each other, the world is the sum of the processes,
 * … */
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
    struct message message = {0};
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
    if (message_codec_decode(types[message.type].fields, root, &message.hello, &message.storage,
                             err) < 0 ||
        check_whole(&message, err) < 0) {
        message_codec_release(&message.storage);
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
    message_codec_release(&message->storage);
}

const char *message_type_name(enum message_type type)
{
    return type < FLEET_COUNT(types) ? types[type].name : "unknown";
}

const char *message_level_name(enum message_level level)
{
    return level < FLEET_COUNT(level_names) ? level_names[level] : "unknown";
}

int message_level_parse(const char *name, enum message_level *out_level, struct fleet_error *err)
{
    for (size_t i = 0; i < FLEET_COUNT(level_names); i++)
        if (strcmp(name, level_names[i]) == 0) {
            *out_level = (enum message_level)i;
            return 0;
        }
    return fleet_error(err, -EINVAL,
                       "instruction-set level \"%.40s\" is none of plain, avx2, avx512, "
                       "avx512bf16, amx",
                       name);
}

int message_first_rank(const struct message_assign *assign, int place)
{
    int rank = 0;

    for (int i = 0; i < place; i++)
        rank += assign->members[i].processes;
    return rank;
}
