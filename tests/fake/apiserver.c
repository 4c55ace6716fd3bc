/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One map from path to object, one list of events in order of resourceVersion. A watch is a position
 * in that list. Lists are made by walking the map and sorting keys: slow, and right.
 */
#include "tests/fake/apiserver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/json.h"
#include "libfleet/base/map.h"

#define FAILURES_MAX 64
#define START_WALL   INT64_C(1767225600000) /* 2026-01-01T00:00:00Z */

struct event {
    int64_t version;
    const char *type; /* static */
    char *collection; /* "/api/v1/pods" */
    char *namespace_;
    char *object; /* JSON */
    cJSON *tree;  /* the same, for selectors */
};

struct address {      /* a path, taken apart; all heap text, "" where absent */
    char *collection; /* without namespace: "/apis/fleetjob.dev/v1alpha1/fleetjobs" */
    char *namespace_, *name, *subresource;
    struct fleet_map query; /* decoded values, owned */
    bool watch;
};

struct fake_watch {
    struct fake_apiserver *server;
    struct fake_watch *next;
    char *collection, *namespace_, *label_selector, *field_selector;
    size_t position;           /* of the next event to look at */
    struct fleet_strbuf extra; /* what is told before the next event: bookmarks, errors, halves */
    bool bookmarks, over;
};

struct fake_apiserver {
    struct fleet_map objects; /* "collection|namespace|name" → cJSON *, owned */
    struct event *events;
    size_t event_count, event_capacity;
    int64_t version, oldest; /* the newest change; the oldest one that can be watched from */
    int64_t wall_ms;
    uint64_t next_uid;
    struct fake_watch *watches;
    struct fake_failure failures[FAILURES_MAX];
    size_t failure_count;
    bool spares_others, is_other; /* whose request it is: fake_apiserver_spare_others() */
    char **log;                   /* "METHOD path" of every request */
    size_t log_count, log_capacity;
    const char *offered; /* by discovery, NULL = nothing */
    void (*changed)(void *user);
    void *changed_user;
};

struct fake_apiserver *fake_apiserver_new(void)
{
    struct fake_apiserver *server = calloc(1, sizeof(*server));

    fleet_assert(server != NULL);
    server->version = server->oldest = 100;
    server->wall_ms = START_WALL;
    return server;
}

void fake_apiserver_free(struct fake_apiserver *server)
{
    const struct fleet_map_entry *entry;

    if (!server)
        return;
    while (server->watches)
        fake_watch_close(server->watches);
    for (size_t i = 0; (entry = fleet_map_next(&server->objects, &i));)
        cJSON_Delete(entry->value);
    fleet_map_release(&server->objects);
    for (size_t i = 0; i < server->event_count; i++) {
        free(server->events[i].collection);
        free(server->events[i].namespace_);
        free(server->events[i].object);
        cJSON_Delete(server->events[i].tree);
    }
    free(server->events);
    for (size_t i = 0; i < server->log_count; i++)
        free(server->log[i]);
    free(server->log);
    free(server);
}

void fake_apiserver_set_wall(struct fake_apiserver *server, int64_t wall_ms)
{
    server->wall_ms = wall_ms;
}

/* ---- addresses --------------------------------------------------------------------------------- */

static char *decode_percent(const char *text, size_t size)
{
    struct fleet_strbuf out = {0};

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

static void address_release(struct address *a)
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

static const char *parameter(const struct address *a, const char *name)
{
    const char *value = fleet_map_get(&a->query, name);

    return value ? value : "";
}

/* False: not an API path. */
static bool address_read(const char *path, struct address *out)
{
    const char *query = strchr(path, '?'), *p = path;
    const char *end = query ? query : path + strlen(path);
    struct fleet_strbuf collection = {0};
    char *part;
    bool core;

    *out = (struct address){0};
    part = next_part(&p, end);
    core = strcmp(part, "api") == 0;
    fleet_strbuf_appendf(&collection, "/%s", part);
    free(part);
    for (int i = 0; i < (core ? 1 : 2); i++) {
        part = next_part(&p, end);
        fleet_strbuf_appendf(&collection, "/%s", part);
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
    fleet_strbuf_appendf(&collection, "/%s", part);
    out->name = next_part(&p, end);
    out->subresource = next_part(&p, end);
    out->collection = fleet_strbuf_take(&collection);
    if (query)
        read_query(query + 1, &out->query);
    out->watch = strcmp(parameter(out, "watch"), "true") == 0;
    core = *part != '\0' && p == end;
    free(part);
    return core;
}

static char *object_key(const char *collection, const char *namespace_, const char *name)
{
    struct fleet_strbuf key = {0};

    fleet_strbuf_appendf(&key, "%s|%s|%s", collection, namespace_, name);
    return fleet_strbuf_take(&key);
}

/* ---- answers ----------------------------------------------------------------------------------- */

static const char *reason_of(int status)
{
    switch (status) {
    case 400:
        return "BadRequest";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "NotFound";
    case 409:
        return "Conflict";
    case 410:
        return "Expired";
    case 413:
        return "RequestEntityTooLarge";
    case 415:
        return "UnsupportedMediaType";
    case 422:
        return "Invalid";
    case 429:
        return "TooManyRequests";
    case 503:
        return "ServiceUnavailable";
    case 504:
        return "Timeout";
    default:
        return "InternalError";
    }
}

static void print_status(struct fleet_strbuf *out, int status, const char *reason,
                         const char *message)
{
    fleet_strbuf_append(out, "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},"
                             "\"status\":\"Failure\",\"message\":");
    fleet_json_append_string(out, message);
    fleet_strbuf_appendf(out, ",\"reason\":\"%s\",\"code\":%d}", reason, status);
}

static void refuse(struct fake_response *response, int status, const char *reason,
                   const char *message)
{
    response->status = status;
    fleet_strbuf_clear(&response->body);
    print_status(&response->body, status, reason ? reason : reason_of(status), message);
}

static void add_cause(struct fake_response *response, const char *cause)
{
    FLEET_AUTO_JSON cJSON *status = cJSON_Parse(response->body.text);
    cJSON *causes = cJSON_AddArrayToObject(cJSON_AddObjectToObject(status, "details"), "causes");
    cJSON *item = cJSON_CreateObject();
    FLEET_AUTO_FREE char *text = NULL;

    fleet_assert(cJSON_AddStringToObject(item, "reason", cause) &&
                 cJSON_AddItemToArray(causes, item));
    text = fleet_json_print(status);
    fleet_strbuf_clear(&response->body);
    fleet_strbuf_append(&response->body, text);
}

static void answer_object(struct fake_response *response, int status, const cJSON *object)
{
    FLEET_AUTO_FREE char *text = fleet_json_print(object);

    response->status = status;
    fleet_strbuf_append(&response->body, text);
}

void fake_response_release(struct fake_response *response)
{
    if (response->watch)
        fake_watch_close(response->watch);
    fleet_strbuf_release(&response->body);
    *response = (struct fake_response){0};
}

/* ---- changes ----------------------------------------------------------------------------------- */

static cJSON *metadata_of(cJSON *object)
{
    cJSON *meta = cJSON_GetObjectItemCaseSensitive(object, "metadata");

    return meta ? meta : cJSON_AddObjectToObject(object, "metadata");
}

static void set_text(cJSON *object, const char *name, const char *text)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    cJSON_AddStringToObject(object, name, text);
}

static const char *text_of(const cJSON *object, const char *path)
{
    const char *text = cJSON_GetStringValue(fleet_json_at(object, path));

    return text ? text : "";
}

/* A new version of `object`, and the event that tells it. */
static void record(struct fake_apiserver *server, const char *type, const struct address *a,
                   cJSON *object)
{
    struct event *event;
    char version[24];

    snprintf(version, sizeof(version), "%lld", (long long)++server->version);
    set_text(metadata_of(object), "resourceVersion", version);
    if (server->event_count == server->event_capacity) {
        server->event_capacity = server->event_capacity ? server->event_capacity * 2 : 64;
        server->events = realloc(server->events, server->event_capacity * sizeof(*server->events));
        fleet_assert(server->events != NULL);
    }
    event = &server->events[server->event_count++];
    *event = (struct event){
        .version = server->version,
        .type = type,
        .collection = strdup(a->collection),
        .namespace_ = strdup(text_of(object, "metadata.namespace")),
        .object = fleet_json_print(object),
        .tree = cJSON_Duplicate(object, true),
    };
}

static void now_text(const struct fake_apiserver *server, char out[FLEET_RFC3339_SIZE])
{
    fleet_rfc3339_format(server->wall_ms - server->wall_ms % 1000, out);
}

static void remove_object(struct fake_apiserver *server, const struct address *a, cJSON *object)
{
    FLEET_AUTO_FREE char *key =
        object_key(a->collection, a->namespace_, text_of(object, "metadata.name"));

    record(server, "DELETED", a, object);
    cJSON_Delete(fleet_map_remove(&server->objects, key));
}

static bool has_finalizers(const cJSON *object)
{
    return cJSON_GetArraySize(fleet_json_at(object, "metadata.finalizers")) > 0;
}

/* Replace the stored object by `next` (owned), as a write that is not a create. */
static void store_changed(struct fake_apiserver *server, const struct address *a, const char *key,
                          cJSON *next, struct fake_response *response)
{
    cJSON *old = fleet_map_get(&server->objects, key);
    const cJSON *old_spec = cJSON_GetObjectItemCaseSensitive(old, "spec");
    const cJSON *spec = cJSON_GetObjectItemCaseSensitive(next, "spec");
    int64_t generation = 1;

    set_text(metadata_of(next), "uid", text_of(old, "metadata.uid"));
    set_text(metadata_of(next), "resourceVersion", text_of(old, "metadata.resourceVersion"));
    set_text(metadata_of(next), "creationTimestamp", text_of(old, "metadata.creationTimestamp"));
    (void)fleet_json_opt_int(old, "metadata.generation", &generation, NULL);
    generation += (spec || old_spec) && !(spec && old_spec && fleet_json_equal(spec, old_spec));
    cJSON_DeleteItemFromObjectCaseSensitive(metadata_of(next), "generation");
    cJSON_AddNumberToObject(metadata_of(next), "generation", (double)generation);
    if (fleet_json_equal(old, next)) { /* no change, no new version, no event */
        answer_object(response, 200, old);
        cJSON_Delete(next);
        return;
    }
    cJSON_Delete(fleet_map_set(&server->objects, key, next));
    record(server, "MODIFIED", a, next);
    answer_object(response, 200, next);
    if (*text_of(next, "metadata.deletionTimestamp") && !has_finalizers(next))
        remove_object(server, a, next);
}

static void create(struct fake_apiserver *server, struct address *a, cJSON *object, bool dry_run,
                   struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = NULL;
    char text[FLEET_RFC3339_SIZE + 32];
    cJSON *meta = metadata_of(object);

    if (!*text_of(object, "metadata.name") && *text_of(object, "metadata.generateName")) {
        snprintf(text, sizeof(text), "%.40s%05llx", text_of(object, "metadata.generateName"),
                 (unsigned long long)++server->next_uid * 2654435761u % 0xfffff);
        set_text(meta, "name", text);
    }
    if (!*text_of(object, "metadata.name")) {
        refuse(response, 422, NULL,
               "metadata.name: Required value: name or generateName is required");
        return;
    }
    key = object_key(a->collection, a->namespace_, text_of(object, "metadata.name"));
    if (fleet_map_get(&server->objects, key)) {
        snprintf(text, sizeof(text), "\"%.30s\" already exists", text_of(object, "metadata.name"));
        refuse(response, 409, "AlreadyExists", text);
        return;
    }
    if (*a->namespace_)
        set_text(meta, "namespace", a->namespace_);
    snprintf(text, sizeof(text), "00000000-0000-4000-8000-%012llx",
             (unsigned long long)++server->next_uid);
    set_text(meta, "uid", text);
    now_text(server, text);
    set_text(meta, "creationTimestamp", text);
    cJSON_DeleteItemFromObjectCaseSensitive(meta, "generation");
    cJSON_AddNumberToObject(meta, "generation", 1);
    if (!dry_run) {
        object = cJSON_Duplicate(object, true);
        fleet_map_insert(&server->objects, key, object);
        record(server, "ADDED", a, object);
    }
    answer_object(response, 201, object);
}

/* RFC 7386. */
static void merge(cJSON *into, const cJSON *patch)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, patch)
    {
        cJSON *old = cJSON_GetObjectItemCaseSensitive(into, item->string);
        if (cJSON_IsNull(item)) {
            cJSON_DeleteItemFromObjectCaseSensitive(into, item->string);
        } else if (cJSON_IsObject(item)) {
            if (!cJSON_IsObject(old)) {
                cJSON_DeleteItemFromObjectCaseSensitive(into, item->string);
                old = cJSON_AddObjectToObject(into, item->string);
            }
            merge(old, item);
        } else {
            cJSON_DeleteItemFromObjectCaseSensitive(into, item->string);
            cJSON_AddItemToObject(into, item->string, cJSON_Duplicate(item, true));
        }
    }
}

/* What a write may not touch comes from the stored object: all but the status, or only the status. */
static cJSON *limit_to(const cJSON *old, cJSON *next, bool status)
{
    cJSON *base = status ? cJSON_Duplicate(old, true) : next;
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(status ? next : old, "status");

    cJSON_DeleteItemFromObjectCaseSensitive(base, "status");
    if (kept)
        cJSON_AddItemToObject(base, "status", cJSON_Duplicate(kept, true));
    if (status)
        cJSON_Delete(next);
    return base;
}

static void change(struct fake_apiserver *server, struct address *a, bool patch, const cJSON *body,
                   struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = object_key(a->collection, a->namespace_, a->name);
    const cJSON *old = fleet_map_get(&server->objects, key);
    const char *version = text_of(body, "metadata.resourceVersion");
    const char *uid = text_of(body, "metadata.uid");
    bool status = strcmp(a->subresource, "status") == 0;
    cJSON *next;

    if (!old) {
        refuse(response, 404, NULL, "not found");
        return;
    }
    if ((*version && strcmp(version, text_of(old, "metadata.resourceVersion")) != 0) ||
        (*uid && strcmp(uid, text_of(old, "metadata.uid")) != 0)) {
        refuse(response, 409, NULL,
               "the object has been modified; please apply your changes to "
               "the latest version and try again");
        return;
    }
    next = cJSON_Duplicate(patch ? old : body, true);
    if (patch)
        merge(next, body);
    next = limit_to(old, next, status);
    if (strcmp(parameter(a, "dryRun"), "All") == 0) {
        answer_object(response, 200, next);
        cJSON_Delete(next);
        return;
    }
    store_changed(server, a, key, next, response);
}

/* A pod that is on a node stays until its kubelet deletes it with grace 0. */
static bool goes_at_once(const struct address *a, const cJSON *object, const cJSON *options)
{
    int64_t grace = -1;

    (void)fleet_json_opt_int(options, "gracePeriodSeconds", &grace, NULL);
    return strcmp(a->collection, "/api/v1/pods") != 0 || grace == 0 ||
           !*text_of(object, "spec.nodeName");
}

static void delete_object(struct fake_apiserver *server, struct address *a, const cJSON *options,
                          struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = object_key(a->collection, a->namespace_, a->name);
    cJSON *object = fleet_map_get(&server->objects, key);
    const char *uid = text_of(options, "preconditions.uid");
    char now[FLEET_RFC3339_SIZE];

    if (!object) {
        refuse(response, 404, NULL, "not found");
        return;
    }
    if (*uid && strcmp(uid, text_of(object, "metadata.uid")) != 0) {
        refuse(response, 409, NULL, "the UID in the precondition does not match");
        return;
    }
    if (goes_at_once(a, object, options) && !has_finalizers(object)) {
        answer_object(response, 200, object);
        remove_object(server, a, object);
        return;
    }
    if (!*text_of(object, "metadata.deletionTimestamp")) {
        now_text(server, now);
        set_text(metadata_of(object), "deletionTimestamp", now);
        record(server, "MODIFIED", a, object);
    }
    answer_object(response, 200, object);
}

/* ---- lists and watches ------------------------------------------------------------------------- */

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

static bool belongs(const char *key, const struct address *a)
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
static const char **select_keys(const struct fake_apiserver *server, const struct address *a,
                                size_t *out_count)
{
    const char **keys = calloc(server->objects.count + 1, sizeof(*keys));
    const struct fleet_map_entry *entry;
    size_t count = 0;

    fleet_assert(keys != NULL);
    for (size_t i = 0; (entry = fleet_map_next(&server->objects, &i));)
        if (belongs(entry->key, a) && matches(entry->value, parameter(a, "labelSelector"), false) &&
            matches(entry->value, parameter(a, "fieldSelector"), true))
            keys[count++] = entry->key;
    qsort(keys, count, sizeof(*keys), compare_keys);
    *out_count = count;
    return keys;
}

/* A continue token is "version|last key". */
static void list(struct fake_apiserver *server, const struct address *a,
                 struct fake_response *response)
{
    FLEET_AUTO_FREE const char **keys = NULL;
    const char *token = parameter(a, "continue"), *after = "", *last = NULL;
    long limit = strtol(parameter(a, "limit"), NULL, 10), shown = 0;
    int64_t version = server->version;
    size_t count;
    bool more = false;
    struct fleet_strbuf items = {0};

    if (*token) {
        version = strtoll(token, NULL, 10);
        after = strchr(token, '|') ? strchr(token, '|') + 1 : "";
        if (version < server->oldest) {
            refuse(response, 410, NULL, "The provided continue parameter is too old");
            return;
        }
    }
    keys = select_keys(server, a, &count);
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

static struct fake_watch *watch_new(struct fake_apiserver *server, const struct address *a)
{
    struct fake_watch *watch = calloc(1, sizeof(*watch));

    fleet_assert(watch != NULL);
    watch->server = server;
    watch->collection = strdup(a->collection);
    watch->namespace_ = strdup(a->namespace_);
    watch->label_selector = strdup(parameter(a, "labelSelector"));
    watch->field_selector = strdup(parameter(a, "fieldSelector"));
    watch->bookmarks = strcmp(parameter(a, "allowWatchBookmarks"), "true") == 0;
    watch->next = server->watches;
    server->watches = watch;
    return watch;
}

static void watch(struct fake_apiserver *server, const struct address *a,
                  struct fake_response *response)
{
    int64_t version = strtoll(parameter(a, "resourceVersion"), NULL, 10);
    struct fake_watch *stream = watch_new(server, a);

    response->status = 200;
    response->watch = stream;
    if (version > 0 && version < server->oldest) {
        fleet_strbuf_append(&stream->extra, "{\"type\":\"ERROR\",\"object\":");
        print_status(&stream->extra, 410, "Expired", "too old resource version");
        fleet_strbuf_append(&stream->extra, "}\n");
        stream->over = true;
        return;
    }
    while (stream->position < server->event_count &&
           server->events[stream->position].version <= version)
        stream->position++;
}

bool fake_watch_read(struct fake_watch *watch, struct fleet_strbuf *out)
{
    struct fake_apiserver *server = watch->server;

    fleet_strbuf_append(out, fleet_strbuf_text(&watch->extra)); /* older than what follows */
    fleet_strbuf_clear(&watch->extra);
    for (; watch->position < server->event_count && !watch->over; watch->position++) {
        const struct event *event = &server->events[watch->position];
        if (strcmp(event->collection, watch->collection) == 0 &&
            (!*watch->namespace_ || strcmp(event->namespace_, watch->namespace_) == 0) &&
            matches(event->tree, watch->label_selector, false) &&
            matches(event->tree, watch->field_selector, true))
            fleet_strbuf_appendf(out, "{\"type\":\"%s\",\"object\":%s}\n", event->type,
                                 event->object);
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

static void tell(struct fake_apiserver *server)
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
        (void)fake_watch_read(w, &events); /* what is told before it */
        fleet_strbuf_append(&w->extra, fleet_strbuf_text(&events));
        fleet_strbuf_release(&events);
        fleet_strbuf_appendf(&w->extra,
                             "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":"
                             "{\"resourceVersion\":\"%lld\"}}}\n",
                             (long long)server->version);
    }
    tell(server);
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
    tell(server);
}

void fake_apiserver_compact(struct fake_apiserver *server)
{
    server->oldest = server->version;
}

/* ---- requests ---------------------------------------------------------------------------------- */

void fake_apiserver_fail(struct fake_apiserver *server, const struct fake_failure *failure)
{
    fleet_assert(server->failure_count < FAILURES_MAX);
    server->failures[server->failure_count++] = *failure;
}

/* The first order that this request fulfils, counted down; or NULL. Valid until the next call. */
static const struct fake_failure *take_failure(struct fake_apiserver *server, const char *method,
                                               const char *path)
{
    static struct fake_failure taken;

    for (size_t i = 0; i < server->failure_count; i++) {
        struct fake_failure *f = &server->failures[i];
        if ((f->method && strcmp(f->method, method) != 0) || (f->path && !strstr(path, f->path)))
            continue;
        taken = *f;
        if (--f->count <= 0) {
            memmove(f, f + 1, (server->failure_count - i - 1) * sizeof(*f));
            server->failure_count--;
        }
        return &taken;
    }
    return NULL;
}

static void log_request(struct fake_apiserver *server, const char *method, const char *path)
{
    struct fleet_strbuf line = {0};

    fleet_strbuf_appendf(&line, "%s %s", method, path);
    if (server->log_count == server->log_capacity) {
        server->log_capacity = server->log_capacity ? server->log_capacity * 2 : 64;
        server->log = realloc(server->log, server->log_capacity * sizeof(*server->log));
        fleet_assert(server->log != NULL);
    }
    server->log[server->log_count++] = fleet_strbuf_take(&line);
}

static void serve(struct fake_apiserver *server, struct address *a,
                  const struct fake_request *request, const cJSON *body,
                  struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = object_key(a->collection, a->namespace_, a->name);
    const cJSON *object = fleet_map_get(&server->objects, key);
    bool dry_run = strcmp(parameter(a, "dryRun"), "All") == 0;
    const char *method = request->method;

    if (strcmp(method, "GET") == 0 && a->watch)
        watch(server, a, response);
    else if (strcmp(method, "GET") == 0 && !*a->name)
        list(server, a, response);
    else if (strcmp(method, "GET") == 0 && object)
        answer_object(response, 200, object);
    else if (strcmp(method, "GET") == 0)
        refuse(response, 404, NULL, "not found");
    else if (strcmp(method, "DELETE") == 0 && *a->name)
        delete_object(server, a, body, response);
    else if (!cJSON_IsObject(body))
        refuse(response, 400, NULL, "the body is not a JSON object");
    else if (strcmp(method, "POST") == 0 && !*a->name)
        create(server, a, (cJSON *)body, dry_run, response);
    else if (strcmp(method, "PUT") == 0)
        change(server, a, false, body, response);
    else if (strcmp(method, "PATCH") == 0 && !object && *parameter(a, "fieldManager") &&
             *text_of(body, "apiVersion") && !*a->subresource)
        create(server, a, (cJSON *)body, dry_run, response); /* server-side apply creates */
    else if (strcmp(method, "PATCH") == 0)
        change(server, a, true, body, response);
    else
        refuse(response, 405, "MethodNotAllowed", "method not allowed");
}

void fake_apiserver_handle(struct fake_apiserver *server, const struct fake_request *request,
                           struct fake_response *response)
{
    FLEET_AUTO_JSON cJSON *body = NULL;
    const struct fake_failure *failure;
    struct address a;
    int64_t before = server->version;
    bool known = address_read(request->path, &a);
    const char *method = a.watch ? "WATCH" : request->method;

    log_request(server, method, request->path);
    if (request->body && request->body_size > 0)
        (void)fleet_json_parse(request->body, request->body_size, 1 << 24, &body, NULL);
    failure = server->is_other && server->spares_others
                  ? NULL
                  : take_failure(server, method, request->path);
    if (server->offered && strncmp(request->path, "/apis/", 6) == 0 &&
        strcmp(request->path + 6, server->offered) == 0) {
        response->status = 200;
        fleet_strbuf_append(&response->body, "{\"kind\":\"APIResourceList\"}");
    } else if (!known)
        refuse(response, 404, NULL, "the server could not find the requested resource");
    else if (!failure || failure->after)
        serve(server, &a, request, body, response);
    if (failure) {
        fake_response_release(response);
        response->drop = failure->status == 0;
        response->retry_after_s = failure->retry_after_s;
        if (!response->drop)
            refuse(response, failure->status, NULL, "ordered by the test");
        if (!response->drop && failure->cause)
            add_cause(response, failure->cause);
    }
    address_release(&a);
    if (server->version != before)
        tell(server);
}

void fake_apiserver_offer(struct fake_apiserver *server, const char *group_version)
{
    server->offered = group_version;
}

void fake_apiserver_spare_others(struct fake_apiserver *server)
{
    server->spares_others = true;
}

/* ---- for tests --------------------------------------------------------------------------------- */

const cJSON *fake_apiserver_get(const struct fake_apiserver *server, const char *path)
{
    struct address a;
    bool known = address_read(path, &a);
    FLEET_AUTO_FREE char *key = object_key(a.collection, a.namespace_, a.name);
    const cJSON *object = known ? fleet_map_get(&server->objects, key) : NULL;

    address_release(&a);
    return object;
}

size_t fake_apiserver_count(const struct fake_apiserver *server, const char *path)
{
    struct address a;
    size_t count = 0;

    if (address_read(path, &a))
        free(select_keys(server, &a, &count));
    address_release(&a);
    return count;
}

const cJSON **fake_apiserver_list(const struct fake_apiserver *server, const char *path,
                                  size_t *out_count)
{
    FLEET_AUTO_FREE const char **keys = NULL;
    const cJSON **objects;
    struct address a;
    bool known = address_read(path, &a);

    fleet_assert(known);
    keys = select_keys(server, &a, out_count);
    objects = calloc(*out_count + 1, sizeof(*objects));
    fleet_assert(objects != NULL);
    for (size_t i = 0; i < *out_count; i++)
        objects[i] = fleet_map_get(&server->objects, keys[i]);
    address_release(&a);
    return objects;
}

size_t fake_apiserver_requests(const struct fake_apiserver *server, const char *part)
{
    size_t count = 0;

    for (size_t i = 0; i < server->log_count; i++)
        count += strstr(server->log[i], part) != NULL;
    return count;
}

int fake_apiserver_do(struct fake_apiserver *server, const char *method, const char *path,
                      const char *body)
{
    struct fake_request request = {method, path, body, body ? strlen(body) : 0};
    struct fake_response response = {0};
    int status;

    server->is_other = true;
    fake_apiserver_handle(server, &request, &response);
    server->is_other = false;
    status = response.status;
    fake_response_release(&response);
    return status;
}
