/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two parts: a walk over the tables that compares each set value with its range, and a list of
 * small functions, one for each companion rule of check.h.
 */
#include "libfleet/strategy/check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/value_path.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/topology.h"

#define RANGE_TEXT_SIZE 128
#define SHOWN_BYTES     60 /* number of bytes of a string that a message quotes */

struct checker {
    struct fleet_strbuf path; /* of the message being checked */
    struct fleet_errors *errors;
    struct fleet_errors *warnings; /* or NULL */
    int world_size;                /* or 0 */
    bool any_world;
};

__attribute__((format(printf, 3, 4))) static void refuse(struct checker *c, const char *name,
                                                         const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};
    size_t length = fleet_value_path_enter(&c->path, name);
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    fleet_errors_add(c->errors, c->path.text, "%s", fleet_strbuf_text(&message));
    fleet_value_path_leave(&c->path, length);
}

/* ---- ranges -------------------------------------------------------------------------------- */

static bool is_in_range(const struct knob_range *range, double x)
{
    switch (range->kind) {
    case KNOB_AT_LEAST:
        return x >= range->low;
    case KNOB_ABOVE:
        return x > range->low;
    case KNOB_FROM_TO:
        return x >= range->low && x <= range->high;
    case KNOB_BETWEEN:
        return x > range->low && x < range->high;
    case KNOB_DEGREE_OR_REST:
        return x == -1 || x >= 1;
    case KNOB_ANY:
    case KNOB_ONE_OF:
        break;
    }
    return true;
}

static bool is_word_of(const char *words, const char *text)
{
    size_t length = strlen(text);

    for (const char *word = words; word; word = strchr(word, '|')) {
        word += *word == '|';
        if (length > 0 && strncmp(word, text, length) == 0 &&
            (word[length] == '|' || word[length] == '\0'))
            return true;
    }
    return false;
}

static void check_integer(struct checker *c, const struct knob_field *field, int32_t x)
{
    char range[RANGE_TEXT_SIZE];

    if (is_in_range(&field->range, x))
        return;
    knob_print_range(field, range, sizeof(range));
    fleet_errors_add(c->errors, c->path.text, "must be %s, not %d", range, x);
}

static void check_number(struct checker *c, const struct knob_field *field, float x)
{
    char range[RANGE_TEXT_SIZE], shown[32];

    if (isfinite(x) && is_in_range(&field->range, (double)x))
        return;
    knob_print_range(field, range, sizeof(range));
    knob_print_float(x, shown);
    fleet_errors_add(c->errors, c->path.text, "must be finite%s%s, not %s", *range ? " and " : "",
                     range, shown);
}

static void check_string(struct checker *c, const struct knob_field *field, const char *text)
{
    char range[RANGE_TEXT_SIZE];

    if (field->range.kind != KNOB_ONE_OF || is_word_of(field->range.words, text))
        return;
    knob_print_range(field, range, sizeof(range));
    fleet_errors_add(c->errors, c->path.text, "must be %s, not \"%.*s\"", range, SHOWN_BYTES, text);
}

static void check_message(struct checker *c, const struct knob_message *message, const void *value);

static void check_list(struct checker *c, const struct knob_field *field, const void *value)
{
    /* Each kind of list is a pointer and a count; only the element type differs. */
    size_t count = field->kind == KNOB_STRINGS  ? ((const struct strategy_strings *)value)->count
                   : field->kind == KNOB_INTS   ? ((const struct strategy_ints *)value)->count
                   : field->kind == KNOB_FLOATS ? ((const struct strategy_floats *)value)->count
                                                : ((const struct strategy_messages *)value)->count;

    for (size_t i = 0; i < count; i++) {
        size_t length = fleet_value_path_enter_element(&c->path, i);

        if (field->kind == KNOB_STRINGS)
            check_string(c, field, ((const struct strategy_strings *)value)->items[i]);
        else if (field->kind == KNOB_INTS)
            check_integer(c, field, ((const struct strategy_ints *)value)->items[i]);
        else if (field->kind == KNOB_FLOATS)
            check_number(c, field, ((const struct strategy_floats *)value)->items[i]);
        else
            check_message(c, field->message(),
                          (const char *)((const struct strategy_messages *)value)->items +
                              i * field->message()->size);
        fleet_value_path_leave(&c->path, length);
    }
}

static void check_value(struct checker *c, const struct knob_field *field, const void *value)
{
    if (field->kind == KNOB_INT)
        check_integer(c, field, *(const int32_t *)value);
    else if (field->kind == KNOB_FLOAT)
        check_number(c, field, *(const float *)value);
    else if (field->kind == KNOB_STRING || field->kind == KNOB_WORD)
        check_string(c, field, *(char *const *)value);
    else if (field->kind == KNOB_MESSAGE)
        check_message(c, field->message(), value);
    else if (knob_is_list(field))
        check_list(c, field, value);
}

/* Only set fields are checked: defaults are always allowed. Errors use the spelling that the user
 * wrote. */
static void check_message(struct checker *c, const struct knob_message *message, const void *value)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        uint8_t has = *knob_has(field, value);
        size_t length;

        if (!has)
            continue;
        length = fleet_value_path_enter(&c->path, has & KNOB_BY_NAME ? field->name : field->alias);
        check_value(c, field, knob_value(field, value));
        fleet_value_path_leave(&c->path, length);
    }
}

/* ---- companions ---------------------------------------------------------------------------- */

static void check_recompute(struct checker *c, const struct strategy *s)
{
    const struct strategy_recompute_config *r = &s->recompute_configs;

    if (r->enable_offload && r->checkpoint_shape.count == 0)
        refuse(c, "recompute_configs.checkpoint_shape", "is needed with enable_offload");
    if (!r->enable_offload && r->checkpoint_shape.count > 0)
        refuse(c, "recompute_configs.checkpoint_shape", "is only allowed with enable_offload");
}

/* Are the degrees of the 2.1 dialect set? Then topology_build() checks their product. */
static bool has_degrees(const struct strategy_sharding_config *g)
{
    return g->has_mp_degree || g->has_pp_degree || g->has_dp_degree;
}

/* "; nearest possible: 2 or 4", of the divisors of `all` from `least` to `most` those around
 * `value`. */
static void append_divisors(int all, int value, int least, int most, struct fleet_strbuf *out)
{
    int below = value - 1, above = value + 1;

    while (below >= least && (below > most || all % below != 0))
        below--;
    while (above <= most && all % above != 0)
        above++;
    if (below >= least && above <= most)
        fleet_strbuf_appendf(out, "; nearest possible: %d or %d", below, above);
    else if (below >= least || above <= most)
        fleet_strbuf_appendf(out, "; nearest possible: %d", below >= least ? below : above);
}

static void check_hybrid_dp(struct checker *c, const struct strategy_sharding_config *g)
{
    const char *name = g->has_sharding_group_size == KNOB_BY_ALIAS
                           ? "sharding_configs.sharding_degree"
                           : "sharding_configs.sharding_group_size";
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};

    if (g->has_hybrid_dp && !g->hybrid_dp && g->dp_degree > 1)
        refuse(c, "sharding_configs.dp_degree",
               "is %d, but hybrid_dp is false: several replicas need it true", g->dp_degree);
    if (!g->hybrid_dp || has_degrees(g) || c->world_size <= 1 || c->any_world ||
        g->sharding_group_size < 1)
        return;
    append_divisors(c->world_size, g->sharding_group_size, 1, c->world_size - 1, &nearest);
    if (g->sharding_group_size >= c->world_size)
        refuse(c, name, "is %d; with hybrid_dp it must be less than the %d workers%s",
               g->sharding_group_size, c->world_size, fleet_strbuf_text(&nearest));
    else if (c->world_size % g->sharding_group_size != 0)
        refuse(c, name, "is %d; with hybrid_dp it must divide the %d workers%s",
               g->sharding_group_size, c->world_size, fleet_strbuf_text(&nearest));
}

static void check_sharding(struct checker *c, const struct strategy *s)
{
    const struct strategy_sharding_config *g = &s->sharding_configs;

    if (!s->sharding)
        return;
    check_hybrid_dp(c, g);
    if (g->pp_degree > 1 && !s->pipeline)
        refuse(c, "sharding_configs.pp_degree", "is %d, which needs pipeline: true", g->pp_degree);
    if (g->pp_degree > 1 && g->gradient_merge_acc_step > 1)
        refuse(c, "sharding_configs.gradient_merge_acc_step",
               "is %d; with %d pipeline stages use pipeline_configs.accumulate_steps instead",
               g->gradient_merge_acc_step, g->pp_degree);
    if (choices_segments(s) == CHOICES_SEGMENTS_BY_ANCHORS && g->segment_anchors.count == 0)
        refuse(c, "sharding_configs.segment_anchors",
               "must not be empty with sharding_segment_strategy segment_anchors");
}

static void check_hierarchy(struct checker *c, const struct strategy *s)
{
    int block = s->hierarchical_allreduce_inter_nranks;
    FLEET_AUTO_STRBUF struct fleet_strbuf nearest = {0};

    if (!s->use_hierarchical_allreduce || block < 1)
        return;
    if (block == 1)
        refuse(c, "hierarchical_allreduce_inter_nranks",
               "is 1; with use_hierarchical_allreduce a block has at least 2 ranks");
    else if (c->world_size > 1 && !c->any_world && c->world_size % block != 0) {
        append_divisors(c->world_size, block, 2, c->world_size, &nearest);
        refuse(c, "hierarchical_allreduce_inter_nranks",
               "is %d; with use_hierarchical_allreduce it must divide the %d workers%s", block,
               c->world_size, fleet_strbuf_text(&nearest));
    }
}

static void check_order(struct checker *c, const struct strategy *s)
{
    const struct strategy_strings *order = &s->hybrid_configs.order;

    if (order->count > TOPOLOGY_AXES) {
        refuse(c, "hybrid_configs.order", "names %zu axes; there are %d", order->count,
               TOPOLOGY_AXES);
        return;
    }
    for (size_t i = 0; i < order->count; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(order->items[i], order->items[j]) == 0) {
                refuse(c, "hybrid_configs.order", "names \"%.*s\" twice", SHOWN_BYTES,
                       order->items[i]);
                return;
            }
}

static void warn_of_falling_sparsity(struct checker *c, const struct strategy *s)
{
    const struct strategy_floats *list = &s->dgc_configs.sparsity;
    size_t length = fleet_value_path_enter(&c->path, "dgc_configs.sparsity");

    for (size_t i = 1; c->warnings && i < list->count; i++)
        if (list->items[i] < list->items[i - 1]) {
            fleet_errors_add(c->warnings, c->path.text,
                             "falls from %g to %g; it is expected to rise during ramp-up",
                             (double)list->items[i - 1], (double)list->items[i]);
            break;
        }
    fleet_value_path_leave(&c->path, length);
}

static void (*const companions[])(struct checker *, const struct strategy *) = {
    check_recompute, check_sharding, check_hierarchy, check_order, warn_of_falling_sparsity,
};

int strategy_check(const struct strategy *s, int world_size, bool any_world, const char *path,
                   struct fleet_errors *errors, struct fleet_errors *warnings)
{
    struct checker c = {
        .errors = errors, .warnings = warnings, .world_size = world_size, .any_world = any_world};
    size_t before = errors->count;

    fleet_strbuf_append(&c.path, path);
    check_message(&c, knobs_root(), s);
    for (size_t i = 0; i < FLEET_COUNT(companions); i++)
        companions[i](&c, s);
    fleet_strbuf_release(&c.path);
    return errors->count > before ? -EINVAL : 0;
}

int strategy_check_values(const struct strategy *s, const char *path, struct fleet_errors *errors)
{
    struct checker c = {.errors = errors};
    size_t before = errors->count;

    fleet_strbuf_append(&c.path, path);
    check_message(&c, knobs_root(), s);
    fleet_strbuf_release(&c.path);
    return errors->count > before ? -EINVAL : 0;
}
