/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One lock guards everything but the stop flag. The thread only reads orders, flushes bytes that
 * did not fit into the socket, and aborts. It computes nothing, so an abort takes effect within
 * microseconds, even if the main thread is busy.
 */
#include "agent/runtime/control.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

struct control {
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct link link;
    int wake_fd; /* eventfd: there is something to flush, or to end */
    int stop_fd; /* eventfd: readable while `stop` is set */
    atomic_bool stop;
    struct comm *comm; /* to abort with the running generation, or NULL */
    struct fleet_generation running;
    struct link_message assign; /* if has_assign: the newest one not handed out */
    double beat_ms;             /* when the last heartbeat was sent */
    bool is_aborted;            /* the newest assign was: it is handed out, for its answer */
    bool has_assign, leave, done, gone, checkpoint, ending;
};

/* Stop the collective of the main thread. The lock is held. */
static void stop_running(struct control *control)
{
    if (atomic_exchange(&control->stop, true))
        return;
    (void)eventfd_write(control->stop_fd, 1);
    if (control->comm)
        comm_abort(control->comm);
}

static void take_assign(struct control *control, struct link_message *message)
{
    if (fleet_generation_compare(message->generation, control->running) <= 0 ||
        (control->has_assign &&
         fleet_generation_compare(message->generation, control->assign.generation) <= 0)) {
        link_message_release(message);
        return;
    }
    if (control->has_assign)
        link_message_release(&control->assign);
    control->assign = *message;
    control->has_assign = true;
    control->is_aborted = false;
    stop_running(control);
}

/* The agent waits for the answer "left" for each generation that it aborts, even if it was never
 * begun. */
static void take_abort(struct control *control, struct fleet_generation generation)
{
    if (control->has_assign &&
        fleet_generation_compare(control->assign.generation, generation) <= 0)
        control->is_aborted = true;
    if (fleet_generation_compare(control->running, generation) <= 0)
        stop_running(control);
}

static void take_order(struct control *control, struct link_message *message)
{
    switch (message->kind) {
    case LINK_ASSIGN:
        take_assign(control, message);
        break;
    case LINK_ABORT:
        take_abort(control, message->generation);
        break;
    case LINK_CHECKPOINT:
        control->checkpoint = true;
        break;
    case LINK_LEAVE:
        control->leave = true;
        break;
    case LINK_DONE:
        control->done = true;
        break;
    default: /* kinds that only a trainer sends */
        break;
    }
    pthread_cond_broadcast(&control->changed);
}

static void read_orders(struct control *control)
{
    struct link_message message;
    int rc;

    while ((rc = link_receive(&control->link, &message, NULL)) == 0)
        take_order(control, &message);
    if (rc == -EAGAIN)
        return;
    control->gone = true;
    stop_running(control);
    pthread_cond_broadcast(&control->changed);
}

/* Tell the agent twice a second that this process runs. The lock is held. */
static void beat(struct control *control)
{
    double now_ms = fleet_monotonic_ms();

    if (control->gone || now_ms - control->beat_ms < LINK_HEARTBEAT_MS)
        return;
    control->beat_ms = now_ms;
    (void)link_send(&control->link, &(struct link_message){.kind = LINK_HEARTBEAT}, NULL);
}

static void *read_loop(void *argument)
{
    struct control *control = argument;
    bool ending = false;

    while (!ending) {
        struct pollfd fds[2] = {{.fd = control->wake_fd, .events = POLLIN}};
        eventfd_t ignored;

        pthread_mutex_lock(&control->lock);
        fds[1].fd = control->gone ? -1 : control->link.fd;
        fds[1].events = (short)(POLLIN | (link_wants_write(&control->link) ? POLLOUT : 0));
        pthread_mutex_unlock(&control->lock);
        if (poll(fds, 2, LINK_HEARTBEAT_MS) < 0)
            continue; /* EINTR */
        if (fds[0].revents)
            (void)eventfd_read(control->wake_fd, &ignored);
        pthread_mutex_lock(&control->lock);
        ending = control->ending;
        beat(control);
        if (fds[1].revents & POLLOUT)
            (void)link_flush(&control->link, NULL);
        if (fds[1].revents & (POLLIN | POLLHUP | POLLERR))
            read_orders(control);
        pthread_mutex_unlock(&control->lock);
    }
    return NULL;
}

/* Free all except the thread, which does not run. */
static void destroy(struct control *control)
{
    if (control->has_assign)
        link_message_release(&control->assign);
    link_release(&control->link);
    if (control->wake_fd >= 0)
        (void)close(control->wake_fd);
    if (control->stop_fd >= 0)
        (void)close(control->stop_fd);
    pthread_mutex_destroy(&control->lock);
    pthread_cond_destroy(&control->changed);
    free(control);
}

int control_start(struct link *link, struct control **out, struct fleet_error *err)
{
    struct control *control = calloc(1, sizeof(*control));
    int rc;

    fleet_assert(control != NULL);
    pthread_mutex_init(&control->lock, NULL);
    pthread_cond_init(&control->changed, NULL);
    control->link = *link;
    *link = (struct link){.fd = -1};
    control->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    control->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = control->wake_fd < 0 || control->stop_fd < 0
             ? errno
             : pthread_create(&control->thread, NULL, read_loop, control);
    if (rc != 0) {
        destroy(control);
        return fleet_error(err, -rc, "start the control thread: %s", strerror(rc));
    }
    *out = control;
    return 0;
}

void control_free(struct control *control)
{
    if (!control)
        return;
    pthread_mutex_lock(&control->lock);
    control->ending = true;
    pthread_mutex_unlock(&control->lock);
    (void)eventfd_write(control->wake_fd, 1);
    pthread_join(control->thread, NULL);
    destroy(control);
}

enum control_order control_next(struct control *control, struct link_message *out)
{
    enum control_order order = CONTROL_ASSIGN;
    eventfd_t ignored;

    pthread_mutex_lock(&control->lock);
    fleet_assert(!control->comm);
    while (!control->gone && !control->leave && !control->done && !control->has_assign)
        pthread_cond_wait(&control->changed, &control->lock);
    if (control->done) {
        order = CONTROL_DONE;
    } else if (control->leave) {
        order = CONTROL_LEAVE;
    } else if (control->gone) {
        order = CONTROL_GONE;
    } else {
        *out = control->assign;
        control->has_assign = false;
        control->running = out->generation;
        atomic_store(&control->stop, false);
        (void)eventfd_read(control->stop_fd, &ignored);
        if (control->is_aborted)
            stop_running(control);
        control->is_aborted = false;
    }
    pthread_mutex_unlock(&control->lock);
    return order;
}

bool control_leaving(struct control *control)
{
    bool leaving;

    pthread_mutex_lock(&control->lock);
    leaving = control->leave;
    pthread_mutex_unlock(&control->lock);
    return leaving;
}

bool control_take_checkpoint(struct control *control)
{
    bool wanted;

    pthread_mutex_lock(&control->lock);
    wanted = control->checkpoint;
    control->checkpoint = false;
    pthread_mutex_unlock(&control->lock);
    return wanted;
}

const atomic_bool *control_stop(const struct control *control)
{
    return &control->stop;
}

int control_stop_fd(const struct control *control)
{
    return control->stop_fd;
}

void control_set_comm(struct control *control, struct comm *comm)
{
    pthread_mutex_lock(&control->lock);
    control->comm = comm;
    if (comm && atomic_load(&control->stop))
        comm_abort(comm);
    pthread_mutex_unlock(&control->lock);
}

void control_send(struct control *control, const struct link_message *message)
{
    pthread_mutex_lock(&control->lock);
    if (!control->gone)
        (void)link_send(&control->link, message,
                        NULL); /* the reading thread notices a broken link */
    if (link_wants_write(&control->link))
        (void)eventfd_write(control->wake_fd, 1);
    pthread_mutex_unlock(&control->lock);
}
