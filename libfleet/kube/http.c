/* SPDX-License-Identifier: Apache-2.0 */

/*
 * curl must not be called from its own callbacks, and callers may do anything in theirs. So the two
 * never meet: curl's callbacks only put bytes into a call's buffer, and when curl has returned, the
 * calls that have something to say are delivered one by one (`deliver`), each taken off the list
 * before its callback runs.
 *
 *   send ──▶ waiting ──place free──▶ active (in curl) ──bytes, end──▶ ready ──▶ on_data, on_done
 */
#include "libfleet/kube/http.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <curl/curl.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/list.h"

#define IN_FLIGHT_DEFAULT  32
#define CONNECT_TIMEOUT_MS 10000L
#define PEER_SILENT_MS     20000 /* data unacknowledged this long: the connection is dead */
#define KEEPALIVE_S        15L

enum call_state {
    CALL_TIMER,   /* a timer, not a request */
    CALL_WAITING, /* for a place among those in flight */
    CALL_ACTIVE,  /* in curl */
    CALL_ENDED,   /* out of curl, on_done to come */
};

struct kube_call {
    struct list place; /* waiting: in http->waiting; else in http->calls */
    struct list ready; /* in http->ready while there is something to deliver */
    struct kube_http *http;
    enum call_state state;
    struct kube_request request; /* its pointers point into the members below, or are NULL */
    char *path, *content_type, *body;
    double deadline_ms; /* 0: none */

    CURL *easy;
    struct curl_slist *headers;
    struct fleet_strbuf answer; /* streaming: what on_data has not had yet */
    bool too_large;
    CURLcode result;
    char curl_text[CURL_ERROR_SIZE];

    uv_timer_t timer; /* CALL_TIMER, or a request that ended before it reached curl */
    void (*on_time)(void *user);
    void *on_time_user;
};

struct socket_watch { /* one of curl's sockets, watched by the loop */
    uv_poll_t poll;
    struct kube_http *http;
    curl_socket_t fd;
};

struct kube_http {
    struct kube_io io;
    uv_loop_t *loop;
    struct kube_config *config;
    char *user_agent;
    CURLM *multi;
    uv_timer_t curl_timer;
    uv_idle_t kick; /* runs while `ready` has entries that no socket will bring up */
    struct list waiting, calls, ready;
    int in_flight, in_flight_max, waiting_count;
    int open_handles; /* of the loop, that have to close before the memory may go */
    bool ending;
    void (*answered)(void *user, const char *verb, int status);
    void *user;
};

/* ---- the end of things ------------------------------------------------------------------------- */

static void free_when_closed(struct kube_http *http)
{
    if (http->ending && http->open_handles == 0) {
        free(http->user_agent);
        free(http);
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct kube_http *http = handle->data;

    http->open_handles--;
    free_when_closed(http);
}

static void on_socket_closed(uv_handle_t *handle)
{
    struct socket_watch *watch = handle->data;
    struct kube_http *http = watch->http;

    free(watch);
    http->open_handles--;
    free_when_closed(http);
}

static void on_call_timer_closed(uv_handle_t *handle)
{
    struct kube_call *call = handle->data;
    struct kube_http *http = call->http;

    free(call);
    http->open_handles--;
    free_when_closed(http);
}

/* Takes the call out of curl and of every list and frees it. */
static void call_free(struct kube_call *call)
{
    struct kube_http *http = call->http;

    list_remove(&call->place);
    list_remove(&call->ready);
    if (call->easy) {
        (void)curl_multi_remove_handle(http->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    fleet_strbuf_release(&call->answer);
    free(call->path);
    free(call->content_type);
    free(call->body);
    if (call->state == CALL_TIMER)
        uv_close((uv_handle_t *)&call->timer, on_call_timer_closed);
    else
        free(call);
}

/* ---- deliver ----------------------------------------------------------------------------------- */

static void make_ready(struct kube_call *call)
{
    if (list_is_empty(&call->ready))
        list_append(&call->http->ready, &call->ready);
}

static int error_code(CURLcode result)
{
    return result == CURLE_OPERATION_TIMEDOUT ? -ETIMEDOUT : -EHOSTUNREACH;
}

static void fill_error(const struct kube_call *call, struct fleet_error *err)
{
    const char *server = call->http->config->server;
    const char *why = *call->curl_text ? call->curl_text : curl_easy_strerror(call->result);

    if (call->too_large)
        (void)fleet_error(err, -EFBIG, "%s: the answer is over %u bytes", server,
                          KUBE_RESPONSE_MAX);
    else
        (void)fleet_error(err, error_code(call->result), "%s: %s", server, why);
}

/* The last callback of a call; it is freed before, so that on_done may do anything. */
static void deliver_end(struct kube_call *call)
{
    struct kube_request request = call->request;
    struct kube_response response = {.retry_after_ms = -1};
    struct fleet_strbuf answer = call->answer;
    struct fleet_error err;
    curl_off_t retry_after_s = 0;
    long status = 0;

    call->answer = (struct fleet_strbuf){0};
    if (call->result != CURLE_OK) {
        fill_error(call, &err);
        response.err = &err;
    } else {
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
        if (curl_easy_getinfo(call->easy, CURLINFO_RETRY_AFTER, &retry_after_s) == CURLE_OK &&
            retry_after_s > 0)
            response.retry_after_ms = (double)retry_after_s * 1000.0;
        response.status = (int)status;
        if (status == 401)
            kube_config_doubt(call->http->config);
    }
    response.body = fleet_strbuf_text(&answer);
    response.size = answer.length;
    if (call->http->answered)
        call->http->answered(call->http->user, request.streaming ? "WATCH" : request.method,
                             (int)status);
    call_free(call);
    request.on_done(request.user, &response);
    fleet_strbuf_release(&answer);
}

static void deliver_data(struct kube_call *call)
{
    struct kube_request *request = &call->request;
    struct fleet_strbuf piece = call->answer;

    call->answer = (struct fleet_strbuf){0};
    if (call->state == CALL_ENDED) /* its end comes in a turn of its own */
        make_ready(call);
    request->on_data(request->user, piece.text, piece.length); /* may free the call */
    fleet_strbuf_release(&piece);
}

static bool is_success(const struct kube_call *call)
{
    long status = 0;

    if (call->easy)
        (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    return status >= 200 && status < 300;
}

static void start_waiting(struct kube_http *http);

/* Everything that has become ready. Callbacks may add to the list; those wait for the next turn. */
static void deliver(struct kube_http *http)
{
    struct list batch;

    list_init(&batch);
    while (!list_is_empty(&http->ready)) {
        struct list *entry = http->ready.next;
        list_remove(entry);
        list_append(&batch, entry);
    }
    while (!list_is_empty(&batch)) {
        struct kube_call *call = LIST_OF(batch.next, struct kube_call, ready);
        list_remove(&call->ready);
        if (call->request.streaming && call->answer.length > 0 && is_success(call))
            deliver_data(call);
        else if (call->state == CALL_ENDED)
            deliver_end(call);
    }
    start_waiting(http);
}

static void on_kick(uv_idle_t *kick)
{
    struct kube_http *http = kick->data;

    (void)uv_idle_stop(kick);
    deliver(http);
    if (!list_is_empty(&http->ready) && !http->ending)
        (void)uv_idle_start(kick, on_kick);
}

static void kick(struct kube_http *http)
{
    if (!list_is_empty(&http->ready) && !http->ending)
        (void)uv_idle_start(&http->kick, on_kick);
}

/* ---- curl and the loop ------------------------------------------------------------------------- */

static int on_curl_wants_timer(CURLM *multi, long timeout_ms, void *user);

static void take_finished(struct kube_http *http)
{
    CURLMsg *message;
    int left;

    while ((message = curl_multi_info_read(http->multi, &left))) {
        struct kube_call *call = NULL;
        if (message->msg != CURLMSG_DONE)
            continue;
        (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&call);
        call->result = message->data.result;
        call->state = CALL_ENDED;
        if (!call->request.streaming)
            http->in_flight--;
        make_ready(call);
    }
}

/*
 * curl asks for a timer once a time: one that fires a fraction of a millisecond early finds nothing to
 * do and is not asked for again, and a stream whose bytes wait inside curl would wait for ever. So
 * whenever curl has worked and no timer runs, it is asked what it waits for.
 */
static void keep_timer(struct kube_http *http)
{
    long timeout_ms = -1;

    if (http->ending || uv_is_active((uv_handle_t *)&http->curl_timer))
        return;
    if (curl_multi_timeout(http->multi, &timeout_ms) == CURLM_OK && timeout_ms >= 0)
        (void)on_curl_wants_timer(http->multi, timeout_ms, http);
}

static void let_curl_work(struct kube_http *http, curl_socket_t fd, int events)
{
    int running;

    (void)curl_multi_socket_action(http->multi, fd, events, &running);
    keep_timer(http);
    take_finished(http);
    deliver(http);
    kick(http);
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct socket_watch *watch = poll->data;
    int flags = 0;

    if (status < 0)
        flags = CURL_CSELECT_ERR;
    if (events & UV_READABLE)
        flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE)
        flags |= CURL_CSELECT_OUT;
    let_curl_work(watch->http, watch->fd, flags);
}

static int on_curl_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *socket_user)
{
    struct kube_http *http = user;
    struct socket_watch *watch = socket_user;
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (watch) {
            (void)uv_poll_stop(&watch->poll);
            (void)curl_multi_assign(http->multi, fd, NULL);
            uv_close((uv_handle_t *)&watch->poll, on_socket_closed);
        }
        return 0;
    }
    if (!watch) {
        watch = calloc(1, sizeof(*watch));
        fleet_assert(watch != NULL);
        watch->http = http;
        watch->fd = fd;
        if (uv_poll_init_socket(http->loop, &watch->poll, fd) < 0) {
            free(watch);
            return -1;
        }
        watch->poll.data = watch;
        http->open_handles++;
        (void)curl_multi_assign(http->multi, fd, watch);
    }
    (void)uv_poll_start(&watch->poll, events, on_socket);
    return 0;
}

static void on_curl_timer(uv_timer_t *timer)
{
    let_curl_work(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static int on_curl_wants_timer(CURLM *multi, long timeout_ms, void *user)
{
    struct kube_http *http = user;

    (void)multi;
    if (timeout_ms < 0) {
        (void)uv_timer_stop(&http->curl_timer);
    } else {
        uv_update_time(http->loop); /* else the timer counts from when this turn began */
        (void)uv_timer_start(&http->curl_timer, on_curl_timer, (uint64_t)timeout_ms, 0);
    }
    return 0;
}

/* ---- requests ---------------------------------------------------------------------------------- */

static size_t on_curl_bytes(char *bytes, size_t one, size_t size, void *user)
{
    struct kube_call *call = user;

    (void)one;
    if (call->answer.length + size > KUBE_RESPONSE_MAX) {
        call->too_large = true;
        return 0;
    }
    fleet_strbuf_append_bytes(&call->answer, bytes, size);
    if (call->request.streaming && is_success(call))
        make_ready(call);
    return size;
}

/* A peer that vanished without a word is noticed by unacknowledged data, not by hours of silence. */
static int on_curl_socket_made(void *user, curl_socket_t fd, curlsocktype purpose)
{
    unsigned int silent_ms = PEER_SILENT_MS;
    int one = 1;

    (void)user;
    (void)purpose;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return CURL_SOCKOPT_OK;
}

static void set_blob(CURL *easy, CURLoption option, const struct kube_secret *secret)
{
    struct curl_blob blob = {.data = secret->text, .len = secret->size, .flags = CURL_BLOB_COPY};

    if (secret->text)
        (void)curl_easy_setopt(easy, option, &blob);
}

static void set_identity(CURL *easy, const struct kube_config *config)
{
    set_blob(easy, CURLOPT_CAINFO_BLOB, &config->ca);
    if (config->client_certificate.text && config->client_key.text) {
        set_blob(easy, CURLOPT_SSLCERT_BLOB, &config->client_certificate);
        set_blob(easy, CURLOPT_SSLKEY_BLOB, &config->client_key);
    }
    if (config->proxy)
        (void)curl_easy_setopt(easy, CURLOPT_PROXY, config->proxy);
    if (config->token.text) {
        (void)curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, config->token.text);
        (void)curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    }
}

static void set_header(struct kube_call *call, const char *name, const char *value)
{
    struct fleet_strbuf line = {0};

    fleet_strbuf_appendf(&line, "%s: %s", name, value);
    call->headers = curl_slist_append(call->headers, line.text);
    fleet_assert(call->headers != NULL);
    fleet_strbuf_release(&line);
}

static void set_request(struct kube_call *call)
{
    struct fleet_strbuf url = {0};
    CURL *easy = call->easy;

    fleet_strbuf_appendf(&url, "%s%s", call->http->config->server, call->path);
    (void)curl_easy_setopt(easy, CURLOPT_URL, url.text);
    fleet_strbuf_release(&url);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    (void)curl_easy_setopt(easy, CURLOPT_PIPEWAIT, 1L); /* join a connection rather than open one */
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->request.method);
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, call->http->user_agent);
    set_header(call, "Accept", "application/json");
    if (call->content_type) {
        set_header(call, "Content-Type", call->content_type);
        set_header(call, "Expect", "");
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                               (curl_off_t)call->request.body_size);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call->body);
    }
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
}

static void set_limits(struct kube_call *call, double now_ms)
{
    CURL *easy = call->easy;

    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    if (call->deadline_ms > 0)
        (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(call->deadline_ms - now_ms) + 1);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_S);
    (void)curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_curl_socket_made);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->curl_text);
    (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_curl_bytes);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
}

/* A call that will not reach curl: its end is delivered like any other, later. */
static void end_early(struct kube_call *call, CURLcode result, const char *why)
{
    call->state = CALL_ENDED;
    call->result = result;
    snprintf(call->curl_text, sizeof(call->curl_text), "%s", why);
    make_ready(call);
    kick(call->http);
}

static void start_call(struct kube_call *call)
{
    struct kube_http *http = call->http;
    double now_ms = fleet_monotonic_ms();
    struct fleet_error err;

    list_remove(&call->place);
    list_append(&http->calls, &call->place);
    if (call->deadline_ms > 0 && call->deadline_ms <= now_ms) {
        end_early(call, CURLE_OPERATION_TIMEDOUT, "timed out before a place was free");
        return;
    }
    if (kube_config_refresh(http->config, now_ms, fleet_wall_ms(), &err) < 0) {
        end_early(call, CURLE_LOGIN_DENIED, err.text);
        return;
    }
    call->easy = curl_easy_init();
    fleet_assert(call->easy != NULL);
    set_request(call);
    set_identity(call->easy, http->config);
    set_limits(call, now_ms);
    call->state = CALL_ACTIVE;
    if (curl_multi_add_handle(http->multi, call->easy) != CURLM_OK) {
        end_early(call, CURLE_FAILED_INIT, "curl refused the request");
        return;
    }
    if (!call->request.streaming)
        http->in_flight++;
}

static void start_waiting(struct kube_http *http)
{
    while (!http->ending && http->in_flight < http->in_flight_max &&
           !list_is_empty(&http->waiting)) {
        http->waiting_count--;
        start_call(LIST_OF(http->waiting.next, struct kube_call, place));
    }
}

static struct kube_call *http_send(struct kube_io *io, const struct kube_request *request)
{
    struct kube_http *http = (struct kube_http *)io;
    struct kube_call *call = calloc(1, sizeof(*call));

    fleet_assert(call != NULL && request->path[0] == '/' && request->on_done);
    fleet_assert(!request->streaming || request->on_data);
    call->http = http;
    call->state = CALL_WAITING;
    call->request = *request;
    call->path = strdup(request->path);
    call->content_type = request->content_type ? strdup(request->content_type) : NULL;
    if (request->content_type) {
        call->body = malloc(request->body_size + 1);
        fleet_assert(call->body != NULL);
        memcpy(call->body, request->body_size > 0 ? request->body : "", request->body_size);
    }
    call->deadline_ms = request->timeout_ms > 0 ? fleet_monotonic_ms() + request->timeout_ms : 0;
    list_init(&call->ready);
    list_append(&http->waiting, &call->place);
    if (request->streaming || request->urgent ||
        (http->in_flight < http->in_flight_max && http->waiting_count == 0))
        start_call(call);
    else
        http->waiting_count++;
    return call;
}

/* ---- timers, time, the rest -------------------------------------------------------------------- */

static void on_time(uv_timer_t *timer)
{
    struct kube_call *call = timer->data;
    void (*callback)(void *user) = call->on_time;
    void *user = call->on_time_user;

    call_free(call);
    callback(user);
}

static struct kube_call *http_after(struct kube_io *io, double delay_ms,
                                    void (*callback)(void *user), void *user)
{
    struct kube_http *http = (struct kube_http *)io;
    struct kube_call *call = calloc(1, sizeof(*call));

    fleet_assert(call != NULL && delay_ms >= 0);
    call->http = http;
    call->state = CALL_TIMER;
    call->on_time = callback;
    call->on_time_user = user;
    list_init(&call->ready);
    list_append(&http->calls, &call->place);
    (void)uv_timer_init(http->loop, &call->timer);
    call->timer.data = call;
    http->open_handles++;
    uv_update_time(http->loop);
    (void)uv_timer_start(&call->timer, on_time, (uint64_t)(delay_ms + 0.999), 0);
    return call;
}

static void http_cancel(struct kube_io *io, struct kube_call *call)
{
    struct kube_http *http = (struct kube_http *)io;

    if (call->state == CALL_WAITING)
        http->waiting_count--;
    if (call->state == CALL_ACTIVE && !call->request.streaming)
        http->in_flight--;
    call_free(call);
    if (http->in_flight < http->in_flight_max && http->waiting_count > 0)
        start_waiting(http);
}

static double http_now_ms(struct kube_io *io)
{
    (void)io;
    return fleet_monotonic_ms();
}

static int64_t http_wall_ms(struct kube_io *io)
{
    (void)io;
    return fleet_wall_ms();
}

static uint64_t http_random(struct kube_io *io)
{
    uint64_t bits;

    (void)io;
    fleet_random_bytes(&bits, sizeof(bits));
    return bits;
}

static const struct kube_io_ops http_ops = {
    .now_ms = http_now_ms,
    .wall_ms = http_wall_ms,
    .random = http_random,
    .send = http_send,
    .after = http_after,
    .cancel = http_cancel,
};

/* ---- life -------------------------------------------------------------------------------------- */

int kube_http_new(uv_loop_t *loop, struct kube_config *config,
                  const struct kube_http_options *options, struct kube_io **out,
                  struct fleet_error *err)
{
    struct kube_http *http;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return fleet_error(err, -EIO, "start curl");
    http = calloc(1, sizeof(*http));
    fleet_assert(http != NULL);
    http->io.ops = &http_ops;
    http->loop = loop;
    http->config = config;
    http->user_agent =
        strdup(options && options->user_agent ? options->user_agent : "fleetjob/" FLEET_VERSION);
    http->in_flight_max =
        options && options->in_flight_max > 0 ? options->in_flight_max : IN_FLIGHT_DEFAULT;
    http->answered = options ? options->answered : NULL;
    http->user = options ? options->user : NULL;
    list_init(&http->waiting);
    list_init(&http->calls);
    list_init(&http->ready);
    http->multi = curl_multi_init();
    fleet_assert(http->multi != NULL);
    (void)curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, on_curl_socket);
    (void)curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
    (void)curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, on_curl_wants_timer);
    (void)curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
    (void)curl_multi_setopt(http->multi, CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX);
    (void)uv_timer_init(loop, &http->curl_timer);
    (void)uv_idle_init(loop, &http->kick);
    http->curl_timer.data = http->kick.data = http;
    http->open_handles = 2;
    *out = &http->io;
    return 0;
}

void kube_http_free(struct kube_io *io)
{
    struct kube_http *http = (struct kube_http *)io;

    if (!http)
        return;
    fleet_assert(!http->ending);
    http->ending = true;
    while (!list_is_empty(&http->waiting))
        call_free(LIST_OF(http->waiting.next, struct kube_call, place));
    while (!list_is_empty(&http->calls))
        call_free(LIST_OF(http->calls.next, struct kube_call, place));
    (void)curl_multi_cleanup(http->multi); /* closes the sockets, and with them their watches */
    uv_close((uv_handle_t *)&http->curl_timer, on_handle_closed);
    uv_close((uv_handle_t *)&http->kick, on_handle_closed);
}

void kube_http_load(struct kube_io *io, int *out_in_flight, int *out_waiting)
{
    const struct kube_http *http = (const struct kube_http *)io;

    *out_in_flight = http->in_flight;
    *out_waiting = http->waiting_count;
}
