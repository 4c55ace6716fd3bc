/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKE_APISERVER_H
#define TESTS_FAKE_APISERVER_H

/*
 * A Kubernetes API server without sockets, threads or clock: request in, answer out.
 *
 * It stores objects of any group, version and plural as raw JSON and keeps the promises that a
 * controller lives by: resourceVersion on every change, 409 on a stale one, UIDs that never come
 * back, generation that moves with the spec, finalizers, pages with continue tokens, watches that
 * replay from a version, bookmarks, 410 after a compaction. It does not check schemas, run
 * admission or default fields, knows no users, and takes server-side apply as a merge patch that
 * creates.
 *
 * The same code answers over HTTP (apiserver_http.h) and in simulations. Failures are ordered in
 * advance with fake_apiserver_fail().
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/strbuf.h"

struct fake_apiserver;
struct fake_watch;

struct fake_apiserver *fake_apiserver_new(void);
void fake_apiserver_free(struct fake_apiserver *server);

/* Time for creationTimestamp and the like, milliseconds since 1970; it begins at 2026-01-01. */
void fake_apiserver_set_wall(struct fake_apiserver *server, int64_t wall_ms);

/* Discovery finds this group, "scheduling.volcano.sh/v1beta1"; static. Others are not found by
 * it. */
void fake_apiserver_offer(struct fake_apiserver *server, const char *group_version);

struct fake_request {
    const char *method;
    const char *path; /* with query, percent-encoded */
    const char *body; /* NULL: none */
    size_t body_size;
};

struct fake_response {
    int status;
    struct fleet_strbuf body;
    int retry_after_s;        /* 0: no such header */
    struct fake_watch *watch; /* a stream: read it, then close it; else NULL */
    bool drop;                /* close the connection without an answer */
    bool is_ordered;          /* a failure of fake_apiserver_fail() */
};

/* Answer one request. *response starts as all zero; release it with fake_response_release(). */
void fake_apiserver_handle(struct fake_apiserver *server, const struct fake_request *request,
                           struct fake_response *response);
void fake_response_release(struct fake_response *response);

/* ---- watches -------------------------------------------------------------------------------- */

/* Append the lines since the last read. False: the stream has ended, close it. */
bool fake_watch_read(struct fake_watch *watch, struct fleet_strbuf *out);
bool fake_watch_is_quiet(struct fake_watch *watch); /* no new lines, and it has not ended */
void fake_watch_close(struct fake_watch *watch);

/* Set a function that is called after every change of an object, so that a front can send the new
 * lines of its watches. */
void fake_apiserver_on_change(struct fake_apiserver *server, void (*changed)(void *user),
                              void *user);

/* A bookmark for every open watch that asked for them. */
void fake_apiserver_bookmark(struct fake_apiserver *server);

/* End every open watch at once; with `half`, in the middle of an event. */
void fake_apiserver_cut_watches(struct fake_apiserver *server, bool half);

/* Forget history: watches from, and pages of, an older version are answered 410. */
void fake_apiserver_compact(struct fake_apiserver *server);

/* ---- failures ------------------------------------------------------------------------------- */

struct fake_failure {
    const char *method; /* NULL: any; "WATCH" for watches */
    const char *path;   /* part of the path; NULL: any; static */
    int count;          /* how many requests */
    int status;         /* 409, 410, 429, 500, …; 0: drop the connection */
    int retry_after_s;
    const char *cause;   /* the reason of details.causes; NULL: none; static */
    const char *message; /* NULL: "ordered by the test"; static */
    bool after;          /* carry out the request, then fail: the client cannot know the result */
};

/* The next requests that match fail. Earlier orders are served first. */
void fake_apiserver_fail(struct fake_apiserver *server, const struct fake_failure *failure);

/* What was ordered and has not happened yet is called off. */
void fake_apiserver_fail_no_more(struct fake_apiserver *server);

/* From now on failures do not hold for requests of fake_apiserver_do(). */
void fake_apiserver_spare_others(struct fake_apiserver *server);

/*
 * Objects that are answered and not stored, such as reviews of tokens: a POST to a collection goes
 * to `review` first, which fills the object's status and returns true, or returns false if the
 * collection is stored as usual.
 */
void fake_apiserver_on_review(struct fake_apiserver *server,
                              bool (*review)(void *user, const char *collection, cJSON *object),
                              void *user);

/* ---- looking and touching, for tests
 * ------------------------------------------------------------ */

/* The stored object at "/api/v1/namespaces/default/pods/x" (no query), or NULL. Borrowed. */
const cJSON *fake_apiserver_get(const struct fake_apiserver *server, const char *path);

/* How many objects there are below the collection path "/api/v1/pods" or "…/namespaces/x/pods". */
size_t fake_apiserver_count(const struct fake_apiserver *server, const char *path);

/* Its objects, sorted by namespace and name, borrowed until something changes. The caller frees the
 * array. */
const cJSON **fake_apiserver_list(const struct fake_apiserver *server, const char *path,
                                  size_t *out_count);

/* Requests answered so far whose "METHOD path?query" contains `part`; a watch's method is WATCH. */
size_t fake_apiserver_requests(const struct fake_apiserver *server, const char *part);

/* Create, patch or delete as another client. Returns the HTTP status. `body` may be NULL. */
int fake_apiserver_do(struct fake_apiserver *server, const char *method, const char *path,
                      const char *body);

#endif
