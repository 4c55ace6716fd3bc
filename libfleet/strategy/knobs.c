/* SPDX-License-Identifier: Apache-2.0 */

/* The tables built from knobs.def, and functions that search them. knob_values.c handles values. */
#include "libfleet/strategy/knobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"

#define DEFAULT_BOOL(x)    .number = (x)
#define DEFAULT_INT(x)     .number = (x)
#define DEFAULT_FLOAT(x)   .number = (x)
#define DEFAULT_MODE(x)    .number = (x)
#define DEFAULT_STRING(x)  .text = (x)
#define DEFAULT_WORD(x)    .text = (x)
#define DEFAULT_STRINGS(x) .text = NULL
#define DEFAULT_INTS(x)    .text = NULL
#define DEFAULT_FLOATS(x)  .text = NULL

/* The dialects differ only in numbers. */
#define OLDER_BOOL(x)    (x)
#define OLDER_INT(x)     (x)
#define OLDER_FLOAT(x)   (x)
#define OLDER_MODE(x)    (x)
#define OLDER_STRING(x)  0
#define OLDER_WORD(x)    0
#define OLDER_STRINGS(x) 0
#define OLDER_INTS(x)    0
#define OLDER_FLOATS(x)  0

#define RANGE(kind, low, high, words) \
    {                                 \
        kind, low, high, words        \
    }

/* One function for each message, because offsetof needs the struct's name and a row does not repeat
 * it. */
#define KNOB_MESSAGE(type, text_)                          \
    static const struct knob_message *type##_message(void) \
    {                                                      \
        typedef struct type owner;                         \
        static const struct knob_field fields[] = {
#define KNOB_AS(kind_, member, name_, since_, n20, n21, fallback, older, alias_, range_, help_) \
    {                                                                                           \
        .name = (name_),                                                                        \
        .alias = (alias_),                                                                      \
        .help = (help_),                                                                        \
        DEFAULT_##kind_(fallback),                                                              \
        .number_2_0 = OLDER_##kind_(older),                                                     \
        .range = RANGE range_,                                                                  \
        .kind = KNOB_##kind_,                                                                   \
        .since = KNOB_##since_,                                                                 \
        .number_in_2_0 = (n20),                                                                 \
        .number_in_2_1 = (n21),                                                                 \
        .offset = offsetof(owner, member),                                                      \
        .has_offset = offsetof(owner, has_##member),                                            \
    },
#define KNOB_SUB(kind_, type, name_, since_, n20, n21, help_) \
    {                                                         \
        .name = #name_,                                       \
        .help = (help_),                                      \
        .message = type##_message,                            \
        .kind = KNOB_##kind_,                                 \
        .since = KNOB_##since_,                               \
        .number_in_2_0 = (n20),                               \
        .number_in_2_1 = (n21),                               \
        .offset = offsetof(owner, name_),                     \
        .has_offset = offsetof(owner, has_##name_),           \
    },
#define KNOB_MESSAGE_END(type, text_)                \
    }                                                \
    ;                                                \
    static const struct knob_message message = {     \
        .name = (text_),                             \
        .fields = fields,                            \
        .count = sizeof(fields) / sizeof(fields[0]), \
        .size = sizeof(owner),                       \
    };                                               \
    return &message;                                 \
    }
#include "libfleet/strategy/knobs.def"

#define NAMES_MAX 128 /* names of one message, aliases included */

const struct knob_message *knobs_root(void)
{
    return strategy_message();
}

const struct knob_field *knobs_find(const struct knob_message *message, const char *name,
                                    enum knob_spelling *out_spelling)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        bool by_alias = field->alias && strcmp(field->alias, name) == 0;

        if (!by_alias && strcmp(field->name, name) != 0)
            continue;
        if (out_spelling)
            *out_spelling = by_alias ? KNOB_BY_ALIAS : KNOB_BY_NAME;
        return field;
    }
    return NULL;
}

const struct knob_field *knobs_at(const struct strategy *strategy, const char *path,
                                  const void **out_message)
{
    const struct knob_message *message = knobs_root();
    const char *dot;

    *out_message = strategy;
    while ((dot = strchr(path, '.')) != NULL) {
        const struct knob_field *field;
        char parent[64];

        (void)snprintf(parent, sizeof(parent), "%.*s", (int)(dot - path), path);
        field = knobs_find(message, parent, NULL);
        *out_message = knob_value(field, *out_message);
        message = field->message();
        path = dot + 1;
    }
    return knobs_find(message, path, NULL);
}

const char *knobs_closest(const struct knob_message *message, const char *name)
{
    const char *names[NAMES_MAX];
    size_t count = 0;

    for (size_t i = 0; i < message->count && count + 2 <= NAMES_MAX; i++) {
        names[count++] = message->fields[i].name;
        if (message->fields[i].alias)
            names[count++] = message->fields[i].alias;
    }
    return fleet_closest_word(name, names, count);
}

void *knob_value(const struct knob_field *field, const void *message)
{
    fleet_assert(field);
    return (char *)(uintptr_t)message + field->offset;
}

uint8_t *knob_has(const struct knob_field *field, const void *message)
{
    return (uint8_t *)(uintptr_t)message + field->has_offset;
}

bool knob_is_list(const struct knob_field *field)
{
    return field->kind == KNOB_STRINGS || field->kind == KNOB_INTS || field->kind == KNOB_FLOATS ||
           field->kind == KNOB_MESSAGES;
}

static const char *const mode_names[] = {"COLLECTIVE", "PS", "PIPELINE", "HETER"};

#define MODE_COUNT ((int)(sizeof(mode_names) / sizeof(mode_names[0])))

const char *knob_mode_name(int mode)
{
    return mode >= 1 && mode <= MODE_COUNT ? mode_names[mode - 1] : NULL;
}

int knob_mode_number(const char *name)
{
    for (int i = 0; i < MODE_COUNT; i++)
        if (strcmp(mode_names[i], name) == 0)
            return i + 1;
    return 0;
}

/*
 * Six digits if they read back equal, else as many as needed; nine always suffice. Infinity and NaN
 * are written as the text format reads them, unlike "%g".
 */
void knob_print_float(float number, char *out)
{
    for (int digits = 6; digits <= 9; digits++) {
        (void)snprintf(out, 32, "%.*g", digits, (double)number);
        if (strtof(out, NULL) == number || number != number)
            return;
    }
}

/* "a|b|c" as "a, b or c". */
static void print_words(const char *words, char *out, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    for (const char *c = words; *c; c++) {
        if (*c != '|')
            fleet_strbuf_append_char(&text, *c);
        else
            fleet_strbuf_append(&text, strchr(c + 1, '|') ? ", " : " or ");
    }
    (void)snprintf(out, size, "%s", fleet_strbuf_text(&text));
}

void knob_print_range(const struct knob_field *field, char *out, size_t size)
{
    const struct knob_range *range = &field->range;

    switch (range->kind) {
    case KNOB_ANY:
        (void)snprintf(out, size, "%s", "");
        return;
    case KNOB_AT_LEAST:
        (void)snprintf(out, size, "at least %g", range->low);
        return;
    case KNOB_ABOVE:
        (void)snprintf(out, size, "greater than %g", range->low);
        return;
    case KNOB_FROM_TO:
        (void)snprintf(out, size, "from %g to %g", range->low, range->high);
        return;
    case KNOB_BETWEEN:
        (void)snprintf(out, size, "greater than %g and less than %g", range->low, range->high);
        return;
    case KNOB_DEGREE_OR_REST:
        (void)snprintf(out, size, "%s", "at least 1, or -1 for what is left over");
        return;
    case KNOB_ONE_OF:
        print_words(range->words, out, size);
        return;
    }
}

const char *knob_word_name(const struct knob_field *field, int number, char *out)
{
    const char *word = field->range.words;

    for (; word && number > 0; number--)
        word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL;
    if (!word || number < 0)
        return NULL;
    (void)snprintf(out, 64, "%.*s", (int)strcspn(word, "|"), word);
    return out;
}

int knob_word_number(const struct knob_field *field, const char *word)
{
    char name[64];

    for (int number = 0; knob_word_name(field, number, name); number++)
        if (strcmp(word, name) == 0)
            return number;
    return -1;
}
