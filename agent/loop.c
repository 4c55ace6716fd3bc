/* SPDX-License-Identifier: Apache-2.0 */

/*
 * libwebsockets closes a descriptor that it adopted, so it gets a duplicate. It lets go of the
 * duplicate one turn of the loop later, and only then is the watch freed.
 */
#include "agent/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libwebsockets.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"

#define WAIT_MAX_US 1000000000LL /* longest timer; a later one is set again when this is over */

struct loop {
    struct lws_context *context;
    struct lws_vhost *vhost;
    lws_sorted_usec_list_t timer;
    double timer_at_ms;
    void (*due)(void *user);
    void *due_user;
};

/* Lives until libwebsockets has let go of the duplicate, which may be after loop_watch_free(). */
struct loop_watch {
    struct lws *wsi;
    void (*ready)(void *user); /* NULL once freed */
    void *user;
};

static void call_ready(struct loop_watch *watch)
{
    if (watch && watch->ready)
        watch->ready(watch->user);
}

static int on_descriptor(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in,
                         size_t size)
{
    struct loop_watch *watch = lws_get_opaque_user_data(wsi);

    (void)user;
    (void)in;
    (void)size;
    switch (reason) {
    case LWS_CALLBACK_RAW_RX_FILE:
    case LWS_CALLBACK_RAW_WRITEABLE_FILE:
        call_ready(watch);
        break;
    case LWS_CALLBACK_RAW_CLOSE_FILE: /* the other side hung up, or loop_watch_free() */
        lws_set_opaque_user_data(wsi, NULL);
        if (watch) {
            watch->wsi = NULL;
            if (!watch->ready)
                free(watch);
            else
                call_ready(watch); /* to see the end of file; it frees the watch */
        }
        break;
    default:
        break;
    }
    return 0;
}

static const struct lws_protocols protocols[] = {
    {.name = "descriptor", .callback = on_descriptor},
    {.name = NULL},
};

static void pass_log(int level, const char *line)
{
    char text[256];
    size_t size = strcspn(line, "\n");

    (void)level;
    size = size < sizeof(text) ? size : sizeof(text) - 1;
    memcpy(text, line, size);
    text[size] = '\0';
    fleet_log_debug("Heard from libwebsockets", FLEET_STR("text", text));
}

int loop_new(struct loop **out, struct fleet_error *err)
{
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .options = LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT | LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
        .protocols = protocols,
        .vhost_name = "descriptors",
        .gid = (gid_t)-1,
        .uid = (uid_t)-1,
    };
    struct loop *loop = calloc(1, sizeof(*loop));

    fleet_assert(loop);
    lws_set_log_level(LLL_ERR | LLL_WARN, pass_log);
    loop->context = lws_create_context(&info);
    if (loop->context)
        loop->vhost = lws_create_vhost(loop->context, &info);
    if (!loop->vhost) {
        loop_free(loop);
        return fleet_error(err, -EIO, "libwebsockets could not make its context");
    }
    *out = loop;
    return 0;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    lws_sul_cancel(&loop->timer);
    if (loop->context)
        lws_context_destroy(loop->context);
    free(loop);
}

struct lws_context *loop_context(const struct loop *loop)
{
    return loop->context;
}

int loop_watch_new(struct loop *loop, int fd, void (*ready)(void *user), void *user,
                   struct loop_watch **out, struct fleet_error *err)
{
    struct loop_watch *watch = calloc(1, sizeof(*watch));
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    fleet_assert(watch);
    *watch = (struct loop_watch){.ready = ready, .user = user};
    if (copy >= 0)
        watch->wsi = lws_adopt_descriptor_vhost(loop->vhost, LWS_ADOPT_RAW_FILE_DESC,
                                                (lws_sock_file_fd_type){.filefd = copy},
                                                protocols[0].name, NULL);
    if (!watch->wsi) {
        free(watch);
        return fleet_error(err, -EIO, "watch descriptor %d: libwebsockets refused", fd);
    }
    lws_set_opaque_user_data(watch->wsi, watch);
    *out = watch;
    return 0;
}

void loop_watch_free(struct loop_watch *watch)
{
    if (!watch)
        return;
    watch->ready = NULL;
    if (watch->wsi)
        lws_set_timeout(watch->wsi, PENDING_TIMEOUT_CLOSE_ACK, LWS_TO_KILL_ASYNC);
    else
        free(watch);
}

void loop_watch_want_write(struct loop_watch *watch)
{
    if (watch && watch->wsi)
        lws_callback_on_writable(watch->wsi);
}

/*
 * libwebsockets runs its timers before it waits for descriptors. Without this it would wait as long
 * as its own timers allow, and the caller of the loop could not set the next time.
 */
static void on_timer(lws_sorted_usec_list_t *timer)
{
    struct loop *loop = lws_container_of(timer, struct loop, timer);

    if (fleet_monotonic_ms() < loop->timer_at_ms) {
        loop_set_timer(loop, loop->timer_at_ms, loop->due, loop->due_user);
        return;
    }
    loop->due(loop->due_user);
    lws_cancel_service(loop->context); /* ends the turn */
}

void loop_set_timer(struct loop *loop, double at_ms, void (*due)(void *user), void *user)
{
    double wait_us = ceil((at_ms - fleet_monotonic_ms()) * 1e3);

    loop->timer_at_ms = at_ms;
    loop->due = due;
    loop->due_user = user;
    if (isinf(at_ms))
        lws_sul_cancel(&loop->timer);
    else
        lws_sul_schedule(loop->context, 0, &loop->timer, on_timer,
                         (lws_usec_t)fmin(fmax(wait_us, 1.0), (double)WAIT_MAX_US));
}

void loop_turn(struct loop *loop)
{
    (void)lws_service(loop->context, 0);
}
