/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A line is put together in memory and written by one write(2): lines of several processes on the
 * same stderr then do not mix. The text form is klog's, so that tools for Kubernetes' logs read it.
 */
#include "libfleet/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/json.h"
#include "libfleet/base/line_writer.h"
#include "libfleet/base/strbuf.h"

static struct {
    enum fleet_log_form form;
    int verbosity;
    char prefix[64];
    struct fleet_line_writer *writer; /* NULL = stderr */
} settings;

void fleet_log_setup(enum fleet_log_form form, int verbosity, const char *prefix)
{
    settings.form = form;
    settings.verbosity = verbosity;
    (void)snprintf(settings.prefix, sizeof(settings.prefix), "%s", prefix ? prefix : "");
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

static void format_text(struct fleet_strbuf *line, enum fleet_log_level level, const char *message,
                        const struct fleet_log_pair *pairs)
{
    struct timespec now;
    struct tm tm;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    fleet_strbuf_appendf(line, "%c%02d%02d %02d:%02d:%02d.%06ld %s%s", "EWID"[level], tm.tm_mon + 1,
                         tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, now.tv_nsec / 1000,
                         settings.prefix, message);
    for (; pairs->key; pairs++) {
        fleet_strbuf_appendf(line, " %s=", pairs->key);
        append_value(line, pairs);
    }
}

static void format_json(struct fleet_strbuf *line, enum fleet_log_level level, const char *message,
                        const struct fleet_log_pair *pairs)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char at[FLEET_RFC3339_SIZE];

    fleet_rfc3339_format(fleet_wall_ms(), at);
    fleet_strbuf_appendf(line, "{\"ts\":\"%s\",\"level\":\"%s\",\"msg\":", at, names[level]);
    fleet_json_append_string(line, message);
    for (; pairs->key; pairs++) {
        fleet_strbuf_append_char(line, ',');
        fleet_json_append_string(line, pairs->key);
        fleet_strbuf_append_char(line, ':');
        append_value(line, pairs);
    }
    fleet_strbuf_append_char(line, '}');
}

void fleet_log_write(enum fleet_log_level level, const char *message,
                     const struct fleet_log_pair *pairs)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (level == FLEET_LOG_DEBUG && settings.verbosity < 2)
        return;
    if (settings.form == FLEET_LOG_JSON)
        format_json(&line, level, message, pairs);
    else
        format_text(&line, level, message, pairs);
    fleet_strbuf_append_char(&line, '\n');
    if (settings.writer)
        fleet_line_writer_put(settings.writer, line.text, line.length);
    else if (write(STDERR_FILENO, line.text, line.length) < 0)
        return; /* nobody listens to stderr: nothing sensible is left to do */
}
