/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reference pages as Markdown tables, from the same tables of fields that decode the resource.
 */
#include "tools/crd/reference.h"

#include <errno.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/field.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

/* Text of a table's cell: a bar would end it. */
static void append_cell(struct fleet_strbuf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '|')
            fleet_strbuf_append(out, "\\|");
        else
            fleet_strbuf_append_char(out, *text);
}

static const char *kind_text(enum fleet_field_kind kind)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        return "boolean";
    case FLEET_FIELD_INT:
    case FLEET_FIELD_INT32:
        return "integer";
    case FLEET_FIELD_NUMBER:
        return "number";
    case FLEET_FIELD_STRING:
    case FLEET_FIELD_CHARS:
    case FLEET_FIELD_ENUM:
    case FLEET_FIELD_HEX:
    case FLEET_FIELD_BASE64:
        return "string";
    case FLEET_FIELD_INT_OR_CHOICE:
        return "integer or string";
    case FLEET_FIELD_SEED:
        return "integer or string of digits";
    case FLEET_FIELD_TIME:
        return "time";
    case FLEET_FIELD_MAP:
        return "map of strings";
    case FLEET_FIELD_INT_MAP:
        return "map of integers";
    case FLEET_FIELD_OBJECT:
    case FLEET_FIELD_JSON:
        return "object";
    case FLEET_FIELD_LIST:
        break;
    }
    return "list";
}

static void append_type(struct fleet_strbuf *out, const struct fleet_field *field)
{
    if (field->kind == FLEET_FIELD_LIST)
        fleet_strbuf_appendf(out, "list of %ss", kind_text(field->item));
    else
        fleet_strbuf_append(out, field->flags & FLEET_TUPLES ? "list of lists of integers"
                                                             : kind_text(field->kind));
}

static void append_default(struct fleet_strbuf *out, const struct fleet_field *field)
{
    if (field->default_words)
        append_cell(out, field->default_words);
    else if (field->flags & FLEET_REQUIRED)
        fleet_strbuf_append(out, "required");
    else if (field->default_text && strcmp(field->default_text, "\"\"") != 0 &&
             field->kind != FLEET_FIELD_OBJECT)
        fleet_strbuf_appendf(out, "`%.*s`",
                             field->default_text[0] == '"' ? (int)strlen(field->default_text) - 2
                                                           : (int)strlen(field->default_text),
                             field->default_text + (field->default_text[0] == '"'));
}

/* "Only with cosine, step." */
static void append_only(struct fleet_strbuf *out, const struct fleet_object *type,
                        const struct fleet_field *field)
{
    const struct fleet_field *by;
    const char *separator = " Only with ";

    if (!field->only)
        return;
    by = fleet_object_field(type, type->discriminator);
    for (int i = 0; by->choices[i]; i++) {
        if (!(field->only & UINT32_C(1) << i))
            continue;
        fleet_strbuf_appendf(out, "%s`%s`", separator, by->choices[i]);
        separator = ", ";
    }
    fleet_strbuf_append_char(out, '.');
}

static void append_meaning(struct fleet_strbuf *out, const struct fleet_object *type,
                           const struct fleet_field *field)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf allowed = {0};

    append_cell(out, field->description);
    append_only(out, type, field);
    fleet_field_allowed(field, &allowed);
    if (allowed.length) {
        fleet_strbuf_append(out, " Allowed: ");
        append_cell(out, allowed.text);
        fleet_strbuf_append_char(out, '.');
    }
    if (field->flags & FLEET_PATH)
        fleet_strbuf_append(out, " A relative path starts at the job file; refused in a cluster.");
}

static void append_table(struct fleet_strbuf *out, const struct fleet_object *type)
{
    fleet_strbuf_append(out, "| field | type | default | meaning |\n|---|---|---|---|\n");
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        fleet_strbuf_appendf(out, "| `%s` | ", field->name);
        append_type(out, field);
        fleet_strbuf_append(out, " | ");
        append_default(out, field);
        fleet_strbuf_append(out, " | ");
        append_meaning(out, type, field);
        fleet_strbuf_append(out, " |\n");
    }
    fleet_strbuf_append_char(out, '\n');
}

static void append_rules(struct fleet_strbuf *out, const struct fleet_object *type)
{
    if (!type->rules)
        return;
    for (const struct fleet_rule *rule = type->rules; rule->cel; rule++)
        fleet_strbuf_appendf(out, "- %s\n", rule->message);
    fleet_strbuf_append_char(out, '\n');
}

void reference_append(const struct fleet_object *type, const char *path, struct fleet_strbuf *out)
{
    fleet_strbuf_appendf(out, "## %s\n\n%s\n\n", path, type->description);
    append_table(out, type);
    append_rules(out, type);
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf below = {0};
        if (!field->object)
            continue;
        if (field->object == &training_type)
            continue; /* a page of its own */
        fleet_strbuf_appendf(&below, "%s.%s%s", path, field->name,
                             field->kind == FLEET_FIELD_LIST ? "[]" : "");
        reference_append(field->object, below.text, out);
    }
}

int reference_page(const char *file, struct fleet_strbuf *out)
{
    static const struct {
        const char *file, *title, *path, *words;
        const struct fleet_object *type;
    } pages[] = {
        {"fleetjob.md", "FleetJob: spec", "spec",
         "What a user writes. `spec.training` has [a page of its own](training.md); what came of "
         "it is in [the status](status.md).",
         &fleetjob_spec_type},
        {"training.md", "FleetJob: spec.training", "spec.training",
         "The built-in training runtime. The number of workers does not change the result: a batch "
         "is a fixed list of micro-batches, and any worker may compute any of them.",
         &training_type},
        {"status.md", "FleetJob: status", "status",
         "What the controller observed. Users read it; nothing they write here has an effect.",
         &fleetjob_status_type},
    };

    for (size_t i = 0; i < FLEET_COUNT(pages); i++) {
        if (strcmp(pages[i].file, file) != 0)
            continue;
        fleet_strbuf_appendf(
            out, "# %s\n\n<!-- Generated by `make generate`. Do not edit. -->\n\n%s\n\n",
            pages[i].title, pages[i].words);
        reference_append(pages[i].type, pages[i].path, out);
        while (out->length > 1 && out->text[out->length - 2] == '\n')
            out->text[--out->length] = '\0'; /* one line end at the end of the file */
        return 0;
    }
    return -ENOENT;
}
