/* SPDX-License-Identifier: Apache-2.0 */

/* Paths of Kubernetes: /api/v1/… and /apis/group/version/…, with or without a namespace. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "tests/fake/apiserver_internal.h"

static char *decode_percent(const char *text, size_t size)
{
    struct fleet_strbuf out = {0};

    if (!memchr(text, '%', size))
        return strndup(text, size);
    fleet_strbuf_append(&out, "");
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '%' && i + 2 < size && isxdigit((unsigned char)text[i + 1]) &&
            isxdigit((unsigned char)text[i + 2])) {
            char digits[3] = {text[i + 1], text[i + 2], 0};
            fleet_strbuf_append_char(&out, (char)strtol(digits, NULL, 16));
            i += 2;
        } else {
            fleet_strbuf_append_char(&out, text[i]);
        }
    }
    return fleet_strbuf_take(&out);
}

static void read_query(const char *query, struct fleet_map *out)
{
    while (*query) {
        size_t size = strcspn(query, "&"), name = strcspn(query, "=&");
        FLEET_AUTO_FREE char *key = decode_percent(query, name);
        char *value = name < size ? decode_percent(query + name + 1, size - name - 1) : strdup("");
        free(fleet_map_set(out, key, value));
        query += size + (query[size] == '&');
    }
}

/* The next part of a path, "" at its end. */
static char *next_part(const char **p, const char *end)
{
    const char *start = *p + (*p < end && **p == '/');
    const char *slash = memchr(start, '/', (size_t)(end - start));
    const char *stop = slash ? slash : end;

    *p = stop;
    return decode_percent(start, (size_t)(stop - start));
}

void fake_address_release(struct fake_address *a)
{
    const struct fleet_map_entry *entry;

    free(a->collection);
    free(a->namespace_);
    free(a->name);
    free(a->subresource);
    for (size_t i = 0; (entry = fleet_map_next(&a->query, &i));)
        free(entry->value);
    fleet_map_release(&a->query);
}

const char *fake_address_parameter(const struct fake_address *a, const char *name)
{
    const char *value = fleet_map_get(&a->query, name);

    return value ? value : "";
}

static void append_part(struct fleet_strbuf *path, const char *part)
{
    fleet_strbuf_append_char(path, '/');
    fleet_strbuf_append(path, part);
}

/* False: not an API path. */
bool fake_address_read(const char *path, struct fake_address *out)
{
    const char *query = strchr(path, '?'), *p = path;
    const char *end = query ? query : path + strlen(path);
    struct fleet_strbuf collection = {0};
    char *part;
    bool core;

    *out = (struct fake_address){0};
    part = next_part(&p, end);
    core = strcmp(part, "api") == 0;
    append_part(&collection, part);
    free(part);
    for (int i = 0; i < (core ? 1 : 2); i++) {
        part = next_part(&p, end);
        append_part(&collection, part);
        free(part);
    }
    part = next_part(&p, end);
    out->namespace_ = strdup("");
    if (strcmp(part, "namespaces") == 0 &&
        memchr(p + (p < end), '/', (size_t)(end - p - (p < end)))) {
        free(part);
        free(out->namespace_);
        out->namespace_ = next_part(&p, end);
        part = next_part(&p, end);
    }
    append_part(&collection, part);
    out->name = next_part(&p, end);
    out->subresource = next_part(&p, end);
    out->collection = fleet_strbuf_take(&collection);
    if (query)
        read_query(query + 1, &out->query);
    out->watch = strcmp(fake_address_parameter(out, "watch"), "true") == 0;
    core = *part != '\0' && p == end;
    free(part);
    return core;
}

char *fake_address_key(const char *collection, const char *namespace_, const char *name)
{
    struct fleet_strbuf key = {0};

    fleet_strbuf_append(&key, collection);
    fleet_strbuf_append_char(&key, '|');
    fleet_strbuf_append(&key, namespace_);
    fleet_strbuf_append_char(&key, '|');
    fleet_strbuf_append(&key, name);
    return fleet_strbuf_take(&key);
}
