/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_KUBE_HTTP_FIXTURE_H
#define TESTS_INTEGRATION_KUBE_HTTP_FIXTURE_H

/*
 * A client of the fake API server: requests with their answers, and what a watch reported.
 */

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/api_error.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http.h"
#include "libfleet/kube/rest.h"
#include "tests/fake/apiserver.h"
#include "tests/fake/apiserver_http.h"
#include "tests/support/loop_turn.h"

#define PODS "/api/v1/namespaces/default/pods"
struct world {
    uv_loop_t loop;
    struct fake_apiserver *server;
    struct fake_apiserver_http *front;
    struct kube_config config;
    struct kube_io *io;
    int done_count; /* of on_done */
    bool has_failed;
    enum kube_error done_kind;
};

static inline int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    char server[64];
    int port;

    assert_int_equal(uv_loop_init(&w->loop), 0);
    w->server = fake_apiserver_new();
    w->front = fake_apiserver_http_new(&w->loop, w->server, &port);
    snprintf(server, sizeof(server), "http://127.0.0.1:%d", port);
    w->config.server = strdup(server);
    assert_int_equal(kube_http_new(&w->loop, &w->config,
                                   &(struct kube_http_options){.in_flight_max = 4}, &w->io, NULL),
                     0);
    *state = w;
    return 0;
}

static inline int tear_down(void **state)
{
    struct world *w = *state;

    kube_http_free(w->io);
    fake_apiserver_http_free(w->front);
    assert_int_equal(uv_run(&w->loop, UV_RUN_DEFAULT), 0); /* everything closes by itself */
    assert_int_equal(uv_loop_close(&w->loop), 0);
    fake_apiserver_free(w->server);
    kube_config_release(&w->config);
    free(w);
    return 0;
}

/* A port that takes connections and never answers. */
static inline int listen_silently(int *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *out_port = ntohs(address.sin_port);
    return fd;
}

struct answer {
    int count;  /* of on_done */
    char *text; /* the object */
    struct fleet_error err;
    bool failed;
};

static inline void on_answer(void *user, const cJSON *object, const struct fleet_error *err)
{
    struct answer *a = user;

    a->count++;
    free(a->text);
    a->text = object ? fleet_json_print(object) : NULL;
    a->failed = err != NULL;
    if (err)
        a->err = *err;
}

/* Send and wait. The caller frees answer.text. */
static inline struct answer do_request(struct world *w, const struct kube_rest_request *request)
{
    struct answer a = {0};

    (void)kube_rest_start(w->io, request, on_answer, &a);
    assert_int_equal(a.count, 0); /* io.h (1): never from within */
    loop_turn_until(&w->loop, &a.count, 1);
    return a;
}

struct log {
    struct fleet_strbuf events; /* one line each: type, name */
    int event_count, end_count;
    struct fleet_error err;
    bool failed;
    struct kube_rest_call *call;
    int cancel_at; /* cancel within this event; 0: never */
};

static inline void on_event(void *user, enum kube_watch_type type, const cJSON *object)
{
    struct log *log = user;
    const char *name = "";

    (void)fleet_json_opt_string(object, "metadata.name", &name, NULL);
    fleet_strbuf_appendf(&log->events, "%c%s ", "AMDB"[type], name);
    if (++log->event_count == log->cancel_at)
        kube_rest_cancel(&log->call);
}

static inline void on_end(void *user, const struct fleet_error *err)
{
    struct log *log = user;

    log->end_count++;
    log->failed = err != NULL;
    if (err)
        log->err = *err;
}

#endif
