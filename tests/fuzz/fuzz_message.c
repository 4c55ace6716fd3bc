/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes give an error or a message whose fields are those of the text, and whose encoding has
 * the same fields again. The reader here is independent: cJSON's own parser, and field by field
 * what the protocol says, without the tables of message.c. A field under a wrong name, in a wrong
 * member or with a wrong default is found, although our encoder and decoder would agree on it.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/rendezvous/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- one value: what stands under `name`, or the default of an absent field ------------------ */

static const cJSON *find(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNull(item) ? NULL : item;
}

static void same_number(const cJSON *object, const char *name, double value)
{
    const cJSON *item = find(object, name);

    fleet_assert(!item || cJSON_IsNumber(item));
    fleet_assert((item ? item->valuedouble : 0) == value);
}

/* A measured number: absent is NaN. */
static void same_measure(const cJSON *object, const char *name, double value)
{
    const cJSON *item = find(object, name);

    fleet_assert(item ? item->valuedouble == value : isnan(value));
}

static void same_text(const cJSON *object, const char *name, const char *value)
{
    const cJSON *item = find(object, name);

    fleet_assert(strcmp(item ? cJSON_GetStringValue(item) : "", value) == 0);
}

static void same_flag(const cJSON *object, const char *name, bool value)
{
    fleet_assert(cJSON_IsTrue(find(object, name)) == value);
}

/* One of the words, in the order of its enum; an absent one is the first. */
static void same_word(const cJSON *object, const char *name, const char *const *words, int value)
{
    const cJSON *item = find(object, name);

    fleet_assert(strcmp(item ? cJSON_GetStringValue(item) : words[0], words[value]) == 0);
}

static void same_generation(const cJSON *object, const char *name, struct fleet_generation value)
{
    const cJSON *item = find(object, name);

    same_number(item, "epoch", (double)value.epoch);
    same_number(item, "counter", (double)value.counter);
}

static void same_ports(const cJSON *object, const int *ports, int count)
{
    const cJSON *list = find(object, "ports");

    fleet_assert(cJSON_GetArraySize(list) == count);
    for (int i = 0; i < count; i++)
        fleet_assert(cJSON_GetArrayItem(list, i)->valuedouble == ports[i]);
}

static int digit_of(const char *digits, char c)
{
    const char *at = strchr(digits, c);

    fleet_assert(c != '\0' && at);
    return (int)(at - digits);
}

static void same_key(const cJSON *object, const uint8_t *key)
{
    static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    const char *text = cJSON_GetStringValue(find(object, "key"));

    for (size_t i = 0; i < MESSAGE_SECRET_SIZE; i++) {
        int high = digit_of(strchr(lower, text[2 * i]) ? lower : upper, text[2 * i]);
        int low = digit_of(strchr(lower, text[2 * i + 1]) ? lower : upper, text[2 * i + 1]);
        fleet_assert(key[i] == 16 * high + low);
    }
    fleet_assert(strlen(text) == 2 * (size_t)MESSAGE_SECRET_SIZE);
}

/* Base64 (RFC 4648, section 4). */
static void same_bytes(const cJSON *object, const void *value, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *text = cJSON_GetStringValue(find(object, "value"));
    const uint8_t *bytes = value;
    uint32_t bits = 0;
    size_t held = 0, at = 0;

    for (; *text && *text != '='; text++) {
        bits = bits << 6 | (uint32_t)digit_of(digits, *text);
        held += 6;
        if (held < 8)
            continue;
        held -= 8;
        fleet_assert(at < size && bytes[at] == (uint8_t)(bits >> held));
        at++;
    }
    fleet_assert(at == size);
}

/* ---- parts that several messages have -------------------------------------------------------- */

static const char *const levels[] = {"plain", "avx2", "avx512", "avx512bf16", "amx"};

static void same_status(const cJSON *o, const struct message_status *s)
{
    static const char *const states[] = {"starting", "waiting", "running"};
    static const char *const phases[] = {"waiting", "connected", "restored", "firstStep"};

    same_word(o, "state", states, (int)s->state);
    same_generation(o, "generation", s->generation);
    same_word(o, "phase", phases, (int)s->phase);
    same_number(o, "step", (double)s->step);
    same_generation(o, "stateGeneration", s->state_generation);
    same_flag(o, "leaving", s->is_leaving);
    same_number(o, "stepsFrom", (double)s->steps_from);
    same_number(o, "replicas", s->part.division.replicas);
    same_number(o, "shards", s->part.division.shards);
    same_flag(o, "buddies", s->part.division.has_buddies);
    same_number(o, "replica", s->part.first);
    same_number(o, "held", s->part.count);
    same_number(o, "lost", s->part.lost);
    same_number(o, "heldRank", s->part.rank);
    same_number(o, "heldWorld", s->part.world);
    same_number(o, "lacking", (double)s->part.lacking);
}

static void same_hello(const cJSON *o, const struct message_hello *m)
{
    same_text(o, "job", m->job_uid);
    same_text(o, "podUid", m->pod_uid);
    same_number(o, "index", m->index);
    same_number(o, "attempt", m->attempt);
    same_text(o, "address", m->address);
    same_ports(o, m->ports, m->processes);
    same_text(o, "devices", m->devices);
    same_word(o, "level", levels, (int)m->level);
    same_text(o, "version", m->version);
    same_status(o, &m->status);
    same_number(o, "place", m->place);
    same_number(o, "members", m->members);
    same_number(o, "restarts", m->restarts);
    same_text(o, "leftFor", m->left_for);
}

static void same_step(const cJSON *o, const struct message_step *s)
{
    same_number(o, "step", (double)s->step);
    same_number(o, "generation", (double)s->generation);
    same_number(o, "steps", (double)s->steps);
    same_measure(o, "loss", s->loss);
    same_measure(o, "gradNorm", s->grad_norm);
    same_measure(o, "learningRate", s->learning_rate);
    same_number(o, "tokens", (double)s->tokens);
    same_measure(o, "tokensPerSecond", s->tokens_per_second);
    same_measure(o, "dataSeconds", s->times.data_s);
    same_measure(o, "forwardSeconds", s->times.forward_s);
    same_measure(o, "backwardSeconds", s->times.backward_s);
    same_measure(o, "exchangeSeconds", s->times.exchange_s);
    same_measure(o, "optimizerSeconds", s->times.optimizer_s);
    same_measure(o, "hiddenSeconds", s->times.hidden_s);
}

static void same_progress(const cJSON *o, const struct message_progress *m)
{
    const cJSON *steps = find(o, "steps");

    same_generation(o, "generation", m->generation);
    same_number(o, "stepsFrom", (double)m->steps_from);
    same_flag(o, "sparse", m->is_sparse);
    fleet_assert((size_t)cJSON_GetArraySize(steps) == m->count);
    for (size_t i = 0; i < m->count; i++) {
        same_step(cJSON_GetArrayItem(steps, (int)i), &m->steps[i]);
        fleet_assert(m->steps[i].step == m->steps[0].step + (int64_t)i);
    }
}

static void same_failed(const cJSON *o, const struct message_failed *m)
{
    same_generation(o, "generation", m->generation);
    same_number(o, "localRank", m->local_rank);
    same_number(o, "exitCode", m->exit_code);
    same_number(o, "signal", m->signal);
    same_text(o, "cause", m->cause);
    same_flag(o, "fatal", m->fatal);
    same_flag(o, "isBack", m->is_back);
    same_text(o, "lines", m->lines);
    same_number(o, "ageMs", m->age_ms);
}

static void same_assign(const cJSON *o, const struct message_assign *m)
{
    const cJSON *members = find(o, "members"), *lineage = find(o, "lineage");
    int ranks = 0;

    same_generation(o, "generation", m->generation);
    fleet_assert((size_t)cJSON_GetArraySize(members) == m->member_count);
    for (size_t i = 0; i < m->member_count; i++) {
        const cJSON *item = cJSON_GetArrayItem(members, (int)i);
        same_text(item, "podUid", m->members[i].pod_uid);
        same_number(item, "index", m->members[i].index);
        same_text(item, "address", m->members[i].address);
        same_ports(item, m->members[i].ports, m->members[i].processes);
        same_number(item, "step", (double)m->members[i].step);
        ranks += m->members[i].processes;
    }
    same_number(o, "world", m->world);
    fleet_assert(m->world == ranks && (size_t)m->reporter < m->member_count);
    same_key(o, m->key);
    same_text(o, "planDigest", m->plan_digest);
    same_word(o, "level", levels, (int)m->level);
    fleet_assert((size_t)cJSON_GetArraySize(lineage) == m->lineage_count);
    for (size_t i = 0; i < m->lineage_count; i++) {
        const cJSON *item = cJSON_GetArrayItem(lineage, (int)i);
        same_generation(item, "generation", m->lineage[i].generation);
        same_number(item, "firstStep", (double)m->lineage[i].first_step);
    }
    same_number(o, "step", (double)m->step);
    same_number(o, "reporter", m->reporter);
    same_number(o, "progressStep", (double)m->progress_step);
    same_number(o, "progressIntervalMs", m->progress_interval_ms);
    same_number(o, "restarts", m->restarts);
    same_number(o, "checkpointStep", (double)m->checkpoint_step);
    same_text(o, "checkpointPath", m->checkpoint_path);
}

static void same_heartbeat(const cJSON *o, const struct message_heartbeat *m)
{
    same_status(o, &m->status);
    same_number(o, "progressStep", (double)m->progress_step);
    same_number(o, "evaluationStep", (double)m->evaluation_step);
    same_number(o, "checkpointStep", (double)m->checkpoint_step);
    same_number(o, "heldStep", (double)m->held_step);
    same_number(o, "intervalMs", m->interval_ms);
}

static void same_value(const cJSON *o, const struct message_value *m)
{
    same_generation(o, "generation", m->generation);
    same_text(o, "key", m->key);
    same_bytes(o, m->value, m->value_size);
}

/* ---- a whole message ------------------------------------------------------------------------- */

static void expect_type(const cJSON *o, const char *name)
{
    fleet_assert(strcmp(cJSON_GetStringValue(find(o, "type")), name) == 0);
}

/* Messages with few fields. False: it is none of them. */
static bool same_short(const cJSON *o, const struct message *m)
{
    switch (m->type) {
    case MESSAGE_READY:
        same_status(o, &m->ready.status);
        same_number(o, "ageMs", m->ready.age_ms);
        return expect_type(o, "ready"), true;
    case MESSAGE_EVALUATION:
        same_generation(o, "generation", m->evaluation.generation);
        same_number(o, "step", (double)m->evaluation.step);
        same_measure(o, "loss", m->evaluation.loss);
        return expect_type(o, "evaluation"), true;
    case MESSAGE_PEER_LOST:
        same_generation(o, "generation", m->peer_lost.generation);
        same_number(o, "rank", m->peer_lost.rank);
        same_number(o, "ageMs", m->peer_lost.age_ms);
        return expect_type(o, "peerLost"), true;
    case MESSAGE_CHECKPOINT_DONE:
        same_generation(o, "generation", m->checkpoint_done.generation);
        same_number(o, "step", (double)m->checkpoint_done.step);
        same_text(o, "path", m->checkpoint_done.path);
        return expect_type(o, "checkpointDone"), true;
    case MESSAGE_CHECKPOINT_FAILED:
        same_number(o, "step", (double)m->checkpoint_failed.step);
        same_text(o, "reason", m->checkpoint_failed.reason);
        return expect_type(o, "checkpointFailed"), true;
    case MESSAGE_FINISHED:
        same_generation(o, "generation", m->finished.generation);
        same_number(o, "steps", (double)m->finished.steps);
        same_measure(o, "loss", m->finished.loss);
        same_text(o, "weightsSha256", m->finished.weights_sha256);
        return expect_type(o, "finished"), true;
    case MESSAGE_ABORT:
        same_generation(o, "generation", m->abort.generation);
        same_text(o, "cause", m->abort.cause);
        same_number(o, "member", m->abort.member);
        return expect_type(o, "abort"), true;
    case MESSAGE_DONE:
        same_flag(o, "succeeded", m->done.succeeded);
        same_text(o, "reason", m->done.reason);
        return expect_type(o, "done"), true;
    case MESSAGE_CHECKPOINT:
        same_generation(o, "generation", m->checkpoint.generation);
        return expect_type(o, "checkpoint"), true;
    case MESSAGE_GET:
        same_generation(o, "generation", m->get.generation);
        same_text(o, "key", m->get.key);
        return expect_type(o, "get"), true;
    case MESSAGE_LEFT:
        same_text(o, "reason", m->left.reason);
        return expect_type(o, "left"), true;
    case MESSAGE_LEAVE:
        same_text(o, "reason", m->leave.reason);
        return expect_type(o, "leave"), true;
    case MESSAGE_REFUSED:
        same_text(o, "reason", m->refused.reason);
        return expect_type(o, "refused"), true;
    default:
        return false;
    }
}

static void same_message(const char *text, size_t size, const struct message *m)
{
    cJSON *o = cJSON_ParseWithLength(text, size);

    fleet_assert(cJSON_IsObject(o));
    same_number(o, "sequence", (double)m->sequence);
    if (same_short(o, m))
        ;
    else if (m->type == MESSAGE_HELLO)
        expect_type(o, "hello"), same_hello(o, &m->hello);
    else if (m->type == MESSAGE_PROGRESS)
        expect_type(o, "progress"), same_progress(o, &m->progress);
    else if (m->type == MESSAGE_FAILED)
        expect_type(o, "failed"), same_failed(o, &m->failed);
    else if (m->type == MESSAGE_ASSIGN)
        expect_type(o, "assign"), same_assign(o, &m->assign);
    else if (m->type == MESSAGE_HEARTBEAT)
        expect_type(o, "heartbeat"), same_heartbeat(o, &m->heartbeat);
    else if (m->type == MESSAGE_PUT)
        expect_type(o, "put"), same_value(o, &m->put);
    else
        expect_type(o, "value"), same_value(o, &m->value);
    cJSON_Delete(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct message message;
    struct fleet_error err;
    struct message_text *text;

    if (message_decode((const char *)data, size, &message, &err) < 0) {
        fleet_assert(err.code < 0 && err.text[0] != '\0');
        return 0;
    }
    same_message((const char *)data, size, &message);
    text = message_encode(&message);
    same_message(text->text, text->size, &message);
    message_text_release(text);
    message_release(&message);
    return 0;
}
