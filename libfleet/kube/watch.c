/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A line that is complete within one piece of the stream is parsed in place. Only the rest after
 * the last line end is copied.
 */
#include "libfleet/kube/watch.h"

#include <errno.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/slim.h"

void kube_watch_parser_release(struct kube_watch_parser *parser)
{
    fleet_strbuf_release(&parser->line);
    parser->failed = false;
}

static bool is_blank(const char *line, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!strchr(" \t\r", line[i]) || line[i] == '\0')
            return false;
    return true;
}

static int type_from_name(const char *name)
{
    static const char *const names[] = {
        [KUBE_WATCH_ADDED] = "ADDED",
        [KUBE_WATCH_MODIFIED] = "MODIFIED",
        [KUBE_WATCH_DELETED] = "DELETED",
        [KUBE_WATCH_BOOKMARK] = "BOOKMARK",
    };

    for (size_t i = 0; i < FLEET_COUNT(names); i++)
        if (strcmp(names[i], name) == 0)
            return (int)i;
    return -1;
}

/* An ERROR event: its object is a Status. */
static int refuse(const cJSON *status, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = fleet_json_print(status);

    return kube_api_error_decode(500, text, strlen(text), err);
}

static int take_line(const char *line, size_t size, kube_watch_event *event, void *user,
                     struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf slim = {0};
    FLEET_AUTO_JSON cJSON *root = NULL;
    const cJSON *object;
    const char *name;
    int rc, type;

    if (is_blank(line, size))
        return 0;
    (void)kube_slim(line, size, &slim);
    if (fleet_json_parse_foreign(fleet_strbuf_text(&slim), slim.length, KUBE_WATCH_LINE_MAX, &root,
                                 err) < 0)
        return fleet_error_wrap(err, "decode watch event");
    object = cJSON_GetObjectItemCaseSensitive(root, "object");
    if ((rc = fleet_json_get_string(root, "type", &name, err)) < 0)
        return fleet_error(err, -EINVAL, "decode watch event: type: is missing or not a string");
    if (!cJSON_IsObject(object))
        return fleet_error(err, -EINVAL, "decode watch event: object: is missing or not an object");
    if (strcmp(name, "ERROR") == 0)
        return refuse(object, err);
    if ((type = type_from_name(name)) < 0)
        return fleet_error(err, -EINVAL, "decode watch event: type \"%.40s\" is not known", name);
    return event(user, (enum kube_watch_type)type, object, err);
}

static int feed(struct kube_watch_parser *parser, const char *p, size_t size,
                kube_watch_event *event, void *user, struct fleet_error *err)
{
    const char *end = p + size, *newline;
    int rc;

    while (p < end && (newline = memchr(p, '\n', (size_t)(end - p)))) {
        size_t part = (size_t)(newline - p);
        if (parser->line.length > 0) {
            if (parser->line.length + part > KUBE_WATCH_LINE_MAX)
                break; /* refused below */
            fleet_strbuf_append_bytes(&parser->line, p, part);
            rc = take_line(parser->line.text, parser->line.length, event, user, err);
            fleet_strbuf_clear(&parser->line);
        } else {
            rc = take_line(p, part, event, user, err);
        }
        if (rc < 0)
            return rc;
        p = newline + 1;
    }
    if (parser->line.length + (size_t)(end - p) > KUBE_WATCH_LINE_MAX)
        return kube_error(err, KUBE_ERROR_ANSWER_TOO_LARGE,
                          "decode watch event: a line is over %u bytes", KUBE_WATCH_LINE_MAX);
    if (p < end)
        fleet_strbuf_append_bytes(&parser->line, p, (size_t)(end - p));
    return 0;
}

int kube_watch_feed(struct kube_watch_parser *parser, const void *bytes, size_t size,
                    kube_watch_event *event, void *user, struct fleet_error *err)
{
    int rc;

    if (parser->failed)
        return fleet_error(err, -EINVAL, "the watch has failed before");
    rc = feed(parser, bytes, size, event, user, err);
    if (rc < 0) {
        fleet_strbuf_release(&parser->line);
        parser->failed = true;
    }
    return rc;
}

int kube_watch_finish(const struct kube_watch_parser *parser, struct fleet_error *err)
{
    if (!parser->failed && !is_blank(fleet_strbuf_text(&parser->line), parser->line.length))
        return fleet_error(err, -EINVAL, "the watch ended in the middle of an event");
    return 0;
}
