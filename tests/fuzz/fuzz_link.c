/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes on the link: an error, or a message whose fields are those of the text, and whose
 * encoding has the same fields again. The reader here is independent: cJSON's own parser, and field
 * by field what the protocol says, without the tables of link_message.c. Printing mends what is not
 * UTF-8, which may make a text longer and have it cut; from then on the text stays the same.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "agent/link.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- one value ------------------------------------------------------------------------------- */

static const cJSON *find(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    fleet_assert(item); /* every field is required */
    return item;
}

/* null is `missing`. */
static void same_number(const cJSON *object, const char *name, double missing, double value)
{
    const cJSON *item = find(object, name);
    double wanted = cJSON_IsNull(item) ? missing : item->valuedouble;

    fleet_assert(isnan(wanted) ? isnan(value) : wanted == value);
}

static bool is_given(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return item && !cJSON_IsNull(item);
}

/* An absent one is `missing`, too. */
static void same_optional(const cJSON *object, const char *name, double missing, double value)
{
    if (is_given(object, name))
        same_number(object, name, missing, value);
    else
        fleet_assert(isnan(missing) ? isnan(value) : value == missing);
}

static void same_int(const cJSON *object, const char *name, int64_t value)
{
    fleet_assert(cJSON_IsNumber(find(object, name)));
    same_number(object, name, NAN, (double)value);
}

static void same_flag(const cJSON *object, const char *name, bool value)
{
    fleet_assert(cJSON_IsBool(find(object, name)) && cJSON_IsTrue(find(object, name)) == value);
}

static bool is_ascii(const char *text)
{
    while (*text && (unsigned char)*text < 0x80)
        text++;
    return *text == '\0';
}

/* A longer one is cut before a character that does not fit as a whole. What is not ASCII may be
 * mended by printing. */
static void same_text(const cJSON *object, const char *name, const char *value, size_t size)
{
    const char *text = cJSON_GetStringValue(find(object, name));
    size_t length = strlen(value);

    fleet_assert(text && length < size);
    if (!is_ascii(value) || !is_ascii(text))
        return;
    fleet_assert(strncmp(text, value, length) == 0);
    fleet_assert(text[length] == '\0' || length == size - 1);
}

static void same_generation(const cJSON *object, const struct fleet_generation *value)
{
    same_int(object, "epoch", value->epoch);
    same_int(object, "counter", value->counter);
}

static void same_key(const cJSON *object, const uint8_t *key)
{
    static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
    const char *text = cJSON_GetStringValue(find(object, "key"));

    fleet_assert(text && strlen(text) == 2 * (size_t)LINK_KEY_SIZE);
    for (size_t i = 0; i < 2 * (size_t)LINK_KEY_SIZE; i++) {
        const char *digits = strchr(lower, text[i]) ? lower : upper, *at = strchr(digits, text[i]);
        fleet_assert(at && at - digits == (i % 2 ? key[i / 2] & 15 : key[i / 2] >> 4));
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void same_assign(const cJSON *o, const struct link_message *m)
{
    const cJSON *addresses = find(o, "addresses"), *lineage = find(o, "lineage");

    same_generation(o, &m->generation);
    same_int(o, "rank", m->assign.rank);
    same_int(o, "world", m->assign.world);
    same_int(o, "level", m->assign.level);
    same_key(o, m->assign.key);
    same_text(o, "digest", m->assign.digest, sizeof(m->assign.digest));
    same_flag(o, "keepsState", m->assign.keeps_state);
    same_number(o, "faultAtMs", 0, m->assign.fault_at_ms);
    fleet_assert(m->assign.rank < m->assign.world);
    fleet_assert(cJSON_GetArraySize(addresses) == m->assign.world);
    for (int i = 0; i < m->assign.world; i++)
        fleet_assert(strcmp(cJSON_GetStringValue(cJSON_GetArrayItem(addresses, i)),
                            m->assign.addresses[i]) == 0);
    fleet_assert(cJSON_GetArraySize(lineage) == (int)m->assign.lineage.count);
    for (int i = 0; i < (int)m->assign.lineage.count; i++) {
        const struct fleet_lineage_entry *entry = &m->assign.lineage.entries[i];
        same_generation(cJSON_GetArrayItem(lineage, i), &entry->generation);
        same_int(cJSON_GetArrayItem(lineage, i), "firstStep", entry->first_step);
    }
}

static void same_step(const cJSON *o, const struct link_step *s)
{
    same_int(o, "step", s->step);
    same_number(o, "loss", NAN, s->loss);
    same_int(o, "tokens", s->tokens);
    same_number(o, "tokensPerSecond", 0, s->tokens_per_second);
    fleet_assert(s->has_update == (is_given(o, "gradNorm") || is_given(o, "learningRate")));
    same_optional(o, "gradNorm", NAN, s->gradient_norm);
    same_optional(o, "learningRate", 0, s->learning_rate);
    same_optional(o, "dataSeconds", 0, s->times.data_s);
    same_optional(o, "forwardSeconds", 0, s->times.forward_s);
    same_optional(o, "backwardSeconds", 0, s->times.backward_s);
    same_optional(o, "exchangeSeconds", 0, s->times.exchange_s);
    same_optional(o, "optimizerSeconds", 0, s->times.optimizer_s);
    same_optional(o, "hiddenSeconds", 0, s->times.hidden_s);
}

static void same_progress(const cJSON *o, const struct link_message *m)
{
    const cJSON *steps = find(o, "steps");

    same_generation(o, &m->generation);
    fleet_assert(m->progress.count >= 1 && cJSON_GetArraySize(steps) == m->progress.count);
    for (int i = 0; i < m->progress.count; i++) {
        same_step(cJSON_GetArrayItem(steps, i), &m->progress.steps[i]);
        fleet_assert(m->progress.steps[i].step == m->progress.steps[0].step + i);
    }
}

static void same_ready(const cJSON *o, const struct link_message *m)
{
    static const char *const phases[] = {"waiting", "connected", "restored", "first_step"};

    same_generation(o, &m->generation);
    fleet_assert(strcmp(cJSON_GetStringValue(find(o, "phase")), phases[m->ready.phase]) == 0);
    same_number(o, "atMs", 0, m->ready.at_ms);
    same_int(o, "step", m->ready.step);
}

/* Messages of an agent. Returns the word under "message"; "": it is none of them. */
static const char *same_fields_of_agent(const cJSON *o, const struct link_message *m)
{
    switch (m->kind) {
    case LINK_ASSIGN:
        return same_assign(o, m), "assign";
    case LINK_ABORT:
        same_generation(o, &m->generation);
        same_text(o, "cause", m->abort.cause, sizeof(m->abort.cause));
        return "abort";
    case LINK_CHECKPOINT:
        return "checkpoint";
    case LINK_LEAVE:
        same_number(o, "graceMs", 0, m->leave.grace_ms);
        return "leave";
    case LINK_DONE:
        return "done";
    default:
        return "";
    }
}

/* Messages of a trainer, and those of an agent. Returns the word under "message". */
static const char *same_fields(const cJSON *o, const struct link_message *m)
{
    switch (m->kind) {
    case LINK_HELLO:
        same_int(o, "port", m->hello.port);
        same_int(o, "level", m->hello.level);
        same_int(o, "pid", m->hello.pid);
        return "hello";
    case LINK_READY:
        return same_ready(o, m), "ready";
    case LINK_PROGRESS:
        return same_progress(o, m), "progress";
    case LINK_PEER_LOST:
        same_generation(o, &m->generation);
        same_int(o, "rank", m->peer_lost.rank);
        same_number(o, "atMs", 0, m->peer_lost.at_ms);
        same_text(o, "text", m->peer_lost.text, sizeof(m->peer_lost.text));
        return "peer_lost";
    case LINK_CHECKPOINT_DONE:
        same_generation(o, &m->generation);
        same_int(o, "step", m->checkpoint_done.step);
        same_text(o, "path", m->checkpoint_done.path, sizeof(m->checkpoint_done.path));
        return "checkpoint_done";
    case LINK_CHECKPOINT_FAILED:
        same_int(o, "step", m->checkpoint_failed.step);
        same_text(o, "text", m->checkpoint_failed.text, sizeof(m->checkpoint_failed.text));
        return "checkpoint_failed";
    case LINK_EVALUATION:
        same_int(o, "step", m->evaluation.step);
        same_number(o, "loss", NAN, m->evaluation.loss);
        return "evaluation";
    case LINK_WARNING:
        same_generation(o, &m->generation);
        same_text(o, "text", m->warning.text, sizeof(m->warning.text));
        same_flag(o, "isNote", m->warning.is_note);
        return "warning";
    case LINK_FAILED:
        same_text(o, "text", m->failed.text, sizeof(m->failed.text));
        same_text(o, "cause", m->failed.cause, sizeof(m->failed.cause));
        same_flag(o, "permanent", m->failed.permanent);
        return "failed";
    case LINK_FINISHED:
        same_int(o, "steps", m->finished.steps);
        same_number(o, "loss", NAN, m->finished.loss);
        same_text(o, "weightsSha256", m->finished.weights_sha256,
                  sizeof(m->finished.weights_sha256));
        return "finished";
    case LINK_HEARTBEAT:
        return "heartbeat";
    default:
        return same_fields_of_agent(o, m);
    }
}

static void same_message(const char *text, size_t size, const struct link_message *m)
{
    cJSON *o = cJSON_ParseWithLength(text, size);

    fleet_assert(cJSON_IsObject(o));
    fleet_assert(strcmp(cJSON_GetStringValue(find(o, "message")), same_fields(o, m)) == 0);
    cJSON_Delete(o);
}

static void print_and_read(struct link_message *message, struct fleet_strbuf *out)
{
    link_message_encode(message, out);
    same_message(out->text, out->length - 1, message);
    link_message_release(message);
    fleet_assert(link_message_decode(out->text, out->length - 1, message, NULL) == 0);
    same_message(out->text, out->length - 1, message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fleet_strbuf texts[3] = {{0}};
    struct link_message message;

    if (link_message_decode((const char *)data, size, &message, NULL) < 0)
        return 0;
    same_message((const char *)data, size, &message);
    for (int i = 0; i < 3; i++)
        print_and_read(&message, &texts[i]);
    fleet_assert(strcmp(texts[1].text, texts[2].text) == 0);
    link_message_release(&message);
    for (int i = 0; i < 3; i++)
        fleet_strbuf_release(&texts[i]);
    return 0;
}
