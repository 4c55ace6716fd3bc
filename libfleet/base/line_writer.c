/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A thread writes, because O_NONBLOCK does not help: it belongs to the open file, which other
 * processes share, and a pipe of another user cannot be opened again through /proc. The thread
 * takes the whole buffer at once and writes it without holding the lock. Meanwhile `put` fills a
 * new one, so at most twice FLEET_LINE_WRITER_SIZE_MAX bytes are held.
 */
#include "libfleet/base/line_writer.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"

struct fleet_line_writer {
    int fd;
    char name[32];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t has_work; /* `waiting` is not empty, or is_ending */
    pthread_cond_t is_idle;  /* everything is written */
    struct fleet_strbuf waiting;
    bool is_writing; /* the thread holds bytes that are not written yet */
    bool is_failed;  /* a write has failed; later lines are dropped */
    bool is_ending;
    bool is_abandoned; /* the thread frees the writer */
    int64_t dropped;   /* dropped since the last line that reports it */
    int64_t dropped_all;
};

static void lock(struct fleet_line_writer *writer)
{
    fleet_assert(pthread_mutex_lock(&writer->lock) == 0);
}

static void unlock(struct fleet_line_writer *writer)
{
    fleet_assert(pthread_mutex_unlock(&writer->lock) == 0);
}

static bool write_all(int fd, const char *text, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, text, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        size -= (size_t)n;
    }
    return true;
}

static void destroy(struct fleet_line_writer *writer)
{
    (void)pthread_cond_destroy(&writer->has_work);
    (void)pthread_cond_destroy(&writer->is_idle);
    (void)pthread_mutex_destroy(&writer->lock);
    fleet_strbuf_release(&writer->waiting);
    free(writer);
}

/* (3): the dropped lines came after this batch and before all later lines. */
static void append_gap(struct fleet_line_writer *writer, struct fleet_strbuf *batch)
{
    if (writer->dropped > 0)
        fleet_strbuf_appendf(batch, "… %" PRId64 " %s dropped here: nobody read them in time\n",
                             writer->dropped, writer->name);
    writer->dropped = 0;
}

static void *run(void *argument)
{
    struct fleet_line_writer *writer = argument;
    struct fleet_strbuf batch = {0};
    bool is_abandoned;

    lock(writer);
    for (;;) {
        while (writer->waiting.length == 0 && !writer->is_ending)
            (void)pthread_cond_wait(&writer->has_work, &writer->lock);
        if (writer->waiting.length == 0)
            break;
        batch = writer->waiting;
        writer->waiting = (struct fleet_strbuf){0};
        append_gap(writer, &batch);
        writer->is_writing = true;
        unlock(writer);
        bool is_written = write_all(writer->fd, batch.text, batch.length);
        fleet_strbuf_release(&batch);
        lock(writer);
        writer->is_writing = false;
        writer->is_failed |= !is_written;
        if (writer->is_failed)
            fleet_strbuf_clear(&writer->waiting);
        if (writer->waiting.length == 0)
            (void)pthread_cond_broadcast(&writer->is_idle);
    }
    is_abandoned = writer->is_abandoned;
    unlock(writer);
    if (is_abandoned)
        destroy(writer);
    return NULL;
}

/* Block all signals: another thread has the handler or the descriptor for them. */
static void start_thread(struct fleet_line_writer *writer)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    fleet_assert(pthread_create(&writer->thread, NULL, run, writer) == 0);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct fleet_line_writer *fleet_line_writer_new(int fd, const char *name)
{
    struct fleet_line_writer *writer = calloc(1, sizeof(*writer));
    pthread_condattr_t monotonic;

    fleet_assert(writer);
    writer->fd = fd;
    (void)snprintf(writer->name, sizeof(writer->name), "%s", name);
    fleet_assert(pthread_mutex_init(&writer->lock, NULL) == 0);
    fleet_assert(pthread_condattr_init(&monotonic) == 0 &&
                 pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0);
    fleet_assert(pthread_cond_init(&writer->has_work, NULL) == 0 &&
                 pthread_cond_init(&writer->is_idle, &monotonic) == 0);
    (void)pthread_condattr_destroy(&monotonic);
    start_thread(writer);
    return writer;
}

void fleet_line_writer_put(struct fleet_line_writer *writer, const char *line, size_t size)
{
    lock(writer);
    if (writer->is_failed) {
        /* no reader is left; the program continues without its output */
    } else if (writer->waiting.length > 0 &&
               (writer->dropped > 0 ||
                size > FLEET_LINE_WRITER_SIZE_MAX - writer->waiting.length)) {
        writer->dropped++;
        writer->dropped_all++;
    } else {
        fleet_strbuf_append_bytes(&writer->waiting, line, size);
        (void)pthread_cond_signal(&writer->has_work);
    }
    unlock(writer);
}

static struct timespec after_ms(double ms)
{
    struct timespec at;
    int64_t ns;

    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    ns = at.tv_nsec + (int64_t)(ms * 1e6);
    at.tv_sec += ns / 1000000000;
    at.tv_nsec = ns % 1000000000;
    return at;
}

/* Under the lock. */
static bool wait_until_idle(struct fleet_line_writer *writer, double timeout_ms)
{
    struct timespec until = after_ms(timeout_ms);

    while (writer->is_writing || writer->waiting.length > 0)
        if (pthread_cond_timedwait(&writer->is_idle, &writer->lock, &until) == ETIMEDOUT)
            return !writer->is_writing && writer->waiting.length == 0;
    return true;
}

bool fleet_line_writer_flush(struct fleet_line_writer *writer, double timeout_ms)
{
    bool is_idle;

    lock(writer);
    is_idle = wait_until_idle(writer, timeout_ms);
    unlock(writer);
    return is_idle;
}

int64_t fleet_line_writer_dropped(struct fleet_line_writer *writer)
{
    int64_t dropped;

    lock(writer);
    dropped = writer->dropped_all;
    unlock(writer);
    return dropped;
}

void fleet_line_writer_free(struct fleet_line_writer *writer, double timeout_ms)
{
    pthread_t thread;
    bool is_idle;

    if (!writer)
        return;
    lock(writer);
    thread = writer->thread;
    is_idle = wait_until_idle(writer, timeout_ms);
    writer->is_ending = true;
    writer->is_abandoned = !is_idle;
    (void)pthread_cond_signal(&writer->has_work);
    unlock(writer);
    if (!is_idle) {
        (void)pthread_detach(thread);
        return;
    }
    (void)pthread_join(thread, NULL);
    destroy(writer);
}
