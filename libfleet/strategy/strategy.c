/* SPDX-License-Identifier: Apache-2.0 */

/* Creating, copying and comparing strategies. */
#include "libfleet/strategy/strategy.h"

#include <string.h>

#include "libfleet/strategy/knobs.h"

void strategy_init(struct strategy *s)
{
    knob_message_init(knobs_root(), s);
}

void strategy_release(struct strategy *s)
{
    knob_message_release(knobs_root(), s);
}

void strategy_copy(struct strategy *to, const struct strategy *from)
{
    knob_message_copy(knobs_root(), to, from);
}

void strategy_set_a_sync(struct strategy *s, bool value)
{
    s->a_sync = value;
    s->has_a_sync = KNOB_BY_NAME;
    s->a_sync_configs.k_steps = 0;
    s->a_sync_configs.has_k_steps = KNOB_BY_NAME;
    s->has_a_sync_configs = KNOB_BY_NAME;
}

static bool same_message(const struct knob_message *message, const void *a, const void *b,
                         bool exact);

static bool same_floats(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i] && (a[i] == a[i] || b[i] == b[i])) /* nan equals nan */
            return false;
    return true;
}

static bool same_list(const struct knob_field *field, const void *a, const void *b, bool exact)
{
    /* All four kinds of list are a pointer and a count. */
    size_t count = 0, other = 0;

    if (field->kind == KNOB_STRINGS) {
        const struct strategy_strings *x = a, *y = b;
        for (count = x->count, other = y->count; count == other && count > 0; count--, other--)
            if (strcmp(x->items[count - 1], y->items[count - 1]) != 0)
                return false;
    } else if (field->kind == KNOB_INTS) {
        const struct strategy_ints *x = a, *y = b;
        for (count = x->count, other = y->count; count == other && count > 0; count--, other--)
            if (x->items[count - 1] != y->items[count - 1])
                return false;
    } else if (field->kind == KNOB_FLOATS) {
        const struct strategy_floats *x = a, *y = b;
        return x->count == y->count && same_floats(x->items, y->items, x->count);
    } else {
        const struct strategy_messages *x = a, *y = b;
        size_t size = field->message()->size;
        for (count = x->count, other = y->count; count == other && count > 0; count--, other--)
            if (!same_message(field->message(), (const char *)x->items + (count - 1) * size,
                              (const char *)y->items + (count - 1) * size, exact))
                return false;
    }
    return count == other;
}

static bool same_value(const struct knob_field *field, const void *a, const void *b, bool exact)
{
    switch (field->kind) {
    case KNOB_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case KNOB_INT:
    case KNOB_MODE:
        return *(const int32_t *)a == *(const int32_t *)b;
    case KNOB_FLOAT:
        return same_floats(a, b, 1);
    case KNOB_STRING:
    case KNOB_WORD:
        return strcmp(*(char *const *)a, *(char *const *)b) == 0;
    case KNOB_MESSAGE:
        return same_message(field->message(), a, b, exact);
    case KNOB_STRINGS:
    case KNOB_INTS:
    case KNOB_FLOATS:
    case KNOB_MESSAGES:
        break;
    }
    return same_list(field, a, b, exact);
}

static bool same_message(const struct knob_message *message, const void *a, const void *b,
                         bool exact)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        uint8_t has_a = *knob_has(field, a), has_b = *knob_has(field, b);
        bool compared_by_content = field->kind == KNOB_MESSAGE || knob_is_list(field);

        if (exact && has_a != has_b)
            return false;
        if (!exact && !compared_by_content && !has_a != !has_b)
            return false;
        if (!same_value(field, knob_value(field, a), knob_value(field, b), exact))
            return false;
    }
    return true;
}

bool knob_equal(const struct knob_field *field, const void *a, const void *b)
{
    return same_value(field, a, b, true);
}

bool strategy_equal(const struct strategy *a, const struct strategy *b)
{
    return same_message(knobs_root(), a, b, true);
}

bool strategy_means_same(const struct strategy *a, const struct strategy *b)
{
    return same_message(knobs_root(), a, b, false);
}

static size_t count_set(const struct knob_message *message, const void *value)
{
    size_t count = 0;

    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        if (field->kind == KNOB_MESSAGE)
            count += count_set(field->message(), knob_value(field, value));
        else
            count += *knob_has(field, value) != 0;
    }
    return count;
}

size_t strategy_count_set(const struct strategy *s)
{
    return count_set(knobs_root(), s);
}
