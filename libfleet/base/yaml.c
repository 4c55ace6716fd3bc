/* SPDX-License-Identifier: Apache-2.0 */

/*
 * libyaml's events become a cJSON tree on an explicit stack of open containers, so nesting costs no
 * C stack. What is wrong with one value is a fault: reading goes on behind it if the caller takes
 * faults. What libyaml refuses, and limits, end the reading. An alias is a copy of the subtree its
 * anchor names; the copy is counted before it is made, which bounds what a few lines of nested
 * aliases can grow into.
 */
#include "libfleet/base/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"
#include "libfleet/base/strbuf.h"

#define TAG_PREFIX "tag:yaml.org,2002:"

/* A mapping or sequence whose end has not come yet. */
struct open {
    cJSON *node;            /* owned by its parent, the root by the reader */
    char *key;              /* mapping: read and waiting for its value, else NULL */
    int key_count;          /* mapping */
    struct fleet_map lines; /* mapping: key → the line that it stands on, as a pointer */
    char *anchor;           /* its own, usable once it is complete, or NULL */
    bool is_duplicate;      /* mapping: `key` stood there before, so its value goes aside */
};

struct reader {
    yaml_parser_t parser;
    cJSON *root;      /* of the document that is being read */
    cJSON *documents; /* list of those that were read */
    cJSON *aside;     /* list of values of << and of duplicate keys: anchors may stand in them */
    struct open stack[FLEET_YAML_DEPTH_MAX];
    int depth;
    size_t node_count;
    bool is_single; /* a second document is an error */
    struct fleet_errors
        *faults; /* of document number `faulty`, from 0; NULL: the first is an error */
    int faulty;
    yaml_mark_t document;     /* where the one that is being read begins */
    struct fleet_map anchors; /* name → cJSON * in the tree */
};

static int refuse_at(yaml_mark_t mark, struct fleet_error *err, const char *what, const char *word)
{
    return fleet_error(err, -EINVAL, "line %zu, column %zu: %s%s%.100s%s", mark.line + 1,
                       mark.column + 1, what, word ? " \"" : "", word ? word : "",
                       word ? "\"" : "");
}

/* libyaml gives the place of broken characters in bytes only. */
static yaml_mark_t mark_of_byte(const char *text, size_t offset)
{
    yaml_mark_t mark = {0};

    for (size_t i = 0; i < offset; i++) {
        mark.column++;
        if (text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

/* Is this character of the text a tab? */
static bool is_tab_at(const char *text, size_t size, size_t index)
{
    for (size_t at = 0; at < size; at++) {
        bool is_start =
            ((unsigned char)text[at] & 0xc0) != 0x80; /* the index counts characters, not bytes */
        if (is_start && index-- == 0)
            return text[at] == '\t';
    }
    return false;
}

/* libyaml's words, and ours for people who do not know its terms. */
static const struct {
    const char *problem, *context; /* what libyaml's begin with; "" = any */
    const char *words;
    bool at_start; /* blamed is where the thing begins, not where libyaml gave up */
} known_problems[] = {
    {"could not find expected ':'", "", "a key without a colon: \"key: value\" is expected", true},
    {"mapping values are not allowed", "",
     "a colon that is not expected here: indent the line like its neighbours, or put quotes around "
     "a text that has \": \" in it",
     false},
    {"block sequence entries are not allowed", "",
     "a \"- \" that is not expected here: a list begins on a line of its own", false},
    {"did not find expected ',' or '}'", "", "\"{\" is not closed: \",\" or \"}\" is expected",
     true},
    {"did not find expected ',' or ']'", "", "\"[\" is not closed: \",\" or \"]\" is expected",
     true},
    {"did not find expected node content", "", "a value is missing, or a bracket is not closed",
     false},
    {"found unexpected end of stream", "while scanning a quoted", "a quote is not closed", true},
    {"found unexpected document indicator", "while scanning a quoted", "a quote is not closed",
     true},
    {"did not find expected key", "",
     "the indentation fits no mapping that is open: a key is expected", false},
    {"did not find expected '-' indicator", "",
     "the indentation fits no list that is open: \"- \" is expected", false},
    {"did not find expected <document start>", "",
     "text after the end of the document; \"---\" begins another one", false},
    {"found character that cannot start any token", "",
     "this character cannot begin a value: put quotes around the text", false},
    {"invalid ", "", "bytes that are no UTF-8: save the file as UTF-8", false},
    {"incomplete UTF-8", "", "bytes that are no UTF-8: save the file as UTF-8", false},
    {"control characters are not allowed", "", "a control character: take it out", false},
};

static bool begins(const char *text, const char *front)
{
    return strncmp(text ? text : "", front, strlen(front)) == 0;
}

static int refuse_parser(const yaml_parser_t *parser, const char *text, size_t size,
                         struct fleet_error *err)
{
    yaml_mark_t mark = parser->error == YAML_READER_ERROR
                           ? mark_of_byte(text, parser->problem_offset)
                           : parser->problem_mark;
    FLEET_AUTO_STRBUF struct fleet_strbuf words = {0};

    if (parser->error == YAML_SCANNER_ERROR && is_tab_at(text, size, parser->problem_mark.index))
        return refuse_at(mark, err, "a tab: indent with spaces", NULL);
    for (size_t i = 0; i < FLEET_COUNT(known_problems); i++)
        if (begins(parser->problem, known_problems[i].problem) &&
            begins(parser->context, known_problems[i].context))
            return refuse_at(known_problems[i].at_start ? parser->context_mark : mark, err,
                             known_problems[i].words, NULL);
    fleet_strbuf_append(&words, parser->problem ? parser->problem : "not YAML");
    if (parser->context)
        fleet_strbuf_appendf(&words, " %s", parser->context);
    return refuse_at(mark, err, words.text, NULL);
}

/* ---- plain scalars ------------------------------------------------------------------------- */

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

/* Integers as in Go: an optional sign, then 0x, 0o or 0, 0b, or decimal digits. */
static bool read_integer(const char *text, double *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    int base = 10;
    char *end;

    if (!isdigit((unsigned char)*digits))
        return false;
    if (digits[0] == '0' && digits[1]) {
        int letter = tolower((unsigned char)digits[1]);
        base = letter == 'x' ? 16 : letter == 'b' ? 2 : 8;
        digits += letter == 'x' || letter == 'b' || letter == 'o' ? 2 : 1;
    }
    if (!isxdigit((unsigned char)*digits))
        return false;
    errno = 0;
    unsigned long long value = strtoull(digits, &end, base);
    if (*end || errno)
        return false;
    *out = *text == '-' ? -(double)value : (double)value;
    return true;
}

/* [-+]? ( .digits | digits [. digits*] ) [e [-+] digits] */
static bool is_decimal(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    size_t before = strspn(p, "0123456789"), after = 0;

    p += before;
    if (*p == '.') {
        after = strspn(p + 1, "0123456789");
        p += 1 + after;
    }
    if (before + after == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '-' || p[1] == '+');
        size_t digits = strspn(p, "0123456789");
        if (digits == 0)
            return false;
        p += digits;
    }
    return *p == '\0';
}

static char *without_underscores(const char *text)
{
    struct fleet_strbuf out = {0};

    for (; *text; text++)
        if (*text != '_')
            fleet_strbuf_append_char(&out, *text);
    return fleet_strbuf_take(&out);
}

/* Spelled with a point or an exponent; kept for fleet_json_float_spelling(). */
static cJSON *create_float(double value, const char *text)
{
    cJSON *json = fleet_json_new_number(value);

    fleet_json_set_float_spelling(json, text, strlen(text));
    return json;
}

/* Spelled as YAML 1.1 does; kept for fleet_json_bool_spelling(). */
static cJSON *create_bool(bool value, const char *text)
{
    cJSON *json = fleet_json_new_bool(value);

    if (strcasecmp(text, value ? "true" : "false") != 0)
        fleet_json_set_bool_spelling(json, text);
    return json;
}

/* What a plain scalar means; NULL if JSON cannot say it. */
static cJSON *resolve_plain(const char *text)
{
    static const char *const yes[] = {"y",    "Y",    "yes", "Yes", "YES", "true",
                                      "True", "TRUE", "on",  "On",  "ON",  NULL};
    static const char *const no[] = {"n",     "N",     "no",  "No",  "NO",  "false",
                                     "False", "FALSE", "off", "Off", "OFF", NULL};
    static const char *const nothing[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const not_finite[] = {".nan",  ".NaN",  ".NAN",  ".inf",  ".Inf",
                                             ".INF",  "+.inf", "+.Inf", "+.INF", "-.inf",
                                             "-.Inf", "-.INF", NULL};
    FLEET_AUTO_FREE char *digits = NULL;
    double value;

    if (is_one_of(text, nothing))
        return cJSON_CreateNull();
    if (is_one_of(text, yes))
        return create_bool(true, text);
    if (is_one_of(text, no))
        return create_bool(false, text);
    if (is_one_of(text, not_finite))
        return NULL;
    if (!isdigit((unsigned char)*text) && !strchr("+-.", *text))
        return fleet_json_new_string(text);
    digits = without_underscores(text);
    if (read_integer(digits, &value))
        return fleet_json_new_number(value);
    if (!is_decimal(digits))
        return fleet_json_new_string(text);
    value = strtod(digits, NULL);
    return isfinite(value) ? create_float(value, text) : NULL;
}

/* ---- building the tree --------------------------------------------------------------------- */

/* Values below and including `item`; its depth is bounded by the stack that built it. */
static size_t count_nodes(const cJSON *item)
{
    size_t count = 1;

    for (const cJSON *child = item->child; child; child = child->next)
        count += count_nodes(child);
    return count;
}

static int count_more(struct reader *reader, size_t more, yaml_mark_t mark, struct fleet_error *err)
{
    reader->node_count += more;
    if (reader->node_count > FLEET_YAML_NODE_MAX)
        return refuse_at(mark, err, "more values than fit the limit of 100000", NULL);
    return 0;
}

static struct open *top(struct reader *reader)
{
    return reader->depth ? &reader->stack[reader->depth - 1] : NULL;
}

/* Does the next scalar become a key? */
static bool wants_key(struct reader *reader)
{
    struct open *open = top(reader);

    return open && cJSON_IsObject(open->node) && !open->key;
}

static const char *last_key(const cJSON *mapping)
{
    return mapping->child ? mapping->child->prev->string : "";
}

/* Where the reader stands, as "spec.training.optimizer.learningRate". */
static void append_path(const struct reader *reader, struct fleet_strbuf *path)
{
    for (int i = 0; i < reader->depth; i++) {
        const struct open *open = &reader->stack[i];
        if (cJSON_IsArray(open->node))
            fleet_strbuf_appendf(path, "[%d]",
                                 cJSON_GetArraySize(open->node) - (i + 1 < reader->depth));
        else if (open->key || i + 1 < reader->depth)
            fleet_strbuf_appendf(path, "%s%.100s", path->length > 0 ? "." : "",
                                 open->key ? open->key : last_key(open->node));
    }
}

/*
 * One value is wrong: 0 if reading goes on, and `format` has been noted with the value's path, else
 * -EINVAL. `path` is put before the words where the reader stands at a value.
 */
__attribute__((format(printf, 5, 6))) static int fault(struct reader *reader, yaml_mark_t mark,
                                                       bool has_path, struct fleet_error *err,
                                                       const char *format, ...)
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

/* Stands for a value that could not be read: no decoder takes it. */
static cJSON *create_unreadable(void)
{
    return fleet_json_new_number(INFINITY);
}

static int take_key(struct reader *reader, const char *text, yaml_mark_t mark,
                    struct fleet_error *err)
{
    struct open *open = top(reader);

    fleet_assert(open);
    open->is_duplicate = cJSON_GetObjectItemCaseSensitive(open->node, text) != NULL;
    if (open->is_duplicate &&
        fault(reader, mark, false, err, "duplicate key \"%.100s\", first on line %zu", text,
              (size_t)(uintptr_t)fleet_map_get(&open->lines, text)) < 0)
        return -EINVAL;
    if (!open->is_duplicate)
        (void)fleet_map_set(&open->lines, text, (void *)(uintptr_t)(mark.line + 1)); /* NOLINT */
    if (++open->key_count > FLEET_YAML_KEY_MAX)
        return refuse_at(mark, err, "more than 4096 keys in one mapping", NULL);
    open->key = fleet_dup_text(text);
    return 0;
}

/* Put a value where it belongs. Takes ownership of `value` in every case. */
static int place_value(struct reader *reader, cJSON *value, yaml_mark_t mark,
                       struct fleet_error *err)
{
    struct open *open = top(reader);

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
        return refuse_at(mark, err, "a key must be a single word or text", NULL);
    }
    if (open->is_duplicate)
        fleet_json_add(reader->aside, value);
    else
        fleet_json_set_new(open->node, open->key, value);
    free(open->key);
    open->key = NULL;
    return 0;
}

static void remember_anchor(struct reader *reader, const char *anchor, cJSON *value)
{
    if (anchor)
        (void)fleet_map_set(&reader->anchors, anchor, value);
}

static bool is_string_tag(const char *tag)
{
    return strcmp(tag, "!") == 0 || strcmp(tag, TAG_PREFIX "str") == 0;
}

/* Is `value` what the tag says? With NULL: is the tag known at all? */
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

/* The value of a scalar that is no key; NULL if it is wrong and reading ends. */
static cJSON *make_scalar(struct reader *reader, const yaml_event_t *event, struct fleet_error *err)
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
        value = resolve_plain(text);
    if (value && (!tag || is_tag_of(tag, value)))
        return value;
    if (value)
        rc = fault(reader, mark, true, err, "the value is not what its tag says: \"%.100s\"", tag);
    else
        rc = fault(reader, mark, true, err, "must be a finite number, not %.100s", text);
    cJSON_Delete(value);
    return rc == 0 ? create_unreadable() : NULL;
}

static int read_scalar(struct reader *reader, const yaml_event_t *event, struct fleet_error *err)
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

static int read_alias(struct reader *reader, const yaml_event_t *event, struct fleet_error *err)
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

static int open_container(struct reader *reader, cJSON *node, const yaml_char_t *anchor,
                          yaml_mark_t mark, struct fleet_error *err)
{
    fleet_assert(node != NULL);
    if (reader->depth == FLEET_YAML_DEPTH_MAX) {
        cJSON_Delete(node);
        return refuse_at(mark, err, "nested deeper than 64", NULL);
    }
    if (place_value(reader, node, mark, err) < 0)
        return -EINVAL;
    reader->stack[reader->depth] = (struct open){.node = node};
    if (anchor) {
        /* A name that is being defined again no longer names the old value inside itself. */
        (void)fleet_map_remove(&reader->anchors, (const char *)anchor);
        reader->stack[reader->depth].anchor = fleet_dup_text((const char *)anchor);
    }
    reader->depth++;
    return 0;
}

/* Add the keys that `mapping` does not have itself. False if `from` is no mapping. */
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

/* << names one mapping or a list of them; the first that has a key gives it. */
static int apply_merges(struct reader *reader, cJSON *mapping, yaml_mark_t mark,
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
        return refuse_at(mark, err, "more than 4096 keys in one mapping", NULL);
    return 0;
}

static void release_open(struct open *open)
{
    free(open->key);
    free(open->anchor);
    fleet_map_release(&open->lines);
}

static int close_container(struct reader *reader, yaml_mark_t mark, struct fleet_error *err)
{
    struct open *open = top(reader);

    fleet_assert(open);
    if (cJSON_IsObject(open->node) && apply_merges(reader, open->node, mark, err) < 0)
        return -EINVAL;
    remember_anchor(reader, open->anchor, open->node);
    release_open(open);
    reader->depth--;
    return 0;
}

/* A document without a value, as an empty file or one between two lines of "---", is none. */
static int close_document(struct reader *reader, yaml_mark_t mark, struct fleet_error *err)
{
    if (reader->root && !cJSON_IsNull(reader->root)) {
        if (reader->is_single && cJSON_GetArraySize(reader->documents) > 0)
            return refuse_at(reader->document, err, "a second document; one is expected", NULL);
        if (cJSON_GetArraySize(reader->documents) >= FLEET_YAML_DOCUMENT_MAX)
            return refuse_at(mark, err, "more than 1000 documents", NULL);
        fleet_json_add(reader->documents, reader->root);
    } else {
        cJSON_Delete(reader->root);
    }
    reader->root = NULL;
    fleet_map_release(&reader->anchors); /* they name values of one document */
    return 0;
}

static int read_event(struct reader *reader, const yaml_event_t *event, struct fleet_error *err)
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

static int read_events(struct reader *reader, const char *text, size_t size,
                       struct fleet_error *err)
{
    for (bool done = false; !done;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&reader->parser, &event))
            return refuse_parser(&reader->parser, text, size, err);
        int rc = read_event(reader, &event, err);
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        if (rc < 0)
            return rc;
    }
    if (cJSON_GetArraySize(reader->documents) == 0)
        return fleet_error(err, -EINVAL,
                           "line 1, column 1: the file is empty, or has only comments");
    return 0;
}

static bool looks_like_json(const char *text, size_t size)
{
    size_t i = 0;

    while (i < size && isspace((unsigned char)text[i]))
        i++;
    return i < size && (text[i] == '{' || text[i] == '[');
}

/* The strict reader first: it knows the escapes of JSON that YAML lacks. */
static bool read_json(const char *text, size_t size, cJSON **out)
{
    FLEET_AUTO_JSON cJSON *json = NULL;

    if (!looks_like_json(text, size) || fleet_json_parse(text, size, size, &json, NULL) < 0)
        return false;
    fleet_json_keep_float_spellings(json, text, size);
    *out = json;
    json = NULL;
    return true;
}

/* Some editors begin a UTF-8 file with a byte order mark; kubectl passes over it, too. Other
 * encodings are refused by name. */
static int skip_mark(const char **text, size_t *size, struct fleet_error *err)
{
    const unsigned char *bytes = (const unsigned char *)*text;

    if (*size >= 2 &&
        ((bytes[0] == 0xff && bytes[1] == 0xfe) || (bytes[0] == 0xfe && bytes[1] == 0xff)))
        return fleet_error(err, -EINVAL, "the file is UTF-16; save it as UTF-8");
    if (*size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        *text += 3;
        *size -= 3;
    }
    return 0;
}

struct wish {
    bool is_single;
    struct fleet_errors *faults; /* as in struct reader */
    int faulty;
};

static int read_documents(const char *text, size_t size, const struct wish *wish, cJSON **out,
                          struct fleet_error *err)
{
    struct reader reader = {
        .is_single = wish->is_single, .faults = wish->faults, .faulty = wish->faulty};
    int rc;

    if (!yaml_parser_initialize(&reader.parser))
        return fleet_error(err, -ENOMEM, "no memory for the YAML parser");
    reader.aside = fleet_json_new_list();
    reader.documents = fleet_json_new_list();
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, size);
    rc = read_events(&reader, text, size, err);
    while (reader.depth > 0)
        release_open(&reader.stack[--reader.depth]);
    fleet_map_release(&reader.anchors);
    cJSON_Delete(reader.aside);
    cJSON_Delete(reader.root);
    yaml_parser_delete(&reader.parser);
    if (rc < 0)
        cJSON_Delete(reader.documents);
    else
        *out = reader.documents;
    return rc;
}

static int read_all(const char *text, size_t size, const struct wish *wish, cJSON **out,
                    struct fleet_error *err)
{
    cJSON *json = NULL;

    if (size > FLEET_YAML_SIZE_MAX)
        return fleet_error(err, -EFBIG, "%zu bytes are more than the limit of %d", size,
                           FLEET_YAML_SIZE_MAX);
    if (skip_mark(&text, &size, err) < 0)
        return -EINVAL;
    if (!read_json(text, size, &json))
        return read_documents(text, size, wish, out, err);
    *out = fleet_json_new_list();
    fleet_json_add(*out, json);
    return 0;
}

int fleet_yaml_documents(const char *text, size_t size, cJSON **out, struct fleet_error *err)
{
    return read_all(text, size, &(struct wish){0}, out, err);
}

int fleet_yaml_tolerate(const char *text, size_t size, int number, cJSON **out,
                        struct fleet_errors *faults, struct fleet_error *err)
{
    return read_all(text, size, &(struct wish){.faults = faults, .faulty = number}, out, err);
}

int fleet_yaml_to_json(const char *text, size_t size, cJSON **out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *documents = NULL;
    int rc = read_all(text, size, &(struct wish){.is_single = true}, &documents, err);

    if (rc == 0)
        *out = cJSON_DetachItemFromArray(documents, 0);
    return rc;
}
