/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One map from path to object, one list of events in order of resourceVersion. A watch is a
 * position in that list. Lists are made by walking the map and sorting keys: slow, and right.
 */
#include "tests/fake/apiserver.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "tests/fake/apiserver_internal.h"

#define START_WALL INT64_C(1767225600000) /* 2026-01-01T00:00:00Z */

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
    if (!server)
        return;
    while (server->watches)
        fake_watch_close(server->watches);
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

/* ---- answers --------------------------------------------------------------------------------- */

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

void fake_answer_status(struct fleet_strbuf *out, int status, const char *reason,
                        const char *message)
{
    fleet_strbuf_append(out, "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},"
                             "\"status\":\"Failure\",\"message\":");
    fleet_json_append_string(out, message);
    fleet_strbuf_appendf(out, ",\"reason\":\"%s\",\"code\":%d}", reason, status);
}

void fake_answer_refuse(struct fake_response *response, int status, const char *reason,
                        const char *message)
{
    response->status = status;
    fleet_strbuf_clear(&response->body);
    fake_answer_status(&response->body, status, reason ? reason : reason_of(status), message);
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

void fake_answer_object(struct fake_response *response, int status, const cJSON *object)
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

/* ---- requests -------------------------------------------------------------------------------- */

void fake_apiserver_fail(struct fake_apiserver *server, const struct fake_failure *failure)
{
    fleet_assert(server->failure_count < FAKE_FAILURES_MAX);
    server->failures[server->failure_count++] = *failure;
}

void fake_apiserver_fail_no_more(struct fake_apiserver *server)
{
    server->failure_count = 0;
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

static void serve(struct fake_apiserver *server, struct fake_address *a,
                  const struct fake_request *request, const cJSON *body,
                  struct fake_response *response)
{
    FLEET_AUTO_FREE char *key = fake_address_key(a->collection, a->namespace_, a->name);
    const cJSON *object = fleet_map_get(&server->objects, key);
    bool dry_run = strcmp(fake_address_parameter(a, "dryRun"), "All") == 0;
    const char *method = request->method;

    if (strcmp(method, "GET") == 0 && a->watch)
        fake_watch_open(server, a, response);
    else if (strcmp(method, "GET") == 0 && !*a->name)
        fake_list(server, a, response);
    else if (strcmp(method, "GET") == 0 && object)
        fake_answer_object(response, 200, object);
    else if (strcmp(method, "GET") == 0)
        fake_answer_refuse(response, 404, NULL, "not found");
    else if (strcmp(method, "DELETE") == 0 && *a->name)
        fake_object_delete(server, a, body, response);
    else if (!cJSON_IsObject(body))
        fake_answer_refuse(response, 400, NULL, "the body is not a JSON object");
    else if (strcmp(method, "POST") == 0 && server->review &&
             server->review(server->review_user, a->collection, (cJSON *)body))
        fake_answer_object(response, 201, body);
    else if (strcmp(method, "POST") == 0 && !*a->name)
        fake_object_create(server, a, (cJSON *)body, dry_run, response);
    else if (strcmp(method, "PUT") == 0)
        fake_object_change(server, a, false, body, response);
    else if (strcmp(method, "PATCH") == 0 && !object &&
             *fake_address_parameter(a, "fieldManager") && *fake_object_text(body, "apiVersion") &&
             !*a->subresource)
        fake_object_create(server, a, (cJSON *)body, dry_run,
                           response); /* server-side apply creates */
    else if (strcmp(method, "PATCH") == 0)
        fake_object_change(server, a, true, body, response);
    else
        fake_answer_refuse(response, 405, "MethodNotAllowed", "method not allowed");
}

void fake_apiserver_handle(struct fake_apiserver *server, const struct fake_request *request,
                           struct fake_response *response)
{
    FLEET_AUTO_JSON cJSON *body = NULL;
    const struct fake_failure *failure;
    struct fake_address a;
    int64_t before = server->version;
    bool known = fake_address_read(request->path, &a);
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
        fake_answer_refuse(response, 404, NULL, "the server could not find the requested resource");
    else if (!failure || failure->after)
        serve(server, &a, request, body, response);
    if (failure) {
        fake_response_release(response);
        response->is_ordered = true;
        response->drop = failure->status == 0;
        response->retry_after_s = failure->retry_after_s;
        if (!response->drop)
            fake_answer_refuse(response, failure->status, NULL,
                               failure->message ? failure->message : "ordered by the test");
        if (!response->drop && failure->cause)
            add_cause(response, failure->cause);
    }
    fake_address_release(&a);
    if (server->version != before)
        fake_watch_tell(server);
}

void fake_apiserver_offer(struct fake_apiserver *server, const char *group_version)
{
    server->offered = group_version;
}

void fake_apiserver_on_review(struct fake_apiserver *server,
                              bool (*review)(void *user, const char *collection, cJSON *object),
                              void *user)
{
    server->review = review;
    server->review_user = user;
}

void fake_apiserver_spare_others(struct fake_apiserver *server)
{
    server->spares_others = true;
}

/* ---- for tests ------------------------------------------------------------------------------- */

const cJSON *fake_apiserver_get(const struct fake_apiserver *server, const char *path)
{
    struct fake_address a;
    bool known = fake_address_read(path, &a);
    FLEET_AUTO_FREE char *key = fake_address_key(a.collection, a.namespace_, a.name);
    const cJSON *object = known ? fleet_map_get(&server->objects, key) : NULL;

    fake_address_release(&a);
    return object;
}

size_t fake_apiserver_count(const struct fake_apiserver *server, const char *path)
{
    struct fake_address a;
    size_t count = 0;

    if (fake_address_read(path, &a))
        free(fake_list_keys(server, &a, &count));
    fake_address_release(&a);
    return count;
}

const cJSON **fake_apiserver_list(const struct fake_apiserver *server, const char *path,
                                  size_t *out_count)
{
    FLEET_AUTO_FREE const char **keys = NULL;
    const cJSON **objects;
    struct fake_address a;
    bool known = fake_address_read(path, &a);

    fleet_assert(known);
    keys = fake_list_keys(server, &a, out_count);
    objects = calloc(*out_count + 1, sizeof(*objects));
    fleet_assert(objects != NULL);
    for (size_t i = 0; i < *out_count; i++)
        objects[i] = fleet_map_get(&server->objects, keys[i]);
    fake_address_release(&a);
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
