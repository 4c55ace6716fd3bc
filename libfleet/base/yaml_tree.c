/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Converts libyaml's events to a cJSON tree with an explicit stack of open containers, so nesting
 * uses no C stack. A wrong value is a fault: if the caller takes faults, reading continues after
 * it. Text that libyaml rejects, and exceeded limits, end the reading. An alias is a copy of its
 * anchor's subtree. The copy is counted before it is made, so a few lines of nested aliases cannot
 * grow without limit.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml_internal.h"

#define TAG_PREFIX "tag:yaml.org,2002:"

/* Number of values in `item`, itself included; its depth is bounded by the stack that built it. */
static size_t count_nodes(const cJSON *item)
{
    size_t count = 1;

    for (const cJSON *child = item->child; child; child = child->next)
        count += count_nodes(child);
    return count;
}

static int count_more(struct fleet_yaml_reader *reader, size_t more, yaml_mark_t mark,
                      struct fleet_error *err)
{
    reader->node_count += more;
    if (reader->node_count > FLEET_YAML_NODE_MAX)
        return fleet_yaml_refuse_at(mark, err, "more values than fit the limit of 100000", NULL);
    return 0;
}

static struct fleet_yaml_open *top(struct fleet_yaml_reader *reader)
{
    return reader->depth ? &reader->stack[reader->depth - 1] : NULL;
}

/* Does the next scalar become a key? */
static bool wants_key(struct fleet_yaml_reader *reader)
{
    struct fleet_yaml_open *open = top(reader);

    return open && cJSON_IsObject(open->node) && !open->key;
}

static const char *last_key(const cJSON *mapping)
{
    return mapping->child ? mapping->child->prev->string : "";
}

/* The path of the current value, as "spec.training.optimizer.learningRate". */
static void append_path(const struct fleet_yaml_reader *reader, struct fleet_strbuf *path)
{
    for (int i = 0; i < reader->depth; i++) {
        const struct fleet_yaml_open *open = &reader->stack[i];
        if (cJSON_IsArray(open->node))
            fleet_strbuf_appendf(path, "[%d]",
                                 cJSON_GetArraySize(open->node) - (i + 1 < reader->depth));
        else if (open->key || i + 1 < reader->depth)
            fleet_strbuf_appendf(path, "%s%.100s", path->length > 0 ? "." : "",
                                 open->key ? open->key : last_key(open->node));
    }
}

/*
 * One value is wrong. Returns 0 if reading continues: the message was added to the faults, with the
 * value's path. Otherwise -EINVAL. `has_path`: the message begins with the path of the current
 * value.
 */
__attribute__((format(printf, 5, 6))) static int fault(struct fleet_yaml_reader *reader,
                                                       yaml_mark_t mark, bool has_path,
                                                       struct fleet_error *err, const char *format,
                                                       ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, text = {0};
    va_list args;

    if (has_path)
        append_path(reader, &path);
    fleet_strbuf_appendf(&text, "line %zu, column %zu: %.200s%s", mark.line + 1, mark.column + 1,
                         fleet_strbuf_text(&path), path.length > 0 ? ": " : "");
    va_start(args, format);
    fleet_strbuf_appendv(&text, format, args);
    va_end(args);
    if (!reader->faults)
        return fleet_error(err, -EINVAL, "%s", text.text);
    if (cJSON_GetArraySize(reader->documents) == reader->faulty)
        fleet_errors_add(reader->faults, fleet_strbuf_text(&path), "%s", text.text);
    return 0;
}

/* The replacement for a value that could not be read. No decoder accepts it. */
static cJSON *create_unreadable(void)
{
    return fleet_json_new_number(INFINITY);
}

static int take_key(struct fleet_yaml_reader *reader, const char *text, yaml_mark_t mark,
                    struct fleet_error *err)
{
    struct fleet_yaml_open *open = top(reader);

    fleet_assert(open);
    open->is_duplicate = cJSON_GetObjectItemCaseSensitive(open->node, text) != NULL;
    if (open->is_duplicate &&
        fault(reader, mark, false, err, "duplicate key \"%.100s\", first on line %zu", text,
              (size_t)(uintptr_t)fleet_map_get(&open->lines, text)) < 0)
        return -EINVAL;
    if (!open->is_duplicate)
        (void)fleet_map_set(&open->lines, text, (void *)(uintptr_t)(mark.line + 1)); /* NOLINT */
    if (++open->key_count > FLEET_YAML_KEY_MAX)
        return fleet_yaml_refuse_at(mark, err, "more than 4096 keys in one mapping", NULL);
    open->key = fleet_dup_text(text);
    return 0;
}

/* Put a value into its container. Takes ownership of `value` in every case. */
static int place_value(struct fleet_yaml_reader *reader, cJSON *value, yaml_mark_t mark,
                       struct fleet_error *err)
{
    struct fleet_yaml_open *open = top(reader);

    if (!open) {
        reader->root = value;
        return 0;
    }
    if (cJSON_IsArray(open->node)) {
        fleet_json_add(open->node, value);
        return 0;
    }
    if (!open->key) {
        cJSON_Delete(value);
        return fleet_yaml_refuse_at(mark, err, "a key must be a single word or text", NULL);
    }
    if (open->is_duplicate)
        fleet_json_add(reader->aside, value);
    else
        fleet_json_set_new(open->node, open->key, value);
    free(open->key);
    open->key = NULL;
    return 0;
}

static void remember_anchor(struct fleet_yaml_reader *reader, const char *anchor, cJSON *value)
{
    if (anchor)
        (void)fleet_map_set(&reader->anchors, anchor, value);
}

static bool is_string_tag(const char *tag)
{
    return strcmp(tag, "!") == 0 || strcmp(tag, TAG_PREFIX "str") == 0;
}

/* Does `value` have the type of the tag? With NULL: is the tag known at all? */
static bool is_tag_of(const char *tag, const cJSON *value)
{
    if (is_string_tag(tag))
        return !value || cJSON_IsString(value);
    if (strcmp(tag, TAG_PREFIX "int") == 0 || strcmp(tag, TAG_PREFIX "float") == 0)
        return !value || cJSON_IsNumber(value);
    if (strcmp(tag, TAG_PREFIX "bool") == 0)
        return !value || cJSON_IsBool(value);
    return strcmp(tag, TAG_PREFIX "null") == 0 && (!value || cJSON_IsNull(value));
}

/* The value of a scalar that is not a key; NULL if it is wrong and reading ends. */
static cJSON *make_scalar(struct fleet_yaml_reader *reader, const yaml_event_t *event,
                          struct fleet_error *err)
{
    const char *text = (const char *)event->data.scalar.value;
    const char *tag = (const char *)event->data.scalar.tag;
    yaml_mark_t mark = event->start_mark;
    cJSON *value;
    int rc = 0;

    if (tag && !is_tag_of(tag, NULL))
        return fault(reader, mark, true, err, "unknown tag \"%.100s\"", tag) == 0
                   ? create_unreadable()
                   : NULL;
    if (tag ? is_string_tag(tag) : event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        value = fleet_json_new_string(text);
    else
        value = fleet_yaml_plain(text);
    if (value && (!tag || is_tag_of(tag, value)))
        return value;
    if (value)
        rc = fault(reader, mark, true, err, "the value is not what its tag says: \"%.100s\"", tag);
    else
        rc = fault(reader, mark, true, err, "must be a finite number, not %.100s", text);
    cJSON_Delete(value);
    return rc == 0 ? create_unreadable() : NULL;
}

static int read_scalar(struct fleet_yaml_reader *reader, const yaml_event_t *event,
                       struct fleet_error *err)
{
    const char *text = (const char *)event->data.scalar.value;
    const char *anchor = (const char *)event->data.scalar.anchor;
    bool is_key = wants_key(reader);
    cJSON *value;

    if (strlen(text) != event->data.scalar.length &&
        fault(reader, event->start_mark, true, err, "a NUL character in a string: leave it out") <
            0)
        return -EINVAL;
    if (is_key && anchor &&
        fault(reader, event->start_mark, false, err, "an anchor on a key is not supported") < 0)
        return -EINVAL;
    if (is_key)
        return take_key(reader, text, event->start_mark, err);
    value = make_scalar(reader, event, err);
    if (!value)
        return -EINVAL;
    remember_anchor(reader, anchor, value);
    return place_value(reader, value, event->start_mark, err);
}

static int read_alias(struct fleet_yaml_reader *reader, const yaml_event_t *event,
                      struct fleet_error *err)
{
    const char *name = (const char *)event->data.alias.anchor;
    const cJSON *named = fleet_map_get(&reader->anchors, name);
    cJSON *copy;

    if (!named) {
        if (fault(reader, event->start_mark, true, err,
                  "no complete value has the anchor \"%.100s\"", name) < 0)
            return -EINVAL;
        return place_value(reader, create_unreadable(), event->start_mark, err);
    }
    if (count_more(reader, count_nodes(named), event->start_mark, err) < 0)
        return -EINVAL;
    copy = fleet_json_copy(named);
    return place_value(reader, copy, event->start_mark, err);
}

static int open_container(struct fleet_yaml_reader *reader, cJSON *node, const yaml_char_t *anchor,
                          yaml_mark_t mark, struct fleet_error *err)
{
    fleet_assert(node != NULL);
    if (reader->depth == FLEET_YAML_DEPTH_MAX) {
        cJSON_Delete(node);
        return fleet_yaml_refuse_at(mark, err, "nested deeper than 64", NULL);
    }
    if (place_value(reader, node, mark, err) < 0)
        return -EINVAL;
    reader->stack[reader->depth] = (struct fleet_yaml_open){.node = node};
    if (anchor) {
        /* If an anchor is defined again, its new value cannot refer to its old one. */
        (void)fleet_map_remove(&reader->anchors, (const char *)anchor);
        reader->stack[reader->depth].anchor = fleet_dup_text((const char *)anchor);
    }
    reader->depth++;
    return 0;
}

/* Add the keys that `mapping` lacks. False if `from` is not a mapping. */
static bool merge(cJSON *mapping, const cJSON *from)
{
    const cJSON *item;

    if (!cJSON_IsObject(from))
        return false;
    cJSON_ArrayForEach(item, from)
    {
        if (cJSON_GetObjectItemCaseSensitive(mapping, item->string))
            continue;
        fleet_json_set(mapping, item->string, fleet_json_copy(item));
    }
    return true;
}

/* << names one mapping or a list of them; the first one that has a key provides it. */
static int apply_merges(struct fleet_yaml_reader *reader, cJSON *mapping, yaml_mark_t mark,
                        struct fleet_error *err)
{
    cJSON *from = cJSON_DetachItemFromObjectCaseSensitive(mapping, "<<");
    const cJSON *element;
    bool good = true;

    if (!from)
        return 0;
    fleet_json_add(reader->aside, from);
    if (cJSON_IsArray(from))
        cJSON_ArrayForEach(element, from) good = good && merge(mapping, element);
    else
        good = merge(mapping, from);
    if (!good)
        return fault(reader, mark, false, err, "<< must name a mapping or a list of mappings");
    if (cJSON_GetArraySize(mapping) > FLEET_YAML_KEY_MAX)
        return fleet_yaml_refuse_at(mark, err, "more than 4096 keys in one mapping", NULL);
    return 0;
}

void fleet_yaml_release_open(struct fleet_yaml_open *open)
{
    free(open->key);
    free(open->anchor);
    fleet_map_release(&open->lines);
}

static int close_container(struct fleet_yaml_reader *reader, yaml_mark_t mark,
                           struct fleet_error *err)
{
    struct fleet_yaml_open *open = top(reader);

    fleet_assert(open);
    if (cJSON_IsObject(open->node) && apply_merges(reader, open->node, mark, err) < 0)
        return -EINVAL;
    remember_anchor(reader, open->anchor, open->node);
    fleet_yaml_release_open(open);
    reader->depth--;
    return 0;
}

/* A document without a value, such as an empty file or one between two lines of "---", is
 * ignored. */
static int close_document(struct fleet_yaml_reader *reader, yaml_mark_t mark,
                          struct fleet_error *err)
{
    if (reader->root && !cJSON_IsNull(reader->root)) {
        if (reader->is_single && cJSON_GetArraySize(reader->documents) > 0)
            return fleet_yaml_refuse_at(reader->document, err, "a second document; one is expected",
                                        NULL);
        if (cJSON_GetArraySize(reader->documents) >= FLEET_YAML_DOCUMENT_MAX)
            return fleet_yaml_refuse_at(mark, err, "more than 1000 documents", NULL);
        fleet_json_add(reader->documents, reader->root);
    } else {
        cJSON_Delete(reader->root);
    }
    reader->root = NULL;
    fleet_map_release(&reader->anchors); /* they refer to values of one document */
    return 0;
}

int fleet_yaml_take_event(struct fleet_yaml_reader *reader, const yaml_event_t *event,
                          struct fleet_error *err)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        if (count_more(reader, 1, event->start_mark, err) < 0)
            return -EINVAL;
        return read_scalar(reader, event, err);
    case YAML_ALIAS_EVENT:
        return read_alias(reader, event, err);
    case YAML_MAPPING_START_EVENT:
        if (count_more(reader, 1, event->start_mark, err) < 0)
            return -EINVAL;
        return open_container(reader, fleet_json_new_object(), event->data.mapping_start.anchor,
                              event->start_mark, err);
    case YAML_SEQUENCE_START_EVENT:
        if (count_more(reader, 1, event->start_mark, err) < 0)
            return -EINVAL;
        return open_container(reader, fleet_json_new_list(), event->data.sequence_start.anchor,
                              event->start_mark, err);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        return close_container(reader, event->start_mark, err);
    case YAML_DOCUMENT_START_EVENT:
        reader->document = event->start_mark;
        return 0;
    case YAML_DOCUMENT_END_EVENT:
        return close_document(reader, event->start_mark, err);
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
        break;
    }
    return 0;
}
