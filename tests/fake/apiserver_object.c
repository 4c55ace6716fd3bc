/* SPDX-License-Identifier: Apache-2.0 */

/* Objects as they change: versions, UIDs, generations, finalizers, and an event for every
 * change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver_internal.h"

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

const char *fake_object_text(const cJSON *object, const char *path)
{
    const char *text = cJSON_GetStringValue(fleet_json_at(object, path));

    return text ? text : "";
}

static cJSON *copy(const cJSON *item)
{
    cJSON *duplicate = cJSON_Duplicate(item, true);

    fleet_assert(duplicate != NULL);
    return duplicate;
}

/* A new version: `object` (owned) and the event that tells it, and answers. */
static void record(struct fake_apiserver *server, const char *type, const struct fake_address *a,
                   cJSON *object, int status, struct fake_response *response)
{
    struct fake_event *event;
    char version[24];

    snprintf(version, sizeof(version), "%lld", (long long)++server->version);
    set_text(metadata_of(object), "resourceVersion", version);
    if (server->event_count == server->event_capacity) {
        server->event_capacity = server->event_capacity ? server->event_capacity * 2 : 64;
        server->events = realloc(server->events, server->event_capacity * sizeof(*server->events));
        fleet_assert(server->events != NULL);
    }
    event = &server->events[server->event_count++];
    *event = (struct fake_event){
        .version = server->version,
        .type = type,
        .collection = strdup(a->collection),
        .namespace_ = strdup(fake_object_text(object, "metadata.namespace")),
        .object = fleet_json_print(object),
        .tree = object,
    };
    if (!response)
        return;
    response->status = status;
    fleet_strbuf_append(&response->body, event->object);
}

static void now_text(const struct fake_apiserver *server, char out[FLEET_RFC3339_SIZE])
{
    fleet_rfc3339_format(server->wall_ms - server->wall_ms % 1000, out);
}

static void remove_object(struct fake_apiserver *server, const struct fake_address *a,
                          const cJSON *object)
{
    FLEET_AUTO_FREE char *key =
        fake_address_key(a->collection, a->namespace_, fake_object_text(object, "metadata.name"));

    (void)fleet_map_remove(&server->objects, key);
    record(server, "DELETED", a, copy(object), 0, NULL);
}

static bool has_finalizers(const cJSON *object)
{
    return cJSON_GetArraySize(fleet_json_at(object, "metadata.finalizers")) > 0;
}

/* A pod that is on a node stays until its kubelet deletes it with grace 0. */
static bool goes_at_once(const struct fake_address *a, const cJSON *object, const cJSON *options)
{
    int64_t grace = -1;

    (void)fleet_json_opt_int(options, "gracePeriodSeconds", &grace, NULL);
    return strcmp(a->collection, "/api/v1/pods") != 0 || grace == 0 ||
           !*fake_object_text(object, "spec.nodeName");
}

/* Replace the stored object by `next` (owned), as a write that is not a create. */
static void store_changed(struct fake_apiserver *server, const struct fake_address *a,
                          const char *key, cJSON *next, struct fake_response *response)
{
    const cJSON *old = fleet_map_get(&server->objects, key);
    const cJSON *old_spec = cJSON_GetObjectItemCaseSensitive(old, "spec");
    const cJSON *spec = cJSON_GetObjectItemCaseSensitive(next, "spec");
    bool had_finalizers = has_finalizers(old);
    int64_t generation = 1;

    set_text(metadata_of(next), "uid", fake_object_text(old, "metadata.uid"));
    set_text(metadata_of(next), "resourceVersion",
             fake_object_text(old, "metadata.resourceVersion"));
    set_text(metadata_of(next), "creationTimestamp",
             fake_object_text(old, "metadata.creationTimestamp"));
    (void)fleet_json_opt_int(old, "metadata.generation", &generation, NULL);
    generation += (spec || old_spec) && !(spec && old_spec && fleet_json_equal(spec, old_spec));
    cJSON_DeleteItemFromObjectCaseSensitive(metadata_of(next), "generation");
    cJSON_AddNumberToObject(metadata_of(next), "generation", (double)generation);
    if (fleet_json_equal(old, next)) { /* no change, no new version, no event */
        fake_answer_object(response, 200, old);
        cJSON_Delete(next);
        return;
    }
    fleet_map_set(&server->objects, key, next);
    record(server, "MODIFIED", a, next, 200, response);
    if (*fake_object_text(next, "metadata.deletionTimestamp") && !has_finalizers(next) &&
        (had_finalizers || goes_at_once(a, next, NULL)))
        remove_object(server, a, next);
}

void fake_object_create(struct fake_apiserver *server, struct fake_address *a, cJSON *object,
                        bool dry_run, struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = NULL;
    char text[FLEET_RFC3339_SIZE + 32];
    cJSON *meta = metadata_of(object);

    if (!*fake_object_text(object, "metadata.name") &&
        *fake_object_text(object, "metadata.generateName")) {
        snprintf(text, sizeof(text), "%.40s%05llx",
                 fake_object_text(object, "metadata.generateName"),
                 (unsigned long long)++server->next_uid * 2654435761u % 0xfffff);
        set_text(meta, "name", text);
    }
    if (!*fake_object_text(object, "metadata.name")) {
        fake_answer_refuse(response, 422, NULL,
                           "metadata.name: Required value: name or generateName is required");
        return;
    }
    key = fake_address_key(a->collection, a->namespace_, fake_object_text(object, "metadata.name"));
    if (fleet_map_get(&server->objects, key)) {
        snprintf(text, sizeof(text), "\"%.30s\" already exists",
                 fake_object_text(object, "metadata.name"));
        fake_answer_refuse(response, 409, "AlreadyExists", text);
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
    if (dry_run) {
        fake_answer_object(response, 201, object);
        return;
    }
    object = copy(object);
    fleet_map_insert(&server->objects, key, object);
    record(server, "ADDED", a, object, 201, response);
}

/* One member of a merge patch, RFC 7386. */
static void merge(cJSON *into, const cJSON *item)
{
    const cJSON *below;
    cJSON *old = cJSON_GetObjectItemCaseSensitive(into, item->string);

    if (!cJSON_IsObject(item) || !cJSON_IsObject(old))
        cJSON_DeleteItemFromObjectCaseSensitive(into, item->string);
    if (!cJSON_IsObject(item) && !cJSON_IsNull(item))
        cJSON_AddItemToObject(into, item->string, copy(item));
    if (!cJSON_IsObject(item))
        return;
    if (!cJSON_IsObject(old))
        old = cJSON_AddObjectToObject(into, item->string);
    cJSON_ArrayForEach(below, item) merge(old, below);
}

/* The member of `to` with this key becomes that of `from`. */
static void take_from(cJSON *to, const cJSON *from, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);

    cJSON_DeleteItemFromObjectCaseSensitive(to, key);
    if (item)
        cJSON_AddItemToObject(to, key, copy(item));
}

/* What becomes of `old`. A write touches only the status, or all but that. */
static cJSON *change(const cJSON *old, const cJSON *body, bool is_patch, bool is_status)
{
    cJSON *next = copy(is_patch || is_status ? old : body);
    const cJSON *item;

    if (!is_patch)
        take_from(next, is_status ? body : old, "status");
    else
        cJSON_ArrayForEach(item, body) if ((strcmp(item->string, "status") == 0) == is_status)
            merge(next, item);
    return next;
}

void fake_object_change(struct fake_apiserver *server, struct fake_address *a, bool patch,
                        const cJSON *body, struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = fake_address_key(a->collection, a->namespace_, a->name);
    const cJSON *old = fleet_map_get(&server->objects, key);
    const char *version = fake_object_text(body, "metadata.resourceVersion");
    const char *uid = fake_object_text(body, "metadata.uid");
    cJSON *next;

    if (!old) {
        fake_answer_refuse(response, 404, NULL, "not found");
        return;
    }
    if ((*version && strcmp(version, fake_object_text(old, "metadata.resourceVersion")) != 0) ||
        (*uid && strcmp(uid, fake_object_text(old, "metadata.uid")) != 0)) {
        fake_answer_refuse(response, 409, NULL,
                           "the object has been modified; please apply your changes to "
                           "the latest version and try again");
        return;
    }
    next = change(old, body, patch, strcmp(a->subresource, "status") == 0);
    if (strcmp(fake_address_parameter(a, "dryRun"), "All") == 0) {
        fake_answer_object(response, 200, next);
        cJSON_Delete(next);
        return;
    }
    store_changed(server, a, key, next, response);
}

void fake_object_delete(struct fake_apiserver *server, struct fake_address *a, const cJSON *options,
                        struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = fake_address_key(a->collection, a->namespace_, a->name);
    const cJSON *object = fleet_map_get(&server->objects, key);
    const char *uid = fake_object_text(options, "preconditions.uid");
    cJSON *next;
    char now[FLEET_RFC3339_SIZE];
    int64_t grace = 30;

    if (!object) {
        fake_answer_refuse(response, 404, NULL, "not found");
        return;
    }
    if (*uid && strcmp(uid, fake_object_text(object, "metadata.uid")) != 0) {
        fake_answer_refuse(response, 409, NULL, "the UID in the precondition does not match");
        return;
    }
    if (goes_at_once(a, object, options) && !has_finalizers(object)) {
        fake_answer_object(response, 200, object);
        remove_object(server, a, object);
        return;
    }
    if (*fake_object_text(object, "metadata.deletionTimestamp")) {
        fake_answer_object(response, 200, object);
        return;
    }
    next = copy(object);
    now_text(server, now);
    set_text(metadata_of(next), "deletionTimestamp", now);
    (void)fleet_json_opt_int(next, "spec.terminationGracePeriodSeconds", &grace, NULL);
    (void)fleet_json_opt_int(options, "gracePeriodSeconds", &grace, NULL);
    cJSON_AddNumberToObject(metadata_of(next), "deletionGracePeriodSeconds", (double)grace);
    fleet_map_set(&server->objects, key, next);
    record(server, "MODIFIED", a, next, 200, response);
}
