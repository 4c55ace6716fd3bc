/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_KUBE_HTTP_INTERNAL_H
#define LIBFLEET_KUBE_HTTP_INTERNAL_H

/*
 * What the files of http.h share, for them alone: http.c has the calls, from send to the end,
 * http_deliver.c brings data and ends to their owners,
 * http_plug_in.c their credential, http_easy.c says what a call is in curl's words, http_loop.c
 * lets curl work on the loop.
 */

#include <uv.h>

#include <curl/curl.h>

#include "libfleet/base/list.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/http.h"

enum kube_call_state {
    KUBE_CALL_TIMER,   /* a timer, not a request */
    KUBE_CALL_WAITING, /* for a place among those in flight */
    KUBE_CALL_PARKED,  /* for a credential */
    KUBE_CALL_ACTIVE,  /* in curl */
    KUBE_CALL_ENDED,   /* out of curl, on_done to come */
};

struct kube_call {
    struct fleet_list place; /* in http->waiting, http->parked or http->calls, as `state` says */
    struct fleet_list ready; /* in http->ready while there is something to deliver */
    struct kube_http *http;
    enum kube_call_state state;
    struct kube_request request; /* its pointers point into the members below, or are NULL */
    char *path, *accept, *content_type, *body;
    size_t body_taken;  /* bytes of it that curl has had */
    double deadline_ms; /* 0: none */

    CURL *easy;
    struct curl_slist *headers, *dial; /* `dial`: where, if not where the URL says */
    struct fleet_strbuf answer;        /* streaming: what on_data has not had yet */
    bool too_large;
    CURLcode result;
    char curl_text[CURL_ERROR_SIZE];

    uv_timer_t timer; /* KUBE_CALL_TIMER, or a request that ended before it reached curl */
    void (*on_time)(void *user);
    void *on_time_user;
};

struct kube_http {
    struct kube_io io;
    uv_loop_t *loop;
    struct kube_config *config;
    char *user_agent;
    CURLM *multi;
    uv_timer_t curl_timer;
    uv_timer_t waiting_timer; /* until the earliest deadline among `waiting`, … */
    double waiting_due_ms;    /* … which is this */
    uv_idle_t kick;           /* runs while `ready` has entries that no socket will bring up */
    struct fleet_list waiting, parked, calls, ready;
    struct kube_exec_run *plug_in; /* on its way, on another thread; NULL = none */
    uv_work_t plug_in_work;
    bool has_news;           /* it has just answered */
    double plug_in_retry_ms; /* it failed, with a credential still valid: not again before */
    int in_flight, in_flight_max, waiting_count;
    int stall_s;
    int open_handles; /* of the loop, that have to close before the memory may go */
    bool ending;
    void (*answered)(void *user, const char *verb, int status);
    void *user;
};

/* ---- http.c ---------------------------------------------------------------------------------- */

/* Free what kube_http_free() has ended, once the last handle of the loop is closed. */
void kube_http_free_when_closed(struct kube_http *http);

/* Put a call into curl, or park it until there is a credential. */
void kube_call_start(struct kube_call *call);

/* A call that will not reach curl: its end is delivered like any other, later. */
void kube_call_end_early(struct kube_call *call, CURLcode result, const char *why);

/* A handle of the loop is closed. */
void kube_http_on_closed(uv_handle_t *handle);

/* Start waiting calls while there is room in flight. */
void kube_http_start_waiting(struct kube_http *http);

/* ---- http_deliver.c -------------------------------------------------------------------------- */

/* May it (still) go out? */
bool kube_call_may_leave(const struct kube_call *call);

/* The answer has a status 2xx. */
bool kube_call_is_success(const struct kube_call *call);

/* Deliver this call's data or end in the next turn of the loop, unless kube_http_deliver() is
 * called before. */
void kube_call_make_ready(struct kube_call *call);

/* Run the callbacks of all calls that are ready. Never from within a callback of curl. */
void kube_http_deliver(struct kube_http *http);

/* Take the call out of curl and of every list, and free it. */
void kube_call_free(struct kube_call *call);

/* If calls are ready, deliver them in the next turn of the loop. */
void kube_http_kick(struct kube_http *http);

/* ---- http_plug_in.c -------------------------------------------------------------------------- */

/* Is there a valid credential? If it is about to expire, the plug-in begins to bring another. */
bool kube_http_has_credential(struct kube_http *http, double now_ms);

/* ---- http_easy.c ----------------------------------------------------------------------------- */

/* Make call->easy and call->headers: the request with its identity and limits, as of `now_ms`. */
void kube_call_make_easy(struct kube_call *call, double now_ms);

/* ---- http_loop.c ----------------------------------------------------------------------------- */

/* Let the loop watch curl's sockets and timer from now on. */
void kube_http_watch(struct kube_http *http);

#endif
