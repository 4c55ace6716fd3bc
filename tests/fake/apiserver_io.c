/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A call is one entry of a list with the time when something happens to it next: the request
 * arrives, the answer returns, the deadline passes, a stream is looked at again. The earliest is
 * found by walking: there are few calls at once, and the order of equals is the order of birth.
 *
 * Most looks at a stream find nothing. Those are not made: a stream without news is not due, and
 * where time passes it is noted that it has been looked at (fake_io_pass_looks()).
 */
#include "tests/fake/apiserver_io.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/json_tree.h"
#include "libfleet/base/random.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/api_error.h"
#include "tests/fake/apiserver.h"

#define WALL_START   INT64_C(1767225600000) /* 2026-01-01T00:00:00Z */
#define STREAM_PAUSE 2.0                    /* how often an open stream is looked at, at first */
#define SILENT_PEER  20000                  /* when a stream without a network is given up */
#define PIECE_MAX    97                     /* bytes of a stream at once */

enum step {
    STEP_TIMER,
    STEP_ARRIVES,
    STEP_RETURNS,
    STEP_FAILS,
    STEP_STREAMS
};

struct kube_call {
    struct kube_call *next, *previous;
    enum step step;
    double due_ms, deadline_ms; /* deadline: HUGE_VAL for none */
    struct kube_request request;
    char *method, *path, *body;
    bool wants_metadata;
    struct fake_response response;
    struct fleet_strbuf pending; /* of a stream, cut into pieces … */
    size_t told;                 /* bytes of `pending` that have been passed on */
    double unreachable_since_ms; /* of a stream; -1: it is not */
    bool over;                   /* the server has ended the stream */
    void (*on_time)(void *user);
    void *on_time_user;
};

struct fake_io {
    struct kube_io io;
    struct fake_apiserver *server;
    struct fake_weather weather;
    double stream_pause_ms;
    struct fleet_random_key key;
    uint64_t draws;
    double now_ms, hindered_ms;
    struct kube_call calls; /* head of the ring */
};

static uint64_t draw(struct fake_io *io)
{
    return fleet_random_u64(io->key, io->draws++);
}

static double uniform(struct fake_io *io)
{
    return (double)(draw(io) >> 11) / 9007199254740992.0;
}

static double latency(struct fake_io *io)
{
    const struct fake_weather *w = &io->weather;

    return w->latency_min_ms + (w->latency_max_ms - w->latency_min_ms) * uniform(io);
}

static void call_free(struct kube_call *call)
{
    call->next->previous = call->previous;
    call->previous->next = call->next;
    fake_response_release(&call->response);
    fleet_strbuf_release(&call->pending);
    free(call->method);
    free(call->path);
    free(call->body);
    free(call);
}

static struct kube_call *call_new(struct fake_io *io, enum step step, double due_ms)
{
    struct kube_call *call = calloc(1, sizeof(*call));

    fleet_assert(call != NULL);
    call->step = step;
    call->due_ms = due_ms;
    call->deadline_ms = HUGE_VAL;
    call->unreachable_since_ms = -1;
    call->next = &io->calls;
    call->previous = io->calls.previous;
    io->calls.previous->next = call;
    io->calls.previous = call;
    return call;
}

/* ---- what a call goes through ---------------------------------------------------------------- */

static void end_with_error(struct kube_call *call, enum kube_error kind, const char *why)
{
    struct kube_request request = call->request;
    struct kube_response response = {.retry_after_ms = -1, .body = ""};
    struct fleet_error err;

    (void)kube_error(&err, kind, "fake: %s", why);
    response.err = &err;
    call_free(call);
    request.on_done(request.user, &response);
}

static void end_with_answer(struct kube_call *call)
{
    struct kube_request request = call->request;
    struct fake_response answer = call->response;
    struct kube_response response = {
        .status = answer.status,
        .body = fleet_strbuf_text(&answer.body),
        .size = answer.body.length,
        .retry_after_ms = answer.retry_after_s > 0 ? answer.retry_after_s * 1000.0 : -1,
    };

    call->response = (struct fake_response){0};
    call_free(call);
    request.on_done(request.user, &response);
    fake_response_release(&answer);
}

/* An answer in the form that the request prefers: without spec, status and data. */
static void keep_metadata(struct fake_response *response)
{
    const char *half;
    FLEET_AUTO_JSON cJSON *object =
        fleet_json_tree(response->body.text, response->body.length, &half); /* our own text */
    cJSON *metadata = cJSON_DetachItemFromObjectCaseSensitive(object, "metadata");
    FLEET_AUTO_JSON cJSON *partial = fleet_json_new_object();
    FLEET_AUTO_FREE char *text = NULL;

    fleet_json_set_string(partial, "apiVersion", "meta.k8s.io/v1");
    fleet_json_set_string(partial, "kind", "PartialObjectMetadata");
    if (metadata)
        fleet_json_set(partial, "metadata", metadata);
    text = fleet_json_print(partial);
    fleet_strbuf_clear(&response->body);
    fleet_strbuf_append(&response->body, text);
}

static void note_hindrance(struct fake_io *io, double until_ms)
{
    io->hindered_ms = fmax(io->hindered_ms, until_ms);
}

static void arrive(struct fake_io *io, struct kube_call *call)
{
    struct fake_request request = {call->method, call->path, call->body,
                                   call->body ? call->request.body_size : 0};

    fake_apiserver_set_wall(io->server, WALL_START + (int64_t)io->now_ms);
    fake_apiserver_handle(io->server, &request, &call->response);
    if (call->wants_metadata && call->response.status / 100 == 2)
        keep_metadata(&call->response);
    if (call->response.drop || uniform(io) < io->weather.lost_answer)
        call->step = STEP_FAILS;
    else
        call->step = call->response.watch ? STEP_STREAMS : STEP_RETURNS;
    call->due_ms = io->now_ms + latency(io);
    if (call->step == STEP_FAILS && !call->response.drop) /* lost silently */
        call->due_ms = call->request.streaming ? io->now_ms + SILENT_PEER : call->deadline_ms;
    if (call->step == STEP_FAILS || call->response.is_ordered)
        note_hindrance(io, call->due_ms);
}

static void stream(struct fake_io *io, struct kube_call *call)
{
    char piece[PIECE_MAX + 1];
    size_t size;

    call->due_ms = io->now_ms + io->stream_pause_ms;
    if (io->weather.unreachable || call->over)
        note_hindrance(io, io->now_ms);
    if (io->weather.unreachable) {
        if (call->unreachable_since_ms < 0)
            call->unreachable_since_ms = io->now_ms;
        if (io->now_ms - call->unreachable_since_ms >= SILENT_PEER)
            end_with_error(call, KUBE_ERROR_UNREACHABLE, "the stream was silent");
        return;
    }
    call->unreachable_since_ms = -1;
    if (call->told == call->pending.length) {
        fleet_strbuf_clear(&call->pending);
        call->told = 0;
    }
    if (!call->over)
        call->over = !fake_watch_read(call->response.watch, &call->pending);
    if (call->pending.length == 0) {
        if (call->over)
            end_with_answer(call);
        return;
    }
    if (uniform(io) < io->weather.cut_stream) {
        note_hindrance(io, io->now_ms);
        end_with_error(call, KUBE_ERROR_UNREACHABLE, "the stream broke");
        return;
    }
    size = 1 + (size_t)(uniform(io) * PIECE_MAX);
    size = size < call->pending.length - call->told ? size : call->pending.length - call->told;
    memcpy(piece, call->pending.text + call->told, size); /* the call may end */
    call->told += size;
    call->due_ms = io->now_ms; /* the rest follows at once */
    call->request.on_data(call->request.user, piece, size);
}

static void run_call(struct fake_io *io, struct kube_call *call)
{
    void (*on_time)(void *user) = call->on_time;
    void *user = call->on_time_user;

    if (call->step != STEP_TIMER && io->now_ms >= call->deadline_ms) {
        end_with_error(call, KUBE_ERROR_TIMED_OUT, "timed out");
        return;
    }
    switch (call->step) {
    case STEP_TIMER:
        call_free(call);
        on_time(user);
        break;
    case STEP_ARRIVES:
        if (io->weather.unreachable || uniform(io) < io->weather.lost_request) {
            call->step = STEP_FAILS;
            call->due_ms = fmin(call->deadline_ms, io->now_ms + SILENT_PEER);
            note_hindrance(io, call->due_ms);
        } else {
            arrive(io, call);
        }
        break;
    case STEP_RETURNS:
        if (io->weather.answer_max > 0 && call->response.body.length > io->weather.answer_max)
            end_with_error(call, KUBE_ERROR_ANSWER_TOO_LARGE, "the answer is too large");
        else
            end_with_answer(call);
        break;
    case STEP_FAILS:
        end_with_error(call, KUBE_ERROR_UNREACHABLE, "connection lost");
        break;
    case STEP_STREAMS:
        stream(io, call);
        break;
    }
}

/* ---- struct kube_io -------------------------------------------------------------------------- */

static struct kube_call *io_send(struct kube_io *kube, const struct kube_request *request)
{
    struct fake_io *io = (struct fake_io *)kube;
    struct kube_call *call = call_new(io, STEP_ARRIVES, io->now_ms + latency(io));

    call->request = *request;
    call->method = strdup(request->method);
    call->path = strdup(request->path);
    call->wants_metadata =
        request->accept && strstr(request->accept, "as=PartialObjectMetadata") != NULL;
    if (request->content_type) {
        call->body = calloc(1, request->body_size + 1);
        fleet_assert(call->body != NULL);
        memcpy(call->body, request->body, request->body_size);
    }
    if (request->timeout_ms > 0)
        call->deadline_ms = io->now_ms + request->timeout_ms;
    return call;
}

static struct kube_call *io_after(struct kube_io *kube, double delay_ms, void (*on_time)(void *),
                                  void *user)
{
    struct fake_io *io = (struct fake_io *)kube;
    struct kube_call *call = call_new(io, STEP_TIMER, io->now_ms + delay_ms);

    call->on_time = on_time;
    call->on_time_user = user;
    return call;
}

static void io_cancel(struct kube_io *kube, struct kube_call *call)
{
    (void)kube;
    call_free(call);
}

static double io_now_ms(struct kube_io *kube)
{
    return ((struct fake_io *)kube)->now_ms;
}

static int64_t io_wall_ms(struct kube_io *kube)
{
    return WALL_START + (int64_t)((struct fake_io *)kube)->now_ms;
}

static uint64_t io_random(struct kube_io *kube)
{
    return draw((struct fake_io *)kube);
}

static const struct kube_io_ops fake_ops = {
    .now_ms = io_now_ms,
    .wall_ms = io_wall_ms,
    .random = io_random,
    .send = io_send,
    .after = io_after,
    .cancel = io_cancel,
};

/* ---- life and time --------------------------------------------------------------------------- */

struct fake_io *fake_io_new(struct fake_apiserver *server, uint64_t seed)
{
    struct fake_io *io = calloc(1, sizeof(*io));

    fleet_assert(io != NULL);
    io->io.ops = &fake_ops;
    io->server = server;
    io->weather.latency_min_ms = io->weather.latency_max_ms = 1;
    io->hindered_ms = -1;
    io->stream_pause_ms = STREAM_PAUSE;
    io->key = fleet_random_key(seed, "fake_io", 0);
    io->calls.next = io->calls.previous = &io->calls;
    return io;
}

void fake_io_free(struct fake_io *io)
{
    if (!io)
        return;
    while (io->calls.next != &io->calls)
        call_free(io->calls.next);
    free(io);
}

struct kube_io *fake_io_kube(struct fake_io *io)
{
    return &io->io;
}

double fake_io_hindered_ms(const struct fake_io *io)
{
    return io->hindered_ms;
}

struct fake_weather *fake_io_weather(struct fake_io *io)
{
    return &io->weather;
}

void fake_io_set_stream_pause(struct fake_io *io, double pause_ms)
{
    io->stream_pause_ms = pause_ms;
}

double fake_io_now_ms(const struct fake_io *io)
{
    return io->now_ms;
}

/* A stream that would find nothing if it were looked at now. */
static bool is_quiet(const struct fake_io *io, const struct kube_call *call)
{
    return call->step == STEP_STREAMS && !call->over && !io->weather.unreachable &&
           call->told == call->pending.length && fake_watch_is_quiet(call->response.watch);
}

/* The call to which something happens first, *out_ms: when; NULL and HUGE_VAL if there is none. */
static struct kube_call *earliest(const struct fake_io *io, bool with_looks, double *out_ms)
{
    struct kube_call *best = NULL;

    *out_ms = HUGE_VAL;
    for (struct kube_call *call = io->calls.next; call != &io->calls; call = call->next) {
        double due_ms = call->due_ms;
        if (call->step != STEP_TIMER && call->deadline_ms < due_ms)
            due_ms = call->deadline_ms;
        if (due_ms >= *out_ms)
            continue;
        if (!with_looks && is_quiet(io, call)) /* asked last: it takes longest */
            due_ms = call->deadline_ms;
        if (due_ms < *out_ms) {
            *out_ms = due_ms;
            best = call;
        }
    }
    return best;
}

void fake_io_pass_looks(struct fake_io *io, double now_ms)
{
    for (struct kube_call *call = io->calls.next; call != &io->calls; call = call->next) {
        if (call->due_ms > now_ms || !is_quiet(io, call))
            continue;
        call->unreachable_since_ms = -1;
        while (call->due_ms <= now_ms)
            call->due_ms = fmax(call->due_ms, io->now_ms) + io->stream_pause_ms;
    }
}

double fake_io_next_ms(const struct fake_io *io)
{
    double due_ms;

    (void)earliest(io, false, &due_ms);
    return fmax(due_ms, io->now_ms);
}

double fake_io_next_look_ms(const struct fake_io *io)
{
    double due_ms;

    (void)earliest(io, true, &due_ms);
    return fmax(due_ms, io->now_ms);
}

void fake_io_turn(struct fake_io *io, double now_ms)
{
    struct kube_call *call;
    double due_ms;

    fleet_assert(now_ms >= io->now_ms);
    while ((call = earliest(io, false, &due_ms)) && due_ms <= now_ms) {
        fake_io_pass_looks(io, due_ms);
        io->now_ms = fmax(io->now_ms, due_ms);
        run_call(io, call);
    }
    fake_io_pass_looks(io, now_ms);
    io->now_ms = now_ms;
}

void fake_io_run(struct fake_io *io, double duration_ms)
{
    fake_io_turn(io, io->now_ms + duration_ms);
}

bool fake_io_run_until(struct fake_io *io, const int *flag, int value, double limit_ms)
{
    double end = io->now_ms + limit_ms;

    while (*flag < value && fake_io_next_ms(io) <= end)
        fake_io_turn(io, fake_io_next_ms(io));
    return *flag >= value;
}

void fake_io_freeze(struct fake_io *io, double duration_ms)
{
    io->now_ms += duration_ms;
}
