/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Reads a text into documents: JSON by the strict reader, everything else by libyaml, whose events
 * yaml_tree.c converts to a tree.
 */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <yaml.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/map.h"
#include "libfleet/base/yaml_internal.h"

static int read_events(struct fleet_yaml_reader *reader, const char *text, size_t size,
                       struct fleet_error *err)
{
    for (bool done = false; !done;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&reader->parser, &event))
            return fleet_yaml_refuse_parser(&reader->parser, text, size, err);
        int rc = fleet_yaml_take_event(reader, &event, err);
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

/* Try the strict reader first: it knows escapes of JSON that YAML does not have. */
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

/* Some editors begin a UTF-8 file with a byte order mark; kubectl also skips it. Other encodings
 * are refused by name. */
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

struct manner {
    bool is_single;
    struct fleet_errors *faults; /* as in struct fleet_yaml_reader */
    int faulty;
};

static int read_documents(const char *text, size_t size, const struct manner *manner, cJSON **out,
                          struct fleet_error *err)
{
    struct fleet_yaml_reader reader = {
        .is_single = manner->is_single, .faults = manner->faults, .faulty = manner->faulty};
    int rc;

    if (!yaml_parser_initialize(&reader.parser))
        return fleet_error(err, -ENOMEM, "no memory for the YAML parser");
    reader.aside = fleet_json_new_list();
    reader.documents = fleet_json_new_list();
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, size);
    rc = read_events(&reader, text, size, err);
    while (reader.depth > 0)
        fleet_yaml_release_open(&reader.stack[--reader.depth]);
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

static int read_all(const char *text, size_t size, const struct manner *manner, cJSON **out,
                    struct fleet_error *err)
{
    cJSON *json = NULL;

    if (size > FLEET_YAML_SIZE_MAX)
        return fleet_error(err, -EFBIG, "%zu bytes are more than the limit of %d", size,
                           FLEET_YAML_SIZE_MAX);
    if (skip_mark(&text, &size, err) < 0)
        return -EINVAL;
    if (!read_json(text, size, &json))
        return read_documents(text, size, manner, out, err);
    *out = fleet_json_new_list();
    fleet_json_add(*out, json);
    return 0;
}

int fleet_yaml_documents(const char *text, size_t size, cJSON **out, struct fleet_error *err)
{
    return read_all(text, size, &(struct manner){0}, out, err);
}

int fleet_yaml_tolerate(const char *text, size_t size, int number, cJSON **out,
                        struct fleet_errors *faults, struct fleet_error *err)
{
    return read_all(text, size, &(struct manner){.faults = faults, .faulty = number}, out, err);
}

int fleet_yaml_to_json(const char *text, size_t size, cJSON **out, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *documents = NULL;
    int rc = read_all(text, size, &(struct manner){.is_single = true}, &documents, err);

    if (rc == 0)
        *out = cJSON_DetachItemFromArray(documents, 0);
    return rc;
}
