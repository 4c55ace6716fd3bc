/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_SELECT_FIXTURE_H
#define TESTS_UNIT_SELECT_FIXTURE_H

/*
 * Strategies for tests of the selection, and its outcome as one line of text.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/errors.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/units.h"
#include "tests/golden/golden.h"
#include "tests/golden/selection.h"
#include "tests/support/strategy_units.h"

#define WORLD 8

/* A strategy from JSON written with ' for ". */
static inline void make(struct strategy *s, const char *text)
{
    struct fleet_errors errors = {0};
    char *json = strdup(text);
    cJSON *root;

    for (char *c = json; *c; c++)
        if (*c == '\'')
            *c = '"';
    root = cJSON_Parse(json);
    assert_non_null(root);
    assert_int_equal(strategy_json_decode(root, "", s, &errors), 0);
    cJSON_Delete(root);
    free(json);
}

/* "amp>lars; dropped dgc: reason; idle x: reason; workers dgc", or "refused path: message; …". */
static inline char *outcome(const struct strategy *s, enum strategy_policy policy, int world,
                            const char *optimizer, bool with_reasons)
{
    struct select_options options = {.policy = policy, .world_size = world, .optimizer = optimizer};
    struct fleet_errors errors = {0};
    struct select_result r;
    struct fleet_strbuf out = {0};

    if (strategy_select(s, &options, "", &r, &errors) < 0) {
        for (size_t i = 0; i < errors.count; i++)
            fleet_strbuf_appendf(&out, "%srefused %s: %s", i ? "; " : "", errors.items[i].path,
                                 errors.items[i].message);
        fleet_errors_release(&errors);
        return fleet_strbuf_take(&out);
    }
    for (size_t i = 0; i < r.applied.count; i++)
        fleet_strbuf_appendf(&out, "%s%s", i ? ">" : "", r.applied.items[i]);
    for (size_t i = 0; i < r.dropped.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; dropped %s: %s", r.dropped.items[i].knob,
                             r.dropped.items[i].because);
    for (size_t i = 0; i < r.without_effect.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; idle %s: %s", r.without_effect.items[i].knob,
                             r.without_effect.items[i].because);
    for (size_t i = 0; i < r.warnings.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; warning %s: %s", r.warnings.items[i].knob,
                             r.warnings.items[i].because);
    for (size_t i = 0; i < r.depends_on_workers.count && with_reasons; i++)
        fleet_strbuf_appendf(&out, "; workers %s", r.depends_on_workers.items[i]);
    select_result_release(&r);
    return fleet_strbuf_take(&out);
}

static inline void expect(const char *json, enum strategy_policy policy, int world,
                          const char *optimizer, const char *expected)
{
    struct strategy s;
    char *got;

    make(&s, json);
    got = outcome(&s, policy, world, optimizer, true);
    if (strcmp(got, expected) != 0)
        fail_msg("%s with %d workers, %s\n  expected: %s\n  actual:   %s", json, world,
                 optimizer ? optimizer : "any optimizer", expected, got);
    free(got);
    strategy_release(&s);
}

static inline unsigned int bits_of(const char *names)
{
    unsigned int bits = 0;
    char *copy = strdup(names), *state = NULL;

    for (char *name = strtok_r(copy, "+", &state); name; name = strtok_r(NULL, "+", &state))
        for (int i = 0; i < UNITS; i++)
            if (strcmp(name, unit_name((enum unit)i)) == 0)
                bits |= UNIT_BIT(i);
    free(copy);
    return bits;
}

#endif
