/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_REST_H
#define LIBFLEET_KUBE_REST_H

/*
 * The API server's verbs on raw JSON objects.
 *
 *     struct kube_rest_request request = {.verb = KUBE_GET, .resource = &kube_pods,
 *                                         .namespace_ = "default", .name = "gpt-worker-0-0"};
 *     call = kube_rest_start(io, &request, on_pod, self);
 *
 * The call ends with one on_done, or with kube_rest_cancel. If the server answers 429, the call
 * is repeated after the time that the server asked for, as long as the deadline allows. The same
 * for a 5xx with such a time, except for a create: the server may have carried it out. A GET or
 * LIST whose connection ended without an answer is sent once more; a request that may have
 * changed something is not. The caller judges every other failure by the predicates of
 * api_error.h.
 */

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/kube/io.h"
#include "libfleet/kube/watch.h"

struct fleet_error;
struct kube_rest_call;

/* ---- resources ------------------------------------------------------------------------------- */

struct kube_resource {
    const char *group;   /* "" for the core group */
    const char *version; /* "v1" */
    const char *plural;  /* "pods" */
    const char *kind;    /* "Pod" */
    bool namespaced;
};

extern const struct kube_resource kube_pods, kube_secrets, kube_services, kube_config_maps,
    kube_events, kube_leases, kube_endpoint_slices, kube_namespaces, kube_nodes;

/* "v1" or "coordination.k8s.io/v1", appended. */
void kube_resource_api_version(const struct kube_resource *resource, struct fleet_strbuf *out);

/* ---- requests -------------------------------------------------------------------------------- */

enum kube_verb {
    KUBE_GET,
    KUBE_LIST,
    KUBE_CREATE,
    KUBE_UPDATE,      /* PUT: the body carries the resourceVersion it was made from */
    KUBE_MERGE_PATCH, /* RFC 7386 */
    KUBE_APPLY,       /* server-side apply; needs field_manager */
    KUBE_DELETE,
};

#define KUBE_TIMEOUT_MS 30000.0 /* of a request that sets none; a list has 120 s (http.h) */

struct kube_rest_request { /* all zero but verb and resource is a valid GET or LIST */
    enum kube_verb verb;
    const struct kube_resource *resource;
    const char *namespace_;  /* NULL or "": none, or all of them (list) */
    const char *name;        /* NULL for list, and for create of other than a subresource */
    const char *subresource; /* "status", "scale", "token"; or NULL */
    const cJSON *body;       /* create, update, patches; borrowed for the call of kube_rest_start */
    double timeout_ms;       /* of the whole, repetitions included; 0: KUBE_TIMEOUT_MS */
    bool urgent;             /* see struct kube_request */

    /* The answer needs to have nothing but metadata. It is less work for the server, and for us. An
     * API server that cannot do that answers with the whole object. */
    bool only_metadata;

    /* writing */
    const char *field_manager;
    bool force;   /* apply: take fields over from other managers */
    bool dry_run; /* check all, persist nothing */
    /* What the server does with fields that it does not know: "Strict" refuses the object, "Ignore"
     * drops them; NULL: the server's default, which warns and drops. */
    const char *field_validation;

    /* delete */
    const char *uid;               /* only the object with this UID */
    const char *propagation;       /* "Background", "Foreground", "Orphan"; NULL: the kind's own */
    const int64_t *grace_period_s; /* NULL: the object's own */

    /* list and watch */
    const char *label_selector, *field_selector;
    int limit; /* items a page; 0: all at once */
    const char *continue_token;
    const char *resource_version;       /* watch: from here on; list: at least this fresh */
    const char *resource_version_match; /* list: "NotOlderThan" or "Exact" */
    int watch_timeout_s;                /* when the server ends the watch; 0: its own default */
};

/*
 * The end of a call: `object` is the answer, borrowed, or NULL with `err`, whose text begins with
 * verb and path: "POST /api/v1/namespaces/default/pods: 409 AlreadyExists: …".
 */
typedef void kube_rest_done(void *user, const cJSON *object, const struct fleet_error *err);

/*
 * Start a request, which is copied. The result is for kube_rest_cancel() alone and dead once `done`
 * runs; `done` never runs within this call.
 */
struct kube_rest_call *kube_rest_start(struct kube_io *io, const struct kube_rest_request *request,
                                       kube_rest_done *done, void *user);

/*
 * Watch: `on_event` for each event (bookmarks included, they are always asked for), then one
 * `on_end`, with NULL if the server ended the stream normally. Verb, body and name are ignored.
 */
typedef void kube_rest_event(void *user, enum kube_watch_type type, const cJSON *object);
typedef void kube_rest_end(void *user, const struct fleet_error *err);

struct kube_rest_call *kube_rest_watch(struct kube_io *io, const struct kube_rest_request *request,
                                       kube_rest_event *on_event, kube_rest_end *on_end,
                                       void *user);

/* Forget *call, if there is one; none of its callbacks runs any more. It may be the running one. */
void kube_rest_cancel(struct kube_rest_call **handle);

/* Path and query of a request, appended (for tests and tools; `watch` as kube_rest_watch makes
 * it). */
void kube_rest_path(const struct kube_rest_request *request, bool watch, struct fleet_strbuf *out);

#endif
