/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/executor/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

struct item {
    queue_run run;
    void *context;
};

struct queue {
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t put, ran;
    struct item *items; /* [capacity]: item n lies at n % capacity */
    uint64_t capacity;
    uint64_t end, done; /* items put; items that have run, or were passed over */
    bool is_closing;
    struct fleet_error failure; /* of the first item that failed; code 0: none has */
    struct queue_times times;
};

/* Without the lock. */
static int run_item(const struct item *item, struct fleet_error *err, double *out_s)
{
    double started_ms = fleet_monotonic_ms();
    int rc = item->run(item->context, err);

    *out_s = (fleet_monotonic_ms() - started_ms) * 1e-3;
    return rc;
}

static void *serve(void *argument)
{
    struct queue *q = argument;

    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct fleet_error err = {0};
        struct item item;
        double took_s;
        int rc;

        while (q->done == q->end && !q->is_closing)
            pthread_cond_wait(&q->put, &q->lock);
        if (q->done == q->end)
            break;
        item = q->items[q->done % q->capacity];
        if (q->failure.code == 0) {
            pthread_mutex_unlock(&q->lock);
            rc = run_item(&item, &err, &took_s);
            pthread_mutex_lock(&q->lock);
            q->times.busy_s += took_s;
            if (rc < 0)
                q->failure = err;
        }
        q->done++;
        pthread_cond_broadcast(&q->ran);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

int queue_new(int capacity, struct queue **out, struct fleet_error *err)
{
    struct queue *q = calloc(1, sizeof(*q));
    int rc;

    fleet_assert(q && capacity > 0);
    q->capacity = (uint64_t)capacity;
    q->items = calloc((size_t)capacity, sizeof(*q->items));
    fleet_assert(q->items);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->put, NULL);
    pthread_cond_init(&q->ran, NULL);
    rc = pthread_create(&q->thread, NULL, serve, q);
    if (rc != 0) {
        pthread_cond_destroy(&q->ran);
        pthread_cond_destroy(&q->put);
        pthread_mutex_destroy(&q->lock);
        free(q->items);
        free(q);
        return fleet_error(err, -EAGAIN, "start the thread of the second queue: %s", strerror(rc));
    }
    *out = q;
    return 0;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    fleet_assert(q->done == q->end);
    q->is_closing = true;
    pthread_cond_signal(&q->put);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->ran);
    pthread_cond_destroy(&q->put);
    pthread_mutex_destroy(&q->lock);
    free(q->items);
    free(q);
}

uint64_t queue_put(struct queue *q, queue_run run, void *context)
{
    uint64_t ticket;

    pthread_mutex_lock(&q->lock);
    fleet_assert(q->end - q->done < q->capacity);
    q->items[q->end % q->capacity] = (struct item){run, context};
    ticket = ++q->end;
    pthread_cond_signal(&q->put);
    pthread_mutex_unlock(&q->lock);
    return ticket;
}

/* With the lock. */
static int wait_for(struct queue *q, uint64_t ticket, struct fleet_error *err)
{
    double started_ms = fleet_monotonic_ms();

    while (q->done < ticket)
        pthread_cond_wait(&q->ran, &q->lock);
    q->times.waited_s += (fleet_monotonic_ms() - started_ms) * 1e-3;
    if (q->failure.code < 0 && err)
        *err = q->failure;
    return q->failure.code;
}

int queue_wait(struct queue *q, uint64_t ticket, struct fleet_error *err)
{
    int rc;

    pthread_mutex_lock(&q->lock);
    rc = wait_for(q, ticket, err);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int queue_finish(struct queue *q, struct fleet_error *err)
{
    int rc;

    pthread_mutex_lock(&q->lock);
    rc = wait_for(q, q->end, err);
    q->failure = (struct fleet_error){0};
    pthread_mutex_unlock(&q->lock);
    return rc;
}

void queue_times(struct queue *q, struct queue_times *out)
{
    pthread_mutex_lock(&q->lock);
    *out = q->times;
    pthread_mutex_unlock(&q->lock);
}
