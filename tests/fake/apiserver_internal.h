/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_APISERVER_INTERNAL_H
#define TESTS_FAKE_APISERVER_INTERNAL_H

/*
 * What the files of apiserver.h share, for them alone: apiserver.c answers requests,
 * apiserver_address.c takes paths apart, apiserver_object.c changes objects, apiserver_watch.c
 * lists and watches them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libfleet/base/map.h"
#include "tests/fake/apiserver.h"

#define FAKE_FAILURES_MAX 64

/* A change, as watches tell it. The objects that there are belong to their newest event. */
struct fake_event {
    int64_t version;
    const char *type; /* static */
    char *collection; /* "/api/v1/pods" */
    char *namespace_;
    char *object; /* JSON */
    cJSON *tree;  /* the same; not changed any more */
};

struct fake_address { /* a path, taken apart; all heap text, "" where absent */
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
    struct fleet_strbuf extra; /* sent before the next event: bookmarks, errors, halves */
    bool bookmarks, over;
};

struct fake_apiserver {
    struct fleet_map objects; /* "collection|namespace|name" → const cJSON * */
    struct fake_event *events;
    size_t event_count, event_capacity, forgotten; /* so many of the first have no text any more */
    int64_t version, oldest; /* the newest change; the oldest one that can be watched from */
    int64_t wall_ms;
    uint64_t next_uid;
    struct fake_watch *watches;
    struct fake_failure failures[FAKE_FAILURES_MAX];
    size_t failure_count;
    bool spares_others, is_other; /* whose request it is: fake_apiserver_spare_others() */
    char **log;                   /* "METHOD path" of every request */
    size_t log_count, log_capacity;
    const char *offered; /* by discovery, NULL = nothing */
    void (*changed)(void *user);
    void *changed_user;
    bool (*review)(void *user, const char *collection, cJSON *object);
    void *review_user;
};

/* ---- apiserver.c ----------------------------------------------------------------------------- */

/* Append a metav1.Status; `reason` NULL: the usual one of that HTTP status. */
void fake_answer_status(struct fleet_strbuf *out, int status, const char *reason,
                        const char *message);

/* Answer with such a Status; with an object. */
void fake_answer_refuse(struct fake_response *response, int status, const char *reason,
                        const char *message);
void fake_answer_object(struct fake_response *response, int status, const cJSON *object);

/* ---- apiserver_address.c --------------------------------------------------------------------- */

/* Take a path with its query apart; false if no resource has such a path. To be released either
 * way. */
bool fake_address_read(const char *path, struct fake_address *out);
void fake_address_release(struct fake_address *a);

/* The decoded value of a query parameter, "" if it is not given. */
const char *fake_address_parameter(const struct fake_address *a, const char *name);

/* The key of an object in fake_apiserver.objects; heap. */
char *fake_address_key(const char *collection, const char *namespace_, const char *name);

/* ---- apiserver_object.c ---------------------------------------------------------------------- */

/* The string at a dotted path, "" if there is none. */
const char *fake_object_text(const cJSON *object, const char *path);

/* POST (or an apply that creates), PUT or PATCH, DELETE: change what is stored and answer. */
void fake_object_create(struct fake_apiserver *server, struct fake_address *a, cJSON *object,
                        bool dry_run, struct fake_response *response);
void fake_object_change(struct fake_apiserver *server, struct fake_address *a, bool patch,
                        const cJSON *body, struct fake_response *response);
void fake_object_delete(struct fake_apiserver *server, struct fake_address *a, const cJSON *options,
                        struct fake_response *response);

/* ---- apiserver_watch.c ----------------------------------------------------------------------- */

/* The keys of a collection that match the selectors, sorted. The caller frees the array alone. */
const char **fake_list_keys(const struct fake_apiserver *server, const struct fake_address *a,
                            size_t *out_count);

/* GET of a collection, at once or as a stream: answer. */
void fake_list(struct fake_apiserver *server, const struct fake_address *a,
               struct fake_response *response);
void fake_watch_open(struct fake_apiserver *server, const struct fake_address *a,
                     struct fake_response *response);

/* Call the function given to fake_apiserver_on_change(): there may be something to read. */
void fake_watch_tell(struct fake_apiserver *server);

#endif
