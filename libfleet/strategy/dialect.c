/* SPDX-License-Identifier: Apache-2.0 */

/* Conversion between the dialects: names along the table, the two degrees by hand. */
#include "libfleet/strategy/dialect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/value_path.h"
#include "libfleet/strategy/knobs.h"

struct converter {
    struct fleet_strbuf path;
    enum strategy_dialect to;
    struct fleet_errors *warnings; /* or NULL */
    struct fleet_errors *errors;
};

static void warn(struct converter *c, const char *message)
{
    if (c->warnings)
        fleet_errors_add(c->warnings, c->path.text, "%s", message);
}

/* ---- values that equal their default -------------------------------------------------------- */

/* Is the value equal to its default, at all levels? Then the field can be omitted. */
static bool is_default(const struct knob_field *field, const void *value)
{
    switch (field->kind) {
    case KNOB_BOOL:
        return *(const bool *)value == (field->number != 0);
    case KNOB_INT:
    case KNOB_MODE:
        return *(const int32_t *)value == (int32_t)field->number;
    case KNOB_FLOAT:
        return *(const float *)value == (float)field->number;
    case KNOB_STRING:
    case KNOB_WORD:
        return strcmp(*(char *const *)value, field->text) == 0;
    case KNOB_MESSAGE:
        for (size_t i = 0; i < field->message()->count; i++) {
            const struct knob_field *inner = &field->message()->fields[i];
            if (!is_default(inner, knob_value(inner, value)))
                return false;
        }
        return true;
    case KNOB_STRINGS:
        return ((const struct strategy_strings *)value)->count == 0;
    case KNOB_INTS:
        return ((const struct strategy_ints *)value)->count == 0;
    case KNOB_FLOATS:
        return ((const struct strategy_floats *)value)->count == 0;
    case KNOB_MESSAGES:
        return ((const struct strategy_messages *)value)->count == 0;
    }
    return false;
}

/* ---- the walk ------------------------------------------------------------------------------- */

static void convert_message(struct converter *c, const struct knob_message *message, void *value);

/* A set field that does not exist in the other dialect. */
static void leave_out(struct converter *c, const struct knob_field *field, void *message)
{
    if (is_default(field, knob_value(field, message))) {
        warn(c, "is left out: it has its default value, and 2.0 lacks the field");
        *knob_has(field, message) = 0;
    } else {
        fleet_errors_add(c->errors, c->path.text, "has no counterpart in 2.0");
    }
}

static void convert_message(struct converter *c, const struct knob_message *message, void *value)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        uint8_t *has = knob_has(field, value);
        size_t length;

        if (!*has || field->since == KNOB_OWN)
            continue;
        length = fleet_value_path_enter(&c->path, *has & KNOB_BY_NAME ? field->name : field->alias);
        if (field->alias)
            *has = c->to == STRATEGY_2_0 ? KNOB_BY_NAME : KNOB_BY_ALIAS;
        if (c->to == STRATEGY_2_0 && field->number_in_2_0 == 0)
            leave_out(c, field, value);
        else if (field->kind == KNOB_MESSAGE)
            convert_message(c, field->message(), knob_value(field, value));
        fleet_value_path_leave(&c->path, length);
    }
}

/* ---- degrees of sharding --------------------------------------------------------------------- */

/* hybrid_dp says that there are several groups; dp_degree says how many. */
static void add_dp_degree(struct converter *c, struct strategy *s, int world_size)
{
    struct strategy_sharding_config *g = &s->sharding_configs;
    size_t length = fleet_value_path_enter(&c->path, "sharding_configs.dp_degree");

    if (g->has_hybrid_dp && g->hybrid_dp && !g->has_dp_degree) {
        if (world_size > 0 && g->sharding_group_size > 0 &&
            world_size % g->sharding_group_size == 0) {
            g->dp_degree = world_size / g->sharding_group_size;
            g->has_dp_degree = KNOB_BY_NAME;
        } else {
            warn(c, "is left out: it is the number of workers divided by the group size, and the "
                    "number of workers is not known");
        }
    }
    fleet_value_path_leave(&c->path, length);
}

static void replace_dp_degree(struct strategy *s)
{
    struct strategy_sharding_config *g = &s->sharding_configs;

    if (!g->has_dp_degree || g->dp_degree <= 1)
        return;
    g->hybrid_dp = true;
    g->has_hybrid_dp = KNOB_BY_NAME;
    g->dp_degree = 1;
    g->has_dp_degree = 0;
}

int dialect_convert(struct strategy *s, enum strategy_dialect to, int world_size, const char *path,
                    struct fleet_errors *warnings, struct fleet_errors *errors)
{
    struct converter c = {.to = to, .warnings = warnings, .errors = errors};
    size_t before = errors->count;

    if (to == STRATEGY_AS_READ)
        return 0;
    fleet_strbuf_append(&c.path, path);
    if (to == STRATEGY_2_1)
        add_dp_degree(&c, s, world_size);
    else
        replace_dp_degree(s);
    convert_message(&c, knobs_root(), s);
    fleet_strbuf_release(&c.path);
    return errors->count > before ? -EINVAL : 0;
}
