/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/rpc/future.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libfleet/base/clock.h"

#define BUCKETS 1024

struct fleet_rpc_future {
    struct fleet_rpc_future *next; /* in its bucket */
    uint64_t id;
    const struct rpc_channel *channel;
    bool is_sent, is_done;
    double deadline_ms; /* 0: none */
    pthread_cond_t done;
    char to[FLEET_RPC_NAME_MAX + 1], function[FLEET_RPC_NAME_MAX + 1];
    int result;
    struct fleet_error error;
    void *out;
    size_t bytes;
};

pthread_mutex_t rpc_lock = PTHREAD_MUTEX_INITIALIZER;

static struct fleet_rpc_future *table[BUCKETS];
static uint64_t last_id;
static int count;
static pthread_cond_t is_empty = PTHREAD_COND_INITIALIZER;

struct fleet_rpc_future *rpc_future_new(const char *to, const char *function, int timeout_ms,
                                        struct fleet_error *err)
{
    struct fleet_rpc_future *future = calloc(1, sizeof(*future)), **bucket;
    pthread_condattr_t attributes;

    if (!future) {
        (void)fleet_error(err, -ENOMEM, "out of memory");
        return NULL;
    }
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&future->done, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    future->id = ++last_id;
    future->deadline_ms = timeout_ms > 0 ? fleet_monotonic_ms() + timeout_ms : 0;
    (void)snprintf(future->to, sizeof(future->to), "%s", to);
    (void)snprintf(future->function, sizeof(future->function), "%s", function);
    bucket = &table[future->id % BUCKETS];
    future->next = *bucket;
    *bucket = future;
    count++;
    return future;
}

uint64_t rpc_future_id(const struct fleet_rpc_future *future)
{
    return future->id;
}

void rpc_future_sent(struct fleet_rpc_future *future, const struct rpc_channel *channel)
{
    future->channel = channel;
    future->is_sent = true;
}

/* Out of the table. */
static void settle(struct fleet_rpc_future *future, int result)
{
    struct fleet_rpc_future **at = &table[future->id % BUCKETS];

    while (*at != future)
        at = &(*at)->next;
    *at = future->next;
    if (--count == 0)
        (void)pthread_cond_broadcast(&is_empty);
    future->is_done = true;
    future->result = result;
    (void)pthread_cond_broadcast(&future->done);
}

/* Text of the worker and the function before `text`. */
static void settle_error(struct fleet_rpc_future *future, int code, const char *text)
{
    settle(future, fleet_error(&future->error, code, "%s of worker %s: %s", future->function,
                               future->to, text));
}

void rpc_future_answer(uint64_t id, const struct rpc_channel *channel, int code, void **data,
                       size_t bytes)
{
    struct fleet_rpc_future *future = table[id % BUCKETS];
    char text[FLEET_ERROR_SIZE] = "";

    while (future && (future->id != id || future->channel != channel || !future->is_sent))
        future = future->next;
    if (!future)
        return;
    if (code < 0) {
        if (*data)
            memcpy(text, *data, bytes < sizeof(text) ? bytes : sizeof(text) - 1);
        settle_error(future, code, text);
        return;
    }
    future->out = *data;
    future->bytes = bytes;
    *data = NULL;
    settle(future, 0);
}

void rpc_future_fail(const struct rpc_channel *channel, const struct fleet_error *why)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct fleet_rpc_future *one = table[i], *next; one; one = next) {
            next = one->next;
            if (one->is_sent && one->channel == channel)
                settle_error(one, why->code, why->text);
        }
}

void rpc_future_drain(void)
{
    while (count > 0)
        (void)pthread_cond_wait(&is_empty, &rpc_lock);
}

/* ---- public ---------------------------------------------------------------------------------- */

static bool is_over(const struct fleet_rpc_future *future)
{
    return future->deadline_ms > 0 && fleet_monotonic_ms() >= future->deadline_ms;
}

static void wait_change(struct fleet_rpc_future *future)
{
    struct timespec until = {.tv_sec = (time_t)(future->deadline_ms / 1000)};

    until.tv_nsec = (long)((future->deadline_ms - 1000.0 * (double)until.tv_sec) * 1e6);
    if (future->deadline_ms > 0)
        (void)pthread_cond_timedwait(&future->done, &rpc_lock, &until);
    else
        (void)pthread_cond_wait(&future->done, &rpc_lock);
}

int fleet_rpc_wait(struct fleet_rpc_future *future, void **out, size_t *out_bytes,
                   struct fleet_error *err)
{
    int rc = argument_check(future, "fleet_rpc_wait", "future", err);

    if (rc == 0)
        rc = argument_check(out, "fleet_rpc_wait", "out", err);
    if (rc == 0)
        rc = argument_check(out_bytes, "fleet_rpc_wait", "out_bytes", err);
    if (rc < 0)
        return rc;
    (void)pthread_mutex_lock(&rpc_lock);
    while (!future->is_done && !is_over(future))
        wait_change(future);
    if (!future->is_done)
        settle_error(future, -ETIMEDOUT, "no answer within the call's time limit");
    rc = future->result;
    if (rc == 0) {
        *out = future->out;
        *out_bytes = future->bytes;
        future->out = NULL;
        future->bytes = 0;
    } else if (err) {
        *err = future->error;
    }
    (void)pthread_mutex_unlock(&rpc_lock);
    return rc;
}

int fleet_rpc_done(const struct fleet_rpc_future *future)
{
    bool done;

    if (!future)
        return 0;
    (void)pthread_mutex_lock(&rpc_lock);
    done = future->is_done || is_over(future);
    (void)pthread_mutex_unlock(&rpc_lock);
    return done;
}

void fleet_rpc_future_free(struct fleet_rpc_future *future)
{
    if (!future)
        return;
    (void)pthread_mutex_lock(&rpc_lock);
    if (!future->is_done)
        settle(future, -ECANCELED);
    (void)pthread_mutex_unlock(&rpc_lock);
    (void)pthread_cond_destroy(&future->done);
    free(future->out);
    free(future);
}
