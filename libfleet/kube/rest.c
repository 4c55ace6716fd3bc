/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A request is converted to text once and may be sent several times: a busy server answers with a
 * time to wait, and the repetition is part of the same call.
 */
#include "libfleet/kube/rest.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/slim.h"

/* The second form is for API servers that cannot give the first one. */
#define ONLY_METADATA \
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

#define BUSY_WAIT_MS    1000.0   /* after a 429 without Retry-After */
#define BUSY_WAIT_MAX   30000.0  /* longest Retry-After that is respected */
#define WATCH_GRACE_MS  30000.0  /* a watch may last this much longer than its timeout */
#define LIST_TIMEOUT_MS 120000.0 /* of a page; one that stalls ends earlier (KUBE_STALL_S) */

const struct kube_resource kube_pods = {"", "v1", "pods", "Pod", true};
const struct kube_resource kube_secrets = {"", "v1", "secrets", "Secret", true};
const struct kube_resource kube_services = {"", "v1", "services", "Service", true};
const struct kube_resource kube_config_maps = {"", "v1", "configmaps", "ConfigMap", true};
const struct kube_resource kube_namespaces = {"", "v1", "namespaces", "Namespace", false};
const struct kube_resource kube_nodes = {"", "v1", "nodes", "Node", false};
const struct kube_resource kube_events = {"events.k8s.io", "v1", "events", "Event", true};
const struct kube_resource kube_leases = {"coordination.k8s.io", "v1", "leases", "Lease", true};
const struct kube_resource kube_endpoint_slices = {"discovery.k8s.io", "v1", "endpointslices",
                                                   "EndpointSlice", true};

struct kube_rest_call {
    struct kube_io *io;
    struct kube_call *call; /* the request, or the timer between two requests */
    const char *method;     /* of the HTTP request; static */
    const char *accept, *content_type;
    char *path;          /* with query */
    char *body;          /* NULL: none */
    double deadline_ms;  /* deadline of the call with its repetitions; 0: none */
    bool urgent, reread; /* a read that was sent again because the first got no answer */
    kube_rest_done *done;
    void *user;

    /* watch */
    struct kube_watch_parser parser;
    kube_rest_event *on_event;
    kube_rest_end *on_end;
    bool feeding;   /* the parser is on our call stack: it must not be freed */
    bool cancelled; /* while feeding */
};

/* ---- path and query -------------------------------------------------------------------------- */

void kube_resource_api_version(const struct kube_resource *resource, struct fleet_strbuf *out)
{
    if (*resource->group)
        fleet_strbuf_appendf(out, "%s/", resource->group);
    fleet_strbuf_append(out, resource->version);
}

static void append_escaped(struct fleet_strbuf *out, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (isalnum(*p) || strchr("-_.~", *p))
            fleet_strbuf_append_char(out, (char)*p);
        else
            fleet_strbuf_appendf(out, "%%%02X", *p);
    }
}

static void append_segment(struct fleet_strbuf *out, const char *text)
{
    if (!text || !*text)
        return;
    fleet_strbuf_append_char(out, '/');
    append_escaped(out, text);
}

static void append_parameter(struct fleet_strbuf *out, const char *name, const char *value)
{
    if (!value || !*value)
        return;
    fleet_strbuf_append_char(out, strchr(out->text, '?') ? '&' : '?');
    fleet_strbuf_appendf(out, "%s=", name);
    append_escaped(out, value);
}

static void append_number(struct fleet_strbuf *out, const char *name, int value)
{
    char text[16];

    if (value <= 0)
        return;
    snprintf(text, sizeof(text), "%d", value);
    append_parameter(out, name, text);
}

void kube_rest_path(const struct kube_rest_request *r, bool watch, struct fleet_strbuf *out)
{
    bool list = watch || r->verb == KUBE_LIST;
    bool write = !watch && (r->verb == KUBE_CREATE || r->verb == KUBE_UPDATE ||
                            r->verb == KUBE_MERGE_PATCH || r->verb == KUBE_APPLY);

    fleet_strbuf_append(out, *r->resource->group ? "/apis" : "/api");
    append_segment(out, r->resource->group);
    append_segment(out, r->resource->version);
    if (r->resource->namespaced && r->namespace_ && *r->namespace_) {
        fleet_strbuf_append(out, "/namespaces");
        append_segment(out, r->namespace_);
    }
    append_segment(out, r->resource->plural);
    if (!list && (r->verb != KUBE_CREATE || r->subresource)) {
        fleet_assert(r->name && *r->name); /* otherwise the whole collection is deleted */
        append_segment(out, r->name);
        append_segment(out, r->subresource);
    }
    if (list) {
        append_parameter(out, "labelSelector", r->label_selector);
        append_parameter(out, "fieldSelector", r->field_selector);
        append_parameter(out, "resourceVersion", r->resource_version);
    }
    if (watch) {
        append_parameter(out, "watch", "true");
        append_parameter(out, "allowWatchBookmarks", "true");
        append_number(out, "timeoutSeconds", r->watch_timeout_s);
    } else if (list) {
        append_parameter(out, "resourceVersionMatch", r->resource_version_match);
        append_number(out, "limit", r->limit);
        append_parameter(out, "continue", r->continue_token);
    }
    if (write) {
        append_parameter(out, "fieldManager", r->field_manager);
        append_parameter(out, "dryRun", r->dry_run ? "All" : NULL);
        append_parameter(out, "fieldValidation", r->field_validation);
        append_parameter(out, "force", r->verb == KUBE_APPLY && r->force ? "true" : NULL);
    }
}

/* metav1.DeleteOptions, or NULL if the defaults suffice. */
static char *delete_options(const struct kube_rest_request *r)
{
    FLEET_AUTO_JSON cJSON *options = NULL;

    if (!r->uid && !r->propagation && !r->grace_period_s && !r->dry_run)
        return NULL;
    options = fleet_json_new_object();
    fleet_json_set_string(options, "kind", "DeleteOptions");
    fleet_json_set_string(options, "apiVersion", "v1");
    if (r->uid)
        fleet_json_set_string(fleet_json_set_object(options, "preconditions"), "uid", r->uid);
    if (r->propagation)
        fleet_json_set_string(options, "propagationPolicy", r->propagation);
    if (r->grace_period_s)
        fleet_json_set_number(options, "gracePeriodSeconds", (double)*r->grace_period_s);
    if (r->dry_run)
        fleet_json_add_string(fleet_json_set_list(options, "dryRun"), "All");
    return fleet_json_print(options);
}

/* ---- one call -------------------------------------------------------------------------------- */

static void call_free(struct kube_rest_call *call)
{
    kube_cancel(call->io, &call->call);
    kube_watch_parser_release(&call->parser);
    free(call->path);
    free(call->body);
    free(call);
}

void kube_rest_cancel(struct kube_rest_call **handle)
{
    struct kube_rest_call *call = *handle;

    *handle = NULL;
    if (!call)
        return;
    if (call->feeding) {
        call->cancelled = true; /* on_watch_data frees it after the parser has returned */
        kube_cancel(call->io, &call->call);
    } else {
        call_free(call);
    }
}

/* Put verb and path, without the query, in front of the message. */
static void name_call(const struct kube_rest_call *call, struct fleet_error *err)
{
    (void)fleet_error_wrap(err, "%s %.*s", call->method, (int)strcspn(call->path, "?"), call->path);
}

/* The call is freed before its last callback, so that the callback may do anything. */
static void finish(struct kube_rest_call *call, const cJSON *object, const struct fleet_error *err)
{
    kube_rest_done *done = call->done;
    void *user = call->user;
    struct fleet_error named;

    if (err) {
        named = *err;
        name_call(call, &named);
    }
    call_free(call);
    done(user, object, err ? &named : NULL);
}

static void send_call(struct kube_rest_call *call);

static void on_retry_time(void *user)
{
    struct kube_rest_call *call = user;

    call->call = NULL;
    send_call(call);
}

/* Is the server busy, with time left to ask again? Then the call continues. */
static bool try_again(struct kube_rest_call *call, const struct kube_response *response)
{
    double wait_ms = response->retry_after_ms;
    bool is_create = strcmp(call->method, "POST") == 0;

    /* The server may have carried out the failed request. An update or a delete names the object's
     * version, so it may be sent again. A create may not: it could make an object again that was
     * deleted meanwhile. */
    if (response->status != 429 && !(response->status >= 500 && wait_ms > 0 && !is_create))
        return false;
    if (wait_ms <= 0)
        wait_ms = BUSY_WAIT_MS;
    if (wait_ms > BUSY_WAIT_MAX)
        wait_ms = BUSY_WAIT_MAX;
    wait_ms *=
        1 + 0.25 * kube_random(call->io); /* jitter: refused calls do not all return at once */
    if (kube_now_ms(call->io) + wait_ms >= call->deadline_ms)
        return false;
    call->call = kube_after(call->io, wait_ms, on_retry_time, call);
    return true;
}

/* The server or a proxy closed an idle connection before the answer. A read is retried once. If the
 * request changes something, the caller must find out whether it was carried out. */
static bool read_again(struct kube_rest_call *call, const struct kube_response *response)
{
    if (call->reread || strcmp(call->method, "GET") != 0 ||
        kube_error_kind(response->err) != KUBE_ERROR_UNREACHABLE ||
        kube_now_ms(call->io) >= call->deadline_ms)
        return false;
    call->reread = true;
    send_call(call);
    return true;
}

static int decode(const struct kube_response *response, cJSON **out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf slim = {0};
    int rc;

    (void)kube_slim(response->body, response->size, &slim);
    rc = fleet_json_parse_foreign(fleet_strbuf_text(&slim), slim.length, SIZE_MAX, out, err);
    return rc < 0 ? fleet_error_wrap(err, "decode the answer") : 0;
}

static void on_answer(void *user, const struct kube_response *response)
{
    struct kube_rest_call *call = user;
    FLEET_AUTO_JSON cJSON *object = NULL;
    struct fleet_error err;

    call->call = NULL;
    if (response->err && read_again(call, response)) {
        return;
    } else if (response->err) {
        finish(call, NULL, response->err);
    } else if (try_again(call, response)) {
        return;
    } else if (response->status < 200 || response->status >= 300) {
        (void)kube_api_error_decode(response->status, response->body, response->size, &err);
        finish(call, NULL, &err);
    } else if (decode(response, &object, &err) < 0) {
        finish(call, NULL, &err);
    } else {
        finish(call, object, NULL);
    }
}

static void send_call(struct kube_rest_call *call)
{
    struct kube_request request = {
        .method = call->method,
        .path = call->path,
        .accept = call->accept,
        .content_type = call->content_type,
        .body = call->body,
        .body_size = call->body ? strlen(call->body) : 0,
        .timeout_ms = call->deadline_ms - kube_now_ms(call->io),
        .urgent = call->urgent,
        .on_done = on_answer,
        .user = call,
    };

    if (request.timeout_ms < 1)
        request.timeout_ms = 1;
    call->call = kube_send(call->io, &request);
}

static struct kube_rest_call *call_new(struct kube_io *io, const struct kube_rest_request *request,
                                       bool watch, void *user)
{
    struct kube_rest_call *call = calloc(1, sizeof(*call));
    struct fleet_strbuf path = {0};

    fleet_assert(call != NULL);
    kube_rest_path(request, watch, &path);
    call->io = io;
    call->path = fleet_strbuf_take(&path);
    call->accept = request->only_metadata && !watch ? ONLY_METADATA : NULL;
    call->urgent = request->urgent;
    call->user = user;
    return call;
}

struct kube_rest_call *kube_rest_start(struct kube_io *io, const struct kube_rest_request *request,
                                       kube_rest_done *done, void *user)
{
    static const struct {
        const char *method, *content_type;
    } verbs[] = {
        [KUBE_GET] = {"GET", NULL},
        [KUBE_LIST] = {"GET", NULL},
        [KUBE_CREATE] = {"POST", "application/json"},
        [KUBE_UPDATE] = {"PUT", "application/json"},
        [KUBE_MERGE_PATCH] = {"PATCH", "application/merge-patch+json"},
        /* YAML is a superset of JSON, and the only type name that apply has */
        [KUBE_APPLY] = {"PATCH", "application/apply-patch+yaml"},
        [KUBE_DELETE] = {"DELETE", NULL},
    };
    struct kube_rest_call *call = call_new(io, request, false, user);
    double timeout_ms = request->timeout_ms;

    fleet_assert(request->verb != KUBE_APPLY || request->field_manager);
    if (timeout_ms <= 0)
        timeout_ms = request->verb == KUBE_LIST ? LIST_TIMEOUT_MS : KUBE_TIMEOUT_MS;
    call->done = done;
    call->method = verbs[request->verb].method;
    call->content_type = verbs[request->verb].content_type;
    call->deadline_ms = kube_now_ms(io) + timeout_ms;
    if (call->content_type) {
        fleet_assert(request->body != NULL);
        call->body = fleet_json_print(request->body);
    } else if (request->verb == KUBE_DELETE && (call->body = delete_options(request))) {
        call->content_type = "application/json";
    }
    send_call(call);
    return call;
}

/* ---- watch ----------------------------------------------------------------------------------- */

static int pass_event(void *user, enum kube_watch_type type, const cJSON *object,
                      struct fleet_error *err)
{
    struct kube_rest_call *call = user;

    call->on_event(call->user, type, object);
    return call->cancelled ? fleet_error(err, -ECANCELED, "cancelled") : 0;
}

static void end_watch(struct kube_rest_call *call, const struct fleet_error *err)
{
    kube_rest_end *on_end = call->on_end;
    void *user = call->user;
    struct fleet_error named;

    if (err) {
        named = *err;
        (void)fleet_error_wrap(&named, "WATCH %.*s", (int)strcspn(call->path, "?"), call->path);
    }
    call_free(call);
    on_end(user, err ? &named : NULL);
}

static void on_watch_data(void *user, const void *bytes, size_t size)
{
    struct kube_rest_call *call = user;
    struct fleet_error err;
    int rc;

    call->feeding = true;
    rc = kube_watch_feed(&call->parser, bytes, size, pass_event, call, &err);
    call->feeding = false;
    if (call->cancelled)
        call_free(call);
    else if (rc < 0)
        end_watch(call, &err);
}

static void on_watch_done(void *user, const struct kube_response *response)
{
    struct kube_rest_call *call = user;
    struct fleet_error err;

    call->call = NULL;
    if (response->err) {
        end_watch(call, response->err);
    } else if (response->status < 200 || response->status >= 300) {
        (void)kube_api_error_decode(response->status, response->body, response->size, &err);
        end_watch(call, &err);
    } else {
        end_watch(call, kube_watch_finish(&call->parser, &err) < 0 ? &err : NULL);
    }
}

struct kube_rest_call *kube_rest_watch(struct kube_io *io, const struct kube_rest_request *request,
                                       kube_rest_event *on_event, kube_rest_end *on_end, void *user)
{
    struct kube_rest_call *call = call_new(io, request, true, user);
    struct kube_request http = {
        .method = "GET",
        .path = call->path,
        .streaming = true,
        .on_data = on_watch_data,
        .on_done = on_watch_done,
        .user = call,
    };

    /* a deadline of our own, in case the server does not end the watch */
    if (request->watch_timeout_s > 0)
        http.timeout_ms = request->watch_timeout_s * 1000.0 + WATCH_GRACE_MS;
    call->on_event = on_event;
    call->on_end = on_end;
    call->call = kube_send(io, &http);
    return call;
}
