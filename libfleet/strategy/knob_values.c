/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Makes, copies, compares and frees the values of a strategy, field by field along the tables, so a
 * new field needs no code here. Running out of memory aborts: a strategy is a few kilobytes, and
 * all sizes from outside were checked before.
 */
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/strategy/knobs.h"

static void *grown(void *items, size_t count, size_t size)
{
    void *more = items;

    if (count == 0 || (count & (count - 1)) == 0) /* at each power of two, double the capacity */
        more = realloc(items, (count ? 2 * count : 1) * size);
    fleet_assert(more);
    return more;
}

static char *copied(const char *text)
{
    char *copy = strdup(text);

    fleet_assert(copy);
    return copy;
}

void knob_set_string(char **value, const char *text)
{
    char *copy = copied(text);

    free(*value);
    *value = copy;
}

void knob_append_string(struct strategy_strings *list, const char *text)
{
    list->items = grown(list->items, list->count, sizeof(*list->items));
    list->items[list->count++] = copied(text);
}

void knob_append_int(struct strategy_ints *list, int32_t number)
{
    list->items = grown(list->items, list->count, sizeof(*list->items));
    list->items[list->count++] = number;
}

void knob_append_float(struct strategy_floats *list, float number)
{
    list->items = grown(list->items, list->count, sizeof(*list->items));
    list->items[list->count++] = number;
}

/* The struct of element i of a list of messages. */
static void *element(const struct knob_message *message, const struct strategy_messages *list,
                     size_t i)
{
    return (char *)list->items + i * message->size;
}

void *knob_append_message(const struct knob_field *field, struct strategy_messages *list)
{
    const struct knob_message *message = field->message();

    list->items = grown(list->items, list->count, message->size);
    knob_message_init(message, element(message, list, list->count));
    return element(message, list, list->count++);
}

void knob_clear_list(const struct knob_field *field, void *value)
{
    if (field->kind == KNOB_STRINGS) {
        struct strategy_strings *list = value;
        for (size_t i = 0; i < list->count; i++)
            free(list->items[i]);
        free(list->items);
        *list = (struct strategy_strings){0};
    } else if (field->kind == KNOB_INTS) {
        free(((struct strategy_ints *)value)->items);
        *(struct strategy_ints *)value = (struct strategy_ints){0};
    } else if (field->kind == KNOB_FLOATS) {
        free(((struct strategy_floats *)value)->items);
        *(struct strategy_floats *)value = (struct strategy_floats){0};
    } else if (field->kind == KNOB_MESSAGES) {
        struct strategy_messages *list = value;
        for (size_t i = 0; i < list->count; i++)
            knob_message_release(field->message(), element(field->message(), list, i));
        free(list->items);
        *list = (struct strategy_messages){0};
    }
}

static void set_default(const struct knob_field *field, void *value)
{
    switch (field->kind) {
    case KNOB_BOOL:
        *(bool *)value = field->number != 0;
        break;
    case KNOB_INT:
    case KNOB_MODE:
        *(int32_t *)value = (int32_t)field->number;
        break;
    case KNOB_FLOAT:
        *(float *)value = (float)field->number;
        break;
    case KNOB_STRING:
    case KNOB_WORD:
        *(char **)value = copied(field->text);
        break;
    case KNOB_MESSAGE:
        knob_message_init(field->message(), value);
        break;
    case KNOB_STRINGS:
    case KNOB_INTS:
    case KNOB_FLOATS:
    case KNOB_MESSAGES:
        break; /* empty is all zero */
    }
}

static void release_value(const struct knob_field *field, void *value)
{
    if (field->kind == KNOB_STRING || field->kind == KNOB_WORD) {
        free(*(char **)value);
        *(char **)value = NULL;
    } else if (field->kind == KNOB_MESSAGE) {
        knob_message_release(field->message(), value);
    } else {
        knob_clear_list(field, value);
    }
}

void knob_reset(const struct knob_field *field, void *message)
{
    *knob_has(field, message) = 0;
    release_value(field, knob_value(field, message));
    set_default(field, knob_value(field, message));
}

void knob_message_init(const struct knob_message *message, void *value)
{
    memset(value, 0, message->size);
    for (size_t i = 0; i < message->count; i++)
        set_default(&message->fields[i], knob_value(&message->fields[i], value));
}

void knob_message_release(const struct knob_message *message, void *value)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];

        *knob_has(field, value) = 0;
        release_value(field, knob_value(field, value));
    }
}

static void copy_list(const struct knob_field *field, void *to, const void *from)
{
    if (field->kind == KNOB_STRINGS) {
        const struct strategy_strings *list = from;
        for (size_t i = 0; i < list->count; i++)
            knob_append_string(to, list->items[i]);
    } else if (field->kind == KNOB_INTS) {
        const struct strategy_ints *list = from;
        for (size_t i = 0; i < list->count; i++)
            knob_append_int(to, list->items[i]);
    } else if (field->kind == KNOB_FLOATS) {
        const struct strategy_floats *list = from;
        for (size_t i = 0; i < list->count; i++)
            knob_append_float(to, list->items[i]);
    } else if (field->kind == KNOB_MESSAGES) {
        const struct strategy_messages *list = from;
        for (size_t i = 0; i < list->count; i++) {
            void *copy = knob_append_message(field, to);
            knob_message_release(field->message(), copy);
            knob_message_copy(field->message(), copy, element(field->message(), list, i));
        }
    }
}

void knob_message_copy(const struct knob_message *message, void *to, const void *from)
{
    memset(to, 0, message->size);
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        void *target = knob_value(field, to);
        const void *source = knob_value(field, from);

        *knob_has(field, to) = *knob_has(field, from);
        if (field->kind == KNOB_BOOL)
            *(bool *)target = *(const bool *)source;
        else if (field->kind == KNOB_INT || field->kind == KNOB_MODE)
            *(int32_t *)target = *(const int32_t *)source;
        else if (field->kind == KNOB_FLOAT)
            *(float *)target = *(const float *)source;
        else if (field->kind == KNOB_STRING || field->kind == KNOB_WORD)
            *(char **)target = copied(*(char *const *)source);
        else if (field->kind == KNOB_MESSAGE)
            knob_message_copy(field->message(), target, source);
        else
            copy_list(field, target, source);
    }
}
