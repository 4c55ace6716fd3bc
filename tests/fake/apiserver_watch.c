/* SPDX-License-Identifier: Apache-2.0 */

/* Lists with selectors and pages, and watches: positions in the list of events. */
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver_internal.h"

/* "a=b,c!=d,e" over labels, or dotted paths. */
static bool matches(const cJSON *object, const char *selector, bool fields)
{
    while (*selector) {
        size_t size = strcspn(selector, ","), name = strcspn(selector, "=!,");
        FLEET_AUTO_FREE char *key = strndup(selector, name);
        bool negated = selector[name] == '!';
        const char *value = selector + name + strspn(selector + name, "=!");
        size_t value_size = (size_t)(selector + size - value);
        const cJSON *labels = fleet_json_at(object, "metadata.labels");
        const char *have = cJSON_GetStringValue(
            fields ? fleet_json_at(object, key) : cJSON_GetObjectItemCaseSensitive(labels, key));
        bool equal;

        if (name >= size)
            equal = have != NULL;
        else
            equal = have && strlen(have) == value_size && strncmp(have, value, value_size) == 0;
        if (equal == negated)
            return false;
        selector += size + (selector[size] == ',');
    }
    return true;
}

static bool belongs(const char *key, const struct fake_address *a)
{
    size_t size = strlen(a->collection), space = strlen(a->namespace_);

    return strncmp(key, a->collection, size) == 0 && key[size] == '|' &&
           (space == 0 ||
            (strncmp(key + size + 1, a->namespace_, space) == 0 && key[size + 1 + space] == '|'));
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The keys that belong and match, sorted. The caller frees the array. */
const char **fake_list_keys(const struct fake_apiserver *server, const struct fake_address *a,
                            size_t *out_count)
{
    const char **keys = calloc(server->objects.count + 1, sizeof(*keys));
    const struct fleet_map_entry *entry;
    size_t count = 0;

    fleet_assert(keys != NULL);
    for (size_t i = 0; (entry = fleet_map_next(&server->objects, &i));)
        if (belongs(entry->key, a) &&
            matches(entry->value, fake_address_parameter(a, "labelSelector"), false) &&
            matches(entry->value, fake_address_parameter(a, "fieldSelector"), true))
            keys[count++] = entry->key;
    qsort(keys, count, sizeof(*keys), compare_keys);
    *out_count = count;
    return keys;
}

/* A continue token is "version|last key". */
void fake_list(struct fake_apiserver *server, const struct fake_address *a,
               struct fake_response *response)
{
    FLEET_AUTO_FREE const char **keys = NULL;
    const char *token = fake_address_parameter(a, "continue"), *after = "", *last = NULL;
    long limit = strtol(fake_address_parameter(a, "limit"), NULL, 10), shown = 0;
    int64_t version = server->version;
    size_t count;
    bool more = false;
    struct fleet_strbuf items = {0};

    if (*token) {
        version = strtoll(token, NULL, 10);
        after = strchr(token, '|') ? strchr(token, '|') + 1 : "";
        if (version < server->oldest) {
            fake_answer_refuse(response, 410, NULL, "The provided continue parameter is too old");
            return;
        }
    }
    keys = fake_list_keys(server, a, &count);
    for (size_t i = 0; i < count && !more; i++) {
        FLEET_AUTO_FREE char *text = NULL;
        if (strcmp(keys[i], after) <= 0)
            continue;
        if (limit > 0 && shown == limit) {
            more = true;
            break;
        }
        text = fleet_json_print(fleet_map_get(&server->objects, keys[i]));
        fleet_strbuf_appendf(&items, "%s%s", shown++ ? "," : "", text);
        last = keys[i];
    }
    response->status = 200;
    fleet_strbuf_appendf(&response->body,
                         "{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":"
                         "{\"resourceVersion\":\"%lld\"",
                         (long long)version);
    if (more)
        fleet_strbuf_appendf(&response->body, ",\"continue\":\"%lld|%s\"", (long long)version,
                             last);
    fleet_strbuf_appendf(&response->body, "},\"items\":[%s]}", fleet_strbuf_text(&items));
    fleet_strbuf_release(&items);
}

static struct fake_watch *watch_new(struct fake_apiserver *server, const struct fake_address *a)
{
    struct fake_watch *watch = calloc(1, sizeof(*watch));

    fleet_assert(watch != NULL);
    watch->server = server;
    watch->position = server->forgotten;
    watch->collection = strdup(a->collection);
    watch->namespace_ = strdup(a->namespace_);
    watch->label_selector = strdup(fake_address_parameter(a, "labelSelector"));
    watch->field_selector = strdup(fake_address_parameter(a, "fieldSelector"));
    watch->bookmarks = strcmp(fake_address_parameter(a, "allowWatchBookmarks"), "true") == 0;
    watch->next = server->watches;
    server->watches = watch;
    return watch;
}

void fake_watch_open(struct fake_apiserver *server, const struct fake_address *a,
                     struct fake_response *response)
{
    int64_t version = strtoll(fake_address_parameter(a, "resourceVersion"), NULL, 10);
    struct fake_watch *stream = watch_new(server, a);

    response->status = 200;
    response->watch = stream;
    if (version > 0 && version < server->oldest) {
        fleet_strbuf_append(&stream->extra, "{\"type\":\"ERROR\",\"object\":");
        fake_answer_status(&stream->extra, 410, "Expired", "too old resource version");
        fleet_strbuf_append(&stream->extra, "}\n");
        stream->over = true;
        return;
    }
    while (stream->position < server->event_count &&
           server->events[stream->position].version <= version)
        stream->position++;
}

static bool is_selected(const cJSON *object, const struct fake_watch *watch)
{
    return matches(object, watch->label_selector, false) &&
           matches(object, watch->field_selector, true);
}

/* The object as it was before this change, NULL = it is new, or forgotten. */
static const cJSON *find_before(const struct fake_apiserver *server, size_t position)
{
    const struct fake_event *event = &server->events[position];
    const char *name = fake_object_text(event->tree, "metadata.name");

    while (position-- > server->forgotten) {
        const struct fake_event *other = &server->events[position];
        if (strcmp(other->collection, event->collection) == 0 &&
            strcmp(other->namespace_, event->namespace_) == 0 &&
            strcmp(fake_object_text(other->tree, "metadata.name"), name) == 0)
            return other->tree;
    }
    return NULL;
}

/* It is not selected any more: to this watch it is deleted. What was forgotten may have been
 * selected. */
static bool has_left(const struct fake_watch *watch, size_t position)
{
    const struct fake_event *event = &watch->server->events[position];
    const cJSON *before;

    if (strcmp(event->type, "MODIFIED") != 0 || is_selected(event->tree, watch))
        return false;
    before = find_before(watch->server, position);
    return !before || is_selected(before, watch);
}

static bool is_seen_by(const struct fake_watch *watch, size_t position)
{
    const struct fake_event *event = &watch->server->events[position];

    return strcmp(event->collection, watch->collection) == 0 &&
           (!*watch->namespace_ || strcmp(event->namespace_, watch->namespace_) == 0) &&
           (is_selected(event->tree, watch) || has_left(watch, position));
}

bool fake_watch_is_quiet(struct fake_watch *watch)
{
    const struct fake_apiserver *server = watch->server;

    if (watch->over || watch->extra.length > 0)
        return false;
    while (watch->position < server->event_count && !is_seen_by(watch, watch->position))
        watch->position++;
    return watch->position == server->event_count;
}

bool fake_watch_read(struct fake_watch *watch, struct fleet_strbuf *out)
{
    const struct fake_apiserver *server = watch->server;

    fleet_strbuf_append(out, fleet_strbuf_text(&watch->extra)); /* older than what follows */
    fleet_strbuf_clear(&watch->extra);
    for (; watch->position < server->event_count && !watch->over; watch->position++) {
        const struct fake_event *event = &server->events[watch->position];
        if (!is_seen_by(watch, watch->position))
            continue;
        fleet_strbuf_appendf(out, "{\"type\":\"%s\",\"object\":",
                             has_left(watch, watch->position) ? "DELETED" : event->type);
        fleet_strbuf_append(out, event->object);
        fleet_strbuf_append(out, "}\n");
    }
    return !watch->over;
}

void fake_watch_close(struct fake_watch *watch)
{
    for (struct fake_watch **p = &watch->server->watches; *p; p = &(*p)->next) {
        if (*p == watch) {
            *p = watch->next;
            break;
        }
    }
    free(watch->collection);
    free(watch->namespace_);
    free(watch->label_selector);
    free(watch->field_selector);
    fleet_strbuf_release(&watch->extra);
    free(watch);
}

void fake_watch_tell(struct fake_apiserver *server)
{
    if (server->changed)
        server->changed(server->changed_user);
}

void fake_apiserver_on_change(struct fake_apiserver *server, void (*changed)(void *user),
                              void *user)
{
    server->changed = changed;
    server->changed_user = user;
}

void fake_apiserver_bookmark(struct fake_apiserver *server)
{
    for (struct fake_watch *w = server->watches; w; w = w->next) {
        struct fleet_strbuf events = {0};
        if (!w->bookmarks || w->over)
            continue;
        (void)fake_watch_read(w, &events); /* what comes before it */
        fleet_strbuf_append(&w->extra, fleet_strbuf_text(&events));
        fleet_strbuf_release(&events);
        fleet_strbuf_appendf(&w->extra,
                             "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":"
                             "{\"resourceVersion\":\"%lld\"}}}\n",
                             (long long)server->version);
    }
    fake_watch_tell(server);
}

void fake_apiserver_cut_watches(struct fake_apiserver *server, bool half)
{
    for (struct fake_watch *w = server->watches; w; w = w->next) {
        struct fleet_strbuf events = {0};
        (void)fake_watch_read(w, &events);
        fleet_strbuf_append(&w->extra, fleet_strbuf_text(&events));
        fleet_strbuf_release(&events);
        if (half)
            fleet_strbuf_append(&w->extra, "{\"type\":\"MODIFIED\",\"object\":{\"meta");
        w->over = true;
    }
    fake_watch_tell(server);
}

void fake_apiserver_compact(struct fake_apiserver *server)
{
    size_t seen = server->event_count;

    server->oldest = server->version;
    for (const struct fake_watch *watch = server->watches; watch; watch = watch->next)
        seen = watch->position < seen ? watch->position : seen;
    for (; server->forgotten < seen;
         server->forgotten++) { /* no client can ask for them any more */
        struct fake_event *event = &server->events[server->forgotten];
        FLEET_AUTO_FREE char *key = fake_address_key(
            event->collection, event->namespace_, fake_object_text(event->tree, "metadata.name"));
        free(event->object);
        event->object = NULL;
        if (fleet_map_get(&server->objects, key) == event->tree)
            continue; /* it is what is stored */
        cJSON_Delete(event->tree);
        event->tree = NULL;
    }
}
