/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/api/known_elsewhere.h"

#include <ctype.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/fleetjob_tables.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/field.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/training/training.h"

#define PLACES_MAX 3 /* a name in more blocks than this, such as "name", gives no hint */

/* The places of one name. */
struct search {
    const char *name, *path;   /* as the user wrote them; the path ends with the name */
    struct fleet_strbuf found; /* "a" or "b" */
    int count;
    bool is_here; /* the block itself has it, in another spelling */
};

/* Is the user's field a member of that block? Ignores indices of list items. */
static bool is_in_block(const char *path, const char *block)
{
    while (*block && *path == *block) {
        path++;
        block++;
        for (; block[-1] == '[' && isdigit((unsigned char)*path); path++)
            ;
        for (; block[-1] == '[' && isdigit((unsigned char)*block); block++)
            ;
    }
    return !*block && *path == '.' && !strchr(path + 1, '.');
}

static void note_place(struct search *search, const char *path, const char *name)
{
    if (!fleet_same_word(name, search->name))
        return;
    search->is_here = search->is_here || is_in_block(search->path, path);
    search->count++;
    fleet_strbuf_appendf(&search->found, "%s\"%s.%s\"", search->count > 1 ? " or " : "", path,
                         name);
}

static void search_object(struct search *search, const struct fleet_object *type, const char *path)
{
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf inner = {0};
        bool is_list = field->kind == FLEET_FIELD_LIST && field->item == FLEET_FIELD_OBJECT;

        note_place(search, path, field->name);
        if (!is_list && field->kind != FLEET_FIELD_OBJECT)
            continue;
        fleet_strbuf_appendf(&inner, "%s.%s%s", path, field->name, is_list ? "[0]" : "");
        search_object(search, field->object, inner.text);
    }
}

static void search_strategy(struct search *search, const struct knob_message *message,
                            const char *path)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        FLEET_AUTO_STRBUF struct fleet_strbuf inner = {0};

        note_place(search, path, field->name);
        if (field->kind != KNOB_MESSAGE)
            continue;
        fleet_strbuf_appendf(&inner, "%s.%s", path, field->name);
        search_strategy(search, field->message(), inner.text);
    }
}

static void hint(struct fleet_errors *errors, size_t index)
{
    const char *path = errors->items[index].path, *dot = strrchr(path, '.');
    struct search search = {.name = dot ? dot + 1 : path, .path = path};

    search_object(&search, &fleetjob_metadata_type, "metadata");
    search_object(&search, &fleetjob_spec_type, "spec");
    search_object(&search, &training_type, "spec.training");
    search_strategy(&search, knobs_root(), "spec.strategy");
    if (search.count > 0 && search.count <= PLACES_MAX && !search.is_here)
        fleet_errors_reword(errors, index, "unknown field here; did you mean %s?",
                            search.found.text);
    fleet_strbuf_release(&search.found);
}

void known_elsewhere_hint(struct fleet_errors *errors)
{
    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++)
        if (errors->items[i].is_unknown)
            hint(errors, i);
}
