/* SPDX-License-Identifier: Apache-2.0 */

/* The result of a selection: what was applied, and its notes. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/units.h"

bool select_is_applied(const struct select_result *result, enum unit unit)
{
    return (result->units & UNIT_BIT(unit)) != 0;
}

void select_apply(struct select_result *result, enum unit unit)
{
    select_name(&result->applied, unit_name(unit));
    result->units |= UNIT_BIT(unit);
}

bool select_has_note(const struct select_notes *notes, const char *knob)
{
    for (size_t i = 0; i < notes->count; i++)
        if (strcmp(notes->items[i].knob, knob) == 0)
            return true;
    return false;
}

void select_notes_release(struct select_notes *notes)
{
    for (size_t i = 0; i < notes->count; i++) {
        free(notes->items[i].knob);
        free(notes->items[i].because);
    }
    free(notes->items);
    *notes = (struct select_notes){0};
}

void select_warn(const struct select_result *result, const char *path,
                 struct fleet_errors *warnings)
{
    for (size_t i = 0; warnings && i < result->warnings.count; i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf full = {0};

        fleet_strbuf_appendf(&full, "%s%s%s", path, *path ? "." : "",
                             result->warnings.items[i].knob);
        fleet_errors_add(warnings, full.text, "%s", result->warnings.items[i].because);
    }
}

void select_result_release(struct select_result *result)
{
    select_notes_release(&result->dropped);
    select_notes_release(&result->without_effect);
    select_notes_release(&result->notes);
    select_notes_release(&result->warnings);
    strategy_release(&result->final);
}

void select_name(struct select_names *names, const char *name)
{
    fleet_assert(names->count < SELECT_NAMES_MAX);
    names->items[names->count++] = name;
}

/* Takes `because`. */
static void append_note(struct select_notes *notes, const char *knob, char *because)
{
    notes->items = fleet_grow(notes->items, notes->count, sizeof(*notes->items));
    notes->items[notes->count].knob = fleet_dup_text(knob);
    notes->items[notes->count++].because = because;
}

void select_note(struct select_notes *notes, const char *knob, const char *format, ...)
{
    struct fleet_strbuf because = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&because, format, args);
    va_end(args);
    append_note(notes, knob, fleet_strbuf_take(&because));
}

void select_drop_notes(struct select_notes *notes, const char *knob)
{
    size_t kept = 0;

    for (size_t i = 0; i < notes->count; i++) {
        if (strcmp(notes->items[i].knob, knob) != 0) {
            notes->items[kept++] = notes->items[i];
            continue;
        }
        free(notes->items[i].knob);
        free(notes->items[i].because);
    }
    notes->count = kept;
}

void select_renote(struct select_notes *notes, const char *knob, const char *format, ...)
{
    struct fleet_strbuf because = {0};
    va_list args;

    select_drop_notes(notes, knob);
    va_start(args, format);
    fleet_strbuf_appendv(&because, format, args);
    va_end(args);
    append_note(notes, knob, fleet_strbuf_take(&because));
}
