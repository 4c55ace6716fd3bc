/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A line is built in memory and written by one write(2), so lines of several processes on one
 * stderr do not mix. The text form is klog's; tools for Kubernetes' logs read it.
 */
#include "libfleet/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/strbuf.h"

static struct {
    enum fleet_log_form form;
    int verbosity;
    struct fleet_line_writer *writer; /* NULL = stderr */
} settings;

/* Copies of pairs, with their texts. */
struct context {
    struct fleet_log_pair pairs[FLEET_LOG_CONTEXT_MAX + 1];
    char texts[FLEET_LOG_CONTEXT_MAX][256];
};

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static struct context context; /* under the lock */

int fleet_log_form_parse(const char *text, enum fleet_log_form *out, struct fleet_error *err)
{
    if (strcmp(text, "json") == 0)
        *out = FLEET_LOG_JSON;
    else if (strcmp(text, "text") == 0)
        *out = FLEET_LOG_TEXT;
    else
        return fleet_error(err, -EINVAL, "\"%.40s\" is neither text nor json", text);
    return 0;
}

int fleet_log_form_read(enum fleet_log_form *out, struct fleet_error *err)
{
    const char *text = getenv(FLEET_LOG_FORMAT_ENV);

    if (fleet_log_form_parse(text && text[0] ? text : "text", out, err) < 0)
        return fleet_error_wrap(err, FLEET_LOG_FORMAT_ENV);
    return 0;
}

void fleet_log_setup(enum fleet_log_form form, int verbosity)
{
    settings.form = form;
    settings.verbosity = verbosity;
}

enum fleet_log_form fleet_log_get_form(void)
{
    return settings.form;
}

static void copy_context(struct context *to, const struct fleet_log_pair *pairs)
{
    size_t count = 0;

    for (; pairs->key && count < FLEET_LOG_CONTEXT_MAX; pairs++, count++) {
        to->pairs[count] = *pairs;
        if (pairs->kind != FLEET_LOG_STRING)
            continue;
        (void)snprintf(to->texts[count], sizeof(to->texts[count]), "%s",
                       pairs->text ? pairs->text : "");
        to->pairs[count].text = to->texts[count];
    }
    to->pairs[count] = (struct fleet_log_pair){.key = NULL};
}

void fleet_log_set_context(const struct fleet_log_pair *pairs)
{
    (void)pthread_mutex_lock(&context_lock);
    copy_context(&context, pairs);
    (void)pthread_mutex_unlock(&context_lock);
}

void fleet_log_to(struct fleet_line_writer *writer)
{
    settings.writer = writer;
}

static void append_value(struct fleet_strbuf *line, const struct fleet_log_pair *pair)
{
    switch (pair->kind) {
    case FLEET_LOG_STRING:
        fleet_json_append_string(line, pair->text ? pair->text : "");
        break;
    case FLEET_LOG_INTEGER:
        fleet_strbuf_appendf(line, "%" PRId64, pair->integer);
        break;
    case FLEET_LOG_NUMBER:
        fleet_strbuf_appendf(line, "%.6g", pair->number);
        break;
    }
}

static void append_pairs(struct fleet_strbuf *line, const struct fleet_log_pair *pairs)
{
    for (; pairs->key; pairs++) {
        if (settings.form == FLEET_LOG_JSON) {
            fleet_strbuf_append_char(line, ',');
            fleet_json_append_string(line, pairs->key);
            fleet_strbuf_append_char(line, ':');
        } else {
            fleet_strbuf_appendf(line, " %s=", pairs->key);
        }
        append_value(line, pairs);
    }
}

static bool has_key(const struct fleet_log_pair *pairs, const char *key)
{
    while (pairs->key && strcmp(pairs->key, key) != 0)
        pairs++;
    return pairs->key != NULL;
}

/* The pairs of the context whose keys the line does not have. */
static void append_context(struct fleet_strbuf *line, const struct fleet_log_pair *own)
{
    (void)pthread_mutex_lock(&context_lock);
    for (const struct fleet_log_pair *pair = context.pairs; pair->key; pair++)
        if (!has_key(own, pair->key))
            append_pairs(line, (const struct fleet_log_pair[]){*pair, {.key = NULL}});
    (void)pthread_mutex_unlock(&context_lock);
}

static void append_text_head(struct fleet_strbuf *line, enum fleet_log_level level,
                             const char *message)
{
    struct timespec now;
    struct tm tm;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    fleet_strbuf_appendf(line, "%c%02d%02d %02d:%02d:%02d.%06ld %s", "EWID"[level], tm.tm_mon + 1,
                         tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000, message);
}

static void append_json_head(struct fleet_strbuf *line, enum fleet_log_level level,
                             const char *message)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char at[FLEET_RFC3339_SIZE];

    fleet_rfc3339_format(fleet_wall_ms(), at);
    fleet_strbuf_appendf(line, "{\"ts\":\"%s\",\"level\":\"%s\",\"msg\":", at, names[level]);
    fleet_json_append_string(line, message);
}

void fleet_log_append(struct fleet_strbuf *out, enum fleet_log_level level, const char *message,
                      const struct fleet_log_pair *pairs)
{
    if (settings.form == FLEET_LOG_JSON)
        append_json_head(out, level, message);
    else
        append_text_head(out, level, message);
    append_context(out, pairs);
    append_pairs(out, pairs);
    fleet_strbuf_append(out, settings.form == FLEET_LOG_JSON ? "}\n" : "\n");
}

void fleet_log_write(enum fleet_log_level level, const char *message,
                     const struct fleet_log_pair *pairs)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (level == FLEET_LOG_DEBUG && settings.verbosity < 2)
        return;
    fleet_log_append(&line, level, message, pairs);
    if (settings.writer)
        fleet_line_writer_put(settings.writer, line.text, line.length);
    else if (write(STDERR_FILENO, line.text, line.length) < 0)
        return; /* stderr has no reader: the line is lost */
}
