/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The canonical form. Fields are ordered by number, and the dialects have different numbers. If an
 * old name was used in a message, the message is written with the old numbers, otherwise with the
 * new ones.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"

#define LINES_MAX 128 /* names of one message */

/* A name that is set, and its number. */
struct line {
    const struct knob_field *field;
    const char *name;
    int number;
    size_t place; /* position in the table: breaks ties */
};

static void print_message(const struct knob_message *message, const void *value, int depth,
                          struct fleet_strbuf *out);

/* Six digits if they read back equal, else nine. */
static void print_float(float number, struct fleet_strbuf *out)
{
    char text[32];

    if (isnan(number)) {
        fleet_strbuf_append(out, "nan");
        return;
    }
    (void)snprintf(text, sizeof(text), "%.6g", (double)number);
    if (strtof(text, NULL) != number)
        (void)snprintf(text, sizeof(text), "%.9g", (double)number);
    fleet_strbuf_append(out, text);
}

static void print_string(const char *text, struct fleet_strbuf *out)
{
    fleet_strbuf_append_char(out, '"');
    while (*text) {
        size_t length = fleet_utf8_length(text);
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\'' || c == '\\')
            fleet_strbuf_appendf(out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            fleet_strbuf_append(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (length == 0 || c < 0x20 || c == 0x7F)
            fleet_strbuf_appendf(out, "\\%03o", c);
        else
            fleet_strbuf_append_bytes(out, text, length);
        text += length ? length : 1;
    }
    fleet_strbuf_append_char(out, '"');
}

static void print_scalar(const struct knob_field *field, const void *value,
                         struct fleet_strbuf *out)
{
    if (field->kind == KNOB_BOOL)
        fleet_strbuf_append(out, *(const bool *)value ? "true" : "false");
    else if (field->kind == KNOB_INT)
        fleet_strbuf_appendf(out, "%d", *(const int32_t *)value);
    else if (field->kind == KNOB_FLOAT)
        print_float(*(const float *)value, out);
    else if (field->kind == KNOB_MODE)
        fleet_strbuf_append(out, knob_mode_name(*(const int32_t *)value));
    else if (field->kind == KNOB_WORD)
        fleet_strbuf_append(out, *(char *const *)value);
    else
        print_string(*(char *const *)value, out);
}

static void start_line(const char *name, int depth, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "%*s%s", 2 * depth, "", name);
}

static void print_block(const char *name, const struct knob_message *message, const void *value,
                        int depth, struct fleet_strbuf *out)
{
    start_line(name, depth, out);
    fleet_strbuf_append(out, " {\n");
    print_message(message, value, depth + 1, out);
    fleet_strbuf_appendf(out, "%*s}\n", 2 * depth, "");
}

static void print_list(const char *name, const struct knob_field *field, const void *value,
                       int depth, struct fleet_strbuf *out)
{
    const struct strategy_strings *strings = value;
    const struct strategy_ints *ints = value;
    const struct strategy_floats *floats = value;
    const struct strategy_messages *messages = value;

    for (size_t i = 0; field->kind == KNOB_STRINGS && i < strings->count; i++) {
        start_line(name, depth, out);
        fleet_strbuf_append(out, ": ");
        print_string(strings->items[i], out);
        fleet_strbuf_append_char(out, '\n');
    }
    for (size_t i = 0; field->kind == KNOB_INTS && i < ints->count; i++) {
        start_line(name, depth, out);
        fleet_strbuf_appendf(out, ": %d\n", ints->items[i]);
    }
    for (size_t i = 0; field->kind == KNOB_FLOATS && i < floats->count; i++) {
        start_line(name, depth, out);
        fleet_strbuf_append(out, ": ");
        print_float(floats->items[i], out);
        fleet_strbuf_append_char(out, '\n');
    }
    for (size_t i = 0; field->kind == KNOB_MESSAGES && i < messages->count; i++)
        print_block(name, field->message(),
                    (const char *)messages->items + i * field->message()->size, depth, out);
}

static void print_line(const struct line *line, const void *message, int depth,
                       struct fleet_strbuf *out)
{
    const struct knob_field *field = line->field;
    const void *value = knob_value(field, message);

    if (field->kind == KNOB_MESSAGE) {
        print_block(line->name, field->message(), value, depth, out);
    } else if (knob_is_list(field)) {
        print_list(line->name, field, value, depth, out);
    } else {
        start_line(line->name, depth, out);
        fleet_strbuf_append(out, ": ");
        print_scalar(field, value, out);
        fleet_strbuf_append_char(out, '\n');
    }
}

static int compare_lines(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

/* Was some field given under a name that only 2.0 has? */
static bool speaks_2_0(const struct knob_message *message, const void *value)
{
    for (size_t i = 0; i < message->count; i++)
        if (message->fields[i].alias && (*knob_has(&message->fields[i], value) & KNOB_BY_NAME))
            return true;
    return false;
}

static void add_line(struct line *lines, size_t *count, const struct knob_field *field,
                     const char *name, bool old)
{
    int number = old ? field->number_in_2_0 : field->number_in_2_1;

    if (number == 0)
        number = old ? field->number_in_2_1 : field->number_in_2_0;
    lines[*count] = (struct line){field, name, number, *count};
    (*count)++;
}

static void print_message(const struct knob_message *message, const void *value, int depth,
                          struct fleet_strbuf *out)
{
    struct line lines[LINES_MAX];
    bool old = speaks_2_0(message, value);
    size_t count = 0;

    for (size_t i = 0; i < message->count && count + 2 <= LINES_MAX; i++) {
        const struct knob_field *field = &message->fields[i];
        uint8_t has = *knob_has(field, value);

        if (field->since == KNOB_OWN)
            continue;
        if (has & KNOB_BY_NAME)
            add_line(lines, &count, field, field->name, old);
        if (has & KNOB_BY_ALIAS)
            add_line(lines, &count, field, field->alias, old);
    }
    qsort(lines, count, sizeof(lines[0]), compare_lines);
    for (size_t i = 0; i < count; i++)
        print_line(&lines[i], value, depth, out);
}

int prototxt_print(const struct strategy *s, enum strategy_dialect dialect,
                   struct fleet_strbuf *out, struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy converted;
    struct fleet_errors errors = {0};
    int code;

    strategy_copy(&converted, s);
    (void)dialect_convert(&converted, dialect, 0, "", NULL, &errors);
    code = fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    if (code == 0)
        print_message(knobs_root(), &converted, 0, out);
    return code;
}
