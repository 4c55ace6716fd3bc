/* SPDX-License-Identifier: Apache-2.0 */

/* One function a kind of field; both tables (fields, knobs) end in the same few keys of OpenAPI. */
#include "tools/crd/schema.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"
#include "tools/crd/known.h"

#define TUPLES_MAX 8 /* inputs of an operator; so many numbers at most in each tuple */

/* The member `key`, made as a list or object if it is not there yet. */
static cJSON *at_key(cJSON *schema, const char *key, bool list)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(schema, key);

    if (!item)
        item = list ? fleet_json_set_list(schema, key) : fleet_json_set_object(schema, key);
    return item;
}

static void add_rule(cJSON *schema, const struct fleet_rule *from)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    cJSON *rule = fleet_json_new_object();

    fleet_json_set_string(rule, "rule", from->cel);
    fleet_json_set_string(rule, "message", from->message);
    if (from->field) {
        fleet_strbuf_appendf(&path, ".%s", from->field);
        fleet_json_set_string(rule, "fieldPath", path.text);
    }
    fleet_json_add(at_key(schema, "x-kubernetes-validations", true), rule);
}

/* ---- fields of a table ----------------------------------------------------------------------- */

static void add_bounds(cJSON *schema, const struct fleet_field *field)
{
    if (field->flags & (FLEET_MIN | FLEET_ABOVE))
        fleet_json_set_number(schema, "minimum", field->min);
    if (field->flags & FLEET_ABOVE)
        fleet_json_set_bool(schema, "exclusiveMinimum", true);
    if (field->flags & (FLEET_MAX | FLEET_BELOW))
        fleet_json_set_number(schema, "maximum", field->max);
    if (field->flags & FLEET_BELOW)
        fleet_json_set_bool(schema, "exclusiveMaximum", true);
}

static void add_string(cJSON *schema, const struct fleet_field *field, size_t max)
{
    fleet_json_set_string(schema, "type", "string");
    fleet_json_set_number(schema, "maxLength", (double)max);
    if (field->flags & FLEET_NOT_EMPTY)
        fleet_json_set_number(schema, "minLength", 1);
    if (field->pattern)
        fleet_json_set_string(schema, "pattern", field->pattern);
    if (field->flags & FLEET_PATH) /* fleet_path_is_remote(); the controller knows the fields */
        add_rule(schema,
                 &(struct fleet_rule){
                     .cel = "self == '' || self.startsWith('/') || self.startsWith('s3://') || "
                            "self.startsWith('hdfs://') || self.startsWith('webhdfs://') || "
                            "self.startsWith('swebhdfs://')",
                     .message = "must be an absolute path, or a place in a store, in a cluster"});
}

static void add_choices(cJSON *schema, const struct fleet_field *field)
{
    cJSON *list = at_key(schema, "enum", true);

    fleet_json_set_string(schema, "type", "string");
    for (const char *const *choice = field->choices; *choice; choice++)
        if ((*choice)[0])
            fleet_json_add_string(list, *choice);
}

static void add_int_or_choice(cJSON *schema, const struct fleet_field *field)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf pattern = {0};

    for (const char *const *choice = field->choices; *choice; choice++)
        fleet_strbuf_appendf(&pattern, "%s%s", pattern.length ? "|" : "^(", *choice);
    fleet_strbuf_append(&pattern, ")$");
    fleet_json_set_bool(schema, "x-kubernetes-int-or-string", true);
    fleet_json_set_string(schema, "pattern", pattern.text);
    fleet_json_set_number(schema, "maxLength", 64);
    add_bounds(schema, field);
}

static void add_map(cJSON *schema, const struct fleet_field *field)
{
    cJSON *value = at_key(schema, "additionalProperties", false);

    fleet_json_set_string(schema, "type", "object");
    fleet_json_set_number(schema, "maxProperties", (double)fleet_field_count_max(field));
    if (field->kind == FLEET_FIELD_INT_MAP) {
        fleet_json_set_string(value, "type", "integer");
        fleet_json_set_string(value, "format", "int64");
    } else {
        fleet_json_set_string(value, "type", "string");
        fleet_json_set_number(value, "maxLength", FLEET_FIELD_STRING_MAX);
    }
}

/* Lists of positive integers in a list. */
static void add_tuples(cJSON *schema)
{
    cJSON *inner = schema;

    for (int depth = 0; depth < 2; depth++) {
        fleet_json_set_string(inner, "type", "array");
        fleet_json_set_number(inner, "maxItems", TUPLES_MAX);
        inner = at_key(inner, "items", false);
    }
    fleet_json_set_string(inner, "type", "integer");
    fleet_json_set_number(inner, "minimum", 1);
}

static void add_json(cJSON *schema, const struct fleet_field *field)
{
    cJSON *properties;

    if (field->flags & FLEET_TUPLES) {
        add_tuples(schema);
        return;
    }
    fleet_json_set_string(schema, "type", "object");
    fleet_json_set_bool(schema, "x-kubernetes-preserve-unknown-fields", true);
    properties = known_properties(field->name);
    if (properties)
        fleet_json_set(schema, "properties", properties);
}

/* Type and limits of a scalar, whether a member or a list element. */
static void add_item(cJSON *schema, const struct fleet_field *field, enum fleet_field_kind kind)
{
    switch (kind) {
    case FLEET_FIELD_BOOL:
        fleet_json_set_string(schema, "type", "boolean");
        break;
    case FLEET_FIELD_INT:
        fleet_json_set_string(schema, "type", "integer");
        fleet_json_set_string(schema, "format", "int64");
        add_bounds(schema, field);
        break;
    case FLEET_FIELD_NUMBER:
        fleet_json_set_string(schema, "type", "number");
        add_bounds(schema, field);
        break;
    case FLEET_FIELD_STRING:
        add_string(schema, field,
                   field->kind == FLEET_FIELD_STRING ? fleet_field_count_max(field)
                                                     : FLEET_FIELD_STRING_MAX);
        break;
    case FLEET_FIELD_ENUM:
        add_choices(schema, field);
        break;
    case FLEET_FIELD_INT_OR_CHOICE:
        add_int_or_choice(schema, field);
        break;
    case FLEET_FIELD_SEED:
        fleet_json_set_bool(schema, "x-kubernetes-int-or-string", true);
        fleet_json_set_string(schema, "pattern", "^[0-9]{1,20}$");
        fleet_json_set_number(schema, "maxLength", 20);
        fleet_json_set_number(schema, "minimum", 0);
        break;
    case FLEET_FIELD_TIME:
        fleet_json_set_string(schema, "type", "string");
        fleet_json_set_string(schema, "format", "date-time");
        break;
    case FLEET_FIELD_JSON:
        add_json(schema, field);
        break;
    case FLEET_FIELD_MAP:
    case FLEET_FIELD_INT_MAP:
        add_map(schema, field);
        break;
    case FLEET_FIELD_INT32:
    case FLEET_FIELD_CHARS:
    case FLEET_FIELD_HEX:
    case FLEET_FIELD_BASE64:
    case FLEET_FIELD_OBJECT:
    case FLEET_FIELD_LIST:
        fleet_assert(!"not a scalar");
    }
}

/* Lists of objects with a name are maps to server-side apply. */
static void add_list_type(cJSON *schema, const struct fleet_field *field)
{
    static const char *const keys[] = {"type", "mountPath"};

    if (!field->object)
        return;
    for (size_t i = 0; i < FLEET_COUNT(keys); i++) {
        const struct fleet_field *key = fleet_object_field(field->object, keys[i]);
        if (!key || !(key->flags & FLEET_REQUIRED))
            continue;
        fleet_json_set_string(schema, "x-kubernetes-list-type", "map");
        fleet_json_add_string(at_key(schema, "x-kubernetes-list-map-keys", true), keys[i]);
        return;
    }
}

/* What `kubectl explain` shows. */
static void describe(cJSON *schema, const struct fleet_field *field)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_append(&text, field->description);
    if (field->default_words)
        fleet_strbuf_appendf(&text, " Default: %s.", field->default_words);
    else if (field->default_text && !strchr("{[", field->default_text[0]) &&
             strcmp(field->default_text, "\"\"") != 0)
        fleet_strbuf_appendf(&text, " Default: %s.", field->default_text);
    cJSON_DeleteItemFromObjectCaseSensitive(schema, "description");
    fleet_json_set_string(schema, "description", text.text);
}

static cJSON *schema_of_field(const struct fleet_field *field)
{
    cJSON *schema = field->object && field->kind != FLEET_FIELD_LIST
                        ? schema_of_object(field->object)
                        : fleet_json_new_object();

    describe(schema, field);
    if (field->kind == FLEET_FIELD_LIST) {
        cJSON *items = field->object ? schema_of_object(field->object) : fleet_json_new_object();
        if (!field->object)
            add_item(items, field, field->item);
        fleet_json_set_string(schema, "type", "array");
        fleet_json_set_number(schema, "maxItems", (double)fleet_field_count_max(field));
        if (field->flags & FLEET_NOT_EMPTY)
            fleet_json_set_number(schema, "minItems", 1);
        add_list_type(schema, field);
        fleet_json_set(schema, "items", items);
    } else if (!field->object) {
        add_item(schema, field, field->kind);
    }
    if (field->default_text && field->only == 0) {
        cJSON *value = cJSON_Parse(field->default_text);
        fleet_assert(value != NULL);
        fleet_json_set(schema, "default", value);
    }
    return schema;
}

/* ---- rules of a discriminator ---------------------------------------------------------------- */

/* "self.name in ['a', 'b']" for the choices that the field belongs to. */
static void append_choice_test(struct fleet_strbuf *out, const struct fleet_field *by,
                               uint32_t choices)
{
    const char *separator = "";

    fleet_strbuf_appendf(out, "self.%s in [", by->name);
    for (int i = 0; by->choices[i]; i++) {
        if (!(choices & UINT32_C(1) << i))
            continue;
        fleet_strbuf_appendf(out, "%s'%s'", separator, by->choices[i]);
        separator = ", ";
    }
    fleet_strbuf_append(out, "]");
}

static void append_choice_names(struct fleet_strbuf *out, const struct fleet_field *by,
                                uint32_t choices)
{
    const char *separator = "";

    for (int i = 0; by->choices[i]; i++) {
        if (!(choices & UINT32_C(1) << i))
            continue;
        fleet_strbuf_appendf(out, "%s%s", separator, by->choices[i]);
        separator = ", ";
    }
}

/* A field that some choices have: absent with the others, and there if it is required. */
static void add_choice_rules(cJSON *schema, const struct fleet_object *type,
                             const struct fleet_field *field)
{
    const struct fleet_field *by = fleet_object_field(type, type->discriminator);
    bool preset = fleet_object_field(type, "preset") != NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf rule = {0}, message = {0}, needed = {0}, why = {0};

    fleet_strbuf_appendf(&rule, "!has(self.%s) || ", field->name);
    if (!by->default_text)
        fleet_strbuf_appendf(&rule, "!has(self.%s) || ", by->name);
    append_choice_test(&rule, by, field->only);
    fleet_strbuf_appendf(&message, "%s belongs to ", field->name);
    append_choice_names(&message, by, field->only);
    add_rule(schema, &(struct fleet_rule){rule.text, message.text, field->name});
    if (!(field->flags & FLEET_REQUIRED))
        return;
    fleet_strbuf_appendf(&needed, "has(self.%s) || ", field->name);
    if (!by->default_text)
        fleet_strbuf_appendf(&needed, "!has(self.%s) || ", by->name);
    if (preset)
        fleet_strbuf_append(&needed, "has(self.preset) || ");
    fleet_strbuf_append(&needed, "!(");
    append_choice_test(&needed, by, field->only);
    fleet_strbuf_append(&needed, ")");
    fleet_strbuf_appendf(&why, "%s is required with ", field->name);
    append_choice_names(&why, by, field->only);
    add_rule(schema, &(struct fleet_rule){needed.text, why.text, field->name});
}

cJSON *schema_of_object(const struct fleet_object *type)
{
    cJSON *schema = fleet_json_new_object(), *properties;
    bool preset = fleet_object_field(type, "preset") != NULL; /* stands in for all the others */

    fleet_json_set_string(schema, "description", type->description);
    fleet_json_set_string(schema, "type", "object");
    properties = at_key(schema, "properties", false);
    for (const struct fleet_field *field = type->fields; field->name; field++) {
        fleet_json_set(properties, field->name, schema_of_field(field));
        if (field->only)
            add_choice_rules(schema, type, field);
        else if (field->flags & FLEET_REQUIRED && !preset)
            fleet_json_add_string(at_key(schema, "required", true), field->name);
    }
    for (const struct fleet_rule *rule = type->rules; rule && rule->cel; rule++)
        add_rule(schema, rule);
    return schema;
}

/* ---- knobs ----------------------------------------------------------------------------------- */

static void add_knob_range(cJSON *schema, const struct knob_field *field)
{
    const struct knob_range *range = &field->range;

    switch (range->kind) {
    case KNOB_ANY:
    case KNOB_ONE_OF:
        break;
    case KNOB_AT_LEAST:
        fleet_json_set_number(schema, "minimum", range->low);
        break;
    case KNOB_ABOVE:
        fleet_json_set_number(schema, "minimum", range->low);
        fleet_json_set_bool(schema, "exclusiveMinimum", true);
        break;
    case KNOB_FROM_TO:
        fleet_json_set_number(schema, "minimum", range->low);
        fleet_json_set_number(schema, "maximum", range->high);
        break;
    case KNOB_BETWEEN:
        fleet_json_set_number(schema, "minimum", range->low);
        fleet_json_set_bool(schema, "exclusiveMinimum", true);
        fleet_json_set_number(schema, "maximum", range->high);
        fleet_json_set_bool(schema, "exclusiveMaximum", true);
        break;
    case KNOB_DEGREE_OR_REST:
        fleet_json_set_number(schema, "minimum", -1);
        break;
    }
}

static void add_knob_words(cJSON *schema, const char *words)
{
    FLEET_AUTO_FREE char *copy = strdup(words);
    cJSON *list = at_key(schema, "enum", true);
    char *rest = copy, *word;

    fleet_assert(copy != NULL);
    while ((word = strsep(&rest, "|")))
        fleet_json_add_string(list, word);
}

static void add_knob_scalar(cJSON *schema, const struct knob_field *field)
{
    switch (field->kind) {
    case KNOB_BOOL:
        fleet_json_set_string(schema, "type", "boolean");
        break;
    case KNOB_INT:
    case KNOB_INTS:
        fleet_json_set_string(schema, "type", "integer");
        fleet_json_set_string(schema, "format", "int32");
        add_knob_range(schema, field);
        break;
    case KNOB_FLOAT:
    case KNOB_FLOATS:
        fleet_json_set_string(schema, "type", "number");
        add_knob_range(schema, field);
        break;
    default:
        fleet_json_set_string(schema, "type", "string");
        fleet_json_set_number(schema, "maxLength", KNOB_STRING_MAX);
        if (field->range.kind == KNOB_ONE_OF)
            add_knob_words(schema, field->range.words);
        break;
    }
}

/* Help and Paddle's default, for `kubectl explain`. A `default:` in the schema would make set what
 * the user left out. */
static void describe_knob(cJSON *schema, const struct knob_field *field)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    fleet_strbuf_appendf(&text, "%s.", field->help);
    if (field->kind == KNOB_BOOL)
        fleet_strbuf_appendf(&text, " Default: %s.", field->number != 0 ? "true" : "false");
    else if (field->kind == KNOB_INT || field->kind == KNOB_FLOAT)
        fleet_strbuf_appendf(&text, " Default: %.9g.", field->number);
    else if (field->kind == KNOB_STRING && field->text && field->text[0])
        fleet_strbuf_appendf(&text, " Default: %s.", field->text);
    fleet_json_set_string(schema, "description", text.text);
}

static cJSON *schema_of_message(const struct knob_message *message);

static cJSON *schema_of_knob(const struct knob_field *field)
{
    cJSON *schema =
        field->kind == KNOB_MESSAGE ? schema_of_message(field->message()) : fleet_json_new_object();

    describe_knob(schema, field);
    if (knob_is_list(field)) {
        cJSON *items = field->kind == KNOB_MESSAGES ? schema_of_message(field->message())
                                                    : fleet_json_new_object();
        if (field->kind != KNOB_MESSAGES)
            add_knob_scalar(items, field);
        fleet_json_set_string(schema, "type", "array");
        fleet_json_set_number(schema, "maxItems", KNOB_LIST_MAX);
        fleet_json_set(schema, "items", items);
    } else if (field->kind != KNOB_MESSAGE) {
        add_knob_scalar(schema, field);
    }
    return schema;
}

/* Messages nest five deep. */
static cJSON *schema_of_message(const struct knob_message *message)
{
    cJSON *schema = fleet_json_new_object(), *properties;

    fleet_json_set_string(schema, "type", "object");
    fleet_json_set_bool(schema, "x-kubernetes-preserve-unknown-fields", true);
    properties = at_key(schema, "properties", false);
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        if (field->kind == KNOB_MODE)
            continue; /* not for users: the controller refuses it with the reason */
        fleet_json_set(properties, field->name, schema_of_knob(field));
        if (field->alias)
            fleet_json_set(properties, field->alias, schema_of_knob(field));
    }
    return schema;
}

cJSON *schema_of_strategy(void)
{
    return schema_of_message(knobs_root());
}
